"""What a rank's part of a graph takes of memory, apart from the code that works on it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from weft.graphs import Graph, GraphTable
from weft.parallel.grid import Grid
from weft.parallel.network import GridNetwork
from weft.parallel.prepare import prepare
from weft.parallel.shard import GraphShard
from weft.parallel.shard_io import release
from weft.parallel.splits import PARTS
from weft.parallel.world import alone
from weft.recipes.full_graph.config import FullGraphConfig
from weft.training.process_memory import peak_memory, process_memory


def peak_on(device: torch.device) -> float:
    """The most bytes that this process has held: of a GPU's memory if that is what computes."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return peak_memory()


def before_graph(table: GraphTable, config: FullGraphConfig, device: torch.device) -> float:
    """Memory that this process holds, bytes, when all code is loaded and nothing of the table is.

    A graph of two nodes is trained on, so that libraries, compiled loops and threads are there:
    beside a small graph they are most of what a process holds. Earlier peaks are forgotten.
    """
    ends, every = np.array([0, 1]), np.ones(2, dtype=np.bool_)
    graph = Graph(
        num_nodes=2,
        senders=ends,
        receivers=ends[::-1].copy(),
        nodes={
            "x": np.ones((2, 2), dtype=np.float32),
            "y": ends,
            **dict.fromkeys(PARTS, every),
        },
    )
    table = prepare(graph, blocks=1, normalisation=config.matrix, dtype=config.dtype)
    world = alone(Grid(rows=1), 0, device)
    shard = GraphShard.open(table, world, config.method, config.torch_dtype)
    model = config.make_model(2, 2)
    network = GridNetwork(model, shard)
    network.step(0)
    torch.optim.Adam(model.parameters()).step()
    network.evaluate()
    for values in table.columns.values():
        release(values)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return float(torch.cuda.memory_allocated(device))
    with suppress(OSError):
        # Linux takes this for: the peak is what is held now.
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return process_memory("VmRSS")
