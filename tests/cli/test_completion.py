"""`weft completion`: scripts that hold every group, command and option, tried in real shells."""

from __future__ import annotations

import importlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft.cli.main import groups

SHELLS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The scripts, made once."""
    return {shell: tmp_path_factory.mktemp(shell) / "_weft" for shell in SHELLS}


@pytest.fixture
def script(weft: Callable[..., Any], scripts: dict[str, Path]) -> Callable[[str], Path]:
    """The file with the script for a shell."""

    def made(shell: str) -> Path:
        if not scripts[shell].exists():
            said = weft("completion", shell)
            assert (said.code, said.err) == (0, "")
            scripts[shell].write_text(said.out)
        return scripts[shell]

    return made


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_names_everything_and_parses(script, shell):
    text = script(shell).read_text()
    for group, (_, place) in groups().items():
        assert group in text
        for name in getattr(importlib.import_module(place), "COMMANDS", {}):
            assert name in text
    for flag in ("--help", "--epochs", "--batching.policy", "--threshold", "--no-quiet"):
        assert flag in text
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here")
    done = subprocess.run(
        [*SHELLS[shell], script(shell)], capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stderr) == (0, "")


BASH = """source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); _tyro_weft
printf "%s\\n" "${COMPREPLY[@]}" """
FISH = """source $argv[1]; complete -C "$argv[2]" """
# As a user has it: in a folder of $fpath, in a terminal, at a key. It ends when $3 is offered.
ZSH = """
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z "PS1=; fpath=(${1:h} \\$fpath); autoload -Uz compinit; compinit -u -D; LISTMAX=10000"
zpty -n -w z "$2"$'\\t\\t'
repeat 300; do
  sleep 0.2
  while zpty -r -t z line; do print -r -- $line; seen+=$line; done
  if [[ $seen == *$3* ]]; then break; fi
done
"""


def replies(shell: str, script: Path, words: str, folder: Path, last: str) -> str:
    """What the shell offers after the words; `last` is among it."""
    command = {
        "bash": ["bash", "-c", BASH, "bash", script, *words.split(" ")],
        "fish": ["fish", "--no-config", "-c", FISH, script, words],
        "zsh": ["zsh", "-f", "-c", ZSH, "zsh", script, words, last],
    }[shell]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=True, cwd=folder
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("weft tr", ["train"]),
        ("weft train mol", ["molecules"]),
        ("weft train molecules --epo", ["--epochs"]),
        ("weft train molecules --model ", ["schnet", "mpeu", "painn"]),
        ("weft train molecules --batching.policy static-", ["static-64", "static-2", "constant"]),
        ("weft predict --thr", ["--threshold"]),
    ],
)
def test_a_shell_completes(script, tmp_path, shell, words, offered):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here")
    if shell == "zsh":
        # It shows what it adds to the word that was begun.
        offered = [word.removeprefix(words.rpartition(" ")[-1]) for word in offered]
    said = replies(shell, script(shell), words, tmp_path, offered[-1])
    assert all(word in said for word in offered), said


def test_each_screen_tells_where_the_script_goes(weft):
    for shell, place in (
        ("bash", "~/.local/share/bash-completion/completions/weft"),
        ("zsh", "_weft"),
        ("fish", "~/.config/fish/completions/weft.fish"),
    ):
        said = weft("completion", shell, "--help")
        assert said.code == 0
        assert f"weft completion {shell} > " in said.out
        assert place in said.out


def test_without_a_shell_it_lists_them(weft):
    said = weft("completion")
    assert said.code == 2
    assert all(shell in said.err for shell in SHELLS)
    assert not Path("bash").exists()
