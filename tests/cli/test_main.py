"""The screens, the exit codes, and what a user's mistake looks like."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import weft as package
from weft.cli.main import groups
from weft.recipes.recipe import RECIPES


def commands(group: str) -> dict[str, Any]:
    module = importlib.import_module(groups()[group][1])
    # A group of one command is that command: `weft predict RUN FILE`.
    found: dict[str, Any] = getattr(module, "COMMANDS", {})
    return found


COMMANDS = [(group, name) for group in groups() for name in commands(group)]


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_the_first_screen_names_every_group(weft, words):
    said = weft(*words)
    assert said.code == 0
    assert all(f"  {group} " in said.out for group in groups())
    assert package.__version__ in said.out
    assert said.err == ""


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_version(weft, word):
    said = weft(word)
    assert (said.code, said.out) == (0, f"weft {package.__version__}\n")


@pytest.mark.parametrize("group", [group for group in groups() if commands(group)])
def test_a_groups_screen_names_every_command(weft, group):
    said = weft(group, "--help")
    assert said.code == 0
    assert groups()[group][0] in said.out
    for name, command in commands(group).items():
        assert name in said.out
        assert command.__doc__.splitlines()[0] in said.out


@pytest.mark.parametrize(("group", "command"), COMMANDS)
def test_a_commands_screen_explains_every_option(weft, group, command):
    said = weft(group, command, "--help")
    assert said.code == 0
    assert f"usage: weft {group} {command}" in said.out
    for field in dataclasses.fields(commands(group)[command]):
        if field.name not in ("config", "name", "crystals_file"):
            assert f"--{field.name.replace('_', '-')}" in said.out
    # What is not set is not shown as a value, and no part of a configuration is a command.
    assert "{None" not in said.out
    assert "default: None" not in said.out
    assert "subcommands" not in said.out
    # Every option is explained, in words that tyro takes from the docstrings.
    for part in re.split(r"│ --(?=[a-z])", said.out)[1:]:
        # `--quiet, --no-quiet` are one option; a choice in braces is no explanation.
        told = re.sub(r"--[a-z.\-]+|\{.*?\}", "", part.partition("(default")[0])
        assert len(re.findall(r"\b[a-z]{2,}\b", told)) > 2, part


@pytest.mark.parametrize("group", ["train", "plan"])
@pytest.mark.parametrize("command", RECIPES)
def test_what_is_used_often_comes_first(weft, monkeypatch, group, command):
    monkeypatch.setenv("COLUMNS", "80")
    first, _, more = weft(group, command, "--help").out.partition("more options")
    assert "--data " in first
    assert "--out " in first
    assert "--data-dir" in more


def test_a_part_that_may_be_missing_is_one_option(weft):
    words = ("train", "molecules", "--print-config", "--batching.budget", 100, 200, 9)
    printed = json.loads(weft(*words).out)
    assert printed["batching"]["budget"] == {"nodes": 100, "edges": 200, "graphs": 9}


def test_what_is_set_by_default_can_be_unset(weft):
    assert "--clip-norm FLOAT|{none}" in weft("train", "programs", "--help").out
    printed = json.loads(weft("train", "programs", "--clip-norm", "none", "--print-config").out)
    assert printed["clip_norm"] is None


def test_options_of_the_model_are_nested(weft):
    out = weft("train", "links", "--help").out
    assert all(f"--model.{name}" in out for name in ("dropout", "activation"))


@pytest.mark.parametrize("word", ["trian", "[/red]", "[bold]", ":smile:", ""])
def test_an_unknown_group(mistake, word):
    said = mistake(word)
    assert f"there is no '{word}'; choose from {', '.join(groups())}" in said


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["train"], "citations"),
        (["train", "schnet"], "schnet"),
        (["train", "citations", "--epoch", "5"], "--epoch"),
        (["train", "citations", "--epochs", "many"], "--epochs"),
        (["train", "citations", "--quiet", "--data", "imagenet"], "`weft data list` shows"),
        (["train", "citations", "--epochs", "-1"], "epochs is -1; it must be at least 0"),
        (["train", "citations", "--seed", "-1"], "seed is -1; it must be at least 0"),
        (["train", "citations", "--learning-rate", "nan"], "learning_rate is nan"),
        (["train", "citations", "--model.dropout", "2"], "dropout is 2.0; it must be in [0, 1)"),
        (["train", "citations", "--model.hidden", "0"], "each must be at least 1"),
        (["data", "get"], "STR"),
        (["data", "drop", "cora"], "drop"),
        (["bench", "gcn", "--nodes", "1.5"], "--nodes"),
    ],
)
def test_words_that_cannot_be_parsed(weft, words, named):
    said = weft(*words)
    assert said.code == 2
    assert named in " ".join(said.err.replace("│", " ").split())
    assert "Traceback" not in said.err
    assert "tyro" not in said.err
    assert said.out == ""


def test_a_mistake_is_traced_on_demand(weft, monkeypatch):
    monkeypatch.setenv("WEFT_DEBUG", "1")
    with pytest.raises(ValueError, match="there is no data set 'nope'"):
        weft("data", "get", "nope")


def test_help_in_a_process_of_its_own_is_quick_to_import():
    script = (
        "import sys; sys.argv = ['weft', '--help']\n"
        "import runpy\n"
        "try:\n    runpy.run_module('weft', run_name='__main__')\n"
        "except SystemExit as end:\n    print(end.code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout.endswith("0 False\n")
    assert "usage: weft GROUP COMMAND" in done.stdout


HELP = [
    *([group, "--help"] for group in groups()),
    *([group, name, "--help"] for group in groups() for name in commands(group)),
    ["data", "list"],
]


def test_words_are_printed_without_anything_heavy(tmp_path: Path):
    # All of them in one process: what any of them imports is there at the end.
    script = (
        "import sys\n"
        "from weft.cli import main\n"
        f"for words in {HELP!r}:\n"
        "    try:\n        code = main(words)\n"
        "    except SystemExit as end:\n        code = end.code\n"
        "    assert not code, words\n"
        "    found = {'torch', 'numba', 'scipy', 'ase', 'matplotlib'} & set(sys.modules)\n"
        "    assert not found, (words, found)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "WEFT_DATA_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr


def test_a_reader_that_leaves_is_no_mistake(tmp_path: Path):
    environment = {"WEFT_DATA_DIR": str(tmp_path), "PATH": "", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "weft", "data", "get", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=600) == 1
