"""One graph on many ranks: grids, partitions, distributed products, what they cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import lazy_names

if TYPE_CHECKING:
    from weft.parallel.distributed_graph import DistributedGraph as DistributedGraph
    from weft.parallel.graph_network import GraphNetwork as GraphNetwork
    from weft.parallel.graph_norms import BatchNorm as BatchNorm
    from weft.parallel.graph_norms import GraphNorm as GraphNorm
    from weft.parallel.graph_norms import LayerNorm as LayerNorm
    from weft.parallel.grid import Grid as Grid
    from weft.parallel.grid import balanced as balanced
    from weft.parallel.grid import grid_of as grid_of
    from weft.parallel.grid import grids_for as grids_for
    from weft.parallel.grid_layers import cross_entropy as cross_entropy
    from weft.parallel.grid_layers import gather_columns as gather_columns
    from weft.parallel.grid_layers import multiply as multiply
    from weft.parallel.grid_layers import scores as scores
    from weft.parallel.grid_layers import slice_of as slice_of
    from weft.parallel.grid_layers import sum_gradients as sum_gradients
    from weft.parallel.grid_matrix import GridMatrix as GridMatrix
    from weft.parallel.grid_matrix import propagate as propagate
    from weft.parallel.method import PARTITIONS as PARTITIONS
    from weft.parallel.method import PUBLISHED as PUBLISHED
    from weft.parallel.method import Method as Method
    from weft.parallel.module_network import ModuleNetwork as ModuleNetwork
    from weft.parallel.network import GridNetwork as GridNetwork
    from weft.parallel.partition import Partition as Partition
    from weft.parallel.partition import partition_nodes as partition_nodes
    from weft.parallel.prepare import prepare as prepare
    from weft.parallel.recorder import Event as Event
    from weft.parallel.recorder import Recorder as Recorder
    from weft.parallel.recorder import Total as Total
    from weft.parallel.shard import GraphShard as GraphShard
    from weft.parallel.splits import class_split as class_split
    from weft.parallel.splits import share_split as share_split
    from weft.parallel.splits import with_split as with_split
    from weft.parallel.world import World as World
    from weft.parallel.world import alone as alone
    from weft.parallel.world import joined as joined
else:
    __all__ = lazy_names(__name__)
