"""TypedEdges: the sparse form of an adjacency with edge types, for any order of nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.checked_indices import is_known, right_range, right_segments, right_transposes, trust
from weft.errors import DataError
from weft.graphs import Array, GraphBatch
from weft.kernels import typed_messages
from weft.kernels.custom_op import require
from weft.kernels.edge_types import know_chunks, known_chunks

TYPE = "type"
"""The edge column with an edge's type."""

# Rows of a chunk: enough for a fast product; more chunks than threads, each with a matrix to sum.
_CHUNK_ROWS = 2048
# The fields of TypedEdges with indices, in the order in which they are made.
_INDICES = (
    *("into_offsets", "into_nodes", "into_t_offsets", "into_t_rows"),
    *("out_offsets", "out_rows", "out_t_offsets", "out_t_nodes"),
    *("chunk_types", "chunk_starts"),
)


def distinct_edges(
    senders: Array, receivers: Array, types: Array, num_nodes: int, num_types: int
) -> tuple[Array, Array, Array]:
    """(sender, receiver, type) of the edges, each once, sorted by type, receiver and sender.

    Raises:
        DataError: an edge to a node or of a type that is not there.
    """
    kinds = np.asarray(types, dtype=np.int64)
    to, of = np.asarray(receivers, dtype=np.int64), np.asarray(senders, dtype=np.int64)
    if not len(kinds) == len(to) == len(of):
        raise DataError(
            f"{len(of)} senders, {len(to)} receivers and {len(kinds)} types; every edge has one of "
            "each"
        )
    for name, ends, limit in (
        ("sender", of, num_nodes),
        ("receiver", to, num_nodes),
        ("type", kinds, num_types),
    ):
        wrong = (ends < 0) | (ends >= limit)
        if wrong.any():
            edge = int(np.flatnonzero(wrong)[0])
            raise DataError(
                f"edge {edge} has {name} {int(ends[edge])}; there are {limit}, counted from 0"
            )
    keys = np.unique((kinds * num_nodes + to) * num_nodes + of)
    rows, of = np.divmod(keys, max(num_nodes, 1))
    kinds, to = np.divmod(rows, max(num_nodes, 1))
    return of, to, kinds


@dataclass(frozen=True, kw_only=True, eq=False)
class TypedEdges:
    """E distinct edges of P types between N nodes, as R rows of a type and a node each.

    A row is a receiver, whose messages are summed before its type's matrix is applied, or a sender,
    whose message is made once for all its receivers: for each type whichever has fewer rows. A
    tree's edges to the leaves are few senders, those to the root few receivers. Rows are sorted by
    type, those without edges do not exist.

    Attributes:
        into_offsets: int32 [R + 1]; row r sums the nodes into_nodes[into_offsets[r]:...].
        into_nodes: int32.
        into_t_offsets: int32 [N + 1], its transpose.
        into_t_rows: int32.
        out_offsets: int32 [N + 1]; node v sums the rows out_rows[out_offsets[v]:...].
        out_rows: int32.
        out_t_offsets: int32 [R + 1], its transpose.
        out_t_nodes: int32.
        counts: float32 [R], how many times a row adds the bias of its type.
        chunk_types: int32 [C], the type of each chunk of rows.
        chunk_starts: int32 [C + 1].
        num_types: P.
    """

    into_offsets: Tensor
    into_nodes: Tensor
    into_t_offsets: Tensor
    into_t_rows: Tensor
    out_offsets: Tensor
    out_rows: Tensor
    out_t_offsets: Tensor
    out_t_nodes: Tensor
    counts: Tensor
    chunk_types: Tensor
    chunk_starts: Tensor
    num_types: int

    @classmethod
    def of(
        cls,
        senders: Array,
        receivers: Array,
        types: Array,
        num_nodes: int,
        num_types: int,
        *,
        aggregate: bool | None = None,
    ) -> TypedEdges:
        """The form of these edges; duplicates count once.

        Args:
            senders: int [E].
            receivers: int [E].
            types: int [E], from 0.
            num_nodes: N.
            num_types: P.
            aggregate: whether rows are receivers; None takes for each type what makes fewer rows.
        """
        of, to, kinds = distinct_edges(senders, receivers, types, num_nodes, num_types)
        # Sorted by (type, receiver) already; by (type, sender) it takes a stable sort.
        by_receiver, by_sender = kinds * num_nodes + to, kinds * num_nodes + of
        if aggregate is None:
            summed = rows_by_type(by_receiver, num_nodes, num_types) <= rows_by_type(
                by_sender, num_nodes, num_types
            )
        else:
            summed = np.full(num_types, aggregate)
        keys = np.where(summed[kinds], by_receiver, by_sender)
        order = np.argsort(keys, kind="stable")
        of, to, keys = of[order], to[order], keys[order]
        first = np.diff(keys, prepend=-1) != 0
        rows, sums = np.cumsum(first) - 1, summed[kinds[order]]
        counts = np.diff(np.append(np.flatnonzero(first), len(keys)))
        row_sums = sums[first]
        # The end that all edges of a row have in common is stored once.
        into, back = sums | first, ~sums | first
        plans = (
            _csr(np.where(row_sums, counts, 1), of[into]),
            _transposed(rows[into], of[into], num_nodes),
            _transposed(rows[back], to[back], num_nodes),
            _csr(np.where(row_sums, 1, counts), to[back]),
        )
        assert all(len(columns) == offsets[-1] for offsets, columns in plans)
        chunks = _chunks(kinds[order][first], num_types)
        indices = (*(part for plan in plans for part in plan), *chunks)
        tensors = [torch.from_numpy(np.asarray(part, dtype=np.int32)) for part in indices]
        biases = np.where(row_sums, counts, 1).astype(np.float32)
        edges = cls(
            **dict(zip(_INDICES, tensors, strict=True)),
            counts=torch.from_numpy(biases),
            num_types=num_types,
        )
        for fact in edges._facts():
            trust(*fact)
        return edges

    @classmethod
    def of_batch(cls, batch: GraphBatch, num_types: int) -> TypedEdges:
        """The form of a batch's real edges; those without a column `type` are all of type 0."""
        return cls.of(*edges_of(batch), batch.num_nodes, num_types)

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.out_offsets.shape[0] - 1

    @property
    def num_rows(self) -> int:
        """R, rows that are multiplied with a matrix."""
        return self.into_offsets.shape[0] - 1

    @property
    def num_edges(self) -> int:
        """E, each distinct edge once."""
        # A row has one sender or one receiver.
        return int((self.into_offsets.diff() * self.out_t_offsets.diff()).sum())

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> TypedEdges:
        """The same on another device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def map(self, change: Callable[[Tensor], Tensor]) -> TypedEdges:
        """The same with every tensor copied by `change`, in a fixed order of the tensors."""
        moved: dict[str, Any] = {
            name: change(getattr(self, name)) for name in (*_INDICES, "counts")
        }
        there = replace(self, **moved)
        for own, fact in zip(self._facts(), there._facts(), strict=True):
            if is_known(*own):
                trust(*fact)
        chunks = known_chunks(self.chunk_types, self.chunk_starts)
        know_chunks(there.chunk_types, there.chunk_starts, chunks)
        return there

    def _facts(self) -> list[tuple[Any, ...]]:
        """The checks that the operator makes of these indices, each with its arguments."""
        into = (self.into_offsets, self.into_nodes, self.into_t_offsets, self.into_t_rows)
        out = (self.out_t_offsets, self.out_t_nodes, self.out_offsets, self.out_rows)
        return [
            (right_transposes, into),
            (right_transposes, out),
            (right_segments, (self.chunk_starts, None, None), self.num_rows),
            (right_range, (self.chunk_types,), self.num_types),
        ]

    def propagate(self, h: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Σ over incoming edges of h[sender] @ weight[type] + bias[type], [N, O].

        Args:
            h: [N, H].
            weight: [P, H, O].
            bias: [P, O].
        """
        # The loops look up a matrix by an edge's type, and trust it.
        right = weight.ndim == 3 and weight.shape[0] == self.num_types
        require(right, f"weight [{self.num_types}, H, O] needed", weight)
        return typed_messages(
            h,
            weight,
            bias,
            (self.into_offsets, self.into_nodes),
            (self.into_t_offsets, self.into_t_rows),
            (self.out_offsets, self.out_rows),
            (self.out_t_offsets, self.out_t_nodes),
            self.counts,
            self.chunk_types,
            self.chunk_starts,
        )


def edges_of(batch: GraphBatch) -> tuple[Array, Array, Array]:
    """Senders, receivers and types of a batch's real edges."""
    real = int(batch.edge_mask.sum())
    senders, receivers = (ends[:real].cpu().numpy() for ends in (batch.senders, batch.receivers))
    types = batch.edges.get(TYPE)
    kinds = np.zeros(real, np.int64) if types is None else types[:real].cpu().numpy()
    return senders, receivers, kinds


def rows_by_type(keys: Array, num_nodes: int, num_types: int) -> Array:
    """Different keys type · N + node of each type, [P]."""
    return np.bincount(np.unique(keys) // max(num_nodes, 1), minlength=num_types)


def _csr(lengths: Array, columns: Array) -> tuple[Array, Array]:
    """Offsets of rows of these lengths, and their columns."""
    return np.append(0, np.cumsum(lengths)), columns


def _transposed(rows: Array, columns: Array, num_columns: int) -> tuple[Array, Array]:
    """CSR of the transpose: offsets [num_columns + 1] and the rows of each column, ascending."""
    offsets = np.zeros(num_columns + 1, dtype=np.int64)
    np.cumsum(np.bincount(columns, minlength=num_columns), out=offsets[1:])
    return offsets, rows[np.argsort(columns, kind="stable")]


def _chunks(row_types: Array, num_types: int) -> tuple[Array, Array]:
    """Types [C] and starts [C + 1] of chunks of rows of one type each."""
    counts = np.bincount(row_types, minlength=num_types)
    pieces = -(-counts // _CHUNK_ROWS)
    types = np.repeat(np.arange(num_types), pieces)
    starts = [np.zeros(0, dtype=np.int64)]
    begin = 0
    for count, parts in zip(counts.tolist(), pieces.tolist(), strict=True):
        starts.append(begin + count * np.arange(parts) // max(parts, 1))
        begin += count
    return types, np.append(np.concatenate(starts), begin)
