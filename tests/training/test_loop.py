from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from weft.errors import DataError
from weft.graphs import Budget, Graph, assemble, table_from_graphs
from weft.training import FitConfig, NonFiniteLoss, Run, fit, graphs_in, read_metrics

Batch = tuple[Tensor, Tensor]


def data(rows: int = 12) -> Batch:
    x = torch.linspace(-1, 1, rows * 3).reshape(rows, 3)
    return x, (x @ torch.tensor([[1.0], [-2.0], [0.5]])).cos()


def fixed_model() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            values = torch.arange(parameter.numel(), dtype=torch.float32)
            parameter.copy_(torch.sin(values + number).reshape(parameter.shape) / 2)
    return model


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return ((model(x) - y) ** 2).mean()


def adam(model: nn.Module, lr: float = 0.05) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=lr)


def quiet(**options: Any) -> FitConfig:
    return FitConfig(**{"epochs": 3, "quiet": True, **options})


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(folder) if "loss" in line]


def test_golden_losses(tmp_path: Path) -> None:
    model = fixed_model()
    x, y = data()
    with Run.create(tmp_path, {}, tensorboard=False) as run:
        result = fit(
            model,
            adam(model),
            [(x[:6], y[:6]), (x[6:], y[6:])],
            squared_error,
            config=quiet(epochs=3, log_every=1),
            run=run,
        )
    # From the same formulas written out in numpy, float64.
    golden = [
        np.float64(0.49759239),
        np.float64(0.1812755),
        np.float64(0.06251575),
        np.float64(0.03366069),
        np.float64(0.01755284),
        np.float64(0.00626042),
    ]
    assert losses(tmp_path) == pytest.approx(golden, abs=1e-6)
    assert result.metrics["train_loss"] == pytest.approx(sum(golden[-2:]) / 2, abs=1e-6)
    assert (result.epochs, result.steps, result.stopped) == (3, 6, "finished")
    assert result.graphs_per_second > 0
    assert result.seconds > 0


def test_the_same_as_a_plain_loop() -> None:
    ours, plain = fixed_model(), fixed_model()
    batches = [data(), data(7)]
    fit(ours, adam(ours), batches, squared_error, config=quiet(epochs=5))
    optimizer = adam(plain)
    for batch in batches * 5:
        optimizer.zero_grad()
        squared_error(plain, batch).backward()
        optimizer.step()
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


def test_any_module_with_a_loader_of_tuples() -> None:
    class Strange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * x.double()

    x, _ = data(30)
    loader = DataLoader(TensorDataset(x, 3 * x), batch_size=4, shuffle=True)
    model = Strange()
    result = fit(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5),
        loader,
        squared_error,
        config=quiet(epochs=20),
    )
    assert model.scale.item() == pytest.approx(3, abs=1e-3)
    assert result.steps == 20 * 8


def test_graph_batches() -> None:
    graph = Graph(
        num_nodes=2,
        senders=np.array([0]),
        receivers=np.array([1]),
        nodes={"x": np.ones((2, 3), np.float32)},
        edges={},
        graph={"y": np.float32(2)},
    )
    table = table_from_graphs([graph] * 5)
    padded = assemble(table, range(5), Budget(nodes=16, edges=8, graphs=8))
    assert graphs_in(padded) == 5
    model = nn.Linear(3, 1)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        sums = torch.zeros(batch.num_graphs, 1).index_add(
            0, batch.node_graph, model(batch.nodes["x"])
        )
        mask = batch.graph_mask
        return (((sums[:, 0] - batch.graphs["y"]) * mask) ** 2).sum() / mask.sum()

    result = fit(model, adam(model), [padded], loss, config=quiet(epochs=200))
    assert result.metrics["train_loss"] < 1e-3


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_torch_geometric_batches() -> None:
    from torch_geometric.data import Batch as GeometricBatch
    from torch_geometric.data import Data

    one = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]))
    assert graphs_in(GeometricBatch.from_data_list([one, one, one])) == 3
    assert graphs_in(one) == 1
    model = nn.Linear(3, 1)
    result = fit(model, adam(model), [one], lambda m, b: (m(b.x) ** 2).mean(), config=quiet())
    assert result.steps == 3


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (torch.zeros(4, 2), 4),
        ((torch.zeros(4, 2), 1), 4),
        (torch.tensor(1.0), 1),
        ("x", 1),
        ([], 1),
    ],
)
def test_graphs_in(batch: Any, count: int) -> None:
    assert graphs_in(batch) == count


def test_epoch_means_weigh_graphs() -> None:
    model = nn.Linear(1, 1)
    batches = [torch.full((1, 1), 4.0), torch.full((3, 1), 8.0)]
    result = fit(
        model,
        torch.optim.SGD(model.parameters(), lr=0.0),
        batches,
        lambda model, batch: (model(batch).mean() * 0, {"size": batch.mean()}),
        config=quiet(epochs=1),
    )
    assert result.metrics == {"train_loss": 0.0, "train_size": 7.0}


def scripted(values: list[float]) -> Any:
    """An evaluation that gives these values, one after another."""
    left = iter(values)
    return lambda model: {"score": next(left)}


def test_early_stopping_restores_the_best_weights(tmp_path: Path) -> None:
    model = fixed_model()
    seen: list[Tensor] = []
    script = scripted([0.1, 0.5, 0.4, math.nan, 0.5, 9.0])

    def evaluate(model: nn.Module) -> dict[str, float]:
        seen.append(next(model.parameters()).detach().clone())
        return dict(script(model))

    with Run.create(tmp_path, {}, tensorboard=False) as run:
        result = fit(
            model,
            adam(model),
            [data()],
            squared_error,
            config=quiet(epochs=50, monitor="score", mode="max", patience=3),
            evaluate=evaluate,
            run=run,
        )
    assert result.stopped == "early stopping"
    assert (result.epochs, result.best_epoch) == (5, 2)
    assert result.best_metrics["score"] == 0.5
    assert torch.equal(next(model.parameters()), seen[1])
    assert not torch.equal(seen[1], seen[4])


def test_the_last_weights_stay_without_keep_best() -> None:
    model = fixed_model()
    result = fit(
        model,
        adam(model),
        [data()],
        squared_error,
        config=quiet(epochs=3, monitor="score", keep_best=False),
        evaluate=scripted([1.0, 2.0, 3.0]),
    )
    plain = fixed_model()
    fit(plain, adam(plain), [data()], squared_error, config=quiet(epochs=3))
    assert result.best_epoch == 1
    assert torch.equal(next(model.parameters()), next(plain.parameters()))


def test_evaluation_comes_when_asked_and_in_eval_mode() -> None:
    model = nn.Sequential(nn.Linear(3, 1), nn.Dropout(0.5), nn.BatchNorm1d(1))
    model[2].eval()
    modes = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        modes.append(model.training)
        return {}

    fit(
        model,
        adam(model),
        [data()],
        squared_error,
        config=quiet(epochs=7, evaluate_every=3),
        evaluate=evaluate,
    )
    assert modes == [False, False, False]
    assert model.training
    assert not model[2].training


def test_max_steps_ends_inside_an_epoch_with_an_evaluation() -> None:
    model = fixed_model()
    result = fit(
        model,
        adam(model),
        [data()] * 4,
        squared_error,
        config=quiet(epochs=9, max_steps=6),
        evaluate=lambda model: {"score": 1.0},
    )
    assert (result.steps, result.epochs, result.stopped) == (6, 2, "finished")
    assert result.metrics["score"] == 1.0


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
            NonFiniteLoss, match=r"'0\.weight' is not finite at step 1 .* earlier, finite"
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


def test_gradients_are_clipped() -> None:
    model = nn.Linear(3, 1, bias=False)
    before = model.weight.detach().clone()
    fit(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        [data()],
        lambda model, batch: squared_error(model, batch) * 1000,
        config=quiet(epochs=1, clip_norm=0.25),
    )
    assert (model.weight - before).norm().item() == pytest.approx(0.25, rel=1e-4)


def test_signal_stops_after_the_step_and_handlers_come_back() -> None:
    model = fixed_model()
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        return squared_error(model, batch)

    result = fit(model, adam(model), [data()] * 5, loss, config=quiet())
    assert (result.steps, result.stopped) == (1, "interrupted by SIGINT")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_second_signal_interrupts_at_once() -> None:
    model = fixed_model()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        return squared_error(model, batch)

    with pytest.raises(KeyboardInterrupt):
        fit(model, adam(model), [data()], loss, config=quiet())


def test_works_in_another_thread() -> None:
    model = fixed_model()
    results = []

    def work() -> None:
        results.append(fit(model, adam(model), [data()], squared_error, config=quiet()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(timeout=60)
    assert results[0].steps == 3


def test_plateau_scheduler_follows_the_monitored_metric() -> None:
    model = fixed_model()
    optimizer = adam(model, lr=1.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    config = quiet(epochs=3, monitor="score")
    fit(
        model,
        optimizer,
        [data()],
        squared_error,
        config=config,
        evaluate=scripted([1.0, 2.0, 3.0]),
        scheduler=scheduler,
    )
    assert optimizer.param_groups[0]["lr"] == 0.25
    with pytest.raises(ValueError, match=r"ReduceLROnPlateau needs config\.monitor"):
        fit(model, optimizer, [data()], squared_error, config=quiet(), scheduler=scheduler)


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


def test_data_that_became_shorter_is_noticed(tmp_path: Path) -> None:
    model = fixed_model()

    def stop(model: nn.Module, batch: Batch) -> Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        return squared_error(model, batch)

    with Run.create(tmp_path, {}, tensorboard=False) as run:
        fit(model, adam(model), [data()] * 3, stop, config=quiet(), run=run)
    with (
        Run.create(tmp_path, {}, resume=True, tensorboard=False) as run,
        pytest.raises(DataError, match="after batch 1 of epoch 1, but the training data now ends"),
    ):
        fit(model, adam(model), [], squared_error, config=quiet(), run=run)


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


def once() -> Iterator[Batch]:
    yield data()


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ([], "no batches in epoch 1"),
        (once(), "no batches in epoch 2.*not a generator"),
        (3, r"train is a int.*\[batch\]"),
    ],
)
def test_bad_training_data(train: Any, message: str) -> None:
    model = fixed_model()
    with pytest.raises(ValueError, match=message):
        fit(model, adam(model), train, squared_error, config=quiet())


def test_other_mistakes() -> None:
    model = fixed_model()
    with pytest.raises(ValueError, match=r"loss has shape \[12, 1\]"):
        fit(model, adam(model), [data()], lambda m, b: m(b[0]) - b[1], config=quiet())
    with pytest.raises(ValueError, match="monitor is 'accuracy', but the metrics are train_loss"):
        fit(model, adam(model), [data()], squared_error, config=quiet(monitor="accuracy"))
    with pytest.raises(ValueError, match="LBFGS"):
        fit(model, torch.optim.LBFGS(model.parameters()), [data()], squared_error, config=quiet())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": -1}, "epochs is -1; it must be at least 0"),
        ({"epochs": 1, "patience": 3}, "patience needs monitor"),
        ({"epochs": 1, "patience": 0, "monitor": "x"}, "patience is 0"),
        ({"epochs": 1, "mode": "best"}, "mode is 'best'"),
        ({"epochs": 1, "clip_norm": 0.0}, "clip_norm is 0.0"),
        ({"epochs": 1, "log_every": 0}, "log_every is 0"),
    ],
)
def test_config_is_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FitConfig(**options)


def test_no_global_setting_is_left_behind() -> None:
    def settings() -> list[Any]:
        tiny = torch.full((200_000,), 1e-30) * 1e-10
        return [
            int((tiny.view(torch.int32) != 0).sum()),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.is_grad_enabled(),
        ]

    before = settings()
    inside: list[float] = []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        inside.append(settings()[0])
        return squared_error(model, batch)

    model = fixed_model()
    fit(model, adam(model), [data()], loss, config=quiet(epochs=1))
    assert settings() == before
    if torch.set_flush_denormal(False):
        assert inside == [0]
