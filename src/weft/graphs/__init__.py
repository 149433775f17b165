"""Graphs as columns: GraphTable (a data set), GraphBatch (what a model sees), Graph (one graph)."""

from weft.graphs.batch import Budget, GraphBatch, assemble
from weft.graphs.build import table_from_columns, table_from_graphs
from weft.graphs.convert import (
    batch_from_pyg,
    batch_to_pyg,
    graph_from_atoms,
    graph_from_networkx,
    graph_from_pyg,
    graph_from_scipy,
    graph_to_atoms,
    graph_to_networkx,
    graph_to_pyg,
    graph_to_scipy,
)
from weft.graphs.graph import Array, Graph
from weft.graphs.normalise import gcn_weights, row_weights, symmetrised, with_self_loops
from weft.graphs.schema import Column, Level, Schema, infer_schema
from weft.graphs.store import open_table, write_table
from weft.graphs.table import GraphTable

__all__ = [
    "Array",
    "Budget",
    "Column",
    "Graph",
    "GraphBatch",
    "GraphTable",
    "Level",
    "Schema",
    "assemble",
    "batch_from_pyg",
    "batch_to_pyg",
    "gcn_weights",
    "graph_from_atoms",
    "graph_from_networkx",
    "graph_from_pyg",
    "graph_from_scipy",
    "graph_to_atoms",
    "graph_to_networkx",
    "graph_to_pyg",
    "graph_to_scipy",
    "infer_schema",
    "open_table",
    "row_weights",
    "symmetrised",
    "table_from_columns",
    "table_from_graphs",
    "with_self_loops",
    "write_table",
]
