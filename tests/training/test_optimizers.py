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


@pytest.mark.parametrize("name", ["adam", "adamw"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_in_one_loop(name: Any, dtype: torch.dtype) -> None:
    # Two blocks of the loop, one number, a weight without gradients, and one that is frozen.
    shapes = [(70, 60), (), (5,), (3, 0), (4,)]
    plain: Any = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]

    def descended(make: Any) -> tuple[list[torch.Tensor], dict[str, Any]]:
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
        for weight in weights[:-1]:
            weight.requires_grad_()
        optimizer = make(weights)
        for step in range(8):
            if step == 4:
                state = optimizer.state_dict()
                optimizer = make(weights)
                optimizer.load_state_dict(state)
            optimizer.zero_grad()
            for weight in weights[:2] if step % 3 == 2 else weights[:-1]:
                weight.grad = torch.randn(weight.shape, generator=generator).to(dtype)
            if step == 6:
                # Not contiguous, and a moment that somebody has replaced.
                weights[0].grad = torch.randn(60, 70, generator=generator).to(dtype).t()
                own = optimizer.state[weights[1]]
                own["exp_avg"] = own["exp_avg"] + 1
            optimizer.step()
        return weights, optimizer.state_dict()

    config = OptimizerOptions(optimizer=name, weight_decay=0.03)
    found, state = descended(lambda given: make_optimizer(config, given, rate=0.1, fused=True))
    wanted, other = descended(lambda given: plain(given, lr=0.1, weight_decay=0.03, fused=True))
    rtol, atol = (2e-5, 1e-6) if dtype == torch.float32 else (1e-12, 1e-14)
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=atol)
    torch.testing.assert_close(state, other, rtol=rtol, atol=atol)


def test_a_changed_weight_is_noticed_by_autograd() -> None:
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    optimizer = make_optimizer(OptimizerOptions(), [weight], rate=0.1, fused=True)
    for _ in range(2):
        weight.grad = torch.ones(2)
        optimizer.step()
    loss = (weight**3).sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]
