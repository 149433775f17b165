"""Gaussians, softplus and filter networks against plain torch, in float64 and float32."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from weft.kernels import (
    gaussian_basis,
    gaussian_product,
    radial_filters,
    shifted_softplus,
)

quick = settings(deadline=None, max_examples=30)
BASIS = {"spacing": 0.1, "sharpness": 10.0}


def reference_softplus(x):
    return functional.softplus(x.double(), threshold=100) - math.log(2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shifted_softplus_over_the_whole_range(dtype):
    x = torch.cat([torch.linspace(-120, 120, 40_001), torch.tensor([0.0, 1e-8, -1e-8])]).to(dtype)
    bound = 4e-7 if dtype == torch.float32 else 1e-15
    close = torch.maximum(reference_softplus(x).abs(), torch.tensor(1.0)) * bound
    assert ((shifted_softplus(x) - reference_softplus(x)).abs() <= close).all()


def test_shifted_softplus_keeps_infinity_and_nan():
    x = torch.tensor([math.inf, -math.inf, math.nan])
    y = shifted_softplus(x)
    assert y[0] == math.inf
    assert y[1] == pytest.approx(-math.log(2))
    assert y[2].isnan()


def test_shifted_softplus_gradients():
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(shifted_softplus, x)
    assert torch.autograd.gradgradcheck(shifted_softplus, x)
    x = (torch.randn(1000) * 6).requires_grad_()
    shifted_softplus(x).sum().backward()
    assert (x.grad - torch.sigmoid(x.detach().double())).abs().max() < 3e-7


def test_shifted_softplus_of_a_transposed_and_of_an_empty_tensor():
    x = torch.randn(4, 6).t()
    torch.testing.assert_close(shifted_softplus(x), reference_softplus(x).float())
    assert shifted_softplus(torch.empty(0, 3)).shape == (0, 3)


@quick
@given(st.integers(0, 700), st.integers(1, 30), st.booleans(), st.floats(0.5, 30))
def test_gaussian_product_is_the_dense_product(rows, centres, ordered, far):
    d = torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(rows)) * far
    d = d.sort().values if ordered else d
    weight = torch.randn(centres, 7, dtype=torch.float64, requires_grad=True)
    out = gaussian_product(d, weight, **BASIS)
    expected = gaussian_basis(d, centres, **BASIS) @ weight
    assert (out - expected).abs().max() < 1e-12 if rows else out.shape == (0, 7)
    grad = torch.randn_like(out)
    (found,) = torch.autograd.grad(out, weight, grad)
    torch.testing.assert_close(found, gaussian_basis(d, centres, **BASIS).t() @ grad)


def test_gaussian_product_learns_from_distances_and_twice_from_weights():
    d = (torch.rand(6, dtype=torch.float64) * 2).requires_grad_()
    weight = torch.randn(12, 3, dtype=torch.float64, requires_grad=True)

    def product(d, weight):
        return gaussian_product(d, weight, **BASIS)

    assert torch.autograd.gradcheck(product, (d, weight))
    assert torch.autograd.gradcheck(product, (d.detach(), weight))
    assert torch.autograd.gradgradcheck(product, (d.detach(), weight))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_distance_that_is_no_number_stays_none(dtype):
    d = torch.tensor([1.0, math.nan, 2.0, 1e30], dtype=dtype)
    out = gaussian_product(d, torch.ones(40, 3, dtype=dtype), **BASIS)
    assert out[1].isnan().all()
    assert (out[3] == 0).all()
    assert out[[0, 2]].isfinite().all()


def test_a_basis_that_cannot_be_is_refused():
    d, weight = torch.rand(4), torch.ones(40, 3)
    for wrong in ({"spacing": 0.0}, {"sharpness": 0.0}):
        with pytest.raises(ValueError, match="make no basis"):
            gaussian_product(d, weight, **{**BASIS, **wrong})
    with pytest.raises(ValueError, match="0 centres"):
        gaussian_product(d, weight[:0], **BASIS)
    with pytest.raises(ValueError, match=r"d \[P\] and weight"):
        gaussian_product(d[None], weight, **BASIS)


def filter_arguments(*, bias, pairs=40, networks=3, width=5, centres=20):
    torch.manual_seed(0)

    def of(*shape):
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    d = torch.rand(pairs, dtype=torch.float64) * 3
    first_bias, second_bias = (of(networks, width), of(networks, width)) if bias else (None, None)
    weights = of(networks, width, centres), first_bias, of(networks, width, width), second_bias
    return d, *weights


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activate", [False, True])
def test_radial_filters_are_the_network_layer_by_layer(bias, activate):
    d, *weights = filter_arguments(bias=bias)
    fast = radial_filters(d, *weights, **BASIS, activate=activate)
    # Distances that learn take the way through plain layers.
    plain = radial_filters(d.clone().requires_grad_(), *weights, **BASIS, activate=activate)
    learned = [w for w in weights if w is not None]
    grads = [torch.randn_like(part) for part in fast]
    torch.testing.assert_close(fast, plain)
    for one, other in zip(
        torch.autograd.grad(fast, learned, grads),
        torch.autograd.grad(plain, learned, grads),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_a_filter_that_is_not_used_gets_no_gradient():
    d, *weights = filter_arguments(bias=False)
    filters = radial_filters(d, *weights, **BASIS, activate=True)
    filters[1].sum().backward()
    second = weights[2].grad
    assert second[1].abs().sum() > 0
    assert second[0].abs().sum() == second[2].abs().sum() == 0


def test_one_bias_of_two_is_refused():
    d, first, first_bias, second, _ = filter_arguments(bias=True)
    with pytest.raises(ValueError, match="both layers have a bias, or neither"):
        radial_filters(d, first, first_bias, second, None, **BASIS, activate=True)


def test_filters_of_other_shapes_are_refused():
    d, first, first_bias, second, second_bias = filter_arguments(bias=True)
    for wrong in (
        (first[:-1], first_bias, second, second_bias),
        (first, first_bias[:-1], second, second_bias),
        (first, first_bias, second[:, :-1], second_bias),
        (first, first_bias, second, second_bias[:-1]),
    ):
        with pytest.raises(ValueError, match=r"second \[L, F, F\] needed"):
            radial_filters(d, *wrong, **BASIS, activate=True)
