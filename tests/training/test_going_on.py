"""Runs that are resumed in this process: exactly, with more to do, or not with other parts."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from small_fits import Batch, adam, data, fixed_model, losses, quiet, scripted, squared_error
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import weft.training.loop
from weft.errors import DataError
from weft.training import Run, fit, load_weights, read_metrics


def test_resume_of_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    def session(epochs: int = 3) -> Any:
        model = fixed_model()
        with Run.create(tmp_path, {}, resume=True, tensorboard=False) as run:
            config = quiet(epochs=epochs, log_every=1, monitor="train_loss")
            return model, fit(model, adam(model), [data()], squared_error, config=config, run=run)

    first, result = session()
    before = read_metrics(tmp_path)
    second, again = session()
    assert (again.steps, again.stopped, again.best_epoch) == (3, "finished", result.best_epoch)
    assert read_metrics(tmp_path) == before
    assert torch.equal(first[0].weight, second[0].weight)
    _, longer = session(epochs=5)
    assert longer.steps == 5
    assert losses(tmp_path)[:3] == [line["loss"] for line in before if "loss" in line]


def test_extras_are_resumed(tmp_path: Path) -> None:
    class Counter:
        count = 0

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    def session(extras: dict[str, Any], epochs: int) -> None:
        def loss(model: nn.Module, batch: Batch) -> Tensor:
            for extra in extras.values():
                extra.count += 1
            return squared_error(model, batch)

        model = fixed_model()
        with Run.create(tmp_path, {}, resume=True, tensorboard=False) as run:
            fit(
                model,
                adam(model),
                [data()],
                loss,
                config=quiet(epochs=epochs),
                run=run,
                extras=extras,
            )

    session({"average": Counter()}, 3)
    other = Counter()
    session({"average": other}, 5)
    assert other.count == 5
    with pytest.raises(DataError, match=r"extras = \['average'\], now it is \[\]"):
        session({}, 6)


def test_another_model_optimizer_or_data_is_refused(tmp_path: Path) -> None:
    model = fixed_model()
    with Run.create(tmp_path, {}, tensorboard=False) as run:
        fit(
            model,
            adam(model),
            [data()] * 3,
            squared_error,
            config=quiet(max_steps=2, epochs=1),
            run=run,
        )

    def resume(model: nn.Module, optimizer: torch.optim.Optimizer, train: Any) -> None:
        with Run.create(tmp_path, {}, resume=True, tensorboard=False) as run:
            fit(model, optimizer, train, squared_error, config=quiet(), run=run)

    wide = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    with pytest.raises(
        DataError, match=r"last\.pt.*'0\.weight' is \[4, 3\] there and \[5, 3\] here"
    ):
        resume(wide, adam(wide), [data()])
    with pytest.raises(DataError, match="optimizer = Adam, now it is SGD"):
        resume(model, torch.optim.SGD(model.parameters(), lr=0.1), [data()])
    with pytest.raises(DataError, match="does not fit this optimizer"):
        resume(model, torch.optim.Adam([model[0].weight]), [data()])
    loader = DataLoader(TensorDataset(*data()), generator=torch.Generator())
    with pytest.raises(DataError, match="0 random generators in the training data, now there are"):
        resume(model, adam(model), loader)


class Unsized:
    """Batches without a length."""

    def __init__(self, *batches: Batch) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.batches)


def test_data_that_became_shorter_is_noticed(tmp_path: Path) -> None:
    model = fixed_model()

    def stop(model: nn.Module, batch: Batch) -> Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        return squared_error(model, batch)

    with Run.create(tmp_path, {}, tensorboard=False) as run:
        fit(model, adam(model), Unsized(*[data()] * 3), stop, config=quiet(), run=run)
    with (
        Run.create(tmp_path, {}, resume=True, tensorboard=False) as run,
        pytest.raises(DataError, match="after batch 1 of epoch 1, but the training data now ends"),
    ):
        fit(model, adam(model), Unsized(), squared_error, config=quiet(), run=run)


def test_compiled_and_plain_models_share_checkpoints(tmp_path: Path) -> None:
    model = fixed_model()
    # Not run compiled, so no compiler is needed: only the names of the parameters matter.
    compiled = torch.compile(model, backend="eager")
    loss = lambda _, batch: squared_error(model, batch)  # noqa: E731
    with Run.create(tmp_path, {}, tensorboard=False) as run:
        fit(compiled, adam(model), [data()], loss, config=quiet(), run=run)
    with Run.create(tmp_path, {}, resume=True, tensorboard=False) as run:
        result = fit(model, adam(model), [data()], loss, config=quiet(epochs=4), run=run)
    assert result.steps == 4


def test_another_number_of_batches_is_refused(tmp_path: Path) -> None:
    def session(folder: str, batches: int, **options: Any) -> None:
        model = fixed_model()
        with Run.create(tmp_path / folder, {}, resume=True, tensorboard=False) as run:
            train = [data()] * batches
            fit(model, adam(model), train, squared_error, config=quiet(**options), run=run)

    session("between", 6, epochs=2)
    session("inside", 6, epochs=2, max_steps=4)
    for folder in ("between", "inside"):
        with pytest.raises(DataError, match="made with 6 batches an epoch, now there are 7"):
            session(folder, 7, epochs=3)


def batches_of(kind: str) -> Any:
    x, y = data(18)
    if kind == "loader":
        return DataLoader(TensorDataset(x, y), batch_size=3, shuffle=True)
    parts = list(zip(x.split(3), y.split(3), strict=True))
    return parts if kind == "list" else Unsized(*parts)


@pytest.mark.parametrize("kind", ["list", "loader", "unsized"])
@pytest.mark.parametrize("first", [4, 6, 9])
def test_more_steps_go_on_inside_the_epoch(tmp_path: Path, kind: str, first: int) -> None:
    def session(folder: str, max_steps: int | None = None) -> Any:
        torch.manual_seed(2)
        model = fixed_model()
        model.append(nn.Dropout(0.1))
        config = quiet(epochs=2, max_steps=max_steps, log_every=1)
        with Run.create(tmp_path / folder, {}, resume=True, tensorboard=False) as run:
            return fit(
                model,
                adam(model),
                batches_of(kind),
                squared_error,
                config=config,
                evaluate=lambda model: {"score": 1.0},
                run=run,
            )

    session("whole")
    cut = session("cut", first)
    assert (cut.steps, cut.stopped, cut.metrics["score"]) == (first, "finished", 1.0)
    lines = read_metrics(tmp_path / "cut")
    session("cut", first)
    assert read_metrics(tmp_path / "cut") == lines
    more = session("cut")
    assert (more.steps, more.epochs) == (12, 2)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


class DrawnInSetEpoch:
    """Its order comes from the global random numbers, before it is iterated."""

    def set_epoch(self, epoch: int) -> None:
        self.order = torch.randperm(12)

    def __iter__(self) -> Iterator[Batch]:
        x, y = data()
        return ((x[rows], y[rows]) for rows in self.order.split(2))


@pytest.mark.parametrize("first", [2, 8])
def test_an_order_drawn_in_set_epoch_is_resumed(tmp_path: Path, first: int) -> None:
    def session(folder: str, max_steps: int) -> None:
        torch.manual_seed(4)
        model = fixed_model()
        config = quiet(max_steps=max_steps, log_every=1)
        with Run.create(tmp_path / folder, {}, resume=True, tensorboard=False) as run:
            fit(model, adam(model), DrawnInSetEpoch(), squared_error, config=config, run=run)

    session("whole", 18)
    session("cut", first)
    session("cut", 18)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


def test_a_run_is_trained_once(tmp_path: Path) -> None:
    with Run.create(tmp_path, {}, tensorboard=False) as run:
        model = fixed_model()
        fit(model, adam(model), [data()], squared_error, config=quiet(), run=run)
        with pytest.raises(ValueError, match="has been trained already; give each fit its own"):
            fit(model, adam(model), [data()], squared_error, config=quiet(), run=run)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("killed_in", ["save_checkpoint", "save_weights"])
def test_best_weights_and_metrics_agree_after_a_kill_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_in: str
) -> None:
    seen: dict[float, Tensor] = {}

    def session(scores: list[float]) -> Any:
        model, script = fixed_model(), scripted(scores)

        def evaluate(model: nn.Module) -> dict[str, float]:
            measured = dict(script(model))
            seen[measured["score"]] = model[0].weight.detach().clone()
            return measured

        with Run.create(tmp_path, {}, resume=True, tensorboard=False) as run:
            return model, fit(
                model,
                adam(model),
                [data()] * 2,
                squared_error,
                config=quiet(epochs=4, monitor="score", checkpoint_seconds=0),
                evaluate=evaluate,
                run=run,
            )

    real = getattr(weft.training.loop, killed_in)

    def die(path: Path, *rest: Any) -> None:
        if 3.0 in seen:
            raise Killed
        real(path, *rest)

    monkeypatch.setattr(weft.training.loop, killed_in, die)
    with pytest.raises(Killed):
        session([5.0, 4.0, 3.0])
    monkeypatch.undo()
    model, result = session([9.0, 9.0, 9.0])
    best = result.best_metrics["score"]
    assert best == (4.0 if killed_in == "save_checkpoint" else 3.0)
    assert torch.equal(model[0].weight, seen[best])
    stored = fixed_model()
    load_weights(stored, tmp_path)
    assert torch.equal(stored[0].weight, seen[best])
    with safe_open(tmp_path / "weights.safetensors", framework="pt") as file:
        assert json.loads(file.metadata()["weft"])["epoch"] == result.best_epoch
