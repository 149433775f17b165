"""Processes that share every step of a training run: what they add up, and how they stop."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from weft.errors import DataError
from weft.training.checkpoint import CHECKPOINT
from weft.training.run import Run
from weft.training.stopping import SIGNALS, heard_signals, leave_lost_terminal, terminals

# Longer than anything that one rank does while others wait: building a table, compiling a model.
_TIMEOUT = timedelta(minutes=30)


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """This process among those that share a run; alone by default.

    Attributes:
        rank: its number, from 0.
        size: how many there are.
    """

    rank: int = 0
    size: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank is {self.rank} of {self.size}; ranks are counted from 0")

    def add(self, values: Tensor) -> None:
        """Replace `values` by their sum over all ranks."""
        if self.size > 1:
            dist.all_reduce(values)

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its sum over all ranks; a rank without one brings zeros."""
        if self.size == 1:
            return
        learned = [p for p in parameters if p.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in learned]
        # As one: a message for each of many small tensors would cost more than what it carries.
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        pieces = torch.split(flat, [grad.numel() for grad in grads])
        for parameter, piece in zip(learned, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Rank 0 goes through the block first: it builds what the others then find.

        Raises:
            DataError: on the other ranks, where rank 0 has failed.
        """
        failed = torch.zeros(1)
        if self.rank > 0:
            self.add(failed)
            if failed.item():
                raise DataError(f"rank {self.rank} stops because rank 0 has; see its message")
            yield
            return
        try:
            yield
        except BaseException:
            failed += 1
            raise
        finally:
            self.add(failed)


@contextmanager
def joined_ranks(timeout: timedelta = _TIMEOUT) -> Iterator[Ranks]:
    """The processes that torchrun has started, joined meanwhile; without it this one alone.

    Args:
        timeout: what a rank waits for another at most.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks()
        return
    dist.init_process_group("gloo", timeout=timeout)
    try:
        yield Ranks(rank=dist.get_rank(), size=dist.get_world_size())
    finally:
        dist.destroy_process_group()


@contextmanager
def shared_run(
    folder: Path,
    config: Any,
    ranks: Ranks,
    *,
    data: Mapping[str, str] | None = None,
    resume: bool = False,
    tensorboard: bool = True,
) -> Iterator[Run]:
    """The run in `folder` on rank 0; on others one that goes on from its checkpoint and is lost.

    Arguments as of `Run.create`, and the same errors; on the other ranks a DataError that says so.
    """
    with TemporaryDirectory(prefix="weft-rank-") as spare:
        with ranks.in_turn():
            if ranks.rank == 0:
                run = Run.create(folder, config, data=data, resume=resume, tensorboard=tensorboard)
            else:
                run = Run.create(spare, config, tensorboard=False)
                if resume and (folder / CHECKPOINT).exists():
                    shutil.copyfile(folder / CHECKPOINT, run.checkpoint)
        with run:
            yield run


class StopTogether:
    """Holds signals back from the training loop until every rank knows of them.

    A rank that stopped by itself would leave the others waiting for its gradients.
    """

    def __init__(self) -> None:
        self._heard: str | None = None
        self._loops: dict[str, Callable[[int, FrameType | None], Any]] = {}
        self._shown = terminals()

    def heard(self) -> Tensor:
        """float64 [3], which of SIGNALS has come here first; to be added over the ranks."""
        if threading.current_thread() is threading.main_thread():
            for name in heard_signals():
                number = getattr(signal, name)
                handler = signal.getsignal(number)
                # The loop has its own only while it runs, and puts the earlier ones back.
                if handler != self._note and callable(handler):
                    self._loops[name] = handler
                    signal.signal(number, self._note)
        return torch.tensor([self._heard == name for name in SIGNALS], dtype=torch.float64)

    def tell(self, heard: Tensor) -> None:
        """Hand a signal that any rank has heard to the loop, which ends after this step."""
        for name, count in zip(SIGNALS, heard.tolist(), strict=True):
            # Where this rank has SIGHUP ignored it stops all the same: the others do.
            handler = self._loops.get(name, self._loops.get("SIGTERM"))
            if count and handler is not None:
                handler(getattr(signal, name), None)
                return

    def _note(self, number: int, frame: FrameType | None) -> None:
        leave_lost_terminal(self._shown)
        name = signal.Signals(number).name
        if self._heard is None:
            self._heard = name
        elif name != "SIGHUP":
            raise KeyboardInterrupt
