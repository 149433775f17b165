"""Where graphs come from: packages, archives, files and generators, each becoming a GraphTable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import lazy_names

if TYPE_CHECKING:
    from weft.sources.aflow import AflowQuery as AflowQuery
    from weft.sources.aflow import aflow_table as aflow_table
    from weft.sources.aflow import fetch_aflow as fetch_aflow
    from weft.sources.atoms import atoms_table as atoms_table
    from weft.sources.catalogue import CATALOGUE as CATALOGUE
    from weft.sources.catalogue import Source as Source
    from weft.sources.catalogue import load as load
    from weft.sources.citation_graphs import cora_from_package as cora_from_package
    from weft.sources.citation_graphs import planetoid as planetoid
    from weft.sources.citation_graphs import pubmed_temporal as pubmed_temporal
    from weft.sources.citation_graphs import random_split as random_split
    from weft.sources.citation_graphs import row_normalise as row_normalise
    from weft.sources.citation_graphs import shchur as shchur
    from weft.sources.config import Cutoff as Cutoff
    from weft.sources.config import FullyConnected as FullyConnected
    from weft.sources.config import Nearest as Nearest
    from weft.sources.config import Neighbours as Neighbours
    from weft.sources.crystals import cif_csv_table as cif_csv_table
    from weft.sources.crystals import crystals_table as crystals_table
    from weft.sources.download import fetch as fetch
    from weft.sources.edge_lists import EdgeList as EdgeList
    from weft.sources.edge_lists import NodeLabels as NodeLabels
    from weft.sources.edge_lists import edge_list_graph as edge_list_graph
    from weft.sources.edge_lists import labelled_graph as labelled_graph
    from weft.sources.edge_lists import read_edge_list as read_edge_list
    from weft.sources.edge_lists import read_node_labels as read_node_labels
    from weft.sources.graph_files import read_graph as read_graph
    from weft.sources.great_files import read_great as read_great
    from weft.sources.matrix_market import read_matrix_market as read_matrix_market
    from weft.sources.neighbours import with_neighbours as with_neighbours
    from weft.sources.ogb import read_ogb as read_ogb
    from weft.sources.python_code import FileSamples as FileSamples
    from weft.sources.python_code import Sample as Sample
    from weft.sources.python_code import Use as Use
    from weft.sources.python_code import sample_graphs as sample_graphs
    from weft.sources.python_code import variable_uses as variable_uses
    from weft.sources.python_programs import program_table as program_table
    from weft.sources.python_programs import split_by_file as split_by_file
    from weft.sources.qm9 import ATOM_REFERENCES as ATOM_REFERENCES
    from weft.sources.qm9 import QM9_TARGETS as QM9_TARGETS
    from weft.sources.qm9 import qm9_from_archive as qm9_from_archive
    from weft.sources.qm9 import qm9_from_csv as qm9_from_csv
    from weft.sources.synthetic import planted_partition as planted_partition
    from weft.sources.synthetic import rmat as rmat
    from weft.sources.synthetic import small_graphs as small_graphs
    from weft.sources.synthetic import temporal as temporal
    from weft.sources.table_cache import cached_table as cached_table
    from weft.sources.table_cache import data_folder as data_folder
    from weft.sources.varmisuse_files import read_varmisuse as read_varmisuse
else:
    __all__ = lazy_names(__name__)
