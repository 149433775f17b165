"""What a model asks of a graph that ranks share, against plain torch over all edges, in float64."""

from __future__ import annotations

import pytest
import torch
from graph_operations import OPERATIONS, GridCase, PlainGraph, inputs_of, on_grids, run_operation
from grid_examples import graph_of
from rank_processes import results_of

from weft.graphs import open_table
from weft.parallel import DistributedGraph
from weft.parallel.method import Method
from weft.parallel.prepare import prepare
from weft.parallel.world import single

GRIDS = {
    1: [("1d", None)],
    4: [("1d", None), ("1.5d", 2), ("2d", None), ("1x2x2", None)],
    6: [("3x2", None), ("2x3", None), ("3x1x2", None)],
}
CLOSE = {"rtol": 1e-11, "atol": 1e-11}


@pytest.fixture(scope="module")
def graph():
    return graph_of()


@pytest.fixture(scope="module")
def table(tmp_path_factory, graph):
    path = tmp_path_factory.mktemp("tables") / "none"
    prepare(graph, path, blocks=1, partition="random", normalisation="none", dtype="float64")
    return str(path)


def refusal(name, grid, replication):
    """A part of the sentence that refuses an operation on a grid, if any does."""
    sides = [int(side) for side in grid.split("x")] if "x" in grid else []
    layers = replication or (sides[2] if len(sides) == 3 else 1)
    columns = 2 if grid == "2d" else sides[1] if sides else 1
    if name in ("messages", "largest message") and columns > 1:
        return f"shares them among {columns} columns; take a grid of one column"
    if "max" in name and layers > 1:
        return f"shares them among {layers} layers; take a grid of one layer"
    if name == "largest message" and layers > 1:
        return "take a grid of one layer"
    return None


@pytest.mark.parametrize("ranks", GRIDS)
def test_every_operation_is_plain_torchs_on_every_grid(ranks, graph, table):
    x, weights = inputs_of(graph.num_nodes)
    plain = PlainGraph(graph)
    alone = DistributedGraph.open(open_table(table), single(), dtype=torch.float64)
    # What is dropped depends on the node, so one process is the reference.
    back = alone.ids.argsort()
    dropped = run_operation(alone, "dropout", x[alone.ids], weights[alone.ids])
    dropped = {key: dropped[key][back] for key in ("out", "grad")} | {"loss": dropped["loss"]}
    expected = {
        name: dropped if name == "dropout" else run_operation(plain, name, x, weights)
        for name in OPERATIONS
    }
    cases = [GridCase(table=table, grid=grid, replication=c) for grid, c in GRIDS[ranks]]
    answers = [on_grids(cases)] if ranks == 1 else results_of(ranks, on_grids, cases)
    for number, case in enumerate(cases):
        ids = torch.cat([answer[number][0] for answer in answers])
        order = ids.argsort()
        assert torch.equal(ids[order], torch.arange(graph.num_nodes))
        for name, right in expected.items():
            found = [answer[number][1][name] for answer in answers]
            said = refusal(name, case.grid, case.replication)
            if said is not None:
                assert all(said in sentence for sentence in found), (name, case)
                continue
            assert [rank["loss"] for rank in found] == pytest.approx(len(found) * [right["loss"]])
            for key in ("out", "grad"):
                whole = torch.cat([rank[key] for rank in found])[order]
                torch.testing.assert_close(whole, right[key], msg=f"{name} {case}", **CLOSE)


def test_blocks_that_travel_whole_are_for_products_alone(graph, table):
    """Products are exact with every method; what reads neighbours' rows says what it needs."""
    x, weights = inputs_of(graph.num_nodes)
    right = run_operation(PlainGraph(graph), "edges", x, weights)
    cases = [
        GridCase(
            table=table,
            grid="1x2",
            method=Method(exchange="blocks", panels=panels),
            operations=("edges", "dot"),
        )
        for panels in ("kept", "sent")
    ]
    answers = results_of(2, on_grids, cases)
    for number in range(len(cases)):
        order = torch.cat([answer[number][0] for answer in answers]).argsort()
        found = [answer[number][1] for answer in answers]
        assert all("set it to 'rows'" in rank["dot"] for rank in found)
        for key in ("out", "grad"):
            whole = torch.cat([rank["edges"][key] for rank in found])[order]
            torch.testing.assert_close(whole, right[key], **CLOSE)


def test_products_of_the_features_are_kept_unless_they_learn(table):
    graph = DistributedGraph.open(open_table(table), single(), dtype=torch.float64)
    first = graph.propagate(graph.x)
    assert graph.propagate(graph.x) is first
    graph.x.requires_grad_()
    assert graph.propagate(graph.x).requires_grad


@pytest.mark.parametrize(
    ("how", "ask", "said"),
    [
        ("symmetric", lambda g: g.propagate(g.x, "ones"), "prepare it with normalisation 'none'"),
        ("symmetric", lambda g: g.gather(g.x), "adds self-loops"),
        ("row", lambda g: g.propagate(g.x, "symmetric"), "normalisation 'row'"),
        ("none", lambda g: g.propagate(g.x, "weights"), "choose from matrix, ones, symmetric"),
        ("none", lambda g: g.propagate(g.x, reduce="min"), "choose from sum, mean, max"),
        ("none", lambda g: g.attend_additively(g.x, g.x), "either senders"),
    ],
)
def test_what_is_refused(graph, how, ask, said):
    table = prepare(graph, blocks=1, normalisation=how, dtype="float64")
    with pytest.raises(ValueError, match=said):
        ask(DistributedGraph.open(table, single(), dtype=torch.float64))
