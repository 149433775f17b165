"""The GCN against torch_geometric's, against itself in the other order of products, and padded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from weft.graphs import (
    Array,
    Budget,
    Graph,
    GraphBatch,
    GraphTable,
    assemble,
    gcn_weights,
    symmetrised,
    table_from_graphs,
)
from weft.kernels import spmm
from weft.models import GCN, GCNConfig, GCNLayer, with_first_product

NODES, FEATURES, CLASSES = 40, 12, 5
EXACT = GCNConfig(hidden=(7, 9), dropout=0.0, input_dropout=0.0)


def random_graph(*, seed: int = 0, edges: int = 90) -> Graph:
    rng = np.random.default_rng(seed)
    ends = rng.integers(NODES, size=(2, edges))
    graph = Graph(
        num_nodes=NODES,
        senders=ends[0][ends[0] != ends[1]],
        receivers=ends[1][ends[0] != ends[1]],
        nodes={"x": rng.standard_normal((NODES, FEATURES))},
    )
    return symmetrised(graph)


def table_of(graph: Graph) -> GraphTable:
    return table_from_graphs([gcn_weights(graph)])


def in_double(batch: GraphBatch) -> GraphBatch:
    return batch.replace(
        nodes={"x": batch.nodes["x"].double()}, edges={"weight": batch.edges["weight"].double()}
    )


def batch_of(graph: Graph, budget: Budget | None = None) -> GraphBatch:
    return in_double(assemble(table_of(graph), [0], budget))


def gcn(config: GCNConfig = EXACT) -> GCN:
    torch.manual_seed(0)
    model = GCN(FEATURES, CLASSES, config).double()
    for layer in model.layers:
        torch.nn.init.normal_(layer.bias)
    return model


def gradients(model: GCN, logits: Tensor) -> list[Tensor]:
    torch.manual_seed(1)
    found = torch.autograd.grad((logits * torch.randn_like(logits)).sum(), list(model.parameters()))
    return list(found)


def test_the_same_as_torch_geometric() -> None:
    nn = pytest.importorskip("torch_geometric.nn")
    graph, model = random_graph(), gcn()
    # float64 weights for both: gcn_weights rounds to float32, which would hide real differences.
    batch = batch_of(graph)
    degrees = (batch.in_offsets[1:] - batch.in_offsets[:-1]).double()
    weight = (degrees[batch.receivers.long()] * degrees[batch.senders.long()]).rsqrt()
    torch.testing.assert_close(weight.float(), batch.edges["weight"].float())
    ours = model(batch.replace(edges={"weight": weight}))

    edge_index = torch.from_numpy(np.stack([graph.senders, graph.receivers])).long()
    x = batch.nodes["x"]
    theirs, parameters = x, []
    for number, layer in enumerate(model.layers):
        conv = nn.GCNConv(*layer.weight.shape).double()
        with torch.no_grad():
            conv.lin.weight.copy_(layer.weight.T)
            conv.bias.copy_(layer.bias)
        theirs = conv(theirs.relu() if number else theirs, edge_index)
        parameters += [conv.lin.weight, conv.bias]
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)

    torch.manual_seed(1)
    direction = torch.randn_like(ours)
    expected = torch.autograd.grad((theirs * direction).sum(), parameters)
    for found, wanted in zip(gradients(model, ours), expected, strict=True):
        wanted = wanted.T if wanted.ndim == 2 else wanted
        torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("learning", [False, True], ids=["fixed x", "learning x"])
@pytest.mark.parametrize(
    ("width_in", "width_out"), [(3, 11), (11, 3), (6, 4)], ids=["widening", "narrowing", "between"]
)
def test_both_orders_of_the_products_agree(width_in: int, width_out: int, learning: bool) -> None:
    batch = batch_of(random_graph())
    torch.manual_seed(0)
    layer = GCNLayer(width_in, width_out).double()
    torch.nn.init.normal_(layer.bias)
    x = torch.randn(NODES, width_in, dtype=torch.float64, requires_grad=learning)
    weight = batch.edges["weight"]
    outputs = [
        layer(batch, x),
        spmm(batch, x, weight) @ layer.weight + layer.bias,
        spmm(batch, x @ layer.weight, weight) + layer.bias,
    ]
    inputs = [*layer.parameters(), *([x] if learning else [])]
    direction = torch.randn_like(outputs[0])
    found = [torch.autograd.grad((out * direction).sum(), inputs) for out in outputs]
    for out, gradient in zip(outputs[1:], found[1:], strict=True):
        torch.testing.assert_close(outputs[0], out)
        torch.testing.assert_close(found[0], gradient)
    with torch.no_grad():
        torch.testing.assert_close(layer(batch, x), outputs[0])


def order_taken(layer: GCNLayer, batch: GraphBatch, x: Tensor) -> int:
    """Width of the sparse product in the layer: that of x, or that of the output."""
    with torch.profiler.profile(record_shapes=True) as profile:
        layer(batch, x)
    shapes = [e.input_shapes[0] for e in profile.events() if e.name == "spmm"]
    assert len(shapes) == 1
    return int(shapes[0][1])


def test_the_narrower_product_is_taken() -> None:
    batch = batch_of(random_graph())

    def x(width: int, learning: bool) -> Tensor:
        return torch.randn(NODES, width, dtype=torch.float64, requires_grad=learning)

    widening, narrowing, between = (GCNLayer(a, b).double() for a, b in ((3, 11), (11, 3), (6, 4)))
    assert order_taken(widening, batch, x(3, True)) == 3
    assert order_taken(narrowing, batch, x(11, False)) == 3
    # Aggregating six columns once beats four columns forward and four backward.
    assert order_taken(between, batch, x(6, False)) == 6
    assert order_taken(between, batch, x(6, True)) == 4
    with torch.no_grad():
        assert order_taken(between, batch, x(6, True)) == 4


def test_the_kept_first_product_changes_nothing() -> None:
    batch, model = batch_of(random_graph()), gcn()
    kept = with_first_product(batch)
    assert "ax" not in batch.nodes
    # It must be used, not only be there.
    kept = kept.replace(nodes={"ax": kept.nodes["ax"]})
    torch.testing.assert_close(model(kept), model(batch))
    torch.testing.assert_close(gradients(model, model(kept)), gradients(model, model(batch)))


def test_input_dropout_refuses_the_kept_product_in_training() -> None:
    batch = batch_of(random_graph())
    model = gcn(GCNConfig(hidden=(7,), dropout=0.0, input_dropout=0.5))
    kept = with_first_product(batch)
    assert "x" not in kept.nodes
    with pytest.raises(ValueError, match=r"input_dropout is 0\.5"):
        model(kept)
    model.eval()
    torch.testing.assert_close(model(kept), model(batch))


def test_dropout_is_for_training_only() -> None:
    batch, model = batch_of(random_graph()), gcn(GCNConfig(hidden=(7,)))
    assert not torch.equal(model(batch), model(batch))
    model.eval()
    assert torch.equal(model(batch), model(batch))
    exact = gcn(GCNConfig(hidden=(7,), dropout=0.0, input_dropout=0.0))
    torch.testing.assert_close(model(batch), exact(batch))


def permuted(graph: Graph, order: Array) -> Graph:
    """Node order[i] becomes node i."""
    place = np.argsort(order)
    return Graph(
        num_nodes=graph.num_nodes,
        senders=place[graph.senders],
        receivers=place[graph.receivers],
        nodes={"x": graph.nodes["x"][order]},
    )


def test_permuting_the_nodes_permutes_the_logits() -> None:
    graph, model = random_graph(), gcn()
    order = np.random.default_rng(5).permutation(NODES)
    torch.testing.assert_close(
        model(batch_of(permuted(graph, order))), model(batch_of(graph))[torch.from_numpy(order)]
    )


def test_padding_does_not_touch_real_nodes() -> None:
    table = table_from_graphs([gcn_weights(random_graph(seed=seed)) for seed in range(3)])
    model, graphs = gcn(), [2, 0]
    plain = in_double(assemble(table, graphs))
    budget = Budget(nodes=plain.num_nodes + 13, edges=plain.num_edges + 29, graphs=6)
    padded = in_double(assemble(table, graphs, budget))
    real = padded.node_mask
    assert int(real.sum()) == plain.num_nodes < padded.num_nodes
    logits, expected = model(padded), model(plain)
    assert torch.equal(logits[real], expected)
    assert torch.isfinite(logits).all()
    for found, wanted in zip(
        gradients(model, logits[real]), gradients(model, expected), strict=True
    ):
        torch.testing.assert_close(found, wanted)


def test_a_graph_without_edges_is_a_perceptron() -> None:
    x = np.random.default_rng(0).standard_normal((4, FEATURES))
    model = gcn()
    out = model(batch_of(Graph(num_nodes=4, nodes={"x": x})))
    expected = torch.from_numpy(x).float().double()
    for number, layer in enumerate(model.layers):
        expected = (expected.relu() if number else expected) @ layer.weight + layer.bias
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)


def test_no_edges_at_all_leave_the_bias() -> None:
    bare = table_from_graphs([Graph(num_nodes=3, nodes={"x": np.ones((3, FEATURES), np.float32)})])
    model = gcn().float()
    out = model(assemble(bare, [0]))
    torch.testing.assert_close(out, model.layers[-1].bias.expand(3, CLASSES))
    out.sum().backward()
    assert torch.equal(model.layers[0].weight.grad, torch.zeros(FEATURES, 7))


def test_without_the_column_weight_every_edge_counts_one() -> None:
    batch, model = batch_of(random_graph()), gcn()
    ones = batch.replace(edges={"weight": torch.ones(batch.num_edges, dtype=torch.float64)})
    torch.testing.assert_close(model(batch.replace(edges={})), model(ones))


def test_no_hidden_layer_is_a_linear_model() -> None:
    batch = batch_of(random_graph())
    model = gcn(GCNConfig(hidden=(), dropout=0.0, input_dropout=0.0))
    product = spmm(batch, batch.nodes["x"], batch.edges["weight"])
    (layer,) = model.layers
    torch.testing.assert_close(model(batch), product @ layer.weight + layer.bias)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dropout": 1.0}, r"dropout is 1\.0; it must be in \[0, 1\)"),
        ({"dropout": -0.1}, r"dropout is -0\.1"),
        ({"dropout": float("nan")}, "dropout is nan"),
        ({"input_dropout": 2.0}, r"input_dropout is 2\.0; it must be in \[0, 1\)"),
        ({"hidden": (16, 0)}, r"hidden widths are \(16, 0\); each must be at least 1"),
        ({"hidden": (-3,)}, r"hidden widths are \(-3,\)"),
    ],
)
def test_bad_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GCNConfig(**settings)  # type: ignore[arg-type]


def test_compiled_whole() -> None:
    model = gcn()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for batch in (batch_of(random_graph()), with_first_product(batch_of(random_graph()))):
        torch.testing.assert_close(compiled(batch), model(batch))
        torch.testing.assert_close(
            gradients(model, compiled(batch)), gradients(model, model(batch))
        )


def test_compiled_with_dropout_in_training() -> None:
    batch, model = batch_of(random_graph()), gcn(GCNConfig(hidden=(7,)))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    logits = compiled(batch)
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(g).all() for g in gradients(model, logits))
    assert not torch.equal(compiled(batch), logits)
