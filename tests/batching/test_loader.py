from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from size_lists import ALL, molecules
from torch import Tensor, nn

from stand_in_device import DEVICE, Elsewhere
from weft.batching import BatchingConfig, GraphLoader, GraphSampler, graph_sizes
from weft.graphs import GraphBatch, GraphTable, assemble
from weft.training import FitConfig, FitResult, NonFiniteLoss, Run, fit, read_metrics


def loader(table: GraphTable, policy: Any = "dynamic", **options: Any) -> GraphLoader:
    made = BatchingConfig(policy=policy, batch_size=5, seed=3)
    return GraphLoader(table, GraphSampler(*graph_sizes(table), made), **options)


OTHERS: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _others() -> None:
    """Another test's threads may still wait to be collected."""
    OTHERS.clear()
    OTHERS.update(threading.enumerate())


def threads() -> int:
    own = set(threading.enumerate()) - OTHERS
    return sum(thread.name.startswith("weft-loader") for thread in own)


def same(first: GraphBatch, second: GraphBatch) -> bool:
    return torch.equal(first.senders, second.senders) and torch.equal(
        first.nodes["pos"], second.nodes["pos"]
    )


@pytest.mark.parametrize("policy", ALL)
@pytest.mark.parametrize("prefetch", [0, 1, 2, 100])
def test_the_batches_of_the_plan(policy: Any, prefetch: int) -> None:
    table = molecules(23)
    batches = loader(table, policy, prefetch=prefetch)
    for epoch in range(2):
        batches.set_epoch(epoch)
        found, plan = list(batches), batches.sampler.plan()
        assert len(found) == len(batches) == len(plan)
        for batch, planned in zip(found, plan, strict=True):
            assert same(batch, assemble(table, planned.graphs, planned.budget))
    assert threads() == 0


def test_no_more_batches_ahead_than_asked_for() -> None:
    made = []
    batches = loader(molecules(60), prefetch=3, transform=lambda batch: made.append(1) or batch)
    for number, _ in enumerate(batches, start=1):
        assert len(made) <= number + 3


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_state_counts_batches_handed_out(prefetch: int) -> None:
    table = molecules(60)
    batches = loader(table, prefetch=prefetch)
    batches.set_epoch(4)
    whole = list(batches)
    iterator = iter(batches)
    for done in range(len(whole)):
        assert batches.state_dict()["batches"] == done
        next(iterator)
    state = {**batches.state_dict(), "batches": 5}
    other = loader(table, prefetch=prefetch)
    other.load_state_dict(state)
    assert other.state_dict() == state
    rest = list(other)
    assert len(rest) == len(whole) - 5
    assert all(same(a, b) for a, b in zip(rest, whole[5:], strict=True))


def fail_at(number: int) -> Callable[[GraphBatch], GraphBatch]:
    count = 0

    def transform(batch: GraphBatch) -> GraphBatch:
        nonlocal count
        count += 1
        if count == number:
            raise RuntimeError("a broken batch")
        return batch

    return transform


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_comes_with_its_batch(prefetch: int) -> None:
    iterator = iter(loader(molecules(60), prefetch=prefetch, transform=fail_at(3)))
    next(iterator)
    next(iterator)
    with pytest.raises(RuntimeError, match="a broken batch"):
        next(iterator)
    assert threads() == 0


def test_an_abandoned_iterator_ends_its_thread() -> None:
    iterator = iter(loader(molecules(60)))
    next(iterator)
    assert threads() == 1
    del iterator
    gc.collect()
    assert threads() == 0


def test_transform_and_device() -> None:
    def with_twice(batch: GraphBatch) -> GraphBatch:
        return batch.replace(graphs={"twice": batch.graphs["energy"] * 2})

    table = molecules(9)
    plain = list(loader(table))
    changed = list(loader(table, transform=with_twice, device="cpu"))
    for a, b in zip(plain, changed, strict=True):
        assert torch.equal(a.graphs["energy"] * 2, b.graphs["twice"])
        assert b.senders.device.type == "cpu"


@pytest.mark.parametrize("static", [False, True])
def test_batches_are_queued_to_another_device(static: bool) -> None:
    table = molecules(60)
    plain = list(loader(table, "packed"))
    with Elsewhere() as there:
        places = []
        moved = loader(table, "packed", device=DEVICE, static=static)
        for batch, expected in zip(moved, plain, strict=True):
            assert batch.num_real_graphs == expected.num_real_graphs
            assert there.waits == []
            places.append(batch.senders.inner.data_ptr())
            assert same(batch.to("cpu"), expected)
            there.waits.clear()
    assert len(places) > 2
    # Where each has its own memory it is taken while the one before is still there.
    assert (places[1] == places[0]) is static
    assert (len(set(places)) == 1) is static


def test_batches_of_another_shape_have_memory_of_their_own() -> None:
    table = molecules(30)
    plain = list(loader(table, "static-64"))
    with Elsewhere():
        moved = list(loader(table, "static-64", device=DEVICE, static=True))
        for batch, expected in zip(moved, plain, strict=True):
            assert same(batch.to("cpu"), expected)


def test_times_are_counted() -> None:
    batches = loader(molecules(60))
    assert batches.seconds == batches.waiting_seconds == 0
    list(batches)
    assert batches.seconds > 0
    assert batches.waiting_seconds > 0


def test_a_sampler_of_other_graphs_is_refused() -> None:
    sampler = loader(molecules(9)).sampler
    with pytest.raises(ValueError, match=r"other graphs \(9\) than the table's \(8\)"):
        GraphLoader(molecules(8), sampler)
    with pytest.raises(ValueError, match="prefetch is -1"):
        loader(molecules(3), prefetch=-1)


class Sums(nn.Module):
    """An energy a molecule from its positions; enough to depend on every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.out = nn.Linear(4, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                values = torch.arange(parameter.numel(), dtype=torch.float32)
                parameter.copy_(torch.sin(values).reshape(parameter.shape))

    def forward(self, batch: GraphBatch) -> Tensor:
        each = self.out(torch.tanh(self.linear(batch.nodes["pos"])))[:, 0]
        return torch.zeros(batch.num_graphs).index_add(0, batch.node_graph, each)


def loss(model: nn.Module, batch: GraphBatch) -> Tensor:
    error = (model(batch) - batch.graphs["energy"]) * batch.graph_mask
    return (error**2).sum() / batch.graph_mask.sum()


def train(folder: Path, policy: Any, step_loss: Any = loss) -> FitResult:
    model = Sums()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    config = FitConfig(epochs=3, quiet=True, log_every=1)
    with Run.create(folder, {"policy": policy}, resume=folder.exists()) as run:
        batches = loader(molecules(40), policy)
        return fit(model, optimizer, batches, step_loss, config=config, run=run)


def at_step(number: int, change: Callable[[Tensor], Tensor]) -> Any:
    """The loss, changed at one step."""
    steps = itertools.count(1)

    def step_loss(model: nn.Module, batch: GraphBatch) -> Tensor:
        value = loss(model, batch)
        return change(value) if next(steps) == number else value

    return step_loss


def interrupted(value: Tensor) -> Tensor:
    os.kill(os.getpid(), signal.SIGTERM)
    return value


def training_losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(folder) if "loss" in line]


@pytest.mark.parametrize("policy", ["dynamic", "packed", "unpadded"])
def test_fit_resumes_to_the_bit(tmp_path: Path, policy: Any) -> None:
    whole = train(tmp_path / "whole", policy)
    expected = training_losses(tmp_path / "whole")
    assert whole.stopped == "finished"
    assert len(set(expected)) == whole.steps
    an_epoch = whole.steps // 3
    # In the middle of the first epoch, and of the second after what was done before.
    for step in (an_epoch // 2, an_epoch):
        cut = train(tmp_path / "cut", policy, at_step(step, interrupted))
        assert cut.stopped == "interrupted by SIGTERM"
    assert train(tmp_path / "cut", policy).steps == whole.steps
    assert training_losses(tmp_path / "cut") == expected
    assert threads() == 0


def test_fit_goes_back_to_a_batch_whose_loss_was_not_finite(tmp_path: Path) -> None:
    train(tmp_path / "whole", "dynamic")
    with pytest.raises(NonFiniteLoss):
        train(tmp_path / "failed", "dynamic", at_step(4, lambda value: value * float("nan")))
    train(tmp_path / "failed", "dynamic")
    assert training_losses(tmp_path / "failed") == training_losses(tmp_path / "whole")


def test_used_batches_are_let_go() -> None:
    seen = []
    for batch in loader(molecules(60), "unpadded"):
        seen.append(weakref.ref(batch))
        gc.collect()
        assert sum(old() is not None for old in seen) <= 4
    assert len(seen) == 12
