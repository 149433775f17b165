import numpy as np
import pytest
import torch

from weft.errors import DataError
from weft.graphs import Graph


def test_a_graph_without_edges_and_columns_is_valid():
    graph = Graph(num_nodes=3)
    graph.validate()
    assert (graph.num_nodes, graph.num_edges, graph.num_bytes) == (3, 0, 0)


def test_num_bytes_counts_edges_and_every_level():
    graph = Graph(
        num_nodes=2,
        senders=np.zeros(3, np.int32),
        receivers=np.zeros(3, np.int32),
        nodes={"x": np.zeros((2, 4), np.float32)},
        edges={"d": np.zeros(3)},
        graph={"y": np.float64(1)},
        ragged={"s": np.zeros(5, np.uint8)},
    )
    assert graph.num_bytes == 2 * 12 + 32 + 24 + 8 + 5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_nodes": -1}, "mol: num_nodes is -1"),
        ({"senders": np.array([0, 5])}, r"mol: edge 1 has senders = 5.*3 nodes \(0 to 2\)"),
        ({"receivers": np.array([0, -2])}, "mol: edge 1 has receivers = -2"),
        ({"senders": np.array([0.0, 1.0])}, r"mol: senders must be a vector of integers.*float64"),
        ({"senders": np.zeros((2, 1), np.int32)}, r"senders must be a vector.*int32\[2, 1\]"),
        ({"senders": np.array([0])}, "1 senders but 2 receivers"),
        ({"nodes": {"x": np.zeros((2, 3))}}, r"mol: node column 'x' has shape \[2, 3\].* 3,"),
        ({"edges": {"d": np.zeros(())}}, r"mol: edge column 'd' has shape \[\].* 2,"),
    ],
)
def test_validate_names_the_field(fields, message):
    whole = {"num_nodes": 3, "senders": np.array([0, 1]), "receivers": np.array([1, 0])}
    with pytest.raises(DataError, match=message):
        Graph(**{**whole, **fields}).validate("mol")


def test_lists_and_tensors_become_arrays() -> None:
    graph = Graph(num_nodes=2, senders=[0], receivers=torch.tensor([1]), nodes={"x": [1.0, 2.0]})
    graph.validate()
    assert graph.nodes["x"].dtype == np.float64
    assert graph.receivers.tolist() == [1]
