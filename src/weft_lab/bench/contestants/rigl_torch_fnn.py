"""rigl-torch: the dense network with masks on weights and gradients, changed by RigL."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from importlib.metadata import version
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional


def prepare(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """A step of SGD with momentum on case["arrays"], and what its schedule does then."""
    RigLScheduler = _scheduler()
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    arrays = {name: torch.from_numpy(array) for name, array in np.load(case["arrays"]).items()}
    modules: list[nn.Module] = []
    for number in range(case["layers"]):
        weight = arrays[f"weight_{number}"]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data.copy_(weight)
        nn.init.zeros_(layer.bias)
        modules += [layer, nn.ReLU()]
    model = nn.Sequential(*modules[:-1])
    settings = {
        "dense_allocation": 1 - case["sparsity"],
        "T_end": int(0.75 * case["total_steps"]),
        "delta": case["every"],
        "alpha": 0.3,
        "ignore_linear_layers": False,
    }
    # By itself it leaves the first layer dense; a state says which masks all contenders have.
    other = copy.deepcopy(model)
    state = RigLScheduler(other, _sgd(other), **settings).state_dict()
    state["S"] = [case["sparsity"]] * case["layers"]
    state["backward_masks"] = [arrays[f"mask_{number}"] for number in range(case["layers"])]
    optimizer = _sgd(model)
    schedule = RigLScheduler(model, optimizer, **settings, state_dict=state)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(arrays["x"]), arrays["y"]).backward()  # type: ignore[no-untyped-call]
        if schedule():
            optimizer.step()

    return step, {"rigl-torch": version("rigl-torch"), "torch": torch.__version__}


def _sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)


def _scheduler() -> Any:
    # It asks whether a layer is one of torchvision's residual blocks, and needs nothing else of it.
    names = ("Bottleneck", "BasicBlock")
    blocks = SimpleNamespace(**{name: type(name, (), {}) for name in names})
    vision: Any = ModuleType("torchvision")
    vision.models = SimpleNamespace(resnet=blocks)
    sys.modules.setdefault("torchvision", vision)
    from rigl_torch.RigL import RigLScheduler

    return RigLScheduler
