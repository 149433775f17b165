"""Which atoms are near each other: loops for open space, vesin for periodic images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Array
from weft.runtime import compiled


@compiled()
def _squared(pos: Any, a: int, b: int) -> Any:
    """Squared distance in float64; the same to the bit for (a, b) and (b, a)."""
    x = np.float64(pos[a, 0]) - np.float64(pos[b, 0])
    y = np.float64(pos[a, 1]) - np.float64(pos[b, 1])
    z = np.float64(pos[a, 2]) - np.float64(pos[b, 2])
    return x * x + y * y + z * z


@compiled()
def count_within(
    pos: Any, starts: Any, stops: Any, radius: float, limit: float
) -> tuple[Any, tuple[int, int, int]]:
    """Count the ordered pairs of each molecule's atoms that are nearer than `radius`.

    Args:
        pos: [N, 3], positions in Å.
        starts: int64 [m], the first atom of each molecule.
        stops: int64 [m], one past its last atom.
        radius: in Å.
        limit: in Å.

    Returns:
        Counts int64 [m]; the first pair nearer than `limit` as (place in starts, atom, atom), or
        -1s.
    """
    counts = np.zeros(starts.shape[0], dtype=np.int64)
    first = (-1, -1, -1)
    for g in range(starts.shape[0]):
        for a in range(starts[g], stops[g]):
            for b in range(a + 1, stops[g]):
                squared = _squared(pos, a, b)
                if squared < radius * radius:
                    counts[g] += 2
                if squared < limit * limit and first[0] < 0:
                    first = (g, a - starts[g], b - starts[g])
    return counts, first


@compiled()
def pairs_within(
    pos: Any, starts: Any, stops: Any, radius: float, senders: Any, receivers: Any
) -> None:
    """Fill int64 senders and receivers [e] with the pairs of `count_within`.

    Atoms are numbered as in `pos`; pairs are in order of (receiver, sender).
    """
    edge = 0
    for g in range(starts.shape[0]):
        for receiver in range(starts[g], stops[g]):
            for sender in range(starts[g], stops[g]):
                if sender != receiver and _squared(pos, receiver, sender) < radius * radius:
                    senders[edge] = sender
                    receivers[edge] = receiver
                    edge += 1


@compiled()
def nearest_within(
    pos: Any, starts: Any, stops: Any, k: int, tie: float, senders: Any, receivers: Any
) -> None:
    """Fill int64 senders and receivers [e] with each atom's min(k, n - 1) nearest.

    Distances that are equal in steps of `tie` Å count as equal; then the lower sender is nearer.
    Pairs are in order of (receiver, sender).
    """
    edge = 0
    for g in range(starts.shape[0]):
        first, count = starts[g], stops[g] - starts[g]
        kept = max(0, min(k, count - 1))
        steps = np.empty(kept, dtype=np.float64)
        nearest = np.empty(kept, dtype=np.int64)
        for receiver in range(first, stops[g]):
            found = 0
            for sender in range(first, stops[g]):
                if sender == receiver:
                    continue
                step = np.rint(np.sqrt(_squared(pos, receiver, sender)) / tie)
                if found == kept and step >= steps[kept - 1]:
                    continue
                # Insertion behind equal ones: the lower sender came first and stays before.
                at = min(found, kept - 1)
                while at > 0 and steps[at - 1] > step:
                    steps[at], nearest[at] = steps[at - 1], nearest[at - 1]
                    at -= 1
                steps[at], nearest[at] = step, sender
                found = min(found + 1, kept)
            for sender in np.sort(nearest):
                senders[edge] = sender
                receivers[edge] = receiver
                edge += 1


# vesin's own limit.
_MOST_BOXES = 1e5

Allow = Callable[[float], None]
"""Takes the expected number of edges, and raises if they are too many."""


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Edges: the sender's image is its position plus image @ cell.

    Attributes:
        receiver: int64 [e].
        sender: int64 [e].
        image: int32 [e, 3], in cell vectors.
        distance: float64 [e], Å; empty where it is not needed.
    """

    receiver: Array
    sender: Array
    image: Array
    distance: Array = field(default_factory=lambda: np.empty(0))

    @staticmethod
    def joined(parts: Sequence[tuple[int, Pairs]]) -> Pairs:
        """All edges; those of each part are between atoms that are numbered from its base."""
        return Pairs(
            receiver=np.concatenate([part.receiver + base for base, part in parts]),
            sender=np.concatenate([part.sender + base for base, part in parts]),
            image=np.concatenate([part.image for _, part in parts]),
        )

    def taken(self, which: Array) -> Pairs:
        """The edges `which` (int [m]), in that order."""
        return Pairs(
            receiver=self.receiver[which],
            sender=self.sender[which],
            image=self.image[which],
            distance=self.distance[which] if len(self.distance) else self.distance,
        )

    def in_order(self) -> Pairs:
        """Sorted by receiver, then sender, then image, so that reverse edges match up.

        Between two atoms the edges to the higher-numbered one are in order of their images, those
        back in order of the negative: the m-th of one is the reverse of the m-th of the other.
        An atom's edges with its own images come in pairs, an edge and then its reverse.
        """
        key = np.where((self.sender > self.receiver)[:, None], -self.image, self.image)
        x, y, z = key.T
        # The first number of the image that is not 0 is negative.
        negative = (x < 0) | ((x == 0) & ((y < 0) | ((y == 0) & (z < 0))))
        back = (self.sender == self.receiver) & negative
        key[back] *= -1
        return self.taken(np.lexsort((back, z, y, x, self.sender, self.receiver)))


def pairs_of_images(
    pos: Array, cell: Array, pbc: Array, measure: float, radius: float, *, allow: Allow
) -> Pairs:
    """All ordered pairs of atoms and images nearer than `radius`, each with its exact reverse.

    Args:
        pos: [n, 3], Å.
        cell: float64 [3, 3], Å, a vector in each row.
        pbc: bool [3]; at least one direction repeats.
        measure: length, area or volume of what repeats.
        radius: in Å.
        allow: called with about how many edges there will be, before any is made.
    """
    try:
        import vesin  # type: ignore[import-untyped]
    except ImportError:
        raise DataError(
            "neighbours in periodic structures need vesin, which is not installed: pip install "
            "'weft[chem]'"
        ) from None
    ball = (2 * radius, math.pi * radius**2, 4 / 3 * math.pi * radius**3)
    pos = np.asarray(pos, dtype=np.float64)
    box = _closed(pos, cell, pbc, radius)
    search = _search_radius(box, radius)
    allow(len(pos) ** 2 * ball[int(pbc.sum()) - 1] * (search / radius) ** 3 / measure)
    found = vesin.NeighborList(cutoff=search, full_list=False)
    first, second, image, distance = found.compute(pos, box, True, "ijSd")
    if search > radius:
        near = distance < radius
        first, second, image, distance = first[near], second[near], image[near], distance[near]
    first, second = first.astype(np.int64), second.astype(np.int64)
    return Pairs(
        receiver=np.concatenate([first, second]),
        sender=np.concatenate([second, first]),
        image=np.concatenate([image, -image]),
        distance=np.concatenate([distance, distance]),
    )


def _search_radius(box: Array, radius: float) -> float:
    """`radius`, or a larger one where vesin would end the process.

    It sorts atoms into at most 1e5 boxes as wide as the radius. For more it makes each wider, and
    where there are few in one direction none are left: it divides by their number.
    """
    heights = 1 / np.linalg.norm(np.linalg.inv(box), axis=0)
    while True:
        boxes = np.floor(heights / radius).clip(min=1)
        shrink = (_MOST_BOXES / boxes.prod()) ** (1 / 3)
        if shrink >= 1 or boxes.min() * shrink >= 2:
            return radius
        radius *= 1.1


def _closed(pos: Array, cell: Array, pbc: Array, radius: float) -> Array:
    """A cell that repeats everywhere and has the same neighbours within `radius`.

    The open directions get vectors that stand upright on the periodic ones and are so long that
    no image is near: vesin wants a whole cell, and files have anything there, zeros too.
    """
    box: Array = np.array(cell, dtype=np.float64)
    _, _, basis = np.linalg.svd(box[pbc], full_matrices=True)
    upright = basis[int(pbc.sum()) :]
    extent = np.ptp(pos @ upright.T, axis=0)
    box[~pbc] = upright * (extent + radius + 1.0)[:, None]
    return box


def nearest_images(
    pos: Array, cell: Array, pbc: Array, measure: float, k: int, *, tie: float, allow: Allow
) -> Pairs:
    """The k nearest atoms or images of each atom: by distance in steps of `tie`, sender, image."""
    count = len(pos)
    # The radius of the ball that holds k atoms on average; where it is too small it grows.
    density = count / measure
    radius = {
        1: k / (2 * density),
        2: math.sqrt(k / (math.pi * density)),
        3: (3 * k / (4 * math.pi * density)) ** (1 / 3),
    }[int(pbc.sum())] * 1.2
    while True:
        pairs = pairs_of_images(pos, cell, pbc, measure, radius, allow=allow)
        # A tie of the k-th neighbour must not lie just outside.
        inside = pairs.distance < radius - 2 * tie
        if np.bincount(pairs.receiver[inside], minlength=count).min() >= k:
            break
        radius *= 1.3
    x, y, z = pairs.image.T
    steps = np.rint(pairs.distance / tie)
    order = np.lexsort((z, y, x, pairs.sender, steps, pairs.receiver))
    starts = np.searchsorted(pairs.receiver[order], np.arange(count))
    rank = np.arange(len(order)) - starts[pairs.receiver[order]]
    return pairs.taken(order[rank < k])
