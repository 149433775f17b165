"""Functions of Python code packed into supergraphs of one shape, as an exported network takes them.

Which functions fit is known before: no edge of a function joins nodes more than S apart, wherever
in a supergraph it begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from weft.errors import DataError
from weft.files import write_atomically
from weft.graphs import Array, Budget, Graph, GraphBatch, assemble, table_from_graphs
from weft.models.dense_programs import dense_inputs
from weft.models.ggnn import GGNN
from weft.models.misuse import MisuseDetector
from weft.recipes.programs.prediction import Trained, load_programs
from weft.sources.program_graph import (
    CANDIDATE,
    MAY_STAND_IN,
    MISUSE_SCHEMA,
    PROGRAM_SCHEMA,
    SLOT,
)
from weft.sources.python_code import each_sample
from weft.sources.python_misuse import each_function
from weft.sources.python_programs import python_files
from weft.sources.python_units import Unusable, read_source

# Rows and columns of a TPU's matrix unit; nine of ten functions have no wider band.
_BLOCK = 128
# Room for a graph in every so many nodes: few functions are smaller.
_NODES_A_GRAPH = 16


@dataclass(frozen=True, kw_only=True)
class SupergraphShape:
    """The one shape of a file's inputs.

    Attributes:
        nodes: N, a multiple of the block.
        block: S; no edge may join nodes more than S apart.
        types: P.
        graphs: G, the most graphs.
        pairs: Q, the most pairs of a use and a variable; None where slots are filled.
        subtokens: whether nodes begin as their subtokens too.
    """

    nodes: int
    block: int
    types: int
    graphs: int
    pairs: int | None
    subtokens: bool

    def misfit(self, graph: Graph) -> str:
        """Why a graph can be in no supergraph of this shape; empty if it can."""
        apart = int(np.abs(graph.senders - graph.receivers).max(initial=0))
        if graph.num_nodes >= self.nodes:
            return f"{self.nodes} nodes or more"
        if apart > self.block:
            return f"an edge between nodes more than {self.block} apart"
        if self.pairs is not None and pairs_of(graph) > self.pairs:
            return f"more than {self.pairs} pairs of a use and a variable"
        return ""


@dataclass(frozen=True, kw_only=True, eq=False)
class ProgramSupergraph:
    """Functions of code as a file takes them.

    Attributes:
        batch: the graphs, padded to N nodes.
        inputs: of the file, by name.
        place: of each node that stands for a use or a candidate, file:line:column of the use.
        name: of each node that is a use, a variable or a candidate, its name.
    """

    batch: GraphBatch
    inputs: dict[str, Tensor]
    place: Array
    name: Array

    def save(self, path: Path) -> None:
        """Write inputs, places and names as .npz, in which nothing is pickled."""
        arrays: dict[str, Any] = {name: value.numpy() for name, value in self.inputs.items()}
        arrays |= {"place": self.place, "name": self.name}
        write_atomically(path, lambda file: np.savez_compressed(file, **arrays))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Item:
    """A graph with the names and places of some of its nodes."""

    graph: Graph
    names: dict[int, str] = field(default_factory=dict)
    places: dict[int, str] = field(default_factory=dict)


def pairs_of(graph: Graph) -> int:
    """Edges MayStandIn."""
    return int((np.asarray(graph.edges["type"]) == MAY_STAND_IN).sum())


def shape_of(trained: Trained, block: int | None = None) -> SupergraphShape:
    """The shape that a run's file takes: its supergraphs' nodes, rounded up to whole blocks.

    Args:
        trained: the run.
        block: S; by default that of the run's own layout, or 128.
    """
    if block is not None and block < 1:
        raise ValueError(f"block is {block}; it must be at least 1")
    size = block or trained.config.layout.block or _BLOCK
    nodes = -(-max(trained.config.nodes, 2) // size) * size
    detects = isinstance(trained.model, MisuseDetector)
    return SupergraphShape(
        nodes=nodes,
        block=size,
        types=trained.model.config.num_types,
        graphs=max(2, nodes // _NODES_A_GRAPH),
        pairs=nodes if detects else None,
        subtokens=trained.config.start == "subtokens",
    )


def supergraphs(
    trained: Trained,
    shape: SupergraphShape,
    code: Path | str | Sequence[Path | str],
    left_out: Counter[str],
) -> Iterator[ProgramSupergraph]:
    """The functions of Python files, or every use in them, packed one after another.

    Args:
        trained: the run; whether it fills slots or finds misuses decides what a graph is.
        shape: of every supergraph.
        code: .py files and folders, `python` for the standard library.
        left_out: what fits no supergraph is counted here, by reason.
    """
    together: list[_Item] = []
    nodes = pairs = 0
    for item in _items(trained, shape, code, left_out):
        reason = shape.misfit(item.graph)
        if reason:
            left_out[reason] += 1
            continue
        own = 0 if shape.pairs is None else pairs_of(item.graph)
        full = nodes + item.graph.num_nodes >= shape.nodes or len(together) == shape.graphs
        if together and (full or (shape.pairs is not None and pairs + own > shape.pairs)):
            yield _packed(together, shape)
            together, nodes, pairs = [], 0, 0
        together.append(item)
        nodes, pairs = nodes + item.graph.num_nodes, pairs + own
    if together:
        yield _packed(together, shape)


def write_supergraphs(
    run: Path | str,
    code: Path | str | Sequence[Path | str],
    folder: Path | str,
    *,
    block: int | None = None,
) -> tuple[list[Path], Counter[str]]:
    """Write code as inputs of a run's exported file: supergraph-0.npz and so on, in a folder.

    Args:
        run: the folder of a run of `weft train programs`.
        code: .py files and folders.
        folder: is made if need be.
        block: that of the file, if it was exported with one.

    Returns:
        The files, and how many functions are in none of them, by reason.

    Raises:
        DataError: no such run or code, or no function in it fits.
    """
    trained, left_out, written = load_programs(Path(run)), Counter[str](), []
    shape = shape_of(trained, block)
    Path(folder).mkdir(parents=True, exist_ok=True)
    for number, each in enumerate(supergraphs(trained, shape, code, left_out)):
        written.append(Path(folder) / f"supergraph-{number}.npz")
        each.save(written[-1])
    if not written:
        raise nothing_fits(shape, left_out)
    return written, left_out


def nothing_fits(shape: SupergraphShape, left_out: Counter[str]) -> DataError:
    """The error where no function of some code can be in a supergraph of this shape."""
    reasons = ", ".join(f"{reason} ({count:,})" for reason, count in left_out.items())
    return DataError(
        f"no function fits a supergraph of {shape.nodes:,} nodes in blocks of {shape.block}: "
        f"{reasons or 'there is none'}; take a larger --block, or other code"
    )


def _items(
    trained: Trained,
    shape: SupergraphShape,
    code: Path | str | Sequence[Path | str],
    left_out: Counter[str],
) -> Iterator[_Item]:
    for name, file in python_files(code):
        try:
            source = read_source(file)
        except Unusable as reason:
            left_out[str(reason)] += 1
            continue
        if isinstance(trained.model, GGNN):
            for sample in each_sample(source, name, left_out, max_nodes=shape.nodes - 1):
                role = np.asarray(sample.graph.nodes["role"])
                (slot,), candidates = (
                    np.flatnonzero(role == SLOT),
                    np.flatnonzero(role == CANDIDATE),
                )
                names = dict(zip(candidates.tolist(), sample.candidates, strict=True))
                place = f"{name}:{sample.line}:{sample.column + 1}"
                nodes = [int(slot), *names]
                names[int(slot)] = sample.name
                yield _Item(graph=sample.graph, names=names, places=dict.fromkeys(nodes, place))
            continue
        for function in each_function(source, name, left_out, max_nodes=shape.nodes - 1):
            uses = dict(zip(function.nodes.tolist(), function.uses, strict=True))
            yield _Item(
                graph=function.graph,
                names=function.variables | {node: use.name for node, use in uses.items()},
                places={node: f"{name}:{use.line}:{use.column + 1}" for node, use in uses.items()},
            )


def _packed(together: Sequence[_Item], shape: SupergraphShape) -> ProgramSupergraph:
    schema = PROGRAM_SCHEMA if shape.pairs is None else MISUSE_SCHEMA
    table = table_from_graphs([item.graph for item in together], schema)
    budget = Budget(nodes=shape.nodes, edges=max(1, table.total_edges), graphs=len(together) + 1)
    batch = assemble(table, range(len(together)), budget)
    names, places = [""] * shape.nodes, [""] * shape.nodes
    for item, first in zip(together, table.node_offsets.tolist(), strict=False):
        for texts, own in ((names, item.names), (places, item.places)):
            for node, text in own.items():
                texts[first + node] = text
    inputs = dense_inputs(
        batch, types=shape.types, block=shape.block, graphs=shape.graphs, pairs=shape.pairs
    )
    if not shape.subtokens:
        del inputs["subtokens"]
    return ProgramSupergraph(
        batch=batch, inputs=inputs, place=np.array(places), name=np.array(names)
    )
