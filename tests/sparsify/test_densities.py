"""Densities of layers: the published vectors, budgets, and settings that make no network."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import fnn
from torch.optim import SGD

from weft.sparsify import (
    ADMM,
    SLR,
    UGS,
    DropAndGrow,
    GradualPruning,
    erk,
    layer_nnz,
    lottery_ticket,
    nnz_of,
    uniform,
)
from weft.sparsify.densities import _kept_shares


def layers(*widths):
    pairs = pairwise(widths)
    return {str(i): (narrow, wide) for i, (wide, narrow) in enumerate(pairs)}


@pytest.mark.parametrize(
    ("widths", "density", "expected"),
    [
        ((16, 128, 1), 0.09375, (0.05254, 0.75309)),
        ((64, 256, 128, 10), 0.09375, (0.10967, 0.06580, 0.60539)),
        ((1433, 16, 7), 0.1, (0.09892, 0.32143)),
    ],
)
def test_erk_gives_the_published_densities(widths, density, expected):
    found = erk(layers(*widths), density)
    assert tuple(found.values()) == pytest.approx(expected, abs=5e-6)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=6),
    st.floats(0, 1),
)
def test_erk_keeps_the_budget_and_the_order_of_layers(shapes, density):
    named = {str(i): shape for i, shape in enumerate(shapes)}
    found = erk(named, density)
    sizes = {name: math.prod(shape) for name, shape in named.items()}
    assert all(-1e-12 <= value <= 1 for value in found.values())
    kept = sum(found[name] * sizes[name] for name in named)
    assert kept == pytest.approx(density * sum(sizes.values()), rel=1e-9, abs=1e-9)
    for a in named:
        for b in named:
            if sum(named[a]) / sizes[a] < sum(named[b]) / sizes[b]:
                assert found[a] <= found[b] + 1e-12


def test_several_layers_become_dense_one_after_the_other():
    # The third goes above 1 only when ε is solved again without the first two.
    shapes = {"a": (1, 50), "b": (2, 40), "c": (5, 8), "d": (300, 300)}
    found = erk(shapes, 0.03)
    assert found["a"] == found["b"] == found["c"] == 1.0
    total = sum(found[name] * math.prod(shape) for name, shape in shapes.items())
    assert total == pytest.approx(0.03 * sum(map(math.prod, shapes.values())))


@pytest.mark.parametrize("rule", [uniform, erk])
def test_overrides_are_taken_out_of_the_budget(rule):
    shapes = layers(64, 256, 128, 10)
    found = rule(shapes, 0.1, {"2": 1.0})
    assert found["2"] == 1.0
    assert {name: found[name] for name in "01"} == rule(layers(64, 256, 128), 0.1)


def test_an_exact_name_goes_before_a_pattern_and_the_first_pattern_before_others():
    shapes = {"in.weight": (4, 4), "mid.weight": (4, 4), "out.weight": (4, 4)}
    found = uniform(shapes, 0.5, {"*.weight": 0.25, "mid*": 0.75, "out.weight": 1.0})
    assert found == {"in.weight": 0.25, "mid.weight": 0.25, "out.weight": 1.0}


@pytest.mark.parametrize(("density", "overrides"), [(-0.1, {}), (1.1, {}), (0.5, {"0": 2.0})])
def test_a_density_out_of_range_is_refused(density, overrides):
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        erk(layers(4, 4, 4), density, overrides)


def test_an_override_that_matches_nothing_is_refused_with_what_there_is():
    with pytest.raises(ValueError, match=r"override 'conv\*' matches no weight; there are 0, 1"):
        uniform(layers(4, 4, 4), 0.5, {"conv*": 0.5})


def test_counts_are_rounded():
    assert [nnz_of(0.09375, size) for size in (2048, 128, 10)] == [192, 12, 1]
    assert layer_nnz({"a": (3, 5)}, {"a": 0.5}) == {"a": 8}


def test_a_layer_that_would_be_empty_is_refused_by_name_or_keeps_one_weight():
    shapes = {"wide": (100, 100), "out": (1, 4)}
    with pytest.raises(ValueError, match="leaves none of the 4 weights of out"):
        layer_nnz(shapes, uniform(shapes, 0.05))
    assert layer_nnz(shapes, uniform(shapes, 0.05), keep_one=True) == {"wide": 500, "out": 1}


@pytest.mark.parametrize("sparsity", [-0.1, 1.5, math.nan])
def test_a_sparsity_out_of_range_is_refused(sparsity):
    with pytest.raises(ValueError, match=f"sparsity is {sparsity}"):
        _kept_shares(sparsity, None)
    with pytest.raises(ValueError, match=f"the sparsity of lin is {sparsity}"):
        _kept_shares(0.5, {"lin": sparsity})


@pytest.mark.parametrize(
    "method",
    [
        lambda model, **choice: DropAndGrow(
            model, SGD(model.parameters()), total_steps=9, **choice
        ),
        lambda model, **choice: GradualPruning(
            model, SGD(model.parameters()), total_steps=9, **choice
        ),
        lambda model, **choice: SLR(model, SGD(model.parameters()), sparsity=0.5, **choice),
        lambda model, **choice: ADMM(model, SGD(model.parameters()), sparsity=0.5, **choice),
        lambda model, **choice: lottery_ticket(model, lambda *_: None, sparsity=0.5, **choice),
        lambda model, **choice: UGS(model, torch.ones(3), **choice),
    ],
)
def test_a_misspelled_keyword_is_refused_by_its_name(method):
    with pytest.raises(TypeError, match="exlude"):
        method(fnn(), exlude=["0.weight"])
