"""Where graphs come from: packages, archives, files and generators, each becoming a GraphTable."""

from weft.sources.aflow import AflowQuery, aflow_table, fetch_aflow
from weft.sources.atoms import atoms_table
from weft.sources.cache import cached_table, data_folder
from weft.sources.catalogue import CATALOGUE, Source, load
from weft.sources.cif_csv import cif_csv_table
from weft.sources.citations import (
    cora_from_package,
    planetoid,
    random_split,
    row_normalise,
    shchur,
)
from weft.sources.crystals import crystals_table
from weft.sources.download import fetch
from weft.sources.edge_lists import EdgeList, edge_list_graph, read_edge_list
from weft.sources.great_files import read_great
from weft.sources.labelled_graphs import (
    NodeLabels,
    labelled_graph,
    pubmed_temporal,
    read_node_labels,
)
from weft.sources.matrix_market import read_matrix_market
from weft.sources.neighbours import Cutoff, FullyConnected, Nearest, Neighbours, with_neighbours
from weft.sources.programs import program_table, split_by_file
from weft.sources.python_code import FileSamples, Sample, Use, sample_graphs, variable_uses
from weft.sources.qm9 import ATOM_REFERENCES, QM9_TARGETS
from weft.sources.qm9_csv import qm9_from_csv
from weft.sources.qm9_xyz import qm9_from_archive
from weft.sources.synthetic import planted_partition, rmat, small_graphs, temporal
from weft.sources.varmisuse_files import read_varmisuse

__all__ = [
    "ATOM_REFERENCES",
    "CATALOGUE",
    "QM9_TARGETS",
    "AflowQuery",
    "Cutoff",
    "EdgeList",
    "FileSamples",
    "FullyConnected",
    "Nearest",
    "Neighbours",
    "NodeLabels",
    "Sample",
    "Source",
    "Use",
    "aflow_table",
    "atoms_table",
    "cached_table",
    "cif_csv_table",
    "cora_from_package",
    "crystals_table",
    "data_folder",
    "edge_list_graph",
    "fetch",
    "fetch_aflow",
    "labelled_graph",
    "load",
    "planetoid",
    "planted_partition",
    "program_table",
    "pubmed_temporal",
    "qm9_from_archive",
    "qm9_from_csv",
    "random_split",
    "read_edge_list",
    "read_great",
    "read_matrix_market",
    "read_node_labels",
    "read_varmisuse",
    "rmat",
    "row_normalise",
    "sample_graphs",
    "shchur",
    "small_graphs",
    "split_by_file",
    "temporal",
    "variable_uses",
    "with_neighbours",
]
