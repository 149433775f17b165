"""BandedAdjacency: the dense form of an adjacency whose edges are close to the diagonal.

N nodes in K blocks of S, P edge types, H features. An edge between nodes less than S apart is in a
block on the diagonal or beside it, so that a step is a batched product of dense matrices with no
index in it (Balog et al. 2019; US patent 11,562,239 B2 covers this method).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils import _pytree as pytree

from weft.errors import DataError
from weft.graphs import Array, GraphBatch
from weft.kernels.block_products import block_products
from weft.layout.config import Outside
from weft.layout.csr import TypedEdges, distinct_edges, edges_of
from weft.layout.dense import Blocks, takes_bytes, times_weight
from weft.layout.orders import ORDERS


@dataclass(frozen=True, kw_only=True, eq=False)
class BandedAdjacency(Blocks):
    """Blocks on the diagonal (C), after it (U) and before it (L).

    Attributes:
        U: int8 [K - 1, S, P, S]; sources are in the next block.
        L: int8 [K - 1, S, P, S]; sources are in the block before.
        spill: the edges outside the blocks, if they are kept.
        inside: distinct edges in blocks.
        outside: distinct edges in no block; dropped if `spill` is None.

    The two counts are for reports. A program exported with one adjacency takes any other of the
    same shape, whatever its counts, so a model must not compute with them.
    """

    U: Tensor
    L: Tensor
    spill: TypedEdges | None
    inside: int
    outside: int

    @classmethod
    def of_batch(
        cls, batch: GraphBatch, num_types: int, block: int, outside: Outside = "raise"
    ) -> BandedAdjacency:
        """The form of a batch's real edges; those without a column `type` are all of type 0.

        Duplicates count once. The last block is padded where N is not a multiple of S.

        Args:
            batch: N nodes.
            num_types: P.
            block: S.
            outside: what to do with edges outside the blocks.

        Raises:
            DataError: an edge to a node or of a type that is not there, or outside the blocks.
        """
        if block < 1:
            raise ValueError(f"block is {block}; it must be at least 1")
        if outside not in get_args(Outside):
            raise ValueError(f"outside is {outside!r}; choose from {', '.join(get_args(Outside))}")
        num_nodes = batch.num_nodes
        of, to, kinds = distinct_edges(*edges_of(batch), num_nodes, num_types)
        apart = block_distance(of, to, block)
        far = np.abs(apart) > 1
        if outside == "raise" and far.any():
            raise DataError(_too_far(of, to, far, block, batch.node_offsets.cpu().numpy()))
        blocks = max(-(-num_nodes // block), 1)
        parts = {}
        for name, offset, count in (("C", 0, blocks), ("U", 1, blocks - 1), ("L", -1, blocks - 1)):
            own = apart == offset
            part = np.zeros((count, block, num_types, block), dtype=np.int8)
            first = to[own] // block - (offset == -1)
            part[first, to[own] % block, kinds[own], of[own] % block] = 1
            parts[name] = torch.from_numpy(part)
        near = ~far
        deg = np.bincount(to[near] * num_types + kinds[near], minlength=num_nodes * num_types)
        spill = None
        if outside == "spill" and far.any():
            spill = TypedEdges.of(of[far], to[far], kinds[far], num_nodes, num_types)
        return cls(
            **parts,
            deg=torch.from_numpy(deg.reshape(num_nodes, num_types).astype(np.int32)),
            spill=spill,
            inside=int(near.sum()),
            outside=int(far.sum()),
        )

    def propagate(self, h: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """The same sums [N, O] as `TypedEdges.propagate`, of the same arguments."""
        dtype = self._dtype_for(h, weight)
        if takes_bytes(h):
            sums = block_products(h.to(dtype), self.C, self.U, self.L, False)
            out, deg = times_weight(sums, weight), self.deg.to(dtype)
        else:
            rows, deg = self._cast(dtype)
            out = times_weight(torch.bmm(rows, self._sources(h)), weight)
            # Cut only where there is padding: an exported program has no operator for nothing.
            out = out[: self.num_nodes] if out.shape[0] > self.num_nodes else out
        if bias is not None:
            out = out + deg @ bias
        return out if self.spill is None else out + self.spill.propagate(h, weight, bias)

    def _sources(self, h: Tensor) -> Tensor:
        """[K, J, H], what the rows of each block are multiplied with."""
        blocks, size = self.C.shape[:2]
        padding = blocks * size - self.num_nodes
        own = functional.pad(h, (0, 0, 0, padding)) if padding else h
        own = own.reshape(blocks, size, h.shape[1])
        if blocks > 1:
            # C E + U E[next] + L E[before] as one product over three times as many sources: its
            # result, P times as large as h, is then written once.
            around = functional.pad(own, (0, 0, 0, 0, 1, 1))
            own = torch.cat([around[:-2], own, around[2:]], dim=1)
        return own

    def _rows(self) -> Tensor:
        """[L C U] as int8 [K, S P, 3 S], or C alone if there is no other block."""
        if self.C.shape[0] == 1:
            return super()._rows()
        before = functional.pad(self.L, (0, 0, 0, 0, 0, 0, 1, 0))
        after = functional.pad(self.U, (0, 0, 0, 0, 0, 0, 0, 1))
        return torch.cat([before, self.C, after], dim=3).flatten(1, 2)


class _Counts(tuple[int, ...]):
    """`inside` and `outside`, static in a program; all compare equal, so that any will do."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Counts)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(_Counts)


_Context = tuple[_Counts, tuple[str, ...]]


def _flatten(adjacency: BandedAdjacency) -> tuple[list[Any], _Context]:
    parts, context = _flatten_with_keys(adjacency)
    return [part for _, part in parts], context


def _flatten_with_keys(
    adjacency: BandedAdjacency,
) -> tuple[list[tuple[pytree.KeyEntry, Any]], _Context]:
    names = [f.name for f in fields(adjacency) if f.name not in ("inside", "outside")]
    parts = {name: getattr(adjacency, name) for name in names}
    kept = {name: part for name, part in parts.items() if part is not None}
    counts = _Counts((adjacency.inside, adjacency.outside))
    return [(pytree.GetAttrKey(name), part) for name, part in kept.items()], (counts, tuple(kept))


def _unflatten(parts: Iterable[Any], context: _Context) -> BandedAdjacency:
    (inside, outside), names = context
    given: dict[str, Any] = {"spill": None} | dict(zip(names, parts, strict=True))
    return BandedAdjacency(**given, inside=inside, outside=outside)


# Adjacencies are arguments of exported and compiled models. Not torch.export.register_dataclass:
# it makes every count an input, whose value the program then insists on.
pytree.register_pytree_node(
    BandedAdjacency,
    _flatten,
    _unflatten,
    serialized_type_name="weft.BandedAdjacency",
    to_dumpable_context=lambda context: [list(context[0]), list(context[1])],
    from_dumpable_context=lambda saved: (_Counts(saved[0]), tuple(saved[1])),
    flatten_with_keys_fn=_flatten_with_keys,
)
torch.serialization.add_safe_globals([BandedAdjacency])


def block_distance(senders: Array, receivers: Array, block: int) -> Array:
    """Blocks from the receiver's to the sender's: -1, 0 and 1 are L, C and U."""
    apart: Array = senders // block - receivers // block
    return apart


def _too_far(of: Array, to: Array, far: Array, block: int, offsets: Array) -> str:
    """The message about edges that are too far apart, with a remedy."""
    distance = np.abs(of - to)
    worst = int(np.argmax(np.where(far, distance, -1)))
    graph = int(np.searchsorted(offsets, to[worst], side="right")) - 1
    first, stop = offsets[graph : graph + 2].tolist()
    both = np.unique(np.stack([np.append(of, to), np.append(to, of)]), axis=1)
    degree = np.bincount(both[0][both[0] != both[1]], minlength=stop)[first:stop]
    hub = int(np.argmax(degree))
    # A node sees its own block and the two beside it.
    if degree[hub] >= 3 * block:
        remedy = f"no order of nodes helps, as node {hub} has {int(degree[hub])} neighbours"
    else:
        own = (to >= first) & (to < stop) & (of >= first) & (of < stop)
        within = _rcm_bandwidth(stop - first, of[own] - first, to[own] - first)
        remedy = (
            f"weft.layout.reorder(table, 'rcm') brings them within {within} nodes"
            if within <= block
            else f"in reverse Cuthill-McKee order, too, nodes with an edge are {within} apart"
        )
    return (
        f"graph {graph} of the batch: the edge from node {int(of[worst]) - first} to node "
        f"{int(to[worst]) - first} joins nodes {int(distance[worst])} apart, which is outside the "
        f"blocks of {block} ({int(far.sum())} of {len(far)} edges are): {remedy}; or take "
        f"block={int(distance.max())}, or form 'csr', or multiply such edges as sparse ones with "
        "outside='spill', or leave them out with outside='drop'"
    )


def _rcm_bandwidth(num_nodes: int, senders: Array, receivers: Array) -> int:
    """How far apart the ends of an edge are at most in reverse Cuthill-McKee order."""
    place = np.empty(num_nodes, dtype=np.int64)
    place[ORDERS["rcm"](num_nodes, senders, receivers)] = np.arange(num_nodes)
    return int(np.abs(place[senders] - place[receivers]).max(initial=0))
