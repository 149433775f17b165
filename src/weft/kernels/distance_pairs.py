"""Edges in any order, paired with their reverse where both have one length.

A function of distances is then computed once for a pair. E edges, N nodes, P pairs.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.checked_indices import right_pairs, right_range, right_segments, trust
from weft.counting_sort import counting_order, group_starts
from weft.kernels.custom_op import array_of, require
from weft.kernels.edge_pairs import EdgePairs, Pairs
from weft.kernels.segment_ops import Matrix
from weft.runtime import compiled


@dataclass(frozen=True, eq=False)
class PairedEdges:
    """E edges between N nodes, sorted by receiver, then by sender.

    Attributes:
        order: int64 [E], the edges as they were given, in this order.
        matrix: an entry at (receiver, sender) for each edge.
        reverse: int32 [E], an array: the reverse of each edge, or the edge itself.
    """

    order: Tensor
    matrix: Matrix
    reverse: Any

    @classmethod
    def of(cls, senders: Tensor, receivers: Tensor, nodes: int) -> PairedEdges:
        """The edges from senders [E] to receivers [E], int64.

        Where any edge has no reverse, each is alone.
        """
        require(senders.shape == receivers.shape, "edges need two ends", senders, receivers)
        right_range(senders, nodes)
        right_range(receivers, nodes)
        # Only ordinary tensors can be trusted: torch counts no changes of inference tensors.
        with torch.inference_mode(False):
            return cls._of(array_of(senders), array_of(receivers), nodes)

    @classmethod
    def _of(cls, senders: Any, receivers: Any, nodes: int) -> PairedEdges:
        by_sender = counting_order(senders, nodes)
        order = by_sender[counting_order(receivers[by_sender], nodes)]
        senders, receivers = senders[order], receivers[order]
        leaving = counting_order(senders, nodes)
        # The edges by sender, then by receiver: as many as there are, and in the reverse's place.
        reverse = leaving.astype(np.int32)
        alone = np.arange(len(order), dtype=np.int32)
        mirrored = (senders[leaving] == receivers).all() and (receivers[leaving] == senders).all()
        if not (mirrored and (reverse[reverse] == alone).all()):
            reverse = alone
        rows, columns, entering, departing, leaving = (
            torch.from_numpy(array.astype(np.int32))
            for array in (
                receivers,
                senders,
                group_starts(receivers, nodes),
                group_starts(senders, nodes),
                leaving,
            )
        )
        trust(right_segments, (entering, None, rows), len(order))
        trust(right_segments, (departing, leaving, columns), len(order))
        matrix = Matrix(rows, columns, entering, None, departing, leaving)
        return cls(torch.from_numpy(order), matrix, reverse)

    @functools.cached_property
    def count(self) -> int:
        """E."""
        return self.order.shape[0]

    def pairs(
        self, lengths: Tensor, width: float, bins: int, *, alone: bool = False
    ) -> tuple[Tensor, EdgePairs]:
        """The first edge int64 [P] of each pair, as the edges were given, and the pairs.

        An edge and its reverse are a pair if they have the very same length.

        Args:
            lengths: [E] of the edges as they were given; pairs are sorted by ⌊length / width⌋.
            width: of a step, in the unit of the lengths; above 0.
            bins: steps; whatever is longer is in the last one.
            alone: let each edge be a pair by itself.
        """
        require(lengths.shape == self.order.shape, "edges [E] need a length each", lengths)
        if not (width > 0 and bins > 0):
            raise ValueError(f"{bins} steps of {width} are no order; both must be above 0")
        with torch.inference_mode(False):
            made = [torch.empty(self.count, dtype=torch.int32) for _ in range(3)]
            found = (array_of(t) for t in made)
            d = array_of(lengths)
            reverse = np.arange(self.count, dtype=np.int32) if alone else self.reverse
            count = _sort_pairs(d, array_of(self.order), reverse, width, bins, *found)
            forward, backward, of_edge = made[0][:count], made[1][:count], made[2]
        trust(right_pairs, (forward, backward, of_edge), self.count)
        pairs = EdgePairs(self.matrix, Pairs(forward, backward, of_edge))
        return self.order.index_select(0, forward), pairs


@compiled(error_model="numpy")
def _sort_pairs(
    lengths: Any,
    order: Any,
    reverse: Any,
    width: float,
    bins: int,
    forward: Any,
    backward: Any,
    of_edge: Any,
) -> Any:
    """Fill the pairs, sorted by ⌊length / width⌋; the number of them."""
    edges = order.shape[0]
    keys = np.empty(edges, dtype=np.int32)
    starts = np.zeros(bins + 1, dtype=np.int64)
    for edge in range(edges):
        length = lengths[order[edge]]
        other = reverse[edge]
        if lengths[order[other]] != length:
            other = edge
        # Not this edge's number: its pair is that of its reverse.
        keys[edge] = -1
        if other >= edge:
            # In floats first: a length can be larger than any integer, or not a number.
            # The constant is first: of it and nan, max and min take it.
            key = np.int32(min(bins - 1.0, max(0.0, length / width)))
            keys[edge] = key
            starts[key + 1] += 1
    for key in range(bins):
        starts[key + 1] += starts[key]
    count = starts[bins]
    for edge in range(edges):
        key = keys[edge]
        if key < 0:
            continue
        rank = starts[key]
        starts[key] += 1
        other = reverse[edge]
        if lengths[order[other]] != lengths[order[edge]]:
            other = edge
        forward[rank], backward[rank] = edge, other
        of_edge[edge] = of_edge[other] = rank
    return count
