"""Crystals from CSV files with the text of a CIF in one column, as CDVAE publishes them.

The header has `material_id`, `cif` and any columns of numbers. A CIF lists every atom of the cell
(space group P 1, as pymatgen writes it): symmetry is not expanded here, and asking for it is an
error, never a smaller crystal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from weft.errors import DataError
from weft.files import finite_number
from weft.graphs import Array, Graph, GraphTable, write_table
from weft.sources.atoms import ATOMIC_NUMBERS
from weft.sources.crystals import crystal_graph, crystal_schema, lattice_vectors
from weft.sources.csv_rows import csv_rows

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
    graphs = _graphs(files, targets, progress=progress)
    return write_table(path, graphs, crystal_schema(targets, units), metadata=metadata)


def _graphs(files: Sequence[Path], targets: Sequence[str], *, progress: bool) -> Iterator[Graph]:
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
            values={t: _value(where, t, text) for t, text in zip(targets, values, strict=True)},
            name=name,
            dataset=file.name.split(".csv")[0],
        )
    for file in files:
        if file not in met:
            raise DataError(f"{file} holds no crystals")


def _value(where: str, name: str, text: str) -> Array:
    return np.array(_number(where, name, text) if text.strip() else math.nan)


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
