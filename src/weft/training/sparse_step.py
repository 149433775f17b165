"""The step of a model that is, or becomes, sparse, and what it costs against a dense one."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.sparsify import (
    DropAndGrow,
    GradualPruning,
    Masks,
    grasp_masks,
    magnitude_masks,
    random_masks,
    snip_masks,
    synflow_masks,
)
from weft.sparsify.densities import EmptyLayer, choose_weights, layer_shares
from weft.sparsify.flop_counter import count_flops
from weft.sparsify.magnitude_pruning import lottery_ticket
from weft.sparsify.sparse_layers import SparseLinear, to_dense
from weft.sparsify.structure import structure_of
from weft.sparsify.train_and_prune import ADMM, SLR, TrainAndPrune
from weft.training.checkpoint import shared_checkpoint
from weft.training.config import FitConfig, FitResult, Precision, SparsityConfig
from weft.training.loop import fit
from weft.training.numerics import denormals_flushed
from weft.training.run import Run
from weft.training.sparse_form import sparse_layers, to_sparse_form, to_sparse_form_of
from weft.training.step import LossStep, rank0_metrics
from weft.training.timing import fastest

if TYPE_CHECKING:
    from weft.parallel.world import World

SELECTION = "selection"
"""The metric that decides which weights are best."""

_GROWING: Final = ("rigl", "set", "snfs")
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


_Method = DropAndGrow | GradualPruning | TrainAndPrune | Masks
"""What makes a model sparse; its state is resumed with the model's."""


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
        """Time of a step over that of the same step dense."""
        return self.seconds / self.dense_seconds

    @property
    def is_certain(self) -> bool:
        """Whether all rounds say about the same of the time."""
        return max(self.ratios) <= _ALIKE * min(self.ratios)


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
        precision: Precision = "float32",
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
            precision: of the products in training.

        Raises:
            ValueError: a layer would be left without weights, or several ranks train sparse layers.
        """
        super().__init__(self._with_penalty, world, precision)
        self._precision: Precision = precision
        self._model, self._optimizer_for, self._batches = model, optimizer_for, batches
        self._loss, self._config, self._sample = loss, config, sample
        self._epochs, self._steps, self._ones = epochs, steps, ones
        self._quiet, self._seed = quiet or (world is not None and world.rank > 0), seed
        self._every = config.update_every or max(1, steps // 20)
        check_form(config, world)
        saved = shared_checkpoint(None if run is None else run.checkpoint, world, "model")
        if config.form == "sparse" and saved is not None:
            to_sparse_form_of(model, saved[1]["model"], structure_of(config.structure))
        elif config.form == "sparse":
            # The masks that a dense training starts with.
            masks = _masks_of(self._sparsify(resumed=False)[-1])
            assert masks is not None
            masks.detach()
            to_sparse_form(model, masks)
        self.optimizer, self.scheduler, self._method = self._sparsify(resumed=saved is not None)
        self.extras = {} if self._method is None else {"sparsifier": self._method}
        self.masks = _masks_of(self._method)

    def fit_config(self, **options: Any) -> FitConfig:
        """What `fit` is asked to do: keep the weights of the best `selection`, and the options."""
        return FitConfig(
            epochs=self._epochs,
            monitor=SELECTION,
            mode="max",
            log_every=50,
            quiet=self._quiet,
            **options,
        )

    def before_evaluation(self) -> None:
        """Tell a method that prunes by epochs of the end of one."""

        @torch.no_grad()
        def objective() -> Tensor:
            return self._loss(self._model, self._sample)

        if isinstance(self._method, TrainAndPrune):
            self._method.end_epoch(objective)

    def selecting(
        self, evaluate: Callable[[Any], Mapping[str, float]], score: str
    ) -> Callable[[Any], dict[str, float]]:
        """`evaluate` with the metric `selection`, by which `fit` chooses the best weights.

        It is the metric `score`, from 0 to 1, which should be large, in epochs in which the model
        is as sparse as asked; while it is not yet, the score less 1.
        """

        def measure(model: nn.Module) -> dict[str, float]:
            values = rank0_metrics(self.world, lambda: evaluate(model))
            if self._config.sparsify != "none":
                values["sparsity"] = self._sparsity()
            return {**values, SELECTION: values[score] - (not self._finished())}

        return measure

    def _finished(self) -> bool:
        """Whether the model is as sparse by now as it shall be: its weights may be the best."""
        method = self._method
        if isinstance(method, TrainAndPrune):
            return method.phase in ("retrain", "done")
        return not isinstance(method, GradualPruning) or method.step >= method.schedule.end

    def counts(self, result: FitResult) -> dict[str, int]:
        """How many `weights` the matrices that may be sparse have, and how many are `active`.

        Active are those that masks do not force to 0, though one may be 0.
        """
        # The model has the weights of the best epoch; masks may have changed since.
        sparsity = result.best_metrics.get("sparsity", self._sparsity())
        layers = sparse_layers(self._model)
        size = sum(map(_size, layers))
        every, masked = (
            Masks(self._model, required=False, structure=structure).size() + size
            for structure in ("weights", self._config.structure)
        )
        # Weights that the structure does not fit are left dense, and counted.
        return {"weights": every, "active": every - round(sparsity * masked)}

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
        model, masks, config = self._model, self.masks, self._config
        schedule = self._method.schedule if isinstance(self._method, DropAndGrow) else None
        batch = next(iter(self._batches))
        count = count_flops(model, masks, example, training=True)
        # Steps that change masks, and those before them that watch dense gradients.
        changing = schedule.updates / schedule.total_steps if schedule else 0.0
        watches = config.sparsify == "snfs"
        watching = max(0.0, schedule.stop - changing) if schedule and watches else 0.0
        dense_gradients = watching + (changing if config.sparsify != "set" else 0.0)
        flops = 3 * count.sparse + dense_gradients * (count.dense - count.sparse)

        def step_of(
            twin: nn.Module, prepare: Callable[[Optimizer], object] = lambda optimizer: None
        ) -> Callable[[], None]:
            """A step of a copy of the model; `prepare` attaches masks to its optimizer."""
            optimizer = self._optimizer_for(twin)[0]
            prepare(optimizer)
            twin.train()

            def step() -> None:
                optimizer.zero_grad(set_to_none=True)
                self._loss(twin, batch).backward()  # type: ignore[no-untyped-call]
                optimizer.step()

            return step

        def plain() -> Callable[[], None]:
            twin = copy.deepcopy(model)
            return step_of(twin) if masks is None else step_of(twin, masks.to_model(twin).attach)

        def driven(every: int) -> Callable[[], None]:
            twin = copy.deepcopy(model)
            return step_of(
                twin, lambda given: self._grown(twin, given, 2 * _NEVER, every, quiet=True)
            )

        # The share of a training's steps that each kind has.
        kinds = [(0.0, step_of(_dense(model))), (1 - changing - watching, plain())]
        if changing:
            kinds.append((changing, driven(1)))
        if watching:
            kinds.append((watching, driven(_NEVER)))
        with torch.random.fork_rng(devices=[]), denormals_flushed():
            rounds = [fastest([step for _, step in kinds]) for _ in range(_ROUNDS)]

        def mean(seconds: Sequence[float]) -> float:
            return sum(share * each for (share, _), each in zip(kinds, seconds, strict=True))

        best = [min(times) for times in zip(*rounds, strict=True)]
        return StepCosts(
            flops=flops / (3 * count.dense),
            seconds=mean(best),
            dense_seconds=best[0],
            ratios=tuple(mean(seconds) / seconds[0] for seconds in rounds),
        )

    def _with_penalty(
        self, model: nn.Module, batch: Any
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        value = self._loss(model, batch)
        if not isinstance(self._method, TrainAndPrune):
            return value
        penalty = self._method.penalty()
        return value + penalty, {"penalty": penalty.detach()}

    def _sparsify(self, *, resumed: bool) -> tuple[Optimizer, LRScheduler, _Method | None]:
        """Make the model sparse, or see to it that it becomes so; it may have sparse layers.

        Where `resumed`, a state will be loaded: nothing long need be computed first.
        """
        optimizer, scheduler = self._optimizer_for(self._model)
        name = self._config.sparsify
        method: _Method | None = None
        try:
            if name in _GROWING:
                method = self._grown(
                    self._model, optimizer, self._steps, self._every, quiet=self._quiet
                )
            elif name == "none" or sparse_layers(self._model):
                pass
            elif name == "gmp":
                method = GradualPruning(
                    self._model,
                    optimizer,
                    total_steps=self._steps,
                    sparsity=self._config.sparsity,
                    structure=self._config.structure,
                    every=self._every,
                    quiet=self._quiet,
                )
            elif name in ("slr", "admm", "oneshot"):
                method = self._pruned_once(optimizer)
            else:
                method = self._chosen(resumed=resumed)
                method.attach(optimizer)
        except EmptyLayer as error:
            raise ValueError(
                f"{error.what}; --sparsity is {self._config.sparsity:g}: lower it, or make layers "
                "wider"
            ) from None
        return optimizer, scheduler, method

    def _grown(
        self, model: nn.Module, optimizer: Optimizer, steps: int, every: int, *, quiet: bool
    ) -> DropAndGrow:
        config = self._config
        assert config.sparsify in _GROWING
        return DropAndGrow(
            model,
            optimizer,
            total_steps=steps,
            sparsity=config.sparsity,
            growth=config.sparsify,
            structure=config.structure,
            every=every,
            death=config.death,
            seed=self._seed,
            quiet=quiet,
        )

    def _pruned_once(self, optimizer: Optimizer) -> TrainAndPrune:
        """Dense for half of the epochs, re-weighted for a quarter, pruned and retrained."""
        config, quarter = self._config, self._epochs // 4
        if quarter == 0:
            warnings.warn(
                f"{config.sparsify} only prunes, after the last epoch: a quarter of "
                f"epochs={self._epochs} to retrain in is none; train for 4 epochs or more",
                stacklevel=2,
            )
        reweighting = 0 if config.sparsify == "oneshot" else quarter
        kind: Callable[..., TrainAndPrune] = partial(SLR, step=config.rho, alpha=config.alpha)
        return (ADMM if config.sparsify == "admm" else kind)(
            self._model,
            optimizer,
            sparsity=config.sparsity,
            structure=config.structure,
            phases=(self._epochs - reweighting - quarter, reweighting, quarter),
            rho=config.rho,
            quiet=self._quiet,
        )

    def _chosen(self, *, resumed: bool) -> Masks:
        """Masks that are chosen once, before the training that counts."""
        model, config, density = self._model, self._config, 1 - self._config.sparsity
        if config.sparsify == "lottery" and not resumed:
            return lottery_ticket(
                model,
                self._train_once,
                sparsity=config.sparsity,
                structure=config.structure,
                rounds=config.rounds,
                quiet=self._quiet,
            ).masks
        masks = choose_weights(model, structure=config.structure, quiet=self._quiet)
        if resumed:
            return masks
        layers = layer_shares(masks, "erk", density)

        def loss() -> Tensor:
            return self._loss(model, self._sample)

        # By rank across all layers, as the methods' authors do; no layer may be cut through by it.
        ways: dict[str, Callable[[], object]] = {
            "random": lambda: random_masks(model, masks, layers, seed=self._seed),
            "magnitude": lambda: magnitude_masks(model, masks, layers),
            "snip": lambda: snip_masks(model, masks, density, loss, keep_one=True),
            "grasp": lambda: grasp_masks(model, masks, density, loss, keep_one=True),
            "synflow": lambda: synflow_masks(model, masks, density, self._ones, keep_one=True),
        }
        ways[config.sparsify]()
        return masks

    def _train_once(self, model: nn.Module, masks: Masks) -> None:
        """A whole training before the one that counts."""
        optimizer, scheduler = self._optimizer_for(model)
        masks.attach(optimizer)
        once = FitConfig(epochs=self._epochs, log_every=50, quiet=self._quiet)
        step = LossStep(self._loss, self.world, self._precision)
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


def _masks_of(method: _Method | None) -> Masks | None:
    """Its masks; None where there are none, as a model has that has sparse layers alone."""
    masks = method if method is None or isinstance(method, Masks) else method.masks
    return masks if masks is not None and len(masks) else None


def _size(layer: SparseLinear) -> int:
    return layer.in_features * layer.out_features


def _dense(model: nn.Module) -> nn.Module:
    """A copy with all weights; an FNN's ReLU is its own again."""
    twin = copy.deepcopy(model)
    for layer in sparse_layers(twin):
        layer.relu = False
    return to_dense(twin)
