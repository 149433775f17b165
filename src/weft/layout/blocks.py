"""What the dense forms of an adjacency share: blocks that are stored narrow and cast once."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from weft.kernels.custom_op import require
from weft.layout.csr import TypedEdges

Own = TypeVar("Own", bound="Blocks")


@dataclass(frozen=True, kw_only=True, eq=False)
class Blocks:
    """K blocks of S nodes; axes: block, target, type, source.

    What is cast for a product is kept as long as the adjacency: 4 bytes a cell in float32.

    Attributes:
        C: int8 [K, S, P, S].
        deg: int32 [N, P], edges of each type that come into a node and are in a block.
    """

    C: Tensor
    deg: Tensor

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.deg.shape[0]

    @property
    def block(self) -> int:
        """S."""
        return self.C.shape[1]

    def to(self: Own, device: torch.device | str) -> Own:
        """The same on another device; blocks travel as bytes and are cast there."""
        moved: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, (Tensor, TypedEdges)):
                moved[f.name] = value.to(device)
        return replace(self, **moved)

    def _rows(self) -> Tensor:
        """int8 [K, S P, J], what is multiplied with J sources of each block."""
        return self.C.flatten(1, 2)

    def _cast(self, h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """`_rows` and deg as a product with h [N, H] takes them, cast once for all steps."""
        nodes, types = self.deg.shape
        right = h.ndim == 2 and h.shape[0] == nodes and weight.shape[:2] == (types, h.shape[1])
        needed = f"h [{nodes}, H] and weight [{types}, H, O] needed"
        require(right, needed, h, weight)
        device = h.device.type
        dtype = h.dtype
        # Autocast leaves float64 alone.
        if dtype != torch.float64 and torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        # A tracer's tensors must not outlive its trace; the compiler finds equal casts itself.
        if torch.compiler.is_compiling():
            return self._rows().to(dtype), self.deg.to(dtype)
        if dtype not in self._casts:
            # Training may follow a prediction, and cannot use tensors of an inference.
            with torch.inference_mode(False):
                self._casts[dtype] = self._rows().to(dtype), self.deg.to(dtype)
        return self._casts[dtype]

    @cached_property
    def _casts(self) -> dict[torch.dtype, tuple[Tensor, Tensor]]:
        return {}


def multiplied(rows: Tensor, sources: Tensor, weight: Tensor) -> Tensor:
    """Σ_p A_p E W_p, [K S, O], of rows [K, S P, J], E [K, J, H] and W [P, H, O]."""
    types, width, outputs = weight.shape
    sums = torch.bmm(rows, sources).reshape(-1, types * width)
    return sums @ weight.reshape(types * width, outputs)
