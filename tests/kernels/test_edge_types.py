"""Typed messages: the operators' own checks; what they compute is tested with weft.layout."""

import numpy as np
import pytest
import torch

from weft.kernels.edge_types import _typed, _typed_backward
from weft.layout import TypedEdges


def edges(*, nodes=40, count=150, types=4, aggregate=None):
    rng = np.random.default_rng(0)
    ends = rng.integers(0, nodes, (2, count))
    return TypedEdges.of(*ends, rng.integers(0, types, count), nodes, types, aggregate=aggregate)


def flat(adjacency):
    return (
        adjacency.into_offsets,
        adjacency.into_nodes,
        adjacency.into_t_offsets,
        adjacency.into_t_rows,
        adjacency.out_offsets,
        adjacency.out_rows,
        adjacency.out_t_offsets,
        adjacency.out_t_nodes,
        adjacency.counts,
        adjacency.chunk_types,
        adjacency.chunk_starts,
    )


@pytest.mark.parametrize("aggregate", [True, False])
def test_the_operators_pass_torchs_checks(aggregate):
    plan = flat(edges(aggregate=aggregate))
    h, weight, bias = torch.randn(40, 6), torch.randn(4, 6, 5), torch.randn(4, 5)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(_typed.op, (h, weight, bias, *plan), test_utils=tests)
    grad = torch.randn(40, 5)
    for wanted in (True, False):
        given = (grad, h, weight, bias, *plan, wanted)
        torch.library.opcheck(_typed_backward.op, given, test_utils=tests)


@pytest.mark.parametrize("aggregate", [True, False])
def test_threads_change_no_bit(aggregate):
    adjacency = edges(nodes=3000, count=20_000, aggregate=aggregate)
    given = [torch.randn(*s, requires_grad=True) for s in ((3000, 32), (4, 32, 32), (4, 32))]

    def gradients():
        out = adjacency.propagate(*given)
        return out, *torch.autograd.grad(out.square().sum(), given)

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = gradients()
        torch.set_num_threads(2)
        shared = gradients()
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(alone, shared, strict=True))


def test_a_gradient_that_nobody_wants_is_left_out():
    adjacency = edges()
    h, weight = torch.randn(40, 6), torch.randn(4, 6, 5, requires_grad=True)
    (alone,) = torch.autograd.grad(adjacency.propagate(h, weight).square().sum(), weight)
    h.requires_grad_()
    (beside, _) = torch.autograd.grad(adjacency.propagate(h, weight).square().sum(), (weight, h))
    assert torch.equal(alone, beside)


def test_a_chunk_without_rows_has_no_gradient():
    adjacency = edges()
    *rows, types, starts = flat(adjacency)
    plan = (*rows, torch.cat([types, types[-1:]]), torch.cat([starts, starts[-1:]]))
    h, weight, bias = torch.randn(40, 6), torch.randn(4, 6, 5), torch.randn(4, 5)
    grad = torch.randn(40, 5)
    expected = _typed_backward(grad, h, weight, bias, *flat(adjacency), True)
    for _ in range(3):
        # Freed memory that another tensor of the same size may be given.
        torch.full((5, 6, 5), torch.nan)
        found = _typed_backward(grad, h, weight, bias, *plan, True)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_bfloat16_takes_the_plain_way():
    adjacency = edges()
    given = [torch.randn(*shape) for shape in ((40, 6), (4, 6, 5), (4, 5))]
    expected = adjacency.propagate(*given)
    found = adjacency.propagate(*(t.bfloat16() for t in given))
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).abs().max() < 0.05 * expected.abs().max()


def test_shapes_that_do_not_fit_are_refused():
    adjacency = edges()
    with pytest.raises(ValueError, match="one row per node"):
        adjacency.propagate(torch.randn(39, 6), torch.randn(4, 6, 5))
    with pytest.raises(ValueError, match=r"weight \[P, H, O\]"):
        adjacency.propagate(torch.randn(40, 6), torch.randn(4, 5, 5))
    for types in (3, 5):
        with pytest.raises(ValueError, match=r"weight \[4, H, O\] needed"):
            adjacency.propagate(torch.randn(40, 6), torch.randn(types, 6, 5))
    with pytest.raises(ValueError, match="an edge of type 3"):
        _typed(torch.randn(40, 6), torch.randn(3, 6, 5), None, *flat(adjacency))
    with pytest.raises(ValueError, match=r"bias must be \[P, O\]"):
        adjacency.propagate(torch.randn(40, 6), torch.randn(4, 6, 5), torch.randn(5, 5))
