"""Ways to train on one big graph: ranks, threads, grids, what travels, the order of the nodes."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weft.graphs import GraphTable, open_table
from weft.parallel.grid import Grid
from weft.parallel.shard import KIND
from weft.planning.candidate import Candidate, applied
from weft.planning.plan import Measured, Plan
from weft.planning.task import ENDLESS, PlanTask, content_of
from weft.planning.worker_client import PaceAddress, pace_address, pace_at
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.full_graph.data import full_graph_table
from weft.recipes.full_graph.session import train_shared
from weft.recipes.full_graph.training import join
from weft.recipes.full_graph.ways import to_be_timed, ways_to_share
from weft.training.launch import launch
from weft.training.numerics import prepare_process

# A candidate's other ranks wait for the first while others have their turns.
_WAIT_SECONDS = 3600.0
# METIS takes minutes for larger graphs, and so would planning.
_METIS_EDGES = 1_000_000


class FullGraphTask(PlanTask):
    """`weft train full-graph` with ranks of this machine.

    What the configuration leaves open is planned: `ranks`, the grid (`auto`) and, where they are
    the defaults, what travels (`method`) and the order of the nodes (`partition`).
    """

    config: FullGraphConfig
    idle = (
        *("data", "features", "labels", "learning_rate", "weight_decay", "epochs", "patience"),
        *("evaluate_every", "checkpoint_every", "seed", "timeout"),
    )

    def __init__(
        self,
        config: FullGraphConfig,
        *,
        files: Sequence[Path] = (),
        data_dir: Path | None = None,
        memory_limit: float | None = None,
    ) -> None:
        """Prepare the graph for one rank.

        Args:
            config: as asked for.
            files: of the data set, see `full_graph_table`.
            data_dir: the data folder, which keeps prepared graphs.
            memory_limit: bytes that a rank may hold by the cost model.

        Raises:
            DataError: there is no such data.
        """
        folder = tempfile.mkdtemp(prefix="weft-plan-")
        # When this recipe is no more, or at the end of the process.
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        work = FullGraphWork(
            config=config,
            files=tuple(files),
            data_dir=data_dir,
            folder=Path(folder),
        )
        self._table, _ = work.table({"ranks": 1, "grid": "1d", "replication": None})
        self._limit = memory_limit
        self._counts = (0, 0)
        super().__init__("full-graph", config, work, content_of(self._table))
        self._full_graph = work

    @property
    def steps(self) -> int:
        """Epochs of the run that is asked for."""
        return self.config.epochs

    @property
    def step_units(self) -> float:
        """A step is an epoch."""
        return 1.0

    def waves(self) -> Generator[Sequence[Candidate], Sequence[Measured], None]:
        """What the cost model leaves; then, for the best of it, other orders of the nodes."""
        ways = ways_to_share(self.config, self._table)
        timed = to_be_timed(ways, self._limit)
        self._counts = len(timed), len(ways)
        for way in ways:
            if way not in timed:
                words = f"{way.seconds / ways[0].seconds:.1f} times the fastest by the cost model"
                if self._limit is not None and way.memory > self._limit:
                    words = f"{way.memory / 1e9:.3g} GB a rank by the cost model"
                self.note(way.candidate, f"not tried: {words}")
        first = [way.candidate for way in timed]
        self._prepare(first)
        results = yield first
        # A graph that was prepared by the user keeps its order.
        if self.config.partition != "contiguous" or self._is_prepared():
            return
        for best in (each.candidate for each in results[:1] if each.median is not None):
            orders = [best.but(partition="rcm")]
            if best.settings["ranks"] > 1:
                orders += self._metis(best)
            self._prepare(orders)
            yield orders

    def explain(self, plan: Plan) -> list[str]:
        """How many ways there are."""
        timed, ways = self._counts
        return [f"the cost model left {timed} of {ways} ways to share the graph to be timed"]

    def _metis(self, best: Candidate) -> list[Candidate]:
        candidate = best.but(partition="metis")
        if find_spec("pymetis") is None:
            self.note(candidate, "not tried: it needs pip install 'weft[partition]'")
        elif self._table.total_edges > _METIS_EDGES:
            self.note(candidate, "not tried: METIS takes too long for so many edges")
        else:
            return [candidate]
        return []

    def _is_prepared(self) -> bool:
        path = Path(self.config.data)
        return path.is_dir() and open_table(path, check=False).metadata.get("kind") == KIND

    def _prepare(self, candidates: Sequence[Candidate]) -> None:
        # Here, and once: a candidate's process that cut the graph itself would be slow to start.
        for candidate in candidates:
            self._full_graph.table(candidate.settings)


@dataclass(frozen=True, kw_only=True)
class FullGraphWork:
    """Training on one graph, for the planner.

    Attributes:
        config: the recipe.
        files: of the data set.
        data_dir: the data folder.
        folder: for what the ranks write meanwhile.
        units: what a step is counted in.
    """

    config: FullGraphConfig
    files: tuple[Path, ...]
    data_dir: Path | None
    folder: Path
    units: str = "epochs"

    def table(self, settings: Mapping[str, Any]) -> tuple[GraphTable, Grid]:
        """The graph, prepared for these settings; the first who asks does that."""
        config = applied(self.config, settings)
        return full_graph_table(config, files=self.files, data_dir=self.data_dir, progress=False)

    def train(self, settings: Mapping[str, Any]) -> None:
        """Train without end; several ranks are started here."""
        # A process that is killed cannot clear what it has made; the planner clears this folder.
        tempfile.tempdir = str(self.folder)
        config = replace(
            applied(self.config, settings),
            epochs=ENDLESS,
            patience=None,
            evaluate_every=ENDLESS,
            checkpoint_every=ENDLESS,
            timeout=_WAIT_SECONDS,
        )
        table, grid = self.table(settings)
        if grid.ranks == 1:
            with join(grid, config) as world:
                train_shared(table, world, config, quiet=True)
            return
        assert table.path is not None
        arguments = (table.path, config, grid, pace_address())
        launch(_train_rank, arguments, ranks=grid.ranks, logs=Path(tempfile.mkdtemp(prefix="run-")))


def _train_rank(path: Path, config: FullGraphConfig, grid: Grid, address: PaceAddress) -> None:
    """One of the ranks; the first is told when to step, and the others wait for it."""
    prepare_process()
    with pace_at(address), join(grid, config) as world:
        table = open_table(path, check=False)
        train_shared(table, world, config, quiet=True)
