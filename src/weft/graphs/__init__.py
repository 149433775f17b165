"""Graphs as columns: GraphTable (a data set), GraphBatch (what a model sees), Graph (one graph)."""

from weft.graphs.batch import Budget, GraphBatch, assemble
from weft.graphs.build import table_from_columns, table_from_graphs
from weft.graphs.graph import Array, Graph
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
    "infer_schema",
    "open_table",
    "table_from_columns",
    "table_from_graphs",
    "write_table",
]
