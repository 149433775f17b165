"""The layer of a constant fan-in against the dense one, in value and gradients."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from weft.kernels.fan_in_linear import MOST_SAMPLES, fan_in_linear
from weft.sparsify import FanInLinear, SparseLinear


def layer_of(outputs, inputs, count, seed=0):
    """Values [K], columns [K], and the dense weight."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(outputs, inputs, generator=generator).argsort(1)[:, :count]
    columns = places.sort(1).values.int().flatten()
    values = torch.randn(outputs * count, generator=generator, dtype=torch.float64)
    return values.requires_grad_(), columns


def dense(values, columns, outputs, inputs):
    rows = torch.arange(outputs).repeat_interleave(len(columns) // outputs)
    return values.new_zeros(outputs, inputs).index_put((rows, columns.long()), values)


@given(
    st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.integers(0, MOST_SAMPLES + 1),
    st.booleans(), st.booleans(), st.booleans(), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_values_and_gradients(outputs, inputs, count, samples, relu, has_bias, turned, seed):
    values, columns = layer_of(outputs, inputs, min(count, inputs), seed)
    torch.manual_seed(seed)
    x = torch.randn(samples, inputs, dtype=torch.float64)
    x = (x.t().contiguous().t() if turned else x).requires_grad_()
    bias = torch.randn(outputs, dtype=torch.float64, requires_grad=True) if has_bias else None
    found = fan_in_linear(x, values, bias, columns, outputs, relu)
    expected = functional.linear(x, dense(values, columns, outputs, inputs), bias)
    expected = expected.relu() if relu else expected
    torch.testing.assert_close(found, expected)
    given_gradient = torch.randn_like(expected)
    learning = [t for t in (x, values, bias) if t is not None]
    for mine, theirs in zip(
        torch.autograd.grad(found, learning, given_gradient),
        torch.autograd.grad(expected, learning, given_gradient),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


def test_threads_change_no_bit_and_gradients_have_gradients():
    values, columns = layer_of(6, 8, 3)
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(6, dtype=torch.float64, requires_grad=True)

    def layer(*given):
        return fan_in_linear(*given, columns, 6)

    assert torch.autograd.gradcheck(layer, (x, values, bias))
    assert torch.autograd.gradgradcheck(layer, (x, values, bias))
    values, columns = layer_of(1022, 500, 60)
    values = values.detach().float().requires_grad_()
    x = torch.randn(9, 500, requires_grad=True)
    made = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            out = fan_in_linear(x, values, None, columns, 1022, True)
            made.append((out, *torch.autograd.grad(out.square().sum(), (x, values))))
    finally:
        torch.set_num_threads(before)
    assert all(map(torch.equal, *made))


def test_no_number_reaches_the_loops_unchecked():
    values, columns = layer_of(4, 5, 2)
    x = torch.randn(2, 5, dtype=torch.float64)
    with pytest.raises(ValueError, match="the index at position 0 is"):
        fan_in_linear(x, values, None, columns + 4, 4)
    with pytest.raises(ValueError, match="values and columns of 3 outputs"):
        fan_in_linear(x, values, None, columns, 3)
    with pytest.raises(ValueError, match="int32 columns needed"):
        fan_in_linear(x, values, None, columns.long(), 4)


@pytest.mark.parametrize("samples", [1, 5, 20])
def test_a_layer_gives_what_a_sparse_one_does(samples):
    torch.manual_seed(0)
    linear = torch.nn.Linear(12, 7, dtype=torch.float64)
    mask = torch.rand(7, 12).argsort(1) < 4
    ours = FanInLinear.from_dense(linear, mask, relu=True)
    theirs = SparseLinear.from_dense(linear, mask, relu=True)
    x = torch.randn(samples, 12, dtype=torch.float64)
    torch.testing.assert_close(ours(x), theirs(x))
    for layer in (ours, theirs):
        layer.topology(mask.roll(1, 1))
    torch.testing.assert_close(ours(x), theirs(x))
    # Without gradients the weights are made ready once, and a step of an optimizer is seen.
    with torch.no_grad():
        for layer in (ours, theirs):
            layer.values += 1
        torch.testing.assert_close(ours(x), theirs(x))
        for layer in (ours, theirs):
            layer.values.data = layer.values + 1
        torch.testing.assert_close(ours(x), theirs(x))
        torch.testing.assert_close(ours.float()(x.float()), theirs.float()(x.float()))
        torch.testing.assert_close(copy.deepcopy(ours)(x.float()), theirs(x.float()))
    ours, theirs = ours.double(), theirs.double()
    # No longer as many inputs of each output.
    other = mask.flatten()[torch.arange(84).roll(5)].view(7, 12)
    for layer in (ours, theirs):
        layer.topology(other)
    torch.testing.assert_close(ours(x), theirs(x))
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))
