"""Which form of an operator runs: the compiled loop, the Triton kernel, or plain torch.

By default the tensors decide: float32 and float64 on the CPU have compiled loops, floats on a CUDA
or ROCm device have Triton kernels where triton is installed, and everything else is plain torch.
The environment variable WEFT_BACKEND (plain, triton or cpu), or `use_backend`, overrides that:

    plain   plain torch everywhere
    triton  Triton kernels everywhere; on CPU tensors in triton's interpreter (TRITON_INTERPRET=1)
    cpu     compiled loops where there are any, and plain torch elsewhere, never Triton
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from weft.kernels import plain_torch

Backend = Literal["plain", "triton", "cpu"]
# The release whose language and interpreter the kernels are checked with, and the oldest GPUs that
# triton compiles for.
OLDEST_TRITON = (3, 3)
OLDEST_CAPABILITY = (8, 0)
# AMD's GPUs whose matrix unit takes bfloat16; the kernels are checked for the second.
AMD = ("gfx90a", "gfx942", "gfx950")
# `weft check gpu` found that triton 3.7.1 leaves nothing of float32 products for sm_100.
BLACKWELL, OLDEST_FOR_BLACKWELL = (10, 0), (3, 9)
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _from_environment() -> Backend | None:
    name = os.environ.get("WEFT_BACKEND", "")
    if name and name not in get_args(Backend):
        choices = ", ".join(get_args(Backend))
        raise ValueError(f"WEFT_BACKEND is {name!r}; choose from {choices}, or leave it unset")
    return cast(Backend, name) if name else None


_chosen: Backend | None = _from_environment()


@contextmanager
def use_backend(name: Backend | None) -> Iterator[None]:
    """Within this context operators run in that form; None lets the tensors decide."""
    global _chosen
    if name is not None and name not in get_args(Backend):
        raise ValueError(f"backend is {name!r}; choose from {', '.join(get_args(Backend))}")
    before, _chosen = _chosen, name
    try:
        yield
    finally:
        _chosen = before


def loops_allowed() -> bool:
    """Whether compiled loops may run at all."""
    return _chosen is None or _chosen == "cpu"


def runs_triton(*tensors: Tensor | None) -> bool:
    """Whether operators of these tensors run as Triton kernels.

    Raises:
        ValueError: Triton was requested and cannot run here.
    """
    if _chosen == "plain" or _chosen == "cpu":
        return False
    given = [t for t in tensors if t is not None]
    if _chosen is None and all(t.device.type == "cpu" for t in given):
        return False
    if any(t.dtype not in _FLOATS for t in given):
        return False
    return _can_run(given[0].device)


def _can_run(device: torch.device) -> bool:
    missing = why_not(device)
    if missing is None:
        return True
    if _chosen == "triton":
        raise ValueError(f"WEFT_BACKEND is triton, but {missing}; or unset WEFT_BACKEND")
    if device.type == "cuda":
        _warn_once(missing)
    return False


# A tracer asks once: it can follow neither an import nor an answer that is kept. This is what
# torch.compiler.assume_constant_result does, after an import of 150 MB.
_can_run._dynamo_marked_constant = True  # type: ignore[attr-defined]


def forms(*tensors: Tensor | None, beside: Sequence[Tensor | None] = ()) -> ModuleType:
    """The functions that compute with these tensors, where no compiled loop does.

    Args:
        tensors: of floats, which decide.
        beside: other tensors that are given: indices and masks.

    Raises:
        ValueError: they are not all on one device; or Triton was chosen and cannot run here.
    """
    require_one_device(*tensors, *beside)
    if not runs_triton(*tensors):
        return plain_torch
    return import_module("weft.kernels.triton")


def require_one_device(*tensors: Tensor | None) -> None:
    """Refuse tensors on several devices."""
    devices = list(dict.fromkeys(str(t.device) for t in tensors if t is not None))
    if len(devices) > 1:
        raise ValueError(
            f"the tensors of an operator are on {' and '.join(devices)}: move them to one device"
        )


def why_not(device: torch.device) -> str | None:
    """Why Triton kernels cannot run on this device, with a remedy; None if they can."""
    if device.type not in ("cpu", "cuda"):
        return f"triton does not know the device {device}: use a CUDA or ROCm one"
    missing = missing_triton()
    if missing is not None:
        return missing
    if device.type == "cuda":
        return _too_old(device.index if device.index is not None else torch.cuda.current_device())
    from weft.kernels.triton.launch import INTERPRETED

    if INTERPRETED:
        return None
    return (
        "the tensors are on the CPU, where Triton kernels run in triton's interpreter alone: set "
        "TRITON_INTERPRET=1 before Python starts, or move the tensors to a GPU"
    )


@lru_cache(maxsize=1)
def missing_triton() -> str | None:
    """Why the kernels cannot be loaded at all, with a remedy; None if they can."""
    try:
        import triton
    except ImportError:
        return "triton cannot be imported: pip install 'weft[gpu]'"
    if triton_release() < OLDEST_TRITON:
        oldest = ".".join(map(str, OLDEST_TRITON))
        return f"triton {triton.__version__} is older than {oldest}: pip install 'triton>={oldest}'"
    return None


def triton_release() -> tuple[int, ...]:
    """The installed release, such as (3, 9)."""
    import triton

    return tuple(int(part) for part in triton.__version__.split(".")[:2])


@lru_cache
def _too_old(index: int) -> str | None:
    name = torch.cuda.get_device_name(index)
    if torch.version.hip is not None:
        arch = torch.cuda.get_device_properties(index).gcnArchName.partition(":")[0]
        if arch in AMD:
            return None
        return (
            f"{name} is a {arch}, and the kernels are for {', '.join(AMD)}: use plain torch "
            "(WEFT_BACKEND=plain)"
        )
    capability = torch.cuda.get_device_capability(index)
    if capability >= BLACKWELL and triton_release() < OLDEST_FOR_BLACKWELL:
        oldest = ".".join(map(str, OLDEST_FOR_BLACKWELL))
        return (
            f"triton before {oldest} compiles products of matrices for {name} to nothing: "
            f"pip install 'triton>={oldest}', or use plain torch (WEFT_BACKEND=plain)"
        )
    if capability >= OLDEST_CAPABILITY:
        return None
    return (
        f"{name} has compute capability {capability[0]}.{capability[1]}, and the kernels are "
        f"checked from {OLDEST_CAPABILITY[0]}.{OLDEST_CAPABILITY[1]} on: use plain torch "
        "(WEFT_BACKEND=plain)"
    )


@lru_cache
def _warn_once(reason: str) -> None:
    warnings.warn(f"operators run as plain torch on this GPU: {reason}", stacklevel=5)
