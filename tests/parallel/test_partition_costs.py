"""Which partition pays, by what is counted of each: volume against balance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.graphs import Graph
from weft.parallel.cost_model import Link, Machine, Problem, estimate, product_bytes
from weft.parallel.grid import grid_of
from weft.parallel.method import Method
from weft.parallel.partition_costs import CountedPartition, counted_partitions, weighed
from weft.parallel.traffic_formulas import count_graph, predicted_events
from weft.sources import planted_partition, rmat

WIDTHS = (16, 16, 4)
METHOD = Method(overlap=False)
SLOW = Link(alpha=1e-5, beta=1e-8)
FAST = Link(alpha=1e-8, beta=1e-13)


def counted(
    graph: Graph, link: Link, names: tuple[str, ...], shape: str = "1d", ranks: int = 8
) -> list[CountedPartition]:
    pytest.importorskip("pymetis")
    grid = grid_of(shape, ranks)
    machine = Machine(name="test", link=link)
    problem = Problem(nodes=graph.num_nodes, edges=graph.num_edges + graph.num_nodes, widths=WIDTHS)
    return counted_partitions(
        graph,
        grid,
        names,
        lambda counts: estimate(problem, grid, METHOD, machine, counts),
        training=np.ones(graph.num_nodes, dtype=np.bool_),
        loops=True,
    )


@pytest.fixture(scope="module")
def hubs() -> Graph:
    return rmat(2048, 20_000, seed=1, undirected=True)


@pytest.fixture(scope="module")
def clusters() -> Graph:
    graph = planted_partition(800, 8, mean_degree=10, homophily=0.7, num_features=2, seed=0)
    return replace(graph, nodes={})


EVERY = ("contiguous", "metis", "volume", "balanced")


def test_balance_pays_for_hubs_on_a_fast_network(hubs: Graph) -> None:
    best, *others = counted(hubs, FAST, EVERY)
    assert best.how == "balanced"
    assert best.imbalance < 1.01
    volume = next(each for each in others if each.how == "volume")
    assert volume.imbalance > 1.5
    assert volume.cost.compute > 1.5 * best.cost.compute


def test_volume_pays_for_clusters_on_a_slow_network(clusters: Graph) -> None:
    best, *others = counted(clusters, SLOW, EVERY)
    assert best.how == "volume"
    balanced = next(each for each in others if each.how == "balanced")
    assert best.cost.bytes < 0.7 * balanced.cost.bytes
    share = 1 - best.cost.bytes / balanced.cost.bytes
    assert weighed(best, others).startswith(
        f"{share:.0%} fewer bytes than balanced, but its busiest rank has {best.imbalance:.2f} "
        f"times the mean nonzeros (balanced: {balanced.imbalance:.2f}); by the cost model "
    )


def test_the_network_decides(clusters: Graph) -> None:
    """One cluster has most edges: together they travel less, apart they are shared evenly."""
    rng = np.random.default_rng(0)
    dense = np.flatnonzero(rng.integers(8, size=800) == 0)
    members = clusters.senders[np.isin(clusters.senders, dense)]
    pairs = rng.choice(np.unique(members), size=(2, 8000))
    graph = Graph(
        num_nodes=800,
        senders=np.concatenate([clusters.senders, *pairs]),
        receivers=np.concatenate([clusters.receivers, *pairs[::-1]]),
    )
    names = ("volume", "balanced")
    slow, fast = (counted(graph, link, names) for link in (SLOW, FAST))
    assert [each.how for each in slow] == ["volume", "balanced"]
    assert [each.how for each in fast] == ["balanced", "volume"]
    words = weighed(fast[0], fast[1:])
    assert "more bytes than volume, but its busiest rank has 1.00 times the mean nonzeros" in words
    assert f"(volume: {fast[1].imbalance:.2f})" in words


def test_one_that_is_best_in_both(clusters: Graph) -> None:
    (alone,) = counted(clusters, SLOW, ("contiguous",))
    assert weighed(alone, []) == "the only one that was counted"
    assert weighed(alone, [alone]) == "none has fewer bytes or more even ranks"


@pytest.mark.parametrize(("shape", "ranks"), [("1d", 5), ("1.5d", 8), ("2d", 4), ("3d", 8)])
def test_costs_are_those_of_the_counted_graph(hubs: Graph, shape: str, ranks: int) -> None:
    (found,) = counted(hubs, SLOW, ("contiguous",), shape, ranks)
    grid = grid_of(shape, ranks)
    own = np.setdiff1d(np.arange(2048), hubs.senders[hubs.senders == hubs.receivers])
    ends = [np.append(each, own) for each in (hubs.senders, hubs.receivers)]
    counts = count_graph(grid, found.parts.offsets, *ends, np.ones(2048, dtype=np.bool_))
    received = [sum(e.bytes for e in predicted_events(each, METHOD, WIDTHS)) for each in counts]
    assert found.cost.bytes == max(received)
    rows = [int(each.forward.nonzeros.sum()) for each in counts]
    assert found.imbalance == pytest.approx(max(rows) / np.mean(rows))
    assert sum(rows) == len(ends[0]) * grid.columns
    # The second layer's products, forward and backward, of the 4 classes.
    width = -(-4 // grid.columns)
    sparse = max(
        sum(product_bytes(each.panel_rows, int(way.nonzeros.sum()), width, 4) for way in ways)
        for each in counts
        for ways in [(each.forward, each.backward)]
    )
    machine = Machine(name="test", link=SLOW)
    assert found.cost.compute > sparse / machine.spmm_bytes
    problem = Problem(nodes=2048, edges=len(ends[0]), widths=WIDTHS)
    endless = replace(machine, flops=1e30)
    priced = estimate(problem, grid, METHOD, endless, counts)
    assert priced.compute == pytest.approx(sparse / machine.spmm_bytes)
