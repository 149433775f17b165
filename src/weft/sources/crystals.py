"""Crystals as JSON lines, or as CSV files with the text of a CIF in one column.

In JSON lines, plain or gzip'd, a crystal is an object `{"dataset": text, "id": text, "lattice":
[[ax, ay, az], [bx, by, bz], [cx, cy, cz]], "z": [n atomic numbers], "frac": [n fractional
positions], "targets": {name: value}}` with the lattice in Å. A target that is absent or null was
not measured.

CSV files, as CDVAE publishes them, have `material_id`, `cif` and any columns of numbers. A CIF
lists every atom of the cell (space group P 1, as pymatgen writes it): symmetry is not expanded
here, and asking for it is an error, never a smaller crystal.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.files import LONGEST_LINE, finite_number
from weft.graphs import Array, Column, Graph, GraphTable, write_table
from weft.sources.atoms import ATOMIC_NUMBERS, ATOMS_SCHEMA, check_structure
from weft.sources.file_records import csv_rows, json_samples

_FIELDS = ("dataset", "id", "lattice", "z", "frac", "targets")
_HUGE = sys.float_info.max
_PBC = np.ones(3, dtype=bool)
_CELL = [
    *(f"_cell_length_{axis}" for axis in "abc"),
    *(f"_cell_angle_{angle}" for angle in ("alpha", "beta", "gamma")),
]
_FRACTION = [f"_atom_site_fract_{axis}" for axis in "xyz"]
_SYMMETRY = ("_symmetry_equiv_pos_as_xyz", "_space_group_symop_operation_xyz")
_GROUP_NUMBER = ("_symmetry_int_tables_number", "_space_group_it_number")
_GROUP_NAME = ("_symmetry_space_group_name_h-m", "_space_group_name_h-m_alt")
# A quotation mark ends a value only before a blank, as in 'O5' and O5'.
_TOKEN = re.compile(r"""'(.*?)'(?=\s|$)|"(.*?)"(?=\s|$)|([^\s#]\S*)|#.*""")
_REMEDY = "write it to a .cif file and read that as `atoms`"


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


def cif_csv_table(
    path: Path,
    files: Sequence[Path],
    *,
    targets: Sequence[str] = (),
    units: Mapping[str, str] | None = None,
    progress: bool = True,
) -> GraphTable:
    """Write the crystals of CSV files to the table in the folder `path`, streaming.

    Columns are those of `crystals_table`; `dataset` is the name of the file. An empty field of a
    target was not measured: NaN.

    Args:
        path: the table's folder; it must not exist yet.
        files: CSV files, plain or gzip'd.
        targets: names of columns.
        units: of the targets, where they are known.
        progress: show a progress bar.

    Raises:
        DataError: a column is missing, or a row cannot be read; the message names file, line and
            field.
    """
    metadata = {"source": "crystals as CIF in CSV", "files": [file.name for file in files]}
    graphs = _csv_graphs(files, targets, progress=progress)
    return write_table(path, graphs, crystal_schema(targets, units), metadata=metadata)


def _csv_graphs(
    files: Sequence[Path], targets: Sequence[str], *, progress: bool
) -> Iterator[Graph]:
    met: set[Path] = set()
    columns = ("material_id", "cif", *targets)
    for file, line, fields in csv_rows(files, columns, what="crystals", progress=progress):
        met.add(file)
        where = f"{file}, line {line}"
        name, cif, *values = fields
        z, frac, lattice = read_cif(cif, where)
        yield crystal_graph(
            where,
            z=z,
            frac=frac,
            lattice=lattice,
            values={
                target: np.array(_number(where, target, text) if text.strip() else math.nan)
                for target, text in zip(targets, values, strict=True)
            },
            name=name,
            dataset=file.name.split(".csv")[0],
        )
    for file in files:
        if file not in met:
            raise DataError(f"{file} holds no crystals")


def _number(where: str, name: str, text: str) -> float:
    # CIF puts the uncertainty of the last digits into brackets.
    return finite_number(re.sub(r"\(\d+\)$", "", text.strip()), f"{where}, '{name}'")


def read_cif(text: str, where: str) -> tuple[Array, Array, Array]:
    """Atomic numbers int64 [n], fractions float64 [n, 3] and lattice float64 [3, 3] of a P 1 CIF.

    Args:
        text: the CIF, one structure.
        where: its place in the files, for messages.

    Raises:
        DataError: a field is missing or no number, or the CIF has symmetry, partial occupancy or
            several structures.
    """
    single, loops = _items(text, where)
    operations = [
        o for name in _SYMMETRY for o in loops.get(name, [single[name]] if name in single else [])
    ]
    others = [o for o in operations if o.replace(" ", "").lower() not in ("x,y,z", "+x,+y,+z")]
    if not operations:
        # Then only the group's name or number tells; `?` and `.` mean no value.
        others += [single[n] for n in _GROUP_NUMBER if single.get(n, "?") not in ("1", "?", ".")]
        names = [single.get(n, "?") for n in _GROUP_NAME]
        others += [n for n in names if n.replace(" ", "").upper() not in ("P1", "?", ".")]
    if others:
        raise DataError(f"{where}: the CIF has symmetry to expand; {_REMEDY}")
    for name in _CELL:
        if name not in single:
            raise DataError(f"{where}: the CIF has no {name}")
    lattice = lattice_vectors(where, [_number(where, name, single[name]) for name in _CELL])
    for name in _FRACTION:
        if not loops.get(name):
            raise DataError(f"{where}: the CIF has no list of atoms with {name}")
    if any(_number(where, "occupancy", o) != 1 for o in loops.get("_atom_site_occupancy", [])):
        raise DataError(f"{where}: the CIF has partially occupied sites")
    columns = [[_number(where, name, x) for x in loops[name]] for name in _FRACTION]
    labels = loops.get("_atom_site_type_symbol") or loops.get("_atom_site_label")
    if labels is None:
        raise DataError(f"{where}: the CIF does not say which elements its atoms are")
    return np.array([_element(where, s) for s in labels]), np.array(columns).T, lattice


def _element(where: str, label: str) -> int:
    """The element of a symbol such as `Fe`, `Fe2+` or of a label such as `Fe12`."""
    letters = re.match(r"[A-Za-z]*", label)
    symbol = letters[0].capitalize() if letters else ""
    if symbol not in ATOMIC_NUMBERS:
        raise DataError(f"{where}: {label[:40]!r} is not an element")
    return ATOMIC_NUMBERS[symbol]


def _items(text: str, where: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """A CIF's single values and its loops' columns, by lower-case name."""
    if re.search(r"^;", text, re.MULTILINE):
        raise DataError(f"{where}: the CIF has fields of several lines; {_REMEDY}")
    single: dict[str, str] = {}
    loops: dict[str, list[str]] = {}
    names: list[str] = []
    values: list[str] = []
    blocks = 0

    def close() -> None:
        if not names:
            return
        if len(values) % len(names):
            raise DataError(
                f"{where}: a list of the CIF has {len(values)} values in {len(names)} columns"
            )
        for i, name in enumerate(names):
            loops[name] = values[i :: len(names)]

    waiting = ""
    in_loop = False
    for found in _TOKEN.finditer(text):
        if found.lastindex is None:  # a comment
            continue
        token = found[found.lastindex]
        word = (found[3] or "").lower()
        if word.startswith("data_") or word == "loop_" or (word.startswith("_") and not waiting):
            if word.startswith("_") and in_loop and not values:
                names.append(word)
                continue
            close()
            names, values, in_loop = [], [], word == "loop_"
            blocks += word.startswith("data_")
            waiting = word if word.startswith("_") else ""
        elif waiting:
            single[waiting] = token
            waiting = ""
        elif in_loop:
            values.append(token)
        else:
            raise DataError(f"{where}: {token[:40]!r} in the CIF belongs to no field")
    close()
    if blocks > 1:
        raise DataError(f"{where}: the CIF has {blocks} structures, one expected")
    return single, loops
