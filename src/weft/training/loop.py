"""The training loop: any module, any optimizer, any batches; resumes to the bit."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from weft.errors import DataError
from weft.sparsify.snapshots import in_evaluation
from weft.training.averages import AveragedWeights
from weft.training.batches import Batches, Stateful
from weft.training.checkpoint import (
    AVERAGES,
    copy_weights,
    plain_module,
    put_weights,
    save_checkpoint,
    save_weights,
    shared_checkpoint,
)
from weft.training.config import FitConfig, FitResult, NonFiniteLoss
from weft.training.free_cores import FreeCores
from weft.training.numerics import denormals_flushed
from weft.training.progress import FitProgress, RecentRate
from weft.training.run import Run
from weft.training.schedules import PlateauLR
from weft.training.step import Loss, LossStep, Number, Step, metrics_of, number_of, read_together
from weft.training.step_hooks import current_pace
from weft.training.stopping import stop_on_signals

# The parts of a checkpoint that a run goes on from.
_PARTS = (
    *("model", "kinds", "optimizer", "scheduler", "extras"),
    *("progress", "best", "batches", "metrics_lines"),
)
# Steps whose values a device holds at most, a few hundred bytes for each.
_UNREAD = 1000
_NORM = "norm of the gradients"


@dataclass(kw_only=True)
class FitState:
    """How far a run has come; all plain values, so that a checkpoint holds it as it is."""

    epoch: int = 0
    step: int = 0
    position: int = 0
    graphs: int = 0
    seconds: float = 0.0
    train_seconds: float = 0.0
    epoch_graphs: int = 0
    epoch_sums: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    evaluated_epoch: int = 0
    evaluated_step: int = 0
    best_value: float | None = None
    best_epoch: int | None = None
    best_metrics: dict[str, float] = field(default_factory=dict)


def fit(
    model: nn.Module,
    optimizer: Optimizer,
    train: Iterable[Any],
    loss: Loss | Step,
    *,
    config: FitConfig,
    evaluate: Callable[[Any], Mapping[str, float]] | None = None,
    scheduler: LRScheduler | ReduceLROnPlateau | None = None,
    run: Run | None = None,
    extras: Mapping[str, Stateful] | None = None,
) -> FitResult:
    """Train `model`; with a `run`, log, keep checkpoints, and go on where the run stopped.

    SIGINT, SIGTERM and SIGHUP (a closed terminal; under nohup it stays ignored) end it after the
    current step, with a checkpoint; a second SIGINT or SIGTERM raises KeyboardInterrupt. Denormal
    floats count as zero meanwhile (see `flush_denormals`); no global setting is changed for good.

    Args:
        model: any module, on any device, compiled or not.
        optimizer: any torch optimizer that steps without a closure.
        train: batches, iterated once an epoch: a list, a DataLoader, or your own iterable. A
            `set_epoch(e)` (its own, its sampler's or its batch sampler's) is called before each
            epoch with e from 0. With `state_dict` and `load_state_dict` it resumes by itself:
            the state must name the epoch and the batches handed out so far. Without, an
            interrupted epoch is replayed from the random numbers it began with: Python's,
            numpy's and torch's global ones, and a torch.Generator that is the attribute
            `generator` of `train` or of its samplers. This is exact for a list, a DataLoader,
            and whatever draws an epoch's order from these in `set_epoch` or before the first
            batch. It is not for an order drawn from any other generator (numpy's default_rng),
            or bit by bit between the batches: give such an object a state_dict.
        loss: gives the loss of a batch, a tensor of one value, and, if wanted, more values by
            name, to be averaged over the graphs of the epoch. Or a `Step`, which says what a step
            does and which ranks take it together.
        config: how long, and what to watch.
        evaluate: measures the model, which is in eval mode meanwhile, and gives metrics by name.
            Gradients stay on: use torch.no_grad() in it unless it needs them.
        scheduler: stepped after every optimizer step (ReduceLROnPlateau: at every evaluation,
            with the monitored metric).
        run: a folder for checkpoints and metrics; of several ranks that of rank 0 alone is used.
        extras: whatever else has a state to be resumed, by name, such as masks.

    Raises:
        NonFiniteLoss: the loss is nan or infinite: the weights are those before that step, and
            buffers, such as BatchNorm's averages, have seen its batch. A loss on another device
            than the CPU is looked at where it is logged: some steps have been taken since, and
            only the run's checkpoint has weights from before. Or a weight is, or the monitored
            metric is nan.
        ValueError: `run` has been trained before, or `train`, `loss` or `evaluate` gives what
            cannot be used.
        DataError: the run's checkpoint is damaged or of another model.
    """
    if isinstance(optimizer, LBFGS):
        raise ValueError("LBFGS evaluates the loss several times a step, which fit does not do")
    if config.monitor is None and isinstance(scheduler, ReduceLROnPlateau | PlateauLR):
        name = type(scheduler).__name__
        raise ValueError(f"{name} needs config.monitor, the metric it watches")
    if run is not None and run.trained:
        raise ValueError(
            f"the run in {run.folder} has been trained already; give each fit its own folder, or "
            "resume this one with Run.create(..., resume=True)"
        )
    shown = FitProgress(epochs=config.epochs, counts=config.counts, quiet=config.quiet)
    with denormals_flushed(), shown as progress:
        step = loss if isinstance(loss, Step) else LossStep(loss)
        every = {**step.extras, **(extras or {})}
        return _Fit(
            model, optimizer, Batches(train), step, config, evaluate, scheduler, run, every
        ).go(progress)


@dataclass(eq=False)
class _Fit:
    """One call of `fit`: its parts and how far it has come."""

    model: nn.Module
    optimizer: Optimizer
    batches: Batches
    stepper: Step
    config: FitConfig
    evaluate: Callable[[Any], Mapping[str, float]] | None
    scheduler: LRScheduler | ReduceLROnPlateau | None
    run: Run | None
    extras: Mapping[str, Stateful]

    def __post_init__(self) -> None:
        if self.stepper.world is not None and self.stepper.world.rank > 0:
            self.run = None
        self.averages: AveragedWeights | None = None
        if self.config.ema:
            self.averages = AveragedWeights(self.model, self.config.ema)
            self.extras = {**self.extras, AVERAGES: self.averages}
        self.at = FitState()
        self.best_weights: dict[str, Any] | None = None
        self.best_is_saved = True
        self.clock = self.saved_at = time.perf_counter()
        self.pace = current_pace()
        # Ranks have their own cores, and a planner's trials the threads that they are to be timed
        # with.
        alone = self.pace is None and not self.stepper.is_shared
        self.cores = FreeCores() if self.config.yield_cores and alone else None
        self.recent = RecentRate()
        # Values and graphs of the steps that have not been read from a device, and the last loss
        # that has been.
        self.unread: list[tuple[dict[str, Number], int]] = []
        self.last_loss = math.nan

    def go(self, progress: FitProgress) -> FitResult:
        if not self.model.training:
            self.model.train()
        path = None if self.run is None else self.run.checkpoint
        saved = shared_checkpoint(path, self.stepper.world, *_PARTS)
        if saved is not None:
            self.resume(*saved)
            if self.run is not None:
                progress.note(f"resuming after step {self.at.step} of {self.run.folder}")
        else:
            if self.run is not None:
                self.run.metrics.keep(0, 0)
            # At once: a folder that cannot be written is better known now than in an hour.
            self.save()
        with stop_on_signals(patient=self.stepper.is_shared) as request:
            self.stepper.listen(lambda: request.signal)
            try:
                stopped = self.train(progress)
            finally:
                if self.cores is not None:
                    self.cores.restore()
            self.save()
        if self.averages is not None:
            self.averages.put()
        if self.best_weights is not None:
            put_weights(self.model, self.best_weights, "the best epoch")
        elif self.run is not None:
            save_weights(self.run.weights, copy_weights(self.model), self.about())
        seconds = self.at.train_seconds
        result = FitResult(
            epochs=self.at.epoch,
            steps=self.at.step,
            stopped=stopped,
            metrics=self.at.metrics,
            best_metrics=self.at.best_metrics,
            best_epoch=self.at.best_epoch,
            seconds=self.tick(),
            graphs_per_second=self.at.graphs / seconds if seconds else 0.0,
        )
        if self.run is not None:
            self.run.summarise(**dataclasses.asdict(result))
            self.run.trained = True
        return result

    def train(self, progress: FitProgress) -> str:
        """Epochs until there is a reason to stop, which it gives."""
        at, signal = self.at, self.stepper.stop_signal
        while True:
            if self.is_stale():
                return "early stopping"
            # A run killed just before the evaluation of an epoch cut by max_steps still owes it.
            measured = at.position == 0 or at.evaluated_step == at.step
            if at.epoch >= self.config.epochs or (self.is_over() and measured):
                return "finished"
            self.stepper.epoch = at.epoch
            batches = self.batches.open(at.epoch)
            total = self.total_steps()
            while not self.is_over():
                if self.pace is not None:
                    self.pace.before_step()
                began = time.perf_counter()
                self.batches.mark()
                try:
                    batch = next(batches)
                except StopIteration:
                    break
                graphs = self.step(batch)
                seconds = time.perf_counter() - began
                at.train_seconds += seconds
                self.recent.add(graphs, seconds)
                if self.pace is not None:
                    self.pace.after_step(graphs)
                if self.cores is not None:
                    self.cores.look()
                progress.step(
                    epoch=at.epoch + 1,
                    step=at.step,
                    total=total,
                    loss=self.last_loss,
                    graphs_per_second=self.recent.value(),
                )
                if self.is_due():
                    self.save()
                if signal() is not None:
                    return f"interrupted by {signal()}"
            self.end_epoch(progress)
            if signal() is not None:
                return f"interrupted by {signal()}"

    def is_over(self) -> bool:
        """Whether the steps are used up."""
        return self.config.max_steps is not None and self.at.step >= self.config.max_steps

    def is_stale(self) -> bool:
        """Whether the best epoch was too long ago when the model was last evaluated."""
        if self.config.patience is None or self.at.best_epoch is None:
            return False
        return self.at.evaluated_epoch - self.at.best_epoch >= self.config.patience

    def is_due(self) -> bool:
        """Whether it is time for a checkpoint."""
        if self.config.checkpoint_every:
            return self.at.step % self.config.checkpoint_every == 0
        return time.perf_counter() - self.saved_at >= self.config.checkpoint_seconds

    def step(self, batch: Any) -> int:
        """Gradients, update; returns the graphs of the batch."""
        at = self.at
        self.optimizer.zero_grad(set_to_none=True)
        loss, others, graphs = self.stepper.take(self.model, batch)
        values: dict[str, Number] = {"loss": loss, **others}
        # A device is not waited for: what it has computed is looked at later.
        later = isinstance(loss, Tensor)
        if not later and not math.isfinite(loss):
            # Not this batch's doing where the step before left a weight that is not finite.
            self.check_weights()
            self.fail(f"the loss is {loss}")
        if self.config.clip_norm is not None:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            norm = number_of(nn.utils.clip_grad_norm_(parameters, self.config.clip_norm))
            if later:
                values[_NORM] = norm
            elif not math.isfinite(norm):
                self.fail(f"the norm of the gradients is {float(norm)}")
        rate = float(self.optimizer.param_groups[0]["lr"])
        self.optimizer.step()
        if self.averages is not None:
            self.averages.update()
        if self.scheduler is not None and not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()
        self.stepper.updated()
        at.step += 1
        at.position += 1
        at.graphs += graphs
        at.epoch_graphs += graphs
        self.unread.append((values, graphs))
        due = bool(self.config.log_every) and at.step % (self.config.log_every or 1) == 0
        # What a planner times is a step that is over.
        if due or not later or self.pace is not None or len(self.unread) == _UNREAD:
            numbers = self.read()
            if due:
                self.log({**numbers, "lr": rate})
        return graphs

    def read(self) -> dict[str, float]:
        """Take in the values of the steps since the last reading; returns those of the last."""
        sums, steps = self.at.epoch_sums, self.unread
        self.unread = []
        numbers: dict[str, float] = {}
        found = read_together([values for values, _ in steps])
        for number, (numbers, (_, graphs)) in enumerate(zip(found, steps, strict=True), start=1):
            for name in ("loss", _NORM):
                if not math.isfinite(numbers.get(name, 0.0)):
                    self.fail(f"the {name} is {numbers[name]}", taken=True, ago=len(steps) - number)
            numbers.pop(_NORM, None)
            for name, each in numbers.items():
                sums[name] = sums.get(name, 0.0) + each * graphs
            self.last_loss = numbers["loss"]
        return numbers

    def end_epoch(self, progress: FitProgress) -> None:
        """Average, evaluate, remember the best; an epoch cut by max_steps stays open."""
        at, config = self.at, self.config
        if at.position == 0:
            raise ValueError(
                f"train gave no batches in epoch {at.epoch + 1}; it must hold some and be iterable "
                "again for every epoch (a list or a DataLoader, not a generator)"
            )
        if self.unread:
            # The device has steps to finish.
            began = time.perf_counter()
            self.read()
            seconds = time.perf_counter() - began
            at.train_seconds += seconds
            self.recent.add(0, seconds)
        at.metrics = {f"train_{k}": v / max(1, at.epoch_graphs) for k, v in at.epoch_sums.items()}
        number, count = at.epoch + 1, self.batches.count()
        cut = self.is_over() and (count is None or at.position < count)
        evaluated = number % config.evaluate_every == 0 or number == config.epochs or self.is_over()
        if evaluated:
            self.stepper.before_evaluation()
            with nullcontext() if self.averages is None else self.averages.in_model():
                self.measure(progress)
                if config.monitor is not None:
                    self.compare(config.monitor, number, cut=cut)
            at.evaluated_step = at.step
        if not cut:
            # From here on the epoch counts as done; a checkpoint taken now is between two epochs.
            self.batches.close()
            at.epoch, at.position, at.epoch_graphs, at.epoch_sums = number, 0, 0, {}
            if evaluated:
                at.evaluated_epoch = number
        more = self.stepper.epoch_metrics()
        self.log({**at.metrics, **more, "graphs_per_second": self.recent.value()})
        if evaluated and self.run is not None and self.pace is None:
            self.run.evaluated()
        if not config.checkpoint_every and self.is_due():
            self.save()

    def measure(self, progress: FitProgress) -> None:
        """Evaluate the model as it is."""
        if self.evaluate is not None:
            with in_evaluation(self.model):
                values = metrics_of(self.evaluate(self.model), self.at.metrics)
            progress.evaluated(values)
            self.at.metrics |= values

    def compare(self, monitor: str, epoch: int, *, cut: bool) -> None:
        """Keep these weights if the monitored metric is the best so far."""
        at = self.at
        if monitor not in at.metrics:
            raise ValueError(
                f"monitor is {monitor!r}, but the metrics are {', '.join(sorted(at.metrics))}"
            )
        value = at.metrics[monitor]
        if math.isnan(value):
            self.check_weights()
            raise NonFiniteLoss(
                f"{monitor} is nan at epoch {epoch}, so no weights can be called the best; look at "
                "what evaluate measures, or lower the learning rate",
                step=at.step,
                epoch=epoch,
                batch=at.position,
            )
        # A run resumed inside the epoch must find the rate of one that was never cut.
        if isinstance(self.scheduler, ReduceLROnPlateau) and not cut:
            self.scheduler.step(value)
        elif isinstance(self.scheduler, PlateauLR) and not cut:
            self.scheduler.evaluated(value)
        best = at.best_value
        better = best is None or (value < best if self.config.mode == "min" else value > best)
        if better:
            at.best_value, at.best_epoch, at.best_metrics = value, epoch, dict(at.metrics)
            if self.config.keep_best:
                self.best_weights, self.best_is_saved = copy_weights(self.model), False

    def log(self, values: Mapping[str, float]) -> None:
        """A line of metrics about the step or epoch that was just done."""
        if self.run is not None:
            # After an epoch `at.epoch` counts it already; within one it does not yet.
            epoch = self.at.epoch + (self.at.position > 0)
            self.run.metrics.log(step=self.at.step, epoch=epoch, seconds=self.tick(), values=values)

    def tick(self) -> float:
        """Seconds so far, brought up to date."""
        now = time.perf_counter()
        self.at.seconds += now - self.clock
        self.clock = now
        return self.at.seconds

    def total_steps(self) -> int | None:
        """Steps of the whole run, as far as the length of this epoch tells."""
        count, limit = self.batches.count(), self.config.max_steps
        if count is None:
            return limit
        left = count - self.at.position + count * (self.config.epochs - self.at.epoch - 1)
        total = self.at.step + left
        return total if limit is None else min(total, limit)

    def save(self, *, rewind: bool = False) -> None:
        """Look at the weights and write a checkpoint, if there is a run to write it to.

        The best weights are written after it if they are new: it holds them too, and a resume
        writes their file again.
        """
        self.read()
        self.check_weights()
        if (run := self.run) is not None and self.pace is None:
            run.metrics.sync()
            self.tick()
            save_fit_checkpoint(
                run.checkpoint,
                self.at,
                model=dict(plain_module(self.model).state_dict()),
                best=self.best_weights,
                optimizer=self.optimizer,
                scheduler=self.scheduler,
                extras=self.extras,
                batches=self.batches.state(self.at.position, rewind=rewind),
                metrics_lines=run.metrics.lines,
            )
            if self.best_weights is not None and not self.best_is_saved:
                save_weights(run.weights, self.best_weights, self.about())
                self.best_is_saved = True
        self.saved_at = time.perf_counter()

    def check_weights(self) -> None:
        """Stop where a parameter is nan or infinite."""
        broken = _first_non_finite(self.model.named_parameters())
        if broken is None:
            return
        if self.at.step == 0:
            raise ValueError(
                f"the parameter '{broken}' is not finite before the first step; start from finite "
                "weights (--init-from takes those of another run)"
            )
        self.fail(f"the parameter '{broken}' is not finite", taken=True)

    def about(self) -> dict[str, Any]:
        """What is written into the header of the weights."""
        if self.best_weights is None:
            return {"epoch": self.at.epoch, "step": self.at.step, "metrics": self.at.metrics}
        return {"epoch": self.at.best_epoch, "metrics": self.at.best_metrics}

    def resume(self, source: str, state: dict[str, Any]) -> None:
        """Put everything back as the run's checkpoint `source` has it."""
        put_weights(self.model, state["model"], source)
        for name, now in _kinds(self.optimizer, self.scheduler, self.extras).items():
            if (before := state["kinds"][name]) != now:
                raise DataError(
                    f"{source} was made with {name} = {before}, now it is {now}; resume with the "
                    "same parts"
                )
        try:
            self.optimizer.load_state_dict(state["optimizer"])
        except (ValueError, KeyError) as error:
            raise DataError(
                f"{source} does not fit this optimizer ({error}); resume with the same parts"
            ) from error
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        for name, extra in self.extras.items():
            extra.load_state_dict(state["extras"][name])
        self.at = FitState(**state["progress"])
        if self.config.keep_best:
            self.best_weights, self.best_is_saved = state["best"], False
        self.batches.resume(state["batches"])
        if self.run is not None:
            self.run.metrics.keep(state["metrics_lines"], self.at.step)

    def fail(self, what: str, *, taken: bool = False, ago: int | None = None) -> NoReturn:
        """Stop at the step under way (or just `taken`), with a checkpoint before it if possible.

        With `ago` it is the step that was taken so many steps before the last.
        """
        at = self.at
        when = "after" if taken and ago is None else "at"
        back = (not taken) - (ago or 0)
        step, batch = at.step + back, at.position + back
        epoch = at.epoch + (batch > 0)
        kept = ""
        if self.run is not None:
            state = [*self.model.named_parameters(), *self.model.named_buffers()]
            if not taken and _first_non_finite(state) is None:
                self.save(rewind=True)
                kept = f"; the weights before it are in {self.run.checkpoint}"
                if any(True for _ in self.model.buffers()):
                    kept += " (buffers, such as BatchNorm's averages, have seen its batch)"
            elif self.run.checkpoint.exists():
                kept = f"; {self.run.checkpoint} holds an earlier, finite state"
        where = f"epoch {epoch}, batch {batch}" if batch else f"the last of epoch {epoch}"
        raise NonFiniteLoss(
            f"{what} {when} step {step} ({where}){kept}; lower the learning rate, set clip_norm or "
            "look at that batch",
            step=step,
            epoch=epoch,
            batch=batch,
        )


def save_fit_checkpoint(
    path: Path,
    at: FitState,
    *,
    model: Mapping[str, Any],
    best: Mapping[str, Any] | None,
    optimizer: Optimizer,
    scheduler: LRScheduler | ReduceLROnPlateau | None,
    extras: Mapping[str, Stateful],
    batches: Mapping[str, Any],
    metrics_lines: int,
) -> None:
    """Write what `fit` goes on from; `batches` is of `Batches.state`, `best` of the best epoch."""
    save_checkpoint(
        path,
        {
            "model": dict(model),
            "best": best,
            "kinds": _kinds(optimizer, scheduler, extras),
            "optimizer": optimizer.state_dict(),
            "scheduler": None if scheduler is None else scheduler.state_dict(),
            "extras": {name: extra.state_dict() for name, extra in extras.items()},
            "progress": dataclasses.asdict(at),
            "batches": dict(batches),
            "metrics_lines": metrics_lines,
        },
    )


def _kinds(
    optimizer: Optimizer,
    scheduler: LRScheduler | ReduceLROnPlateau | None,
    extras: Mapping[str, Stateful],
) -> dict[str, Any]:
    """Which classes the states in a checkpoint belong to."""
    return {
        "optimizer": type(optimizer).__name__,
        "scheduler": type(scheduler).__name__,
        "extras": sorted(extras),
    }


def _first_non_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """Name of the first tensor that holds nan or infinity."""
    for name, tensor in tensors:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            return name
    return None
