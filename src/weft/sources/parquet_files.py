"""Columns of Parquet files, read with pyarrow (extra `parquet`), none of whose values is null."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Array

_BUFFER_BYTES = 2**20


def open_parquet(path: Path) -> Any:
    """The file, by pyarrow.

    Raises:
        DataError: pyarrow is not installed; the file is missing, cut or something else.
    """
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise DataError(
            f"{path} is read with pyarrow, which is not installed: pip install 'weft[parquet]'"
        ) from None
    with parquet_errors(path):
        # With a buffer, pages are read one by one; without, all of a row group's.
        return ParquetFile(path, buffer_size=_BUFFER_BYTES)


@contextmanager
def parquet_errors(path: Path) -> Iterator[None]:
    """Turn what pyarrow raises for a damaged file into a DataError that names it."""
    from pyarrow import ArrowException

    try:
        yield
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except (OSError, ArrowException) as error:
        raise DataError(f"{path} is not a complete Parquet file ({error}); get it again") from None


def refuse_nulls(path: Path, name: str, values: Any, first: int = 0) -> None:
    """Raise DataError where a column has a null; rows are counted from `first`."""
    if values.null_count:
        row = first + int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
        raise DataError(
            f"{path}: column '{name}' is null in row {row}; fill it or leave the row out"
        )


def parquet_columns(path: Path) -> Iterator[tuple[str, Any]]:
    """Name and values, none of them null, of each column of a file.

    Raises:
        DataError: as `open_parquet`, or a value is null.
    """
    file = open_parquet(path)
    with parquet_errors(path):
        table = file.read()
    for name, column in zip(table.column_names, table.columns, strict=True):
        values = column.combine_chunks()
        refuse_nulls(path, name, values)
        yield name, values


def numbers_of(path: Path, name: str, values: Any) -> Array:
    """A column of numbers.

    Raises:
        DataError: it holds something else.
    """
    from pyarrow import types

    kind = values.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise DataError(f"{path}: column '{name}' holds {kind}; numbers are needed")
    found: Array = values.to_numpy(zero_copy_only=False)
    return found


def rows_of_numbers(path: Path, name: str, values: Any) -> Array:
    """A column of finite numbers, or of lists of equally many, as float64 [n, k].

    Raises:
        DataError: it holds something else; the message has the row.
    """
    from pyarrow import types

    kind, width = values.type, 1
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        lengths = values.value_lengths().to_numpy(zero_copy_only=False)
        width = int(lengths[0])
        if (lengths != width).any():
            row = int(np.argmax(lengths != width))
            raise DataError(
                f"{path}: column '{name}' has {lengths[row]} numbers in row {row}, and {width} in "
                "row 0"
            )
        values = values.flatten()
        if values.null_count:
            row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False))) // width
            raise DataError(f"{path}: column '{name}' has a null in the list of row {row}")
    found = numbers_of(path, name, values).astype(np.float64).reshape(-1, width)
    broken = ~np.isfinite(found).all(axis=1)
    if broken.any():
        raise DataError(
            f"{path}: column '{name}' is not finite in row {int(np.argmax(broken))}; correct or "
            "remove it"
        )
    return found


def texts_of(path: Path, name: str, values: Any) -> list[str]:
    """A column of text, or of whole numbers as text.

    Raises:
        DataError: it holds something else, or a text has a line feed.
    """
    from pyarrow import types

    kind = values.type
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind)
    if not (text or types.is_integer(kind)):
        raise DataError(f"{path}: column '{name}' holds {kind}; text or whole numbers are needed")
    found = [str(value) for value in values.to_pylist()]
    # Names are kept as lines.
    for row, value in enumerate(found):
        if "\n" in value:
            raise DataError(f"{path}: column '{name}' has a line feed in row {row}: {value[:40]!r}")
    return found
