"""What the numbers were measured on, and how fast it can be at best."""

from __future__ import annotations

import platform
from functools import cache
from typing import Any

import torch

from weft.layout.layout_choice import timed_by_turns
from weft.training.hardware import hardware


def machine() -> dict[str, Any]:
    """Processor, cores, memory, system, and two measured limits (under a second, once a process).

    `gemm_gflop_per_s`: a product of two float32 matrices of 2048 rows; `copy_gb_per_s`: bytes read
    and written by a copy of 200 MB. What a program does less than this is its distance to the
    hardware.
    """
    products, copies = _limits()
    return {
        **hardware(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "gemm_gflop_per_s": products,
        "copy_gb_per_s": copies,
    }


@cache
def _limits() -> tuple[float, float]:
    """GFLOP/s of matrix products, and GB/s of copies."""
    size = 2048
    a, b, c = (torch.ones(size, size) for _ in range(3))
    source, target = torch.zeros(50_000_000), torch.zeros(50_000_000)
    product, copied = timed_by_turns(
        [lambda: torch.mm(a, b, out=c), lambda: target.copy_(source)], "cpu"
    )
    return 2e-9 * size**3 / product, 2e-9 * source.nbytes / copied
