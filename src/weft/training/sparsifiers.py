"""Every way to make a model sparse that the recipes offer, by name, with one face for `fit`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

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
from weft.sparsify.admm import ADMM
from weft.sparsify.lottery import lottery_ticket
from weft.sparsify.matrices import tell
from weft.sparsify.schedules import DropSchedule
from weft.sparsify.slr import SLR
from weft.training.batches import Stateful
from weft.training.sparse_form import sparse_layers

Form = Literal["dense", "sparse"]

SparsifierName = Literal[
    "none",
    "rigl",
    "set",
    "snfs",
    "random",
    "magnitude",
    "snip",
    "grasp",
    "synflow",
    "gmp",
    "slr",
    "admm",
    "oneshot",
    "lottery",
]
# Those with as many weights from the first step to the last.
_CONSTANT = ("rigl", "set", "snfs", "random", "magnitude", "snip", "grasp", "synflow")


@dataclass(frozen=True, kw_only=True)
class SparsityConfig:
    """How a recipe's weights become sparse.

    Attributes:
        sparsify: rigl, set, snfs: drop and grow while training; random, magnitude, snip, grasp,
            synflow: masks chosen once, before training; gmp: pruned by and by; slr, admm: dense
            for half of the epochs, re-weighted for a quarter, pruned and retrained; oneshot: the
            same without re-weighting; lottery: found by `rounds` trainings before the last; none:
            dense.
        sparsity: share of the weights that is 0, biases left alone.
        form: of the layers in training, for a method with as many weights from the first step to
            the last (rigl, set, snfs, random, magnitude, snip, grasp, synflow). dense: masks on
            all weights, which saves no time; sparse: only the weights that are there are kept,
            multiplied and updated, which is faster in wide layers that are sparse enough.
        update_every: rigl, set, snfs, gmp: steps from one change of the masks to the next; 0 for a
            twentieth of the training.
        death: rigl, set, snfs: share of the weights dropped at the first change.
        rho: slr, admm: ρ, how strongly weights are drawn to their sparse copy; slr's first step
            too.
        rounds: lottery: trainings before the last.
    """

    sparsify: SparsifierName = "none"
    sparsity: float = 0.906
    form: Form = "dense"
    update_every: int = 0
    death: float = 0.5
    rho: float = 0.01
    rounds: int = 5

    def __post_init__(self) -> None:
        if self.sparsify not in get_args(SparsifierName):
            raise ValueError(
                f"sparsify is {self.sparsify!r}; choose from {', '.join(get_args(SparsifierName))}"
            )
        if not 0 <= self.sparsity < 1:
            raise ValueError(f"sparsity is {self.sparsity}; it is from 0 (dense) to below 1")
        if self.form not in get_args(Form):
            raise ValueError(f"form is {self.form!r}; choose from {', '.join(get_args(Form))}")
        if self.form == "sparse" and not self.may_be_sparse:
            why = (
                "there is nothing to leave out without a method"
                if self.sparsify == "none"
                else f"{self.sparsify} needs all weights for a part of the training"
            )
            raise ValueError(
                f"form is sparse, but {why}: choose sparsify from {', '.join(_CONSTANT)}, or leave "
                "the form dense"
            )
        for name, low in (("update_every", 0), ("rounds", 1)):
            if getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {low}")
        if not 0 < self.death <= 1:
            raise ValueError(f"death is {self.death}; it must be above 0 and at most 1")
        if not self.rho > 0:
            raise ValueError(f"rho is {self.rho}; it must be above 0")

    @property
    def may_be_sparse(self) -> bool:
        """Whether the method can train with form = sparse."""
        return self.sparsify in _CONSTANT


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
        masks = Masks(model)
        tell(masks.selection, quiet=quiet)
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
