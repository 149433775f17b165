"""PaiNN's operators against plain torch on every edge, to second derivatives."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from weft.graphs import Budget, Graph, GraphBatch, assemble, table_from_graphs
from weft.kernels import painn_message as module
from weft.kernels import plain_torch
from weft.kernels.edge_pairs import BatchEdges, Pairs
from weft.kernels.painn_message import painn_message
from weft.kernels.painn_mixing import invariants, update


def batch_of(
    nodes: int, chance: float, *, seed: int = 0, pairs: bool = True, padding: int = 0
) -> GraphBatch:
    """Random edges; with `pairs` symmetric, else each way by itself."""
    rng = np.random.default_rng(seed)
    near = rng.random((nodes, nodes)) < chance
    near = (near | near.T) & ~np.eye(nodes, dtype=bool) if pairs else near
    receivers, senders = near.nonzero()
    table = table_from_graphs([Graph(num_nodes=nodes, senders=senders, receivers=receivers)])
    table = dataclasses.replace(table, metadata={**table.metadata, "symmetric": pairs})
    budget = Budget(nodes=nodes + padding, edges=len(senders) + 3 * padding, graphs=2)
    return assemble(table, [0], budget if padding else None)


def inputs_of(
    batch: GraphBatch, width: int, *, vectors: bool = True, dtype: torch.dtype = torch.float64
) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(width)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype, requires_grad=True)

    nodes, edges = batch.num_nodes, batch.num_edges
    rows = len(batch.pairs["forward"]) if batch.pairs else edges
    parts = 3 if vectors else 2
    return [
        randn(nodes, parts * width),
        randn(nodes, 3, width) if vectors else None,
        randn(rows, parts * width),
        randn(edges, 3),
    ]


def by_edge(
    batch: GraphBatch, x: Tensor, mu: Tensor | None, filters: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor]:
    """The definition, one edge at a time."""
    nodes, width = x.shape[0], x.shape[1] // (2 if mu is None else 3)
    q = [x.new_zeros(width) for _ in range(nodes)]
    v = [x.new_zeros(3, width) for _ in range(nodes)]
    of_edge = batch.pairs["of_edge"].tolist() if batch.pairs else list(range(batch.num_edges))
    for e in range(int(batch.edge_mask.sum())):
        s, r = int(batch.senders[e]), int(batch.receivers[e])
        w, xs = filters[of_edge[e]].split(width), x[s].split(width)
        q[r] = q[r] + w[0] * xs[0]
        v[r] = v[r] + (w[1] * xs[1])[None] * direction[e][:, None]
        if mu is not None:
            v[r] = v[r] + (w[2] * xs[2])[None] * mu[s]
    return torch.stack(q), torch.stack(v)


@settings(deadline=None, max_examples=25)
@given(
    nodes=st.integers(1, 7),
    chance=st.sampled_from([0.3, 0.9]),
    pairs=st.booleans(),
    vectors=st.booleans(),
    padding=st.sampled_from([0, 1, 3]),
    width=st.sampled_from([1, 3, 8]),
    seed=st.integers(0, 99),
)
def test_message_and_gradients_equal_a_loop_over_edges(
    nodes: int, chance: float, pairs: bool, vectors: bool, padding: int, width: int, seed: int
) -> None:
    batch = batch_of(nodes, chance, seed=seed, pairs=pairs, padding=padding)
    inputs = inputs_of(batch, width, vectors=vectors)
    got, want = painn_message(batch, *inputs), by_edge(batch, *inputs)
    torch.testing.assert_close(got, want)
    if not batch.edge_mask.any():
        return
    weights = [torch.randn_like(part) for part in want]
    learning = [t for t in inputs if t is not None]
    grads = [
        torch.autograd.grad(
            sum((a * b).sum() for a, b in zip(out, weights, strict=True)),
            learning,
            allow_unused=True,
            materialize_grads=True,
        )
        for out in (got, want)
    ]
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("vectors", [True, False])
def test_first_and_second_derivatives(pairs: bool, vectors: bool) -> None:
    batch = batch_of(4, 0.6, pairs=pairs, padding=1)
    inputs = inputs_of(batch, 2, vectors=vectors)

    def message(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        given = iter(tensors)
        return painn_message(batch, *(t if t is None else next(given) for t in inputs))

    learning = tuple(t for t in inputs if t is not None)
    assert torch.autograd.gradcheck(message, learning)
    assert torch.autograd.gradgradcheck(message, learning)


def test_second_derivatives_where_directions_are_fixed() -> None:
    batch = batch_of(4, 0.6)
    *inputs, direction = inputs_of(batch, 2)
    fixed = direction.detach()
    assert torch.autograd.gradgradcheck(lambda *t: painn_message(batch, *t, fixed), tuple(inputs))


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize(
    ("index", "dtype"),
    [
        (torch.int32, torch.float32),
        (torch.int32, torch.float64),
        (torch.int64, torch.float32),
    ],
)
def test_compiled_loops_equal_plain_torch(
    pairs: bool, index: torch.dtype, dtype: torch.dtype
) -> None:
    # Large enough that the work is shared between threads; more features than a tile has, or fewer.
    batch = batch_of(120, 0.4, pairs=pairs, padding=5)
    width = 300 if pairs else 33
    x, mu, filters, direction = (t.detach() for t in inputs_of(batch, width, dtype=dtype))
    edges = BatchEdges(*(t.to(index) for t in BatchEdges.of(batch)))
    paired = Pairs(*(t.to(index) for t in batch.pairs.values())) if pairs else None
    flat = (*edges, *(paired or (None,) * 3))
    given = module.MessageInputs(x, mu, filters, direction, batch.edge_mask)
    out = module._message(*given, *flat)
    plain = plain_torch.painn_message(given, edges, paired)
    torch.testing.assert_close(out, plain, rtol=1e-4, atol=1e-4)
    grads = [torch.randn_like(part) for part in out]
    got = module._message_backward(*grads, *given, *flat, True)
    expected = plain_torch.painn_message_backward(*grads, given, edges, paired, True)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_threads_do_not_change_a_bit() -> None:
    batch = batch_of(120, 0.4)
    inputs = inputs_of(batch, 32, dtype=torch.float32)

    def results() -> list[Tensor]:
        out = painn_message(batch, *inputs)
        return [*out, *torch.autograd.grad(out[0].sum() + out[1].sum(), inputs)]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = results()
        torch.set_num_threads(3)
        together = results()
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_torch_checks_the_operators() -> None:
    batch = batch_of(5, 0.5, padding=1)
    inputs = inputs_of(batch, 4)
    topology = (batch.edge_mask, *BatchEdges.of(batch), *batch.pairs.values())
    torch.library.opcheck(module._message.op, (*inputs, *topology))
    torch.library.opcheck(invariants.op, (*mixing_inputs()[:2], 1e-8))
    torch.library.opcheck(update.op, tuple(mixing_inputs()[1:]))


def test_shapes_that_do_not_fit_are_named() -> None:
    batch = batch_of(5, 0.5)
    x, mu, filters, direction = inputs_of(batch, 4)
    with pytest.raises(ValueError, match=r"filters must fit.*\[5, 12\]"):
        painn_message(batch, x, mu, filters[:1], direction)
    with pytest.raises(ValueError, match=r"mu must be \[5, 3, 4\]"):
        painn_message(batch, x, mu[:, :, :2], filters, direction)
    with pytest.raises(ValueError, match="directions must be"):
        painn_message(batch, x, mu, filters, direction[1:])


def mixing_inputs(rows: int = 4, width: int = 3) -> list[Tensor]:
    """mixed, q, mu, mixes, dot, right."""
    generator = torch.Generator().manual_seed(rows)
    shapes = (
        (rows, 3, 2 * width),
        (rows, width),
        (rows, 3, width),
        (rows, 3 * width),
        (rows, width),
        (rows, 3, width),
    )
    return [
        torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in shapes
    ]


@pytest.mark.parametrize("rows", [0, 4])
def test_mixing_equals_its_definition(rows: int) -> None:
    mixed, q, mu, mixes, dot, right = mixing_inputs(rows)
    left, other = mixed.chunk(2, dim=2)
    context, product, copy = invariants(mixed, q, 1e-8)
    torch.testing.assert_close(context, torch.cat([q, (left.norm(dim=1) ** 2 + 1e-8) ** 0.5], 1))
    torch.testing.assert_close(product, (left * other).sum(1))
    torch.testing.assert_close(copy, other)
    a, b, c = mixes.chunk(3, dim=1)
    new_q, new_mu = update(q, mu, mixes, dot, right)
    torch.testing.assert_close(new_q, q + a + c * dot)
    torch.testing.assert_close(new_mu, mu + b[:, None] * right)


def test_mixing_derivatives() -> None:
    mixed, q, mu, mixes, dot, right = mixing_inputs(3, 2)

    def both(mixed: Tensor, q: Tensor, mu: Tensor, mixes: Tensor) -> tuple[Tensor, Tensor]:
        context, dot, right = invariants(mixed, q, 1e-3)
        return update(context[:, 2:], mu, mixes * q.sum(), dot, right)

    for function, inputs in (
        (lambda mixed, q: invariants(mixed, q, 1e-3), (mixed, q)),
        (update, (q, mu, mixes, dot, right)),
        (both, (mixed, q, mu, mixes)),
    ):
        assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(function, inputs)
