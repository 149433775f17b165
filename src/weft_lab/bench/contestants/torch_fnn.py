"""torch: the dense network with zeros among its weights, which cost as much as other numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from weft.training import prepare_process


def prepare(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """A step of SGD with momentum on the network and batch of case["arrays"]."""
    # What helps weft's process must help the one that it is compared with.
    prepare_process()
    torch.manual_seed(0)
    arrays = {name: torch.from_numpy(array) for name, array in np.load(case["arrays"]).items()}
    modules: list[nn.Module] = []
    for number in range(case["layers"]):
        weight = arrays[f"weight_{number}"]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.weight.data.copy_(weight)
        nn.init.zeros_(layer.bias)
        modules += [layer, nn.ReLU()]
    model = nn.Sequential(*modules[:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(arrays["x"]), arrays["y"]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step, {"torch": torch.__version__}
