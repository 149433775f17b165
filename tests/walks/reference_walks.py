"""Walks as the definition says, one draw after another in plain Python."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import stats

from weft.graphs import Array

Edge = tuple[int, int, float]


def temporal_walk(edges: Sequence[Edge], start: int, length: int, rng: random.Random) -> list[int]:
    walk, now = [start], -math.inf
    while len(walk) < length:
        out = [edge for edge in edges if edge[0] == walk[-1]]
        later = [edge for edge in out if edge[2] > now]
        if not later:
            break
        times = [edge[2] for edge in out]
        spread = max(times) - min(times)
        origin = now if now > -math.inf else 0.0
        weights = [math.exp((edge[2] - origin) / spread) if spread else 1.0 for edge in later]
        (taken,) = rng.choices(later, weights)
        walk.append(taken[1])
        now = taken[2]
    return walk


def node2vec_walk(
    edges: Sequence[tuple[int, int]],
    start: int,
    length: int,
    p: float,
    q: float,
    rng: random.Random,
) -> list[int]:
    there = set(edges)
    walk = [start]
    while len(walk) < length:
        ahead = [edge[1] for edge in edges if edge[0] == walk[-1]]
        if not ahead:
            break
        weights = [1.0] * len(ahead)
        if len(walk) > 1:
            before = walk[-2]
            weights = [
                1 / p if node == before else 1.0 if (before, node) in there else 1 / q
                for node in ahead
            ]
        walk += rng.choices(ahead, weights)
    return walk


def counted(walks: Array) -> Counter[tuple[int, ...]]:
    return Counter(tuple(int(node) for node in walk if node >= 0) for walk in walks)


def p_of_same_distribution(found: Counter[tuple[int, ...]], drawn: Iterable[list[int]]) -> float:
    """The p-value of a chi-square test that both samples of whole walks come from one source."""
    other = Counter(tuple(walk) for walk in drawn)
    walks = sorted(set(found) | set(other))
    table = np.array([[found[walk] for walk in walks], [other[walk] for walk in walks]])
    # What is rare in both goes together, as the test's approximation wants.
    rare = table.sum(axis=0) < 20
    merged = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
    merged = merged[:, merged.sum(axis=0) > 0]
    if merged.shape[1] < 2:
        return 1.0
    return float(stats.chi2_contingency(merged).pvalue)
