"""Magnitude pruning: gradual while the model trains, or in rounds that rewind (lottery tickets)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from typing_extensions import Unpack

from weft.sparsify.densities import LayerChoice, choose_target
from weft.sparsify.layer_masks import parameter_ids
from weft.sparsify.mask_schedules import CubicSchedule
from weft.sparsify.masks import Masks
from weft.sparsify.one_shot import keep_groups
from weft.sparsify.snapshots import restore, snapshot


class GradualPruning:
    """Prunes the smallest weights of each layer little by little (GMP, Zhu and Gupta 2017).

    The sparsity is s + (initial - s) · (1 - t)³, t going from 0 at step `begin` to 1 at `stop` of
    the training. Hooks of the optimizer do it; the loop stays as it is. A pruned weight stays
    pruned.

    Args:
        model: any module.
        optimizer: of the model.
        total_steps: optimizer steps of the whole training.
        sparsity: final share of weights that is 0, of every layer.
        initial: the sparsity at step `begin`.
        begin: step at which pruning begins.
        every: steps between prunings.
        stop: share of the training at which the final sparsity is reached.
        **choice: which weights, and how sparse single layers become; see `LayerChoice`.

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
        initial: float = 0.0,
        begin: int = 0,
        every: int = 100,
        stop: float = 0.75,
        **choice: Unpack[LayerChoice],
    ) -> None:
        self.schedule = CubicSchedule(total_steps=total_steps, begin=begin, every=every, stop=stop)
        if not 0 <= initial < 1:
            raise ValueError(f"initial is {initial}; it must be from 0 to below 1")
        self.masks, self._final, _ = choose_target(model, sparsity, **choice)
        self.step, self.initial = 0, initial
        self.schedule.warn_if_sudden()
        self._prune_if_due()
        self.masks.attach(optimizer, after=self._after)

    def state_dict(self) -> dict[str, Any]:
        """The state that training resumes from, beside those of the model and the optimizer."""
        return {"step": self.step, "masks": self.masks.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; those of the model and the optimizer are loaded before or after.

        Raises:
            ValueError: it is of other weights.
        """
        self.masks.load_state_dict(state["masks"])
        self.masks.apply_()
        self.step = int(state["step"])

    def __repr__(self) -> str:
        plan = self.schedule
        return (
            f"GradualPruning: step {self.step} of {plan.total_steps}, every {plan.every} steps "
            f"from {plan.begin} to {plan.end}\n{self.masks}"
        )

    def _after(self) -> None:
        self.step += 1
        self._prune_if_due()

    def _prune_if_due(self) -> None:
        if not self.schedule.prunes_at(self.step):
            return
        left, first = 1 - self.schedule.progress(self.step), 1 - self.initial
        densities = {
            # A layer that ends denser than others begin is pruned to its end at once.
            name: last + max(first - last, 0.0) * left
            for name, last in self._final.items()
        }
        keep_largest(self.masks, densities)


def keep_largest(masks: Masks, densities: Mapping[str, float]) -> None:
    """Prune the smallest of each layer's active weights; at least one is kept."""
    scores = {name: masks.groups(name).magnitudes(masks.weight(name).detach()) for name in masks}
    keep_groups(masks, scores, densities, keep_one=True, active_only=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ticket:
    """A sparse network that is worth training.

    Attributes:
        masks: of the model, not attached to an optimizer.
        start: the parameters and buffers to train it from, by name, before masks.
        sparsities: of the masked weights after each round.
    """

    masks: Masks
    start: dict[str, Tensor]
    sparsities: tuple[float, ...]


def lottery_ticket(
    model: nn.Module,
    train: Callable[[nn.Module, Masks], None],
    *,
    sparsity: float,
    rounds: int = 10,
    rewind_steps: int = 0,
    **choice: Unpack[LayerChoice],
) -> Ticket:
    """Find a lottery ticket (Frankle and Carbin 2019; rewinding: Frankle et al. 2020).

    In each round the model is trained, the smallest of its remaining weights are pruned in each
    layer, and the others are set back to what they were early in the first round. After n of R
    rounds a layer has the share (1 - s)^(n/R) of its weights, rounded to a whole number of them.
    The model is left at its ticket: masked, at the early weights, ready to be trained.

    Args:
        model: any module.
        train: trains the model from the weights that it has to the end, with an optimizer that
            it makes and gives to `masks.attach(optimizer)`. Called once a round.
        sparsity: share of each layer's weights to prune in all.
        rounds: R.
        rewind_steps: optimizer steps of the first round after which weights are remembered; 0 is
            their initialisation.
        **choice: which weights, and how sparse single layers become; see `LayerChoice`.

    Raises:
        ValueError: a setting is out of its range or would empty a layer; `train` made fewer steps
            than `rewind_steps`, or left weights that are pruned at other values than 0.
    """
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; it must be at least 1")
    if rewind_steps < 0:
        raise ValueError(f"rewind_steps is {rewind_steps}; it must be 0 or more")
    masks, shares, _ = choose_target(model, sparsity, **choice)
    start = snapshot(model) if rewind_steps == 0 else {}
    sparsities = []
    for number in range(1, rounds + 1):
        with nullcontext() if start else _remembered(model, rewind_steps, start):
            _run(train, model, masks)
        now = {name: share ** (number / rounds) for name, share in shares.items()}
        keep_largest(masks, now)
        restore(model, start)
        masks.apply_()
        sparsities.append(masks.sparsity)
    return Ticket(masks=masks, start=start, sparsities=tuple(sparsities))


def _run(train: Callable[[nn.Module, Masks], None], model: nn.Module, masks: Masks) -> None:
    try:
        train(model, masks)
    finally:
        masks.detach()
    for name in masks:
        if torch.any(masks.weight(name)[~masks[name]] != 0):
            raise ValueError(
                f"train left weights of {name} that are pruned at other values than 0; call "
                "masks.attach(optimizer) before the first step"
            )


@contextmanager
def _remembered(model: nn.Module, steps: int, start: dict[str, Tensor]) -> Iterator[None]:
    """Put a snapshot of the model after `steps` steps of its optimizer into `start`.

    `train` makes the optimizer itself, so a hook on all optimizers watches for it.
    """
    ours = {id(parameter) for parameter in model.parameters()}
    done = 0

    def watch(optimizer: Optimizer, *_: object) -> None:
        nonlocal done
        if ours & parameter_ids(optimizer):
            done += 1
            if done == steps:
                start.update(snapshot(model))

    handle = register_optimizer_step_post_hook(watch)
    try:
        yield
    finally:
        handle.remove()
    if not start:
        raise ValueError(
            f"rewind_steps is {steps}, but train made {done} optimizer steps; lower it, or train "
            "longer"
        )
