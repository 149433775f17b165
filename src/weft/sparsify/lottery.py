"""Lottery tickets: iterative magnitude pruning with rewinding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from weft.sparsify.densities import kept_shares, layer_nnz, uniform
from weft.sparsify.masks import Masks
from weft.sparsify.matrices import tell
from weft.sparsify.scores import keep_top
from weft.sparsify.snapshots import restore, snapshot


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
    overrides: Mapping[str, float] | None = None,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    example: Any = None,
    keep_one: bool = False,
    quiet: bool = False,
) -> Ticket:
    """Find a lottery ticket (Frankle and Carbin 2019; rewinding: Frankle et al. 2020).

    In each round the model is trained, the smallest of its remaining weights are pruned, by
    layer, and the others go back to what they were early in the first round. After n of R rounds
    a layer has the share (1 - s)^(n/R) of its weights, rounded to a whole number of them. The
    model is left at its ticket: masked, at the early weights, ready to be trained.

    Args:
        model: any module; see `Masks` for which of its weights are pruned.
        train: trains the model from the weights that it has to the end, with an optimizer that
            it makes and gives to `masks.attach(optimizer)`. Called once a round.
        sparsity: share of each layer's weights to prune in all.
        rounds: R.
        rewind_steps: optimizer steps of the first round after which weights are remembered; 0 is
            their initialisation.
        overrides: sparsities of single layers, by name or pattern.
        include: names or patterns of weights to make sparse; None: all weight matrices.
        exclude: names or patterns of weights to leave dense.
        example: a batch as the model takes it, which shows what multiplies features in layers
            that are not known; see `Masks`.
        keep_one: keep one weight of a layer that would have none, rather than refuse.
        quiet: do not print which weights were chosen and which are left dense.

    Raises:
        ValueError: a setting is out of its range or would empty a layer; `train` made fewer steps
            than `rewind_steps`, or left weights that are pruned at other values than 0.
    """
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; it must be at least 1")
    if rewind_steps < 0:
        raise ValueError(f"rewind_steps is {rewind_steps}; it must be 0 or more")
    masks = Masks(model, include=include, exclude=exclude, example=example)
    shares = uniform(masks.shapes, *kept_shares(sparsity, overrides))
    layer_nnz(masks.shapes, shares, keep_one=keep_one)
    tell(masks.selection, quiet=quiet)
    start = snapshot(model) if rewind_steps == 0 else {}
    sparsities = []
    for number in range(1, rounds + 1):
        if start:
            _run(train, model, masks)
        else:
            with _remembered(model, rewind_steps, start):
                _run(train, model, masks)
        scores = {
            # What is pruned stays so, even beside a weight that is 0 by itself.
            name: masks.weight(name).detach().abs().masked_fill(~masks[name], -1)
            for name in masks
        }
        now = {name: share ** (number / rounds) for name, share in shares.items()}
        keep_top(masks, scores, now, keep_one=True)
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
    """Put a snapshot of the model after so many steps of its optimizer into `start`.

    The optimizer is made inside `train`, out of reach: a hook of all optimizers watches for it.
    """
    ours = {id(parameter) for parameter in model.parameters()}
    done = 0

    def watch(optimizer: Optimizer, *_: object) -> None:
        nonlocal done
        if any(id(p) in ours for group in optimizer.param_groups for p in group["params"]):
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
