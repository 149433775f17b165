"""`weft completion`: scripts that hold every group, command and option, tried in a real shell."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from weft.cli.main import groups
from weft.cli.screens import Screen, screens

SHELLS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}


@pytest.fixture(scope="module")
def every_screen() -> list[Screen]:
    return screens()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_names_everything_and_parses(weft, tmp_path, every_screen, shell):
    said = weft("completion", shell)
    assert (said.code, said.err) == (0, "")
    for screen in every_screen:
        assert all(word in said.out for word in screen.words)
        assert "--help" in [flag for option in screen.options for flag in option.flags]
        for flag in (flag for option in screen.options for flag in option.flags):
            assert flag.lstrip("-") in said.out
    assert all(group in said.out for group in groups())
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here")
    script = tmp_path / "script"
    script.write_text(said.out)
    done = subprocess.run([*SHELLS[shell], script], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")


def test_options_are_those_of_the_commands(every_screen):
    by_words = {screen.words: screen for screen in every_screen}
    options = {flag: o for o in by_words["train", "molecules"].options for flag in o.flags}
    assert options["--model"].choices == ("schnet", "mpeu", "painn")
    assert options["--epochs"].takes_value
    assert not options["--no-quiet"].takes_value
    assert options["--epochs"].explanation == "passes over the training structures, at most"
    assert "--batching.policy" in options
    assert by_words["predict",].explanation


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not here")
def test_bash_completes(weft, tmp_path):
    script = tmp_path / "weft.bash"
    script.write_text(weft("completion", "bash").out)

    def replies(*words: str) -> list[str]:
        done = subprocess.run(
            [
                "bash",
                "-c",
                'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); _weft; '
                'printf "%s\\n" "${COMPREPLY[@]}"',
                "bash",
                script,
                "weft",
                *words,
            ],
            capture_output=True,
            text=True,
            timeout=600,
            check=True,
            cwd=tmp_path,
        )
        assert done.stderr == ""
        return done.stdout.split()

    assert replies("tr") == ["train"]
    assert set(groups()) < set(replies(""))
    assert replies("train", "mol") == ["molecules"]
    assert replies("train", "molecules", "--ep") == ["--epochs"]
    assert "--epochs" in replies("train", "molecules", "")
    assert replies("train", "molecules", "--model", "") == ["schnet", "mpeu", "painn"]
    policies = replies("train", "molecules", "--batching.policy", "static")
    assert policies == ["static-64", "static-2^n", "static-constant"]
    assert replies("predict", "--thr") == ["--threshold"]
    # Files are the shell's own business, and so is what weft does not know.
    assert replies("predict", "") == replies("nonsense", "--x") == []
    assert replies("train", "molecules", "--data", "") == []
    known = subprocess.run(
        ["bash", "-c", f"source {script}; complete -p weft"],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert known.stdout.strip() == "complete -o bashdefault -o default -F _weft weft"


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
