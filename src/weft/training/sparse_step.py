"""The step of a model that is, or becomes, sparse, and what it costs against a dense one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.sparsify import DropAndGrow, Masks
from weft.sparsify.accelerate import fastest
from weft.sparsify.densities import EmptyLayer
from weft.sparsify.flop_counter import count_flops
from weft.sparsify.mask_schedules import DropSchedule
from weft.sparsify.sparse_layers import SparseLinear, to_dense
from weft.training.checkpoint import shared_checkpoint
from weft.training.config import FitConfig, FitResult, SparsityConfig
from weft.training.loop import fit
from weft.training.numerics import denormals_flushed
from weft.training.run import Run
from weft.training.sparse_form import sparse_layers, to_sparse_form, to_sparse_form_of
from weft.training.sparsifiers import Sparsifier, sparsifier_for
from weft.training.step import LossStep, rank0_metrics

if TYPE_CHECKING:
    from weft.parallel.world import World

SELECTION = "selection"
"""The metric that decides which weights are best."""

# Steps between two changes of masks that a timing never comes to.
_NEVER = 10**9
# Rounds of timing, and by how much they may differ for their best to be believed.
_ROUNDS, _ALIKE = 3, 1.3


def check_form(config: SparsityConfig, world: World | None) -> None:
    """Raise ValueError where several ranks are to train sparse layers."""
    if world is not None and world.ranks > 1 and config.form == "sparse":
        raise ValueError(
            "form is sparse, and sparse layers grow by the gradients of one rank's share: "
            "train with form = dense, or in one process"
        )


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
        self._quiet, self._seed = quiet or (world is not None and world.rank > 0), seed
        check_form(config, world)
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
            quiet=self._quiet,
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
        """FLOPs and time of a training step.

        None of a dense model, where a signal came, and of ranks: each would time its share of a
        batch while the others do the same on the same machine.

        Args:
            result: of the training.
            example: what the model is called with.
        """
        is_dense = self._config.sparsify == "none"
        if is_dense or self.is_shared or result.stopped.startswith("interrupted"):
            return None
        batch = next(iter(self._batches))
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
