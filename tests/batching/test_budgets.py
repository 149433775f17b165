from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from size_lists import quick

from weft.batching.policies import (
    Averages,
    constant_budget,
    dynamic_budget,
    packed_budget,
    published_budget,
    single_graph_budget,
    up_to_64,
    up_to_power_of_2,
)
from weft.graphs import Budget


def averages(mean_nodes=2.0, max_nodes=4, mean_edges=6.0, max_edges=12) -> Averages:
    return Averages(
        mean=np.array([mean_nodes, mean_edges]), largest=np.array([max_nodes, max_edges])
    )


def test_a_multiple_of_64_is_bumped_up() -> None:
    assert dynamic_budget(averages(), 32) == Budget(nodes=128, edges=256, graphs=32)
    assert dynamic_budget(averages(mean_nodes=1.99), 32) == Budget(nodes=64, edges=256, graphs=32)


def test_the_largest_graph_fits_the_dynamic_budget() -> None:
    found = dynamic_budget(averages(max_nodes=640, max_edges=6400), 2)
    assert found == Budget(nodes=704, edges=6464, graphs=2)


def test_constant_and_packed_budgets() -> None:
    assert constant_budget(averages(), 16) == Budget(nodes=128, edges=256, graphs=16)
    # 100 average graphs and half a percent, and one node of padding.
    assert packed_budget(averages(), 101) == Budget(nodes=202, edges=603, graphs=101)
    assert packed_budget(averages(max_nodes=50), 3).nodes == 51


@pytest.mark.parametrize(
    ("size", "budget"),
    [(16, (320, 4992)), (32, (576, 9984)), (64, (1152, 19968)), (128, (2304, 39936))],
)
def test_published_qm9_budgets(size: int, budget: tuple[int, int]) -> None:
    anything = np.array([3])
    found = published_budget(anything, anything, size, "qm9")
    assert (found.nodes, found.edges, found.graphs) == (*budget, size)


def test_published_qm9_budgets_follow_from_the_molecules() -> None:
    # 1000 molecules with the means and the largest of the authors' first 1000.
    nodes = np.repeat([25, 20, 18, 17, 12], [3, 498, 305, 11, 183])
    edges = nodes * (nodes - 1)
    found = Averages.of(nodes, edges)
    assert found.mean.tolist() == [17.908, 311.518]
    assert found.largest.tolist() == [25, 600]
    anything = np.array([3])
    for size in range(1, 130):
        own = published_budget(nodes, edges, size, "True")
        assert own == published_budget(anything, anything, size, "qm9")


def test_published_budgets_look_at_the_first_thousand() -> None:
    nodes = np.array([10] * 1000 + [100] * 5000)
    found = published_budget(nodes, nodes * 2, 32, "True")
    assert found == Budget(nodes=384, edges=704, graphs=32)


@given(st.lists(st.integers(0, 2**40), min_size=1))
@quick
def test_rounding_up(given_sizes: list[int]) -> None:
    sizes = np.array(given_sizes, dtype=np.int64)
    by_64, by_2 = up_to_64(sizes), up_to_power_of_2(sizes)
    assert by_64.tolist() == [(s + 63) // 64 * 64 for s in given_sizes]
    assert by_2.tolist() == [1 << max(s - 1, 0).bit_length() for s in given_sizes]
    alone = single_graph_budget(sizes, sizes)
    assert (alone[:, 0] > sizes).all()
    assert (alone[:, 0] - sizes <= 64).all()
    assert (alone % 64 == [0, 0, 2]).all()
