"""One process alone among ranks; test_program_runs.py and test_data_parallel.py have several."""

from __future__ import annotations

import signal

import pytest
import torch
from torch import nn

from weft.errors import DataError
from weft.parallel.grid import Grid
from weft.parallel.world import alone, joined_replicas, single
from weft.training.ranks import shared_run
from weft.training.stopping import stop_on_signals, was_asked_to_stop


def test_alone_nothing_is_added(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined_replicas() as world:
        assert (world.rank, world.ranks) == (0, 1)
        values, layer = torch.arange(3.0), nn.Linear(2, 1)
        layer(torch.ones(1, 2)).sum().backward()
        before = [p.grad.clone() for p in layer.parameters()]
        world.reduce(values)
        world.add_gradients(layer.parameters())
        assert world.broadcast_from_rank0(lambda: {"a": 1}) == {"a": 1}
        assert world.all_texts("text") == ["text"]
    assert values.tolist() == [0.0, 1.0, 2.0]
    assert all(p.grad.equal(grad) for p, grad in zip(layer.parameters(), before, strict=True))
    assert not torch.distributed.is_initialized()


def test_the_error_of_the_first_is_kept():
    with pytest.raises(DataError, match="no data"), single().in_turn():
        raise DataError("no data")


def test_a_rank_that_cannot_be():
    with pytest.raises(ValueError, match="rank is 2 of 2"):
        alone(Grid(rows=2), 2)


def test_the_run_of_the_first_rank(tmp_path):
    with shared_run(tmp_path / "run", {"a": 1}, single(), tensorboard=False) as run:
        assert run.folder == tmp_path / "run"
        assert not run.resumed
    with shared_run(tmp_path / "run", {"a": 1}, single(), resume=True, tensorboard=False) as run:
        assert run.resumed
    with (
        pytest.raises(DataError, match="holds a run already"),
        shared_run(tmp_path / "run", {"a": 1}, single()),
    ):
        pass


@pytest.mark.sends_sigint
def test_a_rank_waits_however_many_signals_come():
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals(patient=True) as request:
        assert not was_asked_to_stop()
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert request.signal == "SIGTERM"
    assert was_asked_to_stop()
    assert signal.getsignal(signal.SIGTERM) == before
    with stop_on_signals() as request:
        assert not was_asked_to_stop()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
