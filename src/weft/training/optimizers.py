"""The optimizers that recipes offer by name, all of them torch's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from weft.training.config import OptimizerOptions

_KINDS: dict[str, type[Optimizer]] = {"adam": Adam, "adamw": AdamW, "sgd": SGD, "rmsprop": RMSprop}


def make_optimizer(
    config: OptimizerOptions, parameters: Iterable[Any], *, rate: float, fused: bool = False
) -> Optimizer:
    """The optimizer that `config` names.

    Args:
        config: its name, momentum and weight decay.
        parameters: of the model, or groups of them, which may have a weight decay of their own.
        rate: learning rate.
        fused: one kernel for all weights, where the optimizer has one.
    """
    options: dict[str, Any] = {"lr": rate, "weight_decay": config.weight_decay}
    if config.optimizer in ("sgd", "rmsprop"):
        options["momentum"] = config.momentum
    if fused and config.optimizer != "rmsprop":
        options["fused"] = True
    return _KINDS[config.optimizer](parameters, **options)
