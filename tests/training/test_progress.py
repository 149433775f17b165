from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console
from torch import nn

import weft.training.progress as module
from weft.training import FitConfig, fit
from weft.training.progress import FitProgress


def show(console: Console, *, steps: int = 100, quiet: bool = False) -> None:
    with FitProgress(epochs=10, counts="pairs", quiet=quiet, console=console) as progress:
        progress.note("resuming after step 0 of runs/[a]")
        progress.evaluated({"val_accuracy": 0.8125})
        for step in range(1, steps + 1):
            progress.step(
                epoch=1 + (step - 1) // 10,
                step=step,
                total=100,
                loss=1 / step,
                graphs_per_second=12345.6,
            )


def test_plain_lines_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINE_GAP_SECONDS", 0.0)
    out = io.StringIO()
    show(Console(file=out))
    lines = out.getvalue().splitlines()
    assert lines[0] == "resuming after step 0 of runs/[a]"
    assert len(lines) == 11
    assert lines[1].startswith("epoch 1/10, step 10/100, loss 0.1, 12,346 pairs/s")
    assert lines[1].endswith(" left, val_accuracy 0.8125")
    assert lines[-1] == (
        "epoch 10/10, step 100/100, loss 0.01, 12,346 pairs/s, val_accuracy 0.8125"
    )
    assert "\x1b" not in out.getvalue()


def test_a_short_run_still_says_how_it_ended() -> None:
    out = io.StringIO()
    show(Console(file=out), steps=100)
    assert out.getvalue().splitlines()[1:] == [
        "epoch 10/10, step 100/100, loss 0.01, 12,346 pairs/s, val_accuracy 0.8125"
    ]


def test_one_live_line_on_a_terminal() -> None:
    out = io.StringIO()
    show(Console(file=out, force_terminal=True, width=160))
    assert "step 100/100" in out.getvalue()
    assert "ETA" in out.getvalue()
    assert "\x1b[" in out.getvalue()


def test_quiet() -> None:
    out = io.StringIO()
    show(Console(file=out, force_terminal=True), quiet=True)
    assert out.getvalue() == ""


def test_fit_reports_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(2, 1)
    for quiet in (False, True):
        fit(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            [torch.ones(3, 2)] * 2,
            lambda model, x: model(x).square().mean(),
            config=FitConfig(epochs=2, quiet=quiet),
        )
        caught = capsys.readouterr()
        assert caught.out == ""
        assert ("epoch 2/2, step 4/4" in caught.err) is not quiet


def test_a_narrow_terminal_keeps_the_rate_and_the_time_left() -> None:
    out = io.StringIO()
    show(Console(file=out, force_terminal=True, width=78))
    assert "12,346 pairs/s" in out.getvalue()
    assert "ETA" in out.getvalue()
    assert "val_accuracy" not in out.getvalue()
