"""A step of training as one program of static shapes: forward, backward and Adam's update.

For compilers of dense hardware, which take a whole step and nothing that changes its shape. The
program is a function: what a step changes goes in and comes out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from weft.kernels.portable_ops import portable_ops
from weft.models.dense_programs import DenseDetector, DenseSlots, parts_of, static_program
from weft.models.exported_program import quiet

State = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class AdamStep:
    """Adam, and what is done to gradients before it.

    Attributes:
        betas: decay of the means of gradients and of their squares.
        epsilon: is added to the root of the mean square.
        weight_decay: is added to the gradient, times the weight.
        clip_norm: the largest norm of all gradients together; None for no limit.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float | None = 1.0


def first_state(model: DenseSlots | DenseDetector) -> State:
    """What the first step takes: weights, Adam's means, which are zero, and the steps taken."""
    state: State = {"steps": torch.zeros(())}
    for name, weight in model.named_parameters():
        state |= {f"weight.{name}": weight.detach().clone()}
        state |= {f"{kind}.{name}": torch.zeros_like(weight) for kind in ("mean", "square")}
    return state


def training_program(
    model: DenseSlots | DenseDetector, inputs: Mapping[str, Tensor], adam: AdamStep | None = None
) -> ExportedProgram:
    """One step of training for inputs of these very shapes.

    The program is called with `state`, see `first_state`, `inputs`, and the learning `rate`, a
    float32 scalar. It gives the next state and the loss.

    Args:
        model: without dropout, whose random numbers a program of fixed operators has not.
        inputs: an example of `dense_inputs` and `dense_answers` together.
        adam: the optimizer.
    """
    adam = adam or AdamStep()
    for name, module in model.named_modules():
        rate = getattr(module, "dropout", 0.0)
        if isinstance(rate, float) and rate > 0:
            raise ValueError(
                f"the dropout of {name} is {rate}; a static step draws no random numbers: train "
                "with dropout 0"
            )
    traced = _Loss(copy.deepcopy(model))
    # A tracer sees every operation of a checkpoint, and would keep all that it recomputes.
    traced.model.model.gated.recompute = False

    def step(state: State, inputs: State, rate: Tensor) -> tuple[State, Tensor]:
        names = [key.removeprefix("weight.") for key in state if key.startswith("weight.")]
        weights = {name: state[f"weight.{name}"].detach().requires_grad_() for name in names}
        given = {f"model.{name}": weight for name, weight in weights.items()}
        with portable_ops(), torch.enable_grad():
            loss = functional_call(traced, given, kwargs=inputs)
            gradients = torch.autograd.grad(
                loss, list(weights.values()), allow_unused=True, materialize_grads=True
            )
        with torch.no_grad():
            updated = _updated(state, dict(zip(names, gradients, strict=True)), rate, adam)
        return updated, loss.detach()

    example = {"state": first_state(model), "inputs": dict(inputs), "rate": torch.tensor(1e-3)}
    with quiet():
        graph = make_fx(step, decomposition_table=_DENSE, tracing_mode="fake")(*example.values())
    return static_program(graph, example)


class _Loss(nn.Module):
    """A model that is called for its loss."""

    def __init__(self, model: DenseSlots | DenseDetector) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.model.loss(**inputs)


def _updated(state: State, gradients: Mapping[str, Tensor], rate: Tensor, adam: AdamStep) -> State:
    """The state after the step with these gradients."""
    steps = state["steps"] + 1
    if adam.clip_norm is not None:
        # As torch.nn.utils.clip_grad_norm_.
        norm = torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt()
        share = (adam.clip_norm / (norm + 1e-6)).clamp(max=1.0)
        gradients = {name: share * gradient for name, gradient in gradients.items()}
    # 1 - beta ** steps in float32 would lose half of its digits in the first steps.
    first, second = (-torch.expm1(steps * math.log(beta)) for beta in adam.betas)
    found: State = {"steps": steps}
    for name, gradient in gradients.items():
        weight = state[f"weight.{name}"]
        gradient = gradient + adam.weight_decay * weight
        mean = torch.lerp(state[f"mean.{name}"], gradient, 1 - adam.betas[0])
        square = torch.lerp(state[f"square.{name}"], gradient.square(), 1 - adam.betas[1])
        root = (square / second).sqrt() + adam.epsilon
        found[f"weight.{name}"] = weight - rate * (mean / first) / root
        found |= {f"mean.{name}": mean, f"square.{name}": square}
    return found


def _slice_gradient(
    gradient: Tensor, sizes: list[int], dim: int, start: int, end: int, step: int
) -> Tensor:
    """The gradient of a slice by padding, where torch writes it into zeros."""
    assert step == 1
    axis, size = dim % len(sizes), sizes[dim]
    first, last = (min(place + size if place < 0 else place, size) for place in (start, end))
    around = [0, 0] * (len(sizes) - 1 - axis) + [first, size - last]
    return functional.pad(gradient, around)


_DENSE: dict[Any, Any] = {
    torch.ops.aten.slice_backward.default: _slice_gradient,
    torch.ops.aten.split.Tensor: parts_of,
}
