"""Case: the step of an accelerated network over the dense one's, from dense to nearly empty."""

from __future__ import annotations

import copy
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.progress import Progress
from torch import nn
from torch.nn import functional

from weft.sparsify.accelerate import accelerate
from weft.sparsify.sparse_layers import SparseLinear
from weft.training import prepare_process
from weft.training.launch import launch
from weft_lab.bench.result import CaseResult, Contender
from weft_lab.bench.sparse_step import Network, random_masks_of, random_weights_of

_SLOWER = 0.05
_WARMUP = 3


@dataclass(frozen=True, kw_only=True)
class _Found:
    """One sparsity.

    Attributes:
        layers: that `accelerate` has made sparse.
        dense: seconds of each step of the dense network.
        chosen: of what `accelerate` has made of it.
        sparse: of the network with sparse layers only.
    """

    layers: int
    dense: list[float]
    chosen: list[float]
    sparse: list[float]


def accelerate_case(
    network: Network, sparsities: Sequence[float], *, steps: int, progress: Progress
) -> CaseResult:
    """All three take turns, step by step, in one process, so that what disturbs hits all alike."""
    task = progress.add_task(f"accelerate, {network}", total=len(sparsities))
    contenders: dict[str, Contender] = {}
    every, missed = [], []
    dense: list[float] = []
    for sparsity in sparsities:
        with TemporaryDirectory(prefix="weft-bench-") as folder:
            arguments = (network.widths, network.batch, sparsity, steps)
            found: _Found = launch(_measure, arguments, ranks=1, logs=Path(folder))[0]
        progress.advance(task)
        ratio, forced = _times(found.dense, found.chosen), _times(found.dense, found.sparse)
        every.append(forced)
        dense += found.dense
        contenders[f"weft at {sparsity:g}"] = Contender(
            samples=found.chosen,
            figures={
                "step ms": 1e3 * statistics.median(found.chosen),
                "dense /\naccelerated": ratio,
                "sparse\nlayers": found.layers,
                "dense /\nall sparse": forced,
            },
        )
        if ratio < 1 / (1 + _SLOWER):
            missed.append(
                f"At {sparsity:g} the accelerated step takes {1 / ratio:.3f} times the dense one's "
                f"time, more than {1 + _SLOWER:g}."
            )
    contenders["torch, dense"] = Contender(
        samples=dense, figures={"step ms": 1e3 * statistics.median(dense)}
    )
    return CaseResult(
        case=f"accelerate, {network}",
        what=f"forward, backward, SGD with momentum, batch {network.batch}; medians of {steps} "
        "steps in turns",
        unit="s",
        contenders=contenders,
        says=[crossover(sparsities, every)],
        missed=missed,
    )


def crossover(sparsities: Sequence[float], ratios: Sequence[float]) -> str:
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


def _times(dense: Sequence[float], other: Sequence[float]) -> float:
    """Median ratio of steps that were neighbours in time."""
    return statistics.median(a / b for a, b in zip(dense, other, strict=True))


def _measure(widths: tuple[int, ...], batch: int, sparsity: float, steps: int) -> _Found:
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
    chosen, _ = accelerate(model, x, training=True, masks=names)
    layers = sum(isinstance(module, SparseLinear) for module in chosen.modules())
    models = (copy.deepcopy(model), chosen, nn.Sequential(*sparse))
    runs = [_step(each, x, y) for each in models]
    seconds: list[list[float]] = [[] for _ in runs]
    # In an order of its own each turn: what one leaves in caches and thread pools, all inherit.
    orders = random.Random(0)  # noqa: S311
    for turn in range(_WARMUP + steps):
        for number in orders.sample(range(len(runs)), len(runs)):
            start = time.perf_counter()
            runs[number]()
            if turn >= _WARMUP:
                seconds[number].append(time.perf_counter() - start)
    return _Found(layers=layers, dense=seconds[0], chosen=seconds[1], sparse=seconds[2])


def _step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step
