"""Sizes of a stranger's graphs, read without loading them wherever that is possible."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.utils.data import Subset

from weft.errors import DataError
from weft.graphs import Array, GraphTable

# Columns by which torch_geometric knows the number of nodes, in no other order than the data's.
_NODE_COLUMNS = ("x", "feat", "pos", "batch", "node_type", "n_id")


def graph_sizes(data: Any) -> tuple[Array, Array]:
    """Nodes and edges of every graph, int64 [g] each.

    A GraphTable has them. Of a torch_geometric data set in memory they are read from its `slices`;
    of any other (on disk, with a transform that may change the graphs, a list) every sample is
    taken once. A torch Subset has those of its graphs.
    """
    if isinstance(data, GraphTable):
        return data.num_nodes, data.num_edges
    if isinstance(data, Subset) and (whole := _collated_sizes(data.dataset)) is not None:
        chosen = np.asarray(data.indices, dtype=np.int64)
        return whole[0][chosen], whole[1][chosen]
    sizes = _collated_sizes(data)
    return _loaded_sizes(data) if sizes is None else sizes


def _collated_sizes(data: Any) -> tuple[Array, Array] | None:
    """From the slices of torch_geometric's InMemoryDataset; None where they do not tell."""
    slices, store = getattr(data, "slices", None), getattr(data, "_data", None)
    if not slices or store is None or getattr(data, "transform", None) is not None:
        return None
    if "edge_index" not in slices:
        return None
    if hasattr(store, "_num_nodes"):
        nodes: Array = np.asarray(store._num_nodes, dtype=np.int64)
    else:
        known = [name for name in slices if name in _NODE_COLUMNS or "node" in name]
        known.sort(key=lambda name: name not in _NODE_COLUMNS)
        if not known or known[0] == "num_nodes":
            return None
        nodes = np.diff(np.asarray(slices[known[0]], dtype=np.int64))
    edges = np.diff(np.asarray(slices["edge_index"], dtype=np.int64))
    chosen = np.asarray(list(data.indices()), dtype=np.int64)
    return nodes[chosen], edges[chosen]


def _loaded_sizes(data: Any) -> tuple[Array, Array]:
    sizes = np.empty((2, len(data)), dtype=np.int64)
    for i in range(len(data)):
        sample = data[i]
        nodes, edges = getattr(sample, "num_nodes", None), getattr(sample, "num_edges", None)
        if nodes is None or edges is None:
            raise DataError(
                f"sample {i} is a {type(sample).__name__} without num_nodes and num_edges; give "
                "lists of both in its place"
            )
        sizes[:, i] = int(nodes), int(edges)
    return sizes[0], sizes[1]
