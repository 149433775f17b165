"""TypedEdges: the sparse form of an adjacency with edge types, for any order of nodes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import DataError
from weft.graphs import Array, GraphBatch
from weft.kernels import typed_messages

__all__ = ["TYPE", "TypedEdges", "distinct_edges", "edges_of"]

TYPE = "type"
"""The edge column with an edge's type."""

# Rows of a chunk: enough for a fast product; more chunks than threads, each with a matrix to sum.
_CHUNK_ROWS = 2048


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

    A row is a receiver, whose messages are summed before its type's matrix is applied
    (`aggregate`), or a sender, whose message is made once for all its receivers (`transform`):
    whichever has fewer rows. Types are sorted, rows without edges do not exist.

    Attributes:
        into_offsets: int32 [R + 1]; row r sums the nodes into_nodes[into_offsets[r]:...].
        into_nodes: int32.
        into_t_offsets: int32 [N + 1], the transpose of it.
        into_t_rows: int32.
        out_offsets: int32 [N + 1]; node v sums the rows out_rows[out_offsets[v]:...].
        out_rows: int32.
        out_t_offsets: int32 [R + 1], the transpose of it.
        out_t_nodes: int32.
        counts: float32 [R], how many biases of its type a row brings.
        chunk_types: int32 [C], the type of each chunk of rows.
        chunk_starts: int32 [C + 1].
        num_types: P.
        aggregate: whether a row is a receiver.
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
    aggregate: bool

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
            aggregate: whether rows are receivers; None takes what makes fewer rows.
        """
        of, to, kinds = distinct_edges(senders, receivers, types, num_nodes, num_types)
        # Sorted by (type, receiver) already; by (type, sender) it takes a stable sort.
        by_receiver = kinds * num_nodes + to
        by_sender = kinds * num_nodes + of
        order = np.argsort(by_sender, kind="stable")
        if aggregate is None:
            aggregate = _distinct(by_receiver) <= _distinct(by_sender[order])
        if not aggregate:
            of, to, kinds = of[order], to[order], kinds[order]
        keys = by_receiver if aggregate else by_sender[order]
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        rows = np.cumsum(np.diff(keys, prepend=-1) != 0) - 1
        offsets = np.append(starts, len(keys))
        own = np.arange(len(starts) + 1)
        nodes = keys[starts] % max(num_nodes, 1)
        row_types = keys[starts] // max(num_nodes, 1)
        one_each, one_each_t = (own, nodes), _transposed(own[:-1], nodes, num_nodes)
        edges = (offsets, of if aggregate else to)
        edges_t = _transposed(rows, edges[1], num_nodes)
        into, into_t = (edges, edges_t) if aggregate else (one_each, one_each_t)
        back, back_t = (one_each, one_each_t) if aggregate else (edges, edges_t)
        chunk_types, chunk_starts = _chunks(row_types, num_types)
        indices = (*into, *into_t, *back_t, *back, chunk_types, chunk_starts)
        tensors = [torch.from_numpy(np.asarray(part, dtype=np.int32)) for part in indices]
        counts = np.diff(offsets) if aggregate else np.ones(len(starts))
        return cls(
            into_offsets=tensors[0],
            into_nodes=tensors[1],
            into_t_offsets=tensors[2],
            into_t_rows=tensors[3],
            out_offsets=tensors[4],
            out_rows=tensors[5],
            out_t_offsets=tensors[6],
            out_t_nodes=tensors[7],
            counts=torch.from_numpy(counts.astype(np.float32)),
            chunk_types=tensors[8],
            chunk_starts=tensors[9],
            num_types=num_types,
            aggregate=aggregate,
        )

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

    def to(self, device: torch.device | str) -> TypedEdges:
        """The same on another device."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        moved: dict[str, Any] = {
            name: value.to(device) if isinstance(value, Tensor) else value
            for name, value in values.items()
        }
        return TypedEdges(**moved)

    def propagate(self, h: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Σ over incoming edges of h[sender] @ weight[type] + bias[type], [N, O].

        Args:
            h: [N, H].
            weight: [P, H, O].
            bias: [P, O].
        """
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


def _distinct(keys: Array) -> int:
    """Different values of sorted keys."""
    return int(np.count_nonzero(np.diff(keys, prepend=-1)))


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
