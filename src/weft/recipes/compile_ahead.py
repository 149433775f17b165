"""The loops of every recipe's model, compiled ahead by a few steps on made-up data."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from weft.batching import BatchingConfig, GraphLoader, GraphSampler, graph_sizes
from weft.graphs import Graph, GraphBatch, GraphTable, assemble, gcn_weights, write_table
from weft.graphs.graph import Array
from weft.kernels import node_cross_entropy
from weft.layout import TypedEdges
from weft.models import (
    GCN,
    GGNN,
    MPEU,
    GGNNConfig,
    GraphSAGE,
    PaiNN,
    SchNet,
    candidate_loss,
    energy_and_forces,
    properties_of,
)
from weft.runtime import compilations
from weft.sources import small_graphs
from weft.sources.verlet_list import Fixed, VerletList
from weft.sparsify import SparseLinear
from weft.walks import node2vec_walks, temporal_walks, uniform_walks

_GRAPHS = 24

Progress = Callable[[str, int, int, str], None]
"""Called with what is compiled for, by name and number from 0, how many there are, the function."""


def compile_all(progress: Progress) -> None:
    """Take a few steps of every recipe's model with made-up data, so that its loops are compiled.

    Args:
        progress: called before each model, with "" for the function, and after each function.
    """
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        # On disk and from a loader, as in training: read-only arrays are compiled separately.
        table = write_table(Path(folder) / "made-up", _structures(), metadata={"symmetric": True})
        tasks: dict[str, Callable[[], None]] = {
            "molecules and crystals with SchNet": lambda: _structure_steps(SchNet(), table),
            "molecules and crystals with MPEU": lambda: _structure_steps(MPEU(), table),
            "molecules and crystals with PaiNN": lambda: _structure_steps(PaiNN(), table),
            "molecular dynamics": _moves,
            "nodes": _node_steps,
            "programs": _program_step,
            "links": _walks,
            "sparse layers": _sparse_step,
        }
        for number, (what, steps) in enumerate(tasks.items()):
            progress(what, number, len(tasks), "")
            # As arguments, because the function is kept for longer than the turn of the loop.
            with compilations(
                lambda name, _, what=what, number=number: progress(  # type: ignore[misc]
                    what, number, len(tasks), name
                )
            ):
                steps()


def _structures() -> Iterator[Graph]:
    """Small molecules whose atoms are all neighbours."""
    for graph in small_graphs(_GRAPHS):
        receivers, senders = np.nonzero(~np.eye(graph.num_nodes, dtype=bool))
        yield dataclasses.replace(graph, senders=senders, receivers=receivers, edges={})


def _structure_steps(model: nn.Module, table: GraphTable) -> None:
    """Steps with and without forces, and predictions, on large batches and on single structures."""
    for config in (
        BatchingConfig(policy="dynamic", batch_size=_GRAPHS // 2),
        BatchingConfig(policy="unpadded", batch_size=1),
    ):
        loader = GraphLoader(table, GraphSampler(*graph_sizes(table), config))
        batch = next(iter(loader))
        _learn(model(batch))
        energy, forces = energy_and_forces(model, batch, training=True)
        _learn(energy.sum() + forces.square().sum())
        energy_and_forces(model, batch)
        with torch.inference_mode():
            model(batch)


def _moves() -> None:
    """Energies and forces of a molecule in both precisions."""
    # Not periodic: that would need vesin.
    fixed = Fixed(z=np.array([8, 1, 1]), num_atoms=np.array([3]), pbc=np.zeros((1, 3), dtype=bool))
    pos = np.array([[0, 0, 0], [0, 0.8, 0.6], [0, -0.8, 0.6]])
    for dtype in (torch.float32, torch.float64):
        batch = VerletList(fixed, cutoff=3.0, dtype=dtype).batch(pos, np.zeros((1, 3, 3)))
        for model in (SchNet(), PaiNN()):
            properties_of(model.to(dtype), batch, stress=True)


def _learn(values: Tensor) -> None:
    values.nan_to_num().sum().backward()  # type: ignore[no-untyped-call]


def _graph(**columns: Array) -> Graph:
    """A graph of 40 nodes and 200 edges."""
    rng = np.random.default_rng(0)
    senders, receivers = rng.integers(0, 40, (2, 200))
    return Graph(
        num_nodes=40,
        senders=senders,
        receivers=receivers,
        nodes=columns,
        edges={"type": rng.integers(0, 4, 200), "time": rng.random(200)},
    )


def _batch(graph: Graph) -> GraphBatch:
    with tempfile.TemporaryDirectory() as folder:
        return assemble(write_table(Path(folder) / "made-up", [graph]), [0])


def _node_steps() -> None:
    batch = _batch(gcn_weights(_graph(x=np.ones((40, 8), np.float32))))
    for model in (GCN(8, 3), GraphSAGE(8, 3)):
        classes = torch.zeros(batch.num_nodes, dtype=torch.int64)
        _learn(node_cross_entropy(model(batch), classes))
        with torch.inference_mode():
            model.eval()(batch)


def _program_step() -> None:
    role = np.arange(40) % 3
    columns = {"role": role, "correct": role == 2, "subtokens": np.ones((40, 4), np.int32)}
    batch = _batch(_graph(**columns))
    model = GGNN(GGNNConfig(dropout=0.1))
    edges = TypedEdges.of_batch(batch, model.config.num_types)
    _learn(candidate_loss(batch, model(batch, edges))[0])
    with torch.inference_mode():
        model.eval()(batch, edges)


def _walks() -> None:
    graph = _graph()
    uniform_walks(graph, walks=1, length=3)
    temporal_walks(graph, walks=1, length=3)
    node2vec_walks(graph, p=0.5, q=2.0, walks=1, length=3)


def _sparse_step() -> None:
    layers = nn.Sequential(SparseLinear(8, 8, 16, relu=True), SparseLinear(8, 4, 8))
    _learn(layers(torch.ones(300, 8)))
