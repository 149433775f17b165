"""Matrix Market files as graphs: entry (i, j) of a square matrix is the edge i -> j."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
from scipy.io import mminfo, mmread
from scipy.sparse import coo_matrix

from weft.errors import DataError
from weft.graphs import Graph
from weft.sources.edge_lists import index_dtype

__all__ = ["read_matrix_market"]


def read_matrix_market(path: str | Path) -> Graph:
    """The graph of the square sparse matrix in `path`, plain or `.gz`.

    A symmetric matrix gives both directions; the diagonal gives self-loops; stored zeros and
    repeated entries stay. Values are the edge column `weight` (float64); a `pattern` matrix
    has none.

    Raises:
        DataError: missing, cut or malformed file (with the line where the parser names it); a
            matrix that is rectangular, dense (`array`) or complex.
    """
    path = Path(path)
    try:
        rows, columns, _, layout, field, _ = mminfo(path)
        if layout != "coordinate" or field == "complex":
            raise DataError(
                f"{path} holds a matrix of format '{layout} {field}'; a graph needs 'coordinate' "
                "entries that are real, integer or pattern"
            )
        if rows != columns:
            raise DataError(
                f"{path} holds a matrix of {rows} x {columns}; a graph needs a square one"
            )
        matrix = mmread(path)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except DataError:
        raise
    except (ValueError, OverflowError, MemoryError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole Matrix Market file: {error}") from None
    assert isinstance(matrix, coo_matrix)
    dtype = index_dtype(rows)
    return Graph(
        num_nodes=rows,
        senders=matrix.row.astype(dtype, copy=False),
        receivers=matrix.col.astype(dtype, copy=False),
        edges={} if field == "pattern" else {"weight": matrix.data.astype(np.float64, copy=False)},
    )
