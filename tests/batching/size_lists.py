"""Random sizes of graphs for hypothesis, and a small table with molecule-like graphs."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from weft.graphs import GraphTable, table_from_graphs
from weft.sources.synthetic import small_graphs

# Compiling a numba loop the first time takes seconds.
quick = settings(deadline=None, max_examples=60)

PADDED = ("dynamic", "static-64", "static-2^n", "static-constant", "packed")
ALL = (*PADDED, "unpadded")


@st.composite
def sizes(draw, min_size=1, max_size=60):
    """(num_nodes, num_edges), often with empty graphs and many of the same size."""
    count = draw(st.integers(min_size, max_size))
    most = draw(st.sampled_from([1, 5, 30]))
    nodes = draw(st.lists(st.integers(0, most), min_size=count, max_size=count))
    edges = draw(st.lists(st.integers(0, most * most), min_size=count, max_size=count))
    return np.array(nodes, dtype=np.int64), np.array(edges, dtype=np.int64)


def molecules(count: int = 40, seed: int = 0) -> GraphTable:
    return table_from_graphs(list(small_graphs(count, seed)))
