"""A whole interaction against itself layer by layer, in plain torch."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.nn import functional

from weft.graphs import Budget, Graph, assemble, table_from_graphs
from weft.kernels.custom_op import is_fusable
from weft.kernels.edge_pairs import EdgePairs, Pairs
from weft.kernels.schnet_interaction import interaction
from weft.kernels.segment_ops import Matrix


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def batch_of(*, symmetric=True, edges=True, padded=False, graphs=3, size=7):
    random = np.random.default_rng(0)
    near = random.random((size, size)) < 0.5
    # The last node has no edges.
    near[-1] = near[:, -1] = False
    near = (near | near.T if symmetric else near) & ~np.eye(size, dtype=bool) & edges
    receivers, senders = near.nonzero()
    graph = Graph(num_nodes=size, senders=senders, receivers=receivers)
    table = table_from_graphs([graph] * graphs, metadata={"symmetric": symmetric})
    budget = Budget(nodes=graphs * size + 5, edges=graphs * len(senders) + 4, graphs=graphs + 1)
    return assemble(table, range(graphs), budget=budget if padded else None)


def edge_pairs(*tensors):
    return EdgePairs(Matrix(*tensors[:6]), Pairs(*tensors[6:]))


def pairs_of(batch):
    alone = torch.arange(batch.num_edges, dtype=batch.senders.dtype)
    halves = tuple(batch.pairs.values()) if batch.pairs else (alone, alone, alone)
    edges = (batch.receivers, batch.senders, batch.in_offsets, None)
    return edge_pairs(*edges, batch.out_offsets, batch.out_order, *halves)


def arguments(pairs, *, bias=True, hidden=6, filters=5, dtype=torch.float64):
    random = torch.Generator().manual_seed(0)

    def of(*shape):
        return torch.randn(*shape, generator=random, dtype=dtype).requires_grad_()

    layers = (of(filters, hidden), of(hidden, filters), of(hidden) if bias else None)
    layers = (*layers, of(hidden, hidden), of(hidden) if bias else None)
    return of(pairs.nodes, hidden), of(pairs.count, filters), *layers


def plain(h, weight, message, update, update_bias, out, out_bias, pairs, mean=True):
    rows, columns, *_, of_edge = (t if t is None else t.long() for t in pairs.tensors)
    messages = functional.linear(h, message)[columns] * weight[of_edge]
    sums = messages.new_zeros(pairs.nodes, messages.shape[1]).index_add(0, rows, messages)
    if mean:
        sums = sums / torch.bincount(rows, minlength=pairs.nodes).clamp(min=1)[:, None]
    inner = functional.softplus(functional.linear(sums, update, update_bias)) - math.log(2)
    return h + functional.linear(inner, out, out_bias)


def assert_is_plain(given, pairs, mean=True):
    learned = [t for t in given if t is not None and t.requires_grad]
    found, expected = interaction(*given, pairs, mean=mean), plain(*given, pairs, mean)
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad(found, learned, grad),
        torch.autograd.grad(expected, learned, grad),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_interaction_is_its_layers(bias, mean, symmetric, padded):
    batch = batch_of(symmetric=symmetric, padded=padded)
    assert bool(batch.pairs) == symmetric
    pairs = pairs_of(batch)
    assert_is_plain(arguments(pairs, bias=bias), pairs, mean)


def test_more_nodes_than_blocks_in_a_chunk():
    # Over 16 · 64 nodes: a chunk then is several blocks.
    pairs = pairs_of(batch_of(graphs=200))
    assert pairs.nodes > 1024
    assert_is_plain(arguments(pairs), pairs)


@pytest.mark.parametrize("graphs", [0, 2])
def test_no_edges_and_no_nodes(graphs):
    pairs = pairs_of(batch_of(edges=False, graphs=max(graphs, 1)))
    if not graphs:
        none = torch.zeros(0, dtype=torch.int32)
        start = torch.zeros(1, dtype=torch.int32)
        pairs = edge_pairs(none, none, start, None, start, none, none, none, none)
    assert pairs.count == 0
    assert_is_plain(arguments(pairs), pairs)


def test_a_single_node():
    start = torch.zeros(2, dtype=torch.int32)
    none = torch.zeros(0, dtype=torch.int32)
    pairs = edge_pairs(none, none, start, None, start, none, none, none, none)
    assert_is_plain(arguments(pairs), pairs)


def test_views_that_are_not_contiguous():
    pairs = pairs_of(batch_of())
    turned = [
        t if t is None or t.ndim == 1 else t.detach().t().contiguous().t().requires_grad_()
        for t in arguments(pairs)
    ]
    assert not turned[0].is_contiguous()
    assert_is_plain(turned, pairs)
    # As the gradient of a sum is.
    expected = torch.autograd.grad(plain(*turned, pairs).sum(), turned[:2])
    found = torch.autograd.grad(interaction(*turned, pairs, mean=True).sum(), turned[:2])
    torch.testing.assert_close(found, expected)


def test_filters_that_learn_nothing():
    pairs = pairs_of(batch_of())
    h, weight, *others = arguments(pairs)
    assert_is_plain((h, weight.detach(), *others), pairs)


@pytest.mark.parametrize("bias", [False, True])
def test_second_derivatives(bias):
    pairs = pairs_of(batch_of(graphs=1, size=4))
    given = arguments(pairs, bias=bias, hidden=3, filters=2)
    places = [k for k, t in enumerate(given) if t is not None and t.requires_grad]

    def of_learned(*learned):
        filled = dict(zip(places, learned, strict=True))
        return interaction(*(filled.get(k, t) for k, t in enumerate(given)), pairs, mean=True)

    learned = [given[k] for k in places]
    assert torch.autograd.gradcheck(of_learned, learned)
    assert torch.autograd.gradgradcheck(of_learned, learned)


def test_second_derivatives_where_one_argument_is_made_of_another():
    pairs = pairs_of(batch_of())
    h, *others = arguments(pairs)

    def slope(function):
        made = h * others[2].mean()
        out = function(made, *others, pairs, mean=True)
        (first,) = torch.autograd.grad(out.square().mean(), others[2], create_graph=True)
        return torch.autograd.grad(first.square().mean(), [h, others[2]])

    torch.testing.assert_close(slope(interaction), slope(plain), rtol=1e-5, atol=1e-7)


def test_threads_change_nothing():
    pairs = pairs_of(batch_of(graphs=300))
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        given = arguments(pairs, hidden=32, filters=24, dtype=torch.float32)
        out = interaction(*given, pairs, mean=True)
        learned = [t for t in given if t.requires_grad]
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
        found.append([out, *torch.autograd.grad(out, learned, grad)])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_wrong_shapes_are_refused():
    pairs = pairs_of(batch_of())
    given = list(arguments(pairs))
    for place, message in enumerate(["needed"] * 4 + ["biases", "needed", "biases"]):
        wrong = list(given)
        wrong[place] = given[place][:-1]
        with pytest.raises(ValueError, match=message):
            interaction(*wrong, pairs, mean=True)
    given[4] = None
    with pytest.raises(ValueError, match="both layers have a bias, or neither"):
        interaction(*given, pairs, mean=True)


def test_edges_that_do_not_fit_are_refused():
    tensors = list(pairs_of(batch_of()).tensors)
    for place, message in ((0, "every edge has a pair"), (5, "CSR offsets"), (7, "two edges")):
        wrong = list(tensors)
        wrong[place] = tensors[place][:-1]
        with pytest.raises(ValueError, match=message):
            edge_pairs(*wrong)


def test_what_the_operator_takes():
    pairs = pairs_of(batch_of())
    given = arguments(pairs)
    assert is_fusable(*given)
    assert not is_fusable(given[0].float(), *given[1:])
    assert not is_fusable(*(t.to(torch.bfloat16) for t in given))
    assert not is_fusable(*(t.to("meta") for t in given))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not is_fusable(*given)
