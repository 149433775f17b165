"""One process alone among ranks; test_program_runs.py has several."""

from __future__ import annotations

import signal

import pytest
import torch
from torch import nn

from weft.errors import DataError
from weft.training.ranks import Ranks, StopTogether, joined_ranks, shared_run


def test_alone_nothing_is_added(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined_ranks() as ranks:
        assert ranks == Ranks(rank=0, size=1)
        values, layer = torch.arange(3.0), nn.Linear(2, 1)
        layer(torch.ones(1, 2)).sum().backward()
        before = [p.grad.clone() for p in layer.parameters()]
        ranks.add(values)
        ranks.add_gradients(layer.parameters())
    assert values.tolist() == [0.0, 1.0, 2.0]
    assert all(p.grad.equal(grad) for p, grad in zip(layer.parameters(), before, strict=True))
    assert not torch.distributed.is_initialized()


def test_the_error_of_the_first_is_kept():
    with pytest.raises(DataError, match="no data"), Ranks().in_turn():
        raise DataError("no data")


def test_a_rank_that_cannot_be():
    with pytest.raises(ValueError, match="rank is 2 of 2"):
        Ranks(rank=2, size=2)


def test_the_run_of_the_first_rank(tmp_path):
    with shared_run(tmp_path / "run", {"a": 1}, Ranks(), tensorboard=False) as run:
        assert run.folder == tmp_path / "run"
        assert not run.resumed
    with shared_run(tmp_path / "run", {"a": 1}, Ranks(), resume=True, tensorboard=False) as run:
        assert run.resumed
    with (
        pytest.raises(DataError, match="holds a run already"),
        shared_run(tmp_path / "run", {"a": 1}, Ranks()),
    ):
        pass


def test_a_signal_waits_until_all_know_of_it():
    got = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    try:
        together = StopTogether()
        assert together.heard().tolist() == [0.0, 0.0, 0.0]
        signal.raise_signal(signal.SIGTERM)
        assert got == []
        together.tell(torch.zeros(3))
        assert got == []
        heard = together.heard()
        assert heard.tolist() == [0.0, 1.0, 0.0]
        together.tell(heard)
        assert got == [signal.SIGTERM]
        # Another rank has heard what this one does not listen to.
        together.tell(torch.tensor([0.0, 0.0, 1.0]))
        assert got == [signal.SIGTERM, signal.SIGHUP]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, signal.default_int_handler)
