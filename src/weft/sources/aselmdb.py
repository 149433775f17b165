"""Structures of ASE's LMDB databases, the layout of fairchem's data sets; nothing is unpickled."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from weft.errors import DataError
from weft.sources.file_records import LONGEST

SUFFIXES = (".aselmdb", ".lmdb")
"""How names of such files end."""

_PICKLE = b"\x80"


def read_aselmdb(file: Path) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Each structure of the file by its number there: ASE's Atoms, and the values of its row.

    Raises:
        DataError: lmdb is not installed, the file is cut or no such database, or its rows are
            pickled objects, as in fairchem's older data sets.
    """
    try:
        import lmdb
    except ImportError:
        raise DataError(
            f"reading {file} needs lmdb, which is not installed: pip install 'weft[lmdb]'"
        ) from None
    from ase.db.row import AtomsRow

    try:
        environment = lmdb.open(str(file), subdir=False, readonly=True, lock=False)
    except lmdb.Error as error:
        raise DataError(f"{file} is not an LMDB database ({error})") from None
    with environment:
        pages = environment.info()["last_pgno"] + 1
        # What is missing would be read from beyond the end of the mapped file.
        if file.stat().st_size < pages * environment.stat()["psize"]:
            raise DataError(f"{file} is cut: {pages} pages are not all there; copy it again")
        with environment.begin() as content, content.cursor() as cursor:
            keys = {int(key): key for key in cursor.iternext(values=False) if key.isdigit()}
            for number in sorted(keys):
                row = _row(file, number, content.get(keys[number]))
                found = AtomsRow({**row, "id": number})
                yield found.toatoms(), {**found.data, **found.key_value_pairs}


def _row(file: Path, number: int, packed: bytes | None) -> dict[str, Any]:
    """The content of a row, whose arrays are ASE's JSON."""
    from ase.calculators.calculator import all_properties
    from ase.io.jsonio import decode
    from numpy import array

    assert packed is not None
    text = packed
    if not packed.startswith(_PICKLE):
        inflate = zlib.decompressobj()
        text = inflate.decompress(packed, LONGEST)
        if inflate.unconsumed_tail:
            raise DataError(f"{file}, row {number} unpacks to more than {LONGEST:,} bytes")
    if text.startswith(_PICKLE):
        raise DataError(
            f"{file} holds pickled objects, as fairchem's older data sets do; reading them could "
            "run any code, so convert the file to .aselmdb with fairchem first"
        )
    row: dict[str, Any] = decode(text.decode())
    # ASE expects results that are no single numbers as arrays.
    return {
        name: array(value) if name in all_properties and isinstance(value, list) else value
        for name, value in row.items()
    }
