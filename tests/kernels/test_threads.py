"""How many threads share a loop changes no bit of what it gives, forwards or backwards."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from weft.graphs import Graph, assemble, table_from_graphs
from weft.kernels import edge_softplus, gaussian_product, radial_filters, shifted_softplus
from weft.kernels.edge_pairs import pair_spmm
from weft.kernels.painn_message import painn_message
from weft.kernels.painn_mixing import invariants, update

BASIS = {"spacing": 0.1, "sharpness": 10.0}


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def complete_graphs(count, size):
    receivers, senders = np.nonzero(~np.eye(size, dtype=bool))
    graphs = [Graph(num_nodes=size, senders=senders, receivers=receivers)] * count
    return assemble(table_from_graphs(graphs, metadata={"symmetric": True}), range(count))


def results(function, shapes):
    """What `function` gives, and the gradients in its arguments, of one thread and of more."""
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        random = torch.Generator().manual_seed(0)
        given = [torch.randn(*shape, generator=random).requires_grad_() for shape in shapes]
        outs = function(*given)
        outs = list(outs) if isinstance(outs, tuple | list) else [outs]
        grads = [torch.randn(out.shape, generator=random) for out in outs]
        found.append([*outs, *torch.autograd.grad(outs, given, grads)])
    return found


def assert_threads_change_nothing(function, *shapes):
    one, *more = results(function, shapes)
    for other in more:
        assert [torch.equal(a, b) for a, b in zip(one, other, strict=True)] == [True] * len(one)


@pytest.mark.parametrize("pairs", [1335, 6639])
@pytest.mark.parametrize("ordered", [False, True])
def test_filters(pairs, ordered):
    d = torch.rand(pairs, generator=torch.Generator().manual_seed(1)) * 12
    d = d.sort().values if ordered else d

    def filters(first, first_bias, second, second_bias):
        return radial_filters(d, first, first_bias, second, second_bias, **BASIS, activate=True)

    assert_threads_change_nothing(filters, (3, 16, 150), (3, 16), (3, 16, 16), (3, 16))
    assert_threads_change_nothing(lambda w: gaussian_product(d, w, **BASIS), (150, 32))


def test_messages():
    batch = complete_graphs(20, 13)
    nodes, edges, pairs = batch.num_nodes, batch.num_edges, len(batch.pairs["forward"])
    views = (batch.in_offsets, batch.out_offsets, batch.out_order)

    def spmm(x, weight):
        topology = (batch.receivers, batch.senders, batch.in_offsets, None, *views[1:])
        return pair_spmm(x, weight, *topology, *batch.pairs.values())

    def states(a, b, c):
        return edge_softplus(a, b, c, batch.senders, batch.receivers, *views, *batch.pairs.values())

    def painn(x, mu, filters, direction):
        return painn_message(batch, x, mu, filters, direction)

    assert_threads_change_nothing(spmm, (nodes, 64), (pairs, 64))
    assert_threads_change_nothing(states, (nodes, 64), (nodes, 64), (pairs, 64))
    assert_threads_change_nothing(painn, (nodes, 192), (nodes, 3, 64), (pairs, 192), (edges, 3))


def test_atoms():
    rows, width = 700, 64
    vectors = (rows, 3, width)
    assert_threads_change_nothing(shifted_softplus, (rows, width))
    assert_threads_change_nothing(
        lambda mixed, q: invariants(mixed, q, 1e-8), (rows, 3, 2 * width), (rows, width)
    )
    shapes = ((rows, width), vectors, (rows, 3 * width), (rows, width), vectors)
    assert_threads_change_nothing(lambda *given: update(*given), *shapes)
