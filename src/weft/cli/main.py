"""Finds the command, parses its options from dataclasses, and turns a user error into words."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Protocol

from rich.console import Console

import weft

# Of other packages: a mapping of a group's name to what it does and its module.
_ENTRY_POINTS = "weft.commands"
_OWN = {
    "data": ("list, get and describe data sets", "weft.cli.data"),
    "train": ("train a model with a recipe", "weft.cli.train"),
    "predict": (
        "apply a trained run to new structures, graphs or code: weft predict RUN [FILE]",
        "weft.cli.predict",
    ),
    "md": ("move atoms with a trained potential: weft md RUN FILE", "weft.cli.md"),
    "export": (
        "write a trained model for programs without weft: weft export RUN model.pt2",
        "weft.cli.export",
    ),
    "plan": ("find the fastest way to train here: weft plan molecules", "weft.cli.plan_command"),
    "report": ("write one page on runs, plans and studies: weft report RUN", "weft.cli.report"),
    "watch": ("watch a run while it trains: weft watch RUN", "weft.cli.watch"),
    "compile": (
        "compile the loops for this machine, so that the first run starts at once",
        "weft.cli.compile",
    ),
    "check": ("check the GPU kernels, with or without a GPU: weft check gpu", "weft.cli.check"),
    "completion": ("print completions for your shell: weft completion bash", "weft.cli.completion"),
}

_HELP = """weft {version}: fast training of graph neural networks.

usage: weft GROUP COMMAND [OPTIONS]

{groups}

`weft GROUP --help` lists the commands, `weft GROUP COMMAND --help` every option.

To begin:
  weft data list
  weft train molecules --limit 10000
"""


@cache
def groups() -> dict[str, tuple[str, str]]:
    """Each group's description and module; groups of other packages come last."""
    found = dict(_OWN)
    for point in entry_points(group=_ENTRY_POINTS):
        found |= point.load()
    return found


class Command(Protocol):
    """A command's dataclass: its options are its fields."""

    def __call__(self, console: Console) -> int:
        """Do it; give the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `weft` and return the exit code: 0, 2 for a user error, 128 + n for signal n."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # The name of a file may hold what cannot be printed.
        sys.stdout.reconfigure(errors="backslashreplace")
    # What is printed are names and paths: brackets and colons in them mean themselves.
    console = Console(markup=False, emoji=False)
    if not words or words[0] in ("-h", "--help", "help"):
        listed = "\n".join(f"  {name:<10} {what}" for name, (what, _) in groups().items())
        console.out(_HELP.format(version=weft.__version__, groups=listed), highlight=False)
        return 0
    if words[0] in ("--version", "-V"):
        console.out(f"weft {weft.__version__}", highlight=False)
        return 0
    errors = Console(stderr=True, soft_wrap=True, markup=False, emoji=False, highlight=False)
    if words[0] not in groups():
        errors.print(f"weft: there is no '{words[0]}'; choose from {', '.join(groups())}")
        return 2
    try:
        command = parse(words[0], words[1:])
        return command(console)
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough: end as rich does, and let nothing flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, OSError) as error:
        if os.environ.get("WEFT_DEBUG"):
            raise
        errors.print(f"weft: {_sentence(error)}", style="red")
        return 2
    except MemoryError as error:
        errors.print(f"weft: not enough memory: {error}", style="red")
        return 2
    except KeyboardInterrupt:
        errors.print("weft: interrupted")
        return 130


def parse(group: str, words: Sequence[str]) -> Command:
    """The command of `group` that `words` name, with its options."""
    # Imported only now: `weft --help` should not wait for them.
    from weft.cli.options import parse_options

    what, module_name = groups()[group]
    module, prog = importlib.import_module(module_name), f"weft {group}"
    if hasattr(module, "COMMAND"):
        command = module.COMMAND
    else:
        commands: Mapping[str, type[Any]] = module.COMMANDS
        if words and words[0] in ("-h", "--help", "help"):
            _show_group(group, what, commands)
            raise SystemExit(0)
        if not words or words[0] not in commands:
            problem = f"there is no '{words[0]}'" if words else "a command is missing"
            raise ValueError(f"{problem} in `{prog}`; choose from {', '.join(commands)}")
        # By itself, so that messages name this command and its options, not the group's.
        prog, command, words = f"{prog} {words[0]}", commands[words[0]], words[1:]
    for earlier in (getattr(module, "RENAMED", {}), getattr(command, "RENAMED", {})):
        words = [_as_now(word, earlier) for word in words]
    found: Command = parse_options(command, words, prog=prog)
    return found


def _show_group(group: str, what: str, commands: Mapping[str, type[Any]]) -> None:
    """Print what each command of a group does, in a line."""
    console = Console(markup=False, emoji=False)
    lines = [f"usage: weft {group} COMMAND [OPTIONS]", "", f"weft {group}: {what}.", ""]
    for name, command in commands.items():
        lines.append(f"  {name:<16} {(command.__doc__ or '').splitlines()[0]}")
    lines += ["", f"`weft {group} COMMAND --help` shows every option, with examples."]
    console.out("\n".join(lines), highlight=False)


def _as_now(word: str, renamed: Mapping[str, str]) -> str:
    """An option by its name of today, if it has had another."""
    name, equals, value = word.partition("=")
    return f"{renamed.get(name, name)}{equals}{value}"


def _sentence(error: ValueError | OSError) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return str(error) or type(error).__name__
