"""DenseAdjacency: each graph of a batch one dense block, for small graphs with many edges.

N nodes in G graphs of at most S, P edge types, H features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from weft.errors import DataError
from weft.graphs import GraphBatch
from weft.kernels.backends import runs_triton
from weft.kernels.block_products import block_products
from weft.kernels.custom_op import require
from weft.layout.csr import TypedEdges, distinct_edges, edges_of

Own = TypeVar("Own", bound="Blocks")


@dataclass(frozen=True, kw_only=True, eq=False)
class Blocks:
    """K blocks of S nodes; axes: block, target, type, source.

    Blocks that were cast for a product are kept with the adjacency: 4 bytes per cell in float32.

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

    def to(self: Own, device: torch.device | str, *, non_blocking: bool = False) -> Own:
        """The same on another device; blocks travel as bytes and are cast there."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def map(self: Own, change: Callable[[Tensor], Tensor]) -> Own:
        """The same with every tensor copied by `change`, in a fixed order of the tensors."""
        moved: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Tensor):
                moved[f.name] = change(value)
            elif isinstance(value, TypedEdges):
                moved[f.name] = value.map(change)
        return replace(self, **moved)

    def _rows(self) -> Tensor:
        """int8 [K, S P, J], what is multiplied with J sources of each block."""
        return self.C.flatten(1, 2)

    def _dtype_for(self, h: Tensor, weight: Tensor) -> torch.dtype:
        """That of a product with h [N, H] here and now."""
        nodes, types = self.deg.shape
        right = h.ndim == 2 and h.shape[0] == nodes and weight.shape[:2] == (types, h.shape[1])
        needed = f"h [{nodes}, H] and weight [{types}, H, O] needed"
        require(right, needed, h, weight)
        device = h.device.type
        dtype = h.dtype
        # Autocast leaves float64 alone.
        known = torch.amp.is_autocast_available(device)
        if known and dtype != torch.float64 and torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        return dtype

    def _cast(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """`_rows` and deg as a product takes them, cast once for all steps."""
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


def takes_bytes(h: Tensor) -> bool:
    """Whether `block_products` multiplies blocks as they are; what is exported has torch's own."""
    return runs_triton(h) and not torch.compiler.is_exporting()


def times_weight(sums: Tensor, weight: Tensor) -> Tensor:
    """Σ_p B_p W_p, [N, O], of B with N P H numbers in this order and W [P, H, O]."""
    types, width, outputs = weight.shape
    return sums.reshape(-1, types * width) @ weight.reshape(types * width, outputs)


@dataclass(frozen=True, kw_only=True, eq=False)
class DenseAdjacency(Blocks):
    """A block for each graph.

    Attributes:
        place: int64 [N], each node's row among those of all blocks, G S for a node of padding; None
            if the nodes fill the blocks.
    """

    place: Tensor | None

    @classmethod
    def of_batch(
        cls, batch: GraphBatch, num_types: int, block: int | None = None
    ) -> DenseAdjacency:
        """The form of a batch's real edges; those without a column `type` are all of type 0.

        Duplicates count once. By default S is the size of the largest graph.

        Raises:
            DataError: an edge to a node or of a type that is not there, an edge between graphs, or
                a graph larger than its block.
        """
        offsets = batch.node_offsets[: batch.num_real_graphs + 1].long().cpu().numpy()
        sizes = np.diff(offsets)
        real, nodes = int(offsets[-1]), batch.num_nodes
        # One graph of a padded batch is never real; its size need not fit a block.
        graphs = batch.num_graphs - (len(sizes) < batch.num_graphs)
        largest = int(sizes.max(initial=1))
        size = largest if block is None else block
        if size < largest:
            raise DataError(
                f"graph {int(sizes.argmax())} has {largest} nodes, the blocks have {size}; take "
                f"block={largest}, form 'csr', or batches without it"
            )
        of, to, kinds = distinct_edges(*edges_of(batch), real, num_types)
        graph = np.repeat(np.arange(len(sizes)), sizes)
        local = np.arange(real) - np.repeat(offsets[:-1], sizes)
        between = graph[of] != graph[to]
        if between.any():
            edge = int(np.flatnonzero(between)[0])
            raise DataError(
                f"the edge from node {int(of[edge])} to node {int(to[edge])} is between graphs "
                f"{int(graph[of[edge]])} and {int(graph[to[edge]])}, but each is a block of its "
                "own; take form 'csr' or 'banded'"
            )
        C = np.zeros((graphs, size, num_types, size), dtype=np.int8)
        C[graph[to], local[to], kinds, local[of]] = 1
        deg = np.bincount(to * num_types + kinds, minlength=nodes * num_types)
        place = np.full(nodes, graphs * size)
        place[:real] = graph * size + local
        filled = nodes == graphs * size and (place == np.arange(nodes)).all()
        return cls(
            C=torch.from_numpy(C),
            deg=torch.from_numpy(deg.reshape(nodes, num_types).astype(np.int32)),
            place=None if filled else torch.from_numpy(place),
        )

    def propagate(self, h: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The same sums [N, O] as `TypedEdges.propagate`, of the same arguments."""
        graphs, size = self.C.shape[:2]
        dtype = self._dtype_for(h, weight)
        own = h
        if self.place is not None:
            # Padding nodes share one extra row, which is cut off: their values reach no graph.
            own = h.new_zeros(graphs * size + 1, h.shape[1]).index_copy(0, self.place, h)[:-1]
        if takes_bytes(h):
            sums, deg = block_products(own.to(dtype), self.C, None, None, False), self.deg.to(dtype)
        else:
            blocks, deg = self._cast(dtype)
            sums = torch.bmm(blocks, own.reshape(graphs, size, h.shape[1]))
        out = times_weight(sums, weight)
        if self.place is not None:
            out = functional.pad(out, (0, 0, 0, 1)).index_select(0, self.place)
        return out if bias is None else out + deg @ bias


# Adjacencies are arguments of exported and compiled models.
torch.export.register_dataclass(DenseAdjacency, serialized_type_name="weft.DenseAdjacency")
torch.serialization.add_safe_globals([DenseAdjacency])
