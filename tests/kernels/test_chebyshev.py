"""Chebyshev series of filters: as right as the network itself, or not used."""

import math

import pytest
import torch

from weft.kernels import radial_filters
from weft.kernels.chebyshev import TERMS, bin_width, in_bins, nodes_of, series_at, series_gradients
from weft.kernels.gaussians import reach

BASIS = {"spacing": 0.1, "sharpness": 10.0}
WIDTH = bin_width(BASIS["sharpness"])


def filter_weights(scale=0.15, *, networks=2, width=6, centres=60):
    torch.manual_seed(0)
    first = torch.randn(networks, width, centres) * scale
    second = torch.randn(networks, width, width) * 3 * scale
    return [first.requires_grad_(), None, second.requires_grad_(), None]


def series_of(d, at_nodes):
    """The values, and the distances in their bins."""
    binned = in_bins(d, WIDTH, len(at_nodes[0]) // TERMS)
    arrays = [part.detach().contiguous().numpy() for part in at_nodes]
    return series_at(binned, arrays, WIDTH), binned


def exact_filters(d, weights):
    """In float64, which never takes the series."""
    double = [w if w is None else w.detach().double().requires_grad_() for w in weights]
    return radial_filters(d.double(), *double, **BASIS, activate=True), double


@pytest.mark.parametrize("ordered", [True, False])
def test_filters_of_many_distances_are_those_of_the_network(ordered):
    d = torch.rand(3000) * 9 + 0.5
    d = d.sort().values if ordered else d
    weights = filter_weights()
    exact, double = exact_filters(d, weights)
    found = radial_filters(d, *weights, **BASIS, activate=True)
    grads = [torch.randn_like(part) for part in found]
    few = [radial_filters(part, *weights, **BASIS, activate=True) for part in d.split(300)]
    for one, other, direct in zip(
        found, exact, map(torch.cat, zip(*few, strict=True)), strict=True
    ):
        worst = (one - other).abs().max()
        assert worst < 2e-6 * other.abs().max()
        # The network itself in float32 is no nearer.
        assert worst < 2 * (direct - other).abs().max()
    learned, references = (
        torch.autograd.grad(filters, [w for w in of if w is not None], slopes)
        for filters, of, slopes in (
            (found, weights, grads),
            (exact, double, [grad.double() for grad in grads]),
        )
    )
    for one, other in zip(learned, references, strict=True):
        assert (one - other).abs().max() < 1e-5 * other.abs().max()


def test_a_network_too_sharp_for_the_series_is_computed_row_by_row():
    d = torch.rand(3000).sort().values * 9 + 0.5
    weights = filter_weights(scale=6.0)
    nodes = nodes_of(67, WIDTH)
    at_nodes = radial_filters(nodes, *weights, **BASIS, activate=True)
    assert series_of(d, at_nodes)[0] is None
    exact, _ = exact_filters(d, weights)
    for one, other in zip(radial_filters(d, *weights, **BASIS, activate=True), exact, strict=True):
        assert (one - other).abs().max() < 1e-5 * other.abs().max()


def test_distances_beyond_all_gaussians_and_none_at_all():
    end = 59 * BASIS["spacing"] + reach(BASIS["sharpness"])
    d = torch.cat([torch.rand(2000) * 5, torch.tensor([0.0, end + 1, 1e30, math.inf])])
    weights = filter_weights()
    exact, _ = exact_filters(d, weights)
    for one, other in zip(radial_filters(d, *weights, **BASIS, activate=True), exact, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=2e-6)
    d[7] = math.nan
    for part in radial_filters(d, *weights, **BASIS, activate=True):
        assert part[7].isnan().all()
        assert part[8:].isfinite().all()


def test_a_series_is_its_polynomial():
    nodes = nodes_of(3, WIDTH)
    assert nodes.shape == (3 * TERMS,)
    values = torch.stack([nodes**3 - nodes, torch.ones_like(nodes), nodes, nodes**2], 1)
    d = torch.linspace(0, 3 * WIDTH, 50)
    (first, second), _ = series_of(d, [values[:, :2], values[:, 2:]])
    torch.testing.assert_close(first, torch.stack([d**3 - d, torch.ones_like(d)], 1))
    torch.testing.assert_close(second, torch.stack([d, d**2], 1))


def test_the_gradient_of_a_series_is_its_transpose():
    nodes = nodes_of(4, WIDTH)
    at_nodes = [torch.stack([nodes**k, 1 - nodes**k], 1) for k in (1, 2, 3)]
    # An empty bin between full ones, and rows out of order.
    d = torch.cat([torch.rand(40) * WIDTH, 3 * WIDTH + torch.rand(40) * WIDTH])[torch.randperm(80)]
    outs, binned = series_of(d, at_nodes)
    slopes = [torch.randn_like(out) for out in outs]
    found = map(torch.from_numpy, series_gradients(binned, slopes, WIDTH))
    for values, out, slope, grad in zip(at_nodes, outs, slopes, found, strict=True):
        along = (out * slope).sum()
        torch.testing.assert_close((grad * values).sum(), along, rtol=1e-4, atol=1e-3)
        assert (grad[TERMS : 3 * TERMS] == 0).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_series_of_what_is_not_finite_does_not_converge(value):
    values = torch.ones(2 * TERMS, 3)
    assert series_of(torch.rand(5) * WIDTH, [values])[0] is not None
    values[TERMS + 1, 1] = value
    assert series_of(torch.rand(5) * WIDTH, [values])[0] is None


def test_filters_by_series_refuse_second_derivatives():
    d, weights = torch.rand(3000) * 9, filter_weights()
    out = sum(radial_filters(d, *weights, **BASIS, activate=True)).square().sum()
    (slope,) = torch.autograd.grad(out, weights[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_values_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"values \[8 B, F\] of 4 bins needed"):
        series_of(torch.rand(3), [torch.randn(4 * TERMS + 1, 5)])


def test_training_after_an_inference_and_in_bfloat16():
    nodes_of.cache_clear()
    d, weights = torch.rand(3000) * 9, filter_weights()
    with torch.inference_mode():
        first = radial_filters(d, *weights, **BASIS, activate=True)
    learned = [w for w in weights if w is not None]
    for rounded in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=rounded):
            found = radial_filters(d, *weights, **BASIS, activate=True)
        assert all(torch.equal(one, other) for one, other in zip(found, first, strict=True))
        assert all(g.isfinite().all() for g in torch.autograd.grad(sum(found).sum(), learned))
