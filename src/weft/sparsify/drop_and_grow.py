"""Sparse training: now and then the smallest weights are dropped and as many others are grown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import Unpack

from weft.sparsify.densities import Densities, LayerChoice, choose_target
from weft.sparsify.layer_masks import SparseLayers
from weft.sparsify.mask_schedules import DropSchedule, Shape
from weft.sparsify.masks import Masks, best, random_order, table, table_row, top
from weft.sparsify.structure import structure_of

Growth = Literal["rigl", "set", "snfs"]


class DropAndGrow:
    """Keeps a model sparse while it trains, by hooks of its optimizer; the loop stays as it is.

    Training starts from random masks. After every `every`-th step of the optimizer the
    ceil(d · active) smallest weights of each layer are dropped and as many inactive ones are grown.
    Those just dropped are candidates too: a weight that is dropped and grown at once stays as it
    is, as in RigL's own code. New weights start at 0, and so does the optimizer's state of them.
    The number of active weights of a layer never changes.

    With a `structure`, groups of weights are dropped and grown instead, by the mean square of their
    weights and the mean of their scores. Groups are dropped wherever they are smallest in the
    layer, and grown where they were dropped: with a constant fan-in, each output gets as many
    inputs as it has lost (SRigL, Lasby et al. 2024, without its removal of whole neurons).

    RigL and SNFS grow by the gradient that the optimizer steps with: that of all micro-batches
    where gradients are accumulated, of all ranks under DistributedDataParallel. Masks are the same
    on every rank. A clipped norm is that of the active weights alone, except in steps that need
    dense gradients: RigL's updates, all steps of SNFS.

    Weights of the model's `SparseLinear` layers are dropped and grown too; these layers keep the
    number of weights they have, and under torch.distributed their dense gradients are averaged
    over all ranks.

    Args:
        model: any module.
        optimizer: the model's optimizer.
        total_steps: optimizer steps of the whole training.
        sparsity: share of the weights that is 0, from 0 to below 1.
        growth: by the largest gradients (`rigl`, Evci et al. 2020), at random (`set`, Mocanu et
            al. 2018), or by the largest exponential averages of dense gradients (`snfs`,
            Dettmers and Zettlemoyer 2019), which are held here because the averages of an
            optimizer contain nothing of inactive weights.
        densities: how the layers share them: Erdős-Rényi-kernel, or the same for all.
        every: steps between updates, ΔT.
        death: share of active weights dropped at the first updates, d.
        schedule: how d falls.
        stop: share of the training after which masks stay as they are. momentum: decay of SNFS's
        averages. seed: seed of the initial masks and of random growth. **choice: which weights, and
        how sparse single layers become; see `LayerChoice`.

    Raises:
        ValueError: a setting is out of its range, a layer would be empty, a name or pattern
            matches nothing, or the optimizer does not have one of the weights.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        total_steps: int,
        sparsity: float = 0.9,
        growth: Growth = "rigl",
        densities: Densities = "erk",
        every: int = 100,
        death: float = 0.5,
        schedule: Shape = "cosine",
        stop: float = 0.75,
        momentum: float = 0.9,
        seed: int = 0,
        **choice: Unpack[LayerChoice],
    ) -> None:
        if growth not in get_args(Growth):
            raise ValueError(f"growth {growth!r} is not one of {', '.join(get_args(Growth))}")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum is {momentum}; it must be from 0 to below 1")
        self.schedule = DropSchedule(
            total_steps=total_steps, every=every, death=death, shape=schedule, stop=stop
        )
        self.growth, self.momentum, self.seed, self.step = growth, momentum, seed, 0
        structure = structure_of(choice.get("structure", "weights"))
        self._layers = SparseLayers(model, optimizer, choice.get("exclude", ()), structure)
        required = not self._layers
        self.masks, _, counts = choose_target(
            model, sparsity, densities, required=required, **choice
        )
        self.schedule.warn_if_idle()
        for number, (name, count) in enumerate(counts.items()):
            groups = self.masks.groups(name)
            order = random_order(groups.pools * groups.count, seed, 0, number)
            # The first numbers are kept.
            places = -order.argsort().view(groups.pools, groups.count)
            chosen = best(places.to(self.masks[name].device), count)
            self.masks.set(name, groups.mask(chosen))
        self._explored = {name: part[name].clone() for part, name in self._weights()}
        self._gradients: dict[str, Tensor] = {}
        # A state that is loaded now may have active weights that these random masks zero.
        self._untouched = {name: self.masks.weight(name).detach().clone() for name in self.masks}
        self.masks.attach(optimizer, before=self._before, after=self._after)
        self._expect()

    @property
    def itop(self) -> float:
        """Share of the weights that were active at some time (in-time over-parameterisation)."""
        size = sum(mask.numel() for mask in self._explored.values())
        return sum(int(mask.sum()) for mask in self._explored.values()) / size

    def _weights(self) -> list[tuple[Masks | SparseLayers, str]]:
        """All weights that are dropped and grown, by name, each with its masks or layers."""
        return [(part, name) for part in (self.masks, self._layers) for name in part]

    def state_dict(self) -> dict[str, Any]:
        """The state that training resumes from, beside those of the model and the optimizer."""
        return {
            "step": self.step,
            "growth": self.growth,
            "structure": str(self.masks.structure),
            "masks": self.masks.state_dict(),
            "explored": {name: mask.clone() for name, mask in self._explored.items()},
            "averages": {name: mean.clone() for name, mean in self._gradients.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; those of the model and the optimizer are loaded before or after.

        Raises:
            ValueError: it is of other weights or of another growth.
        """
        if state["growth"] != self.growth:
            raise ValueError(f"the state is of growth {state['growth']!r}, this is {self.growth!r}")
        # Older states know no structure.
        theirs, ours = state.get("structure", "weights"), str(self.masks.structure)
        if theirs != ours:
            raise ValueError(f"the state is of structure {theirs}, this is {ours}")
        if set(state["explored"]) != set(self._explored):
            odd = sorted(set(state["explored"]) ^ set(self._explored))
            raise ValueError(f"{', '.join(odd)} is in the state or in this model, not in both")
        unchanged = {
            name: weights
            for name, weights in self._untouched.items()
            if torch.equal(self.masks.weight(name), weights * self.masks[name])
        }
        self.masks.load_state_dict(state["masks"])
        with torch.no_grad():
            # No weights have been loaded since the first masks zeroed some of them.
            for name, weights in unchanged.items():
                self.masks.weight(name).copy_(weights)
        self.masks.apply_()
        self._untouched = {}
        self.step = int(state["step"])
        for key, mine in (("explored", self._explored), ("averages", self._gradients)):
            mine.clear()
            for part, name in self._weights():
                if name in state[key]:
                    mine[name] = state[key][name].to(part[name].device, copy=True)
        self._expect()

    def __repr__(self) -> str:
        plan, rows, active = self.schedule, [], 0
        for part, name in self._weights():
            ever = int(self._explored[name].sum()) / self._explored[name].numel()
            rows.append((*table_row(name, part[name]), f"{ever:.4f}"))
            active += int(part[name].sum())
        size = sum(mask.numel() for mask in self._explored.values())
        return (
            f"DropAndGrow: {self.growth}, step {self.step} of {plan.total_steps}, "
            f"{plan.updates} updates every {plan.every} steps before step {plan.end:g}, "
            f"death {plan.death:g} {plan.shape}\n{active:,} of {size:,} weights active, "
            f"sparsity {1 - active / size:.4f}, ever active {self.itop:.4f}\n"
            + table(("weight", "shape", "active", "sparsity", "ever active"), rows)
            + "".join(f"\n{line}" for line in self.masks.selection.left_lines())
        )

    def _expect(self) -> None:
        """Ask for dense gradients if the next step needs them."""
        wanted = self.growth == "snfs" and not self.schedule.is_over(self.step)
        wanted |= self.growth == "rigl" and self.schedule.updates_at(self.step + 1)
        self.masks.keep_dense = wanted
        self._layers.want_gradients(wanted)

    @torch.no_grad()
    def _before(self) -> None:
        if not self.masks.keep_dense:
            return
        for part, name in self._weights():
            gradient = part.gradient(name)
            if gradient is None:
                continue
            if self.growth == "rigl":
                self._gradients[name] = gradient.clone()
            elif name in self._gradients:
                self._gradients[name].lerp_(gradient, 1 - self.momentum)
            else:
                self._gradients[name] = gradient * (1 - self.momentum)

    @torch.no_grad()
    def _after(self) -> None:
        self._untouched = {}
        self.step += 1
        if self.schedule.updates_at(self.step):
            self._update(self.schedule.rate(self.step))
        if self.growth == "rigl" or self.schedule.is_over(self.step):
            self._gradients.clear()
        self._expect()

    def _update(self, rate: float) -> None:
        for number, (part, name) in enumerate(self._weights()):
            groups, active = part.groups(name), part.kept(name)
            if self.growth == "set":
                order = random_order(active.numel(), self.seed, self.step, number)
                scores = order.to(active.device).view(active.shape)
            elif name in self._gradients:
                scores = groups.scores(self._gradients[name].abs())
            else:
                continue  # No gradient has reached this layer.
            count = drop_count(rate, int(active.sum()))
            magnitudes = groups.magnitudes(part.weight(name).detach())
            mask = groups.mask(dropped_and_grown(magnitudes, active, scores, count))
            part.set(name, mask)
            self._explored[name] = self._explored[name].to(mask.device) | mask
        self.masks.apply_()


def drop_count(rate: float, active: int) -> int:
    """ceil(rate · active), where 0.1 · 30 is 3 and not the next float above it."""
    return min(math.ceil(rate * active * (1 - 1e-12)), active)


def dropped_and_grown(magnitudes: Tensor, active: Tensor, scores: Tensor, count: int) -> Tensor:
    """The groups after `count` of the smallest are dropped and as many are grown.

    Args:
        magnitudes: of all groups, [P, G].
        active: bool [P, G].
        scores: [P, G]; the largest of those that are inactive after the drop are grown.
        count: how many, at most those active.

    Returns:
        bool [P, G], with as many active in each pool. Among equals the first index wins.
    """
    mask = active.flatten().clone()
    candidates = mask.nonzero().flatten()
    mask[candidates[top(-magnitudes.flatten()[candidates], count)]] = False
    mask = mask.view(active.shape)
    dropped = active.sum(1) - mask.sum(1)
    # What is active must be behind every candidate, be its score what it may.
    scores = scores.to(torch.float64)
    scores = torch.where(scores > -math.inf, scores, torch.finfo(torch.float64).min)
    return mask | best(scores.masked_fill(mask, -math.inf), dropped)
