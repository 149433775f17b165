from __future__ import annotations

import pytest
import torch

from weft.graphs import Graph, assemble, row_weights, table_from_graphs
from weft.models import GraphSAGE, SAGEConfig
from weft.sources.synthetic import planted_partition


def batch_of(graph):
    return assemble(table_from_graphs([row_weights(graph)]), [0])


def small_batch():
    graph = planted_partition(40, 3, 4.0, 0.8, 6, seed=1)
    return batch_of(graph)


def plain(model, batch):
    """The same network with dense matrices."""
    n = batch.num_nodes
    matrix = torch.zeros(n, n, dtype=torch.float64)
    ends = (batch.receivers.long(), batch.senders.long())
    matrix.index_put_(ends, batch.edges["weight"].double(), accumulate=True)
    x = batch.nodes["x"].double()
    for number, layer in enumerate(model.layers):
        x = x.relu() if number else x
        x = matrix @ x @ layer.neighbours + x @ layer.own + layer.bias
    return x


@pytest.mark.parametrize("hidden", [(3,), (20,), (9, 2, 11)])
def test_layers_are_means_of_neighbours_beside_the_node_itself(hidden):
    torch.manual_seed(0)
    batch = small_batch()
    model = GraphSAGE(6, 3, SAGEConfig(hidden=hidden, dropout=0.0)).double()
    double = batch.replace(
        nodes={**batch.nodes, "x": batch.nodes["x"].double()},
        edges={"weight": batch.edges["weight"].double()},
    )
    expected = plain(model, batch)
    slopes = torch.autograd.grad(expected.square().sum(), list(model.parameters()))
    found = model(double)
    torch.testing.assert_close(found, expected)
    for parameter, slope in zip(model.parameters(), slopes, strict=True):
        (own,) = torch.autograd.grad(found.square().sum(), [parameter], retain_graph=True)
        torch.testing.assert_close(own, slope)
    with torch.no_grad():
        torch.testing.assert_close(model(double), expected)


def test_a_mean_of_neighbours_by_hand():
    # Nodes 0 and 1 send to 2, which has the mean 3 of 2 and 4; nobody sends to them.
    graph = Graph(
        num_nodes=3,
        senders=torch.tensor([0, 1]).numpy(),
        receivers=torch.tensor([2, 2]).numpy(),
        nodes={"x": torch.tensor([[2.0], [4.0], [10.0]]).numpy()},
    )
    model = GraphSAGE(1, 1, SAGEConfig(hidden=(), dropout=0.0))
    with torch.no_grad():
        model.layers[0].neighbours.fill_(1.0)
        model.layers[0].own.fill_(100.0)
    assert model(batch_of(graph))[:, 0].tolist() == [200.0, 400.0, 1003.0]


def test_dropout_is_for_training():
    torch.manual_seed(0)
    batch = small_batch()
    model = GraphSAGE(6, 3, SAGEConfig(hidden=(16,), dropout=0.5, input_dropout=0.5))
    assert not torch.equal(model(batch), model(batch))
    model.eval()
    assert torch.equal(model(batch), model(batch))


def test_it_learns_what_features_alone_do_not_tell():
    torch.manual_seed(0)
    batch = batch_of(planted_partition(300, 3, 12.0, 0.9, 8, seed=2))
    train, test = batch.nodes["train"], batch.nodes["test"]
    model = GraphSAGE(8, 3, SAGEConfig(hidden=(16,), dropout=0.2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(80):
        optimizer.zero_grad()
        y = batch.nodes["y"]
        torch.nn.functional.cross_entropy(model(batch)[train], y[train]).backward()
        optimizer.step()
    model.eval()
    right = model(batch).argmax(1) == batch.nodes["y"]
    assert right[test].double().mean() > 0.85


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"dropout": 1.0}, "dropout is 1.0"), ({"hidden": (4, 0)}, "hidden widths are")],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        SAGEConfig(**settings)
