"""The compiled loops of neighbour graphs: all pairs of atoms of each molecule in open space."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.compiled import compiled


@compiled()
def _squared(pos: Any, a: int, b: int) -> Any:
    """Squared distance in float64; the same to the bit for (a, b) and (b, a)."""
    x = np.float64(pos[a, 0]) - np.float64(pos[b, 0])
    y = np.float64(pos[a, 1]) - np.float64(pos[b, 1])
    z = np.float64(pos[a, 2]) - np.float64(pos[b, 2])
    return x * x + y * y + z * z


@compiled()
def closest(pos: Any, starts: Any, stops: Any, limit: float) -> tuple[int, int, int]:
    """The first pair of atoms nearer than `limit` Å: (place in starts, atom, atom), or -1s.

    Args:
        pos: [N, 3], positions in Å.
        starts: int64 [m], the first atom of each molecule.
        stops: int64 [m], one past its last atom.
        limit: in Å.
    """
    for g in range(starts.shape[0]):
        for a in range(starts[g], stops[g]):
            for b in range(a + 1, stops[g]):
                if _squared(pos, a, b) < limit * limit:
                    return g, a - starts[g], b - starts[g]
    return -1, -1, -1


@compiled()
def count_within(pos: Any, starts: Any, stops: Any, radius: float) -> Any:
    """int64 [m], the ordered pairs of each molecule's atoms that are nearer than `radius` Å."""
    counts = np.zeros(starts.shape[0], dtype=np.int64)
    for g in range(starts.shape[0]):
        for a in range(starts[g], stops[g]):
            for b in range(a + 1, stops[g]):
                if _squared(pos, a, b) < radius * radius:
                    counts[g] += 2
    return counts


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
