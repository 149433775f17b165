"""What the edges so far say of a pair of nodes: trivial predictors, and features for a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Array
from weft.runtime import compiled
from weft.sources import EdgeList


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkHistory:
    """The edges of a temporal graph up to a moment; all that is said here follows from these.

    A place in time is the number of edges up to then, those of the same time included, so that
    neither unit nor origin of the times matters.

    Attributes:
        num_nodes: n.
        edges: how many there are, repeated ones too.
        pairs: int64 [p, 2], from and to of each distinct edge, ascending.
        counts: int64 [p], how often it occurred.
        last: int64 [p], the place in time of its latest occurrence, 1 to `edges`.
    """

    num_nodes: int
    edges: int
    pairs: Array
    counts: Array
    last: Array

    @classmethod
    def of(cls, edges: EdgeList) -> LinkHistory:
        """That of an edge list with times."""
        assert edges.time is not None
        count = edges.num_edges
        place = np.searchsorted(np.sort(edges.time), edges.time, side="right")
        keys = edges.senders.astype(np.int64) * edges.num_nodes + edges.receivers
        # Of equal keys the latest comes last.
        order = np.lexsort((place, keys))
        ordered = keys[order]
        ends = np.flatnonzero(np.r_[ordered[1:] != ordered[:-1], [True] * bool(count)])
        distinct = ordered[ends]
        return cls(
            num_nodes=edges.num_nodes,
            edges=count,
            pairs=np.column_stack(np.divmod(distinct, max(1, edges.num_nodes))),
            counts=np.diff(ends, prepend=-1),
            last=place[order[ends]].astype(np.int64),
        )

    def check(self) -> None:
        """Raise ValueError where this cannot be the history of a graph, as in a damaged file."""
        pairs, size = self.pairs, len(self.pairs)
        whole = all(each.dtype == np.int64 for each in (pairs, self.counts, self.last))
        if not whole or pairs.shape != (size, 2) or not self.counts.shape == self.last.shape:
            raise ValueError("the history's arrays do not fit each other")
        if self.counts.shape != (size,) or int(self.counts.sum()) != self.edges:
            raise ValueError("the history's counts do not add up to its edges")
        if size and not (
            pairs.min() >= 0
            and pairs.max() < self.num_nodes
            and (np.diff(self._keys) > 0).all()
            and self.counts.min() >= 1
            and self.last.min() >= 1
            and self.last.max() <= self.edges
        ):
            raise ValueError("the history's edges are out of order or out of range")

    @cached_property
    def _keys(self) -> Array:
        return self.pairs[:, 0] * self.num_nodes + self.pairs[:, 1]

    @cached_property
    def sent(self) -> Array:
        """Edges that leave each node, int64 [n]."""
        return self._sums(0)

    @cached_property
    def received(self) -> Array:
        """Edges that come to each node, int64 [n]."""
        return self._sums(1)

    @cached_property
    def last_sent(self) -> Array:
        """The place of the last edge that left each node, int64 [n]; 0 for none."""
        return self._latest(0)

    @cached_property
    def last_received(self) -> Array:
        """The place of the last edge that came to each node, int64 [n]; 0 for none."""
        return self._latest(1)

    @property
    def known(self) -> Array:
        """Whether a node has an edge, bool [n]."""
        found: Array = self.sent + self.received > 0
        return found

    def _sums(self, end: int) -> Array:
        found = np.zeros(self.num_nodes, dtype=np.int64)
        np.add.at(found, self.pairs[:, end], self.counts)
        return found

    def _latest(self, end: int) -> Array:
        found = np.zeros(self.num_nodes, dtype=np.int64)
        np.maximum.at(found, self.pairs[:, end], self.last)
        return found

    @cached_property
    def _neighbours(self) -> tuple[Array, Array]:
        """CSR offsets int64 [n + 1] and, ascending for each node, the others that edges join it to.

        Either way, and each other node once.
        """
        ends = self.pairs[self.pairs[:, 0] != self.pairs[:, 1]]
        both = np.concatenate([ends, ends[:, ::-1]])
        keys = np.unique(both[:, 0] * self.num_nodes + both[:, 1])
        nodes, others = np.divmod(keys, max(1, self.num_nodes))
        return np.searchsorted(nodes, np.arange(self.num_nodes + 1)), others

    def neighbours(self) -> Array:
        """With how many other nodes edges join each node, either way, int64 [n]."""
        return np.diff(self._neighbours[0])

    def common_neighbours(self, pairs: Array) -> Array:
        """How many nodes are neighbours of both nodes of a pair, int64 [m]."""
        if len(pairs) and not 0 <= pairs.min() <= pairs.max() < self.num_nodes:
            raise ValueError(f"a pair has a node out of range for {self.num_nodes} nodes")
        found = np.empty(len(pairs), dtype=np.int64)
        _count_common(*self._neighbours, np.ascontiguousarray(pairs, dtype=np.int64), found)
        return found

    def repeats(self, pairs: Array) -> tuple[Array, Array]:
        """How often an edge went from the first node of a pair to the second, and its last place.

        Args:
            pairs: int64 [m, 2].

        Returns:
            int64 [m] each; 0 where there was none.
        """
        keys = pairs[:, 0] * self.num_nodes + pairs[:, 1]
        if not len(self._keys):
            return np.zeros_like(keys), np.zeros_like(keys)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        there = self._keys[place] == keys
        return np.where(there, self.counts[place], 0), np.where(there, self.last[place], 0)

    def age(self, place: Array) -> Array:
        """log(1 + edges since that place in time); of place 0, which is never, since the first."""
        found: Array = np.log1p(self.edges - place)
        return found


@compiled()
def _count_common(offsets: Any, others: Any, pairs: Any, out: Any) -> None:
    """The neighbours of the node that has fewer are looked up among the other's; [m] is written."""
    for row in range(pairs.shape[0]):
        few, many = pairs[row, 0], pairs[row, 1]
        if offsets[few + 1] - offsets[few] > offsets[many + 1] - offsets[many]:
            few, many = many, few
        low, stop = offsets[many], offsets[many + 1]
        count = 0
        for at in range(offsets[few], offsets[few + 1]):
            high = stop
            while low < high:
                middle = (low + high) >> 1
                if others[middle] < others[at]:
                    low = middle + 1
                else:
                    high = middle
            if low == stop:
                break
            count += others[low] == others[at]
        out[row] = count


def trivial_scores(history: LinkHistory, pairs: Array) -> dict[str, Array]:
    """How likely a link is by guesses that need no training, float64 [m], by their names.

    - degree product: edges that leave the first node times edges that come to the second.
    - seen before: whether the first has had an edge to the second.
    - common neighbours: nodes that edges join to both, either way.
    - most recent: how recently the two nodes had an edge at all, the mean of both.

    Args:
        history: of the edges that may be looked at.
        pairs: int64 [m, 2], from and to.
    """
    sender, receiver = pairs.T
    latest = np.maximum(history.last_sent, history.last_received)
    found = {
        "degree product": history.sent[sender] * history.received[receiver],
        "seen before": history.repeats(pairs)[0] > 0,
        "common neighbours": history.common_neighbours(pairs),
        "most recent": (latest[sender] + latest[receiver]) / 2,
    }
    return {name: np.asarray(values, dtype=np.float64) for name, values in found.items()}


def pair_features(history: LinkHistory, pairs: Array) -> dict[str, Array]:
    """What a network may read of pairs beside embeddings, [m] each, by their names.

    Counts as log(1 + count); ages as `LinkHistory.age`. `sender` and `receiver` are the first and
    the second node of a pair; `there` is the direction from the first to the second.

    Args:
        history: of the edges that may be looked at.
        pairs: int64 [m, 2], from and to.
    """
    nodes = {
        "sent": np.log1p(history.sent),
        "received": np.log1p(history.received),
        "neighbours": np.log1p(history.neighbours()),
        "age_sent": history.age(history.last_sent),
        "age_received": history.age(history.last_received),
        "has_sent": history.sent > 0,
        "has_received": history.received > 0,
    }
    found = {
        f"{end}_{name}": values[pairs[:, place]]
        for place, end in enumerate(("sender", "receiver"))
        for name, values in nodes.items()
    }
    for direction, ends in (("there", pairs), ("back", pairs[:, ::-1])):
        count, last = history.repeats(ends)
        found |= {
            f"{direction}_count": np.log1p(count),
            f"{direction}_age": history.age(last),
            f"{direction}_seen": count > 0,
        }
    found["common_neighbours"] = np.log1p(history.common_neighbours(pairs))
    return found


_OF_NODES = (
    *("sent", "received", "neighbours"),
    *("age_sent", "age_received", "has_sent", "has_received"),
)
FEATURES = (
    *(f"{end}_{name}" for end in ("sender", "receiver") for name in _OF_NODES),
    *("there_count", "there_age", "there_seen", "back_count", "back_age", "back_seen"),
    "common_neighbours",
)
"""The features that are read by default."""


def feature_rows(history: LinkHistory, pairs: Array, names: Sequence[str]) -> Array:
    """Some of `pair_features`, as float32 [m, len(names)].

    Raises:
        DataError: there is no feature of such a name.
    """
    found = pair_features(history, pairs)
    if strange := [name for name in names if name not in found]:
        raise DataError(f"this weft has no feature {strange[0]!r} of links; train again")
    return np.column_stack([found[name] for name in names]).astype(np.float32)
