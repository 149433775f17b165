"""One graph on many ranks: grids, partitions, distributed products, what they cost."""

from weft.parallel.grid import Grid, balanced, grid_of, grids_for
from weft.parallel.layers import gather_columns, multiply, slice_of, sum_gradients
from weft.parallel.loss import cross_entropy, scores
from weft.parallel.matrix import GridMatrix, propagate
from weft.parallel.method import PUBLISHED, Method
from weft.parallel.network import GridNetwork
from weft.parallel.partition import PARTITIONS, Partition, partition_nodes
from weft.parallel.prepare import prepare
from weft.parallel.recorder import Event, Recorder, Total
from weft.parallel.shard import GraphShard
from weft.parallel.splits import class_split, share_split, with_split
from weft.parallel.world import World, alone, joined

__all__ = [
    "PARTITIONS",
    "PUBLISHED",
    "Event",
    "GraphShard",
    "Grid",
    "GridMatrix",
    "GridNetwork",
    "Method",
    "Partition",
    "Recorder",
    "Total",
    "World",
    "alone",
    "balanced",
    "class_split",
    "cross_entropy",
    "gather_columns",
    "grid_of",
    "grids_for",
    "joined",
    "multiply",
    "partition_nodes",
    "prepare",
    "propagate",
    "scores",
    "share_split",
    "slice_of",
    "sum_gradients",
    "with_split",
]
