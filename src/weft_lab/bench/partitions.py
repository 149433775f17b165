"""Benchmark: partitions of a graph: how even its ranks are, and how much travels between them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from math import prod

import numpy as np
from rich.progress import Progress

from weft.graphs import Array, Graph
from weft.parallel.balance import imbalance, least_imbalance, panel_nonzeros
from weft.parallel.grid import Grid, grid_of
from weft.parallel.method import Method
from weft.parallel.partition import Partition, partition_nodes
from weft.parallel.traffic_formulas import count_graph
from weft_lab.bench.result import CandidateResult, CaseResult
from weft_lab.grid_training import predicted_bytes

_SHAPES = (
    *("2x2", "4x4", "8x8", "16x16", "32x32", "45x45", "64x32"),
    *("2x2x2", "4x4x4", "8x8x8", "12x12x12", "16x8x16"),
)
_MOST = 1.01


def balance_case(name: str, graph: Graph, progress: Progress) -> CaseResult:
    """The most nonzeros of a rank over the mean, of the matrix and its transpose, on big grids."""
    graph = _with_loops(graph)
    task = progress.add_task(f"balance: {name}", total=len(_SHAPES))
    candidates, missed = {}, []
    for shape in _SHAPES:
        grid = grid_of(shape, prod(map(int, shape.split("x"))))
        figures = {how: _most(graph, grid, how) for how in ("contiguous", "random", "balanced")}
        least = least_imbalance(grid, graph)
        label = f"weft P = {grid.ranks}, {shape}"
        candidates[label] = CandidateResult(
            samples=[figures["balanced"]], figures={**figures, "least\npossible": least}
        )
        if figures["balanced"] > _MOST:
            missed.append(f"{label}: {figures['balanced']:.3f}, more than {_MOST}.")
        progress.advance(task)
    return CaseResult(
        case=f"balance, {name}",
        what=f"largest over mean nonzeros of a rank, counted: {graph.num_nodes:,} nodes, "
        f"{graph.num_edges:,} nonzeros",
        unit="ratio",
        candidates=candidates,
        missed=missed,
    )


def volume_case(
    name: str, graph: Graph, ranks: Sequence[int], widths: Sequence[int], progress: Progress
) -> CaseResult:
    """Bytes that a rank of a 1D grid receives in an epoch of a GCN, by partition, counted."""
    graph = _with_loops(graph)
    task = progress.add_task(f"volume: {name}", total=len(ranks))
    candidates = {}
    for count in ranks:
        grid, plain = grid_of("1d", count), 0.0
        for how in ("metis", "volume"):
            parts = partition_nodes(graph, count, how)
            place = np.argsort(parts.order)
            ends = place[graph.senders], place[graph.receivers]
            # All nodes to train on: they decide nothing that travels in 1D.
            sizes = count_graph(grid, parts.offsets, *ends, np.ones(graph.num_nodes, dtype=bool))
            received = [float(each) for each in predicted_bytes(sizes, Method(), widths)]
            rows = sum(
                int(own.forward.wanted.sum() - own.forward.wanted[k]) for k, own in enumerate(sizes)
            )
            plain = plain or float(rows)
            candidates[f"weft P = {count}, {how}"] = CandidateResult(
                samples=received,
                figures={
                    "mean MB": statistics.fmean(received) / 1e6,
                    "most MB": max(received) / 1e6,
                    "rows": float(rows),
                    "of metis": rows / plain,
                    "nonzeros,\nmost / mean": imbalance(
                        panel_nonzeros(grid, _blocks(parts), graph.senders, graph.receivers)
                    ),
                },
            )
        progress.advance(task)
    shape = "-".join(map(str, widths))
    return CaseResult(
        case=f"volume, {name}",
        what=f"received by a rank in an epoch, counted: {graph.num_nodes:,} nodes, GCN {shape}, 1d",
        unit="bytes",
        candidates=candidates,
        says=["`rows` are those of the forward product that travel, all ranks together."],
    )


def _with_loops(graph: Graph) -> Graph:
    """As the symmetric matrix has them: one for each node that has none."""
    own = np.setdiff1d(
        np.arange(graph.num_nodes), graph.senders[graph.senders == graph.receivers]
    ).astype(graph.senders.dtype)
    return Graph(
        num_nodes=graph.num_nodes,
        senders=np.concatenate([graph.senders, own]),
        receivers=np.concatenate([graph.receivers, own]),
    )


def _blocks(parts: Partition) -> Array:
    blocks = np.empty(len(parts.order), dtype=np.int64)
    blocks[parts.order] = np.repeat(np.arange(len(parts.offsets) - 1), np.diff(parts.offsets))
    return blocks


def _most(graph: Graph, grid: Grid, how: str) -> float:
    blocks = _blocks(partition_nodes(graph, grid.blocks, how, grid=grid))
    ends = graph.senders, graph.receivers
    return max(imbalance(panel_nonzeros(grid, blocks, *way)) for way in (ends, ends[::-1]))
