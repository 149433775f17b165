"""The gated recurrent unit against torch's own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weft.kernels import gru
from weft.kernels.recurrent import _gru, _gru_backward


def weights(cell):
    return cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 300), st.integers(1, 9), st.integers(1, 9))
def test_states_and_gradients_are_those_of_torch(rows, inputs, width):
    torch.manual_seed(rows)
    cell = nn.GRUCell(inputs, width).double()
    x = torch.randn(rows, inputs, dtype=torch.float64, requires_grad=True)
    h = torch.randn(rows, width, dtype=torch.float64, requires_grad=True)
    slope = torch.randn(rows, width, dtype=torch.float64)
    learned = (x, h, *weights(cell))
    found = gru(x, h, *weights(cell))
    expected = cell(x, h)
    torch.testing.assert_close(found, expected)
    for one, other in zip(
        torch.autograd.grad(found, learned, slope),
        torch.autograd.grad(expected, learned, slope),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_float32_over_the_whole_range_of_the_gates():
    cell = nn.GRUCell(4, 16)
    x, h = torch.randn(2000, 4) * 30, torch.randn(2000, 16) * 10
    x[0], h[1] = 1e30, torch.nan
    with torch.no_grad():
        found = gru(x, h, *weights(cell))
        expected = cell.double()(x.double(), h.double())
    assert found[1].isnan().all()
    expected[1] = found[1] = 0
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_threads_change_no_bit():
    torch.manual_seed(0)
    cell = nn.GRUCell(32, 32)
    x, h = torch.randn(3000, 32, requires_grad=True), torch.randn(3000, 32, requires_grad=True)

    def gradients():
        out = gru(x, h, *weights(cell))
        return out, *torch.autograd.grad(out.square().sum(), (x, h, *weights(cell)))

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
    cell = nn.GRUCell(5, 7)
    x, h = torch.randn(9, 5, requires_grad=True), torch.randn(9, 7)
    (alone,) = torch.autograd.grad(gru(x, h, *weights(cell)).square().sum(), x)
    h.requires_grad_()
    beside, _ = torch.autograd.grad(gru(x, h, *weights(cell)).square().sum(), (x, h))
    assert torch.equal(alone, beside)


def test_another_dtype_takes_the_plain_way():
    cell = nn.GRUCell(5, 7).bfloat16()
    x, h = torch.randn(9, 5, dtype=torch.bfloat16), torch.randn(9, 7, dtype=torch.bfloat16)
    found, expected = gru(x, h, *weights(cell)), cell(x, h)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


def test_the_operator_passes_torchs_checks():
    cell = nn.GRUCell(3, 4)
    x, h = torch.randn(6, 3), torch.randn(6, 4)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(_gru.op, (x, h, *weights(cell)), test_utils=tests)
    out, gates = _gru(x, h, *weights(cell))
    arguments = (x, h, cell.weight_ih, cell.weight_hh, gates, torch.ones_like(out), True)
    torch.library.opcheck(_gru_backward.op, arguments, test_utils=tests)


def test_shapes_that_do_not_fit_are_refused():
    cell = nn.GRUCell(3, 4)
    with pytest.raises(ValueError, match=r"x \[N, I\], h \[N, H\]"):
        gru(torch.randn(6, 4), torch.randn(6, 4), *weights(cell))
    with pytest.raises(ValueError, match=r"biases \[3 H\] needed"):
        gru(torch.randn(6, 3), torch.randn(6, 4), *weights(cell)[:3], torch.zeros(4))
