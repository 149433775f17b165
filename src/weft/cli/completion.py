"""`weft completion bash|zsh|fish`: a script that completes groups, commands and options.

The script holds every word, so that a key press starts no Python.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rich.console import Console

import weft
from weft.cli.main import groups as command_groups
from weft.cli.screens import Screen, screens


@dataclass(frozen=True, kw_only=True)
class Bash:
    """Print the completions for bash.

    Once, and again after an update:
      weft completion bash > ~/.local/share/bash-completion/completions/weft
    """

    def __call__(self, console: Console) -> int:
        """Print it."""
        return _print(bash_script, console)


@dataclass(frozen=True, kw_only=True)
class Zsh:
    """Print the completions for zsh.

    Once, and again after an update, into a folder of $fpath:
      weft completion zsh > "${fpath[1]}/_weft"
    """

    def __call__(self, console: Console) -> int:
        """Print it."""
        return _print(zsh_script, console)


@dataclass(frozen=True, kw_only=True)
class Fish:
    """Print the completions for fish.

    Once, and again after an update:
      weft completion fish > ~/.config/fish/completions/weft.fish
    """

    def __call__(self, console: Console) -> int:
        """Print it."""
        return _print(fish_script, console)


def _print(script: Callable[[list[Screen]], str], console: Console) -> int:
    console.out(script(screens()), end="", highlight=False)
    return 0


def bash_script(found: list[Screen]) -> str:
    """For bash 3.2 and later."""
    choices, options = [], []
    for screen in found:
        name = " ".join(screen.words)
        options.append(_case(name, f"words={_quoted(_flags(screen))}"))
        for option in screen.options:
            if option.choices:
                names = [f"{name} {flag}" for flag in option.flags]
                choices.append(_case(names, f"words={_quoted(option.choices)}"))
    groups = _by_group(found)
    return f"""# Completions of weft {weft.__version__} for bash: weft completion bash
_weft() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
  local command="${{COMP_WORDS[1]}}" words=""
  COMPREPLY=()
  if (( COMP_CWORD == 1 )); then
    words={_quoted([*command_groups(), "--help", "--version"])}
  else
    case "$command" in
{_lines(_case(group, f"words={_quoted(names)}") for group, names in groups.items())}
    esac
    if [[ -n $words ]] && (( COMP_CWORD > 2 )); then
      command="$command ${{COMP_WORDS[2]}}"
      words=""
    fi
    if [[ -z $words ]]; then
      case "$command $before" in
{_lines(choices, 8)}
        *)
          # Values without a list, and arguments without a name, are files.
          if [[ $word == -* || -z $word && $COMP_CWORD == 3 ]]; then
            case "$command" in
{_lines(options, 14)}
            esac
          fi ;;
      esac
    fi
  fi
  COMPREPLY=( $(compgen -W "$words" -- "$word") )
}}
complete -o bashdefault -o default -F _weft weft
"""


def zsh_script(found: list[Screen]) -> str:
    """For the completion system of zsh."""
    told = {screen.words: screen.explanation for screen in found}
    commands = [
        _case(group, f"offered=({_described((name, told[group, name]) for name in names)})")
        for group, names in _by_group(found).items()
    ]
    choices, options = [], []
    for screen in found:
        name = " ".join(screen.words)
        each = ((flag, o.explanation) for o in screen.options for flag in o.flags)
        options.append(_case(name, f"offered=({_described(each)})"))
        for option in screen.options:
            if option.choices:
                names = [f"{name} {flag}" for flag in option.flags]
                choices.append(_case(names, f"compadd -- {shlex.join(option.choices)}; return"))
    return f"""#compdef weft
# Completions of weft {weft.__version__} for zsh: weft completion zsh
_weft() {{
  local command="$words[2]" before="$words[CURRENT-1]"
  local -a offered
  if (( CURRENT == 2 )); then
    offered=({_described((name, what) for name, (what, _) in command_groups().items())})
    _describe group offered
    return
  fi
  case "$command" in
{_lines(commands)}
  esac
  if (( $#offered )); then
    if (( CURRENT == 3 )); then
      _describe command offered
      return
    fi
    command="$command $words[3]"
    offered=()
  fi
  case "$command $before" in
{_lines(choices)}
  esac
  if [[ "$words[CURRENT]" == -* || -z "$words[CURRENT]" && $CURRENT == 4 ]]; then
    case "$command" in
{_lines(options, 6)}
    esac
    _describe -o option offered
    return
  fi
  _files
}}
if [[ "$funcstack[1]" == _weft ]]; then
  _weft "$@"
else
  compdef _weft weft
fi
"""


def fish_script(found: list[Screen]) -> str:
    """For fish 3 and later."""
    lines = [
        f"# Completions of weft {weft.__version__} for fish: weft completion fish",
        "function __weft_after",
        "    set -l words (commandline -opc)",
        "    set -l last (math (count $argv) + 1)",
        '    test (count $words) -ge $last; and test "$words[2..$last]" = "$argv"',
        "end",
        "function __weft_words",
        "    test (count (commandline -opc)) -eq $argv[1]",
        "end",
    ]
    for group, (told, _) in command_groups().items():
        lines.append(f"complete -c weft -f -n '__weft_words 1' -a {group} -d {_fish(told)}")
    for screen in found:
        if len(screen.words) == 2:
            group, name = screen.words
            lines.append(
                f"complete -c weft -f -n '__weft_words 2; and __weft_after {group}' "
                f"-a {name} -d {_fish(screen.explanation)}"
            )
        for option in screen.options:
            for flag in option.flags:
                kind = "-l" if flag.startswith("--") else "-s"
                value = f" -x -a {_fish(' '.join(option.choices))}" if option.choices else ""
                lines.append(
                    f"complete -c weft -n '__weft_after {' '.join(screen.words)}' "
                    f"{kind} {flag.lstrip('-')}"
                    + (value or (" -r" if option.takes_value else ""))
                    + f" -d {_fish(option.explanation)}"
                )
    return "\n".join(lines) + "\n"


def _by_group(found: list[Screen]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for screen in found:
        if len(screen.words) == 2:
            groups.setdefault(screen.words[0], []).append(screen.words[1])
    return groups


def _flags(screen: Screen) -> list[str]:
    return [flag for option in screen.options for flag in option.flags]


def _quoted(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))


def _case(names: str | list[str], body: str) -> str:
    patterns = "|".join(map(shlex.quote, [names] if isinstance(names, str) else names))
    return f"{patterns}) {body} ;;"


def _lines(cases: Iterable[str], indent: int = 6) -> str:
    return "\n".join(" " * indent + case for case in cases)


def _described(items: Iterable[tuple[str, str]]) -> str:
    return " ".join(shlex.quote(f"{name}:{told}") for name, told in items)


def _fish(text: str) -> str:
    """In single quotes, where fish takes a backslash for an escape."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


COMMANDS = {"bash": Bash, "zsh": Zsh, "fish": Fish}
