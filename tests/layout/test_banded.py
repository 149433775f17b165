"""BandedAdjacency against one message an edge, its policies, and what a tracer sees of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from typed_graphs import (
    assert_as_coo,
    banded,
    coo,
    edge_lists,
    parameters,
    typed_graph,
    with_gradients,
)

from weft.errors import DataError
from weft.graphs import Budget, Graph, assemble, table_from_graphs
from weft.layout import BandedAdjacency, TypedEdges, band_statistics, reorder

NONE = np.zeros(0, np.int64)


def path_edges(nodes: int, reach: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every node to the one `reach` after it, of types 0 and 1 by turns."""
    senders = np.arange(nodes - reach)
    return senders, senders + reach, senders % 2


@settings(deadline=None, max_examples=60)
@given(edge_lists(), st.integers(1, 30), st.booleans())
def test_the_product_and_its_gradients(drawn, block, bias):
    nodes, types, edges = drawn
    adjacency = banded(*edges, nodes, types, block=block, outside="spill")
    assert (adjacency.spill is None) == (adjacency.outside == 0)
    assert_as_coo(adjacency, edges, nodes, types, bias=bias)


@settings(deadline=None, max_examples=60)
@given(edge_lists(), st.integers(1, 30))
def test_no_edge_is_lost_uncounted(drawn, block):
    nodes, types, edges = drawn
    distinct = len(np.unique(np.stack(edges), axis=1).T)
    kept = banded(*edges, nodes, types, block=block, outside="spill")
    inside = sum(int(part.sum()) for part in (kept.C, kept.U, kept.L))
    spilled = 0 if kept.spill is None else kept.spill.num_edges
    assert (kept.inside, kept.outside) == (inside, spilled)
    assert inside + spilled == distinct
    dropped = banded(*edges, nodes, types, block=block, outside="drop")
    assert (dropped.inside, dropped.outside) == (kept.inside, kept.outside)
    assert int(dropped.deg.sum()) == dropped.inside


@settings(deadline=None, max_examples=40)
@given(edge_lists(), st.integers(1, 6))
def test_dropped_edges_bring_nothing(drawn, block):
    nodes, types, edges = drawn
    near = np.abs(edges[0] // block - edges[1] // block) <= 1
    adjacency = banded(*edges, nodes, types, block=block, outside="drop")
    assert_as_coo(adjacency, tuple(part[near] for part in edges), nodes, types)


@pytest.mark.parametrize(
    ("nodes", "reach", "block"),
    [
        (12, 3, 12),  # K = 1, S = N
        (12, 3, 20),  # a block larger than the graph
        (12, 0, 4),  # B = 0: self-loops
        (12, 4, 4),  # B = S
        (13, 4, 4),  # a last block with one node
        (12, 1, 1),
        (1, 0, 1),
    ],
)
def test_bands_that_fit(nodes, reach, block):
    edges = path_edges(nodes, reach)
    adjacency = banded(*edges, nodes, 3, block=block)
    blocks = -(-nodes // block)
    assert adjacency.C.shape == (blocks, block, 3, block)
    assert adjacency.U.shape == adjacency.L.shape == (blocks - 1, block, 3, block)
    assert adjacency.C.dtype == torch.int8
    assert adjacency.deg.shape == (nodes, 3)
    assert (adjacency.inside, adjacency.outside) == (nodes - reach, 0)
    assert (adjacency.num_nodes, adjacency.block) == (nodes, block)
    assert_as_coo(adjacency, edges, nodes, 3)


def test_a_band_one_wider_than_the_block():
    # From the end of a block over a whole one.
    edges = path_edges(12, 5)
    with pytest.raises(DataError, match=r"from node 3 to node 8 joins nodes 5 apart"):
        banded(*edges, 12, 2, block=4)
    assert banded(*edges, 12, 2, block=4, outside="drop").outside == 1
    assert banded(*edges, 12, 2, block=5).outside == 0


@pytest.mark.parametrize("nodes", [0, 7])
def test_no_edges(nodes):
    adjacency = banded(NONE, NONE, NONE, nodes, 2, block=4)
    assert_as_coo(adjacency, (NONE, NONE, NONE), nodes, 2)


def test_duplicates_count_once():
    edges = np.array([0, 0, 1, 1]), np.array([1, 1, 1, 1]), np.array([0, 0, 1, 1])
    adjacency = banded(*edges, 2, 2, block=2)
    assert adjacency.inside == 2
    assert adjacency.deg.tolist() == [[0, 0], [1, 1]]
    assert_as_coo(adjacency, edges, 2, 2)


def test_a_hub_says_that_no_order_helps():
    star = Graph(num_nodes=41, senders=np.zeros(40, int), receivers=np.arange(1, 41))
    table = reorder(table_from_graphs([star] * 2))
    batch = assemble(table, [0, 1])
    message = (
        r"graph \d of the batch: the edge from node \d+ to node \d+ joins nodes \d+ apart, which "
        r"is outside the blocks of 8 .*no order of nodes helps, as node \d+ has 40 neighbours; or "
        r"take block=\d+, .*outside='spill', .*outside='drop'"
    )
    with pytest.raises(DataError, match=message):
        BandedAdjacency.of_batch(batch, 1, 8)
    spilled = BandedAdjacency.of_batch(batch, 1, 8, "spill")
    edges = batch.senders.numpy(), batch.receivers.numpy(), np.zeros(80, int)
    assert_as_coo(spilled, edges, 82, 1)


def test_the_remedy_of_the_message_helps():
    edges = np.array([0, 2, 9]), np.array([11, 3, 1]), np.zeros(3, int)
    with pytest.raises(DataError, match=r"\(2 of 3 edges are\): .*'rcm'.* block=11"):
        banded(*edges, 12, 1, block=2)
    assert banded(*edges, 12, 1, block=11).outside == 0


def grid(side: int) -> Graph:
    """A square of nodes, each joined with the one to its right and the one below."""
    nodes = np.arange(side * side).reshape(side, side)
    senders = np.concatenate([nodes[:, :-1].ravel(), nodes[:-1].ravel()])
    receivers = np.concatenate([nodes[:, 1:].ravel(), nodes[1:].ravel()])
    shuffled = np.random.default_rng(0).permutation(side * side)
    return Graph(num_nodes=side**2, senders=shuffled[senders], receivers=shuffled[receivers])


def test_an_order_is_recommended_only_where_it_helps():
    table = table_from_graphs([grid(3), grid(8)])
    ordered = reorder(table, "rcm")
    # No order of a square has a smaller band than its side.
    (width,) = {int(band_statistics(t).bandwidth[1]) for t in (ordered, reorder(ordered, "rcm"))}
    assert width >= 8
    message = rf"graph 1 of the batch: .*reorder\(table, 'rcm'\) brings them within {width} nodes;"
    with pytest.raises(DataError, match=message):
        BandedAdjacency.of_batch(assemble(table, [0, 1]), 1, width)
    assert BandedAdjacency.of_batch(assemble(ordered, [0, 1]), 1, width).outside == 0
    for data in (table, ordered):
        with pytest.raises(
            DataError, match=rf"Cuthill-McKee order, too, .* {width} apart"
        ) as error:
            BandedAdjacency.of_batch(assemble(data, [0, 1]), 1, 4)
        assert "reorder(" not in str(error.value)
        assert "form 'csr'" in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 0}, r"block is 0"),
        ({"block": 2, "outside": "keep"}, r"'keep'; choose from raise, drop, spill"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        banded(NONE, NONE, NONE, 4, 1, **options)


def test_wrong_shapes_are_refused():
    adjacency = banded(*path_edges(12, 3), 12, 2, block=4)
    h, weight = torch.zeros(12, 4), torch.zeros(2, 4, 4)
    for wrong in ((h[:11], weight), (h, weight[:1]), (h[:, :3], weight)):
        with pytest.raises(ValueError, match=r"h \[12, H\] and weight \[2, H, O\] needed"):
            adjacency.propagate(*wrong)


@pytest.mark.parametrize("block", [8, 16, 40])
def test_a_graph_does_not_see_its_neighbours(block):
    sizes = (9, 20, 5, 13)
    table = table_from_graphs([typed_graph(n, 3 * n, reach=7, seed=n) for n in sizes])
    values = {n: [x.detach() for x in parameters(n, 3)] for n in sizes}
    weight, bias = values[9][1:]
    alone = {}
    for i, n in enumerate(sizes):
        adjacency = BandedAdjacency.of_batch(assemble(table, [i]), 3, block)
        alone[n] = adjacency.propagate(values[n][0], weight, bias)
    for order, budget in (
        ([0, 1, 2, 3], None),
        ([3, 1, 0, 2], None),
        ([2, 0, 3, 1], Budget(nodes=64, edges=200, graphs=8)),
        ([1, 3], Budget(nodes=80, edges=300, graphs=3)),
    ):
        batch = assemble(table, order, budget)
        h = torch.cat([values[sizes[i]][0] for i in order])
        # What stands in the padding must not matter either.
        h = torch.cat([h, torch.full((batch.num_nodes - len(h), 3), 1e3, dtype=h.dtype)])
        found = BandedAdjacency.of_batch(batch, 3, block).propagate(h, weight, bias)
        expected = torch.cat([alone[sizes[i]] for i in order])
        torch.testing.assert_close(found[: len(expected)], expected, rtol=1e-12, atol=1e-12)
        assert not found[len(expected) :].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrower_numbers(dtype):
    edges = path_edges(50, 4)
    adjacency = banded(*edges, 50, 2, block=8)
    given_ = [x.detach().to(dtype).requires_grad_() for x in parameters(50, 2)]
    found = with_gradients(adjacency.propagate(*given_), given_)
    wide = [x.detach().double().requires_grad_() for x in given_]
    expected = with_gradients(coo(edges, *wide), wide)
    for actual, wanted in zip(found, expected, strict=True):
        assert actual.dtype == dtype
        error = (actual.double() - wanted).abs().max() / wanted.abs().max()
        assert error < {torch.float32: 1e-6, torch.bfloat16: 0.03}[dtype]


def test_blocks_are_cast_once():
    adjacency = banded(*path_edges(12, 3), 12, 2, block=4)
    given_ = [x.detach() for x in parameters(12, 2)]
    adjacency.propagate(*given_)
    (first,) = adjacency._casts.values()
    adjacency.propagate(*given_)
    assert adjacency._cast(torch.float64)[0] is first[0]
    adjacency.propagate(*(x.float() for x in given_))
    assert [cast[0].dtype for cast in adjacency._casts.values()] == [torch.float64, torch.float32]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = adjacency.propagate(*(x.float() for x in given_))
        assert torch.bfloat16 in adjacency._casts
        wide = adjacency.propagate(*given_)
    assert (out.dtype, wide.dtype) == (torch.bfloat16, torch.float64)


def test_another_device_holds_every_tensor():
    edges = np.array([0, 5]), np.array([1, 0]), np.zeros(2, int)
    adjacency = banded(*edges, 6, 1, block=2, outside="spill")
    moved = adjacency.to("meta")
    assert all(part.is_meta for part in (moved.C, moved.U, moved.L, moved.deg))
    assert moved.spill.out_rows.is_meta
    assert (moved.inside, moved.outside) == (1, 1)
    assert not adjacency.C.is_meta


class Gated(nn.Module):
    """T steps of messages and a GRU in plain arithmetic."""

    def __init__(self, hidden: int, types: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.weight = nn.Parameter(torch.randn(types, hidden, hidden) / 4)
        self.bias = nn.Parameter(torch.randn(types, hidden))
        self.gates = nn.Linear(2 * hidden, 2 * hidden)
        self.state = nn.Linear(2 * hidden, hidden)

    def forward(self, h: Tensor, adjacency: BandedAdjacency | TypedEdges) -> Tensor:
        for _ in range(self.steps):
            x = adjacency.propagate(h, self.weight, self.bias)
            reset, update = self.gates(torch.cat([x, h], dim=1)).sigmoid().chunk(2, dim=1)
            new = self.state(torch.cat([x, reset * h], dim=1)).tanh()
            h = update * h + (1 - update) * new
        return h


def indexing(name: str) -> bool:
    words = ("gather", "scatter", "index", "embedding", "sparse", "csr", "take", "nonzero", "weft")
    return any(word in name for word in words)


# torch's own warning about itself.
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.parametrize(("nodes", "block"), [(64, 16), (60, 16), (16, 16)])
def test_an_exported_model_has_static_shapes_and_no_index(nodes, block):
    edges = path_edges(nodes, 7)
    adjacency = banded(*edges, nodes, 2, block=block)
    model, h = Gated(8, 2, 3), torch.randn(nodes, 8)
    exported = torch.export.export(model, (h, adjacency)).run_decompositions()
    calls = [node for node in exported.graph.nodes if node.op == "call_function"]
    names = sorted({str(node.target) for node in calls})
    assert not [name for name in names if indexing(name)]
    assert any("bmm" in name for name in names)
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        for tensor in value if isinstance(value, (list, tuple)) else [value]:
            if isinstance(tensor, Tensor):
                assert all(type(length) is int for length in tensor.shape)
    sparse = TypedEdges.of(*edges, nodes, 2)
    found = exported.module()(h, adjacency)
    torch.testing.assert_close(found, model(h, sparse), rtol=1e-4, atol=1e-5)


def test_the_search_for_indices_finds_them():
    edges = np.array([0, 7]), np.array([1, 0]), np.zeros(2, int)
    adjacency = banded(*edges, 8, 1, block=2, outside="spill")
    spill = adjacency.spill

    class Spilling(nn.Module):
        def forward(self, h: Tensor, weight: Tensor) -> Tensor:
            return spill.propagate(h, weight)

    exported = torch.export.export(Spilling(), (torch.randn(8, 3), torch.randn(1, 3, 3)))
    assert any(indexing(str(node.target)) for node in exported.graph.nodes)


@pytest.mark.parametrize("outside", ["drop", "spill"])
def test_the_counts_go_with_the_parts(outside):
    edges = np.array([0, 7]), np.array([1, 0]), np.zeros(2, int)
    adjacency = banded(*edges, 8, 1, block=2, outside=outside)
    parts, spec = tree_flatten(adjacency)
    again = tree_unflatten(parts, spec)
    assert (again.inside, again.outside, again.spill) == (1, 1, adjacency.spill)
    assert all(
        torch.equal(getattr(again, n), getattr(adjacency, n)) for n in ("C", "U", "L", "deg")
    )
    # Another with other counts has the same shape to an exported program; one without spill not.
    other = banded(*(end[:1] for end in edges), 8, 1, block=2)
    assert (tree_flatten(other)[1] == spec) == (outside == "drop")


def test_batches_of_one_size_are_compiled_once():
    model = Gated(8, 2, 2)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    h = torch.randn(64, 8)
    for reach in (3, 5, 7):
        edges = path_edges(64, reach)
        with torch._dynamo.config.patch(error_on_recompile=reach > 3):
            found = compiled(h, banded(*edges, 64, 2, block=16))
        expected = model(h, TypedEdges.of(*edges, 64, 2))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
