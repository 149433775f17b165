"""Sorting by small whole numbers in linear time, for edges by the nodes at their ends."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.runtime import compiled


@compiled()
def group_starts(keys: Any, num_keys: int) -> Any:
    """CSR offsets int64 [num_keys + 1] of integer `keys` [e], sorted or not."""
    starts = np.zeros(num_keys + 1, dtype=np.int64)
    for key in keys:
        starts[key + 1] += 1
    for key in range(num_keys):
        starts[key + 1] += starts[key]
    return starts


@compiled()
def counting_order(keys: Any, num_keys: int) -> Any:
    """Stable order that sorts integer `keys` [e] in 0..num_keys-1: O(e), int64 [e]."""
    starts = group_starts(keys, num_keys)
    order = np.empty(keys.shape[0], dtype=np.int64)
    for edge in range(keys.shape[0]):
        order[starts[keys[edge]]] = edge
        starts[keys[edge]] += 1
    return order
