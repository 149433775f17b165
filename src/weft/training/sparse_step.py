"""The step of a model that is, or becomes, sparse."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.sparsify import Masks
from weft.sparsify.densities import EmptyLayer
from weft.sparsify.sparse_layers import SparseLinear
from weft.training.batches import Share
from weft.training.checkpoint import shared_checkpoint
from weft.training.config import FitConfig, FitResult, SparsityConfig
from weft.training.loop import fit
from weft.training.run import Run
from weft.training.sparse_form import sparse_layers, to_sparse_form, to_sparse_form_of
from weft.training.sparsifiers import Sparsifier, sparsifier_for
from weft.training.step import LossStep, rank0_metrics
from weft.training.step_costs import StepCosts, step_costs

if TYPE_CHECKING:
    from weft.parallel.world import World

SELECTION = "selection"
"""The metric that decides which weights are best."""


class SparseStep(LossStep):
    """A step of a training in the way of sparsity that a SparsityConfig names; `fit` runs it.

    The model is made sparse, or prepared to become so, when this is made.

    Attributes:
        optimizer: of the model, for `fit`.
        scheduler: of its learning rate, for `fit`.
        masks: of the model as they are now: after a training those of its last step, not of the
            best epoch. None where the model stays dense, or has sparse layers alone.
    """

    def __init__(
        self,
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
        run: Run | None = None,
        quiet: bool = False,
        seed: int = 0,
        world: World | None = None,
    ) -> None:
        """Make the model sparse.

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
            run: the run that is trained; one with a checkpoint keeps the masks of that.
            quiet: no progress.
            seed: of random masks.
            world: ranks that share every batch; not with form = sparse.

        Raises:
            ValueError: a layer would be left without weights, or several ranks train sparse layers.
        """
        super().__init__(self._with_penalty, world)
        self._model, self._optimizer_for, self._batches = model, optimizer_for, batches
        self._loss, self._config, self._sample = loss, config, sample
        self._epochs, self._steps, self._ones = epochs, steps, ones
        self._quiet, self._seed = quiet, seed
        if self.is_shared and config.form == "sparse":
            raise ValueError(
                "form is sparse, and sparse layers grow by the gradients of one rank's share: "
                "train with form = dense, or in one process"
            )
        saved = shared_checkpoint(None if run is None else run.checkpoint, world, "model")
        if config.form == "sparse" and saved is not None:
            to_sparse_form_of(model, saved[1]["model"])
        elif config.form == "sparse":
            # The masks that a dense training starts with.
            masks = self._sparsify(resumed=False)[-1].masks
            assert masks is not None
            masks.detach()
            to_sparse_form(model, masks)
        self.optimizer, self.scheduler, self._sparsifier = self._sparsify(resumed=saved is not None)
        self.extras = self._sparsifier.extras
        self.masks = self._sparsifier.masks

    def fit_config(self, *, checkpoint_every: int = 0) -> FitConfig:
        """What `fit` is asked to do: it keeps the weights of the best `selection`."""
        return FitConfig(
            epochs=self._epochs,
            monitor=SELECTION,
            mode="max",
            checkpoint_every=checkpoint_every,
            log_every=50,
            quiet=self._quiet or (self.world is not None and self.world.rank > 0),
        )

    def selecting(
        self, evaluate: Callable[[Any], Mapping[str, float]], score: str
    ) -> Callable[[Any], dict[str, float]]:
        """`evaluate` with the metric `selection`, by which `fit` chooses the best weights.

        It is the metric `score`, from 0 to 1, which should be large, in epochs in which the model
        is as sparse as asked; while it is not yet, the score less 1. The method is told of the
        end of the epoch before the evaluation.
        """

        @torch.no_grad()
        def objective() -> Tensor:
            return self._loss(self._model, self._sample)

        def measure(model: nn.Module) -> dict[str, float]:
            self._sparsifier.end_epoch(objective)
            values = rank0_metrics(self.world, lambda: evaluate(model))
            if self._config.sparsify != "none":
                values["sparsity"] = self._sparsity()
            return {**values, SELECTION: values[score] - (not self._sparsifier.finished())}

        return measure

    def counts(self, result: FitResult) -> dict[str, int]:
        """Of a trained model: `weights` of matrices that may be sparse, and how many are `active`.

        Active are those that masks do not force to 0, though one may be 0.
        """
        # The model has the weights of the best epoch; masks may have changed since.
        sparsity = result.best_metrics.get("sparsity", self._sparsity())
        layers = sparse_layers(self._model)
        weights = Masks(self._model, required=not layers).size() + sum(map(_size, layers))
        return {"weights": weights, "active": round((1 - sparsity) * weights)}

    def costs(self, result: FitResult, example: Any) -> StepCosts | None:
        """FLOPs and time of a training step; None of a dense model, or where a signal came.

        Args:
            result: of the training.
            example: what the model is called with.
        """
        if self._config.sparsify == "none" or result.stopped.startswith("interrupted"):
            return None
        batch = next(iter(self._batches))
        batch = batch.batch if isinstance(batch, Share) else batch
        return step_costs(
            self._model,
            self.masks,
            lambda model: self._optimizer_for(model)[0],
            lambda model: self._loss(model, batch),
            config=self._config,
            schedule=self._sparsifier.schedule,
            example=example,
        )

    def _with_penalty(
        self, model: nn.Module, batch: Any
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        value = self._loss(model, batch)
        if self._sparsifier.penalty is None:
            return value
        penalty = self._sparsifier.penalty()
        return value + penalty, {"penalty": penalty.detach()}

    def _sparsify(self, *, resumed: bool) -> tuple[Optimizer, LRScheduler, Sparsifier]:
        config, model = self._config, self._model
        optimizer, scheduler = self._optimizer_for(model)
        try:
            sparsifier = sparsifier_for(
                config,
                model,
                optimizer,
                epochs=self._epochs,
                steps=self._steps,
                loss=lambda: self._loss(model, self._sample),
                ones=self._ones,
                train=self._train_once,
                resumed=resumed,
                seed=self._seed,
                quiet=self._quiet,
            )
        except EmptyLayer as error:
            raise ValueError(
                f"{error.what}; --sparsity is {config.sparsity:g}: lower it, or make layers wider"
            ) from None
        return optimizer, scheduler, sparsifier

    def _train_once(self, model: nn.Module, masks: Masks) -> None:
        """A whole training before the one that counts."""
        optimizer, scheduler = self._optimizer_for(model)
        masks.attach(optimizer)
        once = FitConfig(epochs=self._epochs, log_every=50, quiet=self._quiet)
        step = LossStep(self._loss, self.world)
        result = fit(model, optimizer, self._batches, step, config=once, scheduler=scheduler)
        if result.stopped.startswith("interrupted"):
            # Nothing is written yet that a resume could go on from.
            raise KeyboardInterrupt

    def _sparsity(self) -> float:
        """Share of the weights that masks force to 0, or that sparse layers do not have."""
        if self.masks is not None:
            return self.masks.sparsity
        layers = sparse_layers(self._model)
        size = sum(map(_size, layers))
        return 1 - sum(layer.values.numel() for layer in layers) / size if size else 0.0


def _size(layer: SparseLinear) -> int:
    return layer.in_features * layer.out_features
