"""Random numbers: seeded in one place, and their state as plain values a checkpoint can hold."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's global random numbers (all devices)."""
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed {seed} is outside 0 to 2**32 - 1, what numpy takes")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def torch_random_state() -> list[Tensor]:
    """Torch's states, the CPU first, then each CUDA device; 2 µs, so cheap enough for each step."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states += torch.cuda.get_rng_state_all()
    return states


def random_state(generators: Sequence[torch.Generator] = ()) -> dict[str, Any]:
    """State of all global random numbers and of `generators`, as tensors and plain types."""
    version, words, gauss = random.getstate()
    numpy = np.random.get_state(legacy=False)
    return {
        "python": [version, list(words), gauss],
        "numpy": {
            **numpy,
            "state": {
                "key": torch.from_numpy(numpy["state"]["key"].astype(np.int64)),
                "pos": int(numpy["state"]["pos"]),
            },
        },
        "torch": torch_random_state(),
        "generators": [generator.get_state() for generator in generators],
    }


def set_random_state(state: dict[str, Any], generators: Sequence[torch.Generator] = ()) -> None:
    """Undo everything drawn since `random_state` gave `state`."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    words = {**state["numpy"]["state"]}
    words["key"] = words["key"].numpy().astype(np.uint32)
    np.random.set_state({**state["numpy"], "state": words})
    torch.set_rng_state(state["torch"][0])
    devices = state["torch"][1:]
    if devices and torch.cuda.device_count() == len(devices):
        torch.cuda.set_rng_state_all(devices)
    for generator, own in zip(generators, state["generators"], strict=True):
        generator.set_state(own)
