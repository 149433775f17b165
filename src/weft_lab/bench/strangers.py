"""Benchmark: models of torch_geometric's users, with and without the one line of weft."""

from __future__ import annotations

import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.progress import Progress

from weft.graphs import Array
from weft_lab.bench.result import BenchResult, CaseResult
from weft_lab.bench.runner import Candidate, run_case
from weft_lab.bench_settings import StrangersBench

_SCRIPT = "stranger_steps:model"
# On one large graph, with their layers: two where the memory of a machine allows it.
_LARGE = {
    "gcn": 2,
    "sage": 2,
    "gin": 2,
    "graph": 2,
    "gat": 1,
    "gatv2": 1,
    "transformer": 1,
    "pna": 1,
}
_CSR = ("gcn", "sage", "gin", "graph", "gated")
# On edges of 20 types as programs have them, and on molecules.
_TYPED = {"rgcn": 2, "gated": 1}
_MODELS = {"schnet": 6}
_SMALL = {"gine": 3, "nn": 1, "own": 3, "perceptron": 3, "gate": 3}
# Of the case `loader`, in a step.
_BATCHES = 20


def bench_strangers(config: StrangersBench, progress: Progress) -> BenchResult:
    """Run all cases, training and inference, and say the means of their ratios."""
    generator = np.random.default_rng(0)
    with TemporaryDirectory(prefix="weft-bench-") as folder:
        large = _stored(
            Path(folder) / "large.npz", config.nodes, config.edges, generator, config.sorted
        )
        typed = _stored(Path(folder) / "typed.npz", 20_000, 75_000, generator)
        small = _molecules(Path(folder) / "small.npz", config.molecules, generator)
        graphs: list[tuple[dict[str, int], str, int, str]] = [
            (_LARGE, large, config.width, f"{config.nodes:,} nodes, {config.edges:,} edges"),
            (_TYPED, typed, config.width, "20,000 nodes, 75,000 edges of 20 types"),
            (_MODELS, small, 128, f"{config.molecules} molecules, all pairs of atoms"),
            (_SMALL, small, 64, f"{config.molecules} molecules, all pairs of atoms"),
        ]
        cases = [
            _run(kind, count, arrays, width, words, config, progress, training=training)
            for training in (True, False)
            for kinds, arrays, width, words in graphs
            for kind, count in kinds.items()
            if not config.cases or kind in config.cases
        ]
    half = len(cases) // 2
    for step, those in (("Training", cases[:half]), ("Inference", cases[half:])):
        ratios = [min(case.ratios("weft").values()) for case in those if case.ratios("weft")]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            those[-1].says.append(
                f"{step} against the faster way of torch_geometric: the geometric mean of "
                f"{len(ratios)} cases is {mean:.2f}x, the least {min(ratios):.2f}x."
            )
    if not config.cases or "loader" in config.cases:
        cases.append(_run_loader(config, progress))
    return BenchResult(name="strangers", cases=cases)


def _run_loader(config: StrangersBench, progress: Progress) -> CaseResult:
    """An epoch of batches, without a model."""
    script = "stranger_steps:loader"
    return run_case(
        "loader",
        f"{_BATCHES} shuffled batches of {config.molecules} molecules with QM9's attributes",
        {
            "weft": Candidate(script=script, peer=False, settings={"way": "accelerated"}),
            "torch_geometric": Candidate(script=script, settings={"way": "eager"}),
        },
        {"size": config.molecules, "batches": _BATCHES},
        rounds=config.rounds,
        steps=config.steps,
        warmup=1,
        progress=progress,
    )


def _stored(path: Path, nodes: int, edges: int, generator: Any, by_receiver: bool = False) -> str:
    """A random graph, its edges in no order, or sorted by receiver."""
    edge_index = generator.integers(0, nodes, (2, edges))
    if by_receiver:
        edge_index = edge_index[:, np.argsort(edge_index[1], kind="stable")]
    np.savez(path, nodes=nodes, edge_index=edge_index)
    return str(path)


def _molecules(path: Path, count: int, generator: Any) -> str:
    """A batch of graphs of 10 to 25 nodes, all pairs joined."""
    parts: list[Array] = []
    first = 0
    sizes = generator.integers(10, 26, count)
    for size in sizes.tolist():
        sender, receiver = np.divmod(np.arange(size * size), size)
        parts.append(np.stack([sender, receiver])[:, sender != receiver] + first)
        first += size
    molecule = np.repeat(np.arange(count), sizes)
    np.savez(path, nodes=first, edge_index=np.concatenate(parts, axis=1), molecule=molecule)
    return str(path)


def _run(
    kind: str,
    layers: int,
    arrays: str,
    width: int,
    words: str,
    config: StrangersBench,
    progress: Progress,
    *,
    training: bool,
) -> CaseResult:
    small = kind in (*_MODELS, *_SMALL)
    # A small step is soon over, and the first ones still take memory from the system.
    many = 10 if small else 1
    # After five steps all that is kept is there.
    ours = {"way": "accelerated", "warmup": max(many, 5)}
    candidates = {
        "weft": Candidate(script=_SCRIPT, peer=False, settings=ours),
        "torch_geometric": Candidate(script=_SCRIPT, settings={"way": "eager"}),
    }
    if kind in _CSR:
        csr = Candidate(script=_SCRIPT, settings={"way": "csr"})
        candidates["torch_geometric CSR"] = csr
    if config.compile:
        compiled = Candidate(script=_SCRIPT, settings={"way": "compiled"})
        candidates["torch_geometric, torch.compile"] = compiled
    case = {
        "kind": kind,
        "layers": layers,
        "arrays": arrays,
        "width": width,
        "attributes": 16,
        "training": training,
        # A loader gives new tensors at every step.
        "new_batches": small,
    }
    step = "training step" if training else "inference"
    result = run_case(
        kind if training else f"{kind}, inference",
        f"{step}, {layers} layer{'s' * (layers > 1)}, {words}, {width} features",
        candidates,
        case,
        rounds=config.rounds,
        steps=config.steps * many,
        warmup=many,
        progress=progress,
    )
    result.says.extend(_memory(result))
    return result


def _memory(case: CaseResult) -> list[str]:
    """A sentence about the memory that each candidate needed."""
    peaks = {name: each.peak_bytes for name, each in case.candidates.items() if each.peak_bytes}
    if "weft" not in peaks:
        return []
    words = [
        f"{name} {peak / 1e9:.1f} GB"
        + ("" if name == "weft" else f" ({peak / peaks['weft']:.1f}x)")
        for name, peak in peaks.items()
    ]
    return [f"Peak memory: {', '.join(words)}."]
