"""Chains of sparse layers for a few samples, without gradients, against dense ones."""

from __future__ import annotations

import copy
from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from weft.kernels.backends import use_backend
from weft.kernels.online import MOST_INPUTS, OnlineChain, can_be_online
from weft.kernels.online_loops import MOST_SAMPLES
from weft.kernels.sparse_linear import Link
from weft.sparsify import FanInLinear
from weft.sparsify.sparse_layers import FusingSequential, SparseLinear, to_dense


def chain_of(
    widths: list[int], density: float, relus: list[bool], seed: int, dtype: torch.dtype
) -> FusingSequential:
    """Sparse layers, some of whose outputs have no input, each with a relu or none."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(pairwise(widths)):
        active = torch.rand(outputs, inputs) < density
        bias, relu = number % 2 == 0, relus[number % len(relus)]
        layers.append(SparseLinear(inputs, outputs, active, bias=bias, relu=relu, dtype=dtype))
    return FusingSequential(*layers)


def without_gradients(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(x)
    return out


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=4), st.floats(0, 1),
    st.lists(st.booleans(), min_size=1, max_size=3), st.integers(0, MOST_SAMPLES + 1),
    st.booleans(), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_chain_equals_dense_layers(
    widths: list[int], density: float, relus: list[bool], samples: int, turned: bool, seed: int
) -> None:
    model = chain_of(widths, density, relus, seed, torch.float64)
    x = torch.randn(samples, widths[0], dtype=torch.float64)
    x = x.t().contiguous().t() if turned else x
    found, expected = without_gradients(model, x), without_gradients(to_dense(model), x)
    torch.testing.assert_close(found, expected)
    assert found.shape == (samples, widths[-1])
    # With gradients it goes another way.
    torch.testing.assert_close(found, model(x).detach())


@pytest.mark.parametrize("samples", [1, 2, 3, 5, 16])
def test_threads_change_no_bit(samples: int) -> None:
    model = chain_of([700, 900, 10], 0.3, [True], 0, torch.float32)
    x, before = torch.randn(samples, 700), torch.get_num_threads()
    made = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            made.append(without_gradients(model, x))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*made)
    torch.testing.assert_close(made[0], without_gradients(to_dense(model), x))


@pytest.mark.parametrize("samples", [1, 4])
def test_changes_of_the_layers_are_seen(samples: int) -> None:
    model = chain_of([12, 9, 4], 0.4, [True], 0, torch.float32)
    x = torch.randn(samples, 12)

    def check() -> None:
        torch.testing.assert_close(
            without_gradients(model, x), without_gradients(to_dense(model), x)
        )

    check()
    first, second = model
    assert isinstance(first, SparseLinear)
    assert isinstance(second, SparseLinear)
    assert first._ready[0] is not None
    with torch.no_grad():
        first.values += 1
    check()
    second.values.data = second.values.detach() - 2
    check()
    first.topology(first.active_mask().flip(1))
    check()
    second.relu = True
    check()
    second.relu = False
    check()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].values.zero_()
    check()
    second.bias = nn.Parameter(torch.randn(4))
    check()
    model.double()
    x = x.double()
    check()
    # A layer by itself, and then as a part of the chain again.
    torch.testing.assert_close(
        without_gradients(first, x), without_gradients(to_dense(FusingSequential(first)), x)
    )
    check()


def test_layers_of_a_constant_fan_in_are_a_chain_without_gradients() -> None:
    masks = [torch.arange(12) % 3 == 0, torch.arange(8) % 4 == 0]
    shapes = [(8, 12), (4, 8)]
    dense = [nn.Linear(inputs, outputs) for outputs, inputs in shapes]
    layers = [
        FanInLinear.from_dense(linear, mask.expand(*shape), relu=True)
        for linear, mask, shape in zip(dense, masks, shapes, strict=True)
    ]
    model, x = FusingSequential(*layers), torch.randn(3, 12)
    with patch.object(
        OnlineChain, "__init__", autospec=True, side_effect=OnlineChain.__init__
    ) as made:
        found = without_gradients(model, x)
    assert made.call_count == 1
    torch.testing.assert_close(found, without_gradients(to_dense(model), x))
    torch.testing.assert_close(found, model(x).detach())


def test_what_is_not_a_number_stays_where_it_is() -> None:
    active = torch.tensor([[True, False], [False, True], [False, False]])
    layer = SparseLinear(2, 3, active, relu=True)
    for samples in (1, 3):
        x = torch.full((samples, 2), 2.0)
        x[:, 0] = float("nan")
        out = without_gradients(layer, x)
        assert out[:, 0].isnan().all()
        assert out[:, 1:].isfinite().all()


def test_other_tensors_and_settings_go_another_way() -> None:
    layer = SparseLinear(3, 2, 4)
    x = torch.randn(2, 3)
    expected = layer(x).detach()
    with patch.object(OnlineChain, "__init__", side_effect=AssertionError):
        with use_backend("plain"):
            torch.testing.assert_close(without_gradients(layer, x), expected)
        torch.testing.assert_close(without_gradients(layer, x[None]), expected[None])
        many = x.repeat(MOST_SAMPLES, 1)
        torch.testing.assert_close(without_gradients(layer, many), expected.repeat(MOST_SAMPLES, 1))
    with pytest.raises(ValueError, match=r"values \[K\]|x \[\.\.\., 3\]"):
        without_gradients(layer, torch.randn(2, 4))
    assert without_gradients(SparseLinear(3, 2, 4, dtype=torch.bfloat16), x.bfloat16()).shape == (
        2,
        2,
    )


def test_only_what_the_loop_can_read_is_taken() -> None:
    layer = SparseLinear(3, 2, 4)
    link = Link(layer.values, layer.bias, layer.pattern, 2, False)
    assert can_be_online([link], 3)
    assert not can_be_online([link._replace(pattern=layer.pattern.long())], 3)
    assert not can_be_online([link._replace(bias=torch.zeros(2).double())], 3)
    assert not can_be_online([link._replace(values=torch.zeros(8)[::2])], 3)
    assert not can_be_online([link], MOST_INPUTS + 1)
    with pytest.raises(ValueError, match="needed"):
        OnlineChain([link], 4)
    with pytest.raises(ValueError, match="pattern"):
        OnlineChain([link._replace(pattern=layer.pattern + 1)], 3)
