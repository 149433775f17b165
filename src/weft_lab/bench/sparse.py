"""Benchmark: sparse weights: speed beside the peers, memory, accuracy; edge lists and walks."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn import functional

from weft.graphs import GraphTable
from weft.integrations.accelerate import accelerate
from weft.sources import load
from weft.sparsify import nnz_of
from weft.sparsify.sparse_layers import FusingSequential, SparseLinear
from weft.training import prepare_process
from weft_lab.bench.result import BenchResult, CandidateResult, CaseResult, data_or_error
from weft_lab.bench.runner import Candidate, run_case
from weft_lab.bench.sparse_cases import (
    accuracy_case,
    edges_case,
    memory_case,
    temporal_graph,
    walks_case,
)
from weft_lab.bench.sparse_structures import ONE_LAYER, fan_in_case, units_case
from weft_lab.bench_settings import SparseBench
from weft_lab.grid_training import on_ranks
from weft_lab.timing import median_ratio, time_by_turns

# How often the sparse step must fit into the dense one's time, by sparsity.
_WIDE, _NARROW = {0.906: 3.8, 0.95: 6.0}, {0.906: 2.0, 0.95: 2.5}
_DENSE = "torch, dense"
_FIXED, _RIGL = "weft", "weft, RigL"
# Each peer stands against the one of ours that does what it does.
_CANDIDATES = {
    _FIXED: Candidate(script="sparse_networks:sparse", peer=False, settings={"rigl": False}),
    _RIGL: Candidate(script="sparse_networks:sparse", peer=False, settings={"rigl": True}),
    _DENSE: Candidate(script="sparse_networks:dense", peer=False),
    "sparseprop": Candidate(script="sparse_networks:sparseprop", against=(_FIXED,)),
    "rigl-torch": Candidate(script="sparse_networks:rigl_torch", against=(_RIGL,)),
}
_CSR = "torch, CSR"
_ONLINE = {
    _FIXED: _CANDIDATES[_FIXED],
    _DENSE: _CANDIDATES[_DENSE],
    _CSR: Candidate(script="sparse_networks:csr", peer=False),
    "sparseprop": _CANDIDATES["sparseprop"],
}
# How sparse, and how often a pass forward must fit into the dense one's time.
_ONLINE_SPARSITY, _ONLINE_BAR = 0.9, 3.0
# A pass takes less time than it takes to ask for it.
_PASSES = 10
# From this sparsity on the peers ought to be slower.
_FROM = 0.90
_WARMUP = 5
# By which share an accelerated step may be slower than the dense one.
_SLOWER = 0.05


class Network(NamedTuple):
    """A feed-forward network, its batch, and how much faster it ought to be.

    Attributes:
        widths: of input, hidden layers and output.
        batch: samples in a step.
        bars: how often the sparse step must fit into the dense one's time, by sparsity.
    """

    widths: tuple[int, ...]
    batch: int
    bars: Mapping[float, float]

    def __str__(self) -> str:
        return "-".join(map(str, self.widths))


def bench_sparse(config: SparseBench, progress: Progress) -> BenchResult:
    """Run the chosen cases."""
    # First, so that what is wrong with them is known before anything is measured.
    files = [config.planetoid] if config.planetoid else []
    tables = {
        "walks": lambda: temporal_graph(config.temporal, config.data_dir),
        "accuracy": lambda: load("cora", files=files, data_dir=config.data_dir, progress=False),
    }
    named = {"walks": config.temporal, "accuracy": config.planetoid}
    found = {n: data_or_error(tables[n], named[n]) for n in config.cases if n in tables}
    networks = (
        Network(config.wide, config.wide_batch, _WIDE),
        Network(config.narrow, config.narrow_batch, _NARROW),
    )
    cases: list[CaseResult] = []
    for name in dict.fromkeys(config.cases):
        table = found.get(name)
        if name == "step":
            for network in networks:
                cases += [step_case(config, network, each, progress) for each in config.sparsities]
        elif name == "online":
            for network in networks:
                cases += [
                    online_case(config, network, batch, progress) for batch in config.online_batches
                ]
        elif name == "accelerate":
            cases += [accelerate_case(config, network, progress) for network in networks]
        elif name == "units":
            cases.append(units_case(config, progress))
        elif name == "fan-in":
            cases += [fan_in_case(config, each, progress) for each in (config.wide, ONE_LAYER)]
        elif name == "memory":
            cases.append(memory_case(config, progress))
        elif name == "edges":
            cases.append(edges_case(config, progress))
        elif not isinstance(table, GraphTable):
            cases.append(CaseResult.no_data(name, table, unit=""))
        else:
            case = walks_case if name == "walks" else accuracy_case
            cases.append(case(config, table, progress))
    return BenchResult(name="sparse", cases=cases)


def random_masks_of(widths: tuple[int, ...], sparsity: float) -> list[Tensor]:
    """Masks bool [outputs, inputs] of all layers, each of them this sparse, to the weight."""
    generator = torch.Generator().manual_seed(0)
    masks = []
    for inputs, outputs in pairwise(widths):
        size = outputs * inputs
        mask = torch.zeros(size, dtype=torch.bool)
        mask[torch.randperm(size, generator=generator)[: nnz_of(1 - sparsity, size)]] = True
        masks.append(mask.view(outputs, inputs))
    return masks


def random_weights_of(masks: list[Tensor]) -> list[Tensor]:
    """Weights as of fresh layers, 0 where a mask is False."""
    generator = torch.Generator().manual_seed(1)
    weights = []
    for mask in masks:
        drawn = torch.rand(mask.shape, generator=generator) * 2 - 1
        weights.append(drawn * mask / mask.shape[1] ** 0.5)
    return weights


def step_case(
    config: SparseBench, network: Network, sparsity: float, progress: Progress
) -> CaseResult:
    """Seconds of a step of everyone on the same weights; what the bars are, and which is missed."""
    every, timed = config.update_every, config.rounds * config.steps
    case = _run_networks(
        config,
        network,
        sparsity,
        f"step, {network}, {100 * sparsity:g} % sparse",
        f"forward, backward, SGD with momentum, batch {network.batch}; RigL changes the "
        f"pattern every {every} steps",
        _CANDIDATES,
        {
            "online": False,
            "every": every,
            # No end in sight: updates go on for as long as it is timed.
            "total_steps": 10 * (timed + _WARMUP + every),
        },
        config.steps,
        progress,
    )
    return replace(case, says=_means(case), missed=_missed(case, network, sparsity))


def online_case(
    config: SparseBench, network: Network, batch: int, progress: Progress
) -> CaseResult:
    """Seconds of a pass forward of a few samples, as they come in one after the other."""
    network = network._replace(batch=batch)
    case = _run_networks(
        config,
        network,
        _ONLINE_SPARSITY,
        f"online, {network}, batch {batch}",
        f"a pass forward at {100 * _ONLINE_SPARSITY:g} % sparse",
        _ONLINE,
        {"online": True, "rigl": False},
        _PASSES * config.steps,
        progress,
    )
    ratios = case.ratios(_FIXED)
    missed = []
    if _DENSE in ratios and ratios[_DENSE] < _ONLINE_BAR:
        missed.append(
            f"{_DENSE} takes {ratios[_DENSE]:.2f} times as long as {_FIXED}, not {_ONLINE_BAR:g} "
            "times."
        )
    missed += [
        f"{peer} takes {times:.2f} times as long as {_FIXED}, and ought to be slower."
        for peer, times in ratios.items()
        if peer != _DENSE and times <= 1
    ]
    return replace(case, missed=missed)


def _run_networks(
    config: SparseBench,
    network: Network,
    sparsity: float,
    name: str,
    what: str,
    candidates: Mapping[str, Candidate],
    settings: Mapping[str, Any],
    steps: int,
    progress: Progress,
) -> CaseResult:
    """Everyone's turns with the same weights and samples."""
    masks = random_masks_of(network.widths, sparsity)
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x": rng.standard_normal((network.batch, network.widths[0])).astype(np.float32),
        "y": rng.integers(0, network.widths[-1], network.batch),
        **{f"mask_{number}": mask.numpy() for number, mask in enumerate(masks)},
        **{f"weight_{n}": weight.numpy() for n, weight in enumerate(random_weights_of(masks))},
    }
    with TemporaryDirectory(prefix="weft-bench-") as folder:
        path = Path(folder) / "network.npz"
        np.savez(path, **arrays)
        given = {"arrays": str(path), "layers": len(masks), "sparsity": sparsity, **settings}
        return run_case(
            name,
            what,
            candidates,
            given,
            rounds=config.rounds,
            steps=steps,
            warmup=_WARMUP,
            progress=progress,
        )


def _means(case: CaseResult) -> list[str]:
    """Medians know nothing of the few steps that change the pattern; means do."""
    means = {name: case.candidates[name].mean for name in (_RIGL, "rigl-torch")}
    told = [f"{name} {1e3 * mean:.4g} ms" for name, mean in means.items() if mean is not None]
    return [f"Mean step with the changes of the pattern: {', '.join(told)}."] if told else []


def _missed(case: CaseResult, network: Network, sparsity: float) -> list[str]:
    missed = []
    bar = network.bars.get(sparsity)
    ratio = case.ratios(_FIXED).get(_DENSE)
    if bar is not None and ratio is not None and ratio < bar:
        missed.append(f"{_DENSE} takes {ratio:.2f} times as long as {_FIXED}, not {bar:g} times.")
    if sparsity >= _FROM:
        for own in (_FIXED, _RIGL):
            missed += [
                f"{peer} takes {times:.2f} times as long as {own}, and ought to be slower."
                for peer, times in case.ratios(own).items()
                if peer != _DENSE and times <= 1
            ]
    return missed


def accelerate_case(config: SparseBench, network: Network, progress: Progress) -> CaseResult:
    """All three take turns, step by step, in one process, so that what disturbs hits all alike."""
    sparsities, steps = config.accelerate_sparsities, config.rounds * config.steps
    task = progress.add_task(f"accelerate, {network}", total=len(sparsities))
    candidates: dict[str, CandidateResult] = {}
    every, missed = [], []
    dense: list[float] = []
    for sparsity in sparsities:
        ((layers, seconds),) = on_ranks(_measure, network.widths, network.batch, sparsity, steps)
        progress.advance(task)
        own, chosen = seconds["dense"], seconds["chosen"]
        ratio, forced = median_ratio(own, chosen), median_ratio(own, seconds["sparse"])
        every.append(forced)
        dense += own
        candidates[f"weft at {sparsity:g}"] = CandidateResult(
            samples=chosen,
            figures={
                "step ms": 1e3 * statistics.median(chosen),
                "dense /\naccelerated": ratio,
                "sparse\nlayers": layers,
                "dense /\nall sparse": forced,
            },
        )
        if ratio < 1 / (1 + _SLOWER):
            missed.append(
                f"At {sparsity:g} the accelerated step takes {1 / ratio:.3f} times the dense one's "
                f"time, more than {1 + _SLOWER:g}."
            )
    candidates[_DENSE] = CandidateResult(
        samples=dense, figures={"step ms": 1e3 * statistics.median(dense)}
    )
    return CaseResult(
        case=f"accelerate, {network}",
        what=f"forward, backward, SGD with momentum, batch {network.batch}; medians of {steps} "
        "steps in turns",
        unit="s",
        candidates=candidates,
        says=[crossover_words(sparsities, every)],
        missed=missed,
    )


def crossover_words(sparsities: Sequence[float], ratios: Sequence[float]) -> str:
    """From where on sparse layers win for good, in words.

    Args:
        sparsities: at which it was measured, ascending.
        ratios: dense time over that of sparse layers.
    """
    wins = [ratio > 1 for ratio in ratios]
    if not wins[-1]:
        return f"Crossover: none; sparse layers are not faster at {sparsities[-1]:g}."
    losses = [number for number, won in enumerate(wins) if not won]
    if not losses:
        return f"Crossover: below {sparsities[0]:g}; sparse layers are faster at all of them."
    last = losses[-1]
    return (
        f"Crossover: between {sparsities[last]:g} and {sparsities[last + 1]:g} sparse layers "
        "become faster than dense ones."
    )


def _measure(
    widths: tuple[int, ...], batch: int, sparsity: float, steps: int
) -> tuple[int, dict[str, list[float]]]:
    """The layers that `accelerate` makes sparse, and the seconds of each step.

    By network: the `dense` one, what `accelerate` has `chosen`, one with `sparse` layers only.
    """
    prepare_process()
    torch.manual_seed(0)
    masks = random_masks_of(widths, sparsity)
    modules: list[nn.Module] = []
    sparse: list[nn.Module] = []
    for mask, weight in zip(masks, random_weights_of(masks), strict=True):
        layer = nn.Linear(mask.shape[1], mask.shape[0])
        layer.weight.data.copy_(weight)
        modules += [layer, nn.ReLU()]
        relu = len(sparse) < len(masks) - 1
        sparse.append(SparseLinear.from_dense(layer, mask, relu=relu))
    model = nn.Sequential(*modules[:-1])
    x, y = torch.randn(batch, widths[0]), torch.randint(widths[-1], (batch,))
    names = {f"{2 * number}.weight": mask for number, mask in enumerate(masks)}
    chosen = accelerate(copy.deepcopy(model), x, masks=names, report=None)
    layers = sum(isinstance(module, SparseLinear) for module in chosen.modules())
    models = {"dense": model, "chosen": chosen, "sparse": FusingSequential(*sparse)}
    runs = {name: _step(each, x, y) for name, each in models.items()}
    return layers, time_by_turns(runs, steps, warm_up=3)


def _step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step
