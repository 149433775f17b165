from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_fits import adam, data, fixed_model, quiet, squared_error
from torch.optim.lr_scheduler import ReduceLROnPlateau

from weft.training import Run, ScheduleConfig, fit, make_scheduler, read_metrics
from weft.training.schedules import PlateauLR


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


@given(
    values=st.lists(st.floats(0.1, 10), min_size=1, max_size=30),
    patience=st.integers(0, 4),
    threshold=st.sampled_from([0.0, 1e-4, 0.1]),
    mode=st.sampled_from(["min", "max"]),
)
def test_plateau_lowers_the_rate_as_torchs_scheduler_does(
    values: list[float], patience: int, threshold: float, mode: Literal["min", "max"]
) -> None:
    ours, theirs = (torch.optim.SGD([torch.zeros(1)], lr=2.0) for _ in range(2))
    options = {"shape": "plateau", "reduction": 0.3, "floor": 0.01}
    config = ScheduleConfig(**options, patience=patience, threshold=threshold)
    scheduler = make_scheduler(ours, config, 100, mode)
    reference = ReduceLROnPlateau(
        theirs, mode, factor=0.3, patience=patience, threshold=threshold, min_lr=0.02
    )
    assert isinstance(scheduler, PlateauLR)
    for value in values:
        ours.step()
        scheduler.step()
        scheduler.evaluated(value)
        reference.step(value)
        assert ours.param_groups[0]["lr"] == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-12)


def test_plateau_waits_for_the_end_of_the_warmup_and_takes_negative_values() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=2.0)
    config = ScheduleConfig(shape="plateau", warmup=4, patience=0, threshold=0.1)
    scheduler = make_scheduler(optimizer, config, 100, "max")
    rates = []
    for value in (5.0, 4.0, 3.0, -2.0, -1.9, -1.5, -1.5):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
        scheduler.evaluated(value)  # type: ignore[attr-defined]
    # The first that counts is -2.0; -1.9 is better by less than a tenth.
    assert rates == [0.5, 1, 1.5, 2, 2, 1, 1]
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_plateau_in_fit_goes_on_to_the_bit(tmp_path: Path) -> None:
    def trained(folder: Path, **options: Any) -> list[tuple[float, float]]:
        model = fixed_model()
        optimizer = adam(model, 0.1)
        shape = ScheduleConfig(shape="plateau", warmup=2, patience=1, threshold=0.99)
        scheduler = make_scheduler(optimizer, shape, 24)
        config = quiet(epochs=8, monitor="train_loss", log_every=1, **options)
        with Run.create(folder, {}, tensorboard=False, resume=True) as run:
            fit(
                *(model, optimizer, [data()] * 3, squared_error),
                config=config,
                scheduler=scheduler,
                run=run,
            )
        return [(line["loss"], line["lr"]) for line in read_metrics(folder) if "loss" in line]

    whole = trained(tmp_path / "whole")
    rates = [rate for _, rate in whole]
    assert rates[:2] == [0.05, 0.1]
    assert rates[-1] < 0.03
    trained(tmp_path / "cut", max_steps=13)
    assert trained(tmp_path / "cut") == whole
    model = fixed_model()
    scheduler = make_scheduler(adam(model), ScheduleConfig(shape="plateau"), 9)
    with pytest.raises(ValueError, match=r"PlateauLR needs config\.monitor"):
        fit(model, adam(model), [data()], squared_error, config=quiet(), scheduler=scheduler)


def test_warmup_with_linear_scaling() -> None:
    assert curve(6, shape="linear", warmup=2, scale=4) == [4, 8, 8, 6, 4, 2]


@pytest.mark.parametrize(
    ("options", "total", "message"),
    [
        (
            {"shape": "sine"},
            5,
            "shape is 'sine'; choose from constant, linear, cosine, exponential, plateau",
        ),
        ({"warmup": -1}, 5, "warmup is -1"),
        ({"floor": 2.0}, 5, "floor is 2.0; it is from 0 to 1"),
        ({"every": 0}, 5, "every is 0"),
        ({"reduction": 2.0}, 5, "reduction is 2.0; it is from 0 to 1"),
        ({"patience": -1}, 5, "patience is -1"),
        ({"warmup": 9}, 5, "warm-up of 9 steps is longer than the run of 5"),
        ({}, 0, "a schedule over 0 steps"),
    ],
)
def test_mistakes(options: dict[str, Any], total: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        curve(total, **options)
