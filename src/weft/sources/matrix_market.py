"""Matrix Market files as graphs: entry (i, j) of a square matrix is the edge i -> j."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from scipy.io import mminfo, mmread
from scipy.sparse import coo_matrix

from weft.errors import DataError
from weft.graphs import Graph
from weft.sources.edge_lists import index_dtype

_LONGEST_LINE = 2**20


def read_matrix_market(path: str | Path) -> Graph:
    """The graph of the square sparse matrix in `path`, plain or `.gz`.

    A symmetric matrix has both directions; the diagonal becomes self-loops; stored zeros and
    repeated entries stay. Values are the edge column `weight` (float64); a `pattern` matrix
    has none.

    Raises:
        DataError: missing, cut or malformed file (with the line where the parser names it), one
            with a NUL byte or a line of more than 1 MiB; a matrix that is rectangular, dense
            (`array`) or complex.
    """
    path = Path(path)
    try:
        with _opened(path) as text:
            rows, columns, _, layout, field, _ = mminfo(text)
        if layout != "coordinate" or field == "complex":
            raise DataError(
                f"{path} holds a matrix of format '{layout} {field}'; a graph needs 'coordinate' "
                "entries that are real, integer or pattern"
            )
        if rows != columns:
            raise DataError(
                f"{path} holds a matrix of {rows} x {columns}; a graph needs a square one"
            )
        with _opened(path) as text:
            matrix = mmread(text)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except DataError:
        raise
    except (ValueError, OverflowError, MemoryError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a complete Matrix Market file: {error}") from None
    assert isinstance(matrix, coo_matrix)
    dtype = index_dtype(rows)
    return Graph(
        num_nodes=rows,
        senders=matrix.row.astype(dtype, copy=False),
        receivers=matrix.col.astype(dtype, copy=False),
        edges={} if field == "pattern" else {"weight": matrix.data.astype(np.float64, copy=False)},
    )


class _CheckedText:
    """What scipy's parser reads: it looks for the end of a line as for the end of a C string.

    A NUL byte, or words after the last number of a file without a final line feed, would make it
    read through a null pointer; a line without an end would be collected in memory.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self._path, self._file = path, file
        self._line, self._length = 1, 0

    def read(self, size: int) -> bytes:
        """The next bytes; a line feed at the end of a file that has none."""
        block = self._file.read(size)
        if not block and self._length:
            block = b"\n"
        if (place := block.find(b"\0")) >= 0:
            line = self._line + block.count(b"\n", 0, place)
            raise DataError(
                f"{self._path}, line {line}: a NUL byte, which no text has; get the file again"
            )
        first_end = block.find(b"\n")
        if self._length + (len(block) if first_end < 0 else first_end) > _LONGEST_LINE:
            raise DataError(
                f"{self._path}, line {self._line}: longer than {_LONGEST_LINE:,} bytes, which no "
                "line of a matrix is"
            )
        self._line += block.count(b"\n")
        rest = len(block) - block.rfind(b"\n") - 1
        self._length = rest if first_end >= 0 else self._length + rest
        return block


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    opener: Any = {".gz": gzip.open, ".bz2": bz2.open}.get(path.suffix, open)
    with opener(path, "rb") as file:
        # `read` is all that scipy asks of a stream.
        yield cast("IO[bytes]", _CheckedText(path, file))
