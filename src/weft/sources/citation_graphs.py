"""Citation and co-purchase graphs: Planetoid's files, Cora from a package, Shchur et al.'s npz."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import read_array
from scipy.sparse import csr_matrix

from weft.errors import DataError
from weft.graphs import Array, Graph
from weft.sources.archive import members
from weft.sources.download import fetch
from weft.sources.edge_lists import both_directions
from weft.sources.pickles import checked_csr, load_pickle

PLANETOID_NAMES = ("cora", "citeseer", "pubmed")

PLANETOID_FILES = {
    "ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    "ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "ind.citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "ind.citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    "ind.cora.allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "ind.cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "ind.cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "ind.cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    "ind.cora.tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "ind.cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "ind.cora.x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "ind.cora.y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
    "ind.pubmed.allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
    "ind.pubmed.ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
    "ind.pubmed.graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
    "ind.pubmed.test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
    "ind.pubmed.tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
    "ind.pubmed.ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    "ind.pubmed.x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
    "ind.pubmed.y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
}
"""SHA-256 of each file."""

_PLANETOID_ADDRESS = (
    "https://github.com/tkipf/gcn/raw/39a4089fe72ad9f055ed6fdb9746abdcfebc4d81/gcn/data"
)
_VALIDATION_NODES = 500
# Bytes of an array of Shchur et al.: Coauthor Physics has 1.2 GB of features.
_ARRAY_LIMIT = 2**31
_CSR = ("data", "indices", "indptr", "shape")
_SHCHUR_ARRAYS = {
    "labels",
    "attr_matrix",
    *(f"{m}_{part}" for m in ("adj", "attr") for part in _CSR),
}


def fetch_planetoid(name: str, folder: str | Path, *, progress: bool = True) -> Path:
    """Download the files of `cora`, `citeseer` or `pubmed` to `folder`; what is there stays."""
    _check_name(name)
    for file, sha256 in PLANETOID_FILES.items():
        if file.startswith(f"ind.{name}."):
            fetch(f"{_PLANETOID_ADDRESS}/{file}", sha256, folder=Path(folder), progress=progress)
    return Path(folder)


def planetoid(folder: str | Path, name: str) -> Graph:
    """A citation graph with the public split of Yang et al. (2016).

    Edges are undirected: both directions of each, once, without self-loops. Node columns:
    `x` float32 [n, f] as published (see `row_normalise`), `y` int64 [n], and the masks `train`
    (20 nodes a class), `validation` (500) and `test` (1000), bool [n]. CiteSeer has 15 nodes
    that have edges in its files but neither words nor class: x = 0, y = -1, in no mask.

    Args:
        folder: holds the eight files `ind.<name>.*`.
        name: `cora`, `citeseer` or `pubmed`.

    Raises:
        DataError: a file is missing, damaged, or does not fit the others; the message names it.
    """
    _check_name(name)
    folder = Path(folder)

    def path(part: str) -> Path:
        return folder / f"ind.{name}.{part}"

    test = _read_numbers(path("test.index"))
    known_x, test_x = (_load(path(part), csr_matrix) for part in ("allx", "tx"))
    known = known_x.shape[0]
    num_train = len(_classes(path("y")))
    if known < num_train + _VALIDATION_NODES or known_x.shape[1] != test_x.shape[1]:
        raise DataError(
            f"{path('allx')} has {known} rows of {known_x.shape[1]} features; the files y and tx "
            f"want at least {num_train + _VALIDATION_NODES} rows of {test_x.shape[1]}"
        )
    named = np.unique(test)
    if test_x.shape[0] != len(named) or len(test) != len(named) or not (named >= known).all():
        raise DataError(
            f"{path('test.index')} must name {test_x.shape[0]} different nodes from {known} on, "
            "as the files tx and allx say; get the files again"
        )
    num_nodes = int(test.max(initial=known - 1)) + 1
    if num_nodes > 2 * (known + len(test)):
        raise DataError(
            f"{path('test.index')} names node {num_nodes - 1}, but the files allx and tx describe "
            f"{known + len(test)} nodes in all; get the files again"
        )
    x = np.zeros((num_nodes, known_x.shape[1]), dtype=np.float32)
    x[:known] = known_x.toarray()
    x[test] = test_x.toarray()
    y = np.full(num_nodes, -1, dtype=np.int64)
    y[:known] = _classes(path("ally"), known)
    y[test] = _classes(path("ty"), len(test))
    senders, receivers = _neighbour_lists(path("graph"), num_nodes)
    chosen = (slice(num_train), slice(num_train, num_train + _VALIDATION_NODES), test)
    nodes = {"x": x, "y": y, **_masks(num_nodes, *chosen)}
    return Graph(num_nodes=num_nodes, senders=senders, receivers=receivers, nodes=nodes)


def _check_name(name: str) -> None:
    if name not in PLANETOID_NAMES:
        raise DataError(f"no citation graph {name!r}; choose from {', '.join(PLANETOID_NAMES)}")


def _load(path: Path, kind: type) -> Any:
    loaded = load_pickle(path)
    if not isinstance(loaded, kind):
        raise DataError(f"{path} holds a {type(loaded).__name__}; a {kind.__name__} is needed")
    return loaded


def _classes(path: Path, rows: int | None = None) -> Array:
    """The classes in a file of one-hot rows; None for any number of rows."""
    labels = _load(path, np.ndarray)
    if labels.ndim != 2 or (rows is not None and len(labels) != rows):
        wanted = "one-hot rows" if rows is None else f"{rows} one-hot rows"
        raise DataError(f"{path} has shape {list(labels.shape)}, not {wanted}")
    wrong = ((labels == 1).sum(axis=1) != 1) | ((labels != 0).sum(axis=1) != 1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"{path}: row {row} is {labels[row].tolist()}, which is not one-hot")
    classes: Array = labels.argmax(axis=1)
    return classes


def _read_numbers(path: Path) -> Array:
    try:
        return np.array(path.read_text(encoding="ascii").split(), dtype=np.int64)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except (ValueError, OverflowError) as error:
        raise DataError(f"{path} must have a node number on each line: {error}") from None


def _neighbour_lists(path: Path, num_nodes: int) -> tuple[Array, Array]:
    neighbours = _load(path, dict)
    try:
        counts = [len(found) for found in neighbours.values()]
        nodes = _node_numbers(list(neighbours))
        receivers = _node_numbers([v for found in neighbours.values() for v in found])
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{path} must hold a list of node numbers for a node: {error}") from None
    senders = np.repeat(nodes, counts)
    for ends in (senders, receivers):
        if ends.size and (ends.min() < 0 or ends.max() >= num_nodes):
            bad = int(ends[(ends < 0) | (ends >= num_nodes)][0])
            raise DataError(f"{path} names node {bad}, out of range for {num_nodes} nodes")
    return both_directions(senders, receivers, num_nodes)


def _node_numbers(values: list[Any]) -> Array:
    for value in values:
        if type(value) is not int:
            raise TypeError(f"{value!r} is not a whole number")
    return np.array(values, dtype=np.int64)


def _masks(num_nodes: int, *chosen: Array | slice) -> dict[str, Array]:
    """bool [n] for training, validation and test: the nodes `chosen` for each."""
    masks = np.zeros((3, num_nodes), dtype=np.bool_)
    for mask, nodes in zip(masks, chosen, strict=True):
        mask[nodes] = True
    return dict(zip(("train", "validation", "test"), masks, strict=True))


def row_normalise(x: Array) -> Array:
    """Every row of x [n, f] divided by its sum, as the GCN paper does; rows of sum 0 stay 0."""
    sums = x.sum(axis=1, keepdims=True)
    normalised: Array = np.divide(x, sums, out=np.zeros_like(x), where=sums != 0)
    return normalised


def random_split(
    y: Array, *, per_class: int = 20, validation: int = 500, test: int = 1000, seed: int = 0
) -> dict[str, Array]:
    """Random masks `train`, `validation` and `test`, bool [n], of the public split's sizes.

    Args:
        y: int [n], classes; nodes with y < 0 have none and are in no mask.
        per_class: training nodes of each class.
        validation: validation nodes.
        test: test nodes.
        seed: the same seed makes the same split.

    Raises:
        DataError: too few nodes in a class or in all.
    """
    order = np.random.default_rng(seed).permutation(np.flatnonzero(y >= 0))
    chosen = []
    for label in np.unique(y[order]):
        members = order[y[order] == label]
        if len(members) < per_class:
            raise DataError(
                f"class {label} has {len(members)} nodes, too few for {per_class} to train on"
            )
        chosen.append(members[:per_class])
    train = np.concatenate([np.empty(0, dtype=np.int64), *chosen])
    rest = order[~np.isin(order, train)]
    if len(rest) < validation + test:
        raise DataError(
            f"{len(rest)} nodes are left after the {len(train)} training nodes, too few for "
            f"{validation} validation and {test} test nodes"
        )
    return _masks(len(y), train, rest[:validation], rest[validation : validation + test])


def cora_from_package() -> Graph:
    """Cora as LINQS published it, out of the installed package `graphdatascience`: no download.

    Columns as in `planetoid`, but the nodes are in another order and the split is `random_split`
    with seed 0, so accuracies are near those of the public split, not the same.

    Raises:
        DataError: the package, or pyarrow to read it, is not installed.
    """
    spec = find_spec("graphdatascience")
    if spec is None or spec.origin is None or find_spec("pyarrow") is None:
        raise DataError(
            "Cora comes out of the package graphdatascience, read with pyarrow; "
            "install them with: pip install 'weft[data]'"
        )
    # Importing the package needs a database driver and pandas; only its files are needed here.
    folder = Path(spec.origin).parent / "resources" / "cora"
    nodes = _read_parquet(folder / "cora_nodes.parquet.gzip", ("nodeId", "subject", "features"))
    cites = _read_parquet(folder / "cora_rels.parquet.gzip", ("sourceNodeId", "targetNodeId"))
    ids = nodes["nodeId"].to_numpy()
    order = np.argsort(ids)
    senders, receivers = (
        order[np.searchsorted(ids, cites[end].to_numpy(), sorter=order)]
        for end in ("sourceNodeId", "targetNodeId")
    )
    senders, receivers = both_directions(senders, receivers, len(ids))
    features = nodes["features"].combine_chunks().flatten().to_numpy()
    x = features.reshape(len(ids), -1).astype(np.float32)
    y = nodes["subject"].to_numpy().astype(np.int64)
    columns = {"x": x, "y": y, **random_split(y)}
    return Graph(num_nodes=len(ids), senders=senders, receivers=receivers, nodes=columns)


def _read_parquet(path: Path, columns: tuple[str, ...]) -> Any:
    from pyarrow import ArrowException
    from pyarrow.parquet import read_table

    try:
        return read_table(path, columns=list(columns))
    except (OSError, ArrowException) as error:
        raise DataError(
            f"{path} cannot be read ({error}); install the package again: pip install 'weft[data]'"
        ) from None


def shchur(path: str | Path) -> Graph:
    """A graph of Shchur et al. (2018), Amazon or Coauthor: an npz file, or a zip that holds one.

    Edges as in `planetoid`; node columns `x` and `y`, no split (see `random_split`). x is dense:
    n * f * 4 bytes, 1.2 GB for Coauthor Physics (34,493 x 8,415), 50 MB for Amazon Computers.

    Raises:
        DataError: the file is missing or damaged, or an array is missing or wrong.
    """
    path = Path(path)
    arrays = _npz(path)
    try:
        adjacency = checked_csr(*(arrays[f"adj_{part}"] for part in _CSR))
        dense = "attr_matrix" in arrays
        attributes = [] if dense else [arrays[f"attr_{part}"] for part in _CSR]
        x = arrays["attr_matrix"] if dense else checked_csr(*attributes).toarray()
        y = arrays["labels"].astype(np.int64)
    except KeyError as error:
        raise DataError(f"{path} has no array {error}") from None
    except ValueError as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    num_nodes = adjacency.shape[0]
    if adjacency.shape[1] != num_nodes or len(x) != num_nodes or len(y) != num_nodes:
        raise DataError(
            f"{path}: the adjacency matrix is {adjacency.shape[0]} x {adjacency.shape[1]}, but "
            f"there are {len(x)} rows of features and {len(y)} labels"
        )
    entries = adjacency.tocoo()
    senders, receivers = both_directions(entries.row, entries.col, num_nodes)
    return Graph(
        num_nodes=num_nodes,
        senders=senders,
        receivers=receivers,
        nodes={"x": x.astype(np.float32, copy=False), "y": y},
    )


def _npz(path: Path) -> dict[str, Array]:
    """The arrays of an npz file, or of the npz file in a zip."""
    arrays: dict[str, Array] = {}
    for name, file in members(path, limit=_ARRAY_LIMIT):
        packed = name.endswith(".npz")
        inside = members(path, inside=file, limit=_ARRAY_LIMIT) if packed else [(name, file)]
        for member, content in inside:
            if member in arrays:
                raise DataError(f"{path} holds {member} twice; name the npz file to read")
            # Names of nodes and classes are there too, as pickles; they are not read.
            if member.removesuffix(".npy") in _SHCHUR_ARRAYS:
                try:
                    arrays[member] = read_array(content, allow_pickle=False)
                except (ValueError, EOFError, MemoryError) as error:
                    raise DataError(f"{path} cannot be read: {member}: {error}") from None
    return {name.removesuffix(".npy"): array for name, array in arrays.items()}


def pubmed_temporal(planetoid_folder: str | Path, temporal_folder: str | Path) -> Graph:
    """PubMed's citations with the year of each, counted from the oldest paper (Passos et al. 2024).

    Edges go from the citing paper to the cited one and have the column `time`; node columns are
    those of `planetoid`.

    Args:
        planetoid_folder: holds the files `ind.pubmed.*`.
        temporal_folder: holds `edge_time.npy` and `edge_directed.npy`, in the order of PubMed's
            edges, both directions of each, by (from, to).

    Raises:
        DataError: a file is missing, damaged, or does not fit the others.
    """
    graph = planetoid(planetoid_folder, "pubmed")
    folder = Path(temporal_folder)
    time, directed = (_npy(folder / f"{name}.npy") for name in ("edge_time", "edge_directed"))
    if time.shape != (graph.num_edges,) or directed.shape != (graph.num_edges,):
        raise DataError(
            f"{folder}: edge_time has shape {list(time.shape)} and edge_directed "
            f"{list(directed.shape)}; PubMed has {graph.num_edges} directed edges"
        )
    cites = directed.astype(np.bool_)
    # Ours are sorted by (receiver, sender); both directions are there, so that is (from, to).
    return Graph(
        num_nodes=graph.num_nodes,
        senders=graph.receivers[cites],
        receivers=graph.senders[cites],
        nodes=graph.nodes,
        edges={"time": time[cites].astype(np.float64)},
    )


def _npy(path: Path) -> Array:
    try:
        array: Array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    return array
