"""Files with a row for each node: features, classes, and which nodes are in a part of a split."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from weft.errors import DataError
from weft.files import DAMAGE, finite_number, text_lines, unpacked
from weft.graphs import Array
from weft.sources.parquet_files import parquet_columns, rows_of_numbers, texts_of

_NUMPY_ROW = re.compile(r"at row (\d+)")
_TABLES = (".csv", ".tsv", ".txt", ".parquet")


def is_table(path: Path) -> bool:
    """Whether a file's name says that it has a node's name or number in each row."""
    return path.name.removesuffix(".gz").endswith(_TABLES)


def read_npy(path: Path) -> Array:
    """The array of numbers in a .npy file, mapped.

    Raises:
        DataError: the file is missing, cut or something else.
    """
    try:
        array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path} is not a .npy file of numbers ({error}); write it with numpy.save"
        ) from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
        raise DataError(f"{path} is not a .npy file of numbers; write it with numpy.save")
    return array


def read_numbers(path: Path, dtype: np.typing.DTypeLike) -> Array:
    """The numbers [rows, columns] of a text file without a header, plain or gzip, commas between.

    Raises:
        DataError: the file is missing or damaged, or a line has another number of columns or
            something other than numbers; the message has the line.
    """
    try:
        with unpacked(path) as (_, content):
            return np.loadtxt(content, dtype=dtype, delimiter=",", ndmin=2, encoding="utf-8")
    except (OSError, *DAMAGE, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    except ValueError as error:
        said = str(error)
        row = _NUMPY_ROW.search(said)
        # numpy counts rows of data from 0, or from 1 where it compares their lengths.
        first = 0 if "columns changed" in said else 1
        line = f", line {int(row[1]) + first}" if row else ""
        raise DataError(f"{path}{line}: {said.partition(';')[0].partition(' at row')[0]}") from None


def node_rows(path: Path, columns: int | None = None) -> Iterator[tuple[str, str, list[str]]]:
    """Where each row is, for a message, the node that its first column names, and its others.

    Text is split at commas (with quotes as in CSV), else tabs, else blanks. A header is the first
    line if its first name is `id`, `node`, `name` or the like, or if it has no number where the
    next line has one. Lines that begin with # are passed over.

    Args:
        path: CSV, TSV or other text, plain or gzip; or Parquet.
        columns: how many a row has beside the node; any number, the same in all, by default.

    Raises:
        DataError: the file cannot be read or names no node, a row has another number of columns or
            a null, or two rows name one node; the message has file and line.
    """
    parquet = path.suffix == ".parquet"
    unit = "row" if parquet else "line"
    seen: dict[str, int] = {}
    for line, tokens in _parquet_rows(path) if parquet else _text_rows(path):
        columns = len(tokens) - 1 if columns is None else columns
        if len(tokens) != columns + 1:
            raise DataError(
                f"{path}, {unit} {line}: {len(tokens)} columns; a node and {columns} more are "
                "needed"
            )
        name = tokens[0]
        if (before := seen.setdefault(name, line)) != line:
            raise DataError(f"{path}, {unit} {line}: node {name!r} is in {unit} {before} already")
        yield f"{path}, {unit} {line}", name, tokens[1:]
    if not seen:
        raise DataError(f"{path} names no node")


_FIRST_HEADING = {"id", "node", "name", "node_id", "nodeid", "index"}


def _text_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    waiting: tuple[int, list[str]] | None = None
    first = True
    for number, line in text_lines(path, longest=2**24):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if "," in text:
            tokens = [token.strip() for token in next(csv.reader([text]))]
        else:
            tokens = text.split("\t") if "\t" in text else text.split()
        if "" in tokens:
            raise DataError(f"{path}, line {number}: column {tokens.index('')} is empty")
        if first:
            first = False
            waiting = None if tokens[0].lower() in _FIRST_HEADING else (number, tokens)
            continue
        if waiting is not None:
            if not _is_header(waiting[1], tokens):
                yield waiting
            waiting = None
        yield number, tokens
    if waiting is not None:
        yield waiting


def _is_header(first: list[str], second: list[str]) -> bool:
    """Whether the first of two lines has words where the second has numbers."""
    numbers = [[_is_number(token) for token in line] for line in (first, second)]
    same = 1 < len(first) == len(second)
    return same and not any(numbers[0]) and any(numbers[1])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parquet_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    columns = [texts_of(path, name, values) for name, values in parquet_columns(path)]
    yield from enumerate(map(list, zip(*columns, strict=True)))


def read_features(path: Path) -> tuple[Array, list[str] | None]:
    """Features [n, f] of a .npy file; or of a table, with what it calls the nodes.

    Raises:
        DataError: the file cannot be read, a feature is no finite number, or as `node_rows`.
    """
    if not is_table(path):
        x = read_npy(path)
        if x.ndim != 2:
            raise DataError(
                f"{path} has shape {list(x.shape)}; one row for each node is needed, [n, f]"
            )
        return x, None
    if path.suffix == ".parquet":
        return _parquet_features(path)
    names: list[str] = []
    rows: list[Array] = []
    for where, name, values in node_rows(path):
        rows.append(np.array([finite_number(value, where) for value in values]))
        names.append(name)
    return np.stack(rows), names


def _parquet_features(path: Path) -> tuple[Array, list[str]]:
    """The same of a Parquet file: numbers, or lists of equally many, after the names."""
    columns = list(parquet_columns(path))
    if not columns or not len(columns[0][1]):
        raise DataError(f"{path} names no node")
    names = texts_of(path, *columns[0])
    seen: dict[str, int] = {}
    for row, name in enumerate(names):
        if (before := seen.setdefault(name, row)) != row:
            raise DataError(f"{path}, row {row}: node {name!r} is in row {before} already")
    return np.concatenate(
        [rows_of_numbers(path, name, values) for name, values in columns[1:]]
        or [np.empty((len(names), 0))],
        axis=1,
    ), names


def read_labels(
    path: Path, num_nodes: int, places: Mapping[str, int] | None
) -> tuple[Array, list[str]]:
    """What nodes have to learn, and the names of classes where the file has names.

    Args:
        path: .npy [n] or [n, t]; or a table: the node, then a label (a whole number or a name) or
            numbers.
        num_nodes: n.
        places: the node of each name; None where nodes are called 0 to n - 1.

    Returns:
        The array of a .npy file; of a table classes int64 [n], -1 for a node without one, or
        numbers float64 [n, t], NaN for such a node.

    Raises:
        DataError: the file cannot be read, or does not fit; the message has file and line.
    """
    if not is_table(path):
        y = read_npy(path)
        if y.ndim not in (1, 2) or len(y) != num_nodes:
            raise DataError(
                f"{path} has shape {list(y.shape)}; there are {num_nodes} nodes, so [{num_nodes}] "
                f"is needed, or [{num_nodes}, t] for labels or numbers"
            )
        return y, []
    rows: dict[int, list[str]] = {}
    where_of: dict[int, str] = {}
    for where, name, values in node_rows(path):
        place = place_of(name, num_nodes, places, where)
        rows[place], where_of[place] = values, where
    width = len(next(iter(rows.values())))
    single = [values[0] for values in rows.values()] if width == 1 else None
    if single is not None and not all(map(_is_number, single)):
        classes = sorted(set(single))
        number_of = {label: number for number, label in enumerate(classes)}
        single = [str(number_of[label]) for label in single]
    else:
        classes = []
    if single is not None and all(re.fullmatch(r"-?\d{1,18}", label) for label in single):
        y = np.full(num_nodes, -1, dtype=np.int64)
        y[list(rows)] = [int(label) for label in single]
        return y, classes
    y = np.full((num_nodes, width), np.nan)
    for place, values in rows.items():
        y[place] = [float(v) if v == "nan" else finite_number(v, where_of[place]) for v in values]
    return y, []


def read_mask(path: Path, num_nodes: int, places: Mapping[str, int] | None) -> Array:
    """Which nodes are in a part of a split, bool [n].

    Args:
        path: .npy, a mask or the numbers of nodes; or text or Parquet with a node in each row.
        num_nodes: n.
        places: see `read_labels`.

    Raises:
        DataError: as `read_labels`.
    """
    if not is_table(path):
        from weft.sources.graph_files import checked_mask

        return checked_mask(str(path), read_npy(path), num_nodes)
    mask = np.zeros(num_nodes, dtype=np.bool_)
    for where, name, _ in node_rows(path, columns=0):
        mask[place_of(name, num_nodes, places, where)] = True
    return mask


def place_of(name: str, num_nodes: int, places: Mapping[str, int] | None, where: str) -> int:
    """The number of the node of this name; `where` begins the message for one that is not there."""
    if places is not None:
        if name not in places:
            raise DataError(f"{where}: no node is called {name!r}")
        return places[name]
    if not (name.isascii() and name.isdigit() and len(name) < 19 and int(name) < num_nodes):
        raise DataError(f"{where}: no node is called {name!r}; nodes are 0 to {num_nodes - 1}")
    return int(name)
