"""QM9 from its official archive, dsgdb9nsd.xyz.tar.bz2: 133,885 xyz-like files in one tar."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from weft.errors import DataError
from weft.graphs import GraphTable, write_table
from weft.sources.archive import members
from weft.sources.download import fetch
from weft.sources.progress import Move, progress_bar
from weft.sources.qm9 import QM9_ELEMENTS, QM9_SCHEMA, QM9_TARGETS, Molecule, molecules_of

# The SHA-256 of both files are those that TensorFlow Datasets pins for these addresses
# (tensorflow_datasets/datasets/qm9/checksums.tsv). Size (86,144,227 bytes) and MD5
# (ad1ebd51ee7f5b3a6e32e974e5d54012) of the archive with that SHA-256 are figshare's own.
_ARCHIVE_URL = "https://ndownloader.figshare.com/files/3195389"
_ARCHIVE_SHA256 = "3a63848ac80691bdb8d41834b575afad345b9300d7a2db0c38adb7f6eaa8360c"
_UNCHARACTERIZED_URL = "https://ndownloader.figshare.com/files/3195404"
_UNCHARACTERIZED_SHA256 = "3aa5115d540b356de94791d4a74c3bf1ed91c469ecf52a4f5d7cc0506fe02e24"

_CHUNK_MOLECULES = 4096
_MEMBER_BYTES = 2**20


def fetch_qm9_archive(folder: Path, *, progress: bool = True) -> Path:
    """The official archive in `folder`, downloaded from figshare (86 MB) if it is not there."""
    return fetch(
        _ARCHIVE_URL,
        _ARCHIVE_SHA256,
        folder=folder,
        name="dsgdb9nsd.xyz.tar.bz2",
        progress=progress,
    )


def fetch_uncharacterized(folder: Path, *, progress: bool = True) -> Path:
    """The official list of the 3,054 molecules that failed the authors' consistency check."""
    return fetch(
        _UNCHARACTERIZED_URL,
        _UNCHARACTERIZED_SHA256,
        folder=folder,
        name="uncharacterized.txt",
        progress=progress,
    )


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
        archive: dsgdb9nsd.xyz.tar.bz2, see `fetch_qm9_archive`; it is read without extracting it.
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
        "licence": "CC0",
        "citation": "Ramakrishnan et al., Sci. Data 1, 140022 (2014), doi:10.1038/sdata.2014.22",
        # Filled while the table is written; the metadata are written last.
        "counts": counts,
    }
    with progress_bar("QM9 molecules", None, show=progress, count=True) as move:
        tables = _tables(archive, frozenset(leave_out), counts, move)
        return write_table(path, tables, QM9_SCHEMA, metadata=metadata)


def _tables(
    archive: Path, leave_out: Collection[int], counts: dict[str, int], move: Move
) -> Iterator[GraphTable]:
    waiting: list[Molecule] = []

    def flush() -> GraphTable:
        table = molecules_of(waiting).table(first=counts["molecules"])
        counts["molecules"] += len(waiting)
        move(counts["molecules"] + counts["left_out"])
        waiting.clear()
        return table

    for name, file in members(archive, limit=_MEMBER_BYTES):
        if not name.endswith(".xyz"):
            continue
        molecule = _molecule(f"{archive}, member {name}", file)
        if molecule.index in leave_out:
            counts["left_out"] += 1
            continue
        waiting.append(molecule)
        if len(waiting) == _CHUNK_MOLECULES:
            yield flush()
    if waiting:
        yield flush()
    if counts["molecules"] == 0:
        raise DataError(f"{archive} holds no molecules: no member is a .xyz file to keep")


def _molecule(where: str, file: io.BytesIO) -> Molecule:
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
        x, y, z, charge = _numbers(words[1:], where, number, ("x", "y", "z", "charge"))
        elements.append(words[0])
        positions += (x, y, z)
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
        targets=_numbers(header[2:], where, 2, tuple(QM9_TARGETS)),
    )


def _numbers(words: Sequence[str], where: str, line: int, names: Sequence[str]) -> list[float]:
    values = []
    for word, name in zip(words, names, strict=True):
        try:
            # The files came out of Mathematica: 1.5*^-6 is 1.5e-6.
            value = float(word.replace("*^", "e"))
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise DataError(f"{where}, line {line}, {name}: {word!r} is not a finite number")
        values.append(value)
    return values
