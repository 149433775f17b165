"""Neighbour lists with a skin (Verlet 1967), kept while atoms move: for simulations."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.errors import DataError
from weft.graphs import Array, Column, GraphBatch, assemble, table_from_columns
from weft.graphs.batch import trusted
from weft.graphs.table import offsets_of
from weft.runtime import compiled
from weft.sources.config import Cutoff
from weft.sources.neighbours import neighbour_pairs

_PLACES = {
    "pos": Column(level="node", dtype="float64", shape=(3,), unit="Å"),
    "cell": Column(level="graph", dtype="float64", shape=(3, 3), unit="Å"),
    "pbc": Column(level="graph", dtype="bool", shape=(3,)),
}
_EDGES = {
    "z": Column(level="node", dtype="uint8"),
    "image": Column(level="edge", dtype="int32", shape=(3,)),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Fixed:
    """What does not change while the atoms of some structures move.

    Attributes:
        z: int [N], atomic numbers.
        num_atoms: int [S], atoms of each structure.
        pbc: bool [S, 3], the cell vectors along which it repeats.
    """

    z: Array
    num_atoms: Array
    pbc: Array

    def same(self, other: Fixed) -> bool:
        """Whether both are of the same structures."""
        return (
            np.array_equal(self.z, other.z)
            and np.array_equal(self.num_atoms, other.num_atoms)
            and np.array_equal(self.pbc, other.pbc)
        )


class VerletList:
    """The neighbours of atoms that move, as a batch of graphs.

    All pairs within cutoff + skin are kept; of these a batch has the ones within the cutoff. The
    list is made again only where an atom could have come within the cutoff that is not in it: when
    one has moved by half of the skin. A cell that changes counts as a strain of the whole structure
    and as what the atoms move beside it.

    Args:
        fixed: the structures.
        cutoff: in Å.
        skin: in Å; 0 makes a new list whenever anything moves.
        dtype: of the places in a batch.
        device: of the batches.

    Attributes:
        builds: how often the list has been made.
        seconds: spent on it and on taking batches out of it.
    """

    def __init__(
        self,
        fixed: Fixed,
        *,
        cutoff: float,
        skin: float = 0.5,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        if not 0 <= skin < np.inf:
            raise ValueError(f"skin is {skin} Å; it must be finite and at least 0")
        self.fixed, self.cutoff, self.skin = fixed, cutoff, skin
        self.builds, self.seconds = 0, 0.0
        self._dtype, self._device = dtype, device
        self._graph = np.repeat(np.arange(len(fixed.num_atoms)), fixed.num_atoms)
        self._starts = offsets_of(fixed.num_atoms)[:-1]
        self._whole: GraphBatch | None = None

    @torch.inference_mode(False)
    def batch(self, pos: Array, cell: Array) -> GraphBatch:
        """The structures with atoms at pos [N, 3] in cells [S, 3, 3], both in Å.

        Node columns are `z` and `pos`, moved into the cell or to the origin, the graph column is
        `cell`, and the edge column `shift` is there where anything is periodic.

        Raises:
            DataError: a position is not finite, or two atoms are in one place.
        """
        began = time.perf_counter()
        pos = np.asarray(pos, dtype=np.float64)
        # Vectors along which nothing repeats mean nothing.
        cell = np.where(self.fixed.pbc[:, :, None], cell, 0.0)
        if self._whole is None or not self._holds(pos, cell):
            self._build(pos, cell)
        elif not np.array_equal(cell, self._cell):
            self._set_cell(cell)
        batch = self._near(pos - self._origin)
        self.seconds += time.perf_counter() - began
        return batch

    def _holds(self, pos: Array, cell: Array) -> bool:
        """Whether no pair that is missing in the list can be within the cutoff now.

        With h = h₀ A and x = (x₀ + u) A a pair that was r₀ apart is now at least σ (r₀ - 2 max|u|)
        apart, where σ is the smallest singular value of A.
        """
        wrapped = pos - self._images_at(cell) - self._centre[self._graph]
        squeeze: Array = np.ones(len(cell))
        if not np.array_equal(cell, self._built_cell):
            strain = np.linalg.solve(*map(_completed, (self._built_cell, cell)))
            squeeze = np.linalg.svd(strain, compute_uv=False)[:, -1]
            back = np.linalg.inv(strain)[self._graph]
            wrapped = np.einsum("ni,nij->nj", wrapped, back)
        moved = np.square(wrapped - self._built_pos).sum(axis=1)
        reach = 2 * np.sqrt(np.maximum.reduceat(moved, self._starts))
        # Written so that a place that is not a number makes a new list, which names it.
        return bool((squeeze * (self.cutoff + self.skin - reach) >= self.cutoff).all())

    def _build(self, pos: Array, cell: Array) -> None:
        # Whatever fails below must not leave a list that belongs to other places.
        fixed, self._whole = self.fixed, None
        finite = np.asarray(np.isfinite(pos).all(axis=1))
        if not finite.all():
            atom = int(np.argmin(finite))
            raise DataError(f"atom {atom} is at {pos[atom].tolist()}, which is not finite")
        whole = _completed(cell)
        fraction = np.linalg.solve(whole.transpose(0, 2, 1)[self._graph], pos[:, :, None])[:, :, 0]
        self._wraps = np.where(fixed.pbc[self._graph], np.floor(fraction), 0.0)
        # Near the origin single precision is finest.
        inside = pos - self._images_at(cell)
        totals = np.add.reduceat(inside, self._starts)
        periodic = fixed.pbc.any(axis=1, keepdims=True)
        self._centre = np.where(periodic, 0.0, totals / fixed.num_atoms[:, None])
        self._built_cell = cell
        self._origin = pos - inside + self._centre[self._graph]
        self._built_pos = pos - self._origin
        columns = {"pos": self._built_pos, "cell": cell, "pbc": fixed.pbc}
        places = table_from_columns(_PLACES, num_nodes=fixed.num_atoms, columns=columns)
        pairs = neighbour_pairs(places, Cutoff(radius=self.cutoff + self.skin))
        graph = self._graph[pairs.receiver]
        table = table_from_columns(
            _EDGES,
            num_nodes=fixed.num_atoms,
            num_edges=np.bincount(graph, minlength=len(fixed.num_atoms)),
            columns={
                "z": fixed.z,
                "image": pairs.image,
                "senders": pairs.sender - self._starts[graph],
                "receivers": pairs.receiver - self._starts[graph],
            },
            metadata={"symmetric": True},
        )
        self._whole = assemble(table, np.arange(len(table)))
        self._edge_graph = graph
        self._set_cell(cell)
        self.builds += 1

    def _images_at(self, cell: Array) -> Array:
        """What is taken off the places to bring the atoms into the cell, [N, 3]."""
        moved: Array = np.einsum("ni,nij->nj", self._wraps, cell[self._graph])
        return moved

    def _set_cell(self, cell: Array) -> None:
        assert self._whole is not None
        self._cell = cell
        self._origin = self._images_at(cell) + self._centre[self._graph]
        image = self._whole.edges["image"].numpy().astype(np.float64)
        self._shift = np.einsum("ei,eij->ej", image, cell[self._edge_graph])

    def _near(self, pos: Array) -> GraphBatch:
        """The batch with the edges of the list that are within the cutoff."""
        whole = self._whole
        assert whole is not None
        index: Any = whole.senders.numpy().dtype
        edges, nodes = whole.num_edges, whole.num_nodes
        senders, receivers, out_order, of_edge = (np.empty(edges, index) for _ in range(4))
        forward, backward = (np.empty(edges // 2, index) for _ in range(2))
        in_offsets, out_offsets = (np.zeros(nodes + 1, index) for _ in range(2))
        shift = np.empty((edges, 3), np.float32 if self._dtype == torch.float32 else np.float64)
        count = _keep_near(
            pos,
            self._shift,
            whole.senders.numpy(),
            whole.receivers.numpy(),
            whole.out_order.numpy(),
            whole.pairs["forward"].numpy(),
            whole.pairs["backward"].numpy(),
            self.cutoff,
            *(senders, receivers, out_order, of_edge, forward, backward),
            *(in_offsets, out_offsets, shift),
        )

        def taken(values: Array, size: int = count) -> Tensor:
            return torch.from_numpy(values[:size])

        batch = whole.replace(
            nodes={**whole.nodes, "pos": torch.from_numpy(pos).to(self._dtype)},
            edges={"shift": taken(shift)} if self.fixed.pbc.any() else {},
            graphs={"cell": torch.from_numpy(self._cell).to(self._dtype)},
            senders=taken(senders),
            receivers=taken(receivers),
            in_offsets=torch.from_numpy(in_offsets),
            out_offsets=torch.from_numpy(out_offsets),
            out_order=taken(out_order),
            edge_mask=whole.edge_mask[:count],
            pairs={
                "forward": taken(forward, count // 2),
                "backward": taken(backward, count // 2),
                "of_edge": taken(of_edge),
            },
        )
        batch = trusted(batch)
        return batch if self._device is None else batch.to(self._device)


def _completed(cell: Array) -> Array:
    """Cells [S, 3, 3] whose vectors of length 0 are unit vectors upright on the others.

    Raises:
        DataError: the others do not span as many dimensions as they are.
    """
    whole: Array = cell.copy()
    missing = (cell == 0).all(axis=2)
    for each, rows in zip(whole, missing, strict=True):
        if rows.any():
            each[rows] = np.linalg.svd(each)[2][3 - int(rows.sum()) :]
    # Of vectors of length 1, so that the unit does not matter.
    flat = np.abs(np.linalg.det(whole / np.linalg.norm(whole, axis=2, keepdims=True)))
    if not (flat > 1e-6).all():
        number = int(np.argmin(flat > 1e-6))
        raise DataError(
            f"structure {number} repeats along {int((~missing[number]).sum())} cell vectors, but "
            f"its cell {cell[number].tolist()} Å has no volume there; correct cell or pbc"
        )
    return whole


@compiled()
def _keep_near(
    pos: Any,
    shift: Any,
    senders: Any,
    receivers: Any,
    out_order: Any,
    forward: Any,
    backward: Any,
    radius: float,
    new_senders: Any,
    new_receivers: Any,
    new_out_order: Any,
    new_of_edge: Any,
    new_forward: Any,
    new_backward: Any,
    in_offsets: Any,
    out_offsets: Any,
    new_shift: Any,
) -> int:
    """Fill what is new with the edges shorter than `radius`, in their order; gives their number.

    Both edges of a pair stay or go: the length of one is that of the other.
    """
    place = np.full(senders.shape[0], -1, dtype=np.int64)
    for pair in range(forward.shape[0]):
        edge = forward[pair]
        a, b = senders[edge], receivers[edge]
        x = pos[a, 0] - pos[b, 0] + shift[edge, 0]
        y = pos[a, 1] - pos[b, 1] + shift[edge, 1]
        z = pos[a, 2] - pos[b, 2] + shift[edge, 2]
        if x * x + y * y + z * z < radius * radius:
            place[edge] = 0
            place[backward[pair]] = 0
    count = 0
    for edge in range(senders.shape[0]):
        if place[edge] == 0:
            place[edge] = count
            new_senders[count] = senders[edge]
            new_receivers[count] = receivers[edge]
            for axis in range(3):
                new_shift[count, axis] = shift[edge, axis]
            in_offsets[receivers[edge] + 1] += 1
            out_offsets[senders[edge] + 1] += 1
            count += 1
    for node in range(in_offsets.shape[0] - 1):
        in_offsets[node + 1] += in_offsets[node]
        out_offsets[node + 1] += out_offsets[node]
    kept = 0
    for edge in out_order:
        if place[edge] >= 0:
            new_out_order[kept] = place[edge]
            kept += 1
    kept = 0
    for pair in range(forward.shape[0]):
        if place[forward[pair]] >= 0:
            new_forward[kept] = place[forward[pair]]
            new_backward[kept] = place[backward[pair]]
            new_of_edge[place[forward[pair]]] = kept
            new_of_edge[place[backward[pair]]] = kept
            kept += 1
    return count
