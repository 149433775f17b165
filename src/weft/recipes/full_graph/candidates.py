"""Ways to train on one big graph: ranks, threads, grids, what travels, the order of the nodes."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from weft.graphs import GraphTable, open_table
from weft.parallel.cost_model import NETWORKS, Estimate, Machine
from weft.parallel.grid import Grid, grid_of
from weft.parallel.method import Method
from weft.parallel.partition_costs import CountedPartition, counted_partitions, weighed
from weft.parallel.shard import KIND
from weft.parallel.splits import one_graph
from weft.planning.candidate import Candidate, applied
from weft.planning.explain import memory_words, seconds_words
from weft.planning.plan import Measured, Plan
from weft.planning.task import ENDLESS, PlanTask, content_of
from weft.planning.worker_client import PaceAddress, pace_address, pace_at
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.full_graph.data import full_graph_table
from weft.recipes.full_graph.session import train_shared
from weft.recipes.full_graph.training import join
from weft.training.calibrate import local_rates
from weft.training.hardware import cores
from weft.training.launch import launch
from weft.training.numerics import prepare_process

# A candidate's other ranks wait for the first while others have their turns.
_WAIT_SECONDS = 3600.0
# METIS takes minutes for larger graphs, and so would planning.
_METIS_EDGES = 1_000_000
# How many the cost model leaves, beside those that are always timed.
_HANDFUL = 4
# Partitions that the cost model expects to take so many times the least are timed too.
_HOPEFUL = 1.25
# Up to here every number of ranks is looked at, beyond only powers of two and all cores.
_EVERY_NUMBER = 8


class Way(NamedTuple):
    """A way to share the graph among ranks of this machine, and what an epoch costs.

    There are many, and each has to be prepared and started before it can be timed. So the cost
    model, with the rates of this machine's processor, leaves a handful.
    """

    candidate: Candidate
    cost: Estimate


class FullGraphTask(PlanTask):
    """`weft train full-graph` with ranks of this machine.

    What the configuration leaves open is planned: `ranks`, the grid (`auto`) and, where they are
    the defaults, what travels (`method`) and the order of the nodes (`partition`).
    """

    config: FullGraphConfig
    idle = (
        *("data", "features", "labels", "learning_rate", "weight_decay", "epochs", "patience"),
        *(
            "target",
            "class_weights",
            "monitor",
            "momentum",
            "ema",
            "evaluate_every",
            "checkpoint_every",
            "seed",
            "timeout",
        ),
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
            config: as requested.
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
        self._counted: list[CountedPartition] = []
        super().__init__("full-graph", config, work, content_of(self._table))
        self._full_graph = work

    @property
    def steps(self) -> int:
        """Epochs of the run that is requested."""
        return self.config.epochs

    @property
    def step_units(self) -> float:
        """A step is an epoch."""
        return 1.0

    def waves(self) -> Generator[Sequence[Candidate], Sequence[Measured], None]:
        """What the cost model leaves; then other orders and partitions for the best of it."""
        ways = ways_to_share(self.config, self._table)
        timed = to_be_timed(ways, self._limit)
        self._counts = len(timed), len(ways)
        for way in ways:
            if way not in timed:
                words = f"{way.cost.seconds / ways[0].cost.seconds:.1f} times the fastest"
                if self._limit is not None and way.cost.memory.total > self._limit:
                    words = f"{way.cost.memory.total / 1e9:.3g} GB a rank"
                self.note(way.candidate, f"not tried: {words} by the cost model")
        first = [way.candidate for way in timed]
        self._prepare(first)
        results = yield first
        # A graph that was prepared by the user keeps its order.
        if self.config.partition != "contiguous" or self._is_prepared():
            return
        usable = [each for each in results if each.median is not None]
        # It makes products faster even on one rank, which the cost model does not know.
        orders = [each.candidate.but(partition="rcm") for each in usable[:1]]
        several = [each for each in usable if each.settings["ranks"] > 1]
        # Whole blocks travel with any partition; only an exchange of rows has fewer bytes.
        several.sort(key=lambda each: each.settings["method.exchange"] != "rows")
        for shared in several[:1]:
            orders += self._partitions(shared, usable[0])
        self._prepare(orders)
        yield orders

    def explain(self, plan: Plan) -> list[str]:
        """How many ways there are, and what the partitions were weighed by."""
        timed, ways = self._counts
        words = [f"the cost model left {timed} of {ways} ways to share the graph to be timed"]
        if not self._counted:
            return words
        figures = [
            f"{each.how} {seconds_words(each.cost.seconds)} ({memory_words(each.cost.bytes)} to a "
            f"rank, nonzeros {each.imbalance:.2f} times the mean)"
            for each in self._counted
        ]
        grid = self._counted[0].cost.grid
        words.append(
            f"partitions on {grid.ranks} ranks, {grid.name}, an epoch by the cost model, bytes and "
            f"the most nonzeros of a rank counted: {'; '.join(figures)}"
        )
        taken = plan.settings.get("partition", "contiguous") if plan.settings["ranks"] > 1 else None
        chosen = next((each for each in self._counted if each.how == taken), self._counted[0])
        others = [each for each in self._counted if each is not chosen]
        return [*words, f"partition {chosen.how}: {weighed(chosen, others)}"]

    def _partitions(self, shared: Measured, best: Measured) -> list[Candidate]:
        """The partitions worth timing: those that may bring `shared` near the best time so far."""
        candidate, table = shared.candidate, self._table
        settings, names = candidate.settings, ["contiguous", "balanced"]
        if find_spec("pymetis") is None:
            why = "it needs pip install 'weft[partition]'"
        elif table.total_edges > _METIS_EDGES:
            why = "METIS takes too long for so many edges"
        else:
            why, names = "", [*names, "metis", "volume"]
        if why:
            for how in ("metis", "volume"):
                self.note(candidate.but(partition=how), f"not tried: {why}")
        grid = grid_of(settings["grid"], settings["ranks"], settings.get("replication"))
        asked = applied(self.config, settings).on_grid(grid)
        machine = _machine(settings["threads"])
        self._counted = counted_partitions(
            one_graph(table),
            grid,
            names,
            lambda counts: asked.estimates_of(table, machine, counts)[0],
            training=table.column("train"),
            seed=self.config.seed,
        )
        costs = {each.how: each.cost.seconds for each in self._counted}
        assert shared.median is not None
        assert best.median is not None
        scale = shared.median / costs["contiguous"]
        least = min(best.median, scale * min(costs.values()))
        found = []
        for how, seconds in costs.items():
            if how == "contiguous":
                continue
            if scale * seconds <= _HOPEFUL * least:
                found.append(candidate.but(partition=how))
            else:
                words = f"{scale * seconds / least:.1f} times the fastest"
                self.note(candidate.but(partition=how), f"not tried: {words} by the cost model")
        return found

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
    """One of the ranks; the first learns when to step, and the others wait for it."""
    prepare_process()
    with pace_at(address), join(grid, config) as world:
        table = open_table(path, check=False)
        train_shared(table, world, config, quiet=True)


def ways_to_share(config: FullGraphConfig, table: GraphTable) -> list[Way]:
    """Every way that `config` leaves open, fastest first by the cost model.

    Args:
        config: the recipe.
        table: the prepared graph, for its sizes.

    Raises:
        ValueError: none fits.
    """
    every = cores()
    ways: list[Way] = []
    refused: ValueError | None = None
    for count in _numbers_of_ranks(config, every):
        if count > table.total_nodes:
            break
        for threads in _threads_of(count, every):
            machine = _machine(threads)
            for method in _methods(config.method, count):
                try:
                    asked = replace(config, ranks=count, method=method)
                    found = asked.estimates_of(table, machine)
                except ValueError as error:
                    refused = error
                    continue
                ways += [Way(_candidate(cost.grid, method, threads), cost) for cost in found]
    if not ways:
        raise refused or ValueError(f"{config.ranks} ranks for {table.total_nodes} nodes")
    return sorted(ways, key=lambda way: way.cost.seconds)


@cache
def _rates() -> tuple[float, float]:
    """Of all cores, measured once."""
    return local_rates()


def _machine(threads: int) -> Machine:
    """This one, for ranks of so many threads."""
    flops, spmm_bytes = _rates()
    share = threads / cores()
    # What ranks of one machine reach through gloo.
    link = NETWORKS["ethernet-10"]
    return Machine(name="this one", link=link, flops=flops * share, spmm_bytes=spmm_bytes * share)


def _candidate(grid: Grid, method: Method, threads: int) -> Candidate:
    settings: dict[str, Any] = {"ranks": grid.ranks, "grid": grid.name}
    if grid.replicated:
        settings["replication"] = grid.layers
    if grid.ranks > 1:
        settings["method.exchange"] = method.exchange
    return Candidate({**settings, "threads": threads})


def _numbers_of_ranks(config: FullGraphConfig, every: int) -> list[int]:
    if config.ranks is not None:
        return [config.ranks]
    if every <= _EVERY_NUMBER:
        return list(range(1, every + 1))
    powers = [2**k for k in range(every.bit_length())]
    return sorted({*powers, every})


def _threads_of(ranks: int, every: int) -> list[int]:
    """Threads of a rank: its share of the cores, as `launch` gives it; alone also half of them."""
    share = max(1, every // ranks)
    return sorted({share, max(1, share // 2)}, reverse=True) if ranks == 1 else [share]


def _methods(asked: Method, ranks: int) -> Iterator[Method]:
    yield asked
    if ranks > 1 and asked == Method():
        yield Method(exchange="blocks")


def to_be_timed(ways: Sequence[Way], memory_limit: float | None = None) -> list[Way]:
    """Those that the cost model finds fastest, and some that it might be wrong about.

    Raises:
        ValueError: none fits the limit; the message names the one that comes nearest.
    """
    fitting = [way for way in ways if memory_limit is None or way.cost.memory.total <= memory_limit]
    if not fitting:
        least = min(ways, key=lambda way: way.cost.memory.total)
        held = least.cost.memory.total / 1e9
        raise ValueError(
            f"no way to share the graph fits in {(memory_limit or 0) / 1e9:.3g} GB a rank: the "
            f"least is {held:.3g} GB, {least.candidate.label}; take a higher limit"
        )
    always: list[Way] = []
    # Of each kind the one with most ranks, and of one rank that with most threads.
    for name in ("1d", "1.5d", "2d"):
        alike = [way for way in fitting if way.cost.grid.name == name and way.cost.grid.ranks > 1]
        always += sorted(alike, key=lambda way: -way.cost.grid.ranks)[:1]
    alone = [way for way in fitting if way.cost.grid.ranks == 1]
    always += sorted(alone, key=lambda way: -int(way.candidate.settings["threads"]))[:1]
    chosen = [*fitting[:_HANDFUL], *always]
    return [way for way in fitting if way in chosen]
