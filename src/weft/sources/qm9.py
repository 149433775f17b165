"""QM9: what its table holds, in which units, and the two kinds of files that it is read from.

QM9 (Ramakrishnan, Dral, Rupp, von Lilienfeld, Sci. Data 1, 140022, 2014; CC0) has the B3LYP
geometries and properties of small molecules of H, C, N, O and F. The files give energies in
Hartree; the table gives every energy in eV, and leaves the other properties in the paper's units:
rotational constants in GHz, the dipole moment in Debye, the polarizability in Bohr³, the spatial
extent in Bohr², the heat capacity in cal/(mol K). The files are the CSV files of the PyPI package
`qm9pack` (the 130,831 characterized molecules) or the official archive dsgdb9nsd.xyz.tar.bz2
(133,885 xyz-like files).
"""

from __future__ import annotations

import importlib.util
import io
import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from weft.errors import DataError
from weft.files import finite_number
from weft.graphs import Array, Column, GraphTable, table_from_columns, write_table
from weft.sources.archive import members
from weft.sources.atoms import ATOMS_SCHEMA
from weft.sources.download import fetch
from weft.sources.file_records import Row, csv_rows
from weft.sources.progress_bar import Move, progress_bar

HARTREE = 27.211386245988
"""One Hartree in eV (CODATA 2018)."""

QM9_ELEMENTS = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}
"""Atomic numbers of the elements in QM9."""


class Target(NamedTuple):
    """A property of a molecule: its column in the CSV files, the table's unit, the factor to it."""

    csv_column: str
    unit: str
    factor: float
    doc: str


# The order is that of the second line of the official xyz files.
QM9_TARGETS = {
    "rot_a": Target("RotA_GHz", "GHz", 1.0, "rotational constant A"),
    "rot_b": Target("RotB_GHz", "GHz", 1.0, "rotational constant B"),
    "rot_c": Target("RotC_GHz", "GHz", 1.0, "rotational constant C"),
    "mu": Target("Dipole_debye", "D", 1.0, "dipole moment"),
    "alpha": Target("Polarizability_bohr3", "Bohr³", 1.0, "isotropic polarizability"),
    "homo": Target("HOMO_au", "eV", HARTREE, "energy of the highest occupied orbital"),
    "lumo": Target("LUMO_au", "eV", HARTREE, "energy of the lowest unoccupied orbital"),
    "gap": Target("HOMO_LUMO_gap_au", "eV", HARTREE, "lumo - homo"),
    "r2": Target("R2_bohr2", "Bohr²", 1.0, "electronic spatial extent"),
    "zpve": Target("ZPVE_au", "eV", HARTREE, "zero-point vibrational energy"),
    "u0": Target("InternalEnergy_0K_au", "eV", HARTREE, "internal energy at 0 K"),
    "u": Target("InternalEnergy_298K_au", "eV", HARTREE, "internal energy at 298.15 K"),
    "h": Target("Enthalphy_298K_au", "eV", HARTREE, "enthalpy at 298.15 K"),
    "g": Target("GibbsFreeEnergy_298K_au", "eV", HARTREE, "free energy at 298.15 K"),
    "cv": Target(
        "Heatcapacity_Cv_cal_mol_K", "cal/(mol K)", 1.0, "heat capacity at 298.15 K, constant V"
    ),
}
"""The 15 properties by the name of their column in the table."""

QM9_SCHEMA = {
    "z": ATOMS_SCHEMA["z"],
    "pos": ATOMS_SCHEMA["pos"],
    "charge": Column(level="node", dtype="float32", unit="e", doc="Mulliken charge"),
    "index": Column(level="graph", dtype="int32", doc="number of the molecule in dsgdb9nsd"),
    **{
        name: Column(level="graph", dtype="float64", unit=target.unit, doc=target.doc)
        for name, target in QM9_TARGETS.items()
    },
    "smiles": Column(level="ragged", dtype="uint8", doc="SMILES as in GDB-17, UTF-8"),
}
"""The columns of every QM9 table. There are no edges: a model's cutoff decides them."""

_REFERENCES_HARTREE = {
    "u0": (-0.500273, -37.846772, -54.583861, -75.064579, -99.718730),
    "u": (-0.498857, -37.845355, -54.582445, -75.063163, -99.717314),
    "h": (-0.497912, -37.844411, -54.581501, -75.062219, -99.716370),
    "g": (-0.510927, -37.861317, -54.598897, -75.079532, -99.733544),
}
ATOM_REFERENCES = {
    name: dict(zip(QM9_ELEMENTS, (HARTREE * value for value in values), strict=True))
    for name, values in _REFERENCES_HARTREE.items()
}
"""Energies of the free atoms in eV, by target and element (the data set's atomref.txt).

A molecule's atomization energy is its energy less those of its atoms. `zpve` of an atom is 0.
"""


@dataclass(frozen=True, kw_only=True)
class Molecule:
    """One molecule of n atoms in the files' units.

    Attributes:
        index: its number in dsgdb9nsd.
        smiles: its SMILES.
        elements: n symbols.
        positions: 3n coordinates in Å, atom by atom.
        charges: n Mulliken charges in e.
        targets: 15 properties, in the order of QM9_TARGETS.
    """

    index: int
    smiles: str
    elements: Sequence[str]
    positions: Sequence[float]
    charges: Sequence[float]
    targets: Sequence[float]


def molecules_table(molecules: Sequence[Molecule], *, first: int = 0) -> GraphTable:
    """Molecules as a table with QM9_SCHEMA; `first` is the number of the first one."""

    def numbers(name: str) -> Array:
        return np.array([x for m in molecules for x in getattr(m, name)], dtype=np.float64)

    return _table(
        num_atoms=np.array([len(m.elements) for m in molecules], dtype=np.int64),
        z=np.array([QM9_ELEMENTS[e] for m in molecules for e in m.elements], dtype=np.uint8),
        pos=numbers("positions"),
        charge=numbers("charges"),
        index=np.array([m.index for m in molecules], dtype=np.int64),
        targets=numbers("targets").reshape(-1, len(QM9_TARGETS)).T,
        smiles=[m.smiles for m in molecules],
        first=first,
    )


def _table(
    *,
    num_atoms: Array,
    z: Array,
    pos: Array,
    charge: Array,
    index: Array,
    targets: Array,
    smiles: Sequence[str],
    first: int,
) -> GraphTable:
    """The table of m molecules of N atoms in all, given as columns in the files' units.

    Shapes: num_atoms [m], z [N], pos [3 N], charge [N], index [m], targets [15, m], smiles [m].
    """
    texts = [text.encode() for text in smiles]
    return table_from_columns(
        QM9_SCHEMA,
        num_nodes=num_atoms,
        columns={
            "z": z,
            "pos": pos.reshape(-1, 3),
            "charge": charge,
            "index": index,
            "smiles": np.frombuffer(b"".join(texts), dtype=np.uint8),
            **{
                name: values * target.factor
                for (name, target), values in zip(QM9_TARGETS.items(), targets, strict=True)
            },
        },
        ragged_rows={"smiles": np.array([len(text) for text in texts], dtype=np.int64)},
        first=first,
    )


_ABOUT = {
    "licence": "CC0",
    "citation": "Ramakrishnan et al., Sci. Data 1, 140022 (2014), doi:10.1038/sdata.2014.22",
}
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
_CHUNK_MOLECULES = 4096
_NUMBER = b"0123456789.+-eE"
_LETTER_TO_X = bytes.maketrans("".join(QM9_ELEMENTS).encode(), b"X" * len(QM9_ELEMENTS))
_NO_BRACKETS = str.maketrans("", "", "[]")
_Z_OF_LETTER = np.zeros(256, dtype=np.uint8)
for _element, _z in QM9_ELEMENTS.items():
    _Z_OF_LETTER[ord(_element)] = _z


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
        **_ABOUT,
        "files": [file.name for file in files],
    }
    expected = _PACKAGE_MOLECULES if folder is None else None
    tables = _csv_tables(files, expected, progress=progress)
    return write_table(path, tables, QM9_SCHEMA, metadata=metadata)


def _folder_files(folder: Path) -> list[Path]:
    files = [folder / part for part in _PARTS if (folder / part).is_file()]
    if not files:
        raise DataError(
            f"none of {', '.join(_PARTS)} in {folder}; these are the files of the qm9pack package"
        )
    return files


def _package_files() -> list[Path]:
    # The package imports things that newer Pythons no longer have; only its files are needed.
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


def _csv_tables(
    files: Sequence[Path], expected: int | None, *, progress: bool
) -> Iterator[GraphTable]:
    met: set[int] = set()
    every = csv_rows(files, _COLUMNS, what="QM9", progress=progress)
    while rows := list(islice(every, _CHUNK_MOLECULES)):
        table = _fast(rows, len(met))
        if table is None:
            # Something is unusual in these rows: reading them one by one names it, or succeeds.
            table = molecules_table([_csv_molecule(row) for row in rows], first=len(met))
        for row, index in zip(rows, table.columns["index"].tolist(), strict=True):
            if index in met:
                raise _bad(row, "Index", f"{index} is there twice")
            met.add(index)
        yield table
    if expected is not None and len(met) != expected:
        raise DataError(
            f"{files[0].parent} holds {len(met):,} molecules, {expected:,} expected; install the "
            "package again: pip install --force-reinstall --no-deps qm9pack"
        )


def _bad(row: Row, field: str, problem: str) -> DataError:
    return DataError(f"{row.file}, line {row.line}, field {field}: {problem}")


def _fast(rows: Sequence[Row], first: int) -> GraphTable | None:
    """All rows at once, or None if one of them is not written as expected."""
    index, smiles, counts, elements, xyz, charges, *targets = zip(
        *(row.fields for row in rows), strict=True
    )
    numbers = [_whole(text) for text in index]
    counted = [_whole(text) for text in counts]
    if not all(numbers) or not all(counted):
        return None
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
    total = sum(counted)
    z = _Z_OF_LETTER[np.frombuffer("".join(elements).encode(), dtype=np.uint8)]
    z = z[z > 0]
    pos = _numbers(",".join(xyz).translate(_NO_BRACKETS), 3 * total)
    charge = _numbers(",".join(charges).translate(_NO_BRACKETS), total)
    values = _numbers(",".join(map(",".join, targets)), len(targets) * len(rows))
    if pos is None or charge is None or values is None:
        return None
    assert len(z) == total
    return _table(
        num_atoms=np.array(counted, dtype=np.int64),
        z=z,
        pos=pos,
        charge=charge,
        index=np.array(numbers, dtype=np.int64),
        targets=values.reshape(len(targets), -1),
        smiles=smiles,
        first=first,
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


def _csv_molecule(row: Row) -> Molecule:
    """One row, with every field checked on its own."""
    texts = dict(zip(_COLUMNS, row.fields, strict=True))

    def numbers(name: str, parts: Sequence[str]) -> list[float]:
        return [finite_number(part, f"{row.file}, line {row.line}, field {name}") for part in parts]

    def items(name: str, text: str, count: int) -> list[str]:
        text = text.strip()
        if not (text.startswith("[") and text.endswith("]")):
            raise _bad(row, name, f"{text[:40]!r} is not a list in square brackets")
        parts = [part.strip() for part in text[1:-1].split(",")]
        if len(parts) != count:
            raise _bad(row, name, f"{len(parts)} items, {count} expected")
        return parts

    whole = {}
    for name in ("Index", "N_atoms"):
        whole[name] = _whole(texts[name].strip())
        if not whole[name]:
            raise _bad(row, name, f"{texts[name][:40]!r} is not a positive whole number")
    n = whole["N_atoms"]
    elements = [part.strip("'\"") for part in items("Elements", texts["Elements"], n)]
    for element in elements:
        if element not in QM9_ELEMENTS:
            raise _bad(row, "Elements", f"{element!r} is not one of {', '.join(QM9_ELEMENTS)}")
    triples = texts["XYZ_Ang"].replace(" ", "").replace("],[", "]|[")
    atoms = triples.removeprefix("[").removesuffix("]").split("|")
    if len(atoms) != n:
        raise _bad(row, "XYZ_Ang", f"{len(atoms)} positions for {n} atoms")
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


QM9_ARCHIVE = "dsgdb9nsd.xyz.tar.bz2"
UNCHARACTERIZED = "uncharacterized.txt"
# The SHA-256 of both files are those that TensorFlow Datasets pins for these addresses
# (tensorflow_datasets/datasets/qm9/checksums.tsv). Size (86,144,227 bytes) and MD5
# (ad1ebd51ee7f5b3a6e32e974e5d54012) of the archive with that SHA-256 are figshare's own.
_FIGSHARE = {
    QM9_ARCHIVE: (3195389, "3a63848ac80691bdb8d41834b575afad345b9300d7a2db0c38adb7f6eaa8360c"),
    UNCHARACTERIZED: (3195404, "3aa5115d540b356de94791d4a74c3bf1ed91c469ecf52a4f5d7cc0506fe02e24"),
}

_MEMBER_BYTES = 2**20


def fetch_qm9(name: str, folder: Path, *, progress: bool = True) -> Path:
    """An official file in `folder`, downloaded from figshare if it is not there.

    It is QM9_ARCHIVE (86 MB), or UNCHARACTERIZED, the list of the 3,054 molecules that failed the
    authors' consistency check.
    """
    number, sha256 = _FIGSHARE[name]
    url = f"https://ndownloader.figshare.com/files/{number}"
    return fetch(url, sha256, folder=folder, name=name, progress=progress)


def uncharacterized(path: Path) -> list[int]:
    """The molecules' numbers in the official list: its lines `number SMILES SMILES ...`."""
    indices = []
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if len(words) > 2 and words[0].isdecimal():
            indices.append(int(words[0]))
    if not indices:
        raise DataError(f"{path} lists no molecules: no line has a number and two SMILES")
    return indices


def qm9_from_archive(
    path: Path, archive: Path, *, leave_out: Collection[int] = (), progress: bool = True
) -> GraphTable:
    """Write the table of QM9 to the folder `path`, read from the official archive.

    Args:
        path: the table's folder; it must not exist yet.
        archive: dsgdb9nsd.xyz.tar.bz2, see `fetch_qm9`; it is read without extracting it.
        leave_out: numbers of molecules to leave out, such as `uncharacterized`. How many were
            is in the table's metadata: `counts`, `left_out`.
        progress: show a progress bar.

    Raises:
        DataError: the archive is damaged or a file in it malformed; the message names member,
            line and field.
    """
    counts = {"molecules": 0, "left_out": 0}
    metadata = {
        "source": f"QM9, {archive.name}",
        **_ABOUT,
        # Filled while the table is written; the metadata are written last.
        "counts": counts,
    }
    with progress_bar("QM9 molecules", None, show=progress, count=True) as move:
        tables = _archive_tables(archive, frozenset(leave_out), counts, move)
        return write_table(path, tables, QM9_SCHEMA, metadata=metadata)


def _archive_tables(
    archive: Path, leave_out: Collection[int], counts: dict[str, int], move: Move
) -> Iterator[GraphTable]:
    def kept() -> Iterator[Molecule]:
        for name, file in members(archive, limit=_MEMBER_BYTES):
            if name.endswith(".xyz"):
                molecule = _xyz_molecule(f"{archive}, member {name}", file)
                if molecule.index in leave_out:
                    counts["left_out"] += 1
                else:
                    yield molecule

    molecules = kept()
    while some := list(islice(molecules, _CHUNK_MOLECULES)):
        yield molecules_table(some, first=counts["molecules"])
        counts["molecules"] += len(some)
        move(sum(counts.values()))
    if counts["molecules"] == 0:
        raise DataError(f"{archive} holds no molecules: no member is a .xyz file to keep")


def _xyz_molecule(where: str, file: io.BytesIO) -> Molecule:
    try:
        lines = file.read().decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: {error}") from None
    count = lines[0].strip() if lines else ""
    if not count.isdecimal() or int(count) == 0:
        raise DataError(f"{where}, line 1: {count[:40]!r} is not a number of atoms")
    n = int(count)
    # After the atoms: frequencies, a pair of SMILES, a pair of InChI.
    if len(lines) != n + 5:
        raise DataError(f"{where}: {len(lines)} lines, {n + 5} expected for {n} atoms")
    header = lines[1].split()
    if len(header) != 2 + len(QM9_TARGETS):
        raise DataError(
            f"{where}, line 2: {len(header)} words, {2 + len(QM9_TARGETS)} expected "
            "('gdb', the number, the properties)"
        )
    if not header[1].isdecimal() or len(header[1]) > 9:
        raise DataError(f"{where}, line 2: {header[1][:40]!r} is not a molecule's number")
    elements: list[str] = []
    positions: list[float] = []
    charges: list[float] = []
    for number, line in enumerate(lines[2 : n + 2], start=3):
        words = line.split()
        if len(words) != 5 or words[0] not in QM9_ELEMENTS:
            raise DataError(
                f"{where}, line {number}: {line[:60]!r} is not an atom (one of "
                f"{', '.join(QM9_ELEMENTS)}, three coordinates, a charge)"
            )
        *place, charge = _xyz_numbers(words[1:], where, number, ("x", "y", "z", "charge"))
        elements.append(words[0])
        positions += place
        charges.append(charge)
    smiles = lines[n + 3].split()
    if not smiles:
        raise DataError(f"{where}, line {n + 4}: no SMILES")
    return Molecule(
        index=int(header[1]),
        smiles=smiles[0],
        elements=elements,
        positions=positions,
        charges=charges,
        targets=_xyz_numbers(header[2:], where, 2, tuple(QM9_TARGETS)),
    )


def _xyz_numbers(words: Sequence[str], where: str, line: int, names: Sequence[str]) -> list[float]:
    # The files came out of Mathematica: 1.5*^-6 is 1.5e-6.
    return [
        finite_number(word.replace("*^", "e"), f"{where}, line {line}, {name}")
        for word, name in zip(words, names, strict=True)
    ]
