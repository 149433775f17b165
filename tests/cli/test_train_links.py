"""`weft train links` and `weft train nodes` from a file to a table with intervals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.training.launch import LaunchStopped

GUESSES = ["degree product", "seen before", "common neighbours", "most recent"]
SHORT = ("--epochs", 2, "--quiet")


@pytest.fixture
def messages(tmp_path: Path) -> Path:
    """An edge list: 30 people, mostly writing within three groups."""
    rng = np.random.default_rng(0)
    senders = rng.integers(30, size=600)
    receivers = rng.integers(10, size=600) * 3 + senders % 3
    path = tmp_path / "messages.txt"
    path.write_text(
        "".join(f"u{a} u{b} {t}\n" for t, (a, b) in enumerate(zip(senders, receivers, strict=True)))
    )
    return path


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    path = tmp_path / "groups.txt"
    path.write_text("".join(f"u{node} group{node % 3}\n" for node in range(30)))
    return path


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def test_links_of_an_edge_list(weft: Callable[..., Any], messages: Path, tmp_path: Path) -> None:
    said = weft("train", "links", "--data", messages, "--sparsify", "rigl", *SHORT)
    assert said.code == 0, said.err
    for name in ("network", *GUESSES):
        assert re.search(rf"{name} +(│ +0\.\d{{4}} ){{4}}", said.out), said.out
    assert re.search(r"AUC 0\.\d{4} to 0\.\d{4}, AP \(average precision\) 0\.", said.out)
    assert "of the test's 120 edges join two nodes that an edge of training" in said.out
    assert "457 of 4,864 weights are active (90.6% sparse, by rigl)" in said.out
    assert "--compat" not in said.out
    found = summary(tmp_path / "runs" / "links-messages")
    # The latest of 420 edges, as many as the others have together.
    assert found["counts"]["train"] == 180
    assert {part: list(guesses) for part, guesses in found["baselines"].items()} == {
        "validation": GUESSES,
        "test": GUESSES,
    }
    page = weft("report", tmp_path / "runs" / "links-messages")
    shown = Path(page.out.strip()).read_text(encoding="utf-8")
    assert all(f"{part}, {name}" in shown for part in ("validation", "test") for name in GUESSES)
    assert (
        found["test"]["auc"]["low"] < found["test"]["auc"]["value"] < found["test"]["auc"]["high"]
    )
    said = weft("train", "links", "--data", messages, "--sparsify", "rigl", *SHORT)
    assert said.code == 2
    assert "holds a run already" in said.err
    said = weft("train", "links", "--data", messages, "--sparsify", "rigl", *SHORT, "--resume")
    assert said.code == 0
    assert summary(tmp_path / "runs" / "links-messages")["test"] == found["test"]
    lines = messages.read_text().splitlines()
    messages.write_text("\n".join([*lines[:-1], lines[-1] + ".5"]))
    said = weft("train", "links", "--data", messages, "--sparsify", "rigl", *SHORT, "--resume")
    assert said.code == 2
    assert "the data has changed since the run in runs/links-messages was started: times;" in (
        said.err
    )


def test_units_are_counted_with_what_stays_dense(weft: Callable[..., Any], messages: Path) -> None:
    words = ("train", "links", "--data", messages, "--sparsify", "rigl", "--no-features", *SHORT)
    said = weft(*words, "--structure", "units", "--sparsity", 0.75)
    assert said.code == 0, said.err
    # 32 of 128 units of 16 inputs, and the 128 weights of the output.
    assert "640 of 2,176 weights are active (70.6% sparse, by rigl, structure units)" in said.out
    assert "weft.sparsify.compact leaves out the units that are gone" in said.out
    for structure, reason in (
        ("2:4", "sparsity is 0.906, and structure 2:4 has a sparsity of 0.5: give that one"),
        ("heads", "structure 'heads' is none of weights, units, units:K (K outputs at a time"),
        ("block:64x64", "structure block:64x64 fits no weight of FNN (layers.0.weight: its 16 "),
    ):
        said = weft(*words, "--structure", structure, "--out", "other")
        assert said.code == 2
        assert reason in said.err


def test_the_papers_split_says_so(weft: Callable[..., Any], messages: Path) -> None:
    said = weft("train", "links", "--data", messages, "--compat", *SHORT)
    assert said.code == 0, said.err
    assert "these scores are too good" in said.out
    assert "common neighbours" in said.out
    assert "2,176 weights, dense" in said.out


def test_links_of_several_seeds(weft: Callable[..., Any], messages: Path, tmp_path: Path) -> None:
    words = ("train", "links", "--data", messages, "--seeds", 2, "--no-features", *SHORT)
    said = weft(*words, "--out", "run")
    assert said.code == 0, said.err
    assert "Means of 2 seeds, each with its own walks, pairs and weights" in said.out
    members = [summary(tmp_path / "run" / f"member-{number}") for number in range(2)]
    for name in ("auc", "ap"):
        own = [each["test"][name]["value"] for each in members]
        assert own[0] != own[1]
        assert f"{(own[0] + own[1]) / 2:.4f}" in said.out
        guesses = [each["baselines"]["test"]["degree product"][name] for each in members]
        assert f"{(guesses[0] + guesses[1]) / 2:.4f}" in said.out
    (tmp_path / "pairs.txt").write_text("u1 u2\n")
    tables = {}
    for folder in ("run", "run/member-0", "run/member-1"):
        said = weft("predict", folder, "pairs.txt", "--out", "found.json")
        assert said.code == 0, said.err
        tables[folder] = json.loads((tmp_path / "found.json").read_text())[0]["probability"]
    assert tables["run"] == pytest.approx((tables["run/member-0"] + tables["run/member-1"]) / 2)


def test_nodes_of_an_edge_list(
    weft: Callable[..., Any], messages: Path, groups: Path, tmp_path: Path
) -> None:
    words = ("train", "nodes", "--data", messages, "--labels", groups, "--model", "fnn")
    said = weft(*words, "--sparsify", "snip", "--sparsity", 0.5, *SHORT)
    assert said.code == 0, said.err
    assert re.search(r"test +│ +6 │ +[\d.]+% \([\d.]+% to [\d.]+%\)", said.out)
    assert "(50.0% sparse, by snip)" in said.out
    found = summary(tmp_path / "runs" / "nodes-messages")
    assert found["counts"]["classes"] == 3
    assert set(found["accuracy"]) == {"train", "validation", "test"}
    assert found["baselines"]["test"] == {"commonest class": {"accuracy": found["guess"]}}
    page = weft("report", tmp_path / "runs" / "nodes-messages")
    assert "test, commonest class" in Path(page.out.strip()).read_text(encoding="utf-8")
    groups.write_text(groups.read_text().replace("u7 group1", "u7 group2"))
    said = weft(*words, "--sparsify", "snip", "--sparsity", 0.5, *SHORT, "--resume")
    assert said.code == 2
    assert "the data has changed since the run in runs/nodes-messages was started: y;" in said.err


@pytest.mark.usefixtures("small_cora")
def test_nodes_of_the_catalogue(weft: Callable[..., Any]) -> None:
    said = weft("train", "nodes", "--epochs", 20, "--sparsify", "rigl", "--quiet")
    assert said.code == 0, said.err
    assert "3 classes, 20 epochs" in said.out
    said = weft("train", "nodes", "--split", "public", "--out", "public", *SHORT)
    assert said.code == 0, said.err


@pytest.mark.usefixtures("small_cora")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "rank 0: model is gcn, which takes all nodes in every step, and there are 2 ranks;"),
        (
            ("--model", "fnn", "--sparsify", "rigl", "--form", "sparse"),
            "rank 0: form is sparse, and sparse layers grow by the gradients of one rank's share:",
        ),
    ],
)
def test_what_ranks_cannot_share_leaves_no_run(
    mistake: Callable[..., str], options: tuple[str, ...], words: str
) -> None:
    # New processes may be forks of one that has another environment.
    train = ("train", "nodes", "--data-dir", "data", "--out", "run", *SHORT)
    assert words in mistake(*train, *options, "--ranks", 2)
    assert [path.name for path in Path("run").iterdir()] == ["logs"]


def test_ranks_write_into_no_folder_that_is_refused(
    mistake: Callable[..., str], messages: Path, tmp_path: Path
) -> None:
    words = ("train", "links", "--data", messages, "--ranks", 2, *SHORT)
    for name, why in (("notes.txt", "holds no run"), ("config.json", "holds a run already")):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("{}")
        assert f"{folder.name} " in (said := mistake(*words, "--out", folder.name))
        assert why in said
        assert [path.name for path in folder.iterdir()] == [name]


def test_a_signal_before_ranks_have_a_run(
    weft: Callable[..., Any], messages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(*_: Any, **__: Any) -> None:
        raise LaunchStopped("SIGTERM")

    monkeypatch.setattr("weft.training.launch.launch", launch)
    words = ("train", "links", "--data", "messages.txt", "--ranks", "2", "--out", "run")
    said = weft(*words)
    assert said.code == 143, said
    assert said.out.endswith(
        "interrupted by SIGTERM after epoch 0, step 0; everything is in run. Start again with:\n"
        f"  weft {' '.join(words)}\n"
    )


def test_settings_as_json(weft: Callable[..., Any]) -> None:
    said = weft("train", "nodes", "--model", "fnn", "--print-config")
    found = json.loads(said.out)
    assert (found["epochs"], found["hidden"], found["sparsify"]) == (40, [256, 128], "none")
    assert json.loads(weft("train", "links", "--print-config").out)["sparsity"] == 0.906


@pytest.mark.parametrize("recipe", ["links", "nodes"])
def test_help_says_that_edges_have_times(
    weft: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, recipe: str
) -> None:
    # One column, in which lines follow each other.
    monkeypatch.setenv("COLUMNS", "80")
    said = " ".join(weft("train", recipe, "--help").out.replace("│", " ").split())
    assert "src dst time" in said
    assert "node label" in said or recipe == "links"
    if recipe == "nodes":
        assert (
            "An edge list of your own has the lines src dst time: its walks follow the times"
            in said
        )


def test_mistakes(
    mistake: Callable[..., str], messages: Path, groups: Path, tmp_path: Path
) -> None:
    words = ("train", "links", "--data", messages, *SHORT, "--out", "cut", "--sparsify", "rigl")
    said = mistake(*words, "--sparsity", 0.9999)
    assert "the network would be cut there; --sparsity is 0.9999: lower it, or make layers" in said
    assert "keep_one" not in said
    assert "neither a file nor a data set" in mistake("train", "links", "--data", "nothing")
    assert "neither a file nor a data set" in mistake("train", "nodes", "--data", "nothing")
    assert "sparsity is 1.0" in mistake("train", "links", "--sparsity", 1.0)
    assert "has no classes: give a file" in mistake("train", "nodes", "--data", messages)
    assert "leave out --labels" in mistake("train", "nodes", "--labels", groups)
    assert "does not exist" in mistake("train", "links", "--init-from", "nowhere")
    bad = tmp_path / "bad.txt"
    bad.write_text("alice bob 1\nbob alice -3\n")
    assert "bad.txt, line 2: the time is negative" in mistake("train", "links", "--data", bad)
    bad.write_text("alice bob 1\nbob alice\n")
    assert "line 2: 3 tokens (src, dst, time) expected" in mistake("train", "links", "--data", bad)
    bad.write_text("alice bob\nbob alice\n")
    wanted = "line 1: 3 tokens (src, dst, time) expected, fewer found; the line is 'alice bob'"
    assert wanted in mistake("train", "links", "--data", bad)
    assert wanted in mistake("train", "nodes", "--data", bad, "--labels", groups)
    bad.write_text("alice bob 1\nbob alice 2\n")
    assert "2 edges give parts of" in mistake("train", "links", "--data", bad)
    words = ("train", "nodes", "--data", messages, "--labels", groups)
    assert "no node column 'x'" in mistake(*words)
