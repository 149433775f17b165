"""Threads by the cores that other programs leave."""

from __future__ import annotations

import dataclasses
import time

import pytest
import torch

from weft.training import FitConfig, fit, free_cores, loop
from weft.training.free_cores import FreeCores, busy_seconds


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_a_core_that_goes_and_comes_back(monkeypatch):
    monkeypatch.setattr(free_cores, "_EVERY", 0.0)
    clock = {"now": 0.0, "busy": 0.0, "own": 0.0}
    monkeypatch.setattr(time, "monotonic", lambda: clock["now"])
    cores = FreeCores(busy=lambda: clock["busy"], own=lambda: clock["own"])

    def second(*, own, others):
        clock["now"] += 1
        clock["own"] += own
        clock["busy"] += own + others
        cores.look()
        return torch.get_num_threads()

    assert second(own=2.0, others=0.05) == 2
    # Three threads that want two cores: the other program gets two thirds of one.
    assert second(own=1.33, others=0.67) == 1
    assert second(own=1.0, others=1.0) == 1
    assert second(own=1.0, others=0.1) == 2
    # Both cores gone: one thread is the least.
    assert second(own=0.2, others=1.8) == 1
    cores.restore()
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_where_nobody_can_tell_nothing_changes(monkeypatch):
    monkeypatch.setattr(free_cores, "_EVERY", 0.0)
    cores = FreeCores(busy=lambda: None)
    cores.look()
    assert torch.get_num_threads() == 2


def test_work_of_this_process_is_counted():
    before = busy_seconds()
    if before is None:
        pytest.skip("this system does not tell")
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    after = busy_seconds()
    assert after is not None
    assert after - before > 0.2


@pytest.mark.usefixtures("two_threads")
def test_fit_yields_and_takes_the_cores_back(monkeypatch):
    seen = []

    class Busy(FreeCores):
        def look(self):
            torch.set_num_threads(1)
            seen.append(torch.get_num_threads())

    monkeypatch.setattr(loop, "FreeCores", Busy)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.ones(3, 2)] * 2

    def loss(model, batch):
        return model(batch).square().mean()

    config = FitConfig(epochs=1, quiet=True)
    fit(model, optimizer, batches, loss, config=config)
    assert not seen
    fit(model, optimizer, batches, loss, config=dataclasses.replace(config, yield_cores=True))
    assert seen == [1, 1]
    assert torch.get_num_threads() == 2
