"""Cases of what a gated graph network takes: messages by type, gated units, edges in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.kernels.block_products import block_products
from weft.kernels.edge_types import typed_messages
from weft.kernels.recurrent import gru
from weft.kernels.triton.cases import Case, Random, SampleEdges

_TYPES = 3
# Nodes of a block: the typical graph fills one and a half.
_BLOCK = 16


def _distinct(edges: SampleEdges) -> tuple[Any, Any, Any]:
    """Types, receivers and senders, each edge once."""
    ends = (edges.receivers.cpu().numpy(), edges.senders.cpu().numpy())
    kinds, to, of = np.unique(np.stack([np.arange(edges.num_edges) % _TYPES, *ends]), axis=1)
    return kinds, to, of


def _messages(edges: SampleEdges, h: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Messages along all edges: rows are senders of type 0 and receivers of the other types."""
    nodes = edges.num_nodes
    kinds, to, of = _distinct(edges)
    keys, row = np.unique(kinds * nodes + np.where(kinds == 0, of, to), return_inverse=True)
    row_of, into = np.unique(np.stack([row, of]), axis=1)
    out, row_to = np.unique(np.stack([to, row]), axis=1)

    def there(numbers: Any) -> Tensor:
        # As `TypedEdges` has them, whatever the graph's own.
        return torch.from_numpy(np.asarray(numbers)).int().to(edges.senders.device)

    def csr(rows: Any, columns: Any, count: int) -> tuple[Tensor, Tensor]:
        ends = np.cumsum(np.bincount(rows, minlength=count))
        return there(np.append(0, ends)), there(columns[np.lexsort((columns, rows))])

    chunks = np.bincount(keys // max(nodes, 1), minlength=_TYPES)
    counts = np.where(keys < nodes, 1, np.bincount(row, minlength=len(keys)))
    return typed_messages(
        h,
        weight,
        bias,
        csr(row_of, into, len(keys)),
        csr(into, row_of, nodes),
        csr(out, row_to, nodes),
        csr(row_to, out, len(keys)),
        there(counts).float(),
        there(np.arange(_TYPES)),
        there(np.append(0, np.cumsum(chunks))),
    )


def _of_messages(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    return normal(edges.num_nodes, width), normal(_TYPES, width, width), normal(_TYPES, width)


def _to_fewer(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    return normal(edges.num_nodes, width), normal(_TYPES, width, -(-width // 2))


def _of_gates(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    nodes, gates = edges.num_nodes, 3 * width
    states = (normal(nodes, width), normal(nodes, width))
    # Larger weights close every gate.
    weights = (normal(gates, width) / width**0.5, normal(gates, width) / width**0.5)
    return *states, *weights, normal(gates), normal(gates)


def _blocks(edges: SampleEdges, beside: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """C, and where edges may lead to blocks `beside` it, U and L; other edges are left out."""
    count = max(-(-edges.num_nodes // _BLOCK), 1)
    cells = np.zeros((count, count, _BLOCK, _TYPES, _BLOCK), dtype=np.int8)
    kinds, to, of = _distinct(edges)
    cells[to // _BLOCK, of // _BLOCK, to % _BLOCK, kinds, of % _BLOCK] = 1
    all_cells = torch.from_numpy(cells).to(edges.senders.device)
    first, second = torch.arange(count), torch.arange(count - 1)
    C = all_cells[first, first]
    if not beside:
        return C, None, None
    return C, all_cells[second, second + 1], all_cells[second + 1, second]


def _of_nodes(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    return (normal(edges.num_nodes, width),)


def _banded(edges: SampleEdges, x: Tensor) -> Tensor:
    return block_products(x, *_blocks(edges, True), False)


def _dense(edges: SampleEdges, x: Tensor) -> Tensor:
    return block_products(x, *_blocks(edges, False), False)


TYPED_CASES = (
    Case(name="typed messages", make=_of_messages, run=_messages),
    Case(name="typed messages, no bias", make=_to_fewer, run=_messages),
    Case(name="gated unit", make=_of_gates, run=lambda _, *given: gru(*given)),
    Case(name="block products, banded", make=_of_nodes, run=_banded),
    Case(name="block products, one block a graph", make=_of_nodes, run=_dense),
)
