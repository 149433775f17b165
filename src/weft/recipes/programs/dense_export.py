"""A trained network for programs as a file of dense operators, which runs where weft is not."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

import weft
from weft.errors import DataError
from weft.graphs import GraphBatch
from weft.layout import TypedEdges
from weft.layout.layout_choice import banded_cells
from weft.models.dense_programs import DenseDetector, DenseSlots, static_program
from weft.models.exported_program import Case, Exported, check_file, write_program
from weft.models.ggnn import GGNN, candidate_log_probabilities
from weft.models.misuse import answers
from weft.recipes.programs.dense_supergraphs import (
    ProgramSupergraph,
    SupergraphShape,
    nothing_fits,
    shape_of,
    supergraphs,
)
from weft.recipes.programs.prediction import Trained, load_programs
from weft.sources.program_graph import EDGE_NAMES, MISUSE_EDGE_NAMES
from weft.sources.python_programs import standard_library

# The example, and others that the program was not made with.
_COMPARED = 3
# Differences of at most 1e-4 in probabilities.
_SCALE = 10.0


def dense_program(trained: Trained, shape: SupergraphShape) -> DenseSlots | DenseDetector:
    """The network of a run in dense operators, for inputs of that shape."""
    if isinstance(trained.model, GGNN):
        return DenseSlots(trained.model, shape.graphs).eval()
    assert trained.calibration is not None
    temperature = trained.calibration.temperature
    return DenseDetector(trained.model, shape.graphs, temperature=temperature).eval()


def export_programs(run: Path, path: Path, *, block: int | None = None) -> Exported:
    """Write the network of a run in dense operators, and a supergraph as NAME-example.npz.

    Both are made with functions of the standard library of this Python; the file is compared with
    the run on supergraphs that it was not made with.

    Args:
        run: its folder.
        path: model.onnx or model.pt2.
        block: S, see `shape_of`.

    Raises:
        DataError: the run cannot be read, no function fits, the file cannot be written, or what
            was written would differ from the run.
    """
    check_file(path)
    trained, left_out = load_programs(run), Counter[str]()
    names = EDGE_NAMES if isinstance(trained.model, GGNN) else MISUSE_EDGE_NAMES
    shape = shape_of(trained, block)
    if shape.types != len(names):
        raise DataError(
            f"the run in {run} has {shape.types} types of edges, and Python code, with which an "
            f"export is compared, has {len(names)}; train it on such graphs"
        )
    needed = 4e-9 * banded_cells(shape.nodes, shape.types, shape.block)
    allowed = trained.config.layout.memory_gb
    if needed > allowed:
        raise DataError(
            f"supergraphs of {shape.nodes:,} nodes in blocks of {shape.block} take {needed:.1f} GB "
            f"in float32, more than the {allowed:g} GB allowed; take a smaller --block"
        )
    made = islice(supergraphs(trained, shape, standard_library(), left_out), _COMPARED)
    first = next(made, None)
    if first is None:
        raise nothing_fits(shape, left_out)
    model = dense_program(trained, shape)
    program = static_program(model, first.inputs)
    dtypes = {name: str(each.dtype).removeprefix("torch.") for name, each in first.inputs.items()}
    cases = [_case(trained, each, shape) for each in (*made, first)]
    metadata = {
        "weft_version": weft.__version__,
        "model": "slot" if isinstance(trained.model, GGNN) else "misuse",
        "inputs": " ".join(first.inputs),
        "shapes": "\n".join(
            f"{name} {dtypes[name]} {list(each.shape)}" for name, each in first.inputs.items()
        ),
        "outputs": " ".join(cases[0].expected),
        "edge_types": "\n".join(names),
        "block": str(shape.block),
    }
    example = path.with_name(f"{path.stem}-example.npz")
    exported = write_program(
        program,
        path,
        cases,
        metadata,
        timed=lambda: answered(trained, first.batch),
        inputs=f"a supergraph of {shape.nodes:,} nodes with {first.batch.num_graphs - 1} graphs",
        notes=(
            f"{operators_in(program)} operators, all dense: none gathers, scatters, indexes or "
            f"sorts, and every shape is static. Compared on {len(cases)} supergraphs.",
            f"Supergraphs have {shape.nodes:,} nodes in blocks of {shape.block}. {_said(left_out)}",
            f"An example is in {example}.",
        ),
    )
    first.save(example)
    return exported


def operators_in(program: ExportedProgram) -> int:
    """How many operators it calls."""
    return sum(node.op == "call_function" for node in program.graph.nodes)


def _said(left_out: Counter[str]) -> str:
    if not left_out:
        return "All functions that were read for them fit."
    reasons = ", ".join(f"{reason} ({count:,})" for reason, count in left_out.items())
    return f"Of the functions that were read for them some did not fit: {reasons}."


def answered(trained: Trained, batch: GraphBatch) -> dict[str, Tensor]:
    """What the run itself says of a batch, with sparse edges."""
    model = trained.model
    edges = TypedEdges.of_batch(batch, model.config.num_types)
    with torch.no_grad():
        if isinstance(model, GGNN):
            return {"probability": candidate_log_probabilities(batch, model(batch, edges)).exp()}
        assert trained.calibration is not None
        judged = model(batch, edges)
        found = answers(batch, judged, temperature=trained.calibration.temperature)
    return {"wrong": found.doubt.exp(), "fine": found.fine[: batch.num_real_graphs].exp()}


def _expected(
    trained: Trained, each: ProgramSupergraph, shape: SupergraphShape
) -> dict[str, Tensor]:
    """The same in the shape of the file's outputs."""
    found = answered(trained, each.batch)
    if shape.pairs is not None:
        # In a graph that is not there nothing is wrong.
        sizes = {"wrong": (shape.pairs, 0.0), "fine": (shape.graphs, 1.0)}
        for name, (size, fill) in sizes.items():
            padding = (0, size - len(found[name]))
            found[name] = nn.functional.pad(found[name], padding, value=fill)
    return found


def _case(trained: Trained, each: ProgramSupergraph, shape: SupergraphShape) -> Case:
    found = _expected(trained, each, shape)
    return Case(inputs=each.inputs, expected=found, scales=dict.fromkeys(found, _SCALE))
