"""Case: a training step of a sparse network beside the dense one and beside the peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from torch import Tensor

from weft.sparsify import nnz_of
from weft_lab.bench.result import CaseResult
from weft_lab.bench.runner import Entry, run_case

_DENSE = "torch, dense"
_FIXED, _RIGL = "weft", "weft, RigL"
# Each peer stands against the one of ours that does what it does.
_ENTRIES = {
    _FIXED: Entry(script="weft_fnn", peer=False, settings={"rigl": False}),
    _RIGL: Entry(script="weft_fnn", peer=False, settings={"rigl": True}),
    _DENSE: Entry(script="torch_fnn", peer=False),
    "sparseprop": Entry(script="sparseprop_fnn", against=(_FIXED,)),
    "rigl-torch": Entry(script="rigl_torch_fnn", against=(_RIGL,)),
}
# From this sparsity on the peers ought to be slower.
_FROM = 0.90
_WARMUP = 5


@dataclass(frozen=True, kw_only=True)
class Network:
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
    network: Network,
    sparsity: float,
    *,
    rounds: int,
    steps: int,
    update_every: int,
    progress: Progress,
) -> CaseResult:
    """Seconds of a step of everyone on the same weights; what the bars are, and which is missed."""
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
        case = run_case(
            f"step, {network}, {100 * sparsity:g} % sparse",
            f"forward, backward, SGD with momentum, batch {network.batch}; RigL changes the "
            f"pattern every {update_every} steps",
            _ENTRIES,
            {
                "arrays": str(path),
                "layers": len(masks),
                "sparsity": sparsity,
                "every": update_every,
                # No end in sight: updates go on for as long as it is timed.
                "total_steps": 10 * (rounds * steps + _WARMUP + update_every),
            },
            rounds=rounds,
            steps=steps,
            warmup=_WARMUP,
            progress=progress,
        )
    return replace(case, says=_means(case), missed=_missed(case, network, sparsity))


def _means(case: CaseResult) -> list[str]:
    """Medians know nothing of the few steps that change the pattern; means do."""
    means = {name: case.contenders[name].mean for name in (_RIGL, "rigl-torch")}
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
