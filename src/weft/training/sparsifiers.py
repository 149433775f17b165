"""Every way to make a model sparse that the recipes offer, by name, with one face for `fit`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer

from weft.sparsify import (
    DropAndGrow,
    GradualPruning,
    Masks,
    erk,
    grasp_masks,
    magnitude_masks,
    random_masks,
    snip_masks,
    synflow_masks,
)
from weft.sparsify.densities import choose_weights
from weft.sparsify.magnitude_pruning import lottery_ticket
from weft.sparsify.mask_schedules import DropSchedule
from weft.sparsify.train_and_prune import ADMM, SLR
from weft.training.batches import Stateful
from weft.training.config import SparsityConfig
from weft.training.sparse_form import sparse_layers


@dataclass(frozen=True, kw_only=True, eq=False)
class Sparsifier:
    """What a training loop needs to know of how its model becomes sparse.

    Attributes:
        masks: of the model; None where it stays dense, or has sparse layers alone.
        extras: what has a state to be resumed, for `fit`.
        penalty: to be added to every batch's loss; None for nothing.
        end_epoch: to be told of every epoch's end, with the loss over fixed training data.
        finished: whether the model is as sparse by now as it shall be, so that its weights may be
            called the best.
        schedule: when weights are dropped and grown, where they are.
    """

    masks: Masks | None
    extras: Mapping[str, Stateful]
    penalty: Callable[[], Tensor] | None = None
    end_epoch: Callable[[Callable[[], Tensor]], None] = lambda objective: None
    finished: Callable[[], bool] = lambda: True
    schedule: DropSchedule | None = None


def sparsifier_for(
    config: SparsityConfig,
    model: nn.Module,
    optimizer: Optimizer,
    *,
    epochs: int,
    steps: int,
    loss: Callable[[], Tensor],
    ones: Callable[[], Tensor],
    train: Callable[[nn.Module, Masks], None],
    resumed: bool = False,
    seed: int = 0,
    quiet: bool = False,
) -> Sparsifier:
    """Make the model sparse in the way that `config` names, or see to it that it becomes so.

    A model that has sparse layers already keeps their weights, or as many of them.

    Args:
        config: which way, how sparse.
        model: to be trained.
        optimizer: that trains it.
        epochs: of the training.
        steps: of the training.
        loss: of the model as it is, on a fixed batch: for snip and grasp.
        ones: the model's output for inputs of ones: for synflow.
        train: trains the model to the end with masks attached to an optimizer: for lottery.
        resumed: a state will be loaded, so that nothing long need be computed first.
        seed: of random masks and of random growth.
        quiet: do not print which weights are chosen.

    Raises:
        ValueError: the sparsity would leave a layer without weights.

    Warns:
        UserWarning: the training is too short for masks to change, or to retrain after pruning.
    """
    name, density = config.sparsify, 1 - config.sparsity
    every = config.update_every or max(1, steps // 20)
    if name == "none":
        return Sparsifier(masks=None, extras={})
    if name in ("rigl", "set", "snfs"):
        grown = DropAndGrow(
            model,
            optimizer,
            total_steps=steps,
            sparsity=config.sparsity,
            growth=name,
            every=every,
            death=config.death,
            seed=seed,
            quiet=quiet,
        )
        return Sparsifier(
            masks=grown.masks if len(grown.masks) else None,
            extras={"sparsifier": grown},
            schedule=grown.schedule,
        )
    if sparse_layers(model):
        return Sparsifier(masks=None, extras={})
    if name == "gmp":
        gradual = GradualPruning(
            model,
            optimizer,
            total_steps=steps,
            sparsity=config.sparsity,
            every=every,
            quiet=quiet,
        )
        return Sparsifier(
            masks=gradual.masks,
            extras={"sparsifier": gradual},
            finished=lambda: gradual.step >= gradual.schedule.end,
        )
    if name in ("slr", "admm", "oneshot"):
        quarter = epochs // 4
        if quarter == 0:
            warnings.warn(
                f"{name} only prunes, after the last epoch: a quarter of epochs={epochs} to "
                "retrain in is none; train for 4 epochs or more",
                stacklevel=2,
            )
        reweighting = 0 if name == "oneshot" else quarter
        phases = (epochs - reweighting - quarter, reweighting, quarter)
        pruned = (
            SLR(
                model,
                optimizer,
                sparsity=config.sparsity,
                phases=phases,
                rho=config.rho,
                step=config.rho,
                quiet=quiet,
            )
            if name != "admm"
            else ADMM(
                model,
                optimizer,
                sparsity=config.sparsity,
                phases=phases,
                rho=config.rho,
                quiet=quiet,
            )
        )
        return Sparsifier(
            masks=pruned.masks,
            extras={"sparsifier": pruned},
            penalty=pruned.penalty,
            end_epoch=pruned.end_epoch,
            finished=lambda: pruned.phase in ("retrain", "done"),
        )
    if name == "lottery" and not resumed:
        ticket = lottery_ticket(
            model, train, sparsity=config.sparsity, rounds=config.rounds, quiet=quiet
        )
        masks = ticket.masks
    else:
        masks = choose_weights(model, quiet=quiet)
    # By rank across all layers, as the methods' authors do; no layer may be cut through by it.
    if not resumed:
        layers = erk(masks.shapes, density)
        if name == "random":
            random_masks(model, masks, layers, seed=seed)
        elif name == "magnitude":
            magnitude_masks(model, masks, layers)
        elif name == "snip":
            snip_masks(model, masks, density, loss, keep_one=True)
        elif name == "grasp":
            grasp_masks(model, masks, density, loss, keep_one=True)
        elif name == "synflow":
            synflow_masks(model, masks, density, ones, keep_one=True)
    masks.attach(optimizer)
    return Sparsifier(masks=masks, extras={"sparsifier": masks})
