"""Blocks of nodes whose ranks all multiply equally many nonzeros.

On a grid, a rank multiplies the panel [r, c] of the matrix: rows of the nodes in the blocks of its
grid row, columns of the nodes in the blocks whose features its layer adds up. The two classes of a
node are chosen apart from each other, as by a permutation of the rows and another one of the
columns. Nodes are dealt out by their degrees, up and down; then pairs of nodes change places
where that evens out the panels of the matrix and of its transpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.counting_sort import counting_order, group_starts
from weft.graphs import Array, Graph
from weft.graphs.store import release
from weft.parallel.grid import Grid, Place
from weft.runtime import compiled

# Nodes change places until the largest panel is so many times the mean, or so often for each.
_EVEN_ENOUGH = 1.002
_SWEEPS = 8

# The stream of random numbers of this module.
_STREAM = 6


def panel_classes(grid: Grid) -> tuple[Array, Array]:
    """Rows and columns int32 [blocks] of the panels that the nodes of each block belong to."""
    rows = np.empty(grid.blocks, dtype=np.int32)
    columns = np.empty(grid.blocks, dtype=np.int32)
    for row in range(grid.rows):
        rows[list(grid.blocks_of_row(row))] = row
    for layer in range(grid.layers):
        columns[[stage.block for stage in grid.stages(Place(0, 0, layer))]] = layer
    return rows, columns


def panel_nonzeros(grid: Grid, blocks: Array, senders: Array, receivers: Array) -> Array:
    """Nonzeros int64 [R, L] that a rank of each row and layer of the grid multiplies.

    Args:
        grid: the ranks; those of one row and layer multiply the same nonzeros.
        blocks: int [n], the block of each node, below grid.blocks.
        senders: int [e], below n.
        receivers: int [e], below n.
    """
    rows, columns = panel_classes(grid)
    counts = np.zeros((grid.rows, grid.layers), dtype=np.int64)
    _count_panels(rows[blocks], columns[blocks], senders, receivers, counts)
    return counts


def imbalance(counts: Array) -> float:
    """The largest of some counts over their mean; 1 where all are 0."""
    return float(counts.max() / counts.mean()) if counts.any() else 1.0


def least_imbalance(grid: Grid, graph: Graph) -> float:
    """A lower bound of the imbalance that blocks of equally many nodes can have.

    Nonzeros are whole; a hub's row is in one row of panels, together with those of as many other
    nodes as all rows have, and its column in one column.
    """
    panels = grid.rows * grid.layers
    most = -(-graph.num_edges // panels)
    for ends in (graph.receivers, graph.senders):
        degrees = np.sort(np.bincount(ends, minlength=graph.num_nodes))
        # Rows of the matrix and columns of its transpose have the same ends.
        for classes in (grid.rows, grid.layers):
            others = (graph.num_nodes // grid.blocks) * (grid.blocks // classes) - 1
            least = int(degrees[-1] + degrees[:others].sum())
            most = max(most, -(-least // (panels // classes)))
    return most * panels / max(1, graph.num_edges)


def balanced_blocks(graph: Graph, grid: Grid, seed: int = 0) -> Array:
    """The block int64 [n] of each node, for panels of equally many nonzeros.

    Blocks differ by at most one node. Every edge counts as often as it is listed, and a self-loop
    like any other edge.

    Args:
        graph: valid, with at least as many nodes as the grid has blocks.
        grid: the ranks.
        seed: which pairs of nodes are looked at.
    """
    num_nodes = graph.num_nodes
    ends = graph.senders, graph.receivers
    starts = [group_starts(each, num_nodes) for each in ends]
    others = [
        other[counting_order(each, num_nodes)].astype(np.int32)
        for each, other in zip(ends, reversed(ends), strict=True)
    ]

    def panels(blocks: Array) -> Array:
        return np.stack(
            [panel_nonzeros(grid, blocks, *ends), panel_nonzeros(grid, blocks, *ends[::-1])]
        )

    return dealt_out(starts, others, grid, seed, panels)


def dealt_out(
    starts: Sequence[Array],
    others: Sequence[Array],
    grid: Grid,
    seed: int,
    panels_of: Callable[[Array], Array],
    pairs_at_once: int | None = None,
) -> Array:
    """The blocks of `balanced_blocks`, of edges in order of sender and in order of receiver.

    Args:
        starts: int64 [n + 1] of each order, where a node's edges begin.
        others: int32 [e] of each order, the nodes at the other ends, in any order for each node.
        grid: the ranks.
        seed: which pairs of nodes are looked at.
        panels_of: counts int64 [2, R, L], the nonzeros of the matrix and of its transpose, for
            blocks int64 [n].
        pairs_at_once: after so many pairs of nodes, pages of mapped `others` are released.
    """
    num_nodes, count = len(starts[0]) - 1, grid.blocks
    degrees = sum(np.diff(each) for each in starts)
    lap, place = np.divmod(np.arange(num_nodes), count)
    blocks = np.empty(num_nodes, dtype=np.int64)
    blocks[np.argsort(-degrees, kind="stable")] = np.where(lap % 2, count - 1 - place, place)
    classes, panels = panel_classes(grid), panels_of(blocks)
    edges = starts[1], others[1], starts[0], others[0]
    rng = np.random.default_rng((seed, _STREAM))
    for _ in range(_SWEEPS if count > 1 else 0):
        if max(map(imbalance, panels)) <= _EVEN_ENOUGH:
            break
        pairs = rng.permutation(num_nodes), rng.permutation(num_nodes)
        swapped = 0
        for first in range(0, num_nodes, pairs_at_once or num_nodes):
            part = slice(first, first + (pairs_at_once or num_nodes))
            looked_at = pairs[0][part], pairs[1][part]
            swapped += _swap(*looked_at, blocks, *classes, *edges, panels)
            if pairs_at_once:
                for each in others:
                    release(each)
        if not swapped:
            break
    return blocks


@compiled()
def _count_panels(rows: Any, columns: Any, senders: Any, receivers: Any, counts: Any) -> None:
    for edge in range(senders.shape[0]):
        counts[rows[receivers[edge]], columns[senders[edge]]] += 1


@compiled()
def _swap(
    first: Any,
    second: Any,
    blocks: Any,
    rows: Any,
    columns: Any,
    in_starts: Any,
    senders: Any,
    out_starts: Any,
    receivers: Any,
    panels: Any,
) -> int:
    """Let nodes change places, pair by pair, where the squares of the panels then sum to less.

    Args:
        first: int [n], a node of each pair.
        second: int [n], the other.
        blocks: int64 [n], the block of each node; changed.
        rows: int32 [blocks].
        columns: int32 [blocks].
        in_starts: int64 [n + 1], where the edges that enter a node begin.
        senders: int32 [e], of these edges.
        out_starts: int64 [n + 1], where the edges that leave a node begin.
        receivers: int32 [e], of these.
        panels: int64 [2, R, L], nonzeros of the matrix and of its transpose; changed.

    Returns:
        How many pairs did.
    """
    swapped = 0
    for pair in range(first.shape[0]):
        one, other = first[pair], second[pair]
        a, b = blocks[one], blocks[other]
        if a == b:
            continue
        edges = (in_starts, senders, out_starts, receivers)
        change = _move(one, b, blocks, rows, columns, edges, panels)
        change += _move(other, a, blocks, rows, columns, edges, panels)
        if change < 0:
            swapped += 1
        else:
            _move(other, b, blocks, rows, columns, edges, panels)
            _move(one, a, blocks, rows, columns, edges, panels)
    return swapped


@compiled()
def _move(node: int, to: int, blocks: Any, rows: Any, columns: Any, edges: Any, panels: Any) -> int:
    """Move a node to a block; by how much the sum of the squares of the panels changes."""
    in_starts, senders, out_starts, receivers = edges
    before = blocks[node]
    row, new_row, column, new_column = rows[before], rows[to], columns[before], columns[to]
    change = loops = 0
    for way in range(2):
        starts, ends = (in_starts, senders) if way == 0 else (out_starts, receivers)
        # An edge that enters is in the node's row of the matrix and column of the transpose.
        own_row, own_column = panels[way], panels[1 - way]
        for edge in range(starts[node], starts[node + 1]):
            if ends[edge] == node:
                loops += 1 - way
                continue
            there = blocks[ends[edge]]
            if row != new_row:
                c = columns[there]
                change += 2 * (own_row[new_row, c] - own_row[row, c] + 1)
                own_row[row, c] -= 1
                own_row[new_row, c] += 1
            if column != new_column:
                r = rows[there]
                change += 2 * (own_column[r, new_column] - own_column[r, column] + 1)
                own_column[r, column] -= 1
                own_column[r, new_column] += 1
    if row != new_row or column != new_column:
        for panel in panels:
            change += 2 * loops * (panel[new_row, new_column] - panel[row, column] + loops)
            panel[row, column] -= loops
            panel[new_row, new_column] += loops
    blocks[node] = to
    return change
