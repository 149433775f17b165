"""Networks on grids of real ranks against plain dense training in one process, in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from grid_examples import dense_training, descend, graph_of, model_of
from grid_runs import Case, train, train_all
from rank_processes import results_of

from weft.kernels import hidden_layer
from weft.models import GCN
from weft.parallel import GraphShard, GridNetwork, alone
from weft.parallel.grid import grid_of, grids_for
from weft.parallel.method import PUBLISHED, Method
from weft.parallel.prepare import prepare

METHODS = {
    "default": Method(),
    "published": PUBLISHED,
    "blocks": Method(exchange="blocks"),
    "one after another": Method(overlap=False),
    "edges sent": Method(exchange="blocks", panels="sent", overlap=False),
}
SIZES = [1, 2, 3, 4, 6, 8, 9, 16, 27]
SHAPES = {
    2: ["1x2"],
    3: ["1x3"],
    4: ["1x2x2"],
    6: ["3x2", "2x3", "3x1x2"],
    8: ["4x2"],
    16: ["2x4x2"],
}
# Directed and uneven; fewer features and classes than columns of the larger grids; more blocks than
# there are edges between them.
GRAPHS = {
    "directed": {"features": 5, "classes": 4},
    "narrow": {"nodes": 41, "edges": 60, "features": 2, "classes": 2},
    "undirected": {"nodes": 60, "directed": False, "features": 7},
}
NORMALISATION = {"directed": "symmetric", "narrow": "none", "undirected": "row"}


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Prepared tables by name, and what plain training on them gives."""
    folder = tmp_path_factory.mktemp("tables")
    found = {}
    for name, sizes in GRAPHS.items():
        path = folder / name
        table = prepare(
            graph_of(**sizes), path, blocks=1, partition="random", normalisation=NORMALISATION[name]
        )
        found[name] = (str(path), table)
    return found


def reference(table, case):
    graph = table[0]
    n = graph.num_nodes
    matrix = torch.zeros(n, n, dtype=torch.float64)
    weights = torch.from_numpy(graph.edges["weight"].astype(np.float64))
    ends = (
        torch.from_numpy(graph.receivers.astype(np.int64)),
        torch.from_numpy(graph.senders.astype(np.int64)),
    )
    matrix.index_put_(ends, weights, accumulate=True)
    x, y = torch.tensor(graph.nodes["x"]).double(), torch.tensor(graph.nodes["y"])
    model = model_of(case.model, x.shape[1], case.hidden, table.metadata["classes"])
    return dense_training(model, matrix, x, y, torch.tensor(graph.nodes["train"])), graph


def cases_of(ranks, tables):
    grids = [(grid.name, grid.layers if grid.replicated else None) for grid in grids_for(ranks)]
    grids += [(shape, None) for shape in SHAPES.get(ranks, [])]
    models = [("gcn", (6,)), ("sage", (3, 9)), ("gcn", (12, 3, 5))]
    # Every method on every kind of grid, but not for each number of ranks again: a stage is a
    # collective, and many processes on few cores take long for each.
    methods = [
        (place, METHODS[name])
        for place in grids
        for name in METHODS
        if ranks == 4
        or (ranks == 8 and place[0] in ("3d", "4x2"))
        or name == "default"
        or (name == "published" and (ranks < 16 or place[0] in ("2d", "3d")))
    ]
    found = []
    for number, ((grid, replication), method) in enumerate(methods):
        model, hidden = models[number % len(models)]
        table = list(tables)[number % len(tables) if number % 2 else 0]
        found.append(
            Case(
                table=tables[table][0],
                grid=grid,
                replication=replication,
                method=method,
                model=model,
                hidden=hidden,
            )
        )
    return found


def assert_same(found, expected, **tolerance):
    torch.testing.assert_close(found["losses"], expected["losses"], **tolerance)
    for name in ("gradients", "weights"):
        torch.testing.assert_close(found[name], expected[name], **tolerance)


@pytest.mark.parametrize("ranks", SIZES)
def test_losses_gradients_and_weights_are_those_of_one_process(ranks, tables):
    cases = cases_of(ranks, tables)
    answers = results_of(ranks, train_all, cases)
    by_path = dict(tables.values())
    for number, case in enumerate(cases):
        expected, graph = reference(by_path[case.table], case)
        found = [answer[number] for answer in answers]
        for rank in found:
            assert_same(rank, expected, rtol=1e-10, atol=1e-10)
            assert rank["evaluation"] == pytest.approx(found[0]["evaluation"], rel=1e-12)
        accuracy = evaluated(expected["logits"], graph)
        for name, value in accuracy.items():
            assert found[0]["evaluation"][name] == pytest.approx(value, abs=1e-10), (case, name)
        ids = torch.cat([rank["ids"] for rank in found])
        order = torch.argsort(ids)
        assert torch.equal(ids[order], torch.arange(graph.num_nodes))
        probabilities = torch.cat([rank["probabilities"] for rank in found])
        places = torch.argsort(torch.tensor(graph.nodes["id"]))
        expected_probabilities = expected["logits"].softmax(1)[places]
        torch.testing.assert_close(probabilities[order], expected_probabilities)


def guests_training(model, kind, graph):
    """The same training with torch_geometric's layers, which are given the weights of `model`."""
    conv = pytest.importorskip("torch_geometric.nn")
    ends = torch.from_numpy(np.stack([graph.senders, graph.receivers]))
    x, y = torch.from_numpy(graph.nodes["x"]), torch.from_numpy(graph.nodes["y"])
    mask = torch.from_numpy(graph.nodes["train"])
    weight = torch.from_numpy(graph.edges["weight"]) if kind == "gcn" else None
    layers = []
    for layer in model.layers:
        if kind == "gcn":
            guest = conv.GCNConv(*layer.weight.shape).double()
            guest.lin.weight.data, guest.bias.data = layer.weight.data.T, layer.bias.data
        else:
            guest = conv.SAGEConv(*layer.own.shape).double()
            guest.lin_l.weight.data, guest.lin_r.weight.data = (
                layer.neighbours.data.T,
                (layer.own.data.T),
            )
            guest.lin_l.bias.data = layer.bias.data
        layers.append(guest)
    guests = torch.nn.ModuleList(layers)

    def forward():
        h = x
        for number, layer in enumerate(guests):
            h = h.relu() if number else h
            h = layer(h, ends) if weight is None else layer(h, ends, weight)
        return h

    def step():
        guests.zero_grad()
        loss = torch.nn.functional.cross_entropy(forward()[mask], y[mask])
        loss.backward()
        return loss.item()

    losses = descend(guests, step)["losses"]
    return losses, forward().detach().softmax(1)


@pytest.mark.parametrize("kind", ["gcn", "sage"])
def test_float64_is_torch_geometrics_to_the_last_digits(tmp_path, kind):
    graph = graph_of()
    # The guest keeps one self-loop of a node; and its means have no weights.
    loops = np.flatnonzero(graph.senders == graph.receivers)
    first = loops[np.unique(graph.senders[loops], return_index=True)[1]]
    kept = np.union1d(first, np.flatnonzero(graph.senders != graph.receivers))
    assert first.size
    graph = replace(
        graph,
        senders=graph.senders[kept],
        receivers=graph.receivers[kept],
        edges={"weight": graph.edges["weight"][kept]} if kind == "gcn" else {},
    )
    normalisation = "symmetric" if kind == "gcn" else "row"
    path = tmp_path / "graph.weft"
    prepare(graph, path, blocks=2, normalisation=normalisation, dtype="float64")
    case = Case(table=str(path), grid="1d", model=kind)
    losses, probabilities = guests_training(model_of(kind, 5, case.hidden, 4), kind, graph)
    for answers in ([train(case)], results_of(2, train, case)):
        ids = torch.cat([answer["ids"] for answer in answers])
        found = torch.cat([answer["probabilities"] for answer in answers])[torch.argsort(ids)]
        assert answers[0]["losses"] == pytest.approx(losses, rel=1e-14, abs=0)
        torch.testing.assert_close(found, probabilities, rtol=1e-13, atol=1e-14)


def evaluated(logits, graph):
    y = torch.tensor(graph.nodes["y"])
    found = {}
    for part in ("train", "validation", "test"):
        mask = torch.tensor(graph.nodes[part])
        found[f"{part}_accuracy"] = float((logits.argmax(1) == y)[mask].double().mean())
        found[f"{part}_loss"] = float(torch.nn.functional.cross_entropy(logits[mask], y[mask]))
    return found


GRIDS = [("1d", None), ("1.5d", 2), ("2d", None), ("2x1x2", None)]


def test_dropout_and_the_order_of_nodes_do_not_depend_on_grid_or_partition(tmp_path):
    graph = graph_of(nodes=60, features=6, directed=False)
    paths = {}
    for partition, blocks in (("contiguous", 1), ("random", 3), ("rcm", 2), ("metis", 4)):
        paths[partition] = str(tmp_path / partition)
        prepare(graph, paths[partition], blocks=blocks, partition=partition)
    # Rows and columns of the matrix in different orders, for the last of the grids.
    paths["balanced"] = str(tmp_path / "balanced")
    split = grid_of("2x1x2", 4)
    prepare(graph, paths["balanced"], blocks=4, partition="balanced", grid=split)
    dropped = {"dropout": 0.4, "hidden": (7, 5)}
    for input_dropout in (0.0, 0.3):
        first = Case(table=paths["contiguous"], grid="1d", input_dropout=input_dropout, **dropped)
        expected = train(first)
        without = train(replace(first, dropout=0.0, input_dropout=0.0))
        assert without["losses"] != pytest.approx(expected["losses"], rel=1e-3)
        cases = [
            replace(first, table=paths[partition], grid=grid, replication=replication)
            for (grid, replication), partition in zip(
                [*GRIDS, GRIDS[-1]], ("random", "rcm", "rcm", "metis", "balanced"), strict=True
            )
        ]
        for answer in results_of(4, train_all, cases):
            for found in answer:
                assert_same(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_hidden_layer_in_blocks_is_the_one_by_one(tmp_path, monkeypatch, dtype):
    # More rows than a block, and a last block that is not full.
    prepare(graph_of(nodes=700, edges=3000), tmp_path / "graph", blocks=1, partition="random")
    case = Case(table=str(tmp_path / "graph"), grid="1d", hidden=(9,), dropout=0.4, dtype=dtype)
    expected = train(case)
    calls, forward = [], hidden_layer._forward
    monkeypatch.setattr(hidden_layer, "WORTH_BLOCKS", 700 * 9)
    monkeypatch.setattr(hidden_layer, "_forward", lambda *a: calls.append(forward(*a)))
    found = train(case)
    assert len(calls) == len(found["losses"])
    tolerance = 1e-12 if dtype is torch.float64 else 1e-5
    assert_same(found, expected, rtol=tolerance, atol=tolerance)


def received(answers, number, purposes=("forward", "backward")):
    """Bytes by purpose over all ranks, of a step of case `number`."""
    return sum(
        event.bytes
        for answer in answers
        for event in answer[number]["events"][-1]
        if event.purpose in purposes
    )


def test_rounded_features_halve_what_travels_and_little_else(tables):
    path, _ = tables["undirected"]
    # Nothing but blocks and rows travels here: sums over layers stay whole.
    cases = [
        Case(
            table=path, grid=grid, method=Method(exchange=exchange, wire=wire), dtype=torch.float32
        )
        for grid in ("1d", "2d")
        for exchange in ("rows", "blocks")
        for wire in ("full", "bfloat16")
    ]
    answers = results_of(4, train_all, cases)
    for number in range(0, len(cases), 2):
        assert received(answers, number) == 2 * received(answers, number + 1) > 0
        whole, rounded = answers[0][number]["losses"], answers[0][number + 1]["losses"]
        assert rounded == pytest.approx(whole, rel=0.02)
        assert rounded != whole


def test_rounded_reads_change_losses_a_little_and_nothing_that_travels(tables):
    path, _ = tables["undirected"]
    cases = [
        Case(table=path, grid=grid, method=Method(reads=reads, exchange=way), dtype=torch.float32)
        for grid, way in (("1d", "rows"), ("2d", "blocks"))
        for reads in ("full", "bfloat16")
    ]
    answers = results_of(4, train_all, cases)
    for number in range(0, len(cases), 2):
        assert received(answers, number) == received(answers, number + 1) > 0
        whole, rounded = answers[0][number]["losses"], answers[0][number + 1]["losses"]
        assert rounded == pytest.approx(whole, rel=0.02)
        assert rounded != whole


def test_only_the_rows_that_edges_touch_travel(tmp_path):
    # A ring in its own order: a block needs one row of each neighbouring block, and no other.
    nodes = np.arange(40)
    graph = replace(graph_of(nodes=40), senders=nodes, receivers=(nodes + 1) % 40, edges={})
    path = str(tmp_path / "ring")
    prepare(graph, path, blocks=4, normalisation="none")
    cases = [
        Case(table=path, grid="1d", method=Method(exchange=exchange))
        for exchange in ("rows", "blocks")
    ]
    answers = results_of(4, train_all, cases)
    for answer in answers:
        events = answer[0]["events"][0]
        widths = [event.bytes // 8 for event in events if event.purpose == "forward"]
        # Only the last layer has products in a step: the first is kept. It is four wide.
        assert widths == [4]
        blocks = [e.bytes // 8 for e in answer[1]["events"][0] if e.purpose == "forward"]
        assert sum(blocks) == 30 * 4


def test_replicas_of_one_are_the_1d_grid(tables):
    path, _ = tables["directed"]
    cases = [Case(table=path, grid="1.5d", replication=1), Case(table=path, grid="1d")]
    for one, other in results_of(3, train_all, cases):
        assert [(e.kind, e.along, e.bytes) for e in one["events"][0]] == [
            (e.kind, e.along, e.bytes) for e in other["events"][0]
        ]
        assert_same(one, other, rtol=0, atol=0)


def test_a_model_of_another_shape_is_refused(tables):
    _, table = tables["directed"]
    shard = GraphShard.open(table, alone(grid_of("1d", 1), 0), Method())
    with pytest.raises(ValueError, match="maps 9 features to 4 classes; the graph has 5"):
        GridNetwork(GCN(9, 4), shard)
    with pytest.raises(ValueError, match="maps 5 features to 3 classes; the graph has 5"):
        GridNetwork(GCN(5, 3), shard)


def test_a_graph_without_classes_is_predicted_and_not_trained_on():
    graph = graph_of()
    table = prepare(replace(graph, nodes={"x": graph.nodes["x"]}), blocks=1)
    shard = GraphShard.open(table, alone(grid_of("1d", 1), 0), Method())
    network = GridNetwork(GCN(5, 3), shard)
    ids, probabilities = network.predict()
    assert probabilities.shape == (len(ids), 3) == (graph.num_nodes, 3)
    assert np.isnan(network.evaluate()["train_loss"])
    with pytest.raises(ValueError, match="no node is in the training part"):
        network.step(seed=0)
