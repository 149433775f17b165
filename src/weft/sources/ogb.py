"""Node-property data sets in the layout of the Open Graph Benchmark: ogbn-arxiv, ogbn-products.

A folder as OGB's downloader leaves it:

    raw/    edge.csv.gz, num-node-list.csv.gz, num-edge-list.csv.gz, node-feat.csv.gz,
            node-label.csv.gz; the largest sets have data.npz and node-label.npz instead
    processed/geometric_data_processed.pt or processed/data_processed, without raw/
    split/NAME/train.csv.gz, valid.csv.gz, test.csv.gz, or split_dict.pt
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, Graph
from weft.sources.edge_lists import read_edge_list
from weft.sources.graph_files import PARTS, checked_labels, graph_of_arrays, read_npz
from weft.sources.node_files import read_numbers

_SPLIT_FILES = dict(zip(PARTS, ("train", "valid", "test"), strict=True))
_PROCESSED = ("geometric_data_processed.pt", "data_processed")


def is_ogb_folder(path: Path) -> bool:
    """Whether a folder looks like one of OGB's, or like one of which files are missing."""
    raw = path / "raw"
    known = ("num-node-list.csv.gz", "edge.csv.gz", "edge.csv", "data.npz")
    saved = any((path / "processed" / name).exists() for name in _PROCESSED)
    return (path / "split").is_dir() or saved or any((raw / name).exists() for name in known)


def read_ogb(folder: str | Path) -> Graph:
    """The graph of a folder of OGB's node-property layout, edges as stored, with its split.

    Node columns `x`, `y` and the masks. Raw files are read where there are any, else the
    processed ones; years of papers are not read.

    Raises:
        DataError: a file is missing, malformed, or does not fit the others; the message names it.
    """
    folder = Path(folder)
    raw, processed = folder / "raw", folder / "processed"
    saved = [processed / name for name in _PROCESSED if (processed / name).exists()]
    if (raw / "data.npz").exists():
        source = raw / "data.npz"
        arrays: dict[str, Any] = read_npz(source) | read_npz(_there(raw / "node-label.npz"))
    elif not saved or (raw.is_dir() and any(raw.iterdir())):
        source = raw
        arrays = _raw_arrays(raw)
    else:
        from weft.sources.saved_tensors import load_tensors

        source = saved[0]
        arrays = load_tensors(source)
        if isinstance(arrays.get("graph"), dict):
            arrays = {**arrays["graph"], "labels": arrays.get("labels")}
    graph = graph_of_arrays(source, arrays | _split(folder / "split"))
    y = graph.nodes.get("y")
    if y is not None and y.ndim == 1 and y.dtype.kind == "f":
        # One column of OGB's is classes, NaN where a node has none.
        y = checked_labels(f"{source}: the labels", np.where(np.isnan(y), -1.0, y), len(y))
        graph = replace(graph, nodes={**graph.nodes, "y": y})
    return graph


def _there(path: Path) -> Path:
    """The file, or the same without .gz, which is what is left after unpacking it."""
    if path.exists():
        return path
    plain = path.with_name(path.name.removesuffix(".gz"))
    if plain.exists():
        return plain
    raise DataError(f"{path} is missing; a folder of OGB's layout has it: get the data set again")


def _raw_arrays(raw: Path) -> dict[str, Any]:
    nodes, edges = (_count(_there(raw / f"num-{what}-list.csv.gz")) for what in ("node", "edge"))
    file = _there(raw / "edge.csv.gz")
    listed = read_edge_list(file, columns=("src", "dst"), ids="integer")
    if listed.num_edges != edges:
        raise DataError(
            f"{file} has {listed.num_edges:,} edges; num-edge-list says {edges:,}: get it again"
        )
    ends = np.stack([listed.ids[listed.senders], listed.ids[listed.receivers]])
    found: dict[str, Any] = {"edge_index": ends, "num_nodes": nodes}
    for name, called, dtype in (("x", "node-feat", np.float32), ("y", "node-label", np.float64)):
        path = _there(raw / f"{called}.csv.gz")
        found[name] = read_numbers(path, dtype)
        if len(found[name]) != nodes:
            raise DataError(
                f"{path} has {len(found[name]):,} rows; num-node-list says {nodes:,} nodes"
            )
    return found


def _count(path: Path) -> int:
    """The only number of a file."""
    numbers = read_numbers(path, np.int64).reshape(-1)
    if numbers.size != 1:
        raise DataError(f"{path} has {numbers.size} numbers; one graph's folder has one there")
    return int(numbers[0])


def _split(folder: Path) -> dict[str, Array]:
    """Numbers of the nodes of each part, of the one split that there is; none without a split."""
    if not folder.is_dir():
        return {}
    named = sorted(path for path in folder.iterdir() if path.is_dir())
    if len(named) > 1:
        raise DataError(
            f"{folder} has the splits {', '.join(path.name for path in named)}; keep one of them"
        )
    place = named[0] if named else folder
    if (place / "split_dict.pt").exists():
        from weft.sources.saved_tensors import load_tensors

        saved = load_tensors(place / "split_dict.pt")
        found = {part: saved.get(name) for part, name in _SPLIT_FILES.items()}
        if absent := [_SPLIT_FILES[part] for part, nodes in found.items() if nodes is None]:
            raise DataError(f"{place / 'split_dict.pt'} has no '{absent[0]}'")
        return {part: np.asarray(nodes) for part, nodes in found.items()}
    return {
        part: read_numbers(_there(place / f"{name}.csv.gz"), np.int64).reshape(-1)
        for part, name in _SPLIT_FILES.items()
    }
