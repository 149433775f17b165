"""The page that a run writes while it trains: when, at what cost, and what never stops a run."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
import torch

from weft.report.live_page import LivePage
from weft.training import FitConfig, Run, fit

REFRESH = 'http-equiv="refresh"'


class Clock:
    """A clock that goes on when it is told to, and by `cost` whenever it is read."""

    def __init__(self) -> None:
        self.now, self.cost = 0.0, 0.0

    def __call__(self) -> float:
        self.now += self.cost
        return self.now


def train(run: Run, epochs: int) -> None:
    model = torch.nn.Linear(2, 1)
    fit(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        [torch.ones(4, 2)] * 2,
        lambda model, batch: model(batch).square().mean(),
        config=FitConfig(epochs=epochs, quiet=True, log_every=1),
        evaluate=lambda model: {"validation_loss": 1.0},
        run=run,
    )


def test_a_run_writes_its_page_at_evaluations_and_at_its_end(tmp_path: Path) -> None:
    clock, page = Clock(), tmp_path / "report.html"
    seen = []
    with Run.create(tmp_path, {}, tensorboard=False) as run:
        run._page = LivePage(tmp_path, clock)
        evaluated = run.evaluated

        def later() -> None:
            clock.now += 20.0
            state = random.getstate(), torch.get_rng_state().tolist()
            evaluated()
            assert state == (random.getstate(), torch.get_rng_state().tolist())
            seen.append(page.read_text("utf-8") if page.exists() else "")

        run.evaluated = later  # type: ignore[method-assign]
        train(run, 4)
    # At 20, 40, 60 and 80 s: the first is too early, and so is the third.
    assert [bool(text) for text in seen] == [False, True, True, True]
    assert seen[1] == seen[2] != seen[3]
    assert REFRESH in seen[3]
    assert "not finished, so far to epoch 4" in seen[3]
    last = page.read_text("utf-8")
    assert REFRESH not in last
    assert "finished after 4 epochs" in last


def test_a_short_run_has_no_page(tmp_path: Path) -> None:
    with Run.create(tmp_path, {}, tensorboard=False) as run:
        train(run, 2)
    assert not (tmp_path / "report.html").exists()


def test_a_page_that_takes_long_is_written_seldom(tmp_path: Path) -> None:
    Run.create(tmp_path, {}, tensorboard=False).close()
    clock, page = Clock(), tmp_path / "report.html"
    live = LivePage(tmp_path, clock)
    clock.now, clock.cost = 30.0, 10.0
    live.evaluated()
    clock.cost = 0.0
    page.unlink()
    # Read when it began, at 40 s, and when it was done, at 50 s: 10 s are 2% of 500.
    for at, due in ((549.0, False), (550.0, True)):
        clock.now = at
        live.evaluated()
        assert page.exists() == due


def test_what_goes_wrong_with_a_page_is_told_once(tmp_path: Path) -> None:
    with Run.create(tmp_path, {}, tensorboard=False) as run:
        clock = Clock()
        run._page = LivePage(tmp_path, clock)
        (tmp_path / "report.html").mkdir()
        clock.now = 30.0
        with pytest.warns(UserWarning, match="training continues without it"):
            run.evaluated()
        clock.now = 90.0
        run.evaluated()
        train(run, 1)


def test_without_its_packages_there_is_none(tmp_path: Path, monkeypatch) -> None:
    Run.create(tmp_path, {}, tensorboard=False).close()
    monkeypatch.setattr("weft.report.live_page._NEEDED", ("jinja2", "no_such_package"))
    clock = Clock()
    live = LivePage(tmp_path, clock)
    clock.now = 30.0
    live.evaluated()
    assert not (tmp_path / "report.html").exists()


def test_a_process_that_writes_none_does_not_load_what_pages_need(tmp_path: Path) -> None:
    import subprocess

    code = (
        "import sys; from weft.training import Run; run = Run.create(sys.argv[1], {}); "
        "run.evaluated(); run.close(); print({'jinja2', 'matplotlib'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
