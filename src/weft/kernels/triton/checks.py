"""Whether a Triton kernel computes what the compiled loop does, and how many bytes it moves.

On CPU tensors the kernels run in triton's interpreter, which is asked about every load and store:
each must lie within one of the tensors of the launch, and the bytes are counted.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.kernels.backends import use_backend
from weft.kernels.triton.cases import Case, SampleEdges
from weft.kernels.triton.launch import INTERPRETED, Launch, recording

# What a number of eight significant bits may be off by, a few roundings on.
BFLOAT16_BOUND = 3e-2


@dataclass(kw_only=True)
class Traffic:
    """Bytes that the programs of one launch loaded and stored, as the interpreter saw them."""

    launch: Launch
    bytes: int = 0
    _starts: list[int] = field(default_factory=list, repr=False)
    _ends: list[int] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in self.launch.tensors)
        self._starts, self._ends = [a for a, _ in spans], [b for _, b in spans]

    def count(self, pointers: Any, mask: Any, size: int) -> None:
        """Add what one instruction touches; AssertionError if that is not within one tensor."""
        used = np.asarray(pointers)[np.asarray(mask)] if np.ndim(pointers) else pointers[mask]
        self.bytes += used.size * size
        if used.size:
            first, last = int(used.min()), int(used.max())
            # Not where `last` is, too: that could be another tensor.
            place = bisect.bisect_right(self._starts, first) - 1
            inside = place >= 0 and last + size <= self._ends[place]
            assert inside, f"{self.launch.kernel} touches memory outside its tensors"


@contextmanager
def watching(found: list[Traffic]) -> Iterator[None]:
    """Within this context the interpreter counts the bytes of each launch into `found`."""
    assert INTERPRETED, "bytes are counted by triton's interpreter: set TRITON_INTERPRET=1"
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    load, store = builder.create_masked_load, builder.create_masked_store

    def counted_load(pointers: Any, mask: Any, *others: Any) -> Any:
        # First, as what is nowhere would end the process.
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        found[-1].count(pointers.data, mask.data, size)
        return load(pointers, mask, *others)

    def counted_store(pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        found[-1].count(pointers.data, mask.data, value.data.itemsize)
        return store(pointers, value, mask, *others)

    builder.create_masked_load, builder.create_masked_store = counted_load, counted_store
    try:
        with recording(lambda launch: found.append(Traffic(launch=launch))):
            yield
    finally:
        del builder.create_masked_load, builder.create_masked_store


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What came of one case.

    Attributes:
        error: largest difference to the compiled loop, beside the largest number (at least 1).
        bound: the largest that is right.
        traffic: the launches, with the bytes counted where the interpreter ran them.
    """

    error: float
    bound: float
    traffic: list[Traffic]

    @property
    def right(self) -> bool:
        """Whether the results agree."""
        return self.error <= self.bound


def compare(
    case: Case,
    edges: SampleEdges,
    width: int,
    dtype: torch.dtype = torch.float32,
    *,
    seed: int = 0,
    device: str = "cpu",
) -> Comparison:
    """Run a case forward and backward with compiled loops and with Triton kernels.

    The compiled loops compute in float32 what the kernels are given in `dtype`.
    """
    generator = torch.Generator().manual_seed(seed)
    made = case.make(edges, width, lambda *shape: torch.randn(shape, generator=generator))
    rounded = [t.to(dtype) for t in made]
    expected = _outcome(case, edges, [t.float() for t in rounded], "cpu", seed)
    traffic: list[Traffic] = []
    watch = watching(traffic) if INTERPRETED else nullcontext()
    with use_backend("triton"), watch:
        there = _moved(edges, device)
        found = _outcome(case, there, [t.to(device) for t in rounded], "triton", seed)
    assert len(found) == len(expected), case.name
    errors = [_difference(a, b) for a, b in zip(found, expected, strict=True)]
    bound = BFLOAT16_BOUND if dtype == torch.bfloat16 else case.bound
    return Comparison(error=max(errors, default=0.0), bound=bound, traffic=traffic)


def _outcome(
    case: Case, edges: SampleEdges, tensors: list[Tensor], backend: Any, seed: int
) -> list[Tensor]:
    """Outputs and the gradients to all tensors, of outputs times fixed random numbers."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    with use_backend(backend):
        made = case.run(edges, *leaves)
        outputs = [made] if isinstance(made, Tensor) else list(made)
        learned = [out for out in outputs if out.requires_grad]
        generator = torch.Generator().manual_seed(seed + 1)
        grads = [torch.randn(out.shape, generator=generator).to(out) for out in learned]
        found = torch.autograd.grad(learned, leaves, grads, allow_unused=True)
    return [t.detach() for t in (*outputs, *found) if t is not None]


def _moved(edges: SampleEdges, device: str) -> SampleEdges:
    tensors: dict[str, Any] = {k: v for k, v in vars(edges).items() if isinstance(v, Tensor)}
    return replace(edges, **{name: t.to(device) for name, t in tensors.items()})


def _difference(found: Tensor, expected: Tensor) -> float:
    if found.shape != expected.shape:
        return float("inf")
    if not found.numel():
        return 0.0
    wide = expected.double()
    largest = max(1.0, float(wide.abs().max()))
    error = float((found.cpu().double() - wide).abs().max()) / largest
    return error if error == error else float("inf")
