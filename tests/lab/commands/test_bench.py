"""`weft bench`: settings, mistakes, and one benchmark from the command line to the file."""

from __future__ import annotations

import json

import pytest

from weft.graphs import open_table, write_table
from weft.training.launch import LaunchStopped
from weft_lab.commands.bench import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_print_config(weft, tmp_path, name):
    printed = json.loads(weft("bench", name, "--print-config", "--data-dir", "here").out)
    assert printed["data_dir"] == "here"
    assert {"rounds", "seeds"} & set(printed)
    assert list(tmp_path.iterdir()) == []


def test_from_the_command_to_the_file(weft, tmp_path, small_cora):
    for name in ("citeseer", "pubmed"):
        write_table(tmp_path / "data" / f"{name}.weft", [open_table(small_cora)[0]])
    words = ("bench", "citations", "--seeds", "1", "--json", tmp_path / "out[1].json")
    said = weft(*words)
    assert said.code == 0
    assert f"written to {tmp_path / 'out[1].json'}" in said.out
    assert all(f"citations: {name}" in said.out for name in ("cora", "citeseer", "pubmed"))
    whole = json.loads((tmp_path / "out[1].json").read_text())
    assert whole["command"] == f"weft bench citations --seeds 1 --json '{words[-1]}'"
    assert whole["schema"] == "weft bench 1"
    (sample,) = whole["cases"][0]["contenders"]["weft"]["samples"]
    assert f"{sample:.4g}" in said.out


def test_a_folder_for_the_file_that_is_not_there(mistake, tmp_path):
    said = mistake("bench", "gcn", "--json", "nowhere/out.json")
    assert "there is no folder nowhere to write out.json to" in said


def test_the_wrong_planetoid_folder(mistake, tmp_path):
    (tmp_path / "empty").mkdir()
    said = mistake("bench", "citations", "--planetoid", "empty")
    assert "empty/ind.cora." in said


def test_a_graph_that_cannot_be(mistake):
    assert "num_nodes is 10; it must be at least 80" in mistake("bench", "gcn", "--nodes", "10")


def test_nothing_to_time(mistake, small_cora):
    assert "must be at least 1" in mistake("bench", "citations", "--seeds", "0")


def test_a_damaged_table(mistake, tmp_path):
    (tmp_path / "data" / "qm9.weft").mkdir(parents=True)
    assert "weft data get qm9 --rebuild" in mistake("bench", "assemble")


def test_what_is_reached_by_formula(weft, tmp_path, monkeypatch):
    words = ("bench", "communication", "--cases", "model", "--json", "out.json")
    said = weft(*words)
    assert said.code == 0
    assert "1.5d(c=8): published" in said.out
    (case,) = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert case["contenders"]["weft 2d: published"]["figures"]["expected"] == 9.0
    monkeypatch.setattr("weft_lab.bench.communication._APART", 0.001)
    said = weft("bench", "communication", "--cases", "model")
    assert said.code == 1
    assert "Missed: weft 2d: published is" in said.out


def test_data_of_the_communication_bench_that_is_not_there(mistake):
    said = mistake("bench", "communication", "--cases", "bytes", "--data", "nowhere")
    assert "--data nowhere does not exist" in said
    assert "there is no folder gone" in mistake("bench", "communication", "--scratch", "gone")


def test_ctrl_c_while_ranks_run(weft, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise LaunchStopped("SIGINT")

    monkeypatch.setattr("weft_lab.bench.communication.on_ranks", interrupted)
    said = weft("bench", "communication", "--cases", "exact")
    assert (said.code, said.err) == (130, "weft: interrupted\n")
