"""Tables of programs made ready for training: read, checked, split by file, their baselines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.files import json_text, write_atomically
from weft.graphs import Array, Budget, GraphTable
from weft.recipes.programs.config import Target
from weft.recipes.structures.data import (
    file_name_of,
    file_states,
    own_path,
    sums_by_graph,
)
from weft.sources import load
from weft.sources.program_graph import CANDIDATE, MISUSE_SCHEMA, SLOT, text_order
from weft.sources.python_programs import PARTS, STANDARD_LIBRARY, python_files, split_by_file
from weft.sources.python_units import EXTRACTION

SPY = "spy.json"
"""File of a run with where the edges of its first supergraph are, as text and as reordered."""

_CELLS = 96
_DISTANCES = (8, 16, 32, 64, 128, 256, 512)
# Room for edges above the mean of full supergraphs, so that nodes are what fills them.
_EDGE_SLACK = 1.25
_COLUMNS = {"role": "node", "correct": "node", "type": "edge", "file": "graph"}
_MISUSE_COLUMNS = {name: column.level for name, column in MISUSE_SCHEMA.items()}


def read_programs(
    data: str | Sequence[str],
    *,
    target: Target = "slot",
    files: Sequence[Path] = (),
    data_dir: Path | None = None,
    progress: bool = True,
) -> GraphTable:
    """The programs of a data set of the catalogue, or of a user's own files; kept in the cache.

    Args:
        data: a name of CATALOGUE, or a path: a .py file, a folder of them, or samples as JSON;
            or several .py files and folders, `python` among them for the standard library.
        target: what is to be learned from Python files.
        files: files to build the data set of that name from.
        data_dir: the data folder.
        progress: show progress bars.

    Raises:
        DataError: there is no such data, or it holds no programs.
    """
    python = {"slot": "python", "misuse": "python-misuse"}[target]
    names = [data] if isinstance(data, str) else list(data)
    if len(names) > 1:
        reader, files = python, _folders(names, files)
    else:
        (reader,) = names
        path = own_path(reader, ["programs"], "programs", files, reader=lambda _: "python")
        if path is not None:
            samples = path.suffix in (".gz", ".jsonl", ".json")
            if path.is_file() and not samples and path.suffix != ".py":
                raise DataError(
                    f"{path} is neither Python (.py) nor samples (.jsonl.gz); for files of GREAT "
                    f"take --data great --files {path}"
                )
            reader, files = "varmisuse" if samples and path.is_file() else python, [path]
        elif reader == "python":
            reader = python
        for file in files:
            if not file.exists():
                raise DataError(f"--files {file} does not exist")
    table = _table_name(reader, files) if files else None
    return load(reader, files=files, table=table, data_dir=data_dir, progress=progress)


def _folders(names: Sequence[str], files: Sequence[Path]) -> list[Path]:
    """Several places of Python files."""
    if files:
        raise DataError(
            f"the data is {' '.join(names)}, so --files {' '.join(map(str, files))} would not be "
            "read; leave it out"
        )
    for name in names:
        path = Path(name)
        if name != STANDARD_LIBRARY and not (path.is_dir() or path.suffix == ".py"):
            raise DataError(
                f"{name} is neither a folder nor a .py file, and --data names several; name "
                f"folders of Python files, or {STANDARD_LIBRARY} for the standard library"
            )
    return [Path(name) for name in names]


def _table_name(reader: str, files: Sequence[Path]) -> str:
    """A name of its own for every choice of files, state of them and way to read them."""
    python = reader in ("python", "python-misuse")
    inside = [file for _, file in python_files(files)] if python else files
    states: list[Any] = [*file_states(inside), *([EXTRACTION] if python else [])]
    digest = hashlib.sha256(json.dumps(states).encode()).hexdigest()[:12]
    before = "misuses" if reader == "python-misuse" else "programs"
    return f"{before}-{file_name_of(files[0])}-{digest}"


def has_misuses(table: GraphTable) -> bool:
    """Whether the graphs are functions with uses to look at, not slots to fill."""
    return "written" in table.schema


def check_programs(table: GraphTable) -> None:
    """Look whether every graph has a slot, candidates, and one right one among them.

    Raises:
        DataError: the table is not one of programs, or a graph of it has no such choice; the
            message names file and line.
    """
    if not len(table):
        raise DataError("the table has no graphs; give files with variables in them")
    for name, level in (_MISUSE_COLUMNS if has_misuses(table) else _COLUMNS).items():
        if name not in table.schema or table.schema[name].level != level:
            raise DataError(
                f"the table is not one of programs: it has no {level} column '{name}', but "
                f"{', '.join(table.schema) or 'none'}"
            )
    if has_misuses(table):
        return
    roles = np.asarray(table.column("role"))
    right = (np.asarray(table.column("correct")) == 1) & (roles == CANDIDATE)
    for flags, low, high, rule in (
        (roles == SLOT, 1, 1, "slots; a graph has one"),
        (roles == CANDIDATE, 1, None, "candidates; a choice needs at least one"),
        (right, 1, 1, "right candidates; exactly one is right"),
    ):
        counts = sums_by_graph(table, flags)
        wrong = counts < low if high is None else (counts < low) | (counts > high)
        if wrong.any():
            graph = int(np.flatnonzero(wrong)[0])
            raise DataError(f"graph {graph}{_where(table, graph)} has {int(counts[graph])} {rule}")


def _where(table: GraphTable, graph: int) -> str:
    files: Sequence[str] = table.metadata.get("files", ())
    file = int(table.column("file")[graph])
    if "line" not in table.schema or not 0 <= file < len(files):
        return ""
    return f" ({files[file]}, line {int(table.column('line')[graph])})"


def split_programs(
    table: GraphTable, *, parts: tuple[float, float, float], seed: int
) -> dict[str, Array]:
    """Graph numbers of each of PARTS, whole files, see `split_by_file`.

    Raises:
        DataError: there are too few files for training and validation to have one each.
    """
    split = split_by_file(table, parts, seed)
    for part in PARTS[:2]:
        if not len(split[part]):
            files = len(np.unique(np.asarray(table.column("file"))))
            raise DataError(
                f"of {files} files none is for {part} with the split {parts}, as files stay whole; "
                "give more files, or another --split"
            )
    return split


@dataclass(frozen=True, kw_only=True)
class Baselines:
    """Accuracies that need no training.

    Attributes:
        random: of a candidate drawn at random.
        recent: of the candidate whose variable was used last before the slot.
    """

    random: float
    recent: float


def baselines(table: GraphTable, graphs: Array) -> Baselines:
    """Those over `graphs`, int [b], of a table of programs."""
    candidates = sums_by_graph(table, np.asarray(table.column("role")) == CANDIDATE)
    if "recent" not in table.schema:
        raise DataError("the table has no node column 'recent'; build it again")
    recent = np.asarray(table.column("recent")) == 1
    hits = sums_by_graph(table, recent & (np.asarray(table.column("correct")) == 1))
    return Baselines(
        random=float((1 / candidates[graphs]).mean()), recent=float(hits[graphs].mean())
    )


def learnable(table: GraphTable) -> GraphTable:
    """What a network reads of `table`, and nothing else: assembling a batch copies every column."""
    keep = ["subtokens", "role", "correct", "type"]
    if has_misuses(table):
        keep = ["subtokens", "role", "type", "right", "written", "recent", "kind", "lines"]
    schema = {name: table.schema[name] for name in keep if name in table.schema}
    return table.with_columns(schema, {name: table.columns[name] for name in schema})


def step_budget(num_nodes: Array, num_edges: Array, nodes: int) -> Budget:
    """The one size of all supergraphs of `nodes` nodes: what these graphs, int [g], need beside."""
    fitting = num_nodes < nodes
    if not fitting.any():
        raise DataError(
            f"the smallest of {len(num_nodes)} graphs has {int(num_nodes.min())} nodes, and a "
            f"supergraph of {nodes} has room for {nodes - 1}; raise nodes"
        )
    own_nodes, own_edges = num_nodes[fitting], num_edges[fitting]
    edges = _EDGE_SLACK * nodes * float(own_edges.sum()) / max(1, int(own_nodes.sum()))
    edges = max(edges, float(own_edges.max()))
    return Budget(
        nodes=nodes,
        edges=64 * -(-int(np.ceil(edges)) // 64),
        graphs=max(nodes // max(1, int(own_nodes.min())), 1) + 1,
    )


def spy_of_programs(table: GraphTable, graphs: Array) -> dict[str, Any]:
    """Counts of edges in 96 by 96 cells, in the order of the text and in that of the table.

    Args:
        table: programs, as `read_programs` gives them.
        graphs: int64, those that make up the supergraph, in their order.
    """
    some = table.select(graphs)
    base = np.repeat(some.node_offsets[:-1], some.num_edges)
    senders, receivers = (some.columns[name] + base for name in ("senders", "receivers"))
    place = np.empty(some.total_nodes, dtype=np.int64)
    place[text_order(some)] = np.arange(some.total_nodes)
    order = str(table.metadata.get("order", "table"))
    return {
        "graphs": len(some),
        "nodes": some.total_nodes,
        "edges": some.total_edges,
        "distances": list(_DISTANCES),
        "orders": [
            _picture("order of the text", place[senders], place[receivers], some.total_nodes),
            _picture(f"{order} order", senders, receivers, some.total_nodes),
        ],
    }


def write_spy(folder: Path, table: GraphTable, graphs: Array) -> None:
    """Write `spy_of_programs` into a run's folder."""
    text = json_text(spy_of_programs(table, graphs)) + "\n"
    write_atomically(folder / SPY, lambda file: file.write(text.encode()))


def _picture(order: str, senders: Array, receivers: Array, nodes: int) -> dict[str, Any]:
    away = np.abs(senders - receivers)
    cells = min(_CELLS, max(1, nodes))
    row, column = (ends * cells // max(1, nodes) for ends in (receivers, senders))
    counts = np.bincount(row * cells + column, minlength=cells * cells).reshape(cells, cells)
    return {
        "order": order,
        "bandwidth": int(away.max(initial=0)),
        "near": [float((away <= d).mean()) if len(away) else 1.0 for d in _DISTANCES],
        "counts": counts.tolist(),
    }
