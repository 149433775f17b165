"""Crystals as JSON lines: one crystal in each line, plain or gzip'd.

A crystal is an object `{"dataset": text, "id": text, "lattice": [[ax, ay, az], [bx, by, bz],
[cx, cy, cz]], "z": [n atomic numbers], "frac": [n fractional positions], "targets": {name: value}}`
with the lattice in Å. A target that is absent or null was not measured.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.files import LONGEST_LINE
from weft.graphs import Array, Column, Graph, GraphTable, write_table
from weft.sources.atoms import ATOMS_SCHEMA, check_structure
from weft.sources.json_samples import json_samples

_FIELDS = ("dataset", "id", "lattice", "z", "frac", "targets")
_HUGE = sys.float_info.max
_PBC = np.ones(3, dtype=bool)


def crystal_schema(
    targets: Sequence[str], units: Mapping[str, str] | None = None
) -> dict[str, Column]:
    """The columns of crystals: ATOMS_SCHEMA, the targets, `id` and `dataset` as UTF-8 text."""
    clash = sorted({name for name in targets if name in ATOMS_SCHEMA or name in ("id", "dataset")})
    if clash or len(set(targets)) < len(targets):
        raise ValueError(
            f"targets {list(targets)} must be unique and none of {[*ATOMS_SCHEMA, 'id', 'dataset']}"
        )
    return {
        **ATOMS_SCHEMA,
        **{
            name: Column(
                level="graph",
                dtype="float64",
                missing=True,
                unit=(units or {}).get(name, ""),
                doc="as in the file",
            )
            for name in targets
        },
        "id": Column(level="ragged", dtype="uint8", doc="the crystal's name, UTF-8"),
        "dataset": Column(level="ragged", dtype="uint8", doc="the set it comes from, UTF-8"),
    }


def crystals_table(
    path: Path,
    file: Path,
    *,
    targets: Sequence[str] = (),
    units: Mapping[str, str] | None = None,
    progress: bool = True,
) -> GraphTable:
    """Write the crystals of a JSON-lines file to the table in the folder `path`, streaming.

    Columns are those of ATOMS_SCHEMA (positions inside or outside the cell as the file has them),
    `id` and `dataset` as ragged UTF-8 text, and one float64 graph column for each of `targets`,
    NaN where a crystal has no such target. There are no edges: a cutoff decides them.

    Args:
        path: the table's folder; it must not exist yet.
        file: the crystals, plain or gzip'd.
        targets: names among the file's targets.
        units: of the targets, where they are known.
        progress: show a progress bar.

    Raises:
        DataError: a malformed line, or a target that no crystal has; the message names file, line
            and field.
    """
    schema = crystal_schema(targets, units)
    metadata = {"source": "crystals as JSON lines", "files": [file.name]}
    graphs = _graphs(file, targets, progress=progress)
    return write_table(path, graphs, schema, metadata=metadata)


def _graphs(file: Path, targets: Sequence[str], *, progress: bool) -> Iterator[Graph]:
    met: set[str] = set()
    samples = json_samples(
        [file], what="crystals", finite=True, lists=False, progress=progress, longest=LONGEST_LINE
    )
    for sample in samples:
        where, crystal = sample.where, sample.fields(_FIELDS)
        for field in ("id", "dataset"):
            if not isinstance(crystal[field], str):
                raise DataError(f"{where}, field '{field}': {crystal[field]!r} is not text")
        if not isinstance(crystal["targets"], dict):
            raise DataError(f"{where}, field 'targets': not an object of names and numbers")
        met.update(name for name, value in crystal["targets"].items() if value is not None)
        z = _array(where, crystal, "z", "i", None)
        yield crystal_graph(
            where,
            z=z,
            frac=_array(where, crystal, "frac", "if", (len(z), 3)),
            lattice=_array(where, crystal, "lattice", "if", (3, 3)),
            values={name: _target(where, crystal["targets"].get(name), name) for name in targets},
            name=crystal["id"],
            dataset=crystal["dataset"],
        )
    for name in targets:
        if name not in met:
            raise DataError(
                f"{file}: no crystal has a target '{name}'; there are "
                f"{', '.join(sorted(met)) or 'none'}"
            )


def crystal_graph(
    where: str,
    *,
    z: Array,
    frac: Array,
    lattice: Array,
    values: Mapping[str, Array],
    name: str,
    dataset: str,
) -> Graph:
    """One crystal, checked.

    Args:
        where: its place in the files, for messages.
        z: int [n], atomic numbers.
        frac: [n, 3], positions in lattice vectors.
        lattice: [3, 3], Å, a vector in each row.
        values: the targets.
        name: the column `id`.
        dataset: the set that it comes from.

    Raises:
        DataError: it is not a structure, or a text cannot be written as UTF-8.
    """
    text = {}
    for column, value in (("id", name), ("dataset", dataset)):
        try:
            text[column] = np.frombuffer(value.encode(), dtype=np.uint8)
        except UnicodeEncodeError as error:  # JSON can escape half a character
            raise DataError(f"{where}, field '{column}': {error}") from None
    with np.errstate(all="ignore"):  # infinite results are refused next
        pos = frac @ lattice
    check_structure(where, z, pos, lattice, _PBC)
    return Graph(
        num_nodes=len(z),
        nodes={"z": z.astype(np.uint8), "pos": pos.astype(np.float32)},
        graph={"cell": lattice.astype(np.float32), "pbc": _PBC, **values},
        ragged=text,
    )


def lattice_vectors(where: str, parameters: Sequence[float]) -> Array:
    """The vectors float64 [3, 3] of the cell a, b, c (Å), alpha, beta, gamma (degrees).

    The first lies along x, the second in the xy plane.
    """
    a, b, c, *angles = parameters
    cos_alpha, cos_beta, cos_gamma = (
        0.0 if angle == 90 else math.cos(math.radians(angle)) for angle in angles
    )
    possible = all(0 < angle < 180 for angle in angles) and all(x > 0 for x in (a, b, c))
    height = math.nan
    if possible:
        sin_gamma = math.sqrt(1 - cos_gamma**2)
        slant = (cos_alpha - cos_beta * cos_gamma) / sin_gamma
        height = 1 - cos_beta**2 - slant**2
    if not height > 0:
        raise DataError(f"{where}: {list(parameters)} are not the lengths and angles of a cell")
    return np.array(
        [
            [a, 0, 0],
            [b * cos_gamma, b * sin_gamma, 0],
            [c * cos_beta, c * slant, c * math.sqrt(height)],
        ]
    )


def _array(
    where: str, crystal: dict[str, Any], name: str, kinds: str, shape: tuple[int, int] | None
) -> Array:
    """Field `name` as an array of `shape`, or any vector without one; `kinds` are numpy's."""
    try:
        array = np.array(crystal[name])
    except ValueError:  # lists of different lengths
        array = np.array(None)
    fits = array.ndim == 1 if shape is None else array.shape == shape
    if array.dtype.kind not in kinds or not fits or not array.size:
        what = "numbers" if "f" in kinds else "whole numbers"
        size = f"of shape {list(shape)}" if shape else "in one list"
        raise DataError(
            f"{where}, field '{name}': {json.dumps(crystal[name])[:60]} should be {what} {size}"
        )
    return array


def _target(where: str, value: Any, name: str) -> Array:
    if value is None:
        value = math.nan
    elif isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _HUGE:
        raise DataError(f"{where}, target '{name}': {str(value)[:40]!r} is not a finite number")
    return np.array(value, dtype=np.float64)
