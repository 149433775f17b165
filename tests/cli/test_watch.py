"""`weft watch`: what it says of runs that are going on, have ended, or are none."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from weft.cli.watch import Look, line, sparkline, watch
from weft.training import Run

CONFIG = {"data": "qm9", "target": "u0", "epochs": 10}


def begun(folder: Path) -> Run:
    return Run.create(folder, CONFIG, tensorboard=False, recipe="molecules")


def epoch(run: Run, number: int, *, error: float = 1.0) -> None:
    """Logs an epoch of 20 steps and 5 s as the loop does."""
    for step in (20 * number - 10, 20 * number):
        run.metrics.log(step=step, epoch=number, seconds=step / 4, values={"loss": error})
    scores = {"train_loss": 1.0, "validation_mae": error, "graphs_per_second": 100.0 * number}
    run.metrics.log(step=20 * number, epoch=number, seconds=5 * number, values=scores)


def plain() -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=60), file


def test_what_it_says_while_a_run_is_going_on(tmp_path):
    with begun(tmp_path / "run") as run:
        look = Look(tmp_path / "run")
        assert look.progress().state == "training"
        epoch(run, 1, error=0.5)
        epoch(run, 2, error=0.75)
        now = look.progress()
        assert (now.epoch, now.total_epochs, now.step, now.total_steps) == (2, 10, 40, 200)
        assert now.steps_per_second == pytest.approx(4.0)
        assert now.seconds_left == pytest.approx(40 - now.silent_seconds)
        said = line(now)
        for words in (
            "training, epoch 2/10, step 40/200, loss 0.75, 4 steps/s",
            "200 structures/s (mean 150)",
            "validation MAE 0.75 (best 0.5, epoch 1)",
        ):
            assert words in said


def test_of_the_metrics_only_what_is_new_is_read_and_a_resume_begins_anew(tmp_path):
    folder = tmp_path / "run"
    with begun(folder) as run:
        look = Look(folder)
        epoch(run, 1)
        assert look.progress().step == 20
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 99, "epo')
        assert look.progress().step == 20
        run.metrics.keep(1, 10)
        assert look.progress().step == 10


def test_it_ends_when_the_run_does(tmp_path):
    run = begun(tmp_path / "run")
    epoch(run, 1)
    steps = iter(range(2, 5))

    def sleep(_: float) -> None:
        if (number := next(steps)) < 4:
            epoch(run, number)
        else:
            run.summarise(stopped="early stopping", graphs_per_second=50.0)
            run.close()

    console, file = plain()
    watch(tmp_path / "run", console, sleep=sleep, clock=lambda: 0.0)
    first, last = file.getvalue().splitlines()
    assert first.startswith("training, epoch 1/10")
    assert last.startswith("early stopping, epoch 3/10")
    assert "300 structures/s (mean 50)" in last


def test_on_a_terminal_it_is_kept_up_to_date(tmp_path):
    run = begun(tmp_path / "run")
    epoch(run, 1)

    def sleep(_: float) -> None:
        epoch(run, 2)
        run.summarise(stopped="finished")
        run.close()

    file = io.StringIO()
    watch(tmp_path / "run", Console(file=file, width=80, force_terminal=True), sleep=sleep)
    for words in ("training; last wrote", "epoch 1/10", "epoch 2/10", "finished", "━", "▁"):
        assert words in file.getvalue()


def test_interrupting_it_is_no_error(tmp_path):
    def sleep(_: float) -> None:
        raise KeyboardInterrupt

    with begun(tmp_path / "run"):
        console, file = plain()
        watch(tmp_path / "run", console, sleep=sleep)
        assert "training" in file.getvalue()


def test_a_run_that_was_killed_is_not_waited_for(tmp_path):
    folder = tmp_path / "run"
    run = begun(folder)
    epoch(run, 1)
    run.close()
    assert Look(folder).progress().state == "training, or just killed"
    for file in folder.iterdir():
        os.utime(file, (1e9, 1e9))
    now = Look(folder).progress()
    assert not now.is_going_on
    assert "resume it with --resume" in line(now)
    # A summary of an earlier session says nothing of this one.
    (folder / "summary.json").write_text(json.dumps({"stopped": "interrupted by SIGINT"}))
    os.utime(folder / "summary.json", (0.9e9, 0.9e9))
    assert "not running" in Look(folder).progress().state


def test_the_command(weft, mistake, tmp_path):
    begun(tmp_path / "runs" / "ensemble" / "member-0").close()
    with begun(tmp_path / "runs" / "ensemble" / "member-1") as run:
        epoch(run, 1)
        said = weft("watch", "runs/ensemble", "--once")
        assert said.code == 0, said
        assert "training, epoch 1/10" in said.out
    assert "nowhere does not exist" in mistake("watch", "nowhere")
    assert "runs holds no run (no config.json)" in mistake("watch", "runs")


def test_sparklines():
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([0.0, 1.0]) == "▁█"
    assert sparkline([float(number) for number in range(80)], width=8) == "▁▂▃▄▅▆▇█"
