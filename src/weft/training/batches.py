"""The training batches of anybody's iterable, and how to come back into the middle of an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from weft.batching.loader import locks_memory
from weft.errors import DataError
from weft.training.randomness import random_state, set_random_state, torch_random_state

if TYPE_CHECKING:
    from weft.parallel.world import World


@runtime_checkable
class Stateful(Protocol):
    """Something with a state that a checkpoint must hold."""

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Take a state back."""


def graphs_in(batch: Any) -> int:
    """Real graphs in a batch: padding is not counted; rows of a tensor; 1 for anything unknown."""
    for name in ("num_real_graphs", "graph_mask", "num_graphs"):
        count = getattr(batch, name, None)
        if isinstance(count, Tensor):
            # Of torch_geometric's batches, whose num_graphs includes the padding.
            count = int(count.sum())
        if isinstance(count, int):
            return count
    if isinstance(batch, (tuple, list)) and batch:
        return graphs_in(batch[0])
    if isinstance(batch, Tensor) and batch.dim() > 0:
        return batch.shape[0]
    return 1


@dataclass(frozen=True, eq=False)
class Share:
    """A rank's part of a batch that several ranks share.

    Attributes:
        batch: of the same kind as the whole one.
        counts: False where the batch has too few graphs to give this rank any: `batch` is then a
            stand-in that another rank has as well, so that every rank computes something.
    """

    batch: Any
    counts: bool = True


def share_of(rows: Any, rank: int, ranks: int) -> tuple[Any, bool]:
    """The rows of a batch that a rank computes with, and whether they are its own, see `Share`."""
    own = rows[rank::ranks]
    return (own, True) if len(own) else (rows[:1], False)


class RowBatches:
    """Batches of `batch_size` rows of some tensors, in an order of its own for each epoch.

    The order is a function of (seed, epoch), so that a resumed run finds it again. With a `world`
    of several ranks each of them gets its `Share` of every batch.
    """

    def __init__(
        self, *tensors: Tensor, batch_size: int, seed: int = 0, world: World | None = None
    ) -> None:
        rows = {len(tensor) for tensor in tensors}
        assert len(rows) == 1, f"tensors of {rows} rows"
        self.tensors, self.batch_size, self.seed = tensors, batch_size, seed
        self.rows, self.epoch = rows.pop(), 0
        self._rank, self._ranks = (0, 1) if world is None else (world.rank, world.ranks)

    def __len__(self) -> int:
        return -(-self.rows // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for this epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, ...] | Share]:
        generator = torch.Generator().manual_seed((self.seed << 32) + self.epoch)
        order = torch.randperm(self.rows, generator=generator)
        # Where the tensors are.
        device = self.tensors[0].device
        locks = locks_memory(device)
        order = (order.pin_memory() if locks else order).to(device, non_blocking=locks)
        for chosen in torch.split(order, self.batch_size):
            if self._ranks == 1:
                yield tuple(tensor[chosen] for tensor in self.tensors)
            else:
                rows, counts = share_of(chosen, self._rank, self._ranks)
                yield Share(tuple(tensor[rows] for tensor in self.tensors), counts)


class Batches:
    """Iterates `train` once an epoch and knows how to find a place in an epoch again.

    An object with `state_dict` and `load_state_dict` finds its place by itself. For any other the
    epoch is replayed: the random numbers that it began with are put back, the batches that were
    used are passed over, and then the random numbers of the checkpoint are put back.
    """

    def __init__(self, train: Iterable[Any]) -> None:
        if not isinstance(train, Iterable):
            raise ValueError(
                f"train is a {type(train).__name__}, not a sequence of batches; for one batch an "
                "epoch give [batch]"
            )
        self._train = train
        self._parts = _parts(train)
        self._generators = _generators(self._parts)
        # Where the epoch began, and whether it is still open.
        self._start: dict[str, Any] = {}
        self._inside = False
        self._mark: list[list[Tensor]] = []
        self._resuming: dict[str, Any] | None = None

    def open(self, epoch: int) -> Iterator[Any]:
        """The batches of `epoch` (from 0) that are still to come."""
        resuming, self._resuming = self._resuming, None
        if resuming is None:
            # Before set_epoch, which may draw the order of the epoch already.
            random = random_state(self._generators)
            self._set_epoch(epoch)
            self._start = {"random": random, "state": self._state(), "count": self.count()}
            batches = iter(self._train)
        else:
            self._start = resuming["start"]
            set_random_state(self._start["random"], self._generators)
            self._set_epoch(epoch)
            self._check_count(self._start["count"])
            if resuming["state"] is not None:
                self._stateful().load_state_dict(resuming["state"])
            batches = iter(self._train)
            for passed in range(resuming["skip"]):
                if next(batches, self) is self:
                    raise DataError(
                        f"the checkpoint is after batch {resuming['skip']} of epoch {epoch + 1}, "
                        f"but the training data now ends after {passed}; resume with the same data"
                    )
            set_random_state(resuming["random"], self._generators)
        self._inside = True
        return batches

    def mark(self) -> None:
        """Remember torch's random numbers, for `state(rewind=True)`.

        Called before every batch, so only what is cheap is kept: Python's and numpy's random
        numbers would take 70 µs.
        """
        self._mark = [torch_random_state(), [each.get_state() for each in self._generators]]

    def close(self) -> None:
        """The epoch is over."""
        self._inside = False

    def state(self, position: int, *, rewind: bool = False) -> dict[str, Any]:
        """What `resume` needs to go on after `position` batches of the epoch.

        With `rewind` the last batch handed out, fetched after `mark`, is to come again.
        """
        if self._resuming is not None:
            return self._resuming
        now = random_state(self._generators)
        if rewind:
            now["torch"], now["generators"] = self._mark
        replay = rewind or not isinstance(self._train, Stateful)
        return {
            "inside": self._inside,
            "random": now,
            "start": self._start,
            "state": self._start.get("state") if replay else self._state(),
            "skip": position if replay else 0,
        }

    def resume(self, state: dict[str, Any]) -> None:
        """Let the next `open` go on where `state` was taken."""
        if isinstance(self._train, Stateful) != (state["state"] is not None):
            raise DataError(
                "the checkpoint was made with another kind of training data (one of them has a "
                "state_dict, the other has not); resume with the same data"
            )
        if len(self._generators) != len(state["random"]["generators"]):
            raise DataError(
                f"the checkpoint was made with {len(state['random']['generators'])} random "
                f"generators in the training data, now there are {len(self._generators)}; resume "
                "with the same data"
            )
        if state["inside"]:
            self._resuming = state
            return
        # Where set_epoch is called each epoch may have its own number of batches.
        if not any(hasattr(part, "set_epoch") for part in self._parts):
            self._check_count(state["start"].get("count"))
        set_random_state(state["random"], self._generators)
        if state["state"] is not None:
            self._stateful().load_state_dict(state["state"])

    def count(self) -> int | None:
        """Batches in this epoch, if `train` knows."""
        try:
            return len(self._train)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):
            return None

    def _check_count(self, before: int | None) -> None:
        """Refuse another number of batches; what has a state of its own may look for itself."""
        now = self.count()
        if before is None or now is None or before == now or isinstance(self._train, Stateful):
            return
        raise DataError(
            f"the checkpoint was made with {before} batches an epoch, now there are {now}; resume "
            "with the same data"
        )

    def _state(self) -> dict[str, Any] | None:
        return self._train.state_dict() if isinstance(self._train, Stateful) else None

    def _stateful(self) -> Stateful:
        assert isinstance(self._train, Stateful)
        return self._train

    def _set_epoch(self, epoch: int) -> None:
        for part in self._parts:
            if hasattr(part, "set_epoch"):
                part.set_epoch(epoch)


def _parts(train: Any) -> list[Any]:
    """`train` and the samplers inside it, as a DataLoader has them; each once."""
    parts = [train]
    for part in parts:
        for name in ("sampler", "batch_sampler"):
            inner = getattr(part, name, None)
            if inner is not None and not any(inner is known for known in parts):
                parts.append(inner)
    return parts


def _generators(parts: list[Any]) -> list[torch.Generator]:
    """The torch generators of their own that the parts draw from; each once."""
    found: list[torch.Generator] = []
    for part in parts:
        generator = getattr(part, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not g for g in found):
            found.append(generator)
    return found
