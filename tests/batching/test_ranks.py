from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from size_lists import quick

from weft.batching.epoch_plan import deal_batches, split_batches


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(2, 7), st.data())
@quick
def test_splitting_until_the_ranks_divide_the_batches(
    costs: list[int], ranks: int, data: st.DataObject
) -> None:
    inner = data.draw(st.sets(st.integers(1, max(1, len(costs) - 1))))
    starts = np.array([0, *sorted(inner - {len(costs)}), len(costs)])
    if -(-(len(starts) - 1) // ranks) * ranks > len(costs):
        with pytest.raises(ValueError, match=f"shared evenly by {ranks} ranks"):
            split_batches(starts, np.array(costs), ranks)
        return
    found = split_batches(starts, np.array(costs), ranks)
    assert (len(found) - 1) % ranks == 0
    assert len(found) - len(starts) < ranks
    assert set(starts) <= set(found)
    assert (np.diff(found) > 0).all()


def test_the_costliest_batch_is_halved() -> None:
    starts = split_batches(np.array([0, 3, 9]), np.array([1, 1, 1, 2, 2, 2, 2, 2, 2]), 3)
    assert starts.tolist() == [0, 3, 6, 9]
    assert split_batches(np.array([0, 3]), np.array([1, 1, 9]), 2).tolist() == [0, 2, 3]


def test_steps_are_alike_in_cost_and_take_turns() -> None:
    cost = np.array([10, 50, 11, 49, 30, 30])
    steps = cost[deal_batches(cost, 2)].reshape(-1, 2)
    assert sorted(map(sorted, steps.tolist())) == [[10, 11], [30, 30], [49, 50]]
    costliest = deal_batches(np.arange(20)[::-1], 2).reshape(-1, 2).argmin(axis=1)
    assert set(costliest.tolist()) == {0, 1}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 5))
@quick
def test_dealing_keeps_every_batch(costs: list[int], ranks: int) -> None:
    cost = np.array(costs * ranks)
    assert sorted(deal_batches(cost, ranks).tolist()) == list(range(len(cost)))
