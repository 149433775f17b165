"""`weft plan programs --machine`: counts of the data, and what the model makes of them."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from small_programs import config, small_programs

from weft.graphs import assemble
from weft.layout import BandedAdjacency, TypedEdges
from weft.layout.roofline import ACCELERATORS, ASSUMPTIONS
from weft.recipes.programs.modelled import (
    cheapest,
    counts_of,
    modelled,
    paper_lines,
    show_modelled,
    sparse_from,
)
from weft.recipes.programs.supergraphs import packed_sampler

BLOCKS = (2, 16, 64)


@pytest.fixture(scope="module")
def counted():
    table, asked = small_programs(60, nodes=24), config(hidden=64, steps=4)
    train = np.arange(50)
    return table, train, asked, counts_of(table, train, asked, 256, 20, BLOCKS)


def test_counts_are_those_of_the_forms(counted):
    table, train, asked, counts = counted
    plan = packed_sampler(table, train, 256, policy=asked.policy, seed=asked.seed).plan()
    batches = [assemble(table, plan[k].graphs, plan[k].budget) for k in range(min(4, len(plan)))]
    sparse = [TypedEdges.of_batch(batch, 20) for batch in batches]
    assert counts.edges == pytest.approx(np.mean([each.num_edges for each in sparse]))
    assert counts.rows.sum() == pytest.approx(np.mean([each.num_rows for each in sparse]))
    assert list(counts.outside) == list(BLOCKS)
    for block, (far, rows) in counts.outside.items():
        forms = [BandedAdjacency.of_batch(batch, 20, block, "spill") for batch in batches]
        assert far == pytest.approx(np.mean([each.outside for each in forms]))
        spilled = [0 if each.spill is None else each.spill.num_rows for each in forms]
        assert rows.sum() == pytest.approx(np.mean(spilled))
    assert counts.outside[2][0] > 0
    assert counts.outside[64][0] == 0


def test_forms_fit_or_do_not(counted):
    *_, asked, counts = counted
    machine = ACCELERATORS["a100"]
    found = modelled(counts, asked, machine)
    assert [each.form for each in found] == ["csr", "banded", "banded", "banded", "dense"]
    assert all(each.fits and each.seconds_a_graph > 0 for each in found)
    assert found[3].name == "banded"
    assert found[1].name == "banded + csr"
    wide, narrow = found[3], found[1]
    assert wide.filled < narrow.filled
    # Eight cores take eight supergraphs at a time.
    eight = modelled(counts, asked, replace(machine, cores=8))
    assert eight[0].seconds_a_graph == pytest.approx(found[0].seconds_a_graph / 8)
    small = modelled(counts, asked, replace(machine, memory=found[0].memory))
    assert [each.fits for each in small] == [True, False, False, False, False]
    assert cheapest(small).form == "csr"
    # Dropped edges cost nothing.
    dropping = replace(asked, layout=replace(asked.layout, form="banded", outside="drop"))
    dropped = modelled(counts, dropping, machine)
    assert dropped[1].name == "banded, drop"
    assert dropped[1].cost.seconds < narrow.cost.seconds
    assert dropped[3].cost.seconds == wide.cost.seconds


def test_the_share_from_which_gathers_win(counted):
    *_, asked, counts = counted
    machine = replace(ACCELERATORS["a100"], start=1e-9)
    share = sparse_from([counts], asked, machine)
    assert 1e-3 < share < 1
    for factor, wins in ((1.3, True), (0.7, False)):
        best = cheapest(modelled(counts, asked, replace(machine, gather=share * factor)))
        assert (best.form == "csr") == wins


def test_the_published_training_beside_the_model():
    said = " ".join(paper_lines())
    # Multiply-adds of a node and an epoch at the peak, without bytes and starts.
    rows = 20 * 3 * 512 * 128 * 2 + 3 * 20 * 128 * 128 + 3 * 6 * 128 * 128
    least = 2 * 8 * rows * 130_000 * 2_228 / (512 * 22.5e12)
    epochs = int(re.search(r"13 minutes hold (\d+) such epochs", said)[1])
    assert 0.7 * 780 / least < epochs <= 780 / least
    assert "37 epochs" in said


def test_what_is_printed():
    text = io.StringIO()
    console = Console(file=text, width=200)
    asked = config(hidden=64, nodes=0)
    show_modelled(small_programs(80), asked, ACCELERATORS["h100"], console)
    said = " ".join(text.getvalue().split())
    assert "A roofline model of h100, never timed" in said
    assert "1,024" in said
    assert said.count("◀") == 1
    assert re.search(r"By the model, the fastest: \S+.* in supergraphs of [\d,]+ nodes", said)
    assert "rows read by index" in said
    for assumption in ASSUMPTIONS:
        assert assumption in said
    assert "512 TPU v2 cores" in said
