"""Input that ranks cannot train on: one sentence on each of them, no wait, nothing written."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
from full_graph_cases import refusals
from rank_processes import results_of

from weft.sources import planted_partition

GRAPH = planted_partition(30, 2, mean_degree=4, homophily=0.9, num_features=3, seed=0)
# Where rank 0 alone reads the files, the others repeat its words.
CASES = {
    "masks": "node 0 is in .*train.npy and in .*test.npy",
    "label": "the target of node 3 is 99; classes are numbered from 0",
    "ogb": r"raw/node-feat\.csv\.gz is missing; a folder of OGB's layout",
    "negative": "the weights that enter node [0-9]+ sum to -[0-9]+; a symmetric",
    "nulls": r"edges\.parquet: column 'dst' is null in row 2",
}


def pack(path: Path, rows: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(",".join(map(str, row)) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()))


def ogb_folder(folder: Path) -> Path:
    """The graph in OGB's layout."""
    pack(folder / "raw/edge.csv.gz", np.stack([GRAPH.senders, GRAPH.receivers], 1))
    pack(folder / "raw/num-node-list.csv.gz", np.array([[30]]))
    pack(folder / "raw/num-edge-list.csv.gz", np.array([[GRAPH.num_edges]]))
    pack(folder / "raw/node-feat.csv.gz", GRAPH.nodes["x"])
    pack(folder / "raw/node-label.csv.gz", GRAPH.nodes["y"][:, None])
    for part, nodes in (("train", range(10)), ("valid", range(10, 20)), ("test", range(20, 30))):
        pack(folder / f"split/random/{part}.csv.gz", np.array(nodes)[:, None])
    return folder


@pytest.fixture
def data(tmp_path: Path) -> dict[str, list[str]]:
    """The options of each case, and of a good graph."""
    pairs = np.stack([GRAPH.senders, GRAPH.receivers], 1)
    np.savetxt(tmp_path / "edges.txt", pairs, "%d")
    np.savetxt(tmp_path / "heavy.txt", np.column_stack([pairs, np.full(len(pairs), -5)]), "%d")
    np.save(tmp_path / "x.npy", GRAPH.nodes["x"])
    np.save(tmp_path / "y.npy", GRAPH.nodes["y"])
    wrong = GRAPH.nodes["y"].copy()
    wrong[3] = 99
    np.save(tmp_path / "wrong.npy", wrong)
    masks = {"train": range(10), "validation": range(10, 20), "test": [0, *range(20, 30)]}
    for part, nodes in masks.items():
        np.save(tmp_path / f"{part}.npy", np.array(nodes))
    files = ["--features", str(tmp_path / "x.npy"), "--labels"]
    own = [*files, str(tmp_path / "y.npy")]
    weighted = ["--columns", "src", "dst", "weight", "--directed"]
    split = ["--split", "0.6", "0.2", "0.2"]
    edges = ["--data", str(tmp_path / "edges.txt")]
    ogb_folder(tmp_path / "whole")
    (ogb_folder(tmp_path / "cut") / "raw/node-feat.csv.gz").unlink()
    found = {
        "good": ["--data", str(tmp_path / "whole")],
        "masks": edges
        + own
        + [word for part in masks for word in (f"--{part}-mask", str(tmp_path / f"{part}.npy"))],
        "label": [*edges, *files, str(tmp_path / "wrong.npy"), *split],
        "ogb": ["--data", str(tmp_path / "cut")],
        "negative": ["--data", str(tmp_path / "heavy.txt"), *own, *split, *weighted],
        "nulls": ["--data", str(tmp_path / "edges.parquet"), *own, *split],
    }
    pyarrow = pytest.importorskip("pyarrow")
    writer = pytest.importorskip("pyarrow.parquet")
    ends = {"src": [0, 1, 2], "dst": [1, 2, None]}
    writer.write_table(pyarrow.table(ends), tmp_path / "edges.parquet")
    return found


def test_every_rank_says_what_is_wrong_and_nothing_is_written(data, tmp_path):
    run, store = tmp_path / "run-{rank}", tmp_path / "data-{rank}"
    common = ["train", "full-graph", "--epochs", "2", "--quiet", "--out", str(run), "--data-dir"]
    commands = [[*common, str(store), *data[case]] for case in (*CASES, "good")]
    commands[-1] += ["--model", "sage", "--layer.aggregate", "max", "--grid", "1x1x2"]
    whole_rows = "GraphSAGE with maxima needs all edges of a node on one rank"
    said = results_of(2, refusals, commands, [0, 1])
    for first, second, words in zip(*said, (*CASES.values(), whole_rows), strict=True):
        assert (first[0], second[0]) == (2, 2), (words, first, second)
        assert re.search(words, first[1]), (words, first)
        assert second[1] == first[1].replace("weft: ", "weft: rank 0: "), words
    assert not [*tmp_path.glob("run-*"), *tmp_path.glob("data-*/full-graph-*")]


def test_a_file_that_one_host_lacks_is_named_on_the_others(data, tmp_path):
    for rank, name in enumerate(("whole", "cut")):
        (tmp_path / f"host-{rank}").symlink_to(tmp_path / name)
    own = ["--data", str(tmp_path / "host-{rank}"), "--data-dir", str(tmp_path / "data-{rank}")]
    words = ["train", "full-graph", "--epochs", "2", "--quiet", *own]
    words += ["--out", str(tmp_path / "run-{rank}")]
    (first,), (second,) = results_of(2, refusals, [words], [0, 0])
    assert (first[0], second[0]) == (2, 2)
    assert "host-1/raw/node-feat.csv.gz is missing" in second[1]
    assert first[1] == second[1].replace("weft: ", "weft: rank 1: ")
    assert not list(tmp_path.glob("run-*"))
