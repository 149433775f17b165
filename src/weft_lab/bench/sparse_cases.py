"""Cases: memory and accuracy of sparse networks; edge lists read, and temporal walks over one."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from rich.progress import Progress
from torch import nn
from torch.nn import functional

from weft.errors import DataError
from weft.graphs import GraphTable
from weft.sources import load, read_edge_list
from weft.sparsify import nnz_of
from weft.sparsify.sparse_layers import SparseLinear
from weft.training.hardware import held_memory, peak_memory, trim_memory
from weft_lab.bench.result import CandidateResult, CaseResult
from weft_lab.bench.runner import ours, run_case
from weft_lab.bench_settings import SparseBench
from weft_lab.grid_training import on_ranks
from weft_lab.statistics import mean_interval
from weft_lab.timing import seconds_of

_BATCH = 256
_MB = 1e6
# What the C library and the counting of pages may add to what is asked for.
_APART = 0.15, 1e6
# Points of accuracy that RigL may be below dense.
_MOST_BELOW = 1.5
_DENSE, _RIGL = "weft, dense", "weft, RigL at 90 %"
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


@dataclass(frozen=True, kw_only=True)
class _Held:
    """Bytes.

    Attributes:
        active: weights that are there, a number.
        weights: of parameters, biases included.
        places: of the pattern that says where they are.
        state: of the optimizer.
        measured: that the process holds more, with all of these than without.
    """

    active: int
    weights: int
    places: int
    state: int
    measured: float

    @property
    def counted(self) -> int:
        return self.weights + self.places + self.state


def memory_case(config: SparseBench, progress: Progress) -> CaseResult:
    """Bytes counted from the tensors, and measured in a process of its own for each network."""
    widths, sparsities = config.wide, [each for each in config.accelerate_sparsities if each]
    task = progress.add_task("memory", total=1 + len(sparsities))
    found: dict[str, _Held] = {}
    for sparsity in (None, *sparsities):
        label = "torch, dense" if sparsity is None else f"weft at {sparsity:g}"
        (found[label],) = on_ranks(_hold, widths, sparsity)
        progress.advance(task)
    dense = found["torch, dense"]
    # A weight that is there needs its place too: few of them, or dense is smaller.
    smaller = [label for label, each in found.items() if each.counted < dense.counted]
    candidates = {
        label: CandidateResult(
            samples=[each.measured],
            figures={
                "weights\nthere": each.active,
                "weights\nMB": _mb(each.weights),
                "pattern\nMB": _mb(each.places),
                "Adam\nMB": _mb(each.state),
                "all\nMB": _mb(each.counted),
                "measured\nMB": _mb(each.measured),
                "dense /\nmeasured": dense.measured / max(1.0, each.measured),
            },
        )
        for label, each in found.items()
    }
    return CaseResult(
        case="memory",
        what=f"{'-'.join(map(str, widths))}, after a step of Adam, gradients let go",
        unit="bytes",
        candidates=candidates,
        says=[f"Less than dense: {', '.join(smaller) or 'none'}, by what the tensors hold."],
        missed=_missed(found),
    )


def _mb(size: float) -> float:
    return round(size / _MB, 3)


def _missed(found: dict[str, _Held]) -> list[str]:
    missed = []
    share, more = _APART
    for label, each in found.items():
        if each.measured > (1 + share) * each.counted + more:
            missed.append(
                f"{label}: {each.measured / _MB:.2f} MB are held for {each.counted / _MB:.2f} MB."
            )
    sparse = [item for item in found.items() if item[1].places]
    ordered = sorted(sparse, key=lambda item: -item[1].active)
    for (above, larger), (below, smaller) in pairwise(ordered):
        if smaller.active < larger.active and smaller.counted >= larger.counted:
            missed.append(
                f"{below} needs {smaller.counted / _MB:.2f} MB, {above} "
                f"{larger.counted / _MB:.2f} MB: memory does not fall with the weights there."
            )
    return missed


def _hold(widths: tuple[int, ...], sparsity: float | None) -> _Held:
    # Once for what a first step loads and keeps, whatever the network.
    _trained(widths, sparsity)
    trim_memory()
    before = held_memory()
    model, optimizer = _trained(widths, sparsity)
    trim_memory()
    measured = held_memory() - before
    layers = [each for each in model if isinstance(each, (nn.Linear, SparseLinear))]
    matrices = [each.values if isinstance(each, SparseLinear) else each.weight for each in layers]
    slots = [slot for state in optimizer.state.values() for slot in state.values()]
    return _Held(
        active=sum(matrix.numel() for matrix in matrices),
        weights=sum(each.nbytes for each in model.parameters()),
        places=sum(each.nbytes for each in model.buffers()),
        state=sum(slot.nbytes for slot in slots),
        measured=measured,
    )


def _trained(
    widths: tuple[int, ...], sparsity: float | None
) -> tuple[nn.Sequential, torch.optim.Adam]:
    """A network after one step, without gradients."""
    modules: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        if sparsity is None:
            modules += [nn.Linear(inputs, outputs), nn.ReLU()]
        else:
            count = nnz_of(1 - sparsity, inputs * outputs)
            modules += [SparseLinear(inputs, outputs, count), nn.ReLU()]
    model = nn.Sequential(*modules[:-1])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.randn(_BATCH, widths[0]), torch.randint(widths[-1], (_BATCH,))
    functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


_ACCURACY = {
    _DENSE: ours("nodes", sparsify="none", sparsity=0.0),
    _RIGL: ours("nodes", sparsify="rigl", sparsity=0.90),
    "weft, RigL at 97 %": ours("nodes", sparsify="rigl", sparsity=0.97),
    "weft, SET at 97 %": ours("nodes", sparsify="set", sparsity=0.97),
    "weft, static random at 97 %": ours("nodes", sparsify="random", sparsity=0.97),
}


def accuracy_case(config: SparseBench, table: GraphTable, progress: Progress) -> CaseResult:
    """Test accuracy in %, with intervals; a seed is split, weights and dropout, alike for all."""
    case = run_case(
        "accuracy",
        f"GCN of 16 hidden features on Cora, 60/20/20, {config.seeds} seeds; test accuracy in % "
        "with 95 % intervals of the mean",
        _ACCURACY,
        {"table": str(table.path), "epochs": config.epochs},
        rounds=config.seeds,
        unit="%",
        progress=progress,
    )
    dense = case.candidates[_DENSE].samples
    candidates = {name: _with_figures(each, dense) for name, each in case.candidates.items()}
    missed = []
    below = candidates[_RIGL].figures.get("below dense")
    if below is not None and below > _MOST_BELOW:
        missed.append(
            f"RigL at 90 % is {below:.2f} points below dense, not within {_MOST_BELOW:g}."
        )
    return replace(case, candidates=candidates, missed=missed)


def _with_figures(candidate: CandidateResult, dense: list[float]) -> CandidateResult:
    if not candidate.samples:
        return candidate
    found = mean_interval(candidate.samples)
    figures = {"mean": found.mean}
    if len(candidate.samples) > 1:
        figures |= {"low": found.low, "high": found.high}
    if len(dense) == len(candidate.samples):
        lost = [a - b for a, b in zip(dense, candidate.samples, strict=True)]
        figures["below dense"] = statistics.fmean(lost)
        if len(lost) > 1:
            apart = mean_interval(lost)
            figures |= {"below: low": apart.low, "below: high": apart.high}
    return replace(candidate, figures=figures)


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


def walks_case(config: SparseBench, table: GraphTable, progress: Progress) -> CaseResult:
    """Steps a second of walks from every node, what is sorted for them included.

    The bar is for the few walks of the literature, of which sorting is a large part.
    """
    labels = {f"weft, {walks} walks a node": walks for walks in (_WALKS, _MANY_WALKS)}
    case = run_case(
        "walks",
        f"temporal walks of {_LENGTH} nodes, {table.total_nodes:,} nodes, {table.total_edges:,} "
        "edges; steps taken a second, with all that is sorted first",
        {label: ours("walks", walks=walks) for label, walks in labels.items()},
        {"table": str(table.path), "length": _LENGTH},
        rounds=config.rounds,
        warmup=2,
        unit="steps/s",
        progress=progress,
    )
    label = next(iter(labels))
    speed = case.candidates[label].median
    slow = speed is not None and speed < _STEPS
    missed = [f"{label}: {speed:,.0f} steps a second, not {_STEPS:,.0f}."] if slow else []
    return replace(case, missed=missed)


def edges_case(config: SparseBench, progress: Progress) -> CaseResult:
    """Lines a second of `src dst time` read from a file that is made for it, and memory."""
    lines = config.lines
    task = progress.add_task("edges: writing", total=2)
    with TemporaryDirectory(prefix="weft-bench-", dir=config.scratch) as folder:
        path, few = Path(folder) / "edges.txt", Path(folder) / "few.txt"
        _write(path, lines)
        _write(few, 100)
        size = path.stat().st_size
        progress.update(task, description="edges: reading", advance=1)
        ((seconds, before, peak),) = on_ranks(_read, path, few, config.rounds)
        progress.update(task, description="edges", advance=1)
    speed = lines / statistics.median(seconds)
    beyond, limit = peak - before, _BYTES_A_LINE * lines + _BYTES
    missed = []
    if speed < _LINES:
        missed.append(f"{speed:,.0f} lines a second, not {_LINES:,.0f}.")
    if beyond > limit:
        missed.append(f"{beyond / 1e6:,.0f} MB beyond the process, more than {limit / 1e6:,.0f}.")
    return CaseResult(
        case="edges",
        what=f"{lines:,} lines `src dst time`, {size / 1e6:,.0f} MB",
        unit="s",
        candidates={
            "weft": CandidateResult(
                samples=seconds,
                figures={
                    "lines / s": speed,
                    "MB / s": size / 1e6 / statistics.median(seconds),
                    "peak MB": peak / 1e6,
                    "before MB": before / 1e6,
                    "bytes a line\nbeyond": beyond / lines,
                },
            )
        },
        missed=missed,
    )


def _write(path: Path, lines: int) -> None:
    """Text of random edges in order of time, some ten a node."""
    rng = np.random.default_rng(0)
    nodes = max(2, int(_NODES_PER_LINE * lines))
    with path.open("w", encoding="ascii") as file:
        for start in range(0, lines, _CHUNK):
            count = min(_CHUNK, lines - start)
            ends = rng.integers(nodes, size=(count, 2))
            times = 1_200_000_000 + np.arange(start, start + count)
            edges = np.column_stack([ends, times]).ravel().tolist()
            file.write("%d %d %d\n" * count % tuple(edges))


def _read(path: Path, few: Path, rounds: int) -> tuple[list[float], float, float]:
    """Seconds of each reading, and bytes of memory before and at the most."""
    read_edge_list(few)
    before = held_memory()
    seconds = [seconds_of(lambda: read_edge_list(path)) for _ in range(rounds)]
    return seconds, before, peak_memory()
