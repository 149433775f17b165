"""Chebyshev series of filters: as right as the network itself, or not used."""

import math

import pytest
import torch

from weft.kernels import radial_filters
from weft.kernels.gaussians import reach
from weft.kernels.series import (
    TERMS,
    _series_backward,
    _transform,
    bin_width,
    is_smooth,
    nodes_of,
    series_at,
    series_of,
)

BASIS = {"spacing": 0.1, "sharpness": 10.0}
WIDTH = bin_width(BASIS["sharpness"])


def filter_weights(scale=0.15, *, networks=2, width=6, centres=60):
    torch.manual_seed(0)
    first = torch.randn(networks * width, centres) * scale
    second = torch.randn(networks, width, width) * 3 * scale
    return [first.requires_grad_(), None, second.requires_grad_(), None]


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
    values = torch.cat(radial_filters(nodes, *weights, **BASIS, activate=True), 1)
    assert not is_smooth(series_of(values))
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
    first, second = series_at(d, series_of(values), 2, WIDTH)
    torch.testing.assert_close(first, torch.stack([d**3 - d, torch.ones_like(d)], 1))
    torch.testing.assert_close(second, torch.stack([d, d**2], 1))


def test_the_gradient_of_a_series_is_its_transpose():
    terms = torch.randn(4, TERMS, 6, requires_grad=True)
    # An empty bin between full ones, and rows out of order.
    d = torch.cat([torch.rand(40) * WIDTH, 3 * WIDTH + torch.rand(40) * WIDTH])[torch.randperm(80)]
    outs = series_at(d, terms, 3, WIDTH)
    slopes = [torch.randn_like(out) for out in outs]
    (found,) = torch.autograd.grad(outs, terms, slopes)
    direction = torch.randn_like(terms)
    moved = series_at(d, direction, 3, WIDTH)
    along = sum((a * b).sum() for a, b in zip(moved, slopes, strict=True))
    torch.testing.assert_close((found * direction).sum(), along, rtol=1e-4, atol=1e-3)
    assert (found[1:3] == 0).all()


def test_series_pass_the_checks_of_operators():
    d = torch.rand(30).sort().values
    terms = torch.randn(math.ceil(1 / WIDTH), TERMS, 4, requires_grad=True)
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(series_at.op, (d, terms, 2, WIDTH), test_utils=tests)
    grads = [torch.randn(30, 2), torch.randn(30, 2)]
    torch.library.opcheck(_series_backward.op, (d, grads, len(terms), WIDTH), test_utils=tests)


def test_terms_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"terms \[B, 8, 2 F\] needed"):
        series_at(torch.rand(3), torch.randn(4, TERMS, 5), 2, WIDTH)


def test_training_after_an_inference_and_in_bfloat16():
    nodes_of.cache_clear()
    _transform.cache_clear()
    d, weights = torch.rand(3000) * 9, filter_weights()
    with torch.inference_mode():
        first = radial_filters(d, *weights, **BASIS, activate=True)
    learned = [w for w in weights if w is not None]
    for rounded in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=rounded):
            found = radial_filters(d, *weights, **BASIS, activate=True)
        assert all(torch.equal(one, other) for one, other in zip(found, first, strict=True))
        assert all(g.isfinite().all() for g in torch.autograd.grad(sum(found).sum(), learned))
