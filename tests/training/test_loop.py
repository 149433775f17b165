from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from small_fits import Batch, adam, data, fixed_model, losses, quiet, scripted, squared_error
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from weft.graphs import Budget, Graph, assemble, table_from_graphs
from weft.training import FitConfig, Run, fit, graphs_in, read_metrics


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


def test_the_rate_is_that_of_the_latest_steps(tmp_path: Path, monkeypatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("weft.training.loop.time", SimpleNamespace(perf_counter=lambda: clock.now))
    model, steps = fixed_model(), []

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        # The first step compiles; the second epoch is slower than the first.
        clock.now += 100.0 if not steps else 0.25 if len(steps) < 50 else 0.5
        steps.append(len(batch[0]))
        return squared_error(model, batch)

    with Run.create(tmp_path, {}, tensorboard=False) as run:
        result = fit(model, adam(model), [data()] * 50, loss, config=quiet(epochs=2), run=run)
    found = [line for line in read_metrics(tmp_path) if "graphs_per_second" in line]
    assert [line["graphs_per_second"] for line in found] == [steps[0] / 0.25, steps[0] / 0.5]
    assert result.graphs_per_second == sum(steps) / (100 + 49 * 0.25 + 50 * 0.5)


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
    three = GeometricBatch.from_data_list([one, one, one])
    assert graphs_in(three) == 3
    three.graph_mask = torch.tensor([True, True, False])
    assert graphs_in(three) == 2
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


def test_early_stopping_restores_the_best_weights(tmp_path: Path) -> None:
    model = fixed_model()
    seen: list[Tensor] = []
    script = scripted([0.1, 0.5, 0.4, 0.3, 0.5, 9.0])

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


def test_patience_waits_for_an_evaluation() -> None:
    model = fixed_model()

    def stops(scores: list[float]) -> tuple[int, int | None]:
        result = fit(
            model,
            adam(model),
            [data()],
            squared_error,
            config=quiet(epochs=50, monitor="score", patience=3, evaluate_every=5),
            evaluate=scripted(scores),
        )
        assert result.stopped == "early stopping"
        return result.epochs, result.best_epoch

    assert stops([3.0, 2.0, 1.0, 2.0]) == (20, 15)
    assert stops([1.0, 1.0]) == (10, 5)


def test_seconds_are_counted_without_a_run() -> None:
    model = fixed_model()
    assert fit(model, adam(model), [data()], squared_error, config=quiet()).seconds > 0


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
    assert (result.steps, result.epochs, result.stopped) == (6, 1, "finished")
    assert result.metrics["score"] == 1.0


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


@pytest.mark.sends_sigint
def test_signal_stops_after_the_step_and_handlers_come_back() -> None:
    model = fixed_model()
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        os.kill(os.getpid(), signal.SIGINT)
        return squared_error(model, batch)

    result = fit(model, adam(model), [data()] * 5, loss, config=quiet())
    assert (result.steps, result.stopped) == (1, "interrupted by SIGINT")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_sighup_stays_ignored_where_nohup_has_it_so() -> None:
    model = fixed_model()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        os.kill(os.getpid(), signal.SIGHUP)
        return squared_error(model, batch)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        result = fit(model, adam(model), [data()], loss, config=quiet())
        assert (result.steps, result.stopped) == (3, "finished")
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


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
    thread.join(timeout=600)
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
    ("loss", "message"),
    [
        (lambda m, b: None, "loss is of type NoneType; return a tensor of one value"),
        (lambda m, b: 1.5, "loss is of type float"),
        (lambda m, b: squared_error(m, b).detach(), "depends on no trainable parameter"),
        (
            lambda m, b: (squared_error(m, b), 3),
            "values of the loss are of type int; return a dict",
        ),
        (lambda m, b: (squared_error(m, b), {"loss": 3}), "loss gives a value named 'loss'"),
        (lambda m, b: (squared_error(m, b), {"step": 3}), "loss gives a value named 'step'"),
        (lambda m, b: (squared_error(m, b), {"epoch": 3}), "loss gives a value named 'epoch'"),
    ],
)
def test_bad_losses(loss: Any, message: str) -> None:
    model = fixed_model()
    with pytest.raises(ValueError, match=message):
        fit(model, adam(model), [data()], loss, config=quiet())


def test_nothing_to_train() -> None:
    unused = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    with pytest.raises(ValueError, match="depends on no trainable parameter"):
        fit(nn.ReLU(), unused, [data()], lambda m, b: m(b[0]).mean(), config=quiet())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "values of evaluate are of type NoneType; return a dict"),
        ({"seconds": 1.0}, "evaluate gives a value named 'seconds'"),
        ({"train_loss": 1.0}, "evaluate gives a value named 'train_loss'"),
    ],
)
def test_bad_evaluations(answer: Any, message: str) -> None:
    model = fixed_model()
    with pytest.raises(ValueError, match=message):
        fit(
            model,
            adam(model),
            [data()],
            squared_error,
            config=quiet(),
            evaluate=lambda model: answer,
        )


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
