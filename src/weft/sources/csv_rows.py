"""Rows of CSV files, plain or gzip'd."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from weft.errors import DataError
from weft.files import DAMAGE, bounded_lines, unpacked
from weft.sources.progress_bar import progress_bar


class Row(NamedTuple):
    """The fields that were asked for, and the line of `file` (from 1) on which the row begins."""

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
    for file in files:
        if not file.is_file():
            raise DataError(f"{file} is not there")
    done, total = 0, sum(file.stat().st_size for file in files)
    with progress_bar(what, total, show=progress) as move:
        for file in files:
            line = 1
            with unpacked(file) as (raw, stream):
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
                    for number, fields in enumerate(reader):
                        if fields and len(fields) != len(header):
                            raise DataError(
                                f"{file}, line {line}: {len(fields)} fields, but the header has "
                                f"{len(header)}"
                            )
                        if fields:
                            yield Row(file, line, [fields[i] for i in wanted])
                        line = reader.line_num + 1
                        if number % 64 == 0:
                            move(done + raw.tell())
                except csv.Error as error:
                    raise DataError(f"{file}, line {line}: {error}") from None
                except (*DAMAGE, UnicodeDecodeError) as error:
                    raise DataError(
                        f"{file} is cut or damaged not far after line {line} ({error})"
                    ) from None
            done += file.stat().st_size
            move(done)
