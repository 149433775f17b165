"""Files that are either whole or not there, and JSON that every reader takes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from weft.errors import DataError

__all__ = ["json_text", "write_atomically"]


def json_text(
    value: Any, *, indent: int | None = None, default: Callable[[Any], Any] | None = None
) -> str:
    """`value` as JSON with null for nan and infinity, which JSON has no words for."""
    plain = json.loads(json.dumps(value, default=default), parse_constant=lambda name: None)
    return json.dumps(plain, indent=indent, allow_nan=False)


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a file that takes the place of `path` only when it is whole on the disk.

    A process killed at any moment leaves the old file, or the new one. The temporary file keeps
    one name, so what a killed process left behind is overwritten, not collected.

    Raises:
        DataError: the folder cannot be written or the disk is full; the old file is kept.
    """
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        kept = "; the file that was there is kept" if path.exists() else ""
        raise DataError(
            f"cannot write {path}: {error.strerror or error}{kept}; make room or choose another "
            "folder"
        ) from error


def _sync_folder(folder: Path) -> None:
    # The new name itself must survive a power cut; only POSIX can open a folder for that.
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
