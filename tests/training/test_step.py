"""Steps of one's own: what `fit` asks of them, and what a plain loss is wrapped into."""

from __future__ import annotations

import math
import os
import signal
from typing import Any

import pytest
import torch
from small_fits import adam, data, fixed_model, losses, quiet, squared_error
from torch import Tensor, nn

from stand_in_device import DEVICE, Elsewhere
from weft.training import Run, fit, read_metrics
from weft.training.step import LossStep, Mean, Outcome, Step, read_together


class Halves(Step):
    """Gradients of a batch of two halves, one after the other."""

    def __init__(self) -> None:
        self.extras = {"count": self}
        self.steps = self.updates = 0

    def take(self, model: nn.Module, batch: Any) -> Outcome:
        self.steps += 1
        total = 0.0
        for half in zip(batch[0].chunk(2), batch[1].chunk(2), strict=True):
            loss = squared_error(model, half) / 2
            loss.backward()
            total += float(loss.detach())
        return Outcome(total, {"halves": 2.0}, len(batch[0]))

    def updated(self) -> None:
        self.updates += 1

    def epoch_metrics(self) -> dict[str, float]:
        return {"updates": float(self.updates)}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def test_a_step_that_accumulates_gives_the_losses_of_the_whole_batch(tmp_path):
    plain, halved, step = fixed_model(), fixed_model(), Halves()
    whole = fit(plain, adam(plain), [data()], squared_error, config=quiet(epochs=4))
    config = quiet(epochs=4, log_every=None)
    with Run.create(tmp_path / "run", {}, tensorboard=False) as run:
        found = fit(halved, adam(halved), [data()], step, config=config, run=run)
    assert found.metrics["train_loss"] == pytest.approx(whole.metrics["train_loss"], rel=1e-5)
    assert found.metrics["train_halves"] == 2.0
    lines = read_metrics(tmp_path / "run")
    # Without lines of steps there is one an epoch, with the step's own values of it.
    assert [line["updates"] for line in lines] == [1.0, 2.0, 3.0, 4.0]
    assert not any("loss" in line for line in lines)
    again = Halves()
    with Run.create(tmp_path / "run", {}, resume=True, tensorboard=False) as run:
        fit(halved, adam(halved), [data()], again, config=config, run=run)
    assert again.steps == 4


def test_terms_of_a_loss_are_added_in_order():
    def terms(model: nn.Module, batch: Any) -> list[Mean]:
        return [Mean(squared_error(model, batch)), Mean(0.5 * squared_error(model, batch), 7)]

    def added(model: nn.Module, batch: Any) -> Tensor:
        return squared_error(model, batch) + 0.5 * squared_error(model, batch)

    models = [fixed_model(), fixed_model()]
    for model, loss in zip(models, (terms, added), strict=True):
        fit(model, adam(model), [data()], loss, config=quiet(epochs=3))
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


def test_a_loss_that_is_not_finite_leaves_no_gradients():
    model = fixed_model()
    found = LossStep(lambda model, batch: squared_error(model, batch) * math.inf).take(
        model, data()
    )
    assert not math.isfinite(found.loss)
    assert all(p.grad is None for p in model.parameters())


def test_a_step_that_was_stopped_is_used_again():
    class Signalled(Halves):
        def take(self, model: nn.Module, batch: Any) -> Outcome:
            if self.steps == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().take(model, batch)

    model, step = fixed_model(), Signalled()
    first = fit(model, adam(model), [data()], step, config=quiet(epochs=5))
    assert (first.stopped, first.steps) == ("interrupted by SIGTERM", 2)
    second = fit(model, adam(model), [data()], step, config=quiet(epochs=5))
    assert (second.stopped, second.steps) == ("finished", 5)


def test_a_loss_can_weigh_its_terms_by_the_epoch_and_resumes_to_the_bit(tmp_path):
    def trained(folder, epochs: int, **options: Any) -> list[float]:
        model = fixed_model()

        def late(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, float]]:
            weight = 1.0 if step.epoch < 2 else 10.0
            return weight * squared_error(model, batch), {"weight": weight}

        step = LossStep(late)
        with Run.create(folder, {}, tensorboard=False, resume=True) as run:
            config = quiet(epochs=epochs, log_every=1, **options)
            fit(model, adam(model), [data()] * 3, step, config=config, run=run)
        return losses(folder)

    whole = trained(tmp_path / "whole", 4)
    weights = [line["weight"] for line in read_metrics(tmp_path / "whole") if "weight" in line]
    assert weights == [1.0] * 6 + [10.0] * 6
    # Stopped inside the first epoch of the other weight.
    trained(tmp_path / "cut", 4, max_steps=8)
    assert trained(tmp_path / "cut", 4) == whole


def test_values_on_a_device_are_read_together():
    with Elsewhere() as there:
        wide = torch.tensor([0.1, 0.2], dtype=torch.float64).to(DEVICE)
        whole = torch.tensor([7, 2**53 + 1]).to(DEVICE)
        steps = [{"loss": wide[0], "n": whole[0], "known": 1.5}, {"loss": wide[1], "n": whole[1]}]
        there.waits.clear()
        found = read_together(steps)
        # Once for each dtype.
        assert there.waits == ["tolist", "tolist"]
    assert found == [{"loss": 0.1, "n": 7.0, "known": 1.5}, {"loss": 0.2, "n": float(2**53 + 1)}]


def test_a_metric_that_changes_later_is_read_as_it_was():
    def loss(model: nn.Module, batch: Any) -> Any:
        seen.add_(1.0)
        return squared_error(model, batch), {"seen": seen}

    with Elsewhere():
        seen = torch.zeros(()).to(DEVICE)
        model = fixed_model().to(DEVICE)
        batches = [tuple(part.to(DEVICE) for part in data())] * 3
        found = fit(model, adam(model), batches, loss, config=quiet(epochs=1))
    assert found.metrics["train_seen"] == pytest.approx(2.0)
