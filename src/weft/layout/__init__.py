"""How a graph is multiplied: orders of nodes, and forms of an adjacency with the same result."""

from weft.layout.banded import BandedAdjacency, Outside
from weft.layout.choice import (
    AnyAdjacency,
    Choice,
    Figure,
    LayoutConfig,
    adjacency_of,
    measured_choice,
)
from weft.layout.cost import choose_block, machine_rates
from weft.layout.csr import TypedEdges
from weft.layout.dense import DenseAdjacency
from weft.layout.orders import ORDERS, reorder, reordered
from weft.layout.statistics import BandStatistics, BlockFill, band_statistics, block_fill

__all__ = [
    "ORDERS",
    "AnyAdjacency",
    "BandStatistics",
    "BandedAdjacency",
    "BlockFill",
    "Choice",
    "DenseAdjacency",
    "Figure",
    "LayoutConfig",
    "Outside",
    "TypedEdges",
    "adjacency_of",
    "band_statistics",
    "block_fill",
    "choose_block",
    "machine_rates",
    "measured_choice",
    "reorder",
    "reordered",
]
