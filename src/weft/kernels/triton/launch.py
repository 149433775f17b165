"""Launches of Triton kernels: on a GPU, or in triton's interpreter; each can be recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

# Triton reads this when a function is decorated. A multiply-add in one rounding would give other
# last bits on one target than on another.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "0")

import triton
import triton.language as tl

INTERPRETED = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
# Features that one program holds: wider rows are cut into several.
MOST_FEATURES = 512
# Rows of a program where each is alone, and the features of them that it holds at once.
ROWS = 16
_TILE_FEATURES = 128
# Warps of a program that a GPU chooses from.
_WARPS = (1, 2, 4, 8)
# The most registers of a thread on NVIDIA's GPUs.
MOST_REGISTERS = 255
_DTYPES = {
    torch.bool: "i1",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch as it was recorded.

    Attributes:
        kernel: name of the kernel.
        signature: type of each argument, as `triton.compile` takes them.
        constants: values of the compile-time arguments, and of sizes that are 1: triton compiles
            those in.
        aligned: arguments that are multiples of 16, addresses and sizes: triton is told.
        warps: warps of a program.
        grid: programs by axis.
        least: fewest bytes that the operator must move, by the kernel's own model.
        tensors: the tensors given, for who counts what is read and written.
    """

    kernel: str
    signature: dict[str, str]
    constants: dict[str, Any]
    aligned: tuple[str, ...]
    warps: int
    grid: tuple[int, ...]
    least: int
    tensors: tuple[Tensor, ...] = field(repr=False, compare=False)


_recorders: list[Callable[[Launch], None]] = []
KERNELS: dict[str, Kernel] = {}


class Kernel:
    """A Triton kernel with its tiling, the reason for it, and the bytes that it must move.

    Attributes:
        function: the decorated function.
        reason: why the work is cut into programs as it is, in a sentence.
        least: fewest bytes for the arguments by name: each input and output once, a gathered row
            once for each use.
        dots: whether it multiplies matrices by `tl.dot`.
        registers: what its compilation for NVIDIA's GPUs is told of registers.
        choices: warps of a program that a GPU may choose, or () if the launch says it.
        tuned: the function with this choice, which is timed on the GPU, or None.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        reason: str,
        least: Callable[..., int],
        dots: bool,
        all_registers: bool,
        tuned_by: tuple[str, ...],
    ) -> None:
        self.plain, self.reason, self.least, self.dots = function, reason, least, dots
        self.name = function.__name__.strip("_")
        self.function = triton.jit(function)
        self.registers = {"maxnreg": MOST_REGISTERS} if all_registers else {}
        self.choices = _WARPS if tuned_by else ()
        self.tuned: Any = None
        if tuned_by and not INTERPRETED:
            configs = [triton.Config({}, num_warps=warps) for warps in self.choices]
            self.tuned = triton.autotune(configs, key=[*tuned_by])(self.function)
        assert self.name not in KERNELS, self.name
        KERNELS[self.name] = self

    def launch(self, grid: tuple[int, ...], *tensors: Any, warps: int = 1, **others: Any) -> None:
        """Run it on the device of the first tensor; no program, no launch.

        Args:
            grid: programs by axis.
            tensors: what the kernel takes first, tensors (or None) in its order.
            warps: warps of a program.
            others: further arguments by name: sizes, and constants of the compilation.
        """
        if not all(grid):
            return
        device = tensors[0].device
        for tensor in tensors:
            # A pointer to another device would be followed all the same.
            if tensor is not None and tensor.device != device:
                raise ValueError(
                    f"the tensors of {self.name} are on {device} and {tensor.device}: move them "
                    "to one device"
                )
        if _recorders:
            launch = self._recorded(grid, tensors, warps, others)
            for record in _recorders:
                record(launch)
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            on_nvidia = device.type == "cuda" and torch.version.hip is None
            options = self.registers if on_nvidia else {}
            if self.tuned is not None and device.type == "cuda":
                self.tuned[grid](*tensors, **others, **options)
            else:
                self.function[grid](*tensors, num_warps=warps, **others, **options)

    def launch_rows(self, rows: int, width: int, *tensors: Tensor | None, **others: Any) -> None:
        """Run it with a program for each row and up to 512 of its `width` features."""
        block, warps = feature_block(width)
        grid = (rows, triton.cdiv(width, block))
        self.launch(grid, *map(dense, tensors), width=width, BLOCK=block, warps=warps, **others)

    def launch_tiles(
        self,
        count: int,
        width: int,
        *tensors: Tensor | None,
        warps: int = 4,
        cut: bool = True,
        **others: Any,
    ) -> None:
        """Run it with a program for each 16 of `count` rows, and up to 128 features at once.

        Args:
            count: rows.
            width: their features.
            tensors: as of `launch`.
            warps: of a program.
            cut: whether other features are another program's, and not this one's next.
            others: as of `launch`.
        """
        block, _ = feature_block(min(width, _TILE_FEATURES))
        grid = (triton.cdiv(count, ROWS), *([triton.cdiv(width, block)] if cut else []))
        sizes = {"count": count, "width": width, "ROWS": ROWS, "BLOCK": block}
        self.launch(grid, *map(dense, tensors), **sizes, warps=warps, **others)

    def _recorded(
        self, grid: tuple[int, ...], tensors: tuple[Any, ...], warps: int, others: dict[str, Any]
    ) -> Launch:
        names = self.function.arg_names
        given = {**dict(zip(names, tensors, strict=False)), **others}
        annotations = self.plain.__annotations__
        signature, constants, aligned = {}, {}, []
        for name in names:
            value = given[name]
            if value is None or annotations.get(name) in (tl.constexpr, "tl.constexpr"):
                signature[name], constants[name] = "constexpr", value
            elif isinstance(value, Tensor):
                signature[name] = f"*{_DTYPES[value.dtype]}"
                if value.data_ptr() % 16 == 0:
                    aligned.append(name)
            elif value == 1:
                signature[name], constants[name] = "constexpr", 1
            else:
                assert isinstance(value, int), (name, value)
                signature[name] = "i32" if value < 2**31 else "i64"
                if value % 16 == 0:
                    aligned.append(name)
        return Launch(
            kernel=self.name,
            signature=signature,
            constants=constants,
            aligned=tuple(aligned),
            warps=warps,
            grid=grid,
            least=self.least(**given),
            tensors=tuple(t for t in given.values() if isinstance(t, Tensor)),
        )


def kernel(
    *,
    reason: str,
    least: Callable[..., int],
    dots: bool = False,
    all_registers: bool = False,
    tuned_by: tuple[str, ...] = (),
) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorator that makes a `Kernel` of a Triton function.

    Args:
        reason: see `Kernel`.
        least: takes the kernel's arguments by name (and **others for those it does not read).
        dots: see `Kernel`.
        all_registers: whether a thread may take all that there are. ptxas takes fewer, so that more
            programs fit beside each other, and of some kernels it spills what it had room for.
        tuned_by: sizes for which, and for each dtype, a GPU times how many warps are best when it
            meets them first. Only for kernels whose threads share no sum: where they do, its order,
            and so its last bits, would be decided by what was fastest that day.
    """
    return lambda function: Kernel(function, reason, least, dots, all_registers, tuned_by)


def part(function: Callable[..., Any]) -> Any:
    """Decorator for a Triton function that kernels call."""
    return triton.jit(function)


@contextmanager
def recording(record: Callable[[Launch], None]) -> Iterator[None]:
    """Within this context every launch is told to `record` before it runs."""
    _recorders.append(record)
    try:
        yield
    finally:
        _recorders.remove(record)


def feature_block(width: int) -> tuple[int, int]:
    """Features that a program holds, and its warps: 4 numbers a thread, or as few as there are."""
    block = min(max(triton.next_power_of_2(width), 16), MOST_FEATURES)
    return block, max(1, block // 128)


def tile_of(width: int, *, features: int = 1024, edges: int = 16) -> tuple[int, int, int]:
    """Edges and features that a program holds at once, and its warps.

    About 512 numbers, 4 a thread: several rows are read at once, which hides their latency,
    and a kernel holds four such tiles in registers without spilling any.

    Args:
        width: features of a row.
        features: most of them in a tile.
        edges: most of them in a tile.
    """
    block = min(triton.next_power_of_2(max(width, 1)), features)
    rows = max(2, min(edges, 512 // block))
    return rows, block, max(1, rows * block // 128)


def sums_in(*tensors: Tensor | None) -> Any:
    """The type in which sums over tensors are held: float32, or float64 if one of them is."""
    wide = any(t is not None and t.dtype == torch.float64 for t in tensors)
    return tl.float64 if wide else tl.float32


def bytes_of(*tensors: Tensor | None) -> int:
    """Bytes of whole tensors."""
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def row_bytes(*tensors: Tensor | None) -> int:
    """Bytes of one row of each tensor."""
    return sum(t[0].numel() * t.element_size() for t in tensors if t is not None and len(t))


def all_bytes(**given: Any) -> int:
    """Bytes of all tensors among a kernel's arguments."""
    return bytes_of(*(value for value in given.values() if isinstance(value, Tensor)))


def dense(tensor: Tensor | None) -> Any:
    """The tensor as a kernel takes it, contiguous."""
    return None if tensor is None else tensor.contiguous()
