"""`fit` for a model that is, or becomes, sparse."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.sparsify import Masks
from weft.sparsify.densities import EmptyLayer
from weft.sparsify.sparse_layers import SparseLinear
from weft.training.checkpoint import load_checkpoint
from weft.training.config import FitConfig, FitResult, SparsityConfig
from weft.training.loop import fit
from weft.training.run import Run
from weft.training.sparse_form import sparse_layers, to_sparse_form, to_sparse_form_of
from weft.training.sparsifiers import Sparsifier, sparsifier_for
from weft.training.step_costs import StepCosts, step_costs

SELECTION = "selection"
"""The metric that decides which weights are best."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SparseFit:
    """What `fit_sparse` gives.

    Attributes:
        result: how the training went.
        masks: those after the last step, not of the best epoch; None where the model stays dense,
            or has sparse layers alone.
        counts: `weights` of the matrices that may be sparse, and those that are `active` in the
            weights that the model ends with: masks do not force them to 0, though one may be 0.
        costs: of a training step, if they were asked for and the model is sparse.
    """

    result: FitResult
    masks: Masks | None
    counts: dict[str, int]
    costs: StepCosts | None


def fit_sparse(
    model: nn.Module,
    optimizer_for: Callable[[nn.Module], tuple[Optimizer, LRScheduler]],
    batches: Iterable[Any],
    loss: Callable[[Any, Any], Tensor],
    *,
    config: SparsityConfig,
    epochs: int,
    steps: int,
    sample: Any,
    ones: Callable[[], Tensor],
    evaluate: Callable[[Any], Mapping[str, float]],
    score: str,
    checkpoint_every: int = 0,
    run: Run | None = None,
    quiet: bool = False,
    seed: int = 0,
    example: Any = None,
) -> SparseFit:
    """Train a model in the way of sparsity that `config` names; it ends with its best weights.

    The best are those of the largest `score` on the validation data among the epochs in which the
    model is as sparse as asked: while it is not yet, `selection` is the score less 1.

    Args:
        model: to be trained.
        optimizer_for: makes the optimizer and the schedule of its rate.
        batches: of training, as `fit` takes them.
        loss: of a model and a batch.
        config: which way, how sparse.
        epochs: of the training.
        steps: of the training.
        sample: a fixed batch of training data for what needs a loss outside the training steps.
        ones: the model's output for inputs of ones.
        evaluate: metrics on the validation data.
        score: the one of them, from 0 to 1, that should be large.
        checkpoint_every: steps from one checkpoint to the next; 0 goes by time.
        run: folder to log to and to resume from.
        quiet: no progress.
        seed: of random masks.
        example: what the model is called with, so that FLOPs are counted and steps timed after
            the training; None for neither.
    """
    fit_config = FitConfig(
        epochs=epochs,
        monitor=SELECTION,
        mode="max",
        checkpoint_every=checkpoint_every,
        log_every=50,
        quiet=quiet,
    )

    def train(model: nn.Module, masks: Masks) -> None:
        optimizer, scheduler = optimizer_for(model)
        masks.attach(optimizer)
        once = dataclasses.replace(fit_config, monitor=None, mode="min")
        result = fit(model, optimizer, batches, loss, config=once, scheduler=scheduler)
        if result.stopped.startswith("interrupted"):
            # Nothing is written yet that a resume could go on from.
            raise KeyboardInterrupt

    resumed = run is not None and run.checkpoint.exists()

    def sparsify() -> tuple[Optimizer, LRScheduler, Sparsifier]:
        optimizer, scheduler = optimizer_for(model)
        try:
            sparsifier = sparsifier_for(
                config,
                model,
                optimizer,
                epochs=epochs,
                steps=steps,
                loss=lambda: loss(model, sample),
                ones=ones,
                train=train,
                resumed=resumed,
                seed=seed,
                quiet=quiet,
            )
        except EmptyLayer as error:
            raise ValueError(
                f"{error.what}; --sparsity is {config.sparsity:g}: lower it, or make layers wider"
            ) from None
        return optimizer, scheduler, sparsifier

    if config.form == "sparse" and run is not None and resumed:
        to_sparse_form_of(model, load_checkpoint(run.checkpoint, "model")["model"])
    elif config.form == "sparse":
        # The masks that a dense training starts with.
        masks = sparsify()[-1].masks
        assert masks is not None
        masks.detach()
        to_sparse_form(model, masks)
    optimizer, scheduler, sparsifier = sparsify()

    def whole_loss(model: nn.Module, batch: Any) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        value = loss(model, batch)
        if sparsifier.penalty is None:
            return value
        penalty = sparsifier.penalty()
        return value + penalty, {"penalty": penalty.detach()}

    @torch.no_grad()
    def objective() -> Tensor:
        return loss(model, sample)

    def measure(model: nn.Module) -> dict[str, float]:
        sparsifier.end_epoch(objective)
        values = dict(evaluate(model))
        if config.sparsify != "none":
            values["sparsity"] = _sparsity(model, sparsifier.masks)
        return {**values, SELECTION: values[score] - (not sparsifier.finished())}

    result = fit(
        model,
        optimizer,
        batches,
        whole_loss,
        config=fit_config,
        evaluate=measure,
        scheduler=scheduler,
        run=run,
        extras=sparsifier.extras,
    )
    fitted = SparseFit(
        result=result,
        masks=sparsifier.masks,
        # The model has the weights of the best epoch; masks may have changed since.
        counts=_counts(
            model, result.best_metrics.get("sparsity", _sparsity(model, sparsifier.masks))
        ),
        costs=None,
    )
    if example is None or config.sparsify == "none" or result.stopped.startswith("interrupted"):
        return fitted
    batch = next(iter(batches))
    costs = step_costs(
        model,
        sparsifier.masks,
        lambda model: optimizer_for(model)[0],
        lambda model: loss(model, batch),
        config=config,
        schedule=sparsifier.schedule,
        example=example,
    )
    return dataclasses.replace(fitted, costs=costs)


def _counts(model: nn.Module, sparsity: float) -> dict[str, int]:
    layers = sparse_layers(model)
    weights = Masks(model, required=not layers).size() + sum(map(_size, layers))
    return {"weights": weights, "active": round((1 - sparsity) * weights)}


def _sparsity(model: nn.Module, masks: Masks | None) -> float:
    """Share of the weights that masks force to 0, or that sparse layers do not have."""
    if masks is not None:
        return masks.sparsity
    layers = sparse_layers(model)
    size = sum(map(_size, layers))
    return 1 - sum(layer.values.numel() for layer in layers) / size if size else 0.0


def _size(layer: SparseLinear) -> int:
    return layer.in_features * layer.out_features
