"""Turns: everyone has one in each round, and what is slow takes longer."""

from __future__ import annotations

import math

import pytest

from weft_lab.timing import crossover, median_ratio, time_by_turns, turn_order


def test_everyone_has_a_turn_in_each_round_in_changing_orders():
    orders = dict(turn_order(5, 4))
    assert list(orders) == [0, 1, 2, 3]
    assert all(sorted(order) == [0, 1, 2, 3, 4] for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) > 1
    assert dict(turn_order(5, 4)) == orders


def test_a_turn_is_one_call_after_the_warm_up():
    calls = {"a": 0, "b": 0}

    def count(name):
        calls[name] += 1

    samples = time_by_turns({n: lambda n=n: count(n) for n in calls}, 3, warm_up=2)
    assert {name: len(each) for name, each in samples.items()} == {"a": 3, "b": 3}
    assert calls == {"a": 5, "b": 5}
    assert min(min(each) for each in samples.values()) >= 0


def test_short_work_is_called_often_in_a_turn():
    calls = []
    samples = time_by_turns({"a": lambda: calls.append(1)}, 2, turn=10.0)
    # The warm-up, the call that says how long one takes, and 100 in each turn.
    assert len(calls) == 2 + 2 * 100
    assert len(samples["a"]) == 2


def test_ratios_are_of_neighbours_in_time():
    assert median_ratio([1.0, 20.0, 3.0], [1.0, 10.0, 1.0]) == 2.0


def test_crossover_is_between_logarithms():
    assert crossover([0.01, 0.1, 1.0], [0.5, 0.5, 2.0]) == pytest.approx(math.sqrt(0.1))
    assert crossover([0.1, 1.0], [2.0, 0.5]) == "never"
    assert crossover([0.1, 1.0], [1.5, 2.0]) == "always"
    # Of several rises the last.
    assert crossover([1.0, 10.0, 100.0], [2.0, 0.5, 2.0]) == pytest.approx(10 * math.sqrt(10))
