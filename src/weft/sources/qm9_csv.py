"""QM9 from the CSV files of the PyPI package `qm9pack`: all 130,831 characterized molecules."""

from __future__ import annotations

import csv
import importlib.util
import io
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, GraphTable, write_table
from weft.sources.progress import Move, progress_bar
from weft.sources.qm9 import (
    QM9_ELEMENTS,
    QM9_SCHEMA,
    QM9_TARGETS,
    Molecule,
    Molecules,
    molecules_of,
)

_PACKAGE_MOLECULES = 130_831
_PARTS = ("qm9_part1.csv", "qm9_part2.csv", "qm9_part3.csv")
_COLUMNS = (
    "Index",
    "SMILES",
    "N_atoms",
    "Elements",
    "XYZ_Ang",
    "Mulliken_pop",
    *(target.csv_column for target in QM9_TARGETS.values()),
)
_CHUNK_ROWS = 4096
_NUMBER = b"0123456789.+-eE"
_LETTER_TO_X = bytes.maketrans("".join(QM9_ELEMENTS).encode(), b"X" * len(QM9_ELEMENTS))
_NO_BRACKETS = str.maketrans("", "", "[]")
_Z_OF_LETTER = np.zeros(256, dtype=np.uint8)
for _element, _z in QM9_ELEMENTS.items():
    _Z_OF_LETTER[ord(_element)] = _z

_Row = tuple[int, list[str]]  # line of its start in the file, the fields of _COLUMNS


def qm9_from_csv(path: Path, *, folder: Path | None = None, progress: bool = True) -> GraphTable:
    """Write the table of QM9 to the folder `path`, read from the CSV files of `qm9pack`.

    Args:
        path: the table's folder; it must not exist yet.
        folder: where `qm9_part1.csv`, `qm9_part2.csv` and `qm9_part3.csv` are, or some of them
            for some of the molecules. Without it, the installed package `qm9pack` is asked (it is
            never imported), which must hold all 130,831 molecules.
        progress: show a progress bar.

    Raises:
        DataError: the package is not installed, a row is malformed or a molecule is there twice;
            the message names file, line and field.
    """
    files = _package_files() if folder is None else _folder_files(folder)
    metadata = {
        "source": "QM9, CSV files of the Python package qm9pack",
        "licence": "CC0",
        "citation": "Ramakrishnan et al., Sci. Data 1, 140022 (2014), doi:10.1038/sdata.2014.22",
        "files": [file.name for file in files],
    }
    expected = _PACKAGE_MOLECULES if folder is None else None
    total = sum(file.stat().st_size for file in files)
    with progress_bar("QM9", total, show=progress) as move:
        return write_table(path, _tables(files, expected, move), QM9_SCHEMA, metadata=metadata)


def _folder_files(folder: Path) -> list[Path]:
    files = [folder / part for part in _PARTS if (folder / part).is_file()]
    if not files:
        raise DataError(
            f"none of {', '.join(_PARTS)} in {folder}; these are the files of the qm9pack package"
        )
    return files


def _package_files() -> list[Path]:
    # The package imports things that newer Pythons no longer have; only its files are wanted.
    spec = importlib.util.find_spec("qm9pack")
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            "QM9 needs the package qm9pack, which is not installed: pip install 'weft[data]'"
        )
    files = [Path(spec.submodule_search_locations[0]) / "data" / part for part in _PARTS]
    for file in files:
        if not file.is_file():
            raise DataError(
                f"{file} is missing from the package qm9pack; install it again: "
                "pip install --force-reinstall --no-deps qm9pack"
            )
    return files


def _tables(files: Sequence[Path], expected: int | None, move: Move) -> Iterator[GraphTable]:
    first = done = 0
    met: set[int] = set()
    for file in files:
        for rows, position in _chunks(file):
            molecules = _molecules(file, rows)
            for (line, _), index in zip(rows, molecules.index.tolist(), strict=True):
                if index in met:
                    raise DataError(f"{file}, line {line}, field Index: {index} is there twice")
                met.add(index)
            yield molecules.table(first=first)
            first += len(rows)
            move(done + position)
        done += file.stat().st_size
    if expected is not None and first != expected:
        raise DataError(
            f"{files[0].parent} holds {first:,} molecules, {expected:,} expected; install the "
            "package again: pip install --force-reinstall --no-deps qm9pack"
        )


def _chunks(file: Path) -> Iterator[tuple[list[_Row], int]]:
    """Rows with the fields of _COLUMNS, some thousand at a time, and the bytes read so far."""
    with file.open("rb") as raw, io.TextIOWrapper(raw, "utf-8", newline="") as lines:
        reader = csv.reader(lines, strict=True)
        rows: list[_Row] = []
        line = 1
        try:
            header = next(reader, [])
            absent = [name for name in _COLUMNS if name not in header]
            if absent:
                raise DataError(f"{file}, line 1: no column {', '.join(absent)}")
            wanted = [header.index(name) for name in _COLUMNS]
            line = reader.line_num + 1
            for fields in reader:
                if fields and len(fields) != len(header):
                    raise DataError(
                        f"{file}, line {line}: {len(fields)} fields, but the header has "
                        f"{len(header)}"
                    )
                if fields:
                    rows.append((line, [fields[i] for i in wanted]))
                line = reader.line_num + 1
                if len(rows) == _CHUNK_ROWS:
                    yield rows, raw.tell()
                    rows = []
        except csv.Error as error:
            raise DataError(f"{file}, line {line}: {error}") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{file}, not far after line {line}: {error}") from None
        if rows:
            yield rows, raw.tell()


def _molecules(file: Path, rows: Sequence[_Row]) -> Molecules:
    molecules = _fast(rows)
    if molecules is None:
        # Something is odd in these rows: the slow way finds out where, or reads them all the same.
        molecules = molecules_of([_molecule(file, line, fields) for line, fields in rows])
    return molecules


def _fast(rows: Sequence[_Row]) -> Molecules | None:
    """All rows at once, or None if one of them is not written as expected."""
    index, smiles, counts, elements, xyz, charges, *targets = zip(
        *(fields for _, fields in rows), strict=True
    )
    numbers = [_whole(text) for text in index]
    counted = [_whole(text) for text in counts]
    if not all(numbers) or not all(counted):
        return None
    num_atoms = np.array(counted, dtype=np.int64)
    if max(counted) > max(map(len, elements)):
        return None
    skeletons = {n: _skeletons(n) for n in set(counted)}
    for n, symbols, triples, values in zip(counted, elements, xyz, charges, strict=True):
        found = (
            symbols.encode().translate(_LETTER_TO_X),
            triples.encode().translate(None, _NUMBER),
            values.encode().translate(None, _NUMBER),
        )
        if found != skeletons[n]:
            return None
    total = int(num_atoms.sum())
    z = _Z_OF_LETTER[np.frombuffer("".join(elements).encode(), dtype=np.uint8)]
    z = z[z > 0]
    pos = _numbers(",".join(xyz).translate(_NO_BRACKETS), 3 * total)
    charge = _numbers(",".join(charges).translate(_NO_BRACKETS), total)
    values = _numbers(",".join(map(",".join, targets)), len(targets) * len(rows))
    if pos is None or charge is None or values is None:
        return None
    assert len(z) == total
    return Molecules(
        num_atoms=num_atoms,
        z=z,
        pos=pos.reshape(-1, 3),
        charge=charge,
        index=np.array(numbers, dtype=np.int64),
        targets=values.reshape(len(targets), -1).T,
        smiles=smiles,
    )


def _whole(text: str) -> int:
    """The positive whole number that `text` is, or 0."""
    return int(text) if text.isdecimal() and len(text) < 9 else 0


def _skeletons(n: int) -> tuple[bytes, bytes, bytes]:
    """The lists of n symbols, triples and charges, with X for a symbol and without the numbers."""
    return (
        b"[" + b",".join([b"'X'"] * n) + b"]",
        b"[" + b",".join([b"[,,]"] * n) + b"]",
        b"[" + b"," * (n - 1) + b"]",
    )


def _numbers(text: str, count: int) -> Array | None:
    """The `count` numbers of a comma-separated text, or None if it does not hold just those."""
    if text.count(",") != count - 1:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        try:
            values = np.fromstring(text, dtype=np.float64, sep=",")
        except (DeprecationWarning, ValueError):
            return None
    return values if len(values) == count and np.isfinite(values).all() else None


def _molecule(file: Path, line: int, fields: Sequence[str]) -> Molecule:
    """One row, with every field checked on its own."""
    texts = dict(zip(_COLUMNS, fields, strict=True))

    def fail(name: str, problem: str) -> DataError:
        return DataError(f"{file}, line {line}, field {name}: {problem}")

    def numbers(name: str, parts: Sequence[str]) -> list[float]:
        values = []
        for part in parts:
            try:
                values.append(float(part))
            except ValueError:
                raise fail(name, f"{part[:40]!r} is not a number") from None
            if not math.isfinite(values[-1]):
                raise fail(name, f"{part!r} is not finite")
        return values

    def items(name: str, text: str, count: int) -> list[str]:
        text = text.strip()
        if not (text.startswith("[") and text.endswith("]")):
            raise fail(name, f"{text[:40]!r} is not a list in square brackets")
        parts = [part.strip() for part in text[1:-1].split(",")]
        if len(parts) != count:
            raise fail(name, f"{len(parts)} items, {count} expected")
        return parts

    whole = {}
    for name in ("Index", "N_atoms"):
        whole[name] = _whole(texts[name].strip())
        if not whole[name]:
            raise fail(name, f"{texts[name][:40]!r} is not a positive whole number")
    n = whole["N_atoms"]
    elements = [part.strip("'\"") for part in items("Elements", texts["Elements"], n)]
    for element in elements:
        if element not in QM9_ELEMENTS:
            raise fail("Elements", f"{element!r} is not one of {', '.join(QM9_ELEMENTS)}")
    triples = texts["XYZ_Ang"].replace(" ", "").replace("],[", "]|[")
    atoms = triples.removeprefix("[").removesuffix("]").split("|")
    if len(atoms) != n:
        raise fail("XYZ_Ang", f"{len(atoms)} positions for {n} atoms")
    coordinates = [part for atom in atoms for part in items("XYZ_Ang", atom, 3)]
    return Molecule(
        index=whole["Index"],
        smiles=texts["SMILES"],
        elements=elements,
        positions=numbers("XYZ_Ang", coordinates),
        charges=numbers("Mulliken_pop", items("Mulliken_pop", texts["Mulliken_pop"], n)),
        targets=[
            numbers(target.csv_column, [texts[target.csv_column]])[0]
            for target in QM9_TARGETS.values()
        ],
    )
