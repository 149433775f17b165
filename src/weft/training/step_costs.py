"""What a step of a sparse training costs against the same step dense: FLOPs, and time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.sparsify import DropAndGrow, Masks
from weft.sparsify.accelerate import fastest
from weft.sparsify.flop_counter import count_flops
from weft.sparsify.mask_schedules import DropSchedule
from weft.sparsify.sparse_layers import to_dense
from weft.training.config import SparsityConfig
from weft.training.numerics import denormals_flushed
from weft.training.sparse_form import sparse_layers

# Steps between two changes of masks that a timing never comes to.
_NEVER = 10**9
# Rounds of timing, and by how much they may differ for their best to be believed.
_ROUNDS, _ALIKE = 3, 1.3


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """A training step (forward, backward, optimizer) with the weights that are left.

    FLOPs say what must be computed, not how long it takes.

    Attributes:
        flops: of a step, over those of the same step with all weights; with the dense gradients
            that a method needs now and then, as a mean over its steps.
        seconds: of a step in the form it was trained in, changes of the masks included, as a mean
            over its steps; measured beside `dense_seconds` after the training.
        dense_seconds: of the same step with all weights and no masks.
        ratios: of the two in each of some rounds, which differ where the machine is busy.
    """

    flops: float
    seconds: float
    dense_seconds: float
    ratios: tuple[float, ...]

    @property
    def time(self) -> float:
        """Of a step, over that of the same step dense."""
        return self.seconds / self.dense_seconds

    @property
    def is_certain(self) -> bool:
        """Whether all rounds say about the same of the time."""
        return max(self.ratios) <= _ALIKE * min(self.ratios)


def step_costs(
    model: nn.Module,
    masks: Masks | None,
    optimizer_for: Callable[[nn.Module], Optimizer],
    loss: Callable[[nn.Module], Tensor],
    *,
    config: SparsityConfig,
    schedule: DropSchedule | None,
    example: Any,
) -> StepCosts:
    """Count and time a step of a model that is as sparse as it shall be; copies of it are trained.

    Args:
        model: trained.
        masks: of the model; None where its layers are sparse.
        optimizer_for: makes the optimizer of a copy.
        loss: of a copy on a training batch.
        config: how it became sparse.
        schedule: when masks changed, where they did.
        example: what the model is called with.
    """
    count = count_flops(model, masks, example, training=True)
    # Steps that change masks, and those before them that watch dense gradients.
    changing = schedule.updates / schedule.total_steps if schedule else 0.0
    watching = max(0.0, schedule.stop - changing) if schedule and config.sparsify == "snfs" else 0.0
    dense_gradients = watching + (changing if config.sparsify != "set" else 0.0)
    flops = 3 * count.sparse + dense_gradients * (count.dense - count.sparse)

    def plain() -> Callable[[], None]:
        twin = copy.deepcopy(model)
        optimizer = optimizer_for(twin)
        if masks is not None:
            masks.to_model(twin).attach(optimizer)
        return _step(twin, optimizer, loss)

    def driven(every: int) -> Callable[[], None]:
        assert config.sparsify in ("rigl", "set", "snfs")
        twin = copy.deepcopy(model)
        optimizer = optimizer_for(twin)
        DropAndGrow(
            twin,
            optimizer,
            total_steps=2 * _NEVER,
            sparsity=config.sparsity,
            growth=config.sparsify,
            every=every,
            death=config.death,
            quiet=True,
        )
        return _step(twin, optimizer, loss)

    whole = _dense(model)
    # The share of a training's steps that each kind has.
    kinds = [(0.0, _step(whole, optimizer_for(whole), loss))]
    kinds.append((1 - changing - watching, plain()))
    if changing:
        kinds.append((changing, driven(1)))
    if watching:
        kinds.append((watching, driven(_NEVER)))
    shares, steps = [share for share, _ in kinds], [step for _, step in kinds]
    with torch.random.fork_rng(devices=[]), denormals_flushed():
        rounds = [fastest(steps) for _ in range(_ROUNDS)]

    def mean(seconds: Sequence[float]) -> float:
        return sum(share * each for share, each in zip(shares, seconds, strict=True))

    best = [min(times) for times in zip(*rounds, strict=True)]
    return StepCosts(
        flops=flops / (3 * count.dense),
        seconds=mean(best),
        dense_seconds=best[0],
        ratios=tuple(mean(seconds) / seconds[0] for seconds in rounds),
    )


def _dense(model: nn.Module) -> nn.Module:
    """A copy with all weights; an FNN's ReLU is its own again."""
    twin = copy.deepcopy(model)
    for layer in sparse_layers(twin):
        layer.relu = False
    return to_dense(twin)


def _step(
    model: nn.Module, optimizer: Optimizer, loss: Callable[[nn.Module], Tensor]
) -> Callable[[], None]:
    model.train()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step
