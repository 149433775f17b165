"""Graphs as columns: GraphTable (a data set), GraphBatch (what a model sees), Graph (one graph)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import lazy_names

if TYPE_CHECKING:
    from weft.graphs.batch import GraphBatch as GraphBatch
    from weft.graphs.batch import assemble as assemble
    from weft.graphs.build import table_from_columns as table_from_columns
    from weft.graphs.build import table_from_graphs as table_from_graphs
    from weft.graphs.convert import batch_from_pyg as batch_from_pyg
    from weft.graphs.convert import batch_to_pyg as batch_to_pyg
    from weft.graphs.convert import graph_from_atoms as graph_from_atoms
    from weft.graphs.convert import graph_from_networkx as graph_from_networkx
    from weft.graphs.convert import graph_from_pyg as graph_from_pyg
    from weft.graphs.convert import graph_from_scipy as graph_from_scipy
    from weft.graphs.convert import graph_to_atoms as graph_to_atoms
    from weft.graphs.convert import graph_to_networkx as graph_to_networkx
    from weft.graphs.convert import graph_to_pyg as graph_to_pyg
    from weft.graphs.convert import graph_to_scipy as graph_to_scipy
    from weft.graphs.graph import Array as Array
    from weft.graphs.graph import Budget as Budget
    from weft.graphs.graph import Column as Column
    from weft.graphs.graph import Graph as Graph
    from weft.graphs.graph import Level as Level
    from weft.graphs.graph import Schema as Schema
    from weft.graphs.graph import infer_schema as infer_schema
    from weft.graphs.normalise import gcn_weights as gcn_weights
    from weft.graphs.normalise import row_weights as row_weights
    from weft.graphs.normalise import symmetrised as symmetrised
    from weft.graphs.normalise import with_self_loops as with_self_loops
    from weft.graphs.store import open_table as open_table
    from weft.graphs.store import write_table as write_table
    from weft.graphs.table import GraphTable as GraphTable
else:
    __all__ = lazy_names(__name__)
