"""The order in which a parser numbers the nodes of programs, found again from their edges."""

from __future__ import annotations

import numpy as np

from weft.graphs import Array, GraphTable
from weft.layout.csr import TYPE
from weft.sources.program_graph import EdgeType


def text_order(table: GraphTable) -> Array:
    """int64 [N]: the nodes of each graph as a parser numbers them, over all graphs.

    Tables have their nodes in another order; this one follows from the edges. Tokens come as
    NextToken chains them, then the parts of the syntax tree from the top, each before what is below
    it, then what hangs in neither: candidates.
    """
    base = np.repeat(table.node_offsets[:-1], table.num_edges)
    senders, receivers = (table.columns[name] + base for name in ("senders", "receivers"))
    kinds = np.asarray(table.column(TYPE))
    total = table.total_nodes
    chain, child = kinds == EdgeType.NEXT_TOKEN, kinds == EdgeType.CHILD
    before = np.arange(total)
    before[receivers[chain]] = senders[chain]
    number = (before != np.arange(total)).astype(np.int64)
    is_token = number > 0
    is_token[senders[chain]] = True
    # Each round looks twice as far back along the chain.
    for _ in range(int(table.num_nodes.max(initial=1)).bit_length()):
        number += number[before]
        before = before[before]
    first = np.where(is_token, number, total)
    depth = np.zeros(total, dtype=np.int64)
    parents, children = senders[child], receivers[child]
    # A tree is no higher than it has nodes; the rounds end as soon as nothing changes.
    for _ in range(int(table.num_nodes.max(initial=0))):
        earlier, deeper = first.copy(), depth.copy()
        np.minimum.at(earlier, parents, first[children])
        np.maximum.at(deeper, children, depth[parents] + 1)
        if (earlier == first).all() and (deeper == depth).all():
            break
        first, depth = earlier, deeper
    kind = np.where(is_token, 0, np.where(first < total, 1, 2))
    graph = np.repeat(np.arange(len(table)), table.num_nodes)
    found: Array = np.lexsort((depth, first, kind, graph))
    return found
