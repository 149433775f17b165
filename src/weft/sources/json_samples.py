"""JSON objects from files of any length, one at a time: JSON lines, or one list of all objects.

Both come plain or gzip'd, told apart by their content, not by their names. Memory holds one object
and a block of the file.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.errors import DataError
from weft.sources.progress import progress_bar

LONGEST = 64 * 2**20
"""Bytes of one object; the largest program graphs of Allamanis et al. have about 10 MiB."""

_BLOCK = 2**20
_JSON = json.JSONDecoder()
_SIGN = re.compile(r"\s*(\S)")
_Stream = gzip.GzipFile | io.BufferedReader


class BadSample(DataError):
    """One sample that cannot be used; `reason` is the same text for all of its kind."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Skips:
    """What is left out, and why.

    Attributes:
        skip_bad: count bad samples instead of raising.
        counts: samples left out by reason.
    """

    skip_bad: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def sample(self) -> Iterator[None]:
        """Within it, a BadSample is counted if that was asked for."""
        try:
            yield
        except BadSample as error:
            if not self.skip_bad:
                raise
            self.counts[error.reason] += 1


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One object of a file.

    Attributes:
        file: where it stands.
        number: its line, or its place in the list, from 1.
        where: words that name the place in a message.
        content: what was read, or why nothing could be.
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
    files: Sequence[Path], *, progress: bool = True, longest: int = LONGEST
) -> Iterator[Sample]:
    """The objects of all files in their order; blank lines are passed over.

    Args:
        files: JSON lines, or a JSON list, plain or gzip'd.
        progress: show a progress bar.
        longest: bytes of a line or characters of a list's item. A longer line is a BadSample and
            is never in memory whole.

    Raises:
        DataError: a file is not there, empty, cut or damaged, or a list is not JSON, so that it
            is not known where its next item begins.
    """
    if not files:
        raise DataError("no files to read samples from: name at least one")
    for file in files:
        if not file.is_file():
            raise DataError(f"{file} is not a file; name the files themselves, not their folder")
    done, total = 0, sum(file.stat().st_size for file in files)
    with progress_bar("samples", total, show=progress) as move:
        for file in files:
            empty = True
            with file.open("rb") as raw:
                for sample in _samples(file, raw, longest):
                    empty = False
                    yield sample
                    move(done + raw.tell())
            if empty:
                raise DataError(f"{file} holds no samples")
            done += file.stat().st_size


def _samples(file: Path, raw: io.BufferedReader, longest: int) -> Iterator[Sample]:
    packed = raw.peek(2)[:2] == b"\x1f\x8b"
    stream = gzip.GzipFile(fileobj=raw) if packed else raw
    read = 0
    try:
        is_list = stream.peek(1).lstrip()[:1] == b"["
        for sample in (_items if is_list else _lines)(file, stream, longest):
            yield sample
            read += 1
    except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
        raise DataError(f"{file} is cut or damaged after {read} samples ({error})") from None


def _lines(file: Path, stream: _Stream, longest: int) -> Iterator[Sample]:
    number = 0
    while line := stream.readline(longest + 1):
        number += 1
        where = f"{file}, line {number}"
        content: Any
        if len(line) > longest:
            while line and not line.endswith(b"\n"):
                line = stream.readline(_BLOCK)
            content = BadSample("too long", f"{where}: longer than {longest:,} bytes")
        elif not line.strip():
            continue
        else:
            try:
                content = json.loads(line.decode("utf-8"))
            except (ValueError, RecursionError) as error:
                content = BadSample("not JSON", f"{where}: not JSON ({error})")
        yield Sample(file=file, number=number, where=where, content=content)


def _items(file: Path, stream: _Stream, longest: int) -> Iterator[Sample]:
    text = _Text(stream)
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
        yield Sample(file=file, number=number, where=where, content=content)
    text.at += 1
    if text.next_sign():
        raise DataError(f"{file}: more text after the end of the list")


class _Text:
    """The text of a stream, from the first character that is still needed at `at`."""

    def __init__(self, stream: _Stream) -> None:
        self.stream = stream
        self.decode = codecs.getincrementaldecoder("utf-8")().decode
        self.text, self.at = "", 0

    def more(self) -> bool:
        """Read on, as much again as there is: an object is then parsed twice on the whole."""
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
                value, self.at = _JSON.raw_decode(self.text, self.at)
            except (ValueError, RecursionError) as error:
                if len(self.text) - self.at > longest:
                    raise DataError(
                        f"{where}: longer than {longest:,} characters, or not JSON ({error})"
                    ) from None
                if not self.more():
                    raise DataError(f"{where}: not JSON, or cut off ({error})") from None
            else:
                return value
