"""The size of supergraphs and the form of their edges, by measurement."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_programs import config, small_programs

from weft.errors import DataError
from weft.layout.config import LayoutConfig
from weft.parallel.grid import Grid
from weft.parallel.world import alone
from weft.recipes.programs.supergraphs import measured_supergraphs, settled
from weft.recipes.programs.training import prepare_programs

TABLE = small_programs(400)
ALL = np.arange(400)


def test_every_size_is_measured_and_the_cheapest_taken():
    before = torch.get_rng_state()
    figures = measured_supergraphs(TABLE, ALL, config(nodes=0), 20, rounds=1)
    assert [figure.nodes for figure in figures] == [1024, 2048, 4096, 8192, 16384]
    assert all(figure.seconds > 0 and figure.layout.form == "csr" for figure in figures)
    # The table has fewer nodes than the largest: it is one supergraph.
    assert figures[0].graphs < figures[-1].graphs == 400
    chosen = prepare_programs(TABLE, config(nodes=0)).config
    assert chosen.nodes in {figure.nodes for figure in figures}
    assert torch.equal(before, torch.get_rng_state())


def test_nodes_are_a_multiple_of_the_block():
    layout = LayoutConfig(form="banded", block=48)
    figures = measured_supergraphs(TABLE, ALL, config(nodes=0, layout=layout), 20, rounds=1)
    assert all(figure.nodes % 48 == 0 for figure in figures)
    assert {figure.layout.form for figure in figures} == {"banded"}


def test_sizes_that_the_form_cannot_hold_are_left_out():
    layout = LayoutConfig(form="banded", block=16, memory_gb=0.01)
    figures = measured_supergraphs(TABLE, ALL, config(nodes=0, layout=layout), 20, rounds=1)
    assert [figure.nodes for figure in figures] == [1024, 2048]
    none = config(nodes=0, layout=replace(layout, memory_gb=1e-6))
    with pytest.raises(DataError, match="more than the"):
        measured_supergraphs(TABLE, ALL, none, 20, rounds=1)


def test_what_is_given_stays_and_auto_is_decided():
    asked = config(nodes=64)
    assert settled(TABLE, ALL, asked, 20).nodes == 64
    auto = settled(TABLE, ALL, config(nodes=64, layout=LayoutConfig(form="auto")), 20)
    assert auto.layout.form in ("csr", "banded", "dense")
    assert auto.layout.hidden == auto.hidden


def test_ranks_do_not_measure():
    world = alone(Grid(rows=2), 0)
    with pytest.raises(ValueError, match="2 ranks may measure differently; give --nodes"):
        prepare_programs(TABLE, config(nodes=0, supergraphs_per_step=2), world=world)
