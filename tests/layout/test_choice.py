"""Every form by its name gives the same; what cannot be used says why."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from typed_graphs import assert_as_coo, parameters, typed_graph

from weft.errors import DataError
from weft.graphs import Budget, Graph, assemble, table_from_graphs
from weft.layout import (
    BandedAdjacency,
    DenseAdjacency,
    LayoutConfig,
    TypedEdges,
    adjacency_of,
    measured_choice,
)
from weft.layout.csr import edges_of
from weft.layout.layout_choice import Figure, _as_config, _measured_rates, estimates

FORMS = {"csr": TypedEdges, "banded": BandedAdjacency, "dense": DenseAdjacency}


def small_batch(*, reach: int = 5, padded: bool = False):
    table = table_from_graphs([typed_graph(n, 3 * n, reach=reach) for n in (30, 12, 25)])
    budget = Budget(nodes=80, edges=250, graphs=5)
    return assemble(table, [0, 1, 2], budget if padded else None)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("padded", [False, True])
def test_all_forms_give_the_same(form, padded):
    batch = small_batch(padded=padded)
    adjacency = adjacency_of(batch, 3, LayoutConfig(form=form, hidden=8))
    assert type(adjacency) is FORMS[form]
    assert_as_coo(adjacency, edges_of(batch), batch.num_nodes, 3)


def test_a_block_and_a_policy_are_obeyed():
    batch = small_batch(reach=20)
    banded = adjacency_of(batch, 3, LayoutConfig(form="banded", block=8, outside="spill"))
    assert banded.block == 8
    assert banded.outside > 0
    assert_as_coo(banded, edges_of(batch), batch.num_nodes, 3)
    dropped = adjacency_of(batch, 3, LayoutConfig(form="banded", block=8, outside="drop"))
    assert (dropped.outside, dropped.spill) == (banded.outside, None)
    with pytest.raises(DataError, match="outside the blocks of 8"):
        adjacency_of(batch, 3, LayoutConfig(form="banded", block=8))
    assert adjacency_of(batch, 3, LayoutConfig(form="dense", block=32)).block == 32


def test_a_block_that_is_not_given_holds_every_edge():
    for outside in ("raise", "drop"):
        banded = adjacency_of(small_batch(), 3, LayoutConfig(form="banded", outside=outside))
        assert banded.outside == 0


def test_the_fastest_of_the_measured_is_chosen():
    batch = small_batch()
    choice = measured_choice(batch, 3, LayoutConfig(hidden=8), rounds=1)
    assert choice.config.form in FORMS
    first, *others = choice.figures
    assert first.form == choice.config.form
    assert choice.config.block == (first.block if first.form == "banded" else None)
    measured = [figure for figure in choice.figures if figure.measured is not None]
    assert first.measured == min(figure.measured for figure in measured)
    assert all(figure.reason for figure in others if figure.measured is None)
    assert not any(figure.reason for figure in measured)
    assert {figure.form for figure in choice.figures} == set(FORMS)
    again = adjacency_of(batch, 3, choice.config)
    assert type(again) is FORMS[choice.config.form]


def test_auto_gives_the_same_product():
    batch = small_batch(padded=True)
    adjacency = adjacency_of(batch, 3, LayoutConfig(hidden=8))
    assert_as_coo(adjacency, edges_of(batch), batch.num_nodes, 3)


def test_auto_is_csr_where_no_block_fits():
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 3000, (2, 6000))
    large = assemble(
        table_from_graphs([Graph(num_nodes=3000, senders=ends[0], receivers=ends[1])]), [0]
    )
    found = {f.form: f for f in estimates(large, 20, LayoutConfig(hidden=64, memory_gb=0.1))}
    assert found["csr"].reason == ""
    assert "GB allowed" in found["banded"].reason
    assert "GB allowed" in found["dense"].reason
    choice = measured_choice(large, 20, LayoutConfig(hidden=16, memory_gb=0.1), rounds=1)
    assert choice.config == LayoutConfig(form="csr", hidden=16, memory_gb=0.1)


def test_the_band_of_graphs_to_come_is_held():
    batch = small_batch()
    found = [
        figure.block
        for figure in estimates(batch, 3, LayoutConfig(hidden=8), bandwidth=20)
        if figure.form == "banded"
    ]
    assert min(found) >= 20
    own = estimates(batch, 3, LayoutConfig(hidden=8))
    assert min(figure.block for figure in own if figure.form == "banded") < 20


def test_a_given_block_that_does_not_fit_says_so():
    figures = estimates(small_batch(reach=20), 3, LayoutConfig(block=8, hidden=8))
    reasons = {figure.form: figure.reason for figure in figures}
    assert reasons["csr"] == ""
    assert "edges are outside the blocks of 8" in reasons["banded"]
    assert "a graph has 30 nodes, the blocks have 8" in reasons["dense"]


@pytest.mark.parametrize("form", ["banded", "dense"])
@pytest.mark.parametrize("block", [None, 30])
def test_more_memory_than_allowed(form, block):
    config = LayoutConfig(form=form, block=block, memory_gb=1e-6, hidden=8)
    with pytest.raises(DataError, match=rf"form '{form}'.*more than the 1e-06 GB allowed.*'csr'"):
        adjacency_of(small_batch(), 3, config)


def test_a_batch_without_nodes():
    batch = assemble(table_from_graphs([typed_graph(3, 0)]), [])
    for form in (*FORMS, "auto"):
        adjacency = adjacency_of(batch, 3, LayoutConfig(form=form, hidden=4))
        h, weight, bias = (x.detach() for x in parameters(0, 3))
        assert adjacency.propagate(h, weight, bias).shape == (0, 2)


def test_the_device_is_that_of_the_batch():
    batch = small_batch()
    found = adjacency_of(batch, 3, LayoutConfig(form="dense"))
    assert found.C.device == batch.senders.device == torch.device("cpu")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"form": "coo"}, r"form is 'coo'; choose from auto, csr, banded, dense"),
        ({"outside": "keep"}, r"outside is 'keep'; choose from raise, drop, spill"),
        ({"block": 0}, r"block is 0 with form 'auto'; it must be at least 1"),
        ({"block": 8, "form": "csr"}, r"'csr' has none"),
        ({"hidden": 0}, r"hidden is 0"),
        ({"memory_gb": float("nan")}, r"memory_gb nan"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        LayoutConfig(**options)


def test_a_dense_choice_holds_larger_graphs_to_come():
    figure = Figure(form="dense", block=30, estimated=1.0)
    for block in (None, 64):
        config = _as_config(figure, LayoutConfig(block=block))
        table = table_from_graphs([typed_graph(50, 150)])
        assert adjacency_of(assemble(table, [0]), 3, config).block == (block or 50)


def test_graphs_without_nodes():
    batch = assemble(table_from_graphs([typed_graph(0, 0), typed_graph(0, 0)]), [0, 1])
    for form in (*FORMS, "auto"):
        adjacency = adjacency_of(batch, 3, LayoutConfig(form=form, hidden=4))
        h, weight, bias = (x.detach() for x in parameters(0, 3))
        assert adjacency.propagate(h, weight, bias).shape == (0, 2)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("form", FORMS)
def test_training_after_a_prediction(mode, form):
    batch = small_batch()
    adjacency = adjacency_of(batch, 3, LayoutConfig(form=form, hidden=8))
    with mode():
        adjacency.propagate(*(x.detach() for x in parameters(batch.num_nodes, 3)))
    assert_as_coo(adjacency, edges_of(batch), batch.num_nodes, 3)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_prediction_may_measure(mode):
    batch = small_batch()
    _measured_rates.cache_clear()
    with mode():
        assert measured_choice(batch, 3, LayoutConfig(hidden=8), rounds=1).config.form in FORMS
