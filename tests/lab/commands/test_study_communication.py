"""`weft study communication`: settings, mistakes, and a tiny study from the command to files."""

from __future__ import annotations

import json

from weft.training.launch import LaunchStopped

TINY = [
    *("--ranks", "2", "4", "--real-ranks", "2", "--simulated", "2", "--widths", "4", "4", "2"),
    *("--timed-epochs", "1", "--accuracy-ranks", "2", "--epochs", "3", "--hidden", "4"),
    *("--nodes", "100", "--quiet"),
]


def test_print_config(weft, tmp_path):
    whole = json.loads(weft("study", "communication", "--print-config").out)
    assert (whole["ranks"][-1], whole["real_ranks"]) == (64, 16)
    words = ("study", "communication", "--quick", "--epochs", 3, "--print-config")
    small = json.loads(weft(*words).out)
    assert (small["real_ranks"], small["epochs"]) == (4, 3)
    assert list(tmp_path.iterdir()) == []


def test_from_the_command_to_the_files(weft, mistake, tmp_path, small_cora):
    words = ("study", "communication", *TINY, "--data", "cora")
    said = weft(*words)
    assert said.code == 0, said
    assert "cora: 300 nodes" in said.out
    assert "Recorded bytes equal the predicted ones" in said.out
    assert "Accuracies are the same on every grid" in said.out
    folder = tmp_path / "studies" / "communication"
    names = {"results.json", "results.md", "bytes.svg", "times.svg", "accuracy.svg"}
    assert {path.name for path in folder.iterdir()} == names
    before = json.loads((folder / "results.json").read_text())
    assert before["machine"]["cores"] >= 1
    assert "bytes.svg" in (folder / "results.md").read_text()
    assert "go on with it (--resume)" in mistake(*words)
    assert weft(*words, "--resume").code == 0
    assert json.loads((folder / "results.json").read_text()) == before


def test_ctrl_c_tells_how_to_go_on(weft, tmp_path, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise LaunchStopped("SIGINT")

    monkeypatch.setattr("weft_lab.studies.communication.train_on_ranks", interrupted)
    said = weft("study", "communication", *TINY)
    assert said.code == 130
    assert f"weft study communication {' '.join(TINY)} --resume" in said.out
    assert (tmp_path / "studies" / "communication" / "results.json").exists()


def test_mistakes(mistake, tmp_path):
    words = ("study", "communication", *TINY)
    assert "nowhere is neither a file nor a graph" in mistake(*words, "--data", "nowhere")
    assert "name it with --data" in mistake(*words, "--files", "some.zip")
    (tmp_path / "taken").write_text("")
    assert "taken is a file" in mistake(*words, "--folder", "taken")
    assert "qm9 is molecules, not one graph" in mistake(*words, "--data", "qm9")
    assert "taken is no graph table and no npz" in mistake(*words, "--data", "taken")
    assert "64 ranks for 20 nodes" in mistake("study", "communication", "--nodes", "20", "--quiet")
    assert not (tmp_path / "studies").exists()
