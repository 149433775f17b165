"""The graph that ranks share, prepared once: from the catalogue, a table or the user's files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, Graph, GraphTable, open_table, symmetrised
from weft.graphs.store import MANIFEST, array_sums
from weft.parallel.grid import Grid
from weft.parallel.labels import METRICS, TargetKind, as_target, is_known, width_of
from weft.parallel.prepare import prepare
from weft.parallel.shard import KIND
from weft.parallel.splits import PARTS, check_apart, one_graph, share_split, with_split
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.full_graph.streaming import ListedGraph
from weft.recipes.structures.data import file_name_of, file_states, own_path
from weft.sources import cached_table, load, read_edge_list, read_graph, row_normalise
from weft.sources.config import EdgeColumn
from weft.sources.edge_lists import both_directions, text_column
from weft.sources.graph_files import checked_features, is_edge_file, node_places
from weft.sources.node_files import read_features, read_labels, read_mask

# A part of the key of cached tables, changed whenever the same data gives another table.
_VERSION = 3
_WHOLE = re.compile("0|-?[1-9][0-9]{0,17}")
_BOTH_FILES = "--features FILE.npy and --labels FILE.npy"


def full_graph_table(
    config: FullGraphConfig,
    *,
    files: Sequence[Path] = (),
    data_dir: Path | None = None,
    progress: bool = True,
    tell: Callable[[str], None] = lambda text: None,
    unlabelled: bool = False,
    features: str | None = None,
    memory: int | None = None,
    grid: Grid | None = None,
) -> tuple[GraphTable, Grid]:
    """The graph of `config`, prepared for its grid, and the grid.

    The table is kept in the data folder, under a name made of the data and the settings that
    matter, so that the next run and every rank only map it.

    Args:
        config: the recipe.
        files: files of the data set of that name, instead of cached or downloaded ones.
        data_dir: the data folder.
        progress: show progress bars while data is read.
        tell: called with the name of each stage; partitions of large graphs take a while.
        unlabelled: nothing is learned, so that classes and a split are not needed and not read.
        features: .npy for an edge list without classes.
        memory: bytes that this process may hold while it prepares an edge list, whose edges stay
            on disk then; the table is the same.
        grid: to cut it for, by default that of `config`.

    Raises:
        DataError: there is no such data, or it lacks features, classes or a split.
        ValueError: the grid does not fit, or there are fewer nodes than ranks.
    """
    listed = None if memory is None else ListedGraph.open(config, files, memory)
    source, stamp = (
        _source(config, files, data_dir, features, progress=progress)
        if listed is None
        else (listed.nodes, listed.stamp)
    )
    if isinstance(source, GraphTable) and source.metadata.get("kind") == KIND:
        about = source.metadata
        if grid is not None:
            raise DataError(
                f"{config.data} was prepared already and cannot be cut into clusters; give the "
                "graph that it was made of"
            )
        grid = config.chosen_grid(
            source.total_nodes, source.total_edges, source.column("x").shape[1], about["classes"]
        )
        if about["normalisation"] != config.matrix:
            raise DataError(
                f"{config.data} was prepared with normalisation {about['normalisation']}, and "
                f"{config.matrix} is requested; prepare it again or pass --normalisation "
                f"{about['normalisation']}"
            )
        check_precision(source, config)
        how = about["partition"]["how"]
        split = config.split is not None or config.mask_files
        if config.partition not in ("contiguous", how) or split:
            raise DataError(
                f"{config.data} was prepared with a split and the partition {how}; leave "
                "--partition, --split and masks out, or prepare it again"
            )
        return source, grid
    if unlabelled:
        graph = one_graph(source)
        features_only = {name: values for name, values in graph.nodes.items() if name == "x"}
        source = replace(graph, nodes=features_only)
    nodes, nonzeros, width, outputs = _sizes(source, config, unlabelled=unlabelled)
    nonzeros += 0 if listed is None else listed.about_edges()
    grid = grid or config.chosen_grid(nodes, nonzeros, width, outputs)
    settings: dict[str, Any] = {
        "blocks": grid.blocks,
        "partition": config.partition,
        "normalisation": config.matrix,
        "dtype": config.dtype,
        "seed": config.seed,
    }
    if config.target != "auto" and not unlabelled:
        settings["target"] = config.target
    made_of = {
        "version": _VERSION,
        "source": stamp,
        "directed": config.directed,
        "split": config.split,
        "unlabelled": unlabelled,
        "scale": config.feature_scale,
        **settings,
    }
    # Others are the same for any grid with so many blocks.
    cut_for = grid if config.partition == "balanced" else None
    if cut_for is not None:
        made_of["grid"] = [grid.shape, grid.replicated]
    if config.edge_weight is not None:
        made_of["edge weight"] = config.edge_weight
    if config.mask_files and not unlabelled:
        made_of["masks"] = [*config.mask_files, *file_states(map(Path, config.mask_files.values()))]
    key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]

    def build(path: Path) -> GraphTable:
        if listed is not None:
            # Features are scaled as they are written: they may not fit in memory either.
            whole = source_graph(replace(config, feature_scale="none"), source)
            return listed.prepare(
                whole, path, grid=cut_for, tell=tell, show=progress, settings=settings
            )
        graph = source_graph(config, source, unlabelled=unlabelled)
        with _data_named(config.data):
            return prepare(graph, path, grid=cut_for, progress=tell, **settings)

    name = f"full-graph-{file_name_of(config.data)}-{key}"
    remedy = f"remove the folder {name}.weft there and start again"
    return cached_table(name, build, data_dir=data_dir, remedy=remedy), grid


def full_graph_clusters(config: FullGraphConfig, **options: Any) -> GraphTable | None:
    """The same graph in the clusters that `config` asks for, with weights as they are; or None.

    Args:
        config: the recipe.
        options: of `full_graph_table`.
    """
    if config.clusters is None:
        return None
    raw = replace(config, partition="metis", normalisation="none")
    return full_graph_table(raw, grid=Grid(rows=config.clusters), **options)[0]


@contextmanager
def _data_named(data: str) -> Iterator[None]:
    """Say which data it is that cannot be prepared."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{data}: {error}") from None


def check_precision(table: GraphTable, config: FullGraphConfig) -> None:
    """Raise DataError where a prepared matrix is less exact than the training requested."""
    held = table.column("weight").dtype
    if np.dtype(config.dtype).itemsize > held.itemsize:
        raise DataError(
            f"{config.data} was prepared with a matrix of {held}, and dtype {config.dtype} is "
            f"requested; prepare it again with dtype {config.dtype}, or pass --dtype {held}"
        )


def check_target(table: GraphTable, config: FullGraphConfig) -> None:
    """Raise DataError where the metric to watch or the class weights do not fit the target."""
    kind: TargetKind = table.metadata.get("target", "classes")
    known = [f"validation_{name}" for name in (*METRICS[kind], "loss")]
    if config.monitor not in (None, *known):
        raise DataError(
            f"monitor is {config.monitor!r}, but the target is {kind}: choose from "
            f"{', '.join(known)}"
        )
    given, width = config.class_weights, int(table.metadata["classes"])
    if given and kind == "regression":
        raise DataError("class weights are given, but the target is numbers; leave them out")
    if given and list(given) != ["balanced"] and len(given) != width:
        raise DataError(
            f"{len(given)} class weights for {width} outputs: give one for each, or balanced"
        )


def source_graph(
    config: FullGraphConfig, source: Graph | GraphTable, *, unlabelled: bool = False
) -> Graph:
    """The graph with the scaled features and, unless `unlabelled`, the split of `config`.

    Raises:
        DataError: it has no features or classes, or too few nodes of a class for the split.
    """
    graph = _weighted(config, one_graph(source))
    for name in ("x",) if unlabelled else ("x", "y"):
        if name not in graph.nodes:
            files = "--features FILE.npy" if unlabelled else _BOTH_FILES
            raise DataError(
                f"{config.data} has no node column '{name}'; to classify nodes, give {files} with "
                "an edge list"
            )
    if not unlabelled:
        graph = _split(config, graph)
    x = graph.nodes["x"]
    if config.feature_scale == "rows" or (
        config.feature_scale == "auto" and bool((np.asarray(x) >= 0).all())
    ):
        # At least as exact as what it is multiplied with.
        wide = np.result_type(x.dtype if x.dtype.kind == "f" else np.float32, config.dtype)
        x = row_normalise(x.astype(wide, copy=False))
    return replace(graph, nodes={**graph.nodes, "x": x})


def _weighted(config: FullGraphConfig, graph: Graph) -> Graph:
    """The graph with the edge column as weights that `config` names; `none` takes weights away."""
    if config.edge_weight is None:
        return graph
    if config.edge_weight == "none":
        return replace(graph, edges={})
    name, _, number = config.edge_weight.partition(":")
    if name not in graph.edges:
        raise DataError(
            f"{config.data} has no edge column '{name}'; it has {', '.join(graph.edges) or 'none'}"
        )
    values = graph.edges[name].reshape(graph.num_edges, -1)
    column = int(number) if number.isdecimal() else 0 if values.shape[1] == 1 else -1
    if not 0 <= column < values.shape[1] or (number and not number.isdecimal()):
        raise DataError(
            f"--edge-weight {config.edge_weight}: the edge column '{name}' has "
            f"{values.shape[1]} numbers an edge; name one, such as {name}:0"
        )
    return replace(graph, edges={"weight": values[:, column]})


def _split(config: FullGraphConfig, graph: Graph) -> Graph:
    if config.mask_files:
        places = node_places(graph)
        masks = {part: np.zeros(graph.num_nodes, dtype=np.bool_) for part in PARTS}
        for part, file in config.mask_files.items():
            masks[part] = read_mask(Path(file), graph.num_nodes, places)
        check_apart(masks, files=config.mask_files, names=None if places is None else list(places))
        return with_split(graph, masks)
    kind, y = as_target(graph.nodes["y"], config.target)
    if config.split is not None:
        # A node is drawn for what it has to learn from, whatever that is.
        known = np.where(is_known(y), 0, -1)
        masks = share_split(known, shares=config.split, seed=config.seed)
        return with_split(graph, masks)
    if kind != "classes" and not all(name in graph.nodes for name in PARTS):
        raise DataError(
            f"{config.data} has no split, and a default one is by class; pass --split 0.6 0.2 0.2"
        )
    try:
        return with_split(graph)
    except DataError as error:
        raise DataError(f"{config.data}: {error}, such as --split 0.6 0.2 0.2") from None


def _sizes(
    source: Graph | GraphTable, config: FullGraphConfig, *, unlabelled: bool
) -> tuple[int, int, int, int]:
    """Nodes, nonzeros of the matrix, features and classes."""
    graph = one_graph(source)
    if "x" not in graph.nodes or ("y" not in graph.nodes and not unlabelled):
        # This raises an error that names what is missing.
        source_graph(config, graph, unlabelled=unlabelled)
    loops = graph.num_nodes if config.matrix == "symmetric" else 0
    x = graph.nodes["x"]
    width = x.shape[1] if x.ndim == 2 else 1
    outputs = 1 if unlabelled else width_of(as_target(graph.nodes["y"], config.target)[1])
    return graph.num_nodes, graph.num_edges + loops, width, max(1, outputs)


def _source(
    config: FullGraphConfig,
    files: Sequence[Path],
    data_dir: Path | None,
    features: str | None,
    *,
    progress: bool,
) -> tuple[Graph | GraphTable, Any]:
    """The graph as it is stored, and a stamp that identifies it."""
    data = config.data
    path = own_path(data, ["one graph"], "one graph to classify nodes of", files)
    if path is None:
        if config.features is not None or config.labels is not None:
            raise DataError(
                f"'{data}' has features already; --features and --labels are for your own files"
            )
        table = load(data, files=files, data_dir=data_dir, progress=progress)
        return table, _table_stamp(table)
    if (path / MANIFEST).exists():
        if extra := config.features or config.labels or features:
            raise DataError(f"{path} is a graph table with its own columns; leave {extra} out")
        table = open_table(path)
        return table, _table_stamp(table)
    given = [Path(file) for file in (config.features or features, config.labels) if file]
    graph = own_graph(
        path,
        columns=config.columns,
        directed=config.directed,
        features=config.features or features,
        labels=config.labels,
    )
    return graph, [list(config.columns), *file_states([*_files_in(path), *given])]


def _files_in(path: Path) -> list[Path]:
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def _table_stamp(table: GraphTable) -> Any:
    assert table.path is not None
    return array_sums(table.path)


def own_graph(
    path: Path,
    *,
    columns: tuple[EdgeColumn, ...] = ("src", "dst"),
    directed: bool = False,
    features: str | None = None,
    labels: str | None = None,
) -> Graph:
    """The graph in a file or folder, see `weft.sources.read_graph`, with the features and classes.

    Args:
        path: the graph; edges alone (text, Parquet, .npy) need `features`, which count the nodes.
        columns: what the columns of an edge list are.
        directed: take edges as they are; otherwise each goes both ways.
        features: .npy [n, f]: row i belongs to the node that is called i; or a table (CSV,
            Parquet) whose first column names the nodes.
        labels: .npy [n], or a table of `node,label`.

    Raises:
        DataError: a file is missing, malformed, or does not fit the others; the message names it.
    """
    names = None
    if is_edge_file(path):
        if features is None:
            raise DataError(f"{path} holds edges alone; to classify nodes, give {_BOTH_FILES}")
        x, names = read_features(Path(features))
        graph = _listed(path, columns, x, names, features)
    else:
        graph = read_graph(path, columns=columns)
        if features is not None:
            x, names = read_features(Path(features))
            if names is not None:
                raise DataError(
                    f"{features} names its nodes, but those of {path} are numbered; give a .npy "
                    "with row i for node i"
                )
            x = checked_features(str(features), x, graph.num_nodes)
            graph = replace(graph, nodes={**graph.nodes, "x": x})
    if labels is not None:
        y, classes = read_labels(Path(labels), graph.num_nodes, node_places(graph))
        ragged = {**graph.ragged, **({"classes": text_column(classes)} if classes else {})}
        graph = replace(graph, nodes={**graph.nodes, "y": y}, ragged=ragged)
    if directed:
        return graph
    if "weight" in graph.edges:
        return _weighed_both_ways(graph, path)
    senders, receivers = both_directions(graph.senders, graph.receivers, graph.num_nodes)
    return replace(graph, senders=senders, receivers=receivers, edges={})


def _listed(
    path: Path, columns: tuple[EdgeColumn, ...], x: Array, names: list[str] | None, features: str
) -> Graph:
    """The graph of an edge list whose nodes are the rows of x."""
    # Whole numbers are read as such: many times faster than names.
    whole = names is None or all(_WHOLE.fullmatch(name) for name in names)
    listed = read_edge_list(path, columns=columns, ids="integer" if whole else "text")
    place = listed.ids
    if names is not None:
        places = {name: number for number, name in enumerate(names)}
        called = [str(name) for name in listed.ids.tolist()]
        if absent := [name for name in called if name not in places]:
            raise DataError(f"{path} names node {absent[0]!r}, which {features} has no row for")
        place = np.array([places[name] for name in called], dtype=np.int64)
    elif listed.num_nodes and not 0 <= int(listed.ids[0]) <= int(listed.ids[-1]) < len(x):
        bad = listed.ids[0] if listed.ids[0] < 0 else listed.ids[-1]
        raise DataError(
            f"{path} names node {bad}; {features} has {len(x)} rows, so nodes are called 0 to "
            f"{len(x) - 1}"
        )
    return Graph(
        num_nodes=len(x),
        senders=place[listed.senders],
        receivers=place[listed.receivers],
        nodes={"x": x},
        edges={} if listed.weight is None else {"weight": listed.weight},
        ragged={} if names is None else {"names": text_column(names)},
    )


def _weighed_both_ways(graph: Graph, path: Path) -> Graph:
    """The graph with each edge in both directions, of the weight that the list gives the pair."""
    low = np.minimum(graph.senders, graph.receivers)
    high = np.maximum(graph.senders, graph.receivers)
    weights = graph.edges["weight"]
    order = np.lexsort((weights, high, low))
    same = (np.diff(low[order]) == 0) & (np.diff(high[order]) == 0)
    differ = np.flatnonzero(same & (np.diff(weights[order]) != 0))
    if differ.size:
        first, second = order[differ[0]], order[differ[0] + 1]
        raise DataError(
            f"{path} gives nodes {low[first]} and {high[first]} the weights {weights[first]:g} and "
            f"{weights[second]:g}; give a pair one weight, or take edges as they are (--directed)"
        )
    return symmetrised(graph)
