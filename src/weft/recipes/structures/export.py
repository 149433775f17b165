"""A trained potential as a program: energies, forces and stress from atoms and their neighbours.

The program takes edges in any order and makes a batch of them that has one padding atom, edge and
graph, so that no size is 0 in any runtime. Other runtimes check nothing, so the program does: an
index out of range, or an element that the network was not trained on, makes every result nan.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import weft
from weft.errors import DataError
from weft.graphs import Array, Column, GraphBatch, GraphTable, assemble, table_from_columns
from weft.models.exported_program import Case, Exported, Tensors, check_file, trace, write_program
from weft.models.properties import Properties, properties_of
from weft.recipes.recipe import member_folders
from weft.recipes.structures.config import StructuresConfig
from weft.recipes.structures.prediction import TrainedStructures, load_structures
from weft.sources import with_neighbours

_HEAVIEST = 118
INPUTS: dict[str, tuple[torch.dtype, tuple[str | int, ...]]] = {
    "z": (torch.int64, ("N",)),
    "pos": (torch.float64, ("N", 3)),
    "edge_index": (torch.int64, (2, "E")),
    "shift": (torch.float64, ("E", 3)),
    "batch": (torch.int64, ("N",)),
    "cell": (torch.float64, ("G", 3, 3)),
}
"""Of every program: N atoms, E edges, G structures."""


class Potential(nn.Module):
    """Energies, forces and stress from the tensors of INPUTS; to be traced, not to be called.

    Args:
        trained: the network and what it was made for.
        forces: give forces.
        stress: give the stress.
    """

    known: Tensor

    def __init__(self, trained: TrainedStructures, *, forces: bool, stress: bool) -> None:
        super().__init__()
        self.model = trained.model
        self.forces, self.stress = forces, stress
        known = torch.zeros(_HEAVIEST + 1, dtype=torch.bool)
        known[list(trained.elements)] = True
        self.register_buffer("known", known)

    def forward(
        self,
        z: Tensor,
        pos: Tensor,
        edge_index: Tensor,
        shift: Tensor,
        batch: Tensor,
        cell: Tensor,
    ) -> dict[str, Tensor]:
        """Energies [G] in eV, forces [N, 3] in eV/Å and stress [G, 3, 3] in eV/Å³, in float64."""
        atoms, graphs = z.shape[0], cell.shape[0]
        fits = self.known[z.clamp(0, _HEAVIEST)] & (z == z.clamp(0, _HEAVIEST))
        right = fits.all()
        for index, size in ((edge_index, atoms), (batch, graphs)):
            right = right & ((index >= 0) & (index < size)).all()
        dtype = next(self.model.network.parameters()).dtype
        structures = _padded(
            z=z.where(fits, 0),
            pos=pos.to(dtype),
            senders=edge_index[0].clamp(0, atoms),
            receivers=edge_index[1].clamp(0, atoms),
            shift=shift.to(dtype),
            node_graph=batch.clamp(0, graphs),
            cell=cell,
        )
        found = self._properties(structures)
        return {
            name: values[:-1].double().where(right, torch.nan) for name, values in found.items()
        }

    def _properties(self, batch: GraphBatch) -> dict[str, Tensor]:
        if not (self.forces or self.stress):
            # Models have plain forms for what learns from places.
            with torch.enable_grad():
                pos = batch.nodes["pos"].requires_grad_()
                values: Tensor = self.model(batch.replace(nodes={**batch.nodes, "pos": pos}))
            return {"energy": values.detach()}
        return _by_name(properties_of(self.model, batch, forces=self.forces, stress=self.stress))


def _by_name(found: Properties) -> dict[str, Tensor]:
    values = {"energy": found.energy, "forces": found.forces, "stress": found.stress}
    return {name: tensor for name, tensor in values.items() if tensor is not None}


def _padded(
    *,
    z: Tensor,
    pos: Tensor,
    senders: Tensor,
    receivers: Tensor,
    shift: Tensor,
    node_graph: Tensor,
    cell: Tensor,
) -> GraphBatch:
    """The batch, in the order of the edges given, with one padding atom, edge and graph."""
    atoms, graphs = z.shape[0], cell.shape[0]
    senders, receivers = _longer(senders, atoms), _longer(receivers, atoms)
    node_graph = _longer(node_graph, graphs)
    offsets = _offsets(receivers, atoms + 1)
    return GraphBatch(
        nodes={"z": _longer(z), "pos": _longer(pos)},
        edges={"shift": _longer(shift)},
        graphs={"cell": _longer(cell)},
        senders=senders,
        receivers=receivers,
        in_offsets=offsets,
        # Portable operators read only how many rows there are.
        out_offsets=offsets,
        out_order=senders,
        node_offsets=_offsets(node_graph, graphs + 1),
        node_graph=node_graph,
        node_mask=_prefix(z),
        edge_mask=_prefix(shift),
        graph_mask=_prefix(cell),
    )


def _longer(values: Tensor, last: float = 0) -> Tensor:
    return torch.cat([values, values.new_full((1, *values.shape[1:]), last)])


def _prefix(like: Tensor) -> Tensor:
    return _longer(torch.ones(like.shape[0], dtype=torch.bool), False)


def _offsets(index: Tensor, rows: int) -> Tensor:
    """How many of the `index` lie in each row, added up: int [rows + 1]."""
    counts = index.new_zeros(rows).index_add(0, index, torch.ones_like(index))
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def export_structures(
    run: Path, path: Path, *, forces: bool = True, stress: bool = False, int8: bool = False
) -> Exported:
    """Write the potential of a run as .pt2 or .onnx; see `write_program`.

    Raises:
        DataError: the run cannot be read, its model has no sound forces, the file cannot be
            written, or what was written would differ from the run.
    """
    check_file(path)
    if int8:
        raise DataError(
            "8-bit weights are not for potentials: their forces would be off by about a half; "
            "leave out --int8"
        )
    if len(members := member_folders(run)) > 1:
        raise DataError(
            f"{run} is an ensemble of {len(members)} models, and one model is exported: name one, "
            f"such as {members[0]}"
        )
    trained = load_structures(run)
    config = trained.config
    if config.vector:
        raise DataError(f"the model of {run} predicts a vector, and only energies are exported")
    if forces or stress:
        reason = "" if trained.unit in ("", "eV") else f"'{config.target}' is in {trained.unit}"
        if reason := reason or config.why_no_forces():
            raise DataError(
                f"the model of {run} has no sound forces: {reason}; or leave them out: --no-forces"
            )
    images = config.neighbours.kind != "complete"
    sizes = ([1], [5], [2, 9, 1], [40] * 8)
    # The first is an atom without any neighbour.
    batches = [_batch(trained, each, periodic=images and each != [1]) for each in sizes]
    call = partial(properties_of, trained.model, forces=forces, stress=stress)
    cases = [_case(trained, batch, _by_name(call(batch))) for batch in batches]
    last = batches[-1]
    return write_program(
        trace(Potential(trained, forces=forces, stress=stress), INPUTS),
        path,
        cases,
        metadata_of(trained, list(cases[0].expected)),
        timed=lambda: call(last),
        inputs=f"8 structures, {last.num_nodes:,} atoms, {last.num_edges:,} edges",
    )


def metadata_of(trained: TrainedStructures, outputs: list[str]) -> dict[str, str]:
    """What a user of the file has to know."""
    config = trained.config
    return {
        "weft_version": weft.__version__,
        "model": config.model,
        "target": config.target,
        "unit": trained.unit,
        "length_unit": "angstrom",
        "elements": " ".join(map(str, trained.elements)),
        **_neighbours(config),
        "inputs": " ".join(INPUTS),
        "outputs": " ".join(outputs),
    }


def _neighbours(config: StructuresConfig) -> dict[str, str]:
    """The rule of which atoms are neighbours, and where messages end, Å."""
    rule, fades = config.neighbours, config.envelope or config.model == "painn"
    found = {"neighbours": str(rule.kind)}
    if fades or rule.kind == "cutoff":
        found["cutoff"] = f"{rule.cutoff!r}"
    if rule.kind == "nearest":
        found["nearest"] = str(rule.nearest)
    return found


def _case(trained: TrainedStructures, batch: GraphBatch, found: Tensors) -> Case:
    """The structures of a batch, and what the run says of them."""
    expected = {name: values.double() for name, values in found.items()}
    largest = {name: float(values.abs().max()) for name, values in expected.items()}
    with torch.no_grad():
        raw = float(trained.model.network(batch).abs().max())
    # Not the energy itself: that of the isolated atoms, in it, is exact and large. What is rounded
    # are the values of the atoms, about 1 each, and their sum.
    atoms = int(batch.node_offsets.diff().max())
    largest["energy"] = float(trained.model.scale.std) * max(raw, atoms)
    least = {"energy": 1.0, "forces": 1.0, "stress": 0.1}
    scales = {name: max(least[name], largest[name]) for name in expected}
    return Case(inputs=_inputs(batch), expected=expected, scales=scales)


def _inputs(batch: GraphBatch) -> Tensors:
    """The batch as a program takes it, its edges in another order."""
    order = torch.randperm(batch.num_edges, generator=torch.Generator().manual_seed(0))
    shift = batch.edges.get("shift", torch.zeros(batch.num_edges, 3))
    return {
        "z": batch.nodes["z"].long(),
        "pos": batch.nodes["pos"].double(),
        "edge_index": torch.stack([batch.senders, batch.receivers]).long()[:, order].contiguous(),
        "shift": shift.double()[order],
        "batch": batch.node_graph.long(),
        "cell": batch.graphs["cell"].double(),
    }


def _batch(trained: TrainedStructures, sizes: list[int], *, periodic: bool) -> GraphBatch:
    table = with_neighbours(
        _structures(trained.elements, sizes, periodic=periodic),
        trained.config.neighbours.rule(),
        progress=False,
    )
    return assemble(table, range(len(sizes)))


def _structures(elements: tuple[int, ...], sizes: list[int], *, periodic: bool) -> GraphTable:
    """Atoms near the points of a cubic grid 2.2 Å wide, none closer than 1.3 Å, without edges."""
    rng = np.random.default_rng(0)
    places, cells = [], []
    for size in sizes:
        edge = int(np.ceil(size ** (1 / 3)))
        points = np.stack(np.unravel_index(np.arange(size), (edge,) * 3), axis=1)
        places.append(2.2 * points + rng.uniform(-0.25, 0.25, (size, 3)))
        cells.append(np.eye(3) * 2.2 * edge)
    columns: dict[str, Array] = {
        "z": rng.choice(elements, sum(sizes)).astype(np.uint8),
        "pos": np.concatenate(places).astype(np.float32),
        "cell": np.array(cells, dtype=np.float32),
        "pbc": np.full((len(sizes), 3), periodic),
    }
    schema: dict[str, Any] = {
        "z": Column(level="node", dtype="uint8"),
        "pos": Column(level="node", dtype="float32", shape=(3,), unit="Å"),
        "cell": Column(level="graph", dtype="float32", shape=(3, 3), unit="Å"),
        "pbc": Column(level="graph", dtype="bool", shape=(3,)),
    }
    return table_from_columns(schema, num_nodes=np.array(sizes), columns=columns)
