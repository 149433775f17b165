"""`weft study batching`: settings, mistakes, and a tiny study from the command to the files."""

from __future__ import annotations

import json

TINY = [
    *("--models", "schnet", "--batch-sizes", "4", "--policies", "dynamic", "unpadded"),
    *("--structures", "20", "--hidden", "4", "--rounds", "1", "--steps", "1"),
    *("--planned-steps", "10", "--repeats", "2", "--repeat-batch-size", "8"),
    *("--repeat-structures", "16", "--repeat-epochs", "1", "--quiet"),
]


def test_print_config(weft, tmp_path):
    whole = json.loads(weft("study", "batching", "--print-config").out)
    assert whole["batch_sizes"] == [16, 32, 64, 128]
    words = ("study", "batching", "--quick", "--rounds", 3, "--print-config")
    small = json.loads(weft(*words).out)
    assert (small["batch_sizes"], small["rounds"]) == ([32, 128], 3)
    assert list(tmp_path.iterdir()) == []


def test_from_the_command_to_the_files(weft, mistake, tmp_path, small_qm9):
    said = weft("study", "batching", *TINY)
    assert said.code == 0, said
    assert "is fastest" in said.out
    assert "Welch" in said.out
    folder = tmp_path / "studies" / "batching"
    assert {path.name for path in folder.iterdir()} == {
        "results.json",
        "results.md",
        "time.svg",
        "fill.svg",
        "error.svg",
    }
    whole = json.loads((folder / "results.json").read_text())
    assert whole["command"].startswith("weft study batching --models schnet")
    assert whole["machine"]["cores"] >= 1
    assert "weft study batching --models schnet" in (folder / "results.md").read_text()
    assert "go on with it (--resume)" in mistake("study", "batching", *TINY)
    assert weft("study", "batching", *TINY, "--resume").code == 0
    assert json.loads((folder / "results.json").read_text())["cells"] == whole["cells"]


def test_ctrl_c_tells_how_to_go_on(weft, tmp_path, small_qm9, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("weft_lab.studies.cells.CellTimer.turn", interrupted)
    said = weft("study", "batching", *TINY)
    assert said.code == 130
    assert f"weft study batching {' '.join(TINY)} --resume" in said.out
    assert (tmp_path / "studies" / "batching" / "results.json").exists()


def test_mistakes(mistake, tmp_path, small_qm9):
    assert "--crystals nowhere.jsonl does not exist" in mistake(
        "study", "batching", *TINY, "--crystals", "nowhere.jsonl"
    )
    (tmp_path / "taken").write_text("")
    assert "taken is a file" in mistake("study", "batching", *TINY, "--folder", "taken")
    assert "rounds is 0" in mistake("study", "batching", "--rounds", 0)
