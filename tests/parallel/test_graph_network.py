"""Networks over graphs that ranks share against torch_geometric's layers, in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from grid_examples import descend, graph_of
from network_runs import NetworkCase, network_of, train_networks
from rank_processes import results_of

from weft.graphs import open_table
from weft.models.config import GraphNetworkConfig
from weft.parallel import DistributedGraph
from weft.parallel.grid import Grid, grid_of, grids_for
from weft.parallel.prepare import prepare
from weft.parallel.world import single
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.full_graph.prediction import predict_nodes
from weft.recipes.full_graph.training import train_full_graph

pytest.importorskip("torch_geometric")

SHAPES = {2: ["1x2"], 4: ["1x2x2"], 6: ["3x2", "2x3", "3x1x2"], 8: ["4x2"]}
NORMALISATION = {"gcn": "symmetric", "appnp": "symmetric", "sgc": "symmetric", "sage": "row"}
KINDS = {
    "gcn": GraphNetworkConfig(kind="gcn", hidden=(6,), dropout=0.0),
    "sage": GraphNetworkConfig(kind="sage", hidden=(6,), dropout=0.0),
    "sage max": GraphNetworkConfig(kind="sage", hidden=(3, 5), dropout=0.0, aggregate="max"),
    "gin": GraphNetworkConfig(kind="gin", hidden=(5,), dropout=0.0, norm="layer"),
    "gat": GraphNetworkConfig(kind="gat", hidden=(6,), heads=3, dropout=0.0),
    "gatv2": GraphNetworkConfig(kind="gatv2", hidden=(4,), heads=2, dropout=0.0),
    "appnp": GraphNetworkConfig(kind="appnp", hidden=(6,), steps=3, dropout=0.0),
    "sgc": GraphNetworkConfig(kind="sgc", steps=2, dropout=0.0),
    "deep": GraphNetworkConfig(
        kind="gcn", hidden=(5,) * 8, residual=True, norm="batch", dropout=0.0, checkpoint=True
    ),
    "deep gat": GraphNetworkConfig(
        kind="gat",
        hidden=(4,) * 8,
        heads=2,
        residual=True,
        norm="graph",
        dropout=0.0,
        checkpoint=True,
    ),
}


def one_loop_each(graph):
    """The graph without the second self-loop of a node, of which torch_geometric keeps one."""
    loops = np.flatnonzero(graph.senders == graph.receivers)
    first = loops[np.unique(graph.senders[loops], return_index=True)[1]]
    kept = np.union1d(first, np.flatnonzero(graph.senders != graph.receivers))
    assert first.size
    return replace(
        graph,
        senders=graph.senders[kept],
        receivers=graph.receivers[kept],
        edges={name: values[kept] for name, values in graph.edges.items()},
    )


@pytest.fixture(scope="module")
def graph():
    return one_loop_each(graph_of())


@pytest.fixture(scope="module")
def tables(tmp_path_factory, graph):
    """Tables by normalisation and partition; a mean has no weights in torch_geometric.

    In its own order the graph has training nodes in the first part alone, and no edge in the last.
    """
    folder, found = tmp_path_factory.mktemp("tables"), {}
    for how, partition in product(("symmetric", "row", "none"), ("random", "contiguous")):
        one = replace(graph, edges={}) if how == "row" else graph
        path = folder / f"{how}-{partition}"
        prepare(one, path, blocks=1, partition=partition, normalisation=how, dtype="float64")
        found[how, partition] = str(path)
    return found


@pytest.fixture(scope="module")
def expected(graph):
    """What torch_geometric's own layers give, trained in one process."""
    return {name: guests_training(graph, config) for name, config in KINDS.items()}


def guests_training(graph, config):
    from weft.integrations.geometric_grid import to_geometric

    x, y = torch.from_numpy(graph.nodes["x"]), torch.from_numpy(graph.nodes["y"])
    guest = to_geometric(network_of(x.shape[1], 4, config))
    ends = torch.from_numpy(np.stack([graph.senders, graph.receivers]))
    mask = torch.from_numpy(graph.nodes["train"])
    weight = torch.from_numpy(graph.edges["weight"])
    weighted = (weight,) if config.kind in ("gcn", "appnp", "sgc") else ()

    def step():
        guest.zero_grad()
        loss = torch.nn.functional.cross_entropy(guest(x, ends, *weighted)[mask], y[mask])
        loss.backward()
        return loss.item()

    found = descend(guest, step)
    guest.eval()
    return {**found, "state": guest.state_dict(), "logits": guest(x, ends, *weighted).detach()}


def as_geometric(config, parameters, buffers):
    """Parameters of the network on the grid, or their gradients, as torch_geometric names them."""
    from weft.integrations.geometric_grid import to_geometric

    model = network_of(5, 4, config)
    with torch.no_grad():
        for own, value in zip(model.parameters(), parameters, strict=True):
            own.copy_(value)
        for name, own in model.named_buffers():
            own.copy_(buffers[name])
    return to_geometric(model)


def grids_of(ranks):
    """Names and replications of grids, and how many layers share the edges of a node."""
    found = {
        (grid.name, grid.layers if grid.replicated else None): grid.layers
        for grid in grids_for(ranks)
    }
    return found | {(shape, None): grid_of(shape, ranks).layers for shape in SHAPES.get(ranks, [])}


@pytest.mark.parametrize("ranks", [1, 2, 4, 6, 8, 9])
def test_every_network_is_torch_geometrics(ranks, tables, expected):
    """Each on one grid of so many ranks, and on another one of another number of them."""
    grids = grids_of(ranks)
    cases = {grid: [] for grid in grids}
    for number, (name, config) in enumerate(KINDS.items()):
        if ranks > 6 and "deep" in name:
            # Hundreds of messages a step, on more ranks than cores.
            continue
        partition = ("random", "contiguous")[(number + ranks // 2) // 2 % 2]
        table = tables[NORMALISATION.get(config.kind, "none"), partition]
        grid = list(grids)[(number + ranks // 2) % len(grids)]
        cases[grid].append((name, NetworkCase(table=table, config=config)))
    asked = {grid: [case for _, case in named] for grid, named in cases.items()}
    answers = [train_networks(asked)] if ranks == 1 else results_of(ranks, train_networks, asked)
    for grid, named in cases.items():
        for number, (name, case) in enumerate(named):
            found = [answer[grid][number] for answer in answers]
            if name == "sage max" and grids[grid] > 1:
                assert all("take a grid of one layer" in said for said in found)
            else:
                check(case.config, found, expected[name])


def check(config, found, guest):
    """Compare what the ranks have found with what torch_geometric's layers give."""
    close = {"rtol": 1e-10, "atol": 1e-10}
    for rank in found:
        assert rank["losses"] == pytest.approx(guest["losses"], rel=1e-10), config
        state = as_geometric(config, rank["weights"], rank["buffers"]).state_dict()
        torch.testing.assert_close(dict(state), dict(guest["state"]), **close)
        gradients = as_geometric(config, rank["gradients"], rank["buffers"])
        own = [p.detach() for p in gradients.parameters()]
        torch.testing.assert_close(own, guest["gradients"], **close)
    ids = torch.cat([rank["ids"] for rank in found])
    order = torch.argsort(ids)
    assert torch.equal(ids[order], torch.arange(len(ids)))
    logits = torch.cat([rank["logits"] for rank in found])[order]
    torch.testing.assert_close(logits, guest["logits"], **close)


class Guest(torch.nn.Module):
    """A user's model of torch_geometric's layers."""

    def __init__(self):
        from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

        super().__init__()
        self.first = GCNConv(5, 6)
        inside = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.ReLU())
        self.middle = torch.nn.ModuleList(
            [
                SAGEConv(6, 6),
                SAGEConv(6, 6, aggr="max"),
                SAGEConv(6, 6, aggr="sum", root_weight=False),
                GINConv(inside, train_eps=True),
                GATConv(6, 3, heads=2, add_self_loops=False),
            ]
        )
        self.last = GATConv(6, 4, heads=2, concat=False)

    def forward(self, x, edges, *weight):
        x = self.first(x, edges, *weight).relu()
        for layer in self.middle:
            x = layer(x, edges).sigmoid()
        return self.last(x, edges)


def test_layers_of_torch_geometric_are_taken_over_and_given_back(graph, tables):
    from torch_geometric.nn import GCNConv

    from weft.integrations.geometric_grid import from_geometric, to_geometric

    torch.manual_seed(2)
    guest = Guest().double()
    taken = from_geometric(guest)
    table = open_table(tables["none", "random"])
    shared = DistributedGraph.open(table, single(), dtype=torch.float64)
    x, ends = torch.from_numpy(graph.nodes["x"]), np.stack([graph.senders, graph.receivers])
    weight = torch.from_numpy(graph.edges["weight"])
    right = guest(x, torch.from_numpy(ends), weight)[shared.ids]
    found = taken(shared.x, shared)
    torch.testing.assert_close(found, right, rtol=1e-11, atol=1e-11)
    found.sin().sum().backward()
    right.sin().sum().backward()
    back = to_geometric(taken)
    assert type(back.first) is GCNConv
    torch.testing.assert_close(dict(back.state_dict()), dict(guest.state_dict()), rtol=0, atol=0)
    grads = [[p.grad for p in model.parameters()] for model in (taken, guest)]
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)
    with pytest.raises(TypeError, match="pass a DistributedGraph"):
        taken(x, torch.from_numpy(ends))


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat", "gin", "appnp"])
def test_a_trained_run_is_a_module_of_torch_geometric(kind, tmp_path):
    from weft.integrations.geometric_grid import to_geometric

    graph = replace(one_loop_each(graph_of()), edges={})
    how = {"gcn": "symmetric", "sage": "row", "appnp": "symmetric"}.get(kind, "none")
    path = tmp_path / "table"
    table = prepare(graph, path, blocks=1, normalisation=how, dtype="float64")
    config = FullGraphConfig(data=str(path), model=kind, dtype="float64", epochs=3)
    train_full_graph(table, config, Grid(rows=1), folder=tmp_path / "run", quiet=True)
    predict_nodes(tmp_path / "run", tmp_path / "out.csv")
    ours = np.loadtxt(tmp_path / "out.csv", delimiter=",", skiprows=1)
    guest = to_geometric(tmp_path / "run")
    x, ends = torch.from_numpy(graph.nodes["x"]), np.stack([graph.senders, graph.receivers])
    best, chosen = guest(x, torch.from_numpy(ends)).softmax(1).max(1)
    assert chosen.tolist() == ours[:, 1].tolist()
    assert best.tolist() == pytest.approx(ours[:, 2].tolist(), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("GCNConv", {"improved": True}, "GCNConv has improved=True"),
        ("GATConv", {"dropout": 0.5}, "GATConv has dropout=0.5"),
        ("TAGConv", {}, "TAGConv is not taken over"),
    ],
)
def test_layers_that_are_not_taken_over(name, options, said):
    import torch_geometric.nn as geometric

    from weft.integrations.geometric_grid import from_geometric

    model = torch.nn.ModuleList([getattr(geometric, name)(5, 4, **options)])
    with pytest.raises(ValueError, match=said):
        from_geometric(model)


def test_heads_that_do_not_share_a_width():
    with pytest.raises(ValueError, match="6 features cannot be shared by 4 heads"):
        GraphNetworkConfig(kind="gat", hidden=(6,))
