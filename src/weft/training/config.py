"""What a training run is asked to do, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
        evaluate_every: epochs from one evaluation to the next; the last epoch has one too.
        checkpoint_every: steps from one checkpoint to the next; 0 goes by `checkpoint_seconds`.
        checkpoint_seconds: seconds from one checkpoint to the next: what a killed run has to do
            again, at most.
        log_every: steps from one line of metrics to the next; each epoch has one line besides.
        clip_norm: gradients are scaled down to this norm.
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
    log_every: int = 10
    clip_norm: float | None = None
    quiet: bool = False

    def __post_init__(self) -> None:
        for name, low in (
            ("epochs", 0),
            ("max_steps", 0),
            ("patience", 1),
            ("evaluate_every", 1),
            ("checkpoint_every", 0),
            ("checkpoint_seconds", 0),
            ("log_every", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < low:
                raise ValueError(f"{name} is {value}; it must be at least {low}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm is {self.clip_norm}; it must be above 0, or None")
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode is {self.mode!r}; it must be 'min' or 'max'")
        if self.patience is not None and self.monitor is None:
            raise ValueError("patience needs monitor, the name of the metric to watch")


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """What came out of `fit`; counts and times include the sessions before a resume.

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
    metrics: dict[str, float]
    best_metrics: dict[str, float]
    best_epoch: int | None
    seconds: float
    graphs_per_second: float
