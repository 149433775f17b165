"""Figures of Speckhard et al. (2025), "Training speedups via batching for geometric learning"."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Fill:
    """Batches of QM9 under `dynamic`: mean graphs in one, and the shares that are not padding."""

    graphs_per_batch: float
    node_fill: float
    edge_fill: float


FILLS = {
    16: Fill(graphs_per_batch=14.669, node_fill=0.824, edge_fill=0.923),
    32: Fill(graphs_per_batch=30.420, node_fill=0.950, edge_fill=0.957),
    64: Fill(graphs_per_batch=62.003, node_fill=0.968, edge_fill=0.975),
    128: Fill(graphs_per_batch=125.357, node_fill=0.978, edge_fill=0.986),
}
"""By batch size."""

SHAPES = {
    "dynamic": {16: 1, 32: 1, 64: 1, 128: 1},
    "static-64": {16: 60, 32: 89, 64: 128, 128: 195},
    "static-2^n": {16: 3, 32: 4, 64: 1, 128: 1},
}
"""Distinct padded shapes of QM9 after SHAPES_STEPS steps, by policy and batch size."""
SHAPES_STEPS = 100_000

MILLISECONDS = {
    ("painn", 128): {"dynamic": 12.23, "static-2^n": 33.17, "static-64": 12.02},
    ("schnet", 32): {"dynamic": 2.42, "static-2^n": 2.33, "static-64": 2.29},
    ("schnet", 128): {"dynamic": 5.52, "static-2^n": 6.15, "static-64": 4.66},
    ("mpeu", 128): {"dynamic": 7.04, "static-2^n": 9.05, "static-64": 6.32},
}
"""Mean of a step on an A100 over two million steps of QM9, by model and batch size, then policy."""


def published_milliseconds(data: str, model: str, batch_size: int, policy: str) -> float | None:
    """The mean step of a published cell, ms on an A100; None where there is none."""
    if data != "qm9":
        return None
    return MILLISECONDS.get((model, batch_size), {}).get(policy)
