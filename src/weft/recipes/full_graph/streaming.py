"""A graph whose edges are prepared within a limit of memory, from a file of edges."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, Graph, GraphTable
from weft.graphs.store import MANIFEST, release
from weft.parallel.external_sort import Budget
from weft.parallel.grid import Grid
from weft.parallel.stored_graph import Progress, store_edges
from weft.parallel.streaming import prepare_stored
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.structures.data import file_states, own_path
from weft.sources import row_normalise
from weft.sources.edge_lists import listed_edges
from weft.sources.graph_files import is_edge_file
from weft.sources.node_files import read_npy
from weft.sources.progress_bar import progress_bar
from weft.training.hardware import process_memory, trim_memory

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt])(i?)b?", re.IGNORECASE)
_ROWS_AT_ONCE = 2**24


def size_in_bytes(text: str) -> int:
    """Bytes of a size such as 2GB, 1.5GB, 500MB (powers of 1,000) or 2GiB (of 1,024).

    Raises:
        DataError: it is none.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise DataError(f"--memory is {text!r}; give a number and a unit, such as 2GB or 500MB")
    number, unit, binary = found.groups()
    base = 1024 if binary else 1000
    return int(float(number) * base ** ("kmgt".index(unit.lower()) + 1))


@dataclass(frozen=True, kw_only=True, eq=False)
class ListedGraph:
    """A file of edges, and the features and classes of its nodes.

    Attributes:
        config: the recipe.
        path: the edges: text, Parquet or .npy.
        features: .npy [n, f].
        nodes: the nodes alone: features as they are, mapped, and classes if there are any.
        stamp: identifies the files.
        memory: bytes that the process may hold while it prepares the graph.
    """

    config: FullGraphConfig
    path: Path
    features: Path
    nodes: Graph
    stamp: Any
    memory: int

    @staticmethod
    def open(config: FullGraphConfig, files: Sequence[Path], memory: int) -> ListedGraph | None:
        """The graph of `config`; None for a table, which is mapped and not read.

        Raises:
            DataError: the data is of another kind, a file is missing, or they do not fit.
        """
        path = own_path(config.data, ["one graph"], "one graph to classify nodes of", files)
        if path is not None and (path / MANIFEST).exists():
            return None
        given = [Path(each) for each in (config.features, config.labels) if each is not None]
        ok = path is not None and is_edge_file(path) and config.features is not None
        if path is None or not ok or any(each.suffix != ".npy" for each in given):
            raise DataError(
                f"--memory is for a list of edges (text, Parquet or .npy) with --features FILE.npy "
                f"and --labels FILE.npy; {config.data} is read whole, so leave --memory out"
            )
        if config.edge_weight is not None:
            raise DataError(
                "--edge-weight is given with --memory; the list's own weights are taken: name its "
                "columns with --columns src dst weight"
            )
        x = read_npy(given[0])
        if x.ndim != 2:
            raise DataError(
                f"{given[0]} has shape {list(x.shape)}; one row for each node is needed, [n, f]"
            )
        nodes = {"x": x}
        if len(given) > 1:
            nodes["y"] = y = read_npy(given[1])
            if y.ndim not in (1, 2) or len(y) != len(x):
                raise DataError(
                    f"{given[1]} has shape {list(y.shape)}; {given[0]} has {len(x)} rows, so "
                    f"[{len(x)}] is needed, or [{len(x)}, t] for labels or numbers"
                )
        none = np.empty(0, dtype=np.int32)
        return ListedGraph(
            config=config,
            path=path,
            features=given[0],
            nodes=Graph(num_nodes=len(x), senders=none, receivers=none, nodes=nodes),
            stamp=[list(config.columns), *file_states([path, *given])],
            memory=memory,
        )

    def about_edges(self) -> int:
        """How many edges there will be, before repeated ones are joined, for choosing a grid."""
        if self.config.grid != "auto" or self.config.num_ranks == 1:
            return 0
        return listed_edges(self.path) * (1 if self.config.directed else 2)

    def prepare(
        self,
        graph: Graph,
        folder: Path,
        *,
        grid: Grid | None,
        tell: Callable[[str], None],
        show: bool,
        settings: dict[str, Any],
    ) -> GraphTable:
        """Write the table of `weft.parallel.prepare` to a new folder, beside which there is room.

        Args:
            graph: the nodes with classes and a split.
            folder: of the table.
            grid: it is cut for.
            tell: called with the name of each stage.
            show: draw progress bars.
            settings: the others of `prepare`.
        """
        config, scratch = self.config, folder.parent / "scratch"
        x = self.nodes.nodes["x"]
        if self.path.suffix == ".parquet":
            # Its library belongs to what the process holds before.
            listed_edges(self.path)
        trim_memory()
        budget = Budget(limit=self.memory, held=int(process_memory("VmRSS")))
        room = budget.room(len(x))
        with ExitStack() as bars:
            progress = _stages(bars, tell, show)
            stored = store_edges(
                self.path,
                scratch / "edges",
                columns=config.columns,
                num_nodes=len(x),
                called=str(self.features),
                directed=config.directed,
                room=room,
                progress=progress,
            )
            return prepare_stored(
                stored,
                {name: values for name, values in graph.nodes.items() if name != "x"},
                x,
                _scaling(config, x),
                folder,
                scratch=scratch,
                budget=budget,
                grid=grid,
                progress=progress,
                **settings,
            )


def _scaling(config: FullGraphConfig, x: Array) -> Callable[[Array], Array]:
    """What makes features of rows of x: see `feature_scale`."""
    wide = np.result_type(x.dtype if x.dtype.kind == "f" else np.float32, config.dtype)
    by_rows = config.feature_scale == "rows"
    if config.feature_scale == "auto":
        by_rows, step = True, max(1, _ROWS_AT_ONCE // max(1, x.shape[1] * x.itemsize))
        for first in range(0, len(x), step):
            by_rows = by_rows and bool((x[first : first + step] >= 0).all())
            release(x)

    def scaled(rows: Array) -> Array:
        if by_rows:
            rows = row_normalise(rows.astype(wide, copy=False))
        return rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float32)

    return scaled


def _stages(bars: ExitStack, tell: Callable[[str], None], show: bool) -> Progress:
    """Names each stage, and shows a bar for those whose length is known."""

    def begin(text: str, total: int | None) -> Callable[[int], object]:
        bars.close()
        # What the stage before has freed would count beside what this one takes.
        if "pyarrow" in sys.modules:
            sys.modules["pyarrow"].default_memory_pool().release_unused()
        trim_memory()
        tell(text)
        move = bars.enter_context(progress_bar(text, total, show=show, count=True))
        done = 0

        def more(number: int) -> None:
            nonlocal done
            done += number
            move(done)

        return more

    return begin
