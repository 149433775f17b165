"""What a user's loss and evaluation give back, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

# The loop's own words in a line of metrics.
_RESERVED = frozenset({"step", "epoch", "seconds", "loss", "lr", "graphs_per_second"})


def loss_and_values(answer: Any) -> tuple[Tensor, dict[str, float]]:
    """The loss, ready for backward(), and the other values by name.

    Args:
        answer: a loss of one value, or a tuple of it and a mapping.

    Raises:
        ValueError: no such thing.
    """
    loss, values = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, {})
    if not isinstance(loss, Tensor):
        raise ValueError(
            f"the loss is of type {type(loss).__name__}; return a tensor of one value, or a tuple "
            "of it and a dict of more values by name"
        )
    if loss.numel() != 1:
        raise ValueError(
            f"the loss has shape {list(loss.shape)}; give one value, such as its mean()"
        )
    if not loss.requires_grad:
        raise ValueError(
            "the loss depends on no trainable parameter, so there is nothing to train: it is "
            "detached, or no parameter of the model has requires_grad"
        )
    return loss, _numbers(values, _RESERVED, "the loss")


def metrics_of(answer: Any, taken: Iterable[str]) -> dict[str, float]:
    """The metrics of an evaluation; `taken` are names that it cannot use.

    Raises:
        ValueError: not a mapping of numbers, or a name that means something else already.
    """
    return _numbers(answer, _RESERVED.union(taken), "evaluate")


def _numbers(values: Any, taken: frozenset[str], source: str) -> dict[str, float]:
    if not isinstance(values, Mapping):
        raise ValueError(
            f"the values of {source} are of type {type(values).__name__}; return a dict of numbers "
            "by name"
        )
    for name in values:
        if name in taken:
            raise ValueError(
                f"{source} gives a value named {name!r}, a name of the training loop's own; call "
                "it something else"
            )
    return {
        name: float(value.detach() if isinstance(value, Tensor) else value)
        for name, value in values.items()
    }
