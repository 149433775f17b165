"""Structures one by one from the files that ASE reads, each with the words that name its place."""

from __future__ import annotations

import csv
import lzma
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

from weft.errors import DataError
from weft.files import bounded_lines
from weft.sources.archive import MEMBER_LIMIT
from weft.sources.progress import Move

# A folder's values of its CIF files, as CGCNN has them: a line `id,value` for each id.cif.
_LISTED = "id_prop.csv"
# Those of ASE's calculated results that have a row for each atom.
_ATOM_RESULTS = frozenset({"charges", "energies", "forces", "magmoms", "stresses"})


class Structure(NamedTuple):
    """One structure.

    Attributes:
        where: the words that name its place.
        atoms: ASE's Atoms.
        values: every value that came with it, by name.
        per_atom: the names of those values that have a row for each atom.
    """

    where: str
    atoms: Any
    values: Mapping[str, Any]
    per_atom: frozenset[str]


def files_of(sources: Iterable[Path]) -> list[Path]:
    """The files among `sources`, and the *.cif files of the folders among them, by name.

    Values of CIF files are in their folder's id_prop.csv: `id,value` lines, or under a heading
    `id,energy,...`.
    """
    files: list[Path] = []
    for source in sources:
        if source.is_dir():
            found = sorted(source.glob("*.cif"))
            if not found:
                raise DataError(f"no *.cif files in the folder {source}")
            files += found
        elif source.exists():
            files.append(source)
        else:
            raise DataError(f"{source} is not there")
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
            kind = formats.filetype(str(file))
        except Exception as error:
            raise DataError(f"{file}: ASE does not know this format ({error})") from None
        if kind in ("extxyz", "xyz"):
            starts = _xyz_starts(file)
        else:
            starts = []
            _check_unpacked(file)
        read = _database(file, kind) if kind in ("db", "json", "aselmdb") else _with_ase(file, kind)
        number = 0
        for number in count():
            where = f"{file}, structure {number}"
            where += f" (line {starts[number]})" if number < len(starts) else ""
            try:
                found = next(read, None)
            # ASE's readers raise whatever their parsing meets: any error is the file's.
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise DataError(f"{where} cannot be read ({reason})") from None
            if found is None:
                break
            atoms, info = found
            yield _structure(where, atoms, {**info, **beside} if beside else info)
            if len(files) == 1:
                move(number + 1, total=len(starts) or None)
        if number == 0:
            raise DataError(f"{file} holds no structures")
        if len(files) > 1:
            move(done + 1)


def _structure(where: str, atoms: Any, info: Mapping[str, Any]) -> Structure:
    results = atoms.calc.results if atoms.calc is not None else {}
    values = {**results, **atoms.arrays, **info}
    return Structure(where, atoms, values, _ATOM_RESULTS | (atoms.arrays.keys() - info.keys()))


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
                    raise DataError(f"{where}: {name} stands there a second time; keep one line")
                pairs = zip(names, row[1:], strict=True)
                found[name] = {key: float(text) for key, text in pairs if text.strip()}
    except DataError:
        raise
    except (ValueError, csv.Error) as error:
        raise DataError(f"{path}, line {rows.line_num}: {error}") from None
    return found


def _with_ase(file: Path, kind: str) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    from ase.io import iread

    # A file's name may hold an @, which ASE would take for the structures to read.
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
        # More digits than any file has lines; Python itself refuses to read thousands of them.
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
