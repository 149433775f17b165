"""Molecules and crystals from any file that ASE reads: extxyz, CIF, ASE databases and more."""

from __future__ import annotations

import csv
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from weft.errors import DataError
from weft.files import bounded_lines
from weft.graphs import Array, Column, Graph, GraphTable, write_table
from weft.sources.archive import MEMBER_LIMIT
from weft.sources.aselmdb import SUFFIXES, read_aselmdb
from weft.sources.progress_bar import Move, progress_bar

_SYMBOLS = """
H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr
Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb
Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf
Db Sg Bh Hs Mt Ds Rg Cn Nh Fl Mc Lv Ts Og
"""

ATOMIC_NUMBERS = {symbol: number for number, symbol in enumerate(_SYMBOLS.split(), start=1)}
"""Atomic number by symbol, `H` to `Og`."""


# Values of a folder's CIF files, in CGCNN's format: a line `id,value` for each id.cif.
_LISTED = "id_prop.csv"
ISOLATED = "isolated_atom"
"""Value that every structure has: 1 where its config_type is IsolatedAtom, as in MACE's files."""

# ASE's calculated results that have a row for each atom.
_ATOM_RESULTS = frozenset({"charges", "energies", "forces", "magmoms", "stresses"})


class Structure(NamedTuple):
    """One structure.

    Attributes:
        where: its place in the files, for messages.
        atoms: ASE's Atoms.
        values: every value that came with it, by name.
        per_atom: the names of those values that have a row for each atom.
    """

    where: str
    atoms: Any
    values: Mapping[str, Any]
    per_atom: frozenset[str]


def files_of(sources: Iterable[Path], *patterns: str) -> list[Path]:
    """The files among `sources`, and those that match a pattern in the folders among them, by name.

    Of several patterns the first that any file of a folder matches counts; by default they are
    *.cif and those of LMDB databases. Values of CIF files are in their folder's id_prop.csv:
    `id,value` lines, or under a heading `id,energy,...`.
    """
    files: list[Path] = []
    patterns = patterns or ("*.cif", *(f"*{suffix}" for suffix in SUFFIXES))
    for source in sources:
        if not source.exists():
            raise DataError(f"{source} is not there")
        found = [source]
        if source.is_dir():
            matches = [sorted(source.glob(pattern)) for pattern in patterns]
            found = next(filter(None, matches), [])
        if not found:
            raise DataError(f"no {', '.join(patterns)} files in the folder {source}")
        files += found
    if not files:
        raise DataError("no files to read structures from")
    return files


def read_structures(files: Sequence[Path], move: Move) -> Iterator[Structure]:
    """Every structure of `files`, one at a time.

    Raises:
        DataError: ASE is not installed, or a file cannot be read; the message names file,
            structure (counted from 0, as ASE does) and, in xyz files, line.
    """
    try:
        import ase.io.formats as formats
    except ImportError:
        raise DataError(
            "reading structures needs ASE, which is not installed: pip install 'weft[chem]'"
        ) from None
    listed: dict[Path, dict[str, dict[str, float]]] = {}
    for done, file in enumerate(files):
        beside: Mapping[str, float] = {}
        if file.suffix == ".cif":
            if file.parent not in listed:
                listed[file.parent] = _listed_values(file.parent)
            beside = listed[file.parent].get(file.stem, {})
        try:
            kind = "aselmdb" if file.suffix in SUFFIXES else formats.filetype(str(file))
        except Exception as error:
            raise DataError(f"{file}: ASE does not know this format ({error})") from None
        if kind in ("extxyz", "xyz"):
            starts = _xyz_starts(file)
        else:
            starts = []
            _check_unpacked(file)
        if kind == "aselmdb":
            read = read_aselmdb(file)
        else:
            read = _database(file, kind) if kind in ("db", "json") else _with_ase(file, kind)
        number = 0
        for number in count():
            where = f"{file}, structure {number}"
            where += f" (line {starts[number]})" if number < len(starts) else ""
            try:
                found = next(read, None)
            except DataError:
                raise
            # ASE's readers raise any kind of error; each means that the file is at fault.
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise DataError(f"{where} cannot be read ({reason})") from None
            if found is None:
                break
            atoms, info = found
            results = atoms.calc.results if atoms.calc is not None else {}
            values = {**results, **atoms.arrays, **info, **beside}
            values[ISOLATED] = values.get("config_type") == "IsolatedAtom"
            per_atom = _ATOM_RESULTS | (atoms.arrays.keys() - info.keys() - beside.keys())
            yield Structure(where, atoms, values, per_atom)
            if len(files) == 1:
                move(number + 1, total=len(starts) or None)
        if number == 0:
            raise DataError(f"{file} holds no structures")
        if len(files) > 1:
            move(done + 1)


def _listed_values(folder: Path) -> dict[str, dict[str, float]]:
    """The values in a folder's id_prop.csv, by id and by name.

    Its first line may name them, `id,energy,gap`; otherwise there is one and it is called
    `target`. An empty field is a value that is missing.
    """
    path = folder / _LISTED
    if not path.is_file():
        return {}
    names = ["target"]
    found: dict[str, dict[str, float]] = {}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: {error}; convert the file to UTF-8") from None
    rows = csv.reader(lines, strict=True)
    try:
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            if rows.line_num == 1 and row and row[0].strip() == "id":
                names = [name.strip() for name in row[1:]]
            elif row:
                if len(row) != 1 + len(names):
                    raise DataError(f"{where}: {len(row)} fields, {1 + len(names)} expected")
                name = row[0].strip()
                if not (folder / f"{name}.cif").exists():
                    raise DataError(f"{where}: there is no {name}.cif in the folder")
                if name in found:
                    raise DataError(f"{where}: {name} appears twice; keep one line")
                pairs = zip(names, row[1:], strict=True)
                found[name] = {key: float(text) for key, text in pairs if text.strip()}
    except DataError:
        raise
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path}, line {rows.line_num}: {error}") from None
    return found


def _with_ase(file: Path, kind: str) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    from ase.io import iread

    # Without this, ASE reads what follows an @ in a file's name as an index.
    for atoms in iread(str(file), index=":", format=kind, do_not_split_by_at_sign=True):
        yield atoms, atoms.info


def _database(file: Path, kind: str) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    from ase.db import connect

    with connect(str(file), type=kind, use_lock_file=False) as database:
        for row in database.select():
            yield row.toatoms(), {**row.data, **row.key_value_pairs}


def _xyz_starts(file: Path) -> list[int]:
    """First line of each structure of an xyz file, counted from 1.

    ASE takes an empty line for the end of the file, and lines that are missing for atoms of
    another structure; both would lose structures in silence, so they are errors here.
    """
    starts: list[int] = []
    numbered = _numbered_lines(file)
    for number, line in numbered:
        if starts and line.lstrip().startswith("VEC"):
            continue
        if not line.strip().isdecimal():
            if not line.strip() and not any(rest.strip() for _, rest in numbered):
                break
            raise DataError(
                f"{file}, line {number}: {line.strip()[:60]!r} where structure {len(starts)} "
                "should begin with its number of atoms"
            )
        starts.append(number)
        # 18 digits are more than any file has lines; Python refuses to parse thousands of digits.
        wanted = int(line.strip()[:18]) + 1
        if sum(1 for _ in islice(numbered, wanted)) < wanted:
            raise DataError(
                f"{file}, structure {len(starts) - 1} (line {number}): the file ends before "
                f"its {wanted - 1} atoms do"
            )
    return starts


def _check_unpacked(file: Path) -> None:
    """Refuse a small file that unpacks to a huge one: other formats are read whole."""
    from ase.io.formats import open_with_compression

    if file.suffix not in (".gz", ".bz2", ".xz"):
        return
    read = 0
    try:
        with open_with_compression(str(file), "rb") as content:
            while block := content.read(2**20):
                read += len(block)
                if read > MEMBER_LIMIT:
                    raise DataError(
                        f"{file} unpacks to more than {MEMBER_LIMIT:,} bytes; unpack it yourself "
                        "if it is what it should be"
                    )
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{file} is cut or damaged after byte {read:,} ({error})") from None


def _numbered_lines(file: Path) -> Iterator[tuple[int, str]]:
    from ase.io.formats import open_with_compression

    number = 0
    try:
        with open_with_compression(str(file), "rb") as lines:
            for number, line in bounded_lines(file, lines):
                yield number, line.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{file}, line {number}: {error}; convert the file to UTF-8") from None
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{file} is cut or damaged after line {number} ({error})") from None


ATOMS_SCHEMA = {
    "z": Column(level="node", dtype="uint8", doc="atomic number"),
    "pos": Column(level="node", dtype="float32", shape=(3,), unit="Å", doc="position"),
    "cell": Column(
        level="graph", dtype="float32", shape=(3, 3), unit="Å", doc="cell vectors, one in each row"
    ),
    "pbc": Column(level="graph", dtype="bool", shape=(3,), doc="periodic along each cell vector"),
}
"""The columns of every table of structures; targets come after them."""

Missing = Literal["error", "nan"]

_MAX_Z = 118
# Å. Further out, float32 positions would be wrong by a tenth of a bond.
_FAR = 1e6
# The most structures that are read ahead to learn the shape of a target.
_AHEAD = 2048
# ASE converts these to its own units, from every file format.
_ASE_UNITS = {
    "energy": "eV",
    "free_energy": "eV",
    "energies": "eV",
    "forces": "eV/Å",
    "stress": "eV/Å³",
    "dipole": "e Å",
    "charges": "e",
}
# What data sets of potentials put before these names; they too are in ASE's units.
_REFERENCE_PREFIX = re.compile(r"^(REF|DFT)_", re.IGNORECASE)


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
            their *.cif, sorted by name) or of LMDB databases (*.aselmdb).
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
        graphs = _graphs(chain(ahead, structures), schema, targets, files)
        return write_table(path, graphs, schema, metadata=metadata)


def check_structure(where: str, z: Array, pos: Array, cell: Array, pbc: Array) -> None:
    """Raise DataError if this is not a structure: z [n], pos [n, 3], cell [3, 3], pbc [3]."""
    unknown = (z < 1) | (z > _MAX_Z)
    if unknown.any():
        atom = int(np.argmax(unknown))
        raise DataError(
            f"{where}: atom {atom} has atomic number {z[atom]}, which is not an element"
        )
    # Written so that NaN is refused as well.
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
    if pbc.any() and np.linalg.matrix_rank(cell[pbc]) < pbc.sum():
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
        unit=_ASE_UNITS.get(_REFERENCE_PREFIX.sub("", name), ""),
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
    structures: Iterable[Structure],
    schema: Mapping[str, Column],
    targets: Sequence[str],
    files: Sequence[Path],
) -> Iterator[Graph]:
    met: set[str] = set()
    for structure in structures:
        met |= structure.values.keys()
        yield _graph(structure, schema)
    for name in targets:
        if name not in met:
            where = str(files[0]) if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
            raise DataError(f"{where}: no structure has a '{name}'; they have {_listed(met)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names) - {ISOLATED}))


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
                f"{where}: no '{name}'; it has {_listed(values)}. Choose one of these, "
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
