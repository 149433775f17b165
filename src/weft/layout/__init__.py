"""How a graph is multiplied: orders of nodes, and forms of an adjacency with the same result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import lazy_names

if TYPE_CHECKING:
    from weft.layout.banded import BandedAdjacency as BandedAdjacency
    from weft.layout.config import LayoutConfig as LayoutConfig
    from weft.layout.config import Outside as Outside
    from weft.layout.csr import TypedEdges as TypedEdges
    from weft.layout.dense import DenseAdjacency as DenseAdjacency
    from weft.layout.layout_choice import AnyAdjacency as AnyAdjacency
    from weft.layout.layout_choice import Choice as Choice
    from weft.layout.layout_choice import Figure as Figure
    from weft.layout.layout_choice import adjacency_of as adjacency_of
    from weft.layout.layout_choice import choose_block as choose_block
    from weft.layout.layout_choice import machine_rates as machine_rates
    from weft.layout.layout_choice import measured_choice as measured_choice
    from weft.layout.orders import ORDERS as ORDERS
    from weft.layout.orders import BandStatistics as BandStatistics
    from weft.layout.orders import BlockFill as BlockFill
    from weft.layout.orders import band_statistics as band_statistics
    from weft.layout.orders import block_fill as block_fill
    from weft.layout.orders import reorder as reorder
    from weft.layout.orders import reordered as reordered
else:
    __all__ = lazy_names(__name__)
