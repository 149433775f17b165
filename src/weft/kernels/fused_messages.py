"""Fused messages as a function of tensors: what `message_code` writes, run and differentiated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.checked_indices import right_range
from weft.counting_sort import counting_order, group_starts
from weft.kernels.custom_op import array_of, differentiable_gradients, have_one_loop, require
from weft.kernels.message_code import (
    KNOWN_NUMBERS,
    MOST_FEATURES,
    MessageProgram,
    Reduction,
    compiled_part,
    plain_value,
)

Walk = tuple[Any, Any, Any]


@dataclass(frozen=True, eq=False)
class EdgeWalks:
    """E edges from M senders to N receivers, in any order, and how loops walk them.

    Attributes:
        senders: int64 [E].
        receivers: int64 [E].
        num_senders: M.
        num_receivers: N.
    """

    senders: Tensor
    receivers: Tensor
    num_senders: int
    num_receivers: int
    _inverses: dict[torch.dtype, Tensor] = field(default_factory=dict)

    @property
    def num_edges(self) -> int:
        """E."""
        return self.senders.shape[0]

    @cached_property
    def into(self) -> Walk:
        """Offsets [N + 1], the sender and the number of each edge by receiver; None if sorted."""
        return _walk(self.receivers, self.senders, self.num_receivers, self.num_senders)

    @cached_property
    def out(self) -> Walk:
        """Offsets [M + 1], the receiver and the number of each edge by sender; None if sorted."""
        return _walk(self.senders, self.receivers, self.num_senders, self.num_receivers)

    @cached_property
    def into_tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """`into` as tensors on the edges' device: offsets, senders, numbers of the edges."""
        return _walk_tensors(self.receivers, self.senders, self.num_receivers, self.num_senders)

    @cached_property
    def out_tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """`out` as tensors on the edges' device: offsets, receivers, numbers of the edges."""
        return _walk_tensors(self.senders, self.receivers, self.num_senders, self.num_receivers)

    def both_walks(self) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
        """`into_tensors` and `out_tensors`; a traced graph sorts them itself, uncached."""
        if not torch.compiler.is_compiling():
            return self.into_tensors, self.out_tensors
        return (
            _sorted_walk(self.receivers, self.senders, self.num_receivers),
            _sorted_walk(self.senders, self.receivers, self.num_senders),
        )

    @cached_property
    def in_degrees(self) -> Tensor:
        """int64 [N]."""
        # What is kept must not be an inference tensor: a later training step may need it.
        with torch.inference_mode(mode=False):
            return torch.from_numpy(np.diff(self.into[0]).astype(np.int64))

    def inverse_in_degrees(self, dtype: torch.dtype) -> Tensor:
        """1 / in_degrees, [N]; 1 for a receiver without edges. The same tensor at every call."""
        if dtype not in self._inverses:
            with torch.inference_mode(mode=False):
                self._inverses[dtype] = 1 / self.in_degrees.clamp(min=1).to(dtype)
        return self._inverses[dtype]


def _walk(near: Tensor, far: Tensor, rows: int, others: int) -> Walk:
    right_range(near, rows)
    right_range(far, others)
    ends, partners = array_of(near), array_of(far)
    offsets = group_starts(ends, rows)
    if _ascends(ends):
        return offsets, partners.astype(np.int32), None
    order = counting_order(ends, rows)
    return offsets, partners[order].astype(np.int32), order.astype(np.int32)


def _walk_tensors(
    near: Tensor, far: Tensor, rows: int, others: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`_walk` on any device, whose offsets are int64 and whose other numbers are int32."""
    right_range(near, rows)
    right_range(far, others)
    # What is kept must not be an inference tensor: a later training step may need it.
    with torch.inference_mode(mode=False):
        return _sorted_walk(near.clone(), far.clone(), rows)


def _sorted_walk(near: Tensor, far: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    ends, order = near.sort(stable=True)
    starts = torch.arange(rows + 1, device=near.device, dtype=near.dtype)
    return torch.searchsorted(ends, starts), far.index_select(0, order).int(), order.int()


def _ascends(values: Any) -> bool:
    return bool((values[1:] >= values[:-1]).all())


@dataclass(frozen=True, eq=False)
class SortedRows:
    """Rows of edges in the orders of both walks.

    Attributes:
        rows: array [E, H, C], in the order of the edges.
        edges: whose rows they are.
    """

    rows: Any
    edges: EdgeWalks

    @cached_property
    def into(self) -> Any:
        """The rows in the order of the walk by receiver."""
        order = self.edges.into[2]
        return self.rows if order is None else self.rows[order]

    @cached_property
    def out(self) -> Any:
        """The rows in the order of the walk by sender."""
        order = self.edges.out[2]
        return self.rows if order is None else self.rows[order]


@dataclass(frozen=True, eq=False, kw_only=True)
class _Job:
    """One call, without its leaves."""

    program: MessageProgram
    edges: EdgeWalks
    consts: tuple[float, ...]
    heads: int
    channels: int
    sorted_rows: Mapping[int, SortedRows] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.edges.num_receivers if self.program.reductions else self.edges.num_edges

    def run(self, part: str, asked: tuple[bool, ...], leaves: Sequence[Tensor], *more: Any) -> None:
        """Run a loop of the program on leaves and whatever else it takes."""
        walk = self.edges.out if part == "backward_j" else self.edges.into
        given = [array_of(leaf) for leaf in leaves]
        for k, rows in self.sorted_rows.items():
            given[k] = rows.out if part == "backward_j" else rows.into
        numbers = np.array([*KNOWN_NUMBERS, *self.consts], dtype=given[0].dtype)
        loop = compiled_part(self.program, part, asked)
        arguments = (*given, numbers, *walk, self.heads, self.channels, *more)
        # An edge of such a loop costs several multiply-adds a feature.
        operations = 4 * self.edges.num_edges * self.heads * self.channels
        loop.share(arguments, len(walk[0]) - 1, operations, walk[0])

    def plain(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        """The same in plain torch, for what the loops have no derivatives for."""
        ends = {"i": self.edges.receivers, "j": self.edges.senders}
        rows = [
            leaf.index_select(0, ends[where.place]) if where.place in ends else leaf
            for leaf, where in zip(leaves, self.program.leaves, strict=True)
        ]
        shape = (self.edges.num_edges, self.heads, self.channels)
        value = plain_value(self.program.expression, rows, self.consts).expand(shape)
        if not self.program.reductions:
            return (value.sum(-1, keepdim=True) if self.program.dot else value,)
        zeros = value.new_zeros(self.rows, *shape[1:])
        index = self.edges.receivers[:, None, None].expand(shape)
        return tuple(_reduced(value, kind, zeros, index) for kind in self.program.reductions)


def _reduced(value: Tensor, kind: Reduction, zeros: Tensor, index: Tensor) -> Tensor:
    if kind in ("sum", "squares"):
        return zeros.scatter_add(0, index, value if kind == "sum" else value.square())
    return zeros.scatter_reduce(0, index, value, f"a{kind}", include_self=False)


def fused_messages(
    program: MessageProgram,
    edges: EdgeWalks,
    leaves: Sequence[Tensor],
    consts: Sequence[float],
    sorted_rows: Mapping[int, SortedRows] | None = None,
) -> tuple[Tensor, ...]:
    """The reductions of the program's messages, each [N, H, C]; or the messages themselves.

    Args:
        program: what to compute.
        edges: between which nodes.
        leaves: [rows, H, C], or [rows, H, 1] for leaves by head; float32 or float64, all alike.
        consts: numbers that the expression names.
        sorted_rows: the rows of each leaf that the program calls sorted, by its number.

    Returns:
        A tensor for each reduction. Without any, one: [E, H, C], or [E, H, 1] where the program
        sums over the features of a head.
    """
    heads = leaves[0].shape[1]
    channels = max(leaf.shape[2] for leaf in leaves)
    # What the loops trust.
    rows = {"i": edges.num_receivers, "j": edges.num_senders, "e": edges.num_edges, "v": 1}
    for leaf, tensor in zip(program.leaves, leaves, strict=True):
        shape = (rows[leaf.place], heads, 1 if leaf.by_head else channels)
        require(tensor.shape == shape, f"{leaf} needs the shape {list(shape)}", tensor)
        require(have_one_loop(tensor, leaves[0]), "leaves need one dtype, on the CPU", tensor)
    require(heads * channels <= MOST_FEATURES, f"at most {MOST_FEATURES} features", *leaves)
    sorted_rows = sorted_rows or {}
    for k, leaf in enumerate(program.leaves):
        assert leaf.sorted == (k in sorted_rows)
        assert not leaf.sorted or sorted_rows[k].rows.shape == leaves[k].shape
    job = _Job(
        program=program,
        edges=edges,
        consts=tuple(consts),
        heads=heads,
        channels=channels,
        sorted_rows=sorted_rows,
    )
    out = _Fused.apply(*leaves, job)  # type: ignore[no-untyped-call]
    return out if isinstance(out, tuple) else (out,)


def _places_by_walk(job: _Job, needed: Sequence[bool]) -> tuple[str, str]:
    """The leaves whose gradients are found by receiver, and those by sender.

    Rows of edges go where the edges are in their order, or where the other walk is not needed.
    """
    places = {leaf.place for leaf, asked in zip(job.program.leaves, needed, strict=False) if asked}
    only_out = not places & {"i", "v"} or (
        job.edges.into[2] is not None and job.edges.out[2] is None
    )
    return ("iv", "je") if "j" in places and only_out else ("iev", "j")


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        *leaves, job = arguments
        shape = (job.rows, job.heads, 1 if job.program.dot else job.channels)
        outs: list[Tensor] = []
        counts: list[Any] = []
        written: list[Any] = []
        for reduction in job.program.reductions or ("none",):
            outs.append(leaves[0].new_empty(shape))
            written.append(array_of(outs[-1]))
            counts.append(None)
            if reduction in ("max", "min"):
                counts[-1] = leaves[0].new_empty(shape)
                written.append(array_of(counts[-1]))
        job.run("forward", (False,) * len(leaves), leaves, *written)
        ctx.job = job
        # A maximum is kept, to know which messages were it, and how many.
        kept = [None if n is None else out for out, n in zip(outs, counts, strict=True)]
        ctx.save_for_backward(*leaves, *kept, *counts)
        return tuple(outs) if len(outs) > 1 else outs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        job: _Job = ctx.job
        count = len(job.program.leaves)
        # Read once: what is checkpointed is unpacked at each reading.
        saved = ctx.saved_tensors
        leaves, rest = saved[:count], saved[count:]
        if torch.is_grad_enabled():
            return *differentiable_gradients(ctx, job.plain, leaves, grads), None
        given = []
        for grad, out, shares in zip(grads, rest[: len(grads)], rest[len(grads) :], strict=True):
            if out is None:
                given.append(array_of(grad))
            else:
                # Equal messages share; torch counts the 0 that it begins with as one of them.
                share = grad / (shares + (out == 0))
                given += [array_of(share), array_of(out)]
        found: list[Any] = [None] * count
        into, out = _places_by_walk(job, ctx.needs_input_grad)
        for part, places in (("backward_i", into), ("backward_j", out)):
            asked = tuple(
                needs and leaf.place in places
                for needs, leaf in zip(ctx.needs_input_grad, job.program.leaves, strict=False)
            )
            results = [k for k in range(count) if asked[k]]
            for k in results:
                shared = job.program.leaves[k].place == "v"
                rows = job.edges.num_receivers if shared else leaves[k].shape[0]
                found[k] = leaves[k].new_empty(rows, *leaves[k].shape[1:])
            if results:
                job.run(part, asked, leaves, *given, *(array_of(found[k]) for k in results))
        for k, leaf in enumerate(job.program.leaves):
            if leaf.place == "v" and found[k] is not None:
                found[k] = found[k].sum(0, keepdim=True)
        return *found, None
