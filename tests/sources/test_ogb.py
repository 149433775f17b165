"""Folders of OGB's layout, made here, raw and processed."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from weft.errors import DataError
from weft.sources import read_graph, read_ogb

X = np.array([[0.5, -1], [2, 0], [0, 0.25], [1, 1]], dtype=np.float32)
EDGES = np.array([[0, 1, 3], [1, 2, 0]])
SPLIT = {"train": [0, 3], "valid": [1], "test": [2]}


def pack(path: Path, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(",".join(map(str, np.atleast_1d(row))) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()))


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "ogbn_small"
    pack(folder / "raw/edge.csv.gz", EDGES.T)
    pack(folder / "raw/num-node-list.csv.gz", [4])
    pack(folder / "raw/num-edge-list.csv.gz", [3])
    pack(folder / "raw/node-feat.csv.gz", X)
    pack(folder / "raw/node-label.csv.gz", ["0", "2", "nan", "1"])
    pack(folder / "raw/node_year.csv.gz", [2010] * 4)
    for part, nodes in SPLIT.items():
        pack(folder / f"split/time/{part}.csv.gz", nodes)
    return folder


def check(graph):
    assert graph.num_nodes == 4
    np.testing.assert_array_equal(np.stack([graph.senders, graph.receivers]), EDGES)
    np.testing.assert_array_equal(graph.nodes["x"], X)
    assert graph.nodes["x"].dtype == np.float32
    assert graph.nodes["y"].tolist() == [0, 2, -1, 1]
    assert graph.nodes["train"].tolist() == [True, False, False, True]
    assert graph.nodes["validation"].tolist() == [False, True, False, False]
    assert graph.nodes["test"].tolist() == [False, False, True, False]


def test_raw_files(raw):
    check(read_ogb(raw))
    check(read_graph(raw))


def test_raw_files_of_the_largest_sets(raw, tmp_path):
    large = tmp_path / "large"
    (large / "raw").mkdir(parents=True)
    np.savez(large / "raw/data.npz", edge_index=EDGES, node_feat=X, num_nodes_list=[4])
    np.savez(large / "raw/node-label.npz", node_label=np.array([[0.0], [2], [np.nan], [1]]))
    (raw / "split").rename(large / "split")
    check(read_graph(large))
    (large / "raw/node-label.npz").unlink()
    with pytest.raises(DataError, match=r"node-label\.npz is missing; a folder of OGB"):
        read_graph(large)


def test_processed_files(raw, tmp_path):
    folder = tmp_path / "processed_only"
    (folder / "processed").mkdir(parents=True)
    split = {part: np.array(nodes) for part, nodes in SPLIT.items()}
    (folder / "split/time").mkdir(parents=True)
    torch.save(split, folder / "split/time/split_dict.pt")
    saved = {
        "graph": {
            "edge_index": EDGES,
            "edge_feat": None,
            "node_feat": X,
            "node_year": np.full((4, 1), 2010),
            "num_nodes": 4,
        },
        "labels": np.array([[0.0], [2], [np.nan], [1]]),
    }
    torch.save(saved, folder / "processed/data_processed", pickle_protocol=4)
    check(read_graph(folder))


def test_processed_by_torch_geometric(raw):
    data = pytest.importorskip("torch_geometric.data")
    one = data.Data(
        num_nodes=4,
        edge_index=torch.from_numpy(EDGES),
        x=torch.from_numpy(X),
        y=torch.tensor([[0], [2], [-1], [1]]),
        node_year=torch.full((4, 1), 2010),
    )
    (raw / "processed").mkdir()
    torch.save((one, None), raw / "processed/geometric_data_processed.pt")
    for file in (raw / "raw").iterdir():
        file.unlink()
    check(read_graph(raw))


@pytest.mark.parametrize(
    "name", ["edge", "num-node-list", "num-edge-list", "node-feat", "node-label"]
)
def test_a_missing_file_is_named(raw, name):
    (raw / f"raw/{name}.csv.gz").unlink()
    with pytest.raises(DataError, match=rf"raw/{name}\.csv\.gz is missing; a folder of OGB's lay"):
        read_graph(raw)


def test_a_missing_part_of_the_split(raw):
    (raw / "split/time/valid.csv.gz").unlink()
    with pytest.raises(DataError, match=r"split/time/valid\.csv\.gz is missing"):
        read_graph(raw)


def test_files_that_do_not_fit(raw):
    pack(raw / "split/time/test.csv.gz", [4])
    with pytest.raises(DataError, match=r"'test' names node 4 in row 0; the nodes are 0 to 3"):
        read_graph(raw)
    pack(raw / "raw/node-feat.csv.gz", X[:3])
    with pytest.raises(DataError, match=r"node-feat\.csv\.gz has 3 rows; num-node-list says 4"):
        read_graph(raw)
    pack(raw / "raw/edge.csv.gz", [[0, 9], [1, 2], [3, 0]])
    pack(raw / "raw/node-feat.csv.gz", X)
    with pytest.raises(DataError, match=r"edge 0 of 'edge_index' is 0 -> 9, but the nodes are 0"):
        read_graph(raw)
    pack(raw / "raw/edge.csv.gz", EDGES.T[:2])
    with pytest.raises(DataError, match=r"edge\.csv\.gz has 2 edges; num-edge-list says 3"):
        read_graph(raw)
    pack(raw / "split/random/test.csv.gz", [0])
    pack(raw / "raw/edge.csv.gz", EDGES.T)
    with pytest.raises(DataError, match=r"split has the splits random, time; keep one"):
        read_graph(raw)


def test_another_folder(tmp_path):
    with pytest.raises(DataError, match="a folder of unknown layout"):
        read_graph(tmp_path)
