from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from weft.planning import Measured, Plan
from weft.training import Run

AWKWARD = 'a<b>&"quoted".extxyz'
"""A file name that would break a page that does not escape it."""


def learned(folder: Path, *, epochs: int = 3, rate: float = 1e-3, **summary: Any) -> Path:
    """A run of a recipe, as the loop logs it, without the training."""
    config = {"data": AWKWARD, "target": "u0", "model": "schnet", "learning_rate": rate}
    with Run.create(folder, {**config, "batching": {"policy": "packed"}}, tensorboard=False) as run:
        for step in range(10, 10 * epochs + 1, 10):
            epoch = step // 10
            loss = math.exp(-rate * step)
            run.metrics.log(step=step, epoch=epoch, seconds=step, values={"loss": loss, "lr": rate})
            scores = {"train_loss": loss, "validation_mae": 2 * loss, "graphs_per_second": 500.0}
            run.metrics.log(step=step, epoch=epoch, seconds=step, values=scores)
        ended = {"epochs": epochs, "stopped": "finished", "seconds": 61.0, "best_epoch": 2}
        run.summarise(**{**ended, "test_mae": 2 * loss, "unit": "eV", **summary})
    return folder


def a_plan() -> Plan:
    """A plan with a candidate of every outcome."""
    outcomes = {
        "packed, eager": ("chosen", 1e-3),
        "dynamic, eager": ("slower", 1.4e-3),
        "packed, static": ("stopped: compiling took longer than the whole run", None),
        "unpadded, dynamic": ("recompile limit", 3e-3),
        "packed, eager, <8> threads": ("out of memory", None),
        "static-64": ("not tried: no time was left", None),
    }
    measured = [
        Measured(
            label=label,
            settings={"batching.policy": label.partition(",")[0], "compile": "eager"},
            outcome=outcome,
            samples=() if median is None else (median,) * 3,
            median=median,
            low=None if median is None else 0.9 * median,
            high=None if median is None else 1.2 * median,
            start_seconds=0.5,
            compilations=2,
            compile_seconds=3.0,
            peak_memory=4e8,
            projected_seconds=None if median is None else 0.5 + 6400 * median,
        )
        for label, (outcome, median) in outcomes.items()
    ]
    return Plan(
        recipe="molecules",
        settings=measured[0].settings,
        target="time",
        units="graphs",
        total_units=6400,
        steps=200,
        measured=tuple(measured),
        reasons=("Compiling costs 3 s & saves less.", "Packed batches are 1.4 times as fast."),
        planning_seconds=42.0,
        key={"machine": {"cpu": "a <fast> one", "cores": 2}, "versions": {"weft": "0.1.0"}},
        command="weft plan molecules --steps 200 --out plan.json",
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return learned(tmp_path / "first")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    a_plan().save(path)
    return path


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study's folder as `weft study` leaves it, plots of matplotlib included."""
    from weft_lab.report import Section, draw_panels
    from weft_lab.study import write_markdown

    @dataclasses.dataclass
    class Results:
        title: str = "Study of <nothing>"
        method: str = "Cells took turns & rounds."
        created: str = "2026-01-01T00:00:00+00:00"
        command: str = "weft study nothing --quick"
        machine: dict[str, Any] = dataclasses.field(default_factory=dict)

    folder = tmp_path / "study"
    folder.mkdir()
    section = Section(
        title="Time by policy",
        headings=("policy", "ms"),
        rows=[("packed", "1.5"), ("dynamic <old>", "2.5")],
        says=["Packed is fastest; published: 1.4."],
    )
    plot = draw_panels([("bars", _bars)], folder / "time.svg")
    draw_panels([("bars", _bars)], folder / "spy.png")
    write_markdown(Results(), [section], folder / "results.md", plots=[plot])
    values = {
        "schema": "weft study 0",
        "command": Results.command,
        "machine": {"cpu": "x", "cores": 2},
        "versions": {"weft": "0.1.0"},
    }
    (folder / "results.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


def _bars(ax: Any) -> None:
    ax.bar([0, 1], [1.5, 2.5], label="ms")
    ax.plot([0, 1], [1, 2], color="C1", label="line")
    ax.set_xlabel("policy")


@pytest.fixture
def make_run() -> Callable[..., Path]:
    return learned


@pytest.fixture
def awkward() -> str:
    return AWKWARD
