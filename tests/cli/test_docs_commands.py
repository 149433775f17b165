"""Commands that the docs show: they run, and what stands below one is what it prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from weft.parallel.cost_model import load_machine

DOCS = Path(__file__).resolve().parents[2] / "docs"
SHOWN = re.compile(r"^```sh\n(weft [^\n]*)\n```\n\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)


def shown() -> list[tuple[str, str]]:
    return SHOWN.findall((DOCS / "scaling-out.md").read_text(encoding="utf-8"))


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return found


@pytest.mark.parametrize(("command", "printed"), shown(), ids=range(len(shown())))
def test_tables_are_what_the_command_prints(weft, monkeypatch, command, printed):
    monkeypatch.setenv("COLUMNS", "80")
    said = weft(*shlex.split(command)[1:])
    assert (said.code, said.err) == (0, "")
    assert [line.rstrip() for line in said.out.splitlines()] == printed.splitlines()


def test_there_are_such_tables():
    assert len(shown()) == 4


def test_the_machine_of_the_page_is_one(tmp_path):
    (text,) = blocks("scaling-out.md", "json")
    (tmp_path / "here.json").write_text(text)
    machine = load_machine(tmp_path / "here.json")
    assert machine.along("layer").alpha < machine.along("row").alpha


def own_data(word: str) -> tuple[str, list[list[str]]]:
    """The snippet that makes the data, and the commands after it."""
    page = "own-data-and-model.md"
    (python,) = (text for text in blocks(page, "python") if word in text and "write" in text)
    (commands,) = (text for text in blocks(page, "sh") if word in text)
    return python, [shlex.split(line)[1:] for line in commands.splitlines()]


def test_an_edge_list_of_ones_own_on_4_ranks(weft, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    python, (train, predict) = own_data("edges.txt")
    exec(python, {"np": np})
    said = weft(*train, "--epochs", 2, "--quiet")
    assert (said.code, said.err) == (0, "")
    assert "edges.txt: 400 nodes" in said.out
    assert "4 ranks" in said.out
    assert Path("runs/full-graph-edges/summary.json").is_file()
    said = weft(*predict, "--quiet")
    assert said.code == 0, said.err
    assert len(Path("full-graph-edges-predicted.csv").read_text().splitlines()) == 401


def test_an_extxyz_of_ones_own(weft):
    python, (train, energies, predict) = own_data("water.extxyz")
    exec(python, {})
    assert train[-2:] == ["--epochs", "20"]
    for command in (train[:-2], energies):
        said = weft(*command, "--epochs", 1, "--quiet")
        assert (said.code, said.err) == (0, "")
    said = weft(*predict)
    assert said.code == 0, said.err
    assert len(Path("water-predicted.extxyz").read_text().splitlines()) == 200 * 5
