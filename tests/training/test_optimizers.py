from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.programs.config import ProgramsConfig
from weft.recipes.structures.config import StructuresConfig
from weft.training.config import OptimizerOptions
from weft.training.optimizers import make_optimizer

PLAIN: list[tuple[dict[str, Any], Any]] = [
    ({}, lambda p: torch.optim.Adam(p, lr=0.1)),
    (
        {"optimizer": "adamw", "weight_decay": 0.2},
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.2),
    ),
    ({"optimizer": "sgd", "momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    (
        {"optimizer": "rmsprop", "momentum": 0.5, "weight_decay": 0.1},
        lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5, weight_decay=0.1),
    ),
]


@pytest.mark.parametrize(("options", "plain"), PLAIN)
@pytest.mark.parametrize("fused", [False, True])
def test_they_are_torchs_own(options: dict[str, Any], plain: Any, fused: bool) -> None:
    def descended(make: Any) -> torch.Tensor:
        weight = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64, requires_grad=True)
        optimizer = make([weight])
        for _ in range(5):
            optimizer.zero_grad()
            (weight**2).sum().backward()
            optimizer.step()
        return weight.detach()

    config = OptimizerOptions(**options)
    found = descended(lambda weights: make_optimizer(config, weights, rate=0.1, fused=fused))
    torch.testing.assert_close(found, descended(plain), rtol=1e-13, atol=0)


@pytest.mark.parametrize("config", [FullGraphConfig, ProgramsConfig, StructuresConfig])
def test_options_that_do_not_fit(config: Any) -> None:
    for options, words in (
        ({"optimizer": "lion"}, "optimizer is 'lion'"),
        ({"optimizer": "sgd", "momentum": 1.0}, "momentum is 1.0"),
        ({"momentum": 0.9}, "which adam does not take"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0"),
    ):
        with pytest.raises(ValueError, match=words):
            config(**options)
