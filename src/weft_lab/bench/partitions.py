"""Benchmark: partitions of a graph: how even its ranks are, and how much travels between them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from rich.progress import Progress

from weft.graphs import Graph
from weft.parallel.balance import imbalance, least_imbalance, panel_nonzeros
from weft.parallel.grid import Grid, grid_of
from weft.parallel.partition import partition_nodes
from weft_lab.bench.result import CandidateResult, CaseResult
from weft_lab.counted_partitions import blocks_of, counted_partition, with_loops

_SHAPES = (
    *("2x2", "4x4", "8x8", "16x16", "32x32", "45x45", "64x32"),
    *("2x2x2", "4x4x4", "8x8x8", "12x12x12", "16x8x16"),
)
_MOST = 1.01


def balance_case(name: str, graph: Graph, progress: Progress) -> CaseResult:
    """The most nonzeros of a rank over the mean, of the matrix and its transpose, on big grids."""
    graph = with_loops(graph)
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
    graph = with_loops(graph)
    task = progress.add_task(f"volume: {name}", total=len(ranks))
    candidates = {}
    for count in ranks:
        plain = None
        for how in ("metis", "volume"):
            found = counted_partition(graph, count, how, widths)
            plain = plain or found
            candidates[f"weft P = {count}, {how}"] = CandidateResult(
                samples=[float(each) for each in found.received],
                figures={
                    "mean MB": found.mean / 1e6,
                    "most MB": max(found.received) / 1e6,
                    "rows": float(found.rows),
                    "of metis": found.rows / max(plain.rows, 1),
                    "nonzeros,\nmost / mean": found.imbalance,
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


def _most(graph: Graph, grid: Grid, how: str) -> float:
    blocks = blocks_of(partition_nodes(graph, grid.blocks, how, grid=grid))
    ends = graph.senders, graph.receivers
    return max(imbalance(panel_nonzeros(grid, blocks, *way)) for way in (ends, ends[::-1]))
