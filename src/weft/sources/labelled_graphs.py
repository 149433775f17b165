"""Temporal graphs whose nodes have classes: edge lists with a file of labels, PubMed with years."""

from __future__ import annotations

import gzip
import io
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from weft.errors import DataError
from weft.files import bounded_lines
from weft.graphs import Array, Graph
from weft.sources.citations import planetoid
from weft.sources.edge_lists import edge_list_graph, read_edge_list

_LONGEST_LINE = 2**20


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeLabels:
    """Classes of nodes.

    Attributes:
        y: int64 [n], each node's class, 0..c-1; -1 for a node without.
        classes: what the file calls them, in order.
        strangers: lines of nodes that are none of the graph's.
    """

    y: Array
    classes: tuple[str, ...]
    strangers: int


def read_node_labels(path: str | Path, ids: Array) -> NodeLabels:
    """Read a text file, plain or gzip, with `node label` on each line.

    Tokens are separated by blanks, tabs or a comma; blank lines and lines that begin with # or %
    are passed over. Labels are whole numbers or names; classes are numbered in their order.

    Args:
        path: the file.
        ids: [n], what each node is called, as in `EdgeList.ids`.

    Raises:
        DataError: the file cannot be read, a line has not two tokens, a node has two classes, or
            no node has any; the message has file and line.
    """
    path = Path(path)
    places = {str(name): place for place, name in enumerate(ids.tolist())}
    found: dict[int, str] = {}
    strangers = 0
    for number, line in text_lines(path):
        if not line.strip() or line.lstrip()[0] in "#%":
            continue
        tokens = line.replace(",", " ").split()
        if len(tokens) != 2:
            raise DataError(
                f"{path}, line {number}: 2 tokens (node, label) wanted; the line is "
                f"{line.strip()[:80]!r}"
            )
        place = places.get(tokens[0])
        if place is None:
            strangers += 1
        elif found.setdefault(place, tokens[1]) != tokens[1]:
            raise DataError(
                f"{path}, line {number}: node {tokens[0]} has the label {found[place]} already; a "
                "node has one class"
            )
    if not found:
        raise DataError(f"{path} labels none of the graph's {len(ids):,} nodes")
    names = set(found.values())
    try:
        classes = sorted(names, key=lambda name: (int(name), name))
    except ValueError:
        classes = sorted(names)
    number_of = {name: number for number, name in enumerate(classes)}
    y = np.full(len(ids), -1, dtype=np.int64)
    y[list(found)] = [number_of[name] for name in found.values()]
    return NodeLabels(y=y, classes=tuple(classes), strangers=strangers)


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number (from 1) and text of the lines of a text file, plain or gzip.

    Raises:
        DataError: it is missing, damaged or not UTF-8, or a line is longer than 1 MiB.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            text = io.TextIOWrapper(stream, encoding="utf-8-sig")
            yield from bounded_lines(path, text, _LONGEST_LINE)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None


def labelled_graph(edges: str | Path, labels: str | Path) -> Graph:
    """The graph of an edge list `src dst time` with the node column `y` of a file of labels.

    Nodes that have a label but no edge are left out, with a warning that counts them. What the
    file calls the classes is the ragged column `classes`: UTF-8 text, a line feed after each.
    """
    edge_list = read_edge_list(edges)
    found = read_node_labels(labels, edge_list.ids)
    if found.strangers:
        warnings.warn(
            f"{labels} labels {found.strangers:,} nodes that have no edge in {edges}; they are "
            "left out",
            stacklevel=2,
        )
    graph = edge_list_graph(edge_list)
    classes = "".join(f"{name}\n" for name in found.classes).encode()
    return replace(
        graph,
        nodes={**graph.nodes, "y": found.y},
        ragged={**graph.ragged, "classes": np.frombuffer(classes, dtype=np.uint8)},
    )


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
