"""Settings of a training run, and its result."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from weft.errors import check_choices, check_least
from weft.sparsify.structure import structure_of

CompileMode = Literal["eager", "static", "dynamic"]
Form = Literal["dense", "sparse"]
Precision = Literal["float32", "bf16"]
OptimizerName = Literal["adam", "adamw", "sgd", "rmsprop"]
Shape = Literal["constant", "linear", "cosine", "exponential", "plateau"]
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
Alpha = Literal["slr", "printed"]
# Those with as many weights from the first step to the last.
_CONSTANT = ("rigl", "set", "snfs", "random", "magnitude", "snip", "grasp", "synflow")


class NonFiniteLoss(ValueError):
    """The loss, a gradient, a weight or the monitored metric is not finite; names step and batch.

    Attributes:
        step: the step that failed, counted from 1.
        epoch: its epoch, counted from 1.
        batch: its batch in that epoch, counted from 1.
    """

    def __init__(self, message: str, *, step: int, epoch: int, batch: int) -> None:
        super().__init__(message)
        self.step, self.epoch, self.batch = step, epoch, batch


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """How long to train and what to watch.

    Attributes:
        epochs: passes over the training batches, at most.
        max_steps: optimizer steps, at most. An epoch that it cuts is evaluated; a resume with
            more steps goes on inside that epoch.
        monitor: name of the metric that decides which weights are best: one that `evaluate`
            gives, or `train_loss`.
        mode: whether a smaller or a larger value of it is better.
        patience: stop when an evaluation comes this many epochs after the best one, or more.
        keep_best: with `monitor`, end with the best weights in the model and in the run's folder.
        evaluate_every: epochs between evaluations; the last epoch has one too.
        checkpoint_every: steps from one checkpoint to the next; 0 goes by `checkpoint_seconds`.
        checkpoint_seconds: seconds from one checkpoint to the next: what a killed run has to do
            again, at most.
        log_every: steps between lines of metrics, None for no such lines; each epoch has a line as
            well.
        clip_norm: gradients are scaled down to this norm.
        ema: decay of an exponential moving average of the weights, such as 0.999; the averages are
            evaluated, kept and left in the model in place of the weights. 0 for none.
        yield_cores: use fewer threads while other programs keep cores busy; for models that give
            the same bits with any number of threads.
        counts: what the progress calls the graphs of a batch, such as structures.
        quiet: no progress.
    """

    epochs: int
    max_steps: int | None = None
    monitor: str | None = None
    mode: Literal["min", "max"] = "min"
    patience: int | None = None
    keep_best: bool = True
    evaluate_every: int = 1
    checkpoint_every: int = 0
    checkpoint_seconds: float = 30.0
    log_every: int | None = 10
    clip_norm: float | None = None
    ema: float = 0.0
    yield_cores: bool = False
    counts: str = "graphs"
    quiet: bool = False

    def __post_init__(self) -> None:
        check_least(self, epochs=0, max_steps=0, checkpoint_every=0, checkpoint_seconds=0)
        check_least(self, patience=1, evaluate_every=1, log_every=1)
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm is {self.clip_norm}; it must be above 0, or None")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema is {self.ema}; it is a decay below 1, such as 0.999, or 0")
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode is {self.mode!r}; it must be 'min' or 'max'")
        if self.patience is not None and self.monitor is None:
            raise ValueError("patience needs monitor, the name of the metric to watch")


@dataclass(frozen=True, kw_only=True)
class LoopOptions:
    """Options of the training loop that every recipe has.

    Attributes:
        clip_norm: Scale gradients down to this norm; none leaves them as they are.
        ema: Decay of a moving average of the weights, such as 0.999: the averages are evaluated,
            kept and used for predictions; 0 for none.
    """

    clip_norm: float | None = None
    ema: float = 0.0


@dataclass(frozen=True, kw_only=True)
class BatchOptions(LoopOptions):
    """Options of a recipe that trains on batches.

    Attributes:
        precision: float32, or bf16: bfloat16 products in training (autocast), while weights and
            evaluation stay float32. For GPUs: a CPU takes several times as long.
    """

    precision: Precision = "float32"

    def __post_init__(self) -> None:
        check_choices(self, precision=Precision)


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """Which optimizer a recipe uses.

    Attributes:
        optimizer: adam, adamw, sgd or rmsprop.
        momentum: Momentum of sgd and rmsprop.
        weight_decay: Weight decay; adamw decouples it from the gradient.
    """

    optimizer: OptimizerName = "adam"
    momentum: float = 0.0
    weight_decay: float = 0.0

    def check_optimizer(self) -> None:
        """Raise ValueError for an unknown optimizer, or a momentum that it does not take."""
        check_choices(self, optimizer=OptimizerName)
        check_least(self, weight_decay=0)
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}; it must be in [0, 1)")
        if self.momentum and self.optimizer not in ("sgd", "rmsprop"):
            raise ValueError(
                f"momentum is {self.momentum}, which {self.optimizer} does not take: choose "
                "--optimizer sgd or rmsprop, or leave the momentum out"
            )


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """The result of `fit`; counts and times include the sessions before a resume.

    Attributes:
        epochs: whole epochs done.
        steps: optimizer steps done.
        stopped: why it ended: `finished`, `early stopping` or `interrupted by SIGTERM`.
        metrics: the last epoch's.
        best_metrics: those of the best epoch; empty where nothing is monitored.
        best_epoch: the best epoch, counted from 1.
        seconds: in all.
        graphs_per_second: the mean over all training steps, with loading and compiling, without
            evaluation.
    """

    epochs: int
    steps: int
    stopped: str
    metrics: dict[str, float] = field(default_factory=dict)
    best_metrics: dict[str, float] = field(default_factory=dict)
    best_epoch: int | None = None
    seconds: float = 0.0
    graphs_per_second: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SparsityConfig:
    """How a recipe's weights become sparse.

    Attributes:
        sparsify: rigl, set, snfs: drop and grow while training; random, magnitude, snip, grasp,
            synflow: masks chosen once, before training; gmp: pruned gradually; slr, admm: dense
            for half of the epochs, re-weighted for a quarter, pruned and retrained; oneshot: the
            same without re-weighting; lottery: found by `rounds` trainings before the last; none:
            dense.
        sparsity: share of the weights that are 0; biases are left alone.
        structure: which weights are kept or removed together. weights: each by itself; units,
            units:K: neurons, or K at a time, such as an attention head of K features; columns,
            columns:K: inputs of a layer; N:M, such as 2:4: N of each M inputs of an output, at a
            sparsity of 1 - N/M; block:RxC: blocks of R outputs and C inputs; fan-in: the same
            number of inputs for every output.
        form: form of the layers in training, for the methods that keep the number of weights
            constant (rigl, set, snfs, random, magnitude, snip, grasp, synflow). dense: masks on all
            weights, which saves no time; sparse: only the active weights are stored, multiplied
            and updated, which is faster in wide layers that are sparse enough.
        update_every: for rigl, set, snfs and gmp: steps between changes of the masks; 0 for a
            twentieth of the training.
        death: for rigl, set and snfs: share of the weights dropped at the first change.
        rho: for slr and admm: ρ, how strongly weights are drawn to their sparse copy; also slr's
            first step.
        alpha: for slr: how its step shrinks, as in the papers on SLR or as printed by Peng et al.
            (2022).
        rounds: for lottery: trainings before the last.
    """

    sparsify: SparsifierName = "none"
    sparsity: float = 0.906
    structure: str = "weights"
    form: Form = "dense"
    update_every: int = 0
    death: float = 0.5
    rho: float = 0.01
    alpha: Alpha = "slr"
    rounds: int = 5

    def __post_init__(self) -> None:
        check_choices(self, sparsify=SparsifierName, form=Form, alpha=Alpha)
        if not 0 <= self.sparsity < 1:
            raise ValueError(f"sparsity is {self.sparsity}; it is from 0 (dense) to below 1")
        structure = structure_of(self.structure)
        if self.sparsify == "none" and not structure.is_single:
            raise ValueError(
                f"structure is {structure}, but nothing becomes sparse without a method: choose "
                "sparsify, or leave the structure out"
            )
        fixed = structure.density
        if fixed is not None and not math.isclose(1 - self.sparsity, fixed, rel_tol=0.01):
            raise ValueError(
                f"sparsity is {self.sparsity:g}, and structure {structure} has a sparsity of "
                f"{1 - fixed:.4g}: give that one"
            )
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
        check_least(self, update_every=0, rounds=1)
        if not 0 < self.death <= 1:
            raise ValueError(f"death is {self.death}; it must be above 0 and at most 1")
        if not self.rho > 0:
            raise ValueError(f"rho is {self.rho}; it must be above 0")

    @property
    def may_be_sparse(self) -> bool:
        """Whether the method can train with form = sparse."""
        return self.sparsify in _CONSTANT


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """How the learning rate changes from step to step.

    Attributes:
        shape: after the warm-up: constant; a straight line or a half cosine down to `floor` at
            the last step; exponential; or plateau: lower where the monitored metric has not become
            better for a while.
        warmup: steps over which the rate rises in a straight line from 0.
        scale: factor on the optimizer's rate, for the linear scaling rule: k times the graphs in
            a batch (or k ranks), k times the rate.
        floor: where linear, cosine and plateau end, as a fraction of the rate.
        factor: for exponential: the factor on the rate in `every` steps.
        every: for exponential: steps in which the rate falls, continuously, by `factor`.
        reduction: for plateau: the factor on the rate.
        patience: for plateau: evaluations in a row without a better value that leave the rate as it
            is; the next one lowers it, and the count starts again.
        threshold: for plateau: the smallest improvement that counts, as a fraction of the best
            value.
    """

    shape: Shape = "constant"
    warmup: int = 0
    scale: float = 1.0
    floor: float = 0.0
    factor: float = 0.96
    every: int = 100_000
    reduction: float = 0.5
    patience: int = 10
    threshold: float = 1e-4

    def __post_init__(self) -> None:
        check_choices(self, shape=Shape)
        for name, low, high in (
            ("warmup", 0, math.inf),
            ("scale", 0, math.inf),
            ("floor", 0, 1),
            ("factor", 0, math.inf),
            ("every", 1, math.inf),
            ("reduction", 0, 1),
            ("patience", 0, math.inf),
            ("threshold", 0, math.inf),
        ):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} is {getattr(self, name)}; it is from {low} to {high}")
