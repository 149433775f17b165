from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from weft.training import ScheduleConfig, make_scheduler


def curve(total: int, steps: int | None = None, **options: Any) -> list[float]:
    """The rates of the first steps, as an optimizer with rate 2 uses them."""
    parameter = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=2.0)
    scheduler = make_scheduler(optimizer, ScheduleConfig(**options), total)
    rates = []
    for _ in range(total if steps is None else steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_constant() -> None:
    assert curve(3) == [2, 2, 2]


def test_linear_reaches_its_floor_and_stays() -> None:
    assert curve(4, 6, shape="linear") == [2, 1.5, 1, 0.5, 0, 0]
    assert curve(4, 6, shape="linear", floor=0.5) == [2, 1.75, 1.5, 1.25, 1, 1]


def test_cosine() -> None:
    expected = [1 + math.cos(math.pi * step / 8) for step in range(8)]
    assert curve(8, shape="cosine") == pytest.approx(expected)


def test_exponential_falls_by_factor_every_so_many_steps() -> None:
    rates = curve(21, shape="exponential", factor=0.5, every=10)
    assert rates[10] == pytest.approx(1)
    assert rates[20] == pytest.approx(0.5)
    assert rates[5] == pytest.approx(2 * 0.5**0.5)


def test_warmup_with_linear_scaling() -> None:
    assert curve(6, shape="linear", warmup=2, scale=4) == [4, 8, 8, 6, 4, 2]


@pytest.mark.parametrize(
    ("options", "total", "message"),
    [
        (
            {"shape": "sine"},
            5,
            "shape is 'sine'; choose from constant, linear, cosine, exponential",
        ),
        ({"warmup": -1}, 5, "warmup is -1"),
        ({"floor": 2.0}, 5, "floor is 2.0; it is from 0 to 1"),
        ({"every": 0}, 5, "every is 0"),
        ({"warmup": 9}, 5, "warm-up of 9 steps is longer than the run of 5"),
        ({}, 0, "a schedule over 0 steps"),
    ],
)
def test_mistakes(options: dict[str, Any], total: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        curve(total, **options)
