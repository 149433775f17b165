"""What `fit` does when a loss, a gradient, a weight or a metric is nan or infinite."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from small_fits import Batch, adam, data, fixed_model, losses, quiet, scripted, squared_error
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from weft.training import NonFiniteLoss, Run, fit


def poisoned(step: int, rows: int = 8) -> list[Batch]:
    batches = [data(rows) for _ in range(4)]
    batches[step - 1] = (batches[step - 1][0], torch.full((rows, 1), math.nan))
    return batches


def test_nan_names_step_and_batch_and_keeps_the_state_before(tmp_path: Path) -> None:
    model = fixed_model()
    good = fixed_model()
    fit(good, adam(good), [data(8)] * 2, squared_error, config=quiet(epochs=1))
    with (
        Run.create(tmp_path, {}, tensorboard=False) as run,
        pytest.raises(NonFiniteLoss, match=r"nan at step 3 \(epoch 1, batch 3\).*last\.pt") as info,
    ):
        fit(model, adam(model), poisoned(3), squared_error, config=quiet(), run=run)
    assert (info.value.step, info.value.epoch, info.value.batch) == (3, 1, 3)
    assert isinstance(info.value, ValueError)
    for a, b in zip(model.parameters(), good.parameters(), strict=True):
        assert torch.equal(a, b)
    stored = torch.load(tmp_path / "last.pt", weights_only=True)
    assert stored["progress"]["step"] == 2
    assert torch.equal(stored["model"]["0.weight"], good[0].weight)


@pytest.mark.parametrize("bad", [1, 3])
def test_the_failed_step_can_be_done_again(tmp_path: Path, bad: int) -> None:
    """After a nan the checkpoint leads to the same batch and the same dropout as the first time."""

    def session(folder: Path, fail: bool) -> None:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        generator = torch.Generator().manual_seed(1)
        loader = DataLoader(TensorDataset(*data(20)), 5, shuffle=True, generator=generator)
        steps = iter(range(1, 99))

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            value = squared_error(model, batch)
            return value * math.inf if fail and next(steps) == bad else value

        with Run.create(folder, {}, resume=True, tensorboard=False) as run:
            fit(model, adam(model), loader, loss, config=quiet(epochs=2, log_every=1), run=run)

    session(tmp_path / "whole", fail=False)
    with pytest.raises(NonFiniteLoss, match=f"inf at step {bad} "):
        session(tmp_path / "failed", fail=True)
    session(tmp_path / "failed", fail=False)
    assert losses(tmp_path / "failed") == losses(tmp_path / "whole")


def test_weights_that_are_not_finite_never_reach_a_checkpoint(tmp_path: Path) -> None:
    model = fixed_model()

    def infinite_gradient(model: nn.Module, batch: Batch) -> Tensor:
        # The square root of 0 is finite and its slope is not.
        return squared_error(model, batch) + (model[0].weight.sum() * 0).sqrt()

    with (
        Run.create(tmp_path, {}, tensorboard=False) as run,
        pytest.raises(
            NonFiniteLoss, match=r"'0\.weight' is not finite after step 1 .* earlier, finite"
        ),
    ):
        fit(
            model,
            adam(model),
            [data()],
            infinite_gradient,
            config=quiet(checkpoint_every=1),
            run=run,
        )
    assert torch.load(tmp_path / "last.pt", weights_only=True)["model"]["0.weight"].isfinite().all()
    model = fixed_model()
    with pytest.raises(NonFiniteLoss, match="norm of the gradients is nan at step 1"):
        fit(model, adam(model), [data()], infinite_gradient, config=quiet(clip_norm=1.0))
    assert model[0].weight.isfinite().all()


def root_of_sum(model: nn.Module, batch: Tensor) -> Tensor:
    """At 0 it is 0 and its slope is nan."""
    return model(batch).square().sum().sqrt()


@pytest.mark.parametrize("with_run", [True, False])
@pytest.mark.parametrize("bad", [3, 4])
def test_a_nan_gradient_names_its_own_step(tmp_path: Path, bad: int, with_run: bool) -> None:
    model = nn.Linear(2, 1, bias=False)
    train = [torch.ones(2, 2) * (number != bad) for number in range(1, 5)]
    run = Run.create(tmp_path, {}, tensorboard=False) if with_run else None
    with pytest.raises(NonFiniteLoss, match=f"'weight' is not finite after step {bad} ") as info:
        fit(model, adam(model), train, root_of_sum, config=quiet(epochs=1), run=run)
    assert (info.value.step, info.value.epoch) == (bad, 1)
    if run is not None:
        run.close()


def test_a_monitored_metric_that_is_nan_stops() -> None:
    model = fixed_model()
    with pytest.raises(NonFiniteLoss, match="score is nan at epoch 2") as info:
        fit(
            model,
            adam(model),
            [data()] * 3,
            squared_error,
            config=quiet(epochs=9, monitor="score", patience=2),
            evaluate=scripted([1.0, math.nan]),
        )
    assert (info.value.step, info.value.epoch, info.value.batch) == (6, 2, 3)


def test_a_metric_of_weights_that_are_nan_blames_the_weights() -> None:
    model = nn.Linear(2, 1, bias=False)
    with pytest.raises(NonFiniteLoss, match="'weight' is not finite after step 1"):
        fit(
            model,
            adam(model),
            [torch.zeros(2, 2)],
            root_of_sum,
            config=quiet(epochs=1, monitor="sum"),
            evaluate=lambda model: {"sum": model.weight.detach().sum()},
        )


def test_weights_that_are_nan_from_the_start() -> None:
    model = fixed_model()
    with torch.no_grad():
        model[2].bias.fill_(math.nan)
    with pytest.raises(ValueError, match=r"'2\.bias' is not finite before the first step.*init"):
        fit(model, adam(model), [data()], squared_error, config=quiet())


def test_the_message_tells_what_buffers_have_seen(tmp_path: Path) -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    with (
        Run.create(tmp_path, {}, tensorboard=False) as run,
        pytest.raises(NonFiniteLoss, match=r"weights before it are in .*last\.pt \(buffers, such"),
    ):
        fit(model, adam(model), poisoned(3), squared_error, config=quiet(), run=run)
    stored = torch.load(tmp_path / "last.pt", weights_only=True)
    assert stored["progress"]["step"] == 2
    assert stored["model"]["0.num_batches_tracked"] == 3
