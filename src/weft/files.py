"""Files that are either whole or not there, lines of a bounded length, JSON for every reader."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, AnyStr, BinaryIO

from weft.errors import DataError

__all__ = ["LONGEST_LINE", "bounded_lines", "json_text", "write_atomically"]

LONGEST_LINE = 16 * 2**20
"""Bytes or characters that a line may have: a small compressed file can hold an endless one."""


def json_text(
    value: Any, *, indent: int | None = None, default: Callable[[Any], Any] | None = None
) -> str:
    """`value` as JSON with null for nan and infinity, which JSON has no words for."""
    plain = json.loads(json.dumps(value, default=default), parse_constant=lambda name: None)
    return json.dumps(plain, indent=indent, allow_nan=False)


def bounded_lines(
    path: Path, stream: IO[AnyStr], longest: int | None = None
) -> Iterator[tuple[int, AnyStr]]:
    """Number (from 1) and text of every line of `stream`, which holds what is in `path`.

    Args:
        path: the file, for messages.
        stream: its content, unpacked.
        longest: bytes (characters, of a stream of text) of a line; LONGEST_LINE if not given.

    Raises:
        DataError: a line is longer; it is never in memory whole. The message has file and line.
    """
    most = LONGEST_LINE if longest is None else longest
    number = 0
    while line := stream.readline(most + 1):
        number += 1
        if len(line) > most:
            raise DataError(
                f"{path}, line {number}: longer than {most:,} characters; the file is damaged or "
                "no text of lines"
            )
        yield number, line


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
