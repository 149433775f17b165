"""One graph from a file of the user's: NumPy, SciPy, torch_geometric, MATLAB, OGB, or an edge list.

Every reader gives a Graph with the columns that its file has, under the same names: the edge column
`weight`; the node columns `x` [n, f], `y` int64 [n] (-1 for none) and the masks `train`,
`validation` and `test`, bool [n]; and as ragged text, a line feed after each, the `names` of the
nodes and of the `classes`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.lib.format import read_array
from scipy.io import loadmat
from scipy.sparse import coo_matrix, issparse

from weft.errors import DataError
from weft.graphs import Array, Graph
from weft.sources.archive import members
from weft.sources.config import EdgeColumn
from weft.sources.edge_lists import column_lines, edge_list_graph, index_dtype, read_edge_list
from weft.sources.pickles import checked_csr

PARTS = ("train", "validation", "test")
_CONTAINERS = (".npz", ".zip", ".pt", ".pth", ".mat", ".mtx")
GRAPH_SUFFIXES = (".npz", ".pt", ".pth", ".mat", ".mtx", ".parquet")
"""Files of these names hold one graph; so do folders of OGB's layout."""

# What the writers of such files call a column, each the first that is there.
_CALLED = {
    "edge_index": ("edge_index",),
    "x": ("x", "node_feat", "features"),
    "y": ("y", "node_label", "labels"),
    "weight": ("edge_weight", "weight", "edge_attr"),
    "train": ("train_mask", "train"),
    "validation": ("val_mask", "validation_mask", "valid_mask", "validation", "valid", "val"),
    "test": ("test_mask", "test"),
}
_ARRAY_LIMIT = 2**36
# fb100's local_info: status, gender, major, second major, dormitory, year, school; 0 is unknown.
_FB100_COLUMNS = 7
_GENDER = 1


def is_graph_file(path: Path) -> bool:
    """Whether the name, or of a folder what is in it, says that one graph is there."""
    from weft.sources.ogb import is_ogb_folder

    name = path.name.removesuffix(".gz")
    return name.endswith(GRAPH_SUFFIXES) or (path.is_dir() and is_ogb_folder(path))


def is_edge_file(path: Path) -> bool:
    """Whether a file holds edges alone: text, Parquet or .npy."""
    suffix = Path(path.name.removesuffix(".gz")).suffix
    return not path.is_dir() and suffix not in _CONTAINERS


def node_places(graph: Graph) -> dict[str, int] | None:
    """The number of each node by its name, in their order; None where nodes have no names."""
    if "names" not in graph.ragged:
        return None
    return {name: number for number, name in enumerate(column_lines(graph.ragged["names"]))}


def read_graph(path: str | Path, *, columns: Sequence[EdgeColumn] = ("src", "dst")) -> Graph:
    """The graph in a file, or in a folder of OGB's layout, edges as they are stored.

    - `.npz` with `edge_index` [2, e] and what there is of `x`, `y`, `edge_weight`, `train_mask`,
      `val_mask`, `test_mask` and `num_nodes`; of Shchur et al.; or of `scipy.sparse.save_npz`.
    - `.pt`: a `Data` of torch_geometric, or a dict of tensors, by `torch.save`. It is read with
      `weights_only` and a list of what may be made: nothing in it runs.
    - `.mat`: the sparse matrix `A`, and of Facebook100 `local_info`: the gender is the class, the
      other columns are features, one-hot.
    - `.mtx`: MatrixMarket. `.parquet`, `.npy` [e, 2] or [2, e], or any text: edges alone.

    An entry (i, j) of a matrix is the edge i -> j; its value is the weight, unless all are 1.

    Args:
        path: the file or folder.
        columns: what the columns of an edge list are.

    Raises:
        DataError: the file is missing or damaged, or an array is missing or does not fit; the
            message names both.
    """
    from weft.sources.ogb import is_ogb_folder, read_ogb

    path = Path(path)
    if path.is_dir():
        if is_ogb_folder(path):
            return read_ogb(path)
        raise DataError(f"{path} is a folder of unknown layout: OGB's has raw/ and split/")
    if not path.exists():
        raise DataError(f"{path} is missing")
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix in (".npz", ".zip"):
        return _npz_graph(path)
    if suffix in (".pt", ".pth"):
        from weft.sources.saved_tensors import load_tensors

        return graph_of_arrays(path, load_tensors(path))
    if suffix == ".mat":
        return _mat_graph(path)
    if suffix == ".mtx":
        from weft.sources.matrix_market import read_matrix_market

        return read_matrix_market(path)
    return edge_list_graph(read_edge_list(path, columns=columns))


def graph_of_arrays(path: Path, arrays: Mapping[str, Any]) -> Graph:
    """The graph of arrays by their usual names, see `_CALLED`; `path` is for messages."""
    if "edge_index" not in arrays:
        found = ", ".join(sorted(map(str, arrays))) or "nothing"
        raise DataError(f"{path} has no 'edge_index', the edges [2, e]; it has {found}")
    given = {
        name: (called[0], arrays[called[0]])
        for name, names in _CALLED.items()
        if (called := [n for n in names if arrays.get(n) is not None])
    }
    for what, values in given.values():
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiub":
            raise DataError(f"{path}: '{what}' is not an array of numbers")
    _, ends = given.pop("edge_index")
    if ends.ndim != 2 or ends.shape[0] != 2 or ends.dtype.kind not in "iu":
        raise DataError(
            f"{path}: 'edge_index' is {ends.dtype}{list(ends.shape)}; whole numbers [2, e] are "
            "needed"
        )
    num_nodes = _num_nodes(path, arrays, given, ends)
    outside = (ends < 0) | (ends >= num_nodes)
    if outside.any():
        edge = int(np.argmax(outside.any(axis=0)))
        raise DataError(
            f"{path}: edge {edge} of 'edge_index' is {ends[0, edge]} -> {ends[1, edge]}, but the "
            f"nodes are 0 to {num_nodes - 1}"
        )
    ends = ends.astype(index_dtype(num_nodes), copy=False)
    nodes: dict[str, Array] = {}
    for name, (what, values) in given.items():
        where = f"{path}: '{what}'"
        if name == "x":
            nodes["x"] = checked_features(where, values, num_nodes)
        elif name == "y":
            nodes["y"] = checked_labels(where, values, num_nodes)
        elif name in PARTS:
            nodes[name] = checked_mask(where, values, num_nodes)
    edges = {}
    if "weight" in given:
        what, values = given["weight"]
        weight = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
        if weight.shape == (ends.shape[1],):
            edges["weight"] = weight
        elif what == "edge_attr" and len(weight) == ends.shape[1]:
            warnings.warn(
                f"{path}: 'edge_attr' has shape {list(values.shape)}, which is no weight of an "
                "edge; it is left out",
                stacklevel=2,
            )
        else:
            raise DataError(
                f"{path}: '{what}' has shape {list(values.shape)}; there are {ends.shape[1]} edges"
            )
    return Graph(num_nodes=num_nodes, senders=ends[0], receivers=ends[1], nodes=nodes, edges=edges)


def _num_nodes(
    path: Path, arrays: Mapping[str, Any], given: Mapping[str, tuple[str, Array]], ends: Array
) -> int:
    """What `num_nodes` says, else the rows of features or labels, else the largest number."""
    said = arrays.get("num_nodes")
    said = arrays.get("num_nodes_list") if said is None else said
    if said is not None:
        flat = np.asarray(said).reshape(-1)
        if flat.size != 1 or flat.dtype.kind not in "iu" or flat[0] < 0:
            raise DataError(f"{path}: 'num_nodes' is {said}; one whole number is needed")
        return int(flat[0])
    for name in ("x", "y"):
        if name in given and given[name][1].ndim:
            return len(given[name][1])
    return int(ends.max(initial=0)) + 1 if ends.size else 0


def checked_features(where: str, values: Array, num_nodes: int) -> Array:
    """Features [n, f] as they are; `where` begins the message of what is wrong with them."""
    if values.ndim != 2 or len(values) != num_nodes or values.dtype.kind not in "fiub":
        raise DataError(
            f"{where} is {values.dtype}{list(values.shape)}; a row of numbers for each of the "
            f"{num_nodes} nodes is needed, [n, f]"
        )
    return values


def checked_labels(where: str, values: Array, num_nodes: int) -> Array:
    """What nodes have to learn: classes int64 [n] if it is whole numbers [n] or [n, 1].

    Other numbers, those with NaN for none, and rows [n, t] stay as they are.
    """
    flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if flat.ndim not in (1, 2) or len(flat) != num_nodes or flat.dtype.kind not in "fiub":
        raise DataError(
            f"{where} is {values.dtype}{list(values.shape)}; a whole number for each of the "
            f"{num_nodes} nodes is needed, its class from 0, or -1 for none; or a row of labels "
            "or of numbers"
        )
    if flat.ndim == 2:
        return flat
    # Beyond 2^53 floats are no longer whole numbers that anybody wrote.
    if flat.dtype.kind == "f" and not ((np.abs(flat) < 2**53) & (flat == np.floor(flat))).all():
        return flat
    return flat.astype(np.int64)


def checked_mask(where: str, values: Array, num_nodes: int) -> Array:
    """A mask bool [n], from one, or from the numbers of the nodes that are in it."""
    # Before torch had bool, masks were uint8.
    mask_like = values.dtype.kind == "b" or (values.dtype == np.uint8 and (values <= 1).all())
    if mask_like and values.shape == (num_nodes,):
        return values.astype(np.bool_, copy=False)
    flat = values.reshape(-1) if values.ndim == 2 and 1 in values.shape else values
    if flat.dtype.kind not in "iu" or flat.ndim != 1:
        raise DataError(
            f"{where} is {values.dtype}{list(values.shape)}; a mask, bool [{num_nodes}], or the "
            "numbers of nodes are needed"
        )
    outside = (flat < 0) | (flat >= num_nodes)
    if outside.any():
        row = int(np.argmax(outside))
        raise DataError(
            f"{where} names node {flat[row]} in row {row}; the nodes are 0 to {num_nodes - 1}"
        )
    mask = np.zeros(num_nodes, dtype=np.bool_)
    mask[flat] = True
    if (repeated := len(flat) - int(mask.sum())) > 0:
        raise DataError(
            f"{where} repeats {repeated} numbers of nodes; if it is a mask, save it as bool"
        )
    return mask


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of numbers of an npz file, and text as str; nothing pickled is read."""
    arrays: dict[str, Array] = {}
    for member, content in members(path, limit=_ARRAY_LIMIT):
        try:
            arrays[member.removesuffix(".npy")] = read_array(content, allow_pickle=False)
        except (ValueError, EOFError, MemoryError) as error:
            if "allow_pickle" not in str(error):
                raise DataError(f"{path} cannot be read: {member}: {error}") from None
    return arrays


def _npz_graph(path: Path) -> Graph:
    try:
        with ZipFile(path) as archive:
            names = {name.removesuffix(".npy") for name in archive.namelist()}
    except (OSError, BadZipFile) as error:
        raise DataError(f"{path} is not a complete npz file ({error}); get it again") from None
    if {"format", "shape", "data"} <= names:
        return _scipy_graph(path, read_npz(path))
    if "edge_index" in names:
        return graph_of_arrays(path, read_npz(path))
    if "adj_data" in names or any(name.endswith(".npz") for name in names) or path.suffix == ".zip":
        from weft.sources.citation_graphs import shchur

        return shchur(path)
    raise DataError(
        f"{path} holds the arrays {', '.join(sorted(names)) or 'none'}; a graph has 'edge_index', "
        "or is a matrix by scipy.sparse.save_npz"
    )


def _scipy_graph(path: Path, arrays: dict[str, Array]) -> Graph:
    """The graph of what `scipy.sparse.save_npz` writes."""
    kind = arrays["format"].item()
    kind = kind.decode("ascii", "replace") if isinstance(kind, bytes) else str(kind)
    try:
        rows, columns = (int(size) for size in arrays["shape"])
        if kind == "coo":
            ends = arrays["row"], arrays["col"]
            matrix: Any = coo_matrix((arrays["data"], ends), shape=(rows, columns))
        elif kind in ("csr", "csc"):
            data, indices, indptr = (arrays[name] for name in ("data", "indices", "indptr"))
            shape = (rows, columns) if kind == "csr" else (columns, rows)
            matrix = checked_csr(data, indices, indptr, shape).tocoo()
            matrix = matrix if kind == "csr" else matrix.T
        else:
            raise DataError(f"{path} is a matrix of format '{kind}'; save it as csr, csc or coo")
    except KeyError as error:
        raise DataError(f"{path} has no array {error}, which a {kind} matrix has") from None
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} is no {kind} matrix: {error}") from None
    return _matrix_graph(path, matrix)


def _matrix_graph(path: Path, matrix: coo_matrix[Any], nodes: Mapping[str, Array] = {}) -> Graph:
    rows, columns = matrix.shape
    if rows != columns:
        raise DataError(f"{path} holds a matrix of {rows} x {columns}; a graph needs a square one")
    if matrix.data.dtype.kind not in "fiub":
        raise DataError(f"{path} holds a matrix of {matrix.data.dtype}; real numbers are needed")
    dtype = index_dtype(rows)
    plain = matrix.data.dtype.kind == "b" or bool((matrix.data == 1).all())
    return Graph(
        num_nodes=rows,
        senders=matrix.row.astype(dtype, copy=False),
        receivers=matrix.col.astype(dtype, copy=False),
        nodes=nodes,
        edges={} if plain else {"weight": matrix.data.astype(np.float64, copy=False)},
    )


def _mat_graph(path: Path) -> Graph:
    try:
        found = loadmat(path, variable_names=["A", "local_info"])
    except NotImplementedError:
        raise DataError(f"{path} is of MATLAB 7.3; save it again with -v7") from None
    # scipy's parser has errors of its own for every part of a damaged file.
    except Exception as error:
        raise DataError(f"{path} is not a complete .mat file ({error}); get it again") from None
    if not issparse(found.get("A")):
        raise DataError(f"{path} has no sparse matrix 'A', the edges")
    try:
        # The compiled loops of scipy's conversions trust the indices.
        held = found["A"].tocsc() if found["A"].format == "coo" else found["A"]
        matrix = checked_csr(held.data, held.indices, held.indptr, held.shape[::-1]).tocoo().T
    except ValueError as error:
        raise DataError(
            f"{path}: 'A' is not a sparse matrix ({error}); get the file again"
        ) from None
    info = found.get("local_info")
    if info is None:
        return _matrix_graph(path, matrix)
    if info.shape != (matrix.shape[0], _FB100_COLUMNS) or info.dtype.kind not in "fiu":
        raise DataError(
            f"{path}: 'local_info' is {info.dtype}{list(info.shape)}; Facebook100's is numbers "
            f"[{matrix.shape[0]}, {_FB100_COLUMNS}]"
        )
    y = checked_labels(
        f"{path}: column {_GENDER} of 'local_info'", info[:, _GENDER] - 1.0, len(info)
    )
    one_hot = [
        info[:, [column]] == np.unique(info[:, column])
        for column in range(_FB100_COLUMNS)
        if column != _GENDER
    ]
    x = np.concatenate(one_hot, axis=1).astype(np.uint8)
    return _matrix_graph(path, matrix, {"x": x, "y": y})
