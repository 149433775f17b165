"""What sparse weights save in time: steps of training and passes forward, form against form."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from weft.sparsify import Masks, erk, random_masks
from weft.sparsify.accelerate import accelerate
from weft.sparsify.compaction import compact
from weft.sparsify.sparse_layers import SparseLinear
from weft_lab.study_settings import Network
from weft_lab.timing import crossover, median_ratio, time_by_turns

Mode = Literal["training", "inference"]

FORMS: dict[Mode, tuple[str, ...]] = {
    "training": ("dense", "masks", "sparse", "accelerate"),
    "inference": ("dense", "sparse", "compact", "accelerate"),
}
"""dense: torch; masks: the same with masks kept at 0; sparse: every layer a `SparseLinear`;
compact: dense without units that do nothing; accelerate: what `accelerate` chose."""

# Seconds of a turn: many calls of what takes less than a hiccup of the machine.
_TURN = 0.02


@dataclass(kw_only=True)
class TimeCell:
    """One network at one sparsity.

    Attributes:
        network: as in the settings, such as 64-256-128-10x512.
        sparsity: of the weights.
        mode: training: forward, backward and SGD; inference: forward.
        flops: the dense network's over those of the weights that are there.
        measured: seconds of the fastest call of each turn, by form.
        chosen: layers that `accelerate` made sparse.
        layers: how many there are.
    """

    network: str
    sparsity: float
    mode: Mode
    flops: float = 0.0
    measured: dict[str, list[float]] = field(default_factory=dict)
    chosen: int = 0
    layers: int = 0

    @property
    def key(self) -> tuple[str, Mode, float]:
        """Which one it is."""
        return self.network, self.mode, self.sparsity

    def seconds(self, form: str) -> float:
        """Median of the turns."""
        return statistics.median(self.measured[form])

    def speedup(self, form: str) -> float:
        """Dense time over that of a form: median over turns, which both had one after the other."""
        return median_ratio(self.measured["dense"], self.measured[form])


def time_forms(cell: TimeCell, *, rounds: int, seed: int = 0) -> None:
    """Let all forms take turns on random masks of the cell's sparsity; `cell` is filled."""
    network = Network.read(cell.network)
    training = cell.mode == "training"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        plain = _layers(network)
        x = torch.randn(network.batch, network.widths[0])
    dense = copy.deepcopy(plain)
    masks = Masks(plain)
    shares = erk(masks.shapes, 1 - cell.sparsity)
    random_masks(plain, masks, shares, seed=seed)
    masks.apply_()
    cell.flops = masks.size() / masks.nnz()
    chosen, table = accelerate(plain, x, training=training, masks=masks)
    cell.chosen = sum(layer.form == "sparse" for layer in table.layers)
    cell.layers = len(network.widths) - 1
    steps = {
        "dense": _step(dense, x, training),
        "sparse": _step(_sparse(plain, masks), x, training),
        "accelerate": _step(chosen, x, training),
    }
    if training:
        steps["masks"] = _step(plain, x, training, masks)
    else:
        steps["compact"] = _step(compact(plain, masks)[0], x, training)
    ordered = {form: steps[form] for form in FORMS[cell.mode]}
    cell.measured = time_by_turns(ordered, rounds, turn=_TURN)


def _layers(network: Network) -> nn.Sequential:
    """The network in torch's layers."""
    layers: list[nn.Module] = []
    for wide, narrow in pairwise(network.widths):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _sparse(model: nn.Sequential, masks: Masks) -> nn.Sequential:
    """The same with every layer sparse, and its ReLU in it."""
    names = [name for name, layer in model.named_children() if isinstance(layer, nn.Linear)]
    return nn.Sequential(
        *(
            SparseLinear.from_dense(
                model.get_submodule(name),  # type: ignore[arg-type]
                masks[f"{name}.weight"],
                relu=name != names[-1],
            )
            for name in names
        )
    )


def _step(
    model: nn.Module, x: Tensor, training: bool, masks: Masks | None = None
) -> Callable[[], None]:
    model = model.train(training)
    if not training:

        def forward() -> None:
            with torch.inference_mode():
                model(x)

        return forward
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    if masks is not None:
        masks.attach(optimizer)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def faster_from(cells: Sequence[TimeCell], form: str) -> float | str:
    """The sparsity from which on a form is faster than dense, see `crossover`.

    Args:
        cells: of one network and mode.
        form: of FORMS.
    """
    ranked = sorted(cells, key=lambda cell: cell.sparsity)
    # What `accelerate` left dense is no faster, whatever the clock says.
    ratios = [
        1.0 if form == "accelerate" and not cell.chosen else cell.speedup(form) for cell in ranked
    ]
    kept = crossover([1 - cell.sparsity for cell in ranked], ratios)
    return kept if isinstance(kept, str) else 1 - kept
