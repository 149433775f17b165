"""sparseprop: the network of its sparse linear layers."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from sparseprop.modules import SparseLinear
from torch import nn
from torch.nn import functional


def prepare(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """A step of SGD with momentum on the network and batch of case["arrays"]."""
    torch.manual_seed(0)
    torch.set_flush_denormal(True)
    arrays = {name: torch.from_numpy(array) for name, array in np.load(case["arrays"]).items()}
    modules: list[nn.Module] = []
    for number in range(case["layers"]):
        weight = arrays[f"weight_{number}"]
        bias = nn.Parameter(torch.zeros(weight.shape[0]))
        modules += [SparseLinear(weight, bias), nn.ReLU()]
    model = nn.Sequential(*modules[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(arrays["x"]), arrays["y"]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step, {"sparseprop": version("sparseprop"), "torch": torch.__version__}
