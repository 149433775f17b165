"""Files of torch.save: read without running anything in them."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
import torch

from weft.errors import DataError
from weft.sources import read_graph
from weft.sources.saved_tensors import load_tensors

EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])


def save(path, value):
    torch.save(value, path)
    return path


def test_a_dict_of_tensors(tmp_path):
    path = save(
        tmp_path / "g.pt",
        {
            "edge_index": EDGES,
            "x": torch.eye(3, dtype=torch.float64),
            "y": torch.tensor([[1], [0], [-1]]),
            "edge_weight": torch.tensor([0.5, 1.0, 2.0]),
            "train_mask": torch.tensor([True, False, False]),
            "val_mask": torch.tensor([1]),
        },
    )
    graph = read_graph(path)
    assert (graph.num_nodes, graph.senders.tolist(), graph.receivers.tolist()) == (
        3,
        [0, 1, 2],
        [1, 2, 0],
    )
    assert graph.nodes["x"].dtype == np.float64
    assert graph.nodes["y"].tolist() == [1, 0, -1]
    assert graph.edges["weight"].tolist() == [0.5, 1.0, 2.0]
    assert graph.nodes["train"].tolist() == [True, False, False]
    assert graph.nodes["validation"].tolist() == [False, True, False]


def test_a_graph_of_torch_geometric(tmp_path):
    data = pytest.importorskip("torch_geometric.data")
    one = data.Data(x=torch.eye(3), edge_index=EDGES, y=torch.tensor([0, 1, 1]), num_nodes=3)
    slices = {"x": torch.tensor([0, 3]), "edge_index": torch.tensor([0, 3])}
    for saved in (one, (one, slices), (one.to_dict(), slices, data.Data)):
        graph = read_graph(save(tmp_path / "g.pt", saved))
        assert graph.senders.tolist() == [0, 1, 2]
        assert graph.nodes["y"].tolist() == [0, 1, 1]
    several = {"x": torch.tensor([0, 1, 3]), "edge_index": torch.tensor([0, 1, 3])}
    with pytest.raises(DataError, match="several graphs"):
        read_graph(save(tmp_path / "g.pt", (one, several)))


def test_arrays_of_numpy_in_a_dict(tmp_path):
    edges = np.array([[0, 1], [1, 0]])
    found = load_tensors(save(tmp_path / "g.pt", {"graph": {"edge_index": edges}, "num_nodes": 2}))
    assert found["graph"]["edge_index"].tolist() == [[0, 1], [1, 0]]
    assert found["num_nodes"] == 2


class _Command:
    def __reduce__(self):
        return os.system, ("touch ran",)


@pytest.mark.parametrize("zipped", [True, False])
def test_nothing_in_a_file_runs(tmp_path, monkeypatch, zipped):
    monkeypatch.chdir(tmp_path)
    torch.save({"x": _Command()}, "g.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(DataError, match=r"was not loaded, and nothing of it has run: .*system"):
        load_tensors(tmp_path / "g.pt")
    (tmp_path / "g.pt").write_bytes(pickle.dumps(_Command()))
    with pytest.raises(DataError, match=r"g\.pt"):
        load_tensors(tmp_path / "g.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (torch.eye(2), "holds a Tensor; a Data of torch_geometric, or a dict"),
        ({"x": torch.eye(2)}, "has no 'edge_index', the edges .*it has x"),
        ({"edge_index": EDGES, "x": torch.eye(2).to_sparse()}, "'x' is torch.sparse_coo"),
        ({"edge_index": EDGES, "x": torch.eye(3).bfloat16()}, "'x' is torch.bfloat16"),
        ({"edge_index": EDGES, "x": torch.ones(1).expand(10**6, 9)}, "'x' repeats its numbers"),
        ({"edge_index": EDGES.float()}, r"float32\[2, 3\]; whole numbers \[2, e\]"),
        ({"edge_index": EDGES, "num_nodes": 2}, "edge 1 of 'edge_index' is 1 -> 2, but the nodes"),
        ({"edge_index": EDGES, "x": torch.eye(4), "y": EDGES[0]}, r"'y' is int64\[3\]"),
        ({"edge_index": EDGES, "edge_weight": torch.ones(2)}, "there are 3 edges"),
        ({"edge_index": EDGES, "x": "text"}, "'x' is not an array of numbers"),
    ],
)
def test_what_is_no_graph_is_refused(tmp_path, value, reason):
    with pytest.raises(DataError, match=rf"g\.pt.*{reason}"):
        read_graph(save(tmp_path / "g.pt", value))


def test_damaged_and_missing_files(tmp_path):
    path = save(tmp_path / "g.pt", {"edge_index": EDGES})
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError, match=r"g\.pt is not a complete file of torch.save"):
        load_tensors(path)
    with pytest.raises(DataError, match="is missing"):
        load_tensors(tmp_path / "no.pt")


def test_features_of_edges_are_left_out_with_a_warning(tmp_path):
    path = save(tmp_path / "g.pt", {"edge_index": EDGES, "edge_attr": torch.ones(3, 2)})
    with pytest.warns(UserWarning, match=r"'edge_attr' has shape \[3, 2\], which is no weight"):
        graph = read_graph(path)
    assert not graph.edges
