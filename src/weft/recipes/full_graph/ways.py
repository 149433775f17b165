"""Ways to share one graph among ranks of this machine, and which of them are worth timing.

There are many, and each has to be prepared and started before it can be timed. So the cost model,
with the rates of this machine's processor, leaves a handful.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.graphs import GraphTable
from weft.parallel.cost_model import NETWORKS, Estimate, Machine
from weft.parallel.grid import Grid
from weft.parallel.method import Method
from weft.planning.candidate import Candidate
from weft.recipes.full_graph.config import FullGraphConfig
from weft.training.calibrate import local_rates
from weft.training.hardware import cores

# How many the cost model leaves, beside those that are always timed.
_HANDFUL = 4
# Up to here every number of ranks is looked at, beyond only powers of two and all cores.
_EVERY_NUMBER = 8


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to share the graph, and what the cost model says of it.

    Attributes:
        candidate: its settings.
        grid: of its ranks.
        seconds: an epoch's.
        memory: bytes that a rank holds, without libraries.
    """

    candidate: Candidate
    grid: Grid
    seconds: float
    memory: float


def ways_to_share(config: FullGraphConfig, table: GraphTable) -> list[Way]:
    """Every way that `config` leaves open, fastest first by the cost model.

    Args:
        config: the recipe.
        table: the prepared graph, for its sizes.

    Raises:
        ValueError: none fits.
    """
    flops, spmm_bytes = local_rates()
    every = cores()
    sizes = (
        table.total_nodes,
        table.total_edges,
        int(table.column("x").shape[1]),
        int(table.metadata["classes"]),
    )
    ways: list[Way] = []
    refused: ValueError | None = None
    for count in _numbers_of_ranks(config, every):
        if count > table.total_nodes:
            break
        for threads in _threads_of(count, every):
            machine = Machine(
                name="this one",
                # What ranks of one machine reach through gloo.
                link=NETWORKS["ethernet-10"],
                flops=flops * threads / every,
                spmm_bytes=spmm_bytes * threads / every,
            )
            for method in _methods(config.method, count):
                asked = replace(config, ranks=count, method=method)
                try:
                    found = asked.estimates(
                        *sizes,
                        symmetric=bool(table.metadata["symmetric_values"]),
                        training=table.metadata["counts"]["train"],
                        machine=machine,
                    )
                except ValueError as error:
                    refused = error
                    continue
                ways += [_way(each, method, threads) for each in found]
    if not ways:
        raise refused or ValueError(f"{config.ranks} ranks for {table.total_nodes} nodes")
    return sorted(ways, key=lambda way: way.seconds)


def _way(found: Estimate, method: Method, threads: int) -> Way:
    grid = found.grid
    settings: dict[str, Any] = {"ranks": grid.ranks, "grid": grid.name}
    if grid.replicated:
        settings["replication"] = grid.layers
    if grid.ranks > 1:
        settings["method.exchange"] = method.exchange
    settings["threads"] = threads
    return Way(
        candidate=Candidate(settings),
        grid=grid,
        seconds=found.seconds,
        memory=found.memory.total,
    )


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
    fitting = [way for way in ways if memory_limit is None or way.memory <= memory_limit]
    if not fitting:
        least = min(ways, key=lambda way: way.memory)
        raise ValueError(
            f"no way to share the graph fits in {(memory_limit or 0) / 1e9:.3g} GB a rank: the "
            f"least is {least.memory / 1e9:.3g} GB, {least.candidate.label}; take a higher limit"
        )
    always: list[Way] = []
    # Of each kind the one with most ranks, and of one rank that with most threads.
    for name in ("1d", "1.5d", "2d"):
        alike = [way for way in fitting if way.grid.name == name and way.grid.ranks > 1]
        always += sorted(alike, key=lambda way: -way.grid.ranks)[:1]
    alone = [way for way in fitting if way.grid.ranks == 1]
    always += sorted(alone, key=lambda way: -int(way.candidate.settings["threads"]))[:1]
    chosen = [*fitting[:_HANDFUL], *always]
    return [way for way in fitting if way in chosen]
