"""Records of files of any length, one at a time: JSON lines, one JSON list, or rows of CSV.

All come plain or gzip'd; the content decides, not the file's name. Memory holds one record and a
block of the file.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast

from weft.errors import DataError
from weft.files import DAMAGE, bounded_lines, refuse_constant, unpacked
from weft.sources.progress_bar import progress_bar

LONGEST = 64 * 2**20
"""Bytes of one object; the largest program graphs of Allamanis et al. have about 10 MiB."""

_BLOCK = 2**20
# Records between two moves of the progress bar.
_SHOWN = 64
_SIGN = re.compile(r"\s*(\S)")
_Stream = gzip.GzipFile | io.BufferedReader


class BadSample(DataError):
    """One sample that cannot be used; `reason` is the same text for all of its kind."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class JsonSample:
    """One object of a file.

    Attributes:
        file: the file that holds it.
        number: its line, or its place in the list, from 1.
        where: its place in the files, for messages.
        content: what was read, or the BadSample that says why it could not be.
    """

    file: Path
    number: int
    where: str
    content: Any

    def fields(self, names: Sequence[str]) -> dict[str, Any]:
        """The object, which has all fields of `names`.

        Raises:
            BadSample: it is not JSON, no object, or a field is missing.
        """
        if isinstance(self.content, BadSample):
            raise self.content
        return checked_fields(self.where, self.content, names)


def checked_fields(where: str, content: Any, names: Sequence[str]) -> dict[str, Any]:
    """`content` as an object with all fields of `names`."""
    if not isinstance(content, dict):
        raise BadSample(
            "not an object",
            f"{where}: a {type(content).__name__}, not an object with the fields "
            f"{', '.join(names)}",
        )
    for name in names:
        if name not in content:
            raise BadSample(
                "a field is missing",
                f"{where}: no field '{name}'; it has {', '.join(map(str, content)) or 'none'}",
            )
    return content


def json_samples(
    files: Sequence[Path],
    *,
    what: str = "samples",
    finite: bool = False,
    lists: bool = True,
    progress: bool = True,
    longest: int = LONGEST,
) -> Iterator[JsonSample]:
    """The objects of all files in their order; blank lines are passed over.

    Args:
        files: JSON lines, or a JSON list, plain or gzip'd.
        what: what the objects are, for messages and the progress bar.
        finite: refuse NaN and infinity, which are not JSON though Python reads them.
        lists: read a file that begins with a bracket as one list; otherwise all are JSON lines.
        progress: show a progress bar.
        longest: bytes of a line or characters of a list's item. A longer line is a BadSample and
            is never in memory whole.

    Raises:
        DataError: a file is not there, empty, cut or damaged, or a list is not JSON, so that it
            is not known where its next item begins.
    """
    decoder = json.JSONDecoder(parse_constant=refuse_constant if finite else None)
    with closing(_opened(files, what, progress=progress)) as opened:
        for file, stream, show in opened:
            read = 0
            try:
                is_list = lists and cast("_Stream", stream).peek(1).lstrip()[:1] == b"["
                for sample in (_items if is_list else _lines)(file, stream, decoder, longest):
                    read += 1
                    yield sample
                    show(read)
            except (*DAMAGE, UnicodeDecodeError) as error:
                raise DataError(f"{file} is cut or damaged after {read} {what} ({error})") from None
            if not read:
                raise DataError(f"{file} holds no {what}")


def _opened(
    files: Sequence[Path], what: str, *, progress: bool
) -> Generator[tuple[Path, IO[bytes], Callable[[int], None]], None, None]:
    """Each file, its content, and what shows the progress after a number of its records."""
    if not files:
        raise DataError(f"no files to read {what} from: name at least one")
    for file in files:
        if not file.is_file():
            raise DataError(f"{file} is not a file; name the files themselves, not their folder")
    done, total = 0, sum(file.stat().st_size for file in files)
    with progress_bar(what, total, show=progress) as move:
        for file in files:
            with unpacked(file) as (raw, stream):

                def show(read: int, before: int = done, raw: BinaryIO = raw) -> None:
                    if read % _SHOWN == 0:
                        move(before + raw.tell())

                yield file, stream, show
            done += file.stat().st_size
            move(done)


def _lines(
    file: Path, stream: IO[bytes], decoder: json.JSONDecoder, longest: int
) -> Iterator[JsonSample]:
    number = 0
    while line := stream.readline(longest + 1):
        number += 1
        where = f"{file}, line {number}"
        content: Any
        if len(line) > longest:
            content = BadSample("too long", f"{where}: longer than {longest:,} bytes")
        elif not line.strip():
            continue
        else:
            try:
                content = decoder.decode(line.decode("utf-8"))
            except (ValueError, RecursionError) as error:
                content = BadSample("not JSON", f"{where}: not JSON ({error})")
        yield JsonSample(file=file, number=number, where=where, content=content)
        # The rest of a line that is too long; a caller who raised is spared it.
        while len(line) > longest and not line.endswith(b"\n"):
            line = stream.readline(longest + 1)


def _items(
    file: Path, stream: IO[bytes], decoder: json.JSONDecoder, longest: int
) -> Iterator[JsonSample]:
    text = _Text(stream, decoder)
    number = 0
    text.next_sign()
    text.at += 1  # behind the bracket
    while (sign := text.next_sign()) != "]":
        if number:
            if sign != ",":
                raise DataError(f"{file}: neither a comma nor the list's end after item {number}")
            text.at += 1
            text.next_sign()
        number += 1
        where = f"{file}, item {number}"
        content = text.value(where, longest)
        yield JsonSample(file=file, number=number, where=where, content=content)
    text.at += 1
    if text.next_sign():
        raise DataError(f"{file}: more text after the end of the list")


class _Text:
    """The text of a stream, from the first character that is still needed at `at`."""

    def __init__(self, stream: IO[bytes], decoder: json.JSONDecoder) -> None:
        self.stream, self.json = stream, decoder
        self.decode = codecs.getincrementaldecoder("utf-8")().decode
        self.text, self.at = "", 0

    def more(self) -> bool:
        """Read on, doubling what is held: parsing an object again and again then costs twice."""
        rest = self.text[self.at :]
        block = self.stream.read(max(_BLOCK, len(rest)))
        self.text, self.at = rest + self.decode(block, final=not block), 0
        return bool(block)

    def next_sign(self) -> str:
        """The next character that is not blank, or nothing at the end."""
        while not (found := _SIGN.match(self.text, self.at)):
            self.at = len(self.text)
            if not self.more():
                return ""
        self.at = found.end() - 1
        return found[1]

    def value(self, where: str, longest: int) -> Any:
        """The JSON value that begins here."""
        while True:
            try:
                value, self.at = self.json.raw_decode(self.text, self.at)
            except (ValueError, RecursionError) as error:
                if len(self.text) - self.at > longest:
                    raise DataError(
                        f"{where}: longer than {longest:,} characters, or not JSON ({error})"
                    ) from None
                if not self.more():
                    raise DataError(f"{where}: not JSON, or cut off ({error})") from None
            else:
                return value


class Row(NamedTuple):
    """The fields that were requested, and the line of `file` (from 1) on which the row begins."""

    file: Path
    line: int
    fields: list[str]


def csv_rows(
    files: Sequence[Path], columns: Sequence[str], *, what: str, progress: bool
) -> Iterator[Row]:
    """The fields `columns` of every row of all files; empty lines are passed over.

    Raises:
        DataError: a file is missing, cut, damaged or not UTF-8, lacks a column, or has a row with
            more or fewer fields than its header; the message names file and line.
    """
    with closing(_opened(files, what, progress=progress)) as opened:
        for file, stream, show in opened:
            line = 1
            text = io.TextIOWrapper(cast("BinaryIO", stream), "utf-8-sig", newline="")
            reader = csv.reader((line for _, line in bounded_lines(file, text)), strict=True)
            try:
                header = next(reader, [])
                if absent := [name for name in columns if name not in header]:
                    raise DataError(
                        f"{file}, line 1: no column {', '.join(absent)}; it has "
                        f"{', '.join(header) or 'none'}"
                    )
                wanted = [header.index(name) for name in columns]
                line = reader.line_num + 1
                for read, fields in enumerate(reader):
                    if fields and len(fields) != len(header):
                        raise DataError(
                            f"{file}, line {line}: {len(fields)} fields, but the header has "
                            f"{len(header)}"
                        )
                    if fields:
                        yield Row(file, line, [fields[i] for i in wanted])
                    line = reader.line_num + 1
                    show(read)
            except csv.Error as error:
                raise DataError(f"{file}, line {line}: {error}") from None
            except (*DAMAGE, UnicodeDecodeError) as error:
                raise DataError(
                    f"{file} is cut or damaged not far after line {line} ({error})"
                ) from None
