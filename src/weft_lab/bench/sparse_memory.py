"""Case: memory of weights and optimizer, dense and by the weights that are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from rich.progress import Progress
from torch import nn
from torch.nn import functional
from weft.sparsify.layers import SparseLinear

from weft.sparsify import nnz_of
from weft.training.hardware import held_memory, trim_memory
from weft.training.launch import launch
from weft_lab.bench.result import CaseResult, Contender

_BATCH = 256
_MB = 1e6
# What the C library and the counting of pages may add to what is asked for.
_APART = 0.15, 1e6


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


def memory_case(
    widths: tuple[int, ...], sparsities: Sequence[float], progress: Progress
) -> CaseResult:
    """Bytes counted from the tensors, and measured in a process of its own for each network."""
    task = progress.add_task("memory", total=1 + len(sparsities))
    found: dict[str, _Held] = {}
    for sparsity in (None, *sparsities):
        label = "torch, dense" if sparsity is None else f"weft at {sparsity:g}"
        with TemporaryDirectory(prefix="weft-bench-") as folder:
            found[label] = launch(_hold, (widths, sparsity), ranks=1, logs=Path(folder))[0]
        progress.advance(task)
    dense = found["torch, dense"]
    contenders = {
        label: Contender(
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
        contenders=contenders,
        says=[_break_even(found)],
        missed=_missed(found),
    )


def _mb(size: float) -> float:
    return round(size / _MB, 3)


def _break_even(found: dict[str, _Held]) -> str:
    """A weight that is there needs its place too: few of them, or dense is smaller."""
    dense, *sparse = found.items()
    smaller = [label for label, each in sparse if each.counted < dense[1].counted]
    return f"Less than dense: {', '.join(smaller) or 'none'}, by what the tensors hold."


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
