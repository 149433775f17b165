"""`weft study sparsification`: settings, mistakes, and a tiny study from the command to files."""

from __future__ import annotations

import json

from weft.sources import temporal

TINY = [
    *(
        "--sparsities",
        "0.75",
        "--curve-sparsity",
        "0.75",
        "--epochs",
        "4",
        "--nodes-epochs",
        "4",
        "--gcn-epochs",
        "4",
    ),
    *("--repeats", "1", "--edges", "300", "--nodes", "60", "--networks", "6-8-3x4"),
    *("--time-sparsities", "0.9", "--rounds", "1", "--quiet"),
]


def test_print_config(weft, tmp_path):
    whole = json.loads(weft("study", "sparsification", "--print-config").out)
    assert (len(whole["sparsities"]), whole["epochs"]) == (10, 40)
    words = ("study", "sparsification", "--quick", "--epochs", 5, "--print-config")
    small = json.loads(weft(*words).out)
    assert (len(small["sparsities"]), small["epochs"]) == (4, 5)
    assert list(tmp_path.iterdir()) == []


def test_from_the_command_to_the_files(weft, mistake, tmp_path, small_cora):
    edges = temporal(50, 300, seed=1)
    lines = zip(edges.senders, edges.receivers, edges.time, strict=True)
    (tmp_path / "edges.txt").write_text("".join(f"{a} {b} {t:.3f}\n" for a, b, t in lines))
    words = ("study", "sparsification", *TINY, "--links", "edges.txt", "--classes", "cora")
    said = weft(*words)
    assert said.code == 0, said
    assert "edges.txt: " in said.out
    assert "cora: 300 nodes" in said.out
    assert "16 of 16 entries agree" in said.out
    assert "Faster than dense: " in said.out
    folder = tmp_path / "studies" / "sparsification"
    names = {"results.json", "results.md", "accuracy.svg", "epochs.svg", "times.svg"}
    assert {path.name for path in folder.iterdir()} == names
    before = json.loads((folder / "results.json").read_text())
    assert before["machine"]["cores"] >= 1
    assert "go on with it (--resume)" in mistake(*words)
    assert weft(*words, "--resume").code == 0
    assert json.loads((folder / "results.json").read_text()) == before


def test_ctrl_c_tells_how_to_go_on(weft, tmp_path, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("weft_lab.studies.sparsification.train_kind", interrupted)
    said = weft("study", "sparsification", *TINY)
    assert said.code == 130
    assert f"weft study sparsification {' '.join(TINY)} --resume" in said.out
    assert (tmp_path / "studies" / "sparsification" / "results.json").exists()


def test_mistakes(mistake, tmp_path):
    words = ("study", "sparsification", *TINY)
    assert "'nowhere' is neither a file nor a data set" in mistake(*words, "--links", "nowhere")
    assert "nowhere is no data set" in mistake(*words, "--classes", "nowhere")
    assert "name it with --links" in mistake(*words, "--links-files", "some.txt")
    assert "name it with --classes" in mistake(*words, "--classes-files", "some.txt")
    (tmp_path / "taken").write_text("")
    assert "taken is a file" in mistake(*words, "--folder", "taken")
    assert "is not of the form" in mistake("study", "sparsification", "--networks", "64", "--quiet")
    assert not (tmp_path / "studies").exists()
