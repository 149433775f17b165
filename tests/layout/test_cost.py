"""The cost model: its rates are of this machine, and its preferences are what arithmetic says."""

from __future__ import annotations

import numpy as np
import pytest
from typed_graphs import banded

from weft.layout import choose_block, machine_rates
from weft.layout.layout_choice import (
    Rates,
    banded_cells,
    banded_seconds,
    blocks_from,
    csr_seconds,
    dense_seconds,
    timed_by_turns,
)

RATES = Rates(
    products=4e10, batched=(1e10, 2e10, 3e10), blocks=(8, 32, 128), gathered=1e10, copied=1e10
)


def test_rates_are_measured_once():
    rates = machine_rates()
    assert machine_rates() is rates
    assert all(rate > 1e6 for rate in (rates.products, *rates.batched, rates.gathered))


def test_rates_between_blocks():
    assert RATES.batched_at(8) == pytest.approx(1e10)
    assert 1e10 < RATES.batched_at(16) < 2e10
    assert RATES.batched_at(1000) == pytest.approx(3e10)


@pytest.mark.parametrize(("nodes", "block"), [(64, 16), (60, 16), (16, 16), (0, 4)])
def test_cells_are_those_that_are_multiplied(nodes, block):
    none = np.zeros(0, int)
    form = banded(none, none, none, nodes, 3, block=block)
    assert form._rows().numel() == banded_cells(nodes, 3, block)


def test_costs_grow_with_what_is_multiplied():
    assert csr_seconds(2000, 900, 64, RATES) > csr_seconds(1000, 900, 64, RATES)
    assert csr_seconds(2000, 900, 64, RATES) > csr_seconds(2000, 800, 64, RATES)
    costs = [banded_seconds(4096, 4, block, 64, RATES) for block in (32, 128, 512)]
    assert costs == sorted(costs)
    assert dense_seconds(180, 10, 4, 20, 64, RATES) > dense_seconds(200, 10, 4, 20, 64, RATES)


def test_a_sparse_band_is_cheaper_as_csr_and_a_full_block_as_dense():
    assert csr_seconds(24_000, 20_000, 128, RATES) < banded_seconds(6000, 20, 16, 128, RATES)
    full = 64 * 63 * 64
    assert dense_seconds(4096, 64, 1, 64, 64, RATES) < csr_seconds(full, 4096, 64, RATES)


@pytest.mark.parametrize("bandwidth", [0, 1, 8, 9, 100, 4000])
def test_a_block_holds_the_band(bandwidth):
    sizes = blocks_from(bandwidth, 2048)
    assert all(bandwidth <= size or size == 2048 for size in sizes)
    assert sizes[-1] == 2048
    chosen = choose_block(np.array([0, bandwidth]), 2048, 4, 64, rates=RATES)
    assert chosen in sizes
    assert chosen <= max(2 * bandwidth, 32) or chosen == 2048


def test_no_graphs_have_a_block_too():
    assert choose_block(np.zeros(0, int), 16, 1, rates=RATES) >= 1
    assert choose_block(0, 0, 1, rates=RATES) == 1


def test_turns():
    calls = []
    works = [lambda: calls.append("a"), lambda: calls.append("b")]
    assert len(timed_by_turns(works, "cpu", rounds=2)) == 2
    assert calls == ["a", "b"] * 3
