"""weft: the network of `SparseLinear` layers, its pattern fixed or changed by RigL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import weft
from weft.sparsify import DropAndGrow
from weft.sparsify.sparse_layers import SparseLinear
from weft.training import prepare_process


def prepare(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """A step of SGD with momentum on case["arrays"]; case["rigl"] updates the pattern too."""
    prepare_process()
    torch.manual_seed(0)
    arrays = {name: torch.from_numpy(array) for name, array in np.load(case["arrays"]).items()}
    layers: list[nn.Module] = []
    for number in range(case["layers"]):
        weight = arrays[f"weight_{number}"]
        dense = nn.Linear(weight.shape[1], weight.shape[0])
        dense.weight.data.copy_(weight)
        nn.init.zeros_(dense.bias)
        relu = number < case["layers"] - 1
        layers.append(SparseLinear.from_dense(dense, arrays[f"mask_{number}"], relu=relu))
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    if case["rigl"]:
        DropAndGrow(
            model,
            optimizer,
            total_steps=case["total_steps"],
            sparsity=case["sparsity"],
            densities="uniform",
            every=case["every"],
            death=0.3,
            quiet=True,
        )

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(arrays["x"]), arrays["y"]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step, {"weft": weft.__version__, "torch": torch.__version__}
