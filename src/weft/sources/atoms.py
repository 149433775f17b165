"""Molecules and crystals from any file that ASE reads: extxyz, CIF, ASE databases and more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, Column, Graph, GraphTable, write_table
from weft.sources.ase_files import Structure, files_of, read_structures
from weft.sources.progress import progress_bar

ATOMS_SCHEMA = {
    "z": Column(level="node", dtype="uint8", doc="atomic number"),
    "pos": Column(level="node", dtype="float32", shape=(3,), unit="Å", doc="position"),
    "cell": Column(
        level="graph", dtype="float32", shape=(3, 3), unit="Å", doc="cell vectors, one a row"
    ),
    "pbc": Column(level="graph", dtype="bool", shape=(3,), doc="periodic along each cell vector"),
}
"""The columns of every table of structures; targets come after them."""

Missing = Literal["error", "nan"]

_MAX_Z = 118
# Å. Further out, float32 positions would be wrong by a tenth of a bond.
_FAR = 1e6
# Structures that are read to learn a target's shape, at most, before the writing begins.
_AHEAD = 2048
# Whatever the file's format, ASE hands these over in its own units.
_ASE_UNITS = {
    "energy": "eV",
    "free_energy": "eV",
    "energies": "eV",
    "forces": "eV/Å",
    "stress": "eV/Å³",
    "dipole": "e Å",
    "charges": "e",
}


def atoms_table(
    path: Path,
    sources: Path | Sequence[Path],
    *,
    targets: Sequence[str] = (),
    missing: Missing = "error",
    progress: bool = True,
) -> GraphTable:
    """Write the structures of `sources` to the table in the folder `path`, streaming.

    Columns are those of ATOMS_SCHEMA, then the targets. There are no edges: a cutoff decides them.

    Args:
        path: the table's folder; it must not exist yet.
        sources: files that ASE reads, with one structure or many, or folders of CIF files (all
            their *.cif, sorted by name).
        targets: values to keep, such as `energy` and `forces`: looked for among a structure's
            calculated results, its arrays, its info, and an ASE database's key-value pairs and
            data. What has a row for each atom (ASE's arrays, `forces`, `charges` and the like)
            becomes a float32 node column, everything else a float64 graph column.
        missing: what to do about a structure without a target: `error`, or `nan` to store NaN.
        progress: show a progress bar.

    Raises:
        DataError: a file cannot be read, a structure has an unknown element, a position that is
            not finite, or no such target, or no structure at all has it; the message names file
            and structure, counted from 0 as ASE does.
    """
    if missing not in get_args(Missing):
        raise ValueError(f"missing is {missing!r}; choose from {list(get_args(Missing))}")
    names = [*ATOMS_SCHEMA, *targets]
    for name in {name for name in names if names.count(name) > 1}:
        raise ValueError(f"the target {name!r} is named twice, or is a column of every table")
    files = files_of([sources] if isinstance(sources, Path) else sources)
    metadata = {"source": "structures read with ASE", "files": [file.name for file in files]}
    total = len(files) if len(files) > 1 else None
    with progress_bar("files" if total else "structures", total, show=progress, count=True) as move:
        structures = read_structures(files, move)
        ahead = _read_ahead(structures, targets)
        schema: dict[str, Column] = dict(ATOMS_SCHEMA)
        for name in targets:
            schema[name] = _target_column(name, ahead, missing=missing)
        graphs = _graphs(chain(ahead, structures), schema, targets)
        return write_table(path, graphs, schema, metadata=metadata)


def check_structure(where: str, z: Array, pos: Array, cell: Array, pbc: Array) -> None:
    """Raise DataError if this is not a structure: z [n], pos [n, 3], cell [3, 3], pbc [3]."""
    unknown = (z < 1) | (z > _MAX_Z)
    if unknown.any():
        atom = int(np.argmax(unknown))
        raise DataError(f"{where}: atom {atom} has atomic number {z[atom]}, which is no element")
    # Written so that NaN is no place either.
    near = (np.abs(pos) < _FAR).all(axis=1)
    if not near.all():
        atom = int(np.argmin(near))
        raise DataError(
            f"{where}: atom {atom} is at {pos[atom].tolist()}, which is not finite or beyond "
            f"{_FAR:g} Å"
        )
    if not (np.abs(cell) < _FAR).all():
        raise DataError(
            f"{where}: the cell is {cell.tolist()}, which is not finite or beyond {_FAR:g} Å"
        )
    if np.linalg.matrix_rank(cell[pbc]) < pbc.sum():
        raise DataError(
            f"{where}: periodic along {int(pbc.sum())} vectors, but the cell {cell.tolist()} "
            "does not span as many dimensions"
        )


def _read_ahead(structures: Iterator[Structure], names: Sequence[str]) -> list[Structure]:
    """The first structures, until every one of `names` was met."""
    ahead: list[Structure] = []
    unmet = set(names)
    for structure in islice(structures, _AHEAD):
        ahead.append(structure)
        unmet -= structure.values.keys()
        if not unmet:
            break
    return ahead


def _target_column(name: str, ahead: Sequence[Structure], *, missing: Missing) -> Column:
    found = next((s for s in ahead if name in s.values), None)
    per_atom = found is not None and name in found.per_atom
    shape = () if found is None else _numbers(found, name).shape[1 if per_atom else 0 :]
    return Column(
        level="node" if per_atom else "graph",
        dtype="float32" if per_atom else "float64",
        shape=shape,
        missing=missing == "nan",
        unit=_ASE_UNITS.get(name, ""),
        doc="as in the files",
    )


def _numbers(structure: Structure, name: str) -> Array:
    try:
        return np.asarray(structure.values[name], dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(
            f"{structure.where}: '{name}' is {structure.values[name]!r}, not a number"
        ) from None


def _graphs(
    structures: Iterable[Structure], schema: Mapping[str, Column], targets: Sequence[str]
) -> Iterator[Graph]:
    met: set[str] = set()
    for structure in structures:
        met |= structure.values.keys()
        yield _graph(structure, schema)
    for name in targets:
        if name not in met:
            raise DataError(f"no structure has a '{name}'; they have {', '.join(sorted(met))}")


def _graph(structure: Structure, schema: Mapping[str, Column]) -> Graph:
    where, atoms, values, _ = structure
    levels: dict[str, dict[str, Array]] = {"node": {}, "graph": {}}
    for name, column in islice(schema.items(), len(ATOMS_SCHEMA), None):
        shape = (len(atoms), *column.shape) if column.level == "node" else column.shape
        if name in values:
            part = _numbers(structure, name)
            if part.shape != shape:
                raise DataError(
                    f"{where}: '{name}' has shape {list(part.shape)}, {list(shape)} expected"
                )
            if not column.missing and not np.isfinite(part).all():
                raise DataError(f"{where}: '{name}' is not finite")
        elif column.missing:
            part = np.full(shape, np.nan)
        else:
            raise DataError(
                f"{where}: no '{name}'; it has {', '.join(sorted(values))}. Choose one of these, "
                "or store NaN for what is missing"
            )
        levels[column.level][name] = part.astype(column.dtype)
    z, pos = atoms.numbers, atoms.positions
    cell, pbc = atoms.cell.array, atoms.pbc
    check_structure(where, z, pos, cell, pbc)
    return Graph(
        num_nodes=len(atoms),
        nodes={"z": z.astype(np.uint8), "pos": pos.astype(np.float32), **levels["node"]},
        graph={"cell": cell.astype(np.float32), "pbc": pbc.copy(), **levels["graph"]},
    )
