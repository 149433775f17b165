"""The sparse linear layer's operators against the masked dense product."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from weft.kernels.sparse_input_linear import sparse_input_linear
from weft.kernels.sparse_linear import (
    Link,
    dense_weight,
    parts_of,
    pattern_of,
    sparse_chain,
    sparse_linear,
)


def make_layer(
    outputs: int, inputs: int, density: float, seed: int = 0, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mask, values, bias and pattern."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(outputs, inputs, generator=generator) < density
    index = mask.flatten().nonzero()[:, 0]
    values = torch.randn(len(index), generator=generator, dtype=dtype, requires_grad=True)
    bias = torch.randn(outputs, generator=generator, dtype=dtype, requires_grad=True)
    return mask, values, bias, pattern_of(index, outputs, inputs)


@pytest.fixture(params=[False, True], ids=["linear", "relu"])
def relu(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_pattern_tells_rows_and_columns() -> None:
    mask = torch.tensor([[0, 1, 0], [0, 0, 0], [1, 1, 0], [0, 1, 0]], dtype=torch.bool)
    parts = parts_of(pattern_of(mask.flatten().nonzero()[:, 0], 4, 3), 4, 3)
    assert parts.columns.tolist() == [1, 0, 1, 1]
    assert parts.offsets.tolist() == [0, 1, 1, 3, 4]
    assert parts.rows.tolist() == [2, 0, 2, 3]
    assert parts.column_offsets.tolist() == [0, 1, 4, 4]
    assert parts.order.tolist() == [1, 0, 2, 3]
    assert parts.positions.tolist() == [1, 6, 7, 10]


@settings(deadline=None, max_examples=40)
@given(
    samples=st.integers(0, 140),
    inputs=st.integers(1, 40),
    outputs=st.integers(1, 40),
    density=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    by_feature=st.booleans(),
    relu=st.booleans(),
    single=st.booleans(),
)
def test_equals_masked_dense(
    samples: int,
    inputs: int,
    outputs: int,
    density: float,
    by_feature: bool,
    relu: bool,
    single: bool,
) -> None:
    dtype = torch.float32 if single else torch.float64
    mask, values, bias, pattern = make_layer(outputs, inputs, density, dtype=dtype)
    x = torch.randn(samples, inputs, dtype=dtype)
    if by_feature:
        x = x.t().contiguous().t()
    x.requires_grad_()
    y = sparse_linear(x, values, bias, pattern, outputs, relu)
    assert y.shape == (samples, outputs)
    weight = torch.zeros(outputs, inputs, dtype=dtype)
    weight[mask] = values.detach()
    weight.requires_grad_()
    x2, bias2 = (t.detach().clone().requires_grad_() for t in (x, bias))
    expected = functional.linear(x2, weight, bias2)
    expected = expected.relu() if relu else expected
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    grad = torch.randn(samples, outputs, dtype=dtype)
    y.backward(grad)
    expected.backward(grad)
    assert weight.grad is not None
    for got, wanted in ((x, x2.grad), (values, weight.grad[mask]), (bias, bias2.grad)):
        torch.testing.assert_close(got.grad, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("samples", [3, 32, 70])
def test_gradients_are_exact(samples: int, relu: bool) -> None:
    _, values, bias, pattern = make_layer(7, 9, 0.4)
    x = torch.randn(samples, 9, dtype=torch.float64, requires_grad=True)

    def layer(*arguments: Tensor) -> Tensor:
        return sparse_linear(*arguments, pattern, 7, relu)

    assert torch.autograd.gradcheck(layer, (x, values, bias))


def test_gradient_has_a_gradient(relu: bool) -> None:
    _, values, bias, pattern = make_layer(4, 5, 0.5)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)

    def layer(*arguments: Tensor) -> Tensor:
        return sparse_linear(*arguments, pattern, 4, relu)

    assert torch.autograd.gradgradcheck(layer, (x, values, bias))


def test_without_bias_and_without_gradient_in_the_input() -> None:
    _, values, _, pattern = make_layer(6, 5, 0.5)
    x = torch.randn(40, 5, dtype=torch.float64)
    sparse_linear(x, values, None, pattern, 6).square().sum().backward()
    got = values.grad
    values.grad = None
    (x @ dense_weight(values, pattern, 6, 5).T).square().sum().backward()
    torch.testing.assert_close(got, values.grad)


def test_output_is_stored_by_feature() -> None:
    _, values, bias, pattern = make_layer(6, 5, 0.5)
    y = sparse_linear(torch.randn(40, 5, dtype=torch.float64), values, bias, pattern, 6)
    assert y.stride() == (1, 40)


def test_threads_change_no_bit() -> None:
    _, values, bias, pattern = make_layer(300, 200, 0.1, dtype=torch.float32)
    x = torch.randn(700, 200, requires_grad=True)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            y = sparse_linear(x, values, bias, pattern, 300)
            results.append((y, *torch.autograd.grad(y.square().sum(), (x, values, bias))))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def make_chain(
    widths: list[int],
    density: float,
    dtype: torch.dtype = torch.float64,
    *,
    last_relu: bool = False,
) -> list[Link]:
    links = []
    for number, (inputs, outputs) in enumerate(pairwise(widths)):
        _, values, bias, pattern = make_layer(outputs, inputs, density, number, dtype)
        last = number == len(widths) - 2
        # The second layer has no bias.
        given = None if number == 1 else bias
        links.append(Link(values, given, pattern, outputs, last_relu or not last))
    return links


def dense_chain(x: Tensor, links: list[Link]) -> Tensor:
    for link in links:
        weight = dense_weight(link.values, link.pattern, link.outputs, x.shape[1])
        x = functional.linear(x, weight, link.bias)
        x = x.relu() if link.relu else x
    return x


def learned_of(links: list[Link]) -> list[Tensor]:
    return [t for link in links for t in (link.values, link.bias) if t is not None]


@settings(deadline=None, max_examples=40)
@given(
    samples=st.sampled_from([0, 1, 2, 15, 16, 17, 49, 64, 130, 700]),
    widths=st.lists(st.integers(1, 40), min_size=2, max_size=5),
    density=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    by_feature=st.booleans(),
    last_relu=st.booleans(),
    single=st.booleans(),
)
def test_a_chain_equals_masked_dense_layers(
    samples: int,
    widths: list[int],
    density: float,
    by_feature: bool,
    last_relu: bool,
    single: bool,
) -> None:
    dtype = torch.float32 if single else torch.float64
    links = make_chain(widths, density, dtype, last_relu=last_relu)
    x = torch.randn(samples, widths[0], dtype=dtype)
    if by_feature:
        x = x.t().contiguous().t()
    x.requires_grad_()
    y, expected = sparse_chain(x, links), dense_chain(x, links)
    assert y.is_contiguous()
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(sparse_chain(x, links), y, rtol=1e-4, atol=1e-4)
    # Where the two differ by rounding, a relu may pass on one and not the other.
    if not single:
        given, grad = [x, *learned_of(links)], torch.randn_like(y)
        found = torch.autograd.grad(y, given, grad)
        wanted = torch.autograd.grad(expected, given, grad)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("samples", [3, 70])
def test_gradients_of_a_chain_are_exact(samples: int, relu: bool) -> None:
    links = make_chain([5, 7, 6, 3], 0.5, last_relu=relu)
    x = torch.randn(samples, 5, dtype=torch.float64, requires_grad=True)

    def chain(x: Tensor, *learned: Tensor) -> Tensor:
        first, bias, second, third, other = learned
        given = [(first, bias), (second, None), (third, other)]
        own = [link._replace(values=v, bias=b) for link, (v, b) in zip(links, given, strict=True)]
        return sparse_chain(x, own)

    assert torch.autograd.gradcheck(chain, (x, *learned_of(links)))
    if samples == 3:
        assert torch.autograd.gradgradcheck(chain, (x, *learned_of(links)))


@pytest.mark.parametrize("samples", [1, 12, 700])
def test_threads_change_no_bit_of_a_chain(samples: int) -> None:
    links = make_chain([200, 300, 250, 10], 0.5, torch.float32)
    x = torch.randn(samples, 200, requires_grad=True)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            y = sparse_chain(x, links)
            with torch.no_grad():
                other = sparse_chain(x, links)
            given = (x, *learned_of(links))
            results.append((y, other, *torch.autograd.grad(y.square().sum(), given)))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_a_chain_that_does_not_fit_is_refused() -> None:
    links = make_chain([5, 7, 6], 0.5)
    x = torch.randn(4, 5, dtype=torch.float64)
    for wrong in (
        [links[1]],
        [links[0], links[0]],
        [links[0], links[1]._replace(values=links[1].values[1:])],
        [links[0], links[1]._replace(pattern=links[1].pattern + 1)],
    ):
        with pytest.raises(ValueError, match="the shapes are"):
            sparse_chain(x, wrong)


def test_what_is_not_a_number_is_not_hidden() -> None:
    _, values, bias, pattern = make_layer(3, 2, 1.0)
    x = torch.full((70, 2), torch.nan, dtype=torch.float64)
    assert sparse_linear(x, values, bias, pattern, 3, True).isnan().all()


def test_other_dtypes_take_torchs_way() -> None:
    _, values, bias, pattern = make_layer(6, 5, 0.5)
    x = torch.randn(4, 5)
    y = sparse_linear(x.bfloat16(), values.bfloat16(), bias.bfloat16(), pattern, 6, True)
    assert y.dtype == torch.bfloat16
    exact = sparse_linear(x, values.float(), bias.float(), pattern, 6, True)
    torch.testing.assert_close(y.float(), exact, rtol=0.1, atol=0.1)


def test_operators_are_right_for_the_tracer(relu: bool) -> None:
    _, values, bias, pattern = make_layer(6, 5, 0.5)
    x = torch.randn(40, 5, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(torch.ops.weft.sparse_linear, (x, values, bias, pattern, 6, relu))


@pytest.mark.parametrize("index", [[2, 1], [1, 1], [-1, 3], [3, 20]])
def test_pattern_refuses_positions_outside_or_unordered(index: list[int]) -> None:
    with pytest.raises(ValueError, match="positions must ascend from 0 to below 4 x 5"):
        pattern_of(torch.tensor(index), 4, 5)


def test_shapes_that_do_not_fit_are_refused() -> None:
    _, values, bias, pattern = make_layer(6, 5, 0.5)
    x = torch.randn(4, 5, dtype=torch.float64)
    for arguments in (
        (x[:, :4], values, bias, pattern, 6),
        (x, values[1:], bias, pattern, 6),
        (x, values, bias[1:], pattern, 6),
        (x, values, bias, pattern, 5),
    ):
        with pytest.raises(ValueError, match="the shapes are"):
            sparse_linear(*arguments)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("samples", [0, 1, 50])
def test_sparse_input_equals_dense(samples: int) -> None:
    _, values, bias, pattern = make_layer(7, 9, 0.4)
    x = torch.randn(samples, 9, dtype=torch.float64)
    x[torch.rand_like(x) < 0.7] = 0
    x_csr = x.to_sparse_csr()
    y = sparse_input_linear(x_csr, values, bias, pattern, 7)
    torch.testing.assert_close(y, x @ dense_weight(values, pattern, 7, 9).T + bias)
    if samples:
        assert torch.autograd.gradcheck(
            lambda v, b: sparse_input_linear(x_csr, v, b, pattern, 7), (values, bias)
        )
    no_bias = sparse_input_linear(x_csr, values, None, pattern, 7)
    torch.testing.assert_close(no_bias + bias, y)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_sparse_input_has_no_gradient() -> None:
    _, values, bias, pattern = make_layer(7, 9, 0.4)
    x = torch.eye(9, dtype=torch.float64).to_sparse_csr().requires_grad_()
    with pytest.raises(ValueError, match=r"give x\.to_dense"):
        sparse_input_linear(x, values, bias, pattern, 7)
