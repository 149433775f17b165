"""Offline builds of Triton kernels for GPUs that are not here, and what the machine code tells.

A build needs no GPU: triton lowers a kernel to PTX or AMD assembly, and its own ptxas says how many
registers a program takes and what it spills. It tells nothing about speed.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton.language as tl

from weft.kernels.triton.launch import INTERPRETED, KERNELS, Launch

_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Target:
    """A GPU to build for.

    Attributes:
        name: as users know it.
        backend: cuda or hip.
        arch: compute capability times ten, or the name of an AMD architecture.
        lanes: threads of a warp.
        shared: bytes of shared memory that a program may have.
        atomics: pattern of instructions that read and write memory at once.
        matrix: pattern of instructions of the matrix unit.
    """

    name: str
    backend: str
    arch: int | str
    lanes: int
    shared: int
    atomics: str = r"\b(?:atom|red)\."
    matrix: str = r"mma\.sync|wgmma\.mma_async|tcgen05\.mma"


# Shared memory of a block after what the driver keeps for itself, from the makers' tables.
TARGETS = {
    target.name: target
    for target in (
        Target(name="sm_80", backend="cuda", arch=80, lanes=32, shared=163 * 1024),
        Target(name="sm_90", backend="cuda", arch=90, lanes=32, shared=227 * 1024),
        Target(name="sm_100", backend="cuda", arch=100, lanes=32, shared=227 * 1024),
        Target(
            name="gfx942",
            backend="hip",
            arch="gfx942",
            lanes=64,
            shared=64 * 1024,
            atomics=r"\b(?:global|buffer|flat)_atomic|\bds_(?:add|max|min|cmpst)",
            matrix=r"\bv_mfma",
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Build:
    """What a build of one kernel for one target told.

    Attributes:
        kernel: its name.
        target: name of the GPU.
        variant: types and constants that it was built with, in words.
        registers: of a thread.
        spilled: bytes (NVIDIA) or registers (AMD) that did not fit.
        shared: bytes of shared memory of a program.
        atomics: instructions that read and write memory at once.
        matrix: instructions of the matrix unit.
        dots: whether the kernel multiplies matrices.
        error: why there is no build, or "".
    """

    kernel: str
    target: str
    variant: str
    registers: int = 0
    spilled: int = 0
    shared: int = 0
    atomics: int = 0
    matrix: int = 0
    dots: bool = False
    error: str = ""

    @property
    def faults(self) -> list[str]:
        """What the certificate does not let pass, in words."""
        if self.error:
            return [f"not built: {self.error}"]
        found = []
        if self.spilled:
            found.append(f"{self.spilled} spilled")
        if self.atomics:
            found.append(f"{self.atomics} atomic instructions")
        limit = TARGETS[self.target].shared
        if self.shared > limit:
            found.append(f"{self.shared} bytes of shared memory, of {limit}")
        if self.dots and not self.matrix:
            found.append("no matrix instruction for its products")
        return found


def to_json(launch: Launch) -> dict[str, Any]:
    """What a build needs of a launch, as plain values."""
    constants = {
        name: {"dtype": str(value)} if isinstance(value, tl.dtype) else value
        for name, value in launch.constants.items()
    }
    return {
        "kernel": launch.kernel,
        "signature": launch.signature,
        "constants": constants,
        "aligned": [*launch.aligned],
        "warps": launch.warps,
    }


def variant_of(described: dict[str, Any]) -> str:
    """Types and constants in words, the same for launches that share a build."""
    aligned = described["aligned"]
    kinds = [
        f"{k}: {v}{' of 16s' if k in aligned else ''}"
        for k, v in described["signature"].items()
        if v != "constexpr"
    ]
    constants = [
        f"{k}={v['dtype'] if isinstance(v, dict) else v}" for k, v in described["constants"].items()
    ]
    return ", ".join([*kinds, *constants, f"warps={described['warps']}"])


def distinct(launches: Iterable[Launch]) -> list[dict[str, Any]]:
    """One description for each build that these launches need, of all warps that a GPU may try."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for launch in launches:
        for warps in KERNELS[launch.kernel].choices or (launch.warps,):
            described = {**to_json(launch), "warps": warps}
            found.setdefault((launch.kernel, variant_of(described)), described)
    return list(found.values())


def build(described: dict[str, Any], target: Target) -> Build:
    """Compile one variant of a kernel for a target; an error of triton's is part of the result."""
    assert not INTERPRETED, "the interpreter's functions cannot be built: unset TRITON_INTERPRET"
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = KERNELS[described["kernel"]]
    about: dict[str, Any] = {
        "kernel": kernel.name,
        "target": target.name,
        "variant": variant_of(described),
    }
    signature = described["signature"]
    constants = {
        name: tl.dtype(value["dtype"]) if isinstance(value, dict) else value
        for name, value in described["constants"].items()
    }
    attributes = {
        (place,): known
        for place, name in enumerate(kernel.function.arg_names)
        if (known := _known_of(name, described, target))
    }
    source = ASTSource(kernel.function, signature, constants, attributes)
    allowed = kernel.registers if target.backend == "cuda" else {}
    try:
        made = triton.compile(
            source,
            target=GPUTarget(target.backend, target.arch, target.lanes),
            options={"num_warps": described["warps"], **allowed},
        )
    except Exception as error:
        # Whatever triton raises is what is reported.
        return Build(**about, error=f"{type(error).__name__}: {str(error).strip()[:300]}")
    text = made.asm["ptx" if target.backend == "cuda" else "amdgcn"]
    registers, spilled = (_of_ptxas if target.backend == "cuda" else _of_amdgcn)(text, target)
    return Build(
        **about,
        registers=registers,
        spilled=spilled,
        shared=made.metadata.shared,
        atomics=len(re.findall(target.atomics, text)),
        matrix=len(re.findall(target.matrix, text)),
        dots=kernel.dots,
    )


def _known_of(name: str, described: dict[str, Any], target: Target) -> list[list[Any]]:
    """What a launch on that GPU tells triton of an argument."""
    known: list[list[Any]] = []
    if name in described["aligned"]:
        known.append(["tt.divisibility", 16])
    if target.backend == "hip" and described["signature"][name].startswith("*"):
        # Tensors below 2 GB are read in another way.
        known.append(["tt.pointer_range", 32])
    return known


def _of_ptxas(text: str, target: Target) -> tuple[int, int]:
    """Registers, and bytes spilled, as triton's own ptxas reports them."""
    from triton.backends.nvidia.compiler import get_ptxas

    arch = re.search(r"\.target (\w+)", text)
    assert arch is not None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(text)
        command = [get_ptxas(target.arch).path, "-v", f"--gpu-name={arch[1]}", str(source)]
        command += ["-o", os.devnull]
        done = subprocess.run(  # noqa: S603  the assembler that triton brings
            command, capture_output=True, text=True, timeout=_SECONDS, check=True
        )
    registers = re.search(r"Used (\d+) registers", done.stderr)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", done.stderr)
    assert registers is not None, done.stderr
    return int(registers[1]), sum(map(int, spills))


def _of_amdgcn(text: str, target: Target) -> tuple[int, int]:
    """Vector registers, and registers spilled, from the notes in the assembly."""
    counts = dict(re.findall(r"\.(vgpr_count|[sv]gpr_spill_count):\s*(\d+)", text))
    return int(counts["vgpr_count"]), sum(int(n) for k, n in counts.items() if "spill" in k)


def as_record(found: Build) -> dict[str, Any]:
    """The build with its faults, as plain values."""
    return {**asdict(found), "faults": found.faults}
