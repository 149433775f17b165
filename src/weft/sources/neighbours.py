"""Neighbour graphs of molecules and crystals, computed once and stored in the table."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, Column, GraphTable, open_table, table_from_columns, write_table
from weft.graphs.table import offsets_of
from weft.sources.config import Cutoff, FullyConnected, Nearest, Neighbours
from weft.sources.neighbour_search import (
    Pairs,
    count_within,
    nearest_images,
    nearest_within,
    pairs_of_images,
    pairs_within,
)
from weft.sources.progress_bar import progress_bar
from weft.sources.table_cache import full_disk_named

# Å. Atoms nearer than this are in one place; no bond comes close to it.
_ONE_PLACE = 1e-3
# Å. Distances equal in these steps are ties; float32 positions are no more exact.
_TIE = 1e-5
_CHUNK_EDGES = 2**20
# Building a graph needs some 100 bytes per edge, a table in memory 12 or 24.
_MOST_EDGES = 2**25
_MOST_EDGES_IN_MEMORY = 2**27


def with_neighbours(
    table: GraphTable, neighbours: Neighbours, *, path: Path | None = None, progress: bool = True
) -> GraphTable:
    """The graphs of `table` with the edges of their neighbour graphs.

    All columns stay. Where a structure is periodic there is an edge column `shift` (float32 [3],
    Å): the sender's image is at pos[sender] + shift, so the edge vector is pos[sender] + shift -
    pos[receiver]. `metadata["neighbours"]` holds the settings; `metadata["symmetric"]` says that
    every edge has its reverse, with exactly the negative shift. Of several edges between the same
    two atoms the m-th one way is then the reverse of the m-th the other way, and an atom's edges
    with its own images come in pairs, an edge and its reverse.

    Args:
        table: structures with `pos` [n, 3] in Å and, if they are periodic, `cell` [3, 3] in Å
            and `pbc` [3]; without edges.
        neighbours: which pairs are edges.
        path: a folder to stream the table to, in bounded memory; if it is there already, made
            from the same table with the same settings, it is only opened. In memory without it.
        progress: show a progress bar.

    Raises:
        DataError: a structure has two atoms in one place, a position that is not finite or a
            cell without volume (the message names graph and atoms), there would be too many
            edges, vesin is needed and not installed, or `path` holds another table.
    """
    structures = _Structures(table)
    schema = dict(table.schema)
    if structures.periodic:
        doc = "from the sender to its image"
        schema["shift"] = Column(level="edge", dtype="float32", shape=(3,), unit="Å", doc=doc)
    settings = {"kind": type(neighbours).__name__, **asdict(neighbours)}
    metadata = {
        **table.metadata,
        "neighbours": settings,
        "symmetric": not isinstance(neighbours, Nearest),
    }
    if path is None:
        parts = _chunks(structures, neighbours, schema, progress=progress)
        return _joined(table, schema, metadata, parts)
    metadata["neighbours_of"] = _fingerprint(table)
    if not path.exists():
        chunks = _chunks(structures, neighbours, schema, progress=progress)
        try:
            with full_disk_named(path.parent):
                return write_table(path, chunks, schema, metadata=metadata)
        except (DataError, OSError):
            if not path.exists():
                raise
            # Another process finished it first; whether it is the same is checked below.
    found = open_table(path)
    for key in ("neighbours", "neighbours_of"):
        if found.metadata.get(key) != metadata[key]:
            what = "from another table" if key == "neighbours_of" else f"not with {settings}"
            raise DataError(f"{path} was made {what}; remove it or choose another path")
    return found


def neighbour_pairs(table: GraphTable, neighbours: Neighbours) -> Pairs:
    """The edges of the structures of `table`, as `with_neighbours` finds them, with their images.

    Atoms are numbered through the table; edges are sorted so that reverse ones match up.
    """
    return _edges(table, _Structures(table), neighbours, 0)


class _Structures:
    """A table's structures: where they are periodic and how large their cells are.

    Attributes:
        table: the table.
        periodic: whether any structure is.
        pbc: bool [g, 3].
        cell: float64 [g, 3, 3], Å.
        measure: float64 [g], length, area or volume of what repeats; 1 where nothing does.
    """

    def __init__(self, table: GraphTable) -> None:
        self.table = table
        _needs_column(table, "pos", "node", (3,))
        if table.total_edges or "shift" in table.schema:
            raise DataError(
                f"the table has {table.total_edges} edges"
                f"{' and a column shift' if 'shift' in table.schema else ''} already; neighbours "
                "are for structures without edges: build the table without them"
            )
        count = len(table)
        self.pbc: Array = np.zeros((count, 3), dtype=bool)
        self.cell: Array = np.zeros((count, 3, 3))
        if "pbc" in table.schema:
            _needs_column(table, "pbc", "graph", (3,))
            self.pbc = np.asarray(table.column("pbc")).astype(bool)
        elif "cell" in table.schema:
            raise DataError("the table has a column 'cell' but no 'pbc' that says where it repeats")
        self.periodic = bool(self.pbc.any())
        if self.periodic:
            _needs_column(table, "cell", "graph", (3, 3))
            self.cell = np.asarray(table.column("cell")).astype(np.float64)
        self.measure = self._measures()

    def _measures(self) -> Array:
        vectors = np.where(self.pbc[:, :, None], self.cell, 0.0)
        # The open directions count as orthogonal unit vectors.
        lengths = np.where(self.pbc, np.sqrt((vectors**2).sum(axis=2)), 1.0)
        with np.errstate(all="ignore"):  # zero, infinity and NaN are refused below
            unit = vectors / lengths[:, :, None]
            gram = unit @ unit.transpose(0, 2, 1) + np.eye(3) * ~self.pbc[:, :, None]
            part = np.sqrt(np.linalg.det(np.nan_to_num(gram)).clip(min=0))
        spanned = (part > 1e-6) & np.isfinite(lengths).all(axis=1) & (lengths > 0).all(axis=1)
        if not spanned.all():
            graph = int(np.argmin(spanned))
            raise DataError(
                f"graph {graph}: it repeats along {int(self.pbc[graph].sum())} cell vectors, but "
                f"its cell {self.cell[graph].tolist()} Å has no volume there; correct cell or pbc"
            )
        measures: Array = part * lengths.prod(axis=1)
        return measures

    def expected_edges(self, neighbours: Neighbours) -> Array:
        """float64 [g], about how many edges each graph will have, or more."""
        nodes = self.table.num_nodes.astype(np.float64)
        periodic = self.pbc.any(axis=1)
        if isinstance(neighbours, Nearest):
            within = np.where(periodic, neighbours.k, np.minimum(neighbours.k, nodes - 1))
            return nodes * within
        radius = neighbours.radius if isinstance(neighbours, Cutoff) else 0.0
        ball = np.array([1, 2 * radius, math.pi * radius**2, 4 / 3 * math.pi * radius**3])
        dense = nodes**2 * ball[self.pbc.sum(axis=1)] / self.measure
        return np.where(periodic, dense, nodes * (nodes - 1))


def _needs_column(table: GraphTable, name: str, level: str, shape: tuple[int, ...]) -> None:
    table.column(name)
    column = table.schema[name]
    if column.level != level or column.shape != shape:
        raise DataError(
            f"column '{name}' is a {column.level} column with rows of shape {list(column.shape)}; "
            f"neighbours need a {level} column with rows of shape {list(shape)}"
        )


def _chunks(
    structures: _Structures,
    neighbours: Neighbours,
    schema: dict[str, Column],
    *,
    progress: bool,
) -> Iterator[GraphTable]:
    """The table's graphs with their edges, some million edges at a time."""
    table = structures.table
    weight = structures.expected_edges(neighbours) + table.num_nodes + 1
    chunk = np.cumsum(np.minimum(weight, _MOST_EDGES)) // _CHUNK_EDGES
    bounds = [0, *(np.flatnonzero(np.diff(chunk)) + 1).tolist(), len(table)]
    with progress_bar("neighbours", len(table), show=progress, count=True) as move:
        for first, stop in pairwise(bounds):
            part = table.select(np.arange(first, stop))
            edges = _edges(part, structures, neighbours, first)
            graph = np.repeat(np.arange(len(part)), part.num_nodes)[edges.receiver]
            shift = {}
            if structures.periodic:
                # The reverse edge's image is the exact negative, so its shift is too.
                cell = structures.cell[first:stop][graph]
                shift["shift"] = np.einsum("ei,eij->ej", edges.image, cell).astype(np.float32)
            yield table_from_columns(
                schema,
                num_nodes=part.num_nodes,
                num_edges=np.bincount(graph, minlength=len(part)),
                columns={
                    **{name: part.columns[name] for name in table.schema},
                    **shift,
                    "senders": edges.sender - part.node_offsets[graph],
                    "receivers": edges.receiver - part.node_offsets[graph],
                },
                ragged_rows={name: np.diff(rows) for name, rows in part.ragged_offsets.items()},
                first=first,
            )
            move(stop)


def _edges(part: GraphTable, structures: _Structures, neighbours: Neighbours, first: int) -> Pairs:
    """The edges of a chunk, whose first graph is `first`; its atoms are numbered through."""
    pos = np.asarray(part.column("pos"))
    finite = np.isfinite(pos).all(axis=1)
    if not finite.all():
        atom = int(np.argmin(finite))
        graph = int(np.searchsorted(part.node_offsets, atom, side="right")) - 1
        raise DataError(
            f"graph {first + graph}: atom {atom - part.node_offsets[graph]} is at "
            f"{pos[atom].tolist()}, which is not finite; correct or remove it"
        )
    periodic = structures.pbc[first : first + len(part)].any(axis=1)
    sender, receiver = _open_edges(part, pos, np.flatnonzero(~periodic), neighbours, first)
    image = np.zeros((len(sender), 3), dtype=np.int32)
    found = [(0, Pairs(receiver=receiver, sender=sender, image=image))]
    for graph in np.flatnonzero(periodic & (part.num_nodes > 0)).tolist():
        base, stop = part.node_offsets[graph : graph + 2].tolist()
        pairs = _periodic_pairs(pos[base:stop], structures, first + graph, neighbours)
        found.append((base, pairs))
    return Pairs.joined(found).in_order() if len(found) > 1 else found[0][1]


def _open_edges(
    part: GraphTable, pos: Array, graphs: Array, neighbours: Neighbours, first: int
) -> tuple[Array, Array]:
    """Senders and receivers, numbered through the chunk, of its molecules in open space."""
    starts, stops = part.node_offsets[graphs], part.node_offsets[graphs + 1]
    radius = neighbours.radius if isinstance(neighbours, Cutoff) else math.inf
    counts, (graph, a, b) = count_within(pos, starts, stops, radius, _ONE_PLACE)
    if graph >= 0:
        raise _one_place(first + int(graphs[graph]), a, b)
    sizes = stops - starts
    if isinstance(neighbours, Nearest):
        counts = sizes * np.minimum(neighbours.k, sizes - 1)
    if (counts > _MOST_EDGES).any():
        i = int(np.argmax(counts > _MOST_EDGES))
        raise _too_many(first + int(graphs[i]), int(sizes[i]), float(counts[i]), neighbours)
    senders, receivers = (np.empty(int(counts.sum()), dtype=np.int64) for _ in range(2))
    if isinstance(neighbours, Nearest):
        nearest_within(pos, starts, stops, neighbours.k, _TIE, senders, receivers)
    else:
        pairs_within(pos, starts, stops, radius, senders, receivers)
    return senders, receivers


def _periodic_pairs(
    pos: Array, structures: _Structures, graph: int, neighbours: Neighbours
) -> Pairs:
    """The edges of one periodic structure, its atoms numbered from 0."""
    if isinstance(neighbours, FullyConnected):
        raise DataError(
            f"graph {graph} is periodic: each of its atoms has infinitely many neighbours; take "
            "Cutoff(radius=...) or Nearest(k=...)"
        )
    pbc, cell = structures.pbc[graph], structures.cell[graph]
    measure = float(structures.measure[graph])

    def allow(expected: float) -> None:
        if expected > _MOST_EDGES:
            raise _too_many(graph, len(pos), expected, neighbours)

    try:
        if isinstance(neighbours, Nearest):
            allow(float(len(pos) * neighbours.k))
            pairs = nearest_images(pos, cell, pbc, measure, neighbours.k, tie=_TIE, allow=allow)
        else:
            pairs = pairs_of_images(pos, cell, pbc, measure, neighbours.radius, allow=allow)
    except RuntimeError as error:  # vesin's
        raise DataError(f"graph {graph}: vesin finds no neighbours ({error})") from None
    if len(pairs.distance) and pairs.distance.min() < _ONE_PLACE:
        pair = int(np.argmin(pairs.distance))
        raise _one_place(graph, int(pairs.receiver[pair]), int(pairs.sender[pair]))
    return pairs


def _one_place(graph: int, a: int, b: int) -> DataError:
    which = f"atom {a} and its own periodic image" if a == b else f"atoms {a} and {b}"
    return DataError(
        f"graph {graph}: {which} are in one place (less than {_ONE_PLACE:g} Å apart); correct or "
        "remove it"
    )


def _too_many(graph: int, atoms: int, expected: float, neighbours: Neighbours) -> DataError:
    return DataError(
        f"graph {graph}: {neighbours} would give its {atoms} atoms about {expected:,.0f} edges, a "
        f"graph has at most {_MOST_EDGES:,}; choose fewer neighbours"
    )


def _joined(
    table: GraphTable,
    schema: dict[str, Column],
    metadata: dict[str, Any],
    parts: Iterator[GraphTable],
) -> GraphTable:
    """The table in memory; columns that are not about edges are the given table's own."""
    edges: dict[str, list[Array]] = {}
    num_edges: list[Array] = []
    total = 0
    for part in parts:
        total += part.total_edges
        if total > _MOST_EDGES_IN_MEMORY:
            raise DataError(
                f"the first {len(num_edges) + 1} chunks have {total:,} edges, a table in memory at "
                f"most {_MOST_EDGES_IN_MEMORY:,}; pass a path to stream it to"
            )
        num_edges.append(part.num_edges)
        for name, values in part.columns.items():
            if name not in table.schema:
                edges.setdefault(name, []).append(values)
    # One column at a time, each list gone before the next is joined.
    columns = {name: np.concatenate(edges.pop(name)) for name in list(edges)}
    return GraphTable(
        schema=schema,
        columns={**{name: table.columns[name] for name in table.schema}, **columns},
        node_offsets=table.node_offsets,
        edge_offsets=offsets_of(np.concatenate(num_edges)),
        ragged_offsets=table.ragged_offsets,
        metadata=metadata,
    ).known_right()


def _fingerprint(table: GraphTable) -> str:
    """SHA-256 that identifies a table's contents: of a mapped table, that of its manifest."""
    if table.path is not None:
        return hashlib.sha256((table.path / "table.json").read_bytes()).hexdigest()
    digest = hashlib.sha256(json.dumps(sorted(table.schema)).encode())
    arrays = {**table.columns, "node_offsets": table.node_offsets, **table.ragged_offsets}
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {values.dtype} {values.shape}".encode())
        digest.update(values.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
