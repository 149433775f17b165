"""Step: what one optimizer step does. `fit` runs the loop around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from weft.training.batches import Share, Stateful, graphs_in
from weft.training.config import Precision
from weft.training.stopping import SIGNALS

if TYPE_CHECKING:
    from weft.parallel.world import World

# The loop's own words in a line of metrics.
_RESERVED = frozenset({"step", "epoch", "seconds", "loss", "lr", "graphs_per_second"})


Number = float | Tensor
"""A number that is known, or a detached tensor of one value on another device than the CPU."""


class Outcome(NamedTuple):
    """What came out of a step.

    Values on another device than the CPU stay there: `fit` reads those of several steps together,
    so that no step waits for the device.

    Attributes:
        loss: of the batch, over all ranks.
        metrics: more values by name, to be averaged over the graphs of the epoch.
        graphs: in the batch, over all ranks.
    """

    loss: Number
    metrics: Mapping[str, Number]
    graphs: int


class Step:
    """What one optimizer step does: it leaves gradients in `.grad` and returns the loss.

    `fit` does everything else: it clears the gradients before, checks the loss, clips, updates the
    weights, moves the learning rate, logs, evaluates and writes checkpoints. Where several ranks
    take a step together, all of them run the same `fit`, and rank 0 alone has the run's folder.

    Attributes:
        world: the ranks that take the step together; None for this process alone.
        extras: objects whose state a checkpoint must hold, by name.
        epoch: the current epoch, from 0; `fit` sets it, after a resume too, so that a loss can
            weigh its terms by it.
    """

    world: World | None = None
    epoch: int = 0
    extras: Mapping[str, Stateful] = {}
    _heard: Callable[[], str | None] = staticmethod(lambda: None)
    _agreed: str | None = None

    def take(self, model: nn.Module, batch: Any) -> Outcome:
        """Leave the gradients of the batch's loss; where that is not finite there need be none."""
        raise NotImplementedError

    def updated(self) -> None:
        """The optimizer has updated the weights: the step is over."""

    def before_evaluation(self) -> None:
        """The model is about to be evaluated: it has the weights of the last step, no averages."""

    def epoch_metrics(self) -> Mapping[str, float]:
        """Values of the epoch that is over, which are no means over its graphs."""
        return {}

    @property
    def is_shared(self) -> bool:
        """Whether several ranks take the step together."""
        return self.world is not None and self.world.ranks > 1

    def listen(self, heard: Callable[[], str | None]) -> None:
        """Called by `fit` before the first step; `heard` gives the signal that has come here."""
        self._heard, self._agreed = heard, None

    def stop_signal(self) -> str | None:
        """The signal to stop after; of several ranks, one that all of them know of."""
        return self._agreed if self.is_shared else self._heard()

    def reduced(self, values: Iterable[Any], op: Literal["sum", "max"] = "sum") -> list[Any]:
        """The sum or maximum over all ranks of each `Number`; they also tell of signals thereby.

        A rank that stopped by itself would leave the others waiting for it.
        """
        own = list(values)
        if self.world is None or not self.is_shared:
            return own
        there = [value for value in own if isinstance(value, Tensor)]
        if there:
            moved = torch.stack([value.double() for value in there])
            self.world.reduce(moved, op)
            there = list(moved.unbind())
        known = [value for value in own if not isinstance(value, Tensor)]
        heard = self._heard()
        vector = torch.tensor([*known, *(heard == name for name in SIGNALS)], dtype=torch.float64)
        self.world.reduce(vector, op)
        found = vector.tolist()
        flags = zip(SIGNALS, found[len(known) :], strict=True)
        self._agreed = next((name for name, count in flags if count), None)
        return [(there if isinstance(value, Tensor) else found).pop(0) for value in own]


@dataclass(frozen=True, eq=False)
class Mean:
    """A term of a loss: a mean over things of a batch, such as its graphs or atoms.

    Attributes:
        value: of one element.
        count: how many things, by which ranks weigh their means; None for the batch's graphs.
    """

    value: Tensor
    count: int | Tensor | None = None


Loss = Callable[
    [Any, Any],
    "Tensor | Mean | list[Mean] | tuple[Tensor | Mean | list[Mean], Mapping[str, Tensor | float]]",
]


class LossStep(Step):
    """The step of a plain loss(model, batch).

    With a `world` each rank has its share of every batch, and the loss and its gradients are those
    of the whole batch in one process, to rounding.
    """

    def __init__(
        self, loss: Loss, world: World | None = None, precision: Precision = "float32"
    ) -> None:
        """Wrap a loss.

        Args:
            loss: gives the loss of a batch, a tensor of one value, and, if wanted, more values by
                name. It is a mean over the batch's graphs (`graphs_in`); a loss that has terms
                which are means over something else gives each as a `Mean`.
            world: the ranks that share every batch, see `RowBatches` and `SharedLoader`.
            precision: bf16 computes the loss under autocast.
        """
        self.loss, self.world = loss, world
        self._autocast = autocast(precision, world)

    def take(self, model: nn.Module, batch: Any) -> Outcome:
        """See `Step`."""
        if self.world is not None and self.is_shared:
            return self._take_share(self.world, model, batch)
        with self._autocast():
            terms, metrics = terms_and_values(self.loss(model, batch))
        loss = terms[0].value
        for term in terms[1:]:
            loss = loss + term.value
        number = number_of(loss)
        # What is on a device is not waited for: `fit` stops when it reads a loss that is not
        # finite.
        if isinstance(number, Tensor) or math.isfinite(number):
            loss.backward()  # type: ignore[no-untyped-call]
        return Outcome(number, metrics, graphs_in(batch))

    def _take_share(self, world: World, model: nn.Module, batch: Any) -> Outcome:
        share = batch if isinstance(batch, Share) else Share(batch)
        own = graphs_in(share.batch)
        with self._autocast():
            terms, metrics = terms_and_values(self.loss(model, share.batch))
        counts = [own, *(own if term.count is None else term.count for term in terms)]
        # A share that holds nothing of this rank's brings its gradients with the weight 0.
        local = _vector(counts, terms[0].value) * share.counts
        total = local.clone()
        world.reduce(total)
        weights: Any = local / total
        weights = weights.tolist() if weights.is_cpu else weights.to(terms[0].value.dtype).unbind()
        loss = weights[1] * terms[0].value
        for weight, term in zip(weights[2:], terms[1:], strict=True):
            loss = loss + weight * term.value
        loss.backward()
        world.add_gradients(model.parameters())
        values = [number_of(loss), *(weights[0] * value for value in metrics.values())]
        number, *means, graphs = self.reduced([*values, own * share.counts])
        return Outcome(number, dict(zip(metrics, means, strict=True)), int(graphs))


def _vector(counts: Sequence[int | Tensor], like: Tensor) -> Tensor:
    """float64 [n], where `like` is."""
    if like.is_cpu:
        return torch.tensor([float(count) for count in counts], dtype=torch.float64)
    wide: dict[str, Any] = {"dtype": torch.float64, "device": like.device}
    return torch.stack(
        [c.double() if isinstance(c, Tensor) else torch.full((), c, **wide) for c in counts]
    )


def number_of(value: Tensor) -> Number:
    """What a tensor of one value holds; a copy of it where that is to be read later."""
    value = value.detach()
    # The memory may be a buffer of the model's, or of a captured CUDA graph's.
    return float(value) if value.is_cpu else value.clone()


def read_together(steps: Sequence[Mapping[str, Number]]) -> list[dict[str, float]]:
    """The values of some steps as floats; the CPU waits for each dtype on a device once."""
    unread: dict[torch.dtype, list[Tensor]] = {}
    for values in steps:
        for value in values.values():
            if isinstance(value, Tensor):
                unread.setdefault(value.dtype, []).append(value.reshape(()))
    read = {dtype: iter(torch.stack(tensors).tolist()) for dtype, tensors in unread.items()}
    return [
        {
            name: float(next(read[value.dtype]) if isinstance(value, Tensor) else value)
            for name, value in values.items()
        }
        for values in steps
    ]


def autocast(
    precision: Precision, world: World | None
) -> Callable[[], AbstractContextManager[object]]:
    """Gives what to compute a training step in, on the world's device; by default the CPU."""
    if precision == "float32":
        return nullcontext
    device = "cpu" if world is None else world.device.type
    return partial(torch.autocast, device, dtype=torch.bfloat16)


def terms_and_values(answer: Any) -> tuple[list[Mean], dict[str, Number]]:
    """The terms of a loss, whose sum is ready for backward(), and the other values by name.

    Args:
        answer: a loss of one value, a `Mean` or a list of them, or a tuple of a loss and a mapping.

    Raises:
        ValueError: no such thing.
    """
    loss, values = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, {})
    means = loss if isinstance(loss, list) else [loss]
    terms = [each if isinstance(each, Mean) else Mean(each) for each in means]
    for term in terms:
        if not isinstance(term.value, Tensor):
            raise ValueError(
                f"the loss is of type {type(term.value).__name__}; return a tensor of one value, "
                "or a tuple of it and a dict of more values by name"
            )
        if term.value.numel() != 1:
            raise ValueError(
                f"the loss has shape {list(term.value.shape)}; give one value, such as its mean()"
            )
    if not any(term.value.requires_grad for term in terms):
        raise ValueError(
            "the loss depends on no trainable parameter, so there is nothing to train: it is "
            "detached, or no parameter of the model has requires_grad"
        )
    return terms, _numbers(values, _RESERVED, "the loss")


def metrics_of(answer: Any, taken: Iterable[str]) -> dict[str, float]:
    """The metrics of an evaluation; `taken` are names that it cannot use.

    Raises:
        ValueError: not a mapping of numbers, or a name that means something else already.
    """
    return read_together([_numbers(answer, _RESERVED.union(taken), "evaluate")])[0]


def rank0_metrics(
    world: World | None, evaluate: Callable[[], Mapping[str, float]]
) -> dict[str, float]:
    """What `evaluate` measures on rank 0, on every rank: all must choose the same best weights."""

    def measured() -> dict[str, float]:
        return {name: float(value) for name, value in evaluate().items()}

    found: dict[str, float] = measured() if world is None else world.broadcast_from_rank0(measured)
    return found


def _numbers(values: Any, taken: frozenset[str], source: str) -> dict[str, Number]:
    if not isinstance(values, Mapping):
        raise ValueError(
            f"the values of {source} are of type {type(values).__name__}; return a dict of numbers "
            "by name"
        )
    for name in values:
        if name in taken:
            raise ValueError(
                f"{source} gives a value named {name!r}, a name that the training loop uses; call "
                "it something else"
            )
    return {
        name: number_of(value) if isinstance(value, Tensor) else float(value)
        for name, value in values.items()
    }
