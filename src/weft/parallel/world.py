"""The ranks of a grid and what they say to each other: recorded collectives over a DeviceMesh."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from weft.errors import DataError
from weft.parallel.device import backend_of, own_device
from weft.parallel.grid import Grid, grid_of
from weft.parallel.meeting import meet
from weft.parallel.recorder import Along, Event, Kind, Recorder

# What a rank waits for another at most; longer than any product takes.
_TIMEOUT = timedelta(minutes=10)
# Longer than anything that one rank does while others wait: building a table, compiling a model.
_LONG_TIMEOUT = timedelta(minutes=30)

_Operation = Literal["sum", "max", "min"]
_OPERATIONS: dict[_Operation, Any] = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}


class FirstFailed(DataError):
    """This rank stops since rank 0 has failed, whose own message says why."""


@dataclass(eq=False)
class Pending:
    """A collective under way.

    Attributes:
        tensor: what it fills; not to be read before `wait`.
    """

    tensor: Tensor
    _work: dist.Work | None
    _event: Event | None
    _recorder: Recorder
    _finish: Callable[[Tensor], Tensor] | None = None

    def wait(self) -> Tensor:
        """The tensor, filled."""
        timed = self._work is not None and self._recorder.timed
        if timed:
            # A GPU's wait is only queued. What was computed before is not the message's time.
            settle(self.tensor.device)
        start = time.perf_counter()
        if self._work is not None:
            self._work.wait()
        if timed:
            settle(self.tensor.device)
        if self._finish is not None:
            self.tensor = self._finish(self.tensor)
        if (event := self._event) is not None:
            seconds = event.seconds + time.perf_counter() - start
            self._recorder.add(replace(event, seconds=seconds))
        self._work = self._event = self._finish = None
        return self.tensor


class World:
    """This rank among those of its grid.

    Every collective must be called by all ranks of its group, in one order on all of them. Groups
    of one rank do nothing and record nothing.

    Attributes:
        grid: the shape.
        rank: the number of this rank.
        place: where it is in the grid.
        device: where it computes. Tensors on the CPU can be sent too, whatever the device is.
        recorder: what it has received so far.
        dry: there are no other ranks. Collectives are recorded, what they bring is undefined.
    """

    def __init__(
        self,
        grid: Grid,
        rank: int,
        groups: dict[Along, dist.ProcessGroup | None] | None,
        device: torch.device,
    ) -> None:
        if not 0 <= rank < grid.ranks:
            raise ValueError(f"rank is {rank} of {grid.ranks}; ranks are counted from 0")
        self.grid, self.rank, self.place = grid, rank, grid.place(rank)
        self.device = device
        # Between GPUs a time costs two waits for the whole stream, so that nothing overlaps.
        self.recorder = Recorder(timed=device.type != "cuda")
        self.dry = groups is None
        self._groups = groups or {}
        self._flats: list[World] = []

    def flat(self) -> World:
        """The same ranks as a grid of one column and one layer; what it records is recorded here.

        For what is cut over all ranks alike, such as the nodes of a `DistributedGraph`.
        """
        whole = self._groups.get("world")
        groups: dict[Along, dist.ProcessGroup | None]
        groups = {"row": whole, "column": None, "layer": None, "weights": whole, "world": whole}
        found = World(Grid(rows=self.ranks), self.rank, None if self.dry else groups, self.device)
        found.recorder = self.recorder
        self._flats.append(found)
        return found

    def leave(self) -> None:
        """Let go of the groups: nothing more is said to the other ranks.

        gloo's threads hold the tensors of the last collectives until their group is gone. One that
        lets go of them while Python ends aborts the process, so no group may live on in a cycle.
        """
        for world in (self, *self._flats):
            world._groups.clear()

    def size(self, along: Along) -> int:
        """Number of ranks in the group."""
        return self.grid.group_size(along)

    def position(self, along: Along) -> int:
        """Position of this rank in the group."""
        place = self.place
        own = {"row": place.row, "column": place.column, "layer": place.layer}
        return {**own, "weights": self.grid.block_of(place), "world": self.rank}[along]

    @property
    def counts(self) -> bool:
        """Whether this rank's rows are counted here, not at another replica of them."""
        return self.place.column == 0 and (not self.grid.replicated or self.place.layer == 0)

    def broadcast(self, along: Along, source: int, tensor: Tensor, purpose: str) -> Pending:
        """Fill `tensor` (contiguous) with that of the group's rank `source`, asynchronously."""
        received = 0 if self.position(along) == source else tensor.nbytes
        send = partial(dist.broadcast, tensor, group_src=source)
        return self._start("broadcast", along, received, purpose, tensor, send)

    def all_reduce(
        self, along: Along, tensor: Tensor, purpose: str, op: _Operation = "sum"
    ) -> Tensor:
        """Replace `tensor` (contiguous) by its sum, maximum or minimum over the group."""
        size = self.size(along)
        received = 2 * (tensor.nbytes * (size - 1) // size)
        send = partial(dist.all_reduce, tensor, _OPERATIONS[op])
        return self._start("all_reduce", along, received, purpose, tensor, send).wait()

    def reduce_scatter(
        self, along: Along, whole: Tensor, sizes: Sequence[int], dim: int, purpose: str
    ) -> Tensor:
        """This rank's part of the sum over the group of everyone's `whole`.

        On the CPU they are added in the order of the ranks, so that a sum is always the same.

        Args:
            along: the group.
            whole: cut along `dim` into parts for the group's ranks.
            sizes: of the parts, any.
            dim: 0 or 1.
            purpose: what it is for.
        """
        if self.size(along) == 1:
            return whole
        parts = torch.split(whole, list(sizes), dim)
        own = parts[self.position(along)]
        received = (len(parts) - 1) * own.nbytes
        if whole.is_cuda:
            # NCCL's own brings as much, on the ways that it knows between GPUs.
            out = torch.empty_like(own, memory_format=torch.contiguous_format)
            send = partial(dist.reduce_scatter, out, [part.contiguous() for part in parts])
            return self._start("reduce_scatter", along, received, purpose, out, send).wait()
        # gloo has none: torch would sum the whole on every rank, which is twice as much.
        flat = whole.flatten() if dim == 0 else torch.cat([part.flatten() for part in parts])
        found = whole.new_empty(len(parts), *own.shape)
        counts = [part.numel() for part in parts]
        each = [own.numel()] * len(parts)
        send = partial(dist.all_to_all_single, found.view(-1), flat, each, counts)
        return self._start(
            "reduce_scatter", along, received, purpose, found, send, _sum_in_order
        ).wait()

    def all_gather(self, along: Along, own: Tensor, widths: Sequence[int], purpose: str) -> Tensor:
        """Everyone's columns beside each other, [N, Σ widths], of own [N, widths[position]]."""
        if self.size(along) == 1:
            return own
        # torch gathers tensors of one size only.
        widest = max(widths)
        padded = own.new_zeros(own.shape[0], widest)
        padded[:, : own.shape[1]] = own
        found = own.new_zeros(len(widths), own.shape[0], widest)
        received = found.nbytes - padded.nbytes
        send = partial(dist.all_gather, list(found), padded)
        self._start("all_gather", along, received, purpose, found, send).wait()
        return torch.cat([part[:, :width] for part, width in zip(found, widths, strict=True)], 1)

    def all_to_all(
        self,
        along: Along,
        rows: Tensor,
        send_counts: Sequence[int],
        receive_counts: Sequence[int],
        purpose: str,
    ) -> Pending:
        """Rows [Σ receive_counts, ...] from everyone, for rows [Σ send_counts, ...] to everyone."""
        found = rows.new_empty(sum(receive_counts), *rows.shape[1:])
        own = receive_counts[self.position(along)]
        assert own == 0, "a rank's own rows do not travel"
        counts = list(receive_counts), list(send_counts)
        send = partial(dist.all_to_all_single, found, rows, *counts)
        return self._start("all_to_all", along, found.nbytes, purpose, found, send)

    @property
    def ranks(self) -> int:
        """How many ranks there are in all."""
        return self.grid.ranks

    # What follows is about a run, not about a product of the grid, and is not recorded.

    def reduce(self, values: Tensor, op: _Operation = "sum") -> None:
        """Replace `values` by their sum, maximum or minimum over all ranks."""
        if self._talks:
            dist.all_reduce(values, _OPERATIONS[op], group=self._groups["world"])

    def add_gradients(self, parameters: Iterable[nn.Parameter], purpose: str | None = None) -> None:
        """Replace every gradient by its sum over all ranks; a rank without one brings zeros.

        Recorded, if it has a purpose.
        """
        learned = [p for p in parameters if p.requires_grad]
        if self.ranks == 1 or not learned:
            return
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in learned]
        # As one: a message for each of many small tensors would cost more than what it carries.
        flat = torch.cat([grad.flatten() for grad in grads])
        if purpose is None:
            self.reduce(flat)
        else:
            self.all_reduce("world", flat, purpose)
        pieces = torch.split(flat, [grad.numel() for grad in grads])
        for parameter, piece in zip(learned, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)

    def broadcast_from_rank0(self, work: Callable[[], Any]) -> Any:
        """What `work` gives on rank 0, on every rank; all of them must call this.

        Raises:
            DataError: with the same words on every rank, where rank 0 has met a user error or a
                file that it cannot read or write.
        """
        if not self._talks:
            return work()
        # What it gives, and why it gives nothing.
        said: list[Any] = [None, None]
        failed: BaseException | None = None
        if self.rank == 0:
            try:
                said[0] = work()
            except BaseException as error:
                failed, told = error, isinstance(error, ValueError | OSError)
                said[1] = str(error) if told else "rank 0 has failed; see its message"
        dist.broadcast_object_list(said, 0)
        if failed is not None:
            raise failed
        if said[1] is not None:
            raise DataError(said[1])
        return said[0]

    def all_texts(self, text: str) -> list[str]:
        """Everyone's text, in the order of the ranks."""
        found = [text] * self.ranks
        if self._talks:
            dist.all_gather_object(found, text)
        return found

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Rank 0 goes through the block first: it builds what the others then find.

        Raises:
            FirstFailed: on the other ranks, where rank 0 has failed.
        """
        failed = torch.zeros(1)
        if self.rank > 0:
            self.reduce(failed)
            if failed.item():
                raise FirstFailed(
                    f"rank {self.rank} stops because rank 0 has stopped; see its message"
                )
            yield
            return
        try:
            yield
        except BaseException:
            failed += 1
            raise
        finally:
            self.reduce(failed)

    @property
    def _talks(self) -> bool:
        return self.ranks > 1 and not self.dry

    def _start(
        self,
        kind: Kind,
        along: Along,
        received: int,
        purpose: str,
        tensor: Tensor,
        send: Callable[..., Any],
        finish: Callable[[Tensor], Tensor] | None = None,
    ) -> Pending:
        """Start a collective, unless the group is this rank alone or the world is dry."""
        size = self.size(along)
        if size == 1:
            return Pending(tensor, None, None, self.recorder)
        start = time.perf_counter()
        work = None
        if not self.dry:
            group = self._groups[along]
            assert group is not None
            work = send(group=group, async_op=True)
        event = Event(
            kind=kind,
            along=along,
            group=size,
            bytes=received,
            seconds=time.perf_counter() - start,
            purpose=purpose,
        )
        return Pending(tensor, work, event, self.recorder, finish)


def _sum_in_order(parts: Tensor) -> Tensor:
    """The sum [...] of two or more parts [g, ...], the first first, in memory of its own."""
    total = parts[0] + parts[1]
    for part in parts[2:]:
        total += part
    return total


def settle(device: torch.device) -> None:
    """Wait until a GPU has done what it was given; on a CPU everything is done at once."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def alone(grid: Grid, rank: int, device: torch.device | None = None) -> World:
    """Rank `rank` of a grid whose other ranks are not there: for counting what it would receive."""
    return World(grid, rank, None, device or torch.device("cpu"))


def single(device: torch.device | None = None) -> World:
    """This process alone, by default on the CPU."""
    return World(Grid(rows=1), 0, {}, device or torch.device("cpu"))


@contextmanager
def joined(
    name: str,
    replication: int | None = None,
    *,
    device: torch.device | None = None,
    timeout: timedelta = _TIMEOUT,
    tell: Callable[[str], object] | None = None,
) -> Iterator[World]:
    """The processes that torchrun has started, joined to a grid; without it this one alone.

    They meet through gloo, and part at the end; those that have joined a group already stay in it.

    Args:
        name: of the grid, see `grid_of`.
        replication: of 1.5d.
        device: to compute on, a GPU with its index; by default that of `own_device`.
        timeout: what a rank waits for another at most.
        tell: takes a sentence of rank 0 about ranks that are late.

    Raises:
        DataError: on every rank: some have not joined in time, or have another version of weft,
            torch or Python.
        ValueError: the grid does not fit the number of processes, on every rank; there are fewer
            GPUs than ranks on this host.
    """
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    grid = grid_of(name, ranks, replication)
    device = device or own_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if ranks == 1:
        yield World(grid, 0, {}, device)
        return
    starts = not dist.is_initialized()
    if starts:
        meet(timeout, tell)
    try:
        world = World(grid, dist.get_rank(), _groups(grid, device, timeout), device)
        yield world
        world.leave()
    finally:
        if starts:
            dist.destroy_process_group()


def joined_replicas(
    timeout: timedelta = _LONG_TIMEOUT,
    device: torch.device | None = None,
    *,
    tell: Callable[[str], object] | None = None,
) -> AbstractContextManager[World]:
    """The processes that torchrun has started, each with the whole model, by default on the CPU.

    They share every batch of a training run. Without torchrun this process is alone.
    """
    return joined("1d", device=device or torch.device("cpu"), timeout=timeout, tell=tell)


def _groups(
    grid: Grid, device: torch.device, timeout: timedelta
) -> dict[Along, dist.ProcessGroup | None]:
    """The groups that this rank is in; None for one of this rank alone."""
    dist.distributed_c10d._set_pg_timeout(timeout, dist.group.WORLD)
    world = dist.group.WORLD
    if device.type == "cuda":
        # All ranks may have met through gloo before anything was said of GPUs.
        world = dist.new_group(backend=backend_of(device), timeout=timeout)
    whole: dict[Along, int] = {"row": grid.rows, "column": grid.columns, "layer": grid.layers}
    sides = {name: side for name, side in whole.items() if side > 1}
    groups: dict[Along, dist.ProcessGroup | None] = {**dict.fromkeys(whole), "world": world}
    if len(sides) == 1:
        # What goes through the whole grid is the group of all ranks, which there is already.
        groups |= dict.fromkeys(sides, world)
    else:
        mesh = init_device_mesh(
            "cuda" if device.type == "cuda" else "cpu",
            tuple(sides.values()),
            mesh_dim_names=tuple(sides),
            backend_override={name: _backend(device, timeout) for name in sides},
        )
        groups |= {name: mesh.get_group(name) for name in sides}
    if grid.replicated or grid.layers == 1:
        groups["weights"] = groups["row"]
    elif grid.columns == 1:
        groups["weights"] = world
    elif grid.rows == 1:
        groups["weights"] = groups["layer"]
    else:
        flat = mesh["row", "layer"]._flatten("weights", _backend(device, timeout))
        groups["weights"] = flat.get_group()
    return groups


def _backend(device: torch.device, timeout: timedelta) -> tuple[str, Any]:
    """Backend and options of one group of a mesh, whose own timeout would be half an hour.

    Made again for each: a group of NCCL writes its name into its options.
    """
    options: Any
    if device.type == "cuda":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
    else:
        options = dist.ProcessGroupGloo.Options("gloo", timeout)  # type: ignore[no-untyped-call, call-arg]
    return backend_of(device), options
