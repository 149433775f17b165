"""Cases: edge lists read, and temporal walks over one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from rich.progress import Progress

from weft.errors import DataError
from weft.graphs import GraphTable
from weft.sources import load, read_edge_list
from weft.training.hardware import held_memory, peak_memory
from weft.training.launch import launch
from weft_lab.bench.result import CaseResult, Contender
from weft_lab.bench.runner import Entry, run_case

_NAME = "sx-mathoverflow"
_STEPS = 5e6
_LINES = 2e6
# An edge is 24 bytes while its ids are the file's, 16 in the end; then both for a part of them.
# Blocks of the file, their scratch space and the table of ids do not grow with the lines.
_BYTES_A_LINE, _BYTES = 32, 256e6
_CHUNK = 500_000
_NODES_PER_LINE = 0.1
# As the literature walks, and often enough that sorting the edges first does not matter.
_WALKS, _MANY_WALKS, _LENGTH = 10, 100, 5


def temporal_graph(file: Path | None, data_dir: Path | None) -> GraphTable:
    """sx-mathoverflow: from its file, or a folder with it, or the data folder.

    Raises:
        DataError: it is not there.
    """
    if file is not None and not file.exists():
        raise DataError(f"--temporal {file} does not exist; name {_NAME}.txt.gz or its folder")
    if file is not None and file.is_dir():
        file = file / f"{_NAME}.txt.gz"
    return load(_NAME, files=[file] if file else [], data_dir=data_dir, progress=False)


def walks_case(table: GraphTable, *, rounds: int, progress: Progress) -> CaseResult:
    """Steps a second of walks from every node, what is sorted for them included.

    The bar is for the few walks of the literature, of which sorting is a large part.
    """
    labels = {f"weft, {walks} walks a node": walks for walks in (_WALKS, _MANY_WALKS)}
    case = run_case(
        "walks",
        f"temporal walks of {_LENGTH} nodes, {table.total_nodes:,} nodes, {table.total_edges:,} "
        "edges; steps taken a second, with all that is sorted first",
        {
            label: Entry(script="weft_walks", peer=False, settings={"walks": walks})
            for label, walks in labels.items()
        },
        {"table": str(table.path), "length": _LENGTH},
        rounds=rounds,
        steps=1,
        warmup=2,
        unit="steps/s",
        progress=progress,
    )
    label = next(iter(labels))
    speed = case.contenders[label].median
    slow = speed is not None and speed < _STEPS
    missed = [f"{label}: {speed:,.0f} steps a second, not {_STEPS:,.0f}."] if slow else []
    return replace(case, missed=missed)


@dataclass(frozen=True, kw_only=True)
class _Read:
    """Seconds of each reading, and bytes of memory before and at the most."""

    seconds: list[float]
    before: float
    peak: float


def edges_case(lines: int, *, rounds: int, scratch: Path | None, progress: Progress) -> CaseResult:
    """Lines a second of `src dst time` read from a file that is made for it, and memory."""
    task = progress.add_task("edges: writing", total=2)
    with TemporaryDirectory(prefix="weft-bench-", dir=scratch) as folder:
        path, few = Path(folder) / "edges.txt", Path(folder) / "few.txt"
        _write(path, lines)
        _write(few, 100)
        size = path.stat().st_size
        progress.update(task, description="edges: reading", advance=1)
        arguments = (path, few, rounds)
        found: _Read = launch(_read, arguments, ranks=1, logs=Path(folder) / "logs")[0]
        progress.update(task, description="edges", advance=1)
    speed = lines / statistics.median(found.seconds)
    beyond, limit = found.peak - found.before, _BYTES_A_LINE * lines + _BYTES
    missed = []
    if speed < _LINES:
        missed.append(f"{speed:,.0f} lines a second, not {_LINES:,.0f}.")
    if beyond > limit:
        missed.append(f"{beyond / 1e6:,.0f} MB beyond the process, more than {limit / 1e6:,.0f}.")
    return CaseResult(
        case="edges",
        what=f"{lines:,} lines `src dst time`, {size / 1e6:,.0f} MB",
        unit="s",
        contenders={
            "weft": Contender(
                samples=found.seconds,
                figures={
                    "lines / s": speed,
                    "MB / s": size / 1e6 / statistics.median(found.seconds),
                    "peak MB": found.peak / 1e6,
                    "before MB": found.before / 1e6,
                    "bytes a line\nbeyond": beyond / lines,
                },
            )
        },
        missed=missed,
    )


def _write(path: Path, lines: int) -> None:
    with path.open("w", encoding="ascii") as file:
        for chunk in _lines(lines):
            file.write(chunk)


def _lines(lines: int) -> Iterator[str]:
    """Text of random edges in order of time, some ten a node, in chunks."""
    rng = np.random.default_rng(0)
    nodes = max(2, int(_NODES_PER_LINE * lines))
    for start in range(0, lines, _CHUNK):
        count = min(_CHUNK, lines - start)
        ends = rng.integers(nodes, size=(count, 2))
        times = 1_200_000_000 + np.arange(start, start + count)
        edges = np.column_stack([ends, times]).ravel().tolist()
        yield "%d %d %d\n" * count % tuple(edges)


def _read(path: Path, few: Path, rounds: int) -> _Read:
    read_edge_list(few)
    before = held_memory()
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        read_edge_list(path)
        seconds.append(time.perf_counter() - start)
    return _Read(seconds=seconds, before=before, peak=peak_memory())
