"""The optimizers that recipes offer by name: torch's own, Adam's update in one compiled loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import starmap
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer, RMSprop

from weft.kernels.adam import AdamSettings, Weights
from weft.training.config import OptimizerOptions


class _InOneLoop(Optimizer):
    """Has torch's options, states and checkpoints; with `fused` one loop updates all weights.

    Whatever that loop does not take, such as weights that are not on the CPU, is left to torch.
    """

    _ready: Weights | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """See torch."""
        special = (
            closure is not None or torch.compiler.is_compiling() or hasattr(self, "grad_scale")
        )
        if special or len(self.param_groups) > 1 or not self._update(self.param_groups[0]):
            step: Any = torch.optim.Adam.step
            # Its hooks run around ours already.
            step = step.__wrapped__ if getattr(step, "hooked", False) else step
            return step(self, closure)
        return None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """See torch."""
        if not set_to_none:
            super().zero_grad(set_to_none=False)
            return
        for group in self.param_groups:
            for weight in group["params"]:
                weight.grad = None

    def _update(self, group: dict[str, Any]) -> bool:
        """Update all weights of the group; False where that is torch's to do."""
        other = group["amsgrad"] or group["maximize"] or group["differentiable"]
        numbers = (group["lr"], *group["betas"], group["eps"], group["weight_decay"])
        if not group["fused"] or other or any(isinstance(value, Tensor) for value in numbers):
            return False
        # The first step is torch's, which makes the states.
        states = list(self.state.values())
        if self._ready is None or not self._ready.are_still(group["params"], states):
            learned = {weight: self.state[weight] for weight in list(self.state)}
            dtypes = {weight.dtype for weight in learned}
            if len(dtypes) != 1 or not all(starmap(Weights.can_be, learned.items())):
                return False
            self._ready = Weights(group["params"], learned)
        rate, beta1, beta2, eps, decay = map(float, numbers)
        decoupled = group["decoupled_weight_decay"]
        return self._ready.update(AdamSettings(rate, beta1, beta2, eps, decay, decoupled))


class Adam(_InOneLoop, torch.optim.Adam):
    """torch's Adam, faster where all weights are small."""


class AdamW(_InOneLoop, torch.optim.AdamW):
    """torch's AdamW, faster where all weights are small."""


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
