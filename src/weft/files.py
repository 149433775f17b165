"""Files that are either whole or not there, lines of a bounded length, numbers and JSON in text."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, AnyStr, BinaryIO, NoReturn, cast

from weft.errors import DataError

LONGEST_LINE = 16 * 2**20
"""Bytes or characters that a line may have: a small compressed file can hold an endless one."""

DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile)
"""Errors raised when a truncated or damaged file is unpacked."""

# Far beyond what is ever written, and small enough for every function that walks or converts it.
_DEEPEST = 100
_MOST_DIGITS = 40
_KINDS = {dict: "an object", list: "a list", str: "text", int: "a whole number", float: "a number"}


def json_text(
    value: Any, *, indent: int | None = None, default: Callable[[Any], Any] | None = None
) -> str:
    """`value` as JSON with null for nan and infinity, which JSON cannot express."""
    # Nothing is written that `parse_json` would not read.
    plain = json.loads(
        json.dumps(value, default=default), parse_constant=lambda name: None, parse_int=_whole
    )
    return json.dumps(plain, indent=indent, allow_nan=False)


def parse_json(text: str | bytes, where: str) -> Any:
    """The JSON value in `text`: its numbers are finite, its lists and objects 100 deep at most.

    Raises:
        DataError: it is not UTF-8, cut, not JSON, or beyond these limits; `where` begins the
            message.
    """
    try:
        return _parsed(text)
    except ValueError as error:
        raise DataError(f"{where} is not JSON ({error})") from None


def _parsed(text: str | bytes, *, finite: bool = True) -> Any:
    too_deep = f"lists and objects are more than {_DEEPEST} deep"
    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        hooks: dict[str, Any] = (
            {"parse_constant": refuse_constant, "parse_float": _real} if finite else {}
        )
        value = json.loads(decoded, parse_int=_whole, **hooks)
    except RecursionError:
        raise ValueError(too_deep) from None
    level = [value]
    for _ in range(_DEEPEST + 1):
        level = [
            part
            for item in level
            if isinstance(item, dict | list)
            for part in (item.values() if isinstance(item, dict) else item)
        ]
    if level:
        raise ValueError(too_deep)
    return value


def refuse_constant(text: str) -> NoReturn:
    """For `parse_constant` of a JSON decoder: NaN and infinity are not JSON."""
    raise ValueError(f"{text} is not a number")


def _real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:20]} is beyond 1e308")
    return value


def _whole(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(
            f"a whole number of {len(text)} digits, {text[:10]}...; at most {_MOST_DIGITS} are kept"
        )
    return int(text)


def read_json(path: Path, *, remedy: str = "", finite: bool = True) -> Any:
    """The JSON value in a file, see `parse_json`; not `finite` lets NaN and infinity pass.

    Raises:
        DataError: the file cannot be read or its content parsed; the message names it and ends
            with `remedy`.
    """
    try:
        return _parsed(path.read_bytes(), finite=finite)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise _damage(path, f"not JSON: {error}", remedy) from None


def read_object(
    path: Path,
    fields: Mapping[str, type | tuple[type, ...]] | None = None,
    *,
    remedy: str = "",
    finite: bool = True,
) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        path: the file.
        fields: those that it must have, and of what kind (`object` for any).
        remedy: what to do with a damaged one.
        finite: refuse NaN and infinity.

    Raises:
        DataError: the file cannot be read, holds something else than an object, or a field is
            missing or of another kind; the message names the file and the field.
    """
    value = read_json(path, remedy=remedy, finite=finite)
    if not isinstance(value, dict):
        raise _damage(path, f"it holds {_kind(type(value))}, not an object with fields", remedy)
    for name, kinds in (fields or {}).items():
        if name not in value:
            raise _damage(path, f"it has no field '{name}'", remedy)
        if not isinstance(value[name], kinds):
            wanted = " or ".join(map(_kind, kinds if isinstance(kinds, tuple) else (kinds,)))
            found = _kind(type(value[name]))
            raise _damage(path, f"its field '{name}' is {found}, not {wanted}", remedy)
    return value


def _damage(path: Path, reason: str, remedy: str) -> DataError:
    return DataError(f"{path} is damaged ({reason})" + (f"; {remedy}" if remedy else ""))


def _kind(kind: type) -> str:
    return _KINDS.get(kind, "null" if kind is type(None) else kind.__name__)


def finite_number(text: str, where: str) -> float:
    """The number that `text` is.

    Raises:
        DataError: it is no number, or not a finite one; `where` begins the message.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: {text[:40]!r} is not a finite number")
    return value


@contextmanager
def unpacked(path: Path) -> Iterator[tuple[BinaryIO, IO[bytes]]]:
    """The file as it is, for its position, and its content, unpacked if its first bytes are gzip's.

    Raises:
        DataError: there is no such file.
    """
    try:
        raw = path.open("rb")
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    with raw:
        packed = raw.peek(2)[:2] == b"\x1f\x8b"
        yield raw, cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if packed else raw


def text_lines(path: Path, longest: int = 2**20) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of the lines of a UTF-8 file, plain or gzip'd.

    Args:
        path: the file.
        longest: characters of a line.

    Raises:
        DataError: the file is missing, cut, damaged or not UTF-8, or a line is too long.
    """
    try:
        with unpacked(path) as (_, content):
            text = io.TextIOWrapper(cast("BinaryIO", content), encoding="utf-8-sig")
            yield from bounded_lines(path, text, longest)
    except (OSError, *DAMAGE, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


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
                f"not a text file"
            )
        yield number, line


def user_cache() -> Path:
    """weft's folder in the user's cache: $XDG_CACHE_HOME/weft or ~/.cache/weft."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return user.expanduser() / "weft"


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
