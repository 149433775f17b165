"""`weft predict` of runs on links and nodes: names in, probabilities out."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from weft.graphs import open_table
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.prediction import predict_links
from weft.recipes.links.training import make_fnn
from weft.recipes.nodes.training import predict_classes
from weft.training.saved_inputs import kept_inputs
from weft.training.sparse_form import load_dense

TRAIN = ("--epochs", 3, "--quiet", "--out", "run")
PEOPLE = ["alice", "bob", *(f"u{number}" for number in range(28))]


@pytest.fixture
def messages(tmp_path: Path) -> Path:
    """An edge list: 30 people, mostly writing within three groups; the last line has a newcomer."""
    rng = np.random.default_rng(0)
    senders = rng.integers(30, size=600)
    receivers = rng.integers(10, size=600) * 3 + senders % 3
    ends = zip(senders, receivers, strict=True)
    lines = [f"{PEOPLE[a]} {PEOPLE[b]} {t}\n" for t, (a, b) in enumerate(ends)]
    path = tmp_path / "messages.txt"
    path.write_text("".join(lines) + "alice zoe 700\n")
    return path


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    path = tmp_path / "groups.txt"
    path.write_text("".join(f"{name} group{i % 3}\n" for i, name in enumerate(PEOPLE)))
    return path


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_pairs(weft: Callable[..., Any], messages: Path, tmp_path: Path, form: str) -> None:
    words = ("train", "links", "--data", messages, "--sparsify", "rigl", "--form", form)
    said = weft(*words, "--no-features", "--update-every", 7, *TRAIN)
    assert said.code == 0, said.err
    assert "FLOPs of a training step: " in said.out
    assert "of the same step dense" in said.out
    costs = json.loads((tmp_path / "run" / "summary.json").read_text())["step_costs"]
    # Of 21 steps, 2 need the gradient of all weights.
    assert costs["flops"] == pytest.approx(0.094 + 2 / 21 * 0.906 / 3, abs=0.002)
    assert costs["seconds"] > 0
    (tmp_path / "pairs.txt").write_text("# who\nalice bob\n\nu3, u4\nbob zoe\nalice bob\n")
    said = weft("predict", "run", "pairs.txt")
    assert said.code == 0, said.err
    assert "Written to pairs-predicted.csv." in said.out
    assert "It rests on 601 of 601 edges." in said.out
    heading, *found = rows(tmp_path / "pairs-predicted.csv")
    assert heading == ["src", "dst", "probability", "unknown"]
    assert [row[:2] for row in found] == [
        ["alice", "bob"],
        ["u3", "u4"],
        ["bob", "zoe"],
        ["alice", "bob"],
    ]
    kept = kept_inputs(tmp_path / "run", "links")
    model = make_fnn(LinksConfig(features=False)).eval()
    load_dense(model, tmp_path / "run")
    alice, bob = (kept.names.index(name) for name in ("alice", "bob"))
    embedding = kept.tensors["embedding"]
    with torch.no_grad():
        logit = model(torch.cat([embedding[alice], embedding[bob]]))
    assert float(found[0][2]) == pytest.approx(float(logit.sigmoid()), rel=1e-4)
    assert found[3] == found[0]
    said = weft("predict", "run", "pairs.txt", "--out", "pairs.json")
    assert said.code == 0, said.err
    first = json.loads((tmp_path / "pairs.json").read_text())[0]
    probability = pytest.approx(float(found[0][2]))
    assert first == {"src": "alice", "dst": "bob", "probability": probability, "unknown": ""}


def test_numbers_of_an_edge_list_are_names_too(weft: Callable[..., Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ends = rng.integers(20, size=(300, 2)) * 7 + 1000
    lines = [f"{a} {b} {t}\n" for t, (a, b) in enumerate(ends.tolist())]
    (tmp_path / "edges.txt").write_text("".join(lines))
    assert weft("train", "links", "--data", "edges.txt", *TRAIN).code == 0
    (tmp_path / "pairs.txt").write_text("1007 1014\n")
    found = predict_links([tmp_path / "run"], tmp_path / "pairs.txt")
    ((src, dst, probability, unknown),) = found.rows
    assert (src, dst, unknown) == (1007, 1014, "")
    assert 0 < probability < 1


def test_classes_of_an_edge_list(
    weft: Callable[..., Any], messages: Path, groups: Path, tmp_path: Path
) -> None:
    words = ("train", "nodes", "--data", messages, "--labels", groups, "--model", "fnn")
    said = weft(*words, "--sparsify", "set", "--sparsity", 0.5, "--form", "sparse", *TRAIN)
    assert said.code == 0, said.err
    assert "always naming the commonest class" in said.out
    said = weft("predict", "run")
    assert said.code == 0, said.err
    assert "... and 21 more. Written to run-predicted.csv." in said.out
    heading, *found = rows(tmp_path / "run-predicted.csv")
    assert heading == ["node", "class", "probability"]
    assert [row[0] for row in found] == sorted([*PEOPLE, "zoe"])
    assert {row[1] for row in found} <= {"group0", "group1", "group2"}
    assert all(1 / 3 <= float(row[2]) <= 1 for row in found)
    (tmp_path / "some.txt").write_text("zoe\nbob\n")
    said = weft("predict", "run", "some.txt", "--out", "some.json")
    assert said.code == 0, said.err
    some = json.loads((tmp_path / "some.json").read_text())
    assert [each["node"] for each in some] == ["zoe", "bob"]
    assert some[1]["class"] == {row[0]: row[1] for row in found}["bob"]


@pytest.mark.usefixtures("small_cora")
def test_classes_of_a_graph_network(weft: Callable[..., Any], tmp_path: Path) -> None:
    said = weft("train", "nodes", "--epochs", 30, "--quiet", "--out", "run")
    assert said.code == 0, said.err
    said = weft("predict", "run")
    assert said.code == 0, said.err
    found = predict_classes(tmp_path / "run")
    assert [node for node, _, _ in found] == list(range(300))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    parts = ("train", "validation", "test")
    right = sum(summary["accuracy"][part]["value"] * summary["counts"][part] for part in parts)
    y = np.asarray(open_table(tmp_path / "data" / "cora.weft").column("y"))
    assert sum(int(a) == b for (_, a, _), b in zip(found, y, strict=True)) == round(right)


def test_mistakes(
    weft: Callable[..., Any], mistake: Callable[..., str], messages: Path, tmp_path: Path
) -> None:
    assert weft("train", "links", "--data", messages, *TRAIN).code == 0
    (tmp_path / "pairs.txt").write_text("alice bob\n# a comment\nbob carol\n")
    said = mistake("predict", "run", "pairs.txt")
    assert "pairs.txt, line 3: 'carol' is none of the 31 nodes" in said
    assert "(alice, bob, u0, ...)" in said
    (tmp_path / "pairs.txt").write_text("alice bob 17\n")
    assert "line 1: 2 tokens (src, dst) expected" in mistake("predict", "run", "pairs.txt")
    (tmp_path / "pairs.txt").write_text("\n")
    assert "names no nodes" in mistake("predict", "run", "pairs.txt")
    (tmp_path / "pairs.txt").write_text("alice bob\n")
    assert "name a file with the lines src dst" in mistake("predict", "run")
    said = mistake("predict", "run", "pairs.txt", "--forces")
    assert "no --forces, only --out and --quiet" in said
    assert "only --out and --quiet" in mistake("predict", "run", "pairs.txt", "--ranks", 2)
    assert "as .csv or .json" in mistake("predict", "run", "pairs.txt", "--out", "a.txt")
    assert "there is no folder no" in mistake("predict", "run", "pairs.txt", "--out", "no/a.csv")
    csv_pairs = tmp_path / "pairs.csv"
    csv_pairs.write_text("alice,bob\n")
    said = mistake("predict", "run", "pairs.csv", "--out", "pairs.csv")
    assert "is the file to read" in said
    (tmp_path / "run" / "nodes.json").write_text('["alice"]')
    assert "its embeddings do not fit its nodes" in mistake("predict", "run", "pairs.txt")
    (tmp_path / "run" / "nodes.json").unlink()
    assert "cannot be read" in mistake("predict", "run", "pairs.txt")


def test_methods_without_a_sparse_form(mistake: Callable[..., str]) -> None:
    said = mistake("train", "links", "--sparsify", "slr", "--form", "sparse")
    assert "slr needs all weights for a part of the training: choose sparsify from rigl" in said
    said = mistake("train", "nodes", "--sparsify", "rigl", "--form", "sparse")
    assert "a gcn's layers have no sparse form" in said
