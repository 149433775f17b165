from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from weft.training import seed_everything
from weft.training.checkpoint import load_checkpoint, save_checkpoint
from weft.training.randomness import random_state, set_random_state


def draw(generator: torch.Generator) -> list[float]:
    # gauss() and normal() keep half of a pair for later: that half is state too.
    return [
        random.random(),
        random.gauss(0, 1),
        float(np.random.random()),
        float(np.random.normal()),
        float(torch.randn(())),
        float(torch.rand((), generator=generator)),
    ]


def test_state_comes_back_through_a_checkpoint(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(4)
    seed_everything(1)
    draw(generator)
    save_checkpoint(tmp_path / "a.pt", {"random": random_state([generator])})
    first = [draw(generator) for _ in range(3)]
    set_random_state(load_checkpoint(tmp_path / "a.pt")["random"], [generator])
    assert [draw(generator) for _ in range(3)] == first


def test_seeds() -> None:
    generator = torch.Generator()
    drawn = []
    for seed in (1, 1, 2):
        seed_everything(seed)
        drawn.append(draw(generator)[:5])
    assert drawn[0] == drawn[1]
    assert all(a != b for a, b in zip(drawn[0], drawn[2], strict=True))
    for seed in (-1, 2**32):
        with pytest.raises(ValueError, match=f"seed {seed} is outside"):
            seed_everything(seed)
