"""`weft completion bash|zsh|fish`: a script that completes groups, commands and options.

The script is tyro's own. It holds every word, so that a key press starts Python but not weft.
"""

from __future__ import annotations

import importlib
import io
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Union

import tyro

from weft.cli.main import groups
from weft.cli.options import shown_options

if TYPE_CHECKING:
    from rich.console import Console

# An argument of a process may have 128 KiB, and all our words are more: fish pipes them instead.
_FISH = '($python_cmd -c "$pycode" $words $current)'
_FISH_PIPED = "(printf '%s' \"$pycode\" | $python_cmd - $words $current)"
# zsh counts words from 1, and what tyro's script calls counts from 0.
_ZSH = '"${words[@]}" "$CURRENT"'
_ZSH_FROM_0 = '"${words[@]}" "$((CURRENT - 1))"'


@dataclass(frozen=True, kw_only=True)
class Completion:
    """Print the completions for a shell."""

    shell: ClassVar[str]

    def __call__(self, console: Console) -> int:
        """Print them."""
        script = io.StringIO()
        with redirect_stdout(script), suppress(SystemExit):
            tyro.cli(every_command(), prog="weft", args=["--tyro-print-completion", self.shell])
        text = script.getvalue().replace(_FISH, _FISH_PIPED).replace(_ZSH, _ZSH_FROM_0)
        console.out(text, end="", highlight=False)
        return 0


class Bash(Completion):
    """Print the completions for bash.

    Once, and again after an update:
      weft completion bash > ~/.local/share/bash-completion/completions/weft
    """

    shell = "bash"


class Zsh(Completion):
    """Print the completions for zsh.

    Once, and again after an update, into a folder of $fpath:
      weft completion zsh > "${fpath[1]}/_weft"
    """

    shell = "zsh"


class Fish(Completion):
    """Print the completions for fish.

    Once, and again after an update:
      weft completion fish > ~/.config/fish/completions/weft.fish
    """

    shell = "fish"


def every_command() -> Any:
    """All commands as one type for tyro; imports every one of them, which takes seconds."""
    found = []
    for name, (told, place) in groups().items():
        module = importlib.import_module(place)
        if hasattr(module, "COMMAND"):
            found.append(_named(name, shown_options(module.COMMAND), told))
            continue
        commands = [
            _named(each, shown_options(command), (command.__doc__ or "").strip().split("\n")[0])
            for each, command in module.COMMANDS.items()
        ]
        field = ("command", Annotated[_union(commands), tyro.conf.arg(name="")])
        found.append(_named(name, make_dataclass(name, [field]), told))
    return _union(found)


def _named(name: str, kind: Any, told: str) -> Any:
    return Annotated[kind, tyro.conf.subcommand(name, description=told, prefix_name=False)]


def _union(kinds: list[Any]) -> Any:
    return Union[tuple(kinds)]  # noqa: UP007


COMMANDS = {"bash": Bash, "zsh": Zsh, "fish": Fish}
