"""What travels, by formula: the acceptance figures, properties, and the recorder to the byte."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from grid_examples import graph_of, model_of
from grid_runs import Case, train_all
from hypothesis import given
from hypothesis import strategies as st
from rank_processes import results_of
from wire import assert_carried, carried, namespace

from weft.graphs import open_table
from weft.parallel.grid import Grid, grid_of, grids_for
from weft.parallel.method import PUBLISHED, Method
from weft.parallel.network import GridNetwork
from weft.parallel.prepare import prepare
from weft.parallel.shard import GraphShard, row_offsets
from weft.parallel.traffic_formulas import (
    count_graph,
    predicted_events,
    published_latency,
    published_words,
    reduced_words,
)
from weft.parallel.world import alone, joined

NODES, NONZEROS, WIDTHS, RANKS = 14_249_639, 230_788_269, (300, 16, 24), 64


def published_gigabytes(grid: Grid) -> float:
    words = sum(
        published_words(grid, a, b, nodes=NODES, nonzeros=NONZEROS, weights=False)
        for a, b in pairwise(WIDTHS)
    )
    return 4e-9 * words


@pytest.mark.parametrize(
    ("name", "replication", "gigabytes"),
    [("1d", None, 20.0), ("1.5d", 4, 7.0), ("1.5d", 8, 7.0), ("2d", None, 9.0)],
)
def test_figures_as_published(name, replication, gigabytes):
    found = published_gigabytes(grid_of(name, RANKS, replication))
    assert found == pytest.approx(gigabytes, rel=0.03)


def test_figure_with_our_reductions():
    found = 4e-9 * reduced_words(grid_of("1d", RANKS), WIDTHS, nodes=NODES)
    assert found == pytest.approx(1.8, rel=0.03)


def test_3d_receives_a_qth_of_2d():
    sparse, dense = 2 * 2 * NONZEROS / 16, 2 * NODES * 40 / 16
    words = published_words(grid_of("3d", 64), 16, 24, nodes=NODES, nonzeros=NONZEROS)
    assert words == pytest.approx(sparse + dense)


def test_weights_are_counted_where_asked():
    for name, count in (("1d", 2), ("1.5d", 2), ("2d", 1)):
        with_weights, without = (
            published_words(grid_of(name, 16), 30, 10, nodes=100, nonzeros=500, weights=weights)
            for weights in (True, False)
        )
        assert with_weights - without == pytest.approx(count * 300)


def test_latency_counts():
    assert published_latency(grid_of("1d", 64)) == 2 * 64 * 6
    assert published_latency(grid_of("1.5d", 64, 4)) == 2 * 4 * 4
    assert published_latency(grid_of("2d", 64)) == 10 * 8 * 3
    assert published_latency(grid_of("3d", 64)) == 2 * (2 * 4 * 2)
    assert published_latency(grid_of("1d", 1)) == 0


def test_nothing_is_published_about_other_grids():
    with pytest.raises(ValueError, match="nothing is published about a grid of 4x2x1"):
        published_words(grid_of("4x2", 8), 3, 2, nodes=10, nonzeros=20)


@given(
    ranks=st.sampled_from([2, 3, 4, 8, 60, 64]),
    width_in=st.integers(1, 300),
    width_out=st.integers(1, 300),
    nodes=st.integers(64, 10**7),
)
def test_one_replica_is_1d(ranks, width_in, width_out, nodes):
    one, plain = (
        published_words(grid, width_in, width_out, nodes=nodes, nonzeros=5 * nodes)
        for grid in (Grid(rows=ranks, replicated=True), grid_of("1d", ranks))
    )
    assert one == plain
    assert published_latency(Grid(rows=ranks, replicated=True)) == published_latency(
        grid_of("1d", ranks)
    )


@given(st.integers(2, 8), st.integers(1, 10**6))
def test_more_ranks_receive_less_on_every_grid_but_1d(side, nodes):
    def words(name: str, ranks: int) -> float:
        return published_words(
            grid_of(name, ranks), 20, 10, nodes=nodes, nonzeros=9 * nodes, weights=False
        )

    assert words("2d", (side + 1) ** 2) < words("2d", side**2)
    assert words("3d", (side + 1) ** 3) < words("3d", side**3)
    assert words("1d", side + 1) > words("1d", side)


METHODS = [
    Method(),
    PUBLISHED,
    Method(exchange="blocks", wire="bfloat16"),
    Method(exchange="blocks", panels="sent", overlap=False),
    Method(reductions=False, wire="bfloat16"),
]
MODELS = [("gcn", (6,), 0.0), ("sage", (3, 9), 0.0), ("gcn", (12, 3, 5), 0.5), ("sage", (2,), 0.5)]


def counts_of(table, grid):
    graph = table[0]
    training = graph.nodes["train"] & (graph.nodes["y"] >= 0)
    return count_graph(grid, row_offsets(table, grid), graph.senders, graph.receivers, training)


def predicted(table, grid, rank, case):
    widths = (table.column("x").shape[1], *case.hidden, table.metadata["classes"])
    return predicted_events(
        counts_of(table, grid)[rank],
        case.method,
        widths,
        model=case.model,
        item=case.dtype.itemsize,
        input_dropout=case.input_dropout > 0,
    )


def multiset(events):
    return Counter((e.kind, e.along, e.group, e.bytes) for e in events)


@pytest.fixture(scope="module", params=[True, False], ids=["directed", "undirected"])
def table(request, tmp_path_factory):
    graph = graph_of(nodes=71, directed=request.param, edges=120, features=7)
    path = tmp_path_factory.mktemp("tables") / "graph"
    return prepare(graph, path, blocks=1, partition="random")


def cases_on(table, grids):
    for number, (grid, method) in enumerate((g, m) for g in grids for m in METHODS):
        model, hidden, input_dropout = MODELS[number % len(MODELS)]
        case = Case(
            table=str(table.path),
            grid=grid.name,
            replication=grid.layers if grid.replicated else None,
            method=method,
            model=model,
            hidden=hidden,
            input_dropout=input_dropout,
            dtype=torch.float64 if number % 2 else torch.float32,
        )
        yield grid, case


@pytest.mark.parametrize("ranks", [1, 2, 6, 8, 9, 27, 64])
def test_what_one_rank_counts_alone_is_predicted(table, ranks):
    # Without the others a rank cannot know how many rounds they need: rows are compared in all.
    grids = [*grids_for(ranks), *(grid_of(shape, 6) for shape in ("3x2", "2x1x3") if ranks == 6)]
    for grid, case in cases_on(table, grids):
        for rank in {0, ranks // 3, ranks - 1}:
            world = alone(grid, rank)
            shard = GraphShard.open(table, world, case.method, case.dtype)
            sizes = (shard.features, case.hidden, shard.classes, 0.0, case.input_dropout)
            network = GridNetwork(model_of(case.model, *sizes).to(case.dtype), shard)
            world.recorder.clear()
            network.step(seed=0)
            found, expected = (
                (
                    multiset(e for e in events if e.kind != "all_to_all"),
                    sum(e.bytes for e in events if e.kind == "all_to_all"),
                )
                for events in (world.recorder.events, predicted(table, grid, rank, case))
            )
            assert found == expected, (grid, rank, case)


def test_what_real_ranks_record_is_predicted(table):
    ranks = 4
    whole = list(cases_on(table, [*grids_for(ranks), grid_of("1x2x2", ranks)]))
    answers = results_of(ranks, train_all, [case for _, case in whole])
    for number, (grid, case) in enumerate(whole):
        for rank, answer in enumerate(answers):
            expected = multiset(predicted(table, grid, rank, case))
            for events in answer[number]["events"]:
                assert multiset(events) == expected, (grid, rank, case)


def steps_carried(cases):
    """What a training step of each brought, and what the kernel counted meanwhile."""
    found = []
    for case in cases:
        with joined(case.grid, case.replication) as world:
            shard = GraphShard.open(open_table(case.table), world, case.method, case.dtype)
            sizes = (shard.features, case.hidden, shard.classes)
            network = GridNetwork(model_of(case.model, *sizes).to(case.dtype), shard)
            found.append(carried(world.recorder, lambda network=network: network.step(seed=0)))
    return found


@pytest.mark.parametrize(
    ("ranks", "grids"),
    [
        (2, [("1d", None), ("1x2", None), ("1x1x2", None)]),
        (4, [("1d", None), ("1.5d", 2), ("2d", None), ("2x1x2", None)]),
        (8, [("3d", None)]),
    ],
    ids=["2", "4", "8"],
)
def test_the_wire_carries_what_is_predicted(ranks, grids, tmp_path):
    # Uneven: blocks by METIS, and widths that columns cannot share equally.
    graph = graph_of(nodes=3001, edges=20_000, features=97, classes=31)
    tables, cases = {}, []
    for name, replication in grids:
        blocks = grid_of(name, ranks, replication).blocks
        path = tmp_path / str(blocks)
        if not path.exists():
            tables[str(path)] = prepare(graph, path, blocks=blocks, partition="metis")
        case = Case(table=str(path), grid=name, replication=replication, hidden=(65,))
        cases += [replace(case, model="sage"), replace(case, method=PUBLISHED)]
    with namespace() as holder:
        answers = results_of(ranks, steps_carried, cases, namespace=holder)
    for number, case in enumerate(cases):
        found = [answer[number] for answer in answers]
        grid = grid_of(case.grid, ranks, case.replication)
        for rank, (events, *_) in enumerate(found):
            expected = multiset(predicted(tables[case.table], grid, rank, case))
            assert multiset(events) == expected, (case, rank)
        assert_carried(found, case)
