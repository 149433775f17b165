"""When masks change."""

import math

import pytest

from weft.sparsify import CubicSchedule, DropSchedule


def test_updates_are_multiples_below_the_stop():
    plan = DropSchedule(total_steps=40, every=5, stop=0.75)
    assert [step for step in range(41) if plan.updates_at(step)] == [5, 10, 15, 20, 25]
    assert plan.updates == 5
    assert [plan.is_over(step) for step in (0, 24, 25, 40)] == [False, False, True, True]


@pytest.mark.parametrize("total", range(1, 30))
def test_the_number_of_updates_is_that_of_the_steps(total):
    for every in (1, 2, 7):
        plan = DropSchedule(total_steps=total, every=every, stop=0.7)
        assert plan.updates == sum(map(plan.updates_at, range(total + 1)))


def test_death_rates():
    def rates(shape):
        plan = DropSchedule(total_steps=100, death=0.4, shape=shape, stop=0.8)
        return [plan.rate(step) for step in (0, 20, 40, 80, 100)]

    root = math.sqrt(0.5)
    assert rates("cosine") == pytest.approx([0.4, 0.2 * (1 + root), 0.2, 0, 0])
    assert rates("linear") == pytest.approx([0.4, 0.3, 0.2, 0, 0])
    assert rates("constant") == [0.4] * 5


def test_a_schedule_that_never_fires_warns_with_its_numbers():
    # The paper's own setting for its graph `brain`.
    plan = DropSchedule(total_steps=240, every=1000)
    with pytest.warns(UserWarning, match=r"every=1000.*before step 180.*total_steps=240"):
        plan.warn_if_idle()
    # Warnings are errors here: one update is enough.
    DropSchedule(total_steps=240, every=179).warn_if_idle()


def test_the_cubic_schedule():
    plan = CubicSchedule(total_steps=100, begin=10, every=20, stop=0.75)
    assert [step for step in range(101) if plan.prunes_at(step)] == [10, 30, 50, 70, 75]
    assert [plan.progress(step) for step in (0, 10, 75, 100)] == [0, 0, 1, 1]
    assert plan.progress(30) == pytest.approx(1 - (45 / 65) ** 3)


def test_pruning_at_once_warns_with_its_numbers():
    plan = CubicSchedule(total_steps=240, every=1000)
    with pytest.warns(UserWarning, match=r"all of it is at step 180, as every=1000.*240"):
        plan.warn_if_sudden()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"total_steps": 0}, "total_steps is 0"),
        ({"every": 0}, "every is 0"),
        ({"death": 0.0}, "death is 0"),
        ({"death": 1.5}, "death is 1.5"),
        ({"stop": 0.0}, "stop is 0"),
        ({"stop": 1.5}, "stop is 1.5"),
        ({"shape": "sudden"}, "'sudden' is not one of cosine, constant, linear"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        DropSchedule(**{"total_steps": 100, **wrong})


def test_a_beginning_after_the_end_is_refused():
    with pytest.raises(ValueError, match="begin is 80; it must be from 0 to below step 75"):
        CubicSchedule(total_steps=100, begin=80)
