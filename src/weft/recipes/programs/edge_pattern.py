"""Where the edges of a supergraph are, before its graphs were reordered and after: spy.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from weft.files import json_text, write_atomically
from weft.graphs import Array, GraphTable
from weft.sources.program_graph import text_order

SPY = "spy.json"
"""File of a run with a small picture of its first supergraph."""

_CELLS = 96
_DISTANCES = (8, 16, 32, 64, 128, 256, 512)


def spy_of_programs(table: GraphTable, graphs: Array) -> dict[str, Any]:
    """Counts of edges in 96 by 96 cells, in the order of the text and in that of the table.

    Args:
        table: programs, as `read_programs` gives them.
        graphs: int64, those that make up the supergraph, in their order.
    """
    some = table.select(graphs)
    base = np.repeat(some.node_offsets[:-1], some.num_edges)
    senders, receivers = (some.columns[name] + base for name in ("senders", "receivers"))
    place = np.empty(some.total_nodes, dtype=np.int64)
    place[text_order(some)] = np.arange(some.total_nodes)
    order = str(table.metadata.get("order", "table"))
    return {
        "graphs": len(some),
        "nodes": some.total_nodes,
        "edges": some.total_edges,
        "distances": list(_DISTANCES),
        "orders": [
            _picture("order of the text", place[senders], place[receivers], some.total_nodes),
            _picture(f"{order} order", senders, receivers, some.total_nodes),
        ],
    }


def write_spy(folder: Path, table: GraphTable, graphs: Array) -> None:
    """Write `spy_of_programs` into a run's folder."""
    text = json_text(spy_of_programs(table, graphs)) + "\n"
    write_atomically(folder / SPY, lambda file: file.write(text.encode()))


def _picture(order: str, senders: Array, receivers: Array, nodes: int) -> dict[str, Any]:
    away = np.abs(senders - receivers)
    cells = min(_CELLS, max(1, nodes))
    row, column = (ends * cells // max(1, nodes) for ends in (receivers, senders))
    counts = np.bincount(row * cells + column, minlength=cells * cells).reshape(cells, cells)
    return {
        "order": order,
        "bandwidth": int(away.max(initial=0)),
        "near": [float((away <= d).mean()) if len(away) else 1.0 for d in _DISTANCES],
        "counts": counts.tolist(),
    }
