"""weft's batches in torch_geometric's loader: every graph once, one shape, the same losses."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    pytest.importorskip("torch_geometric")
    from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GCNConv, global_add_pool, global_mean_pool
    from torch_geometric.nn.models.schnet import GaussianSmearing, InteractionBlock

    from weft.integrations.torch_geometric import PackedDataLoader, weft_batches

from weft.batching import graph_sizes
from weft.errors import DataError
from weft.graphs import Budget
from weft.sources import small_graphs

# Of torch_geometric, where it compiles or pools.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.*deprecated:DeprecationWarning")


def molecules(count: int = 60) -> list[Data]:
    """Small graphs in float64 with a number each, as `y` and in `number`."""
    made = []
    for number, graph in enumerate(small_graphs(count)):
        torch.manual_seed(number)
        edges = torch.stack([torch.from_numpy(graph.senders), torch.from_numpy(graph.receivers)])
        made.append(
            Data(
                x=torch.randn(graph.num_nodes, 5, dtype=torch.float64),
                z=torch.randint(1, 9, (graph.num_nodes,)),
                pos=torch.randn(graph.num_nodes, 3, dtype=torch.float64),
                edge_index=edges.long(),
                edge_attr=torch.rand(graph.num_edges, 2, dtype=torch.float64) + 0.5,
                y=torch.randn(1, dtype=torch.float64),
                number=number,
                name=f"graph {number}",
            )
        )
    return made


class Small(InMemoryDataset):
    """The same in memory, without their text."""

    def __init__(self, graphs: list[Data]) -> None:
        super().__init__()
        for graph in graphs:
            graph.name = None
        self.data, self.slices = self.collate(graphs)


class Convolutions(nn.Module):
    """Two graph convolutions with weights of edges, and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(5, 16), GCNConv(16, 1)

    def forward(self, batch: Batch) -> Tensor:
        weight = batch.edge_attr[:, 0]
        h = self.first(batch.x, batch.edge_index, weight).relu()
        h = self.second(h, batch.edge_index, weight)
        pooled: Tensor = global_mean_pool(h, batch.batch)[:, 0]
        return pooled


class ContinuousFilters(nn.Module):
    """torch_geometric's SchNet blocks on the edges of the data."""

    def __init__(self) -> None:
        super().__init__()
        self.atoms = nn.Embedding(10, 16)
        self.gaussians = GaussianSmearing(0.0, 5.0, 12)
        self.blocks = nn.ModuleList([InteractionBlock(16, 12, 16, 5.0) for _ in range(2)])
        self.last = nn.Linear(16, 1)

    def forward(self, batch: Batch) -> Tensor:
        sender, receiver = batch.edge_index
        # Not differentiable at 0: padding must not be there.
        distance = (batch.pos[sender] - batch.pos[receiver]).pow(2).sum(1).sqrt()
        h = self.atoms(batch.z)
        for block in self.blocks:
            h = h + block(h, batch.edge_index, distance, self.gaussians(distance))
        pooled: Tensor = global_add_pool(self.last(h), batch.batch)[:, 0]
        return pooled


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    found = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return [gradient for gradient in found if gradient is not None]


@pytest.mark.parametrize("make", [Convolutions, ContinuousFilters])
@pytest.mark.parametrize("policy", ["packed", "dynamic", "static-64", "unpadded"])
def test_losses_and_gradients_are_those_without_padding(make, policy):
    graphs = molecules()
    torch.manual_seed(0)
    model = make().double()
    for batch in PackedDataLoader(graphs, 8, policy=policy):
        real = [graphs[int(number)] for number in batch.number[batch.graph_mask]]
        plain = Batch.from_data_list(real)
        loss = ((model(batch) - batch.y) ** 2)[batch.graph_mask].mean()
        expected = ((model(plain) - plain.y) ** 2).mean()
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
        for ours, theirs in zip(gradients(model, loss), gradients(model, expected), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_a_padded_batch_has_the_real_graphs_first_and_one_that_owns_the_rest():
    graphs = molecules()
    loader = PackedDataLoader(graphs, 8, follow_batch=["pos"])
    batch = next(iter(loader))
    count, nodes = int(batch.graph_mask.sum()), int(batch.node_mask.sum())
    edges = int(batch.edge_mask.sum())
    for mask in (batch.node_mask, batch.edge_mask, batch.graph_mask):
        assert (mask.int().diff() <= 0).all()
    parts = batch.to_data_list()
    real = [graphs[int(number)] for number in batch.number[:count]]
    for part, graph in zip(parts[:count], real, strict=True):
        assert all(torch.equal(part[name], graph[name]) for name in ("x", "edge_index", "y"))
        assert part.name == graph.name
    assert [part.num_nodes for part in parts[count:-1]] == [0] * (8 - count - 1)
    assert parts[-1].num_nodes == batch.num_nodes - nodes >= 2
    assert parts[-1].num_edges == batch.num_edges - edges
    assert (batch.edge_index[:, edges:] >= nodes).all()
    assert (batch.edge_index[0, edges:] != batch.edge_index[1, edges:]).all()
    assert int(batch.batch.max()) + 1 == batch.num_graphs == 8
    assert torch.equal(batch.pos_batch, batch.batch)
    assert loader.budget is not None
    assert batch.num_nodes == loader.budget.nodes + 1
    assert len(batch.name) == 8


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
def test_one_shape_and_every_graph_once_an_epoch(workers):
    loader = PackedDataLoader(molecules(), 8, num_workers=workers)
    epochs = []
    for _ in range(2):
        shapes, seen = set(), []
        for batch in loader:
            shapes.add(
                tuple(tuple(v.shape) for v in batch.to_dict().values() if torch.is_tensor(v))
            )
            seen.extend(batch.number[batch.graph_mask].tolist())
        assert len(shapes) == 1
        assert sorted(seen) == list(range(60))
        epochs.append(seen)
    assert epochs[0] != epochs[1]


def orders(loader: PackedDataLoader) -> list[list[int]]:
    return [batch.number[batch.graph_mask].tolist() for batch in loader]


def test_epochs_follow_from_the_seed_and_their_number():
    loader, other = PackedDataLoader(molecules(), 8, seed=3), PackedDataLoader(molecules(), 8)
    first, second = orders(loader), orders(loader)
    assert first != second
    loader.set_epoch(0)
    assert orders(loader) == first
    again = PackedDataLoader(molecules(), 8, seed=3)
    again.set_epoch(1)
    assert orders(again) == second
    assert orders(other) != first
    # As a trainer does that knows the sampler alone.
    for epoch, expected in enumerate([first, second]):
        again.batch_sampler.set_epoch(epoch)
        assert orders(again) == expected
    still = PackedDataLoader(molecules(), 8, shuffle=False)
    assert orders(still) == orders(still)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_model_is_compiled_once(backend):
    compilations = 0

    def counting(graph, inputs):
        nonlocal compilations
        compilations += 1
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    torch._dynamo.reset()
    torch.manual_seed(0)
    convolution, last = GCNConv(5, 16).double(), nn.Linear(16, 1).double()

    def loss_of(x, edges, graph, y, mask, count):
        h = convolution(x, edges).relu()
        out = last(global_add_pool(h, graph, size=count))[:, 0]
        return torch.where(mask, (out - y) ** 2, 0).sum() / mask.sum()

    compiled = torch.compile(loss_of, backend=counting, dynamic=False, fullgraph=True)
    loader = PackedDataLoader(molecules(), 8)
    for _ in range(2):
        for batch in loader:
            args = (batch.x, batch.edge_index, batch.batch, batch.y, batch.graph_mask)
            loss = compiled(*args, batch.num_graphs)
            loss.backward()
            torch.testing.assert_close(loss, loss_of(*args, batch.num_graphs))
    assert compilations == 1


def test_two_lines_for_the_loader_of_torch_geometric():
    graphs = molecules()
    sampler = weft_batches(graphs, policy="packed", batch_size=8)
    batches = list(DataLoader(graphs, batch_sampler=sampler))
    seen = [int(number) for batch in batches for number in batch.number]
    assert sorted(seen) == list(range(60))
    assert sampler.budget is not None
    assert max(batch.num_nodes for batch in batches) < sampler.budget.nodes
    sampler.set_epoch(1)
    others = [int(n) for batch in DataLoader(graphs, batch_sampler=sampler) for n in batch.number]
    assert sorted(others) == sorted(seen)
    assert others != seen


@pytest.mark.parametrize("part", ["whole", "view", "subset"])
def test_data_sets_in_memory(part):
    whole = Small(molecules(40))
    data, wanted = {
        "whole": (whole, range(40)),
        "view": (whole[10:30], range(10, 30)),
        "subset": (Subset(whole, range(5, 25)), range(5, 25)),
    }[part]
    loader = PackedDataLoader(data, 8)
    seen = [number for order in orders(loader) for number in order]
    assert sorted(seen) == list(wanted)


def test_graphs_larger_than_the_budget():
    graphs = molecules()
    nodes, edges = graph_sizes(graphs)
    budget = Budget(nodes=int(nodes.max()), edges=4 * int(edges.max()), graphs=6)
    large = [number for number in range(60) if nodes[number] == nodes.max()]
    with pytest.raises(DataError, match=r"too large\); take a larger batch_size"):
        PackedDataLoader(graphs, 6, budget=budget)
    with pytest.warns(UserWarning, match="skipped as too large"):
        loader = PackedDataLoader(graphs, 6, budget=budget, oversize="skip")
    seen = {number for order in orders(loader) for number in order}
    assert seen == set(range(60)) - set(large)
    loader = PackedDataLoader(graphs, 6, budget=budget, oversize="alone")
    found = orders(loader)
    assert all([number] in found for number in large)
    assert sorted(number for order in found for number in order) == list(range(60))
    assert {batch.num_graphs for batch in loader} == {2, 6}


def test_a_test_set_has_the_shape_of_the_training():
    graphs = molecules()
    train = PackedDataLoader(graphs[:40], 8)
    test = PackedDataLoader(
        graphs[40:], 8, policy="dynamic", shuffle=False, budget=train.budget, oversize="alone"
    )
    assert {(b.num_nodes, b.num_edges) for b in test} == {(b.num_nodes, b.num_edges) for b in train}
    assert [number for order in orders(test) for number in order] == list(range(40, 60))


def test_ranks_share_an_epoch():
    graphs = molecules()
    loaders = [PackedDataLoader(graphs, 8, rank=rank, ranks=2) for rank in range(2)]
    assert len(loaders[0]) == len(loaders[1])
    seen = [number for loader in loaders for order in orders(loader) for number in order]
    assert sorted(seen) == list(range(60))


def test_graphs_without_edges():
    lone = [
        Data(
            x=torch.randn(1 + number % 3, 2),
            edge_index=torch.zeros(2, 0).long(),
            edge_attr=torch.zeros(0, 4),
            number=number,
        )
        for number in range(9)
    ]
    ring = Data(
        x=torch.randn(3, 2),
        edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]),
        edge_attr=torch.randn(3, 4),
        number=9,
    )
    for graphs in (lone, [*lone, ring]):
        loader = PackedDataLoader(graphs, 4)
        found = orders(loader)
        assert sorted(number for order in found for number in order) == list(range(len(graphs)))
        assert len({(b.x.shape, b.edge_attr.shape, b.num_edges) for b in loader}) == 1


def test_a_batch_without_nodes():
    none = {"x": torch.zeros(0, 2), "edge_index": torch.zeros(2, 0).long()}
    batch = next(iter(PackedDataLoader([Data(**none) for _ in range(3)], 4)))
    assert not batch.node_mask.any()
    assert batch.graph_mask.tolist() == [True] * 3 + [False]


def rings(**more: object) -> list[Data]:
    """Graphs that all have four nodes and four edges."""
    made = []
    for number in range(9):
        ends = torch.arange(4)
        made.append(
            Data(x=torch.randn(4, 2), edge_index=torch.stack([ends, ends.roll(1)]), number=number)
        )
        for name, value in more.items():
            made[-1][name] = value
    return made


def test_rows_that_sizes_do_not_tell():
    graphs = rings(edge_attr=torch.ones(4, 1), y=torch.ones(4))
    batch = next(iter(PackedDataLoader(graphs, 4, levels={"y": "graph"})))
    assert batch.y.shape == (4 * 4,)
    assert batch.edge_attr.shape == (batch.num_edges, 1)
    assert next(iter(PackedDataLoader(graphs, 4))).y.shape == (batch.num_nodes,)
    with pytest.raises(ValueError, match="levels has 'atom' for 'y'; give node, edge, graph for"):
        PackedDataLoader(graphs, 4, levels={"y": "atom"})


def test_what_cannot_be_padded():
    with pytest.raises(DataError, match=r"attribute 'face' numbers nodes.*exclude_keys=\['face'\]"):
        PackedDataLoader(rings(face=torch.zeros(3, 1).long()), 4)
    faces = PackedDataLoader(rings(face=torch.zeros(3, 1).long()), 4, exclude_keys=["face"])
    assert "face" not in next(iter(faces))
    uneven = rings()
    uneven[0].edge_index = uneven[0].edge_index[:, :3]
    for number, graph in enumerate(uneven):
        graph.path = torch.zeros(7 if number == 0 else 5)
    with pytest.raises(DataError, match="attribute 'path' has from 5 to 7 rows a graph"):
        PackedDataLoader(uneven, 4)
    with pytest.raises(DataError, match="'adj' is a sparse matrix"):
        PackedDataLoader(rings(adj=torch.eye(4).to_sparse()), 4)
    hetero = HeteroData()
    hetero["a"].x = torch.ones(2, 1)
    with pytest.raises(DataError, match="a sample is a HeteroData"):
        PackedDataLoader([hetero, hetero], 4)
    with pytest.raises(DataError, match="no edge_index"):
        PackedDataLoader([Data(x=torch.ones(2, 1))] * 3, 4)


def test_a_transform_that_changes_sizes_is_noticed():
    class Growing(list):
        taken = 0

        def __getitem__(self, index):
            self.taken += 1
            graph = super().__getitem__(index)
            if self.taken <= 9 + 1:  # the sizes are read once, and one of them twice
                return graph
            return Data(x=torch.zeros(40, 2), edge_index=graph.edge_index)

    loader = PackedDataLoader(Growing(rings()), 4)
    with pytest.raises(DataError, match="more than was planned from their sizes"):
        next(iter(loader))


@pytest.mark.parametrize("stock", [False, True])
def test_two_iterators_at_once_are_two_epochs(stock):
    graphs = molecules(20)
    if stock:
        del graphs[3].name  # torch_geometric collates graphs with different attributes
    loader = PackedDataLoader(graphs, 4, policy="unpadded", exclude_keys=["name"])
    assert (loader._gathered is None) == stock
    both = [
        [first.number.tolist(), second.number.tolist()]
        for first, second in zip(loader, loader, strict=True)
    ]
    loader.set_epoch(0)
    epochs = [[batch.number.tolist() for batch in loader] for _ in range(2)]
    assert [list(batches) for batches in zip(*both, strict=True)] == epochs
    assert epochs[0] != epochs[1]


LABELS = {
    "int32": lambda number: torch.tensor([1000 + number], dtype=torch.int32),
    "int": lambda number: 1000 + number,
    "float": lambda number: torch.tensor(1234.5678 + number),
    "one": lambda number: torch.tensor([[9999 if number == 7 else 0]]),
}


@pytest.mark.parametrize("kind", LABELS)
def test_a_number_of_the_graph_is_not_taken_for_a_nodes(kind):
    """The table of QM9 has an `index`, by whose name torch_geometric would add up nodes."""
    graphs = molecules(20)
    for number, graph in enumerate(graphs):
        graph.index = LABELS[kind](number)
    loader = PackedDataLoader(graphs, 6)
    for batch in loader:
        numbers, own = batch.number[batch.graph_mask].tolist(), batch.index.flatten()
        given = torch.stack([torch.as_tensor(graphs[i].index).flatten()[0] for i in numbers])
        assert own.dtype == given.dtype
        assert torch.equal(own[batch.graph_mask], given)
        assert torch.equal(torch.as_tensor(batch[0].index).flatten()[0], given[0])
    for batch in PackedDataLoader(graphs, 6, policy="unpadded"):
        theirs = Batch.from_data_list([graphs[i] for i in batch.number.tolist()])
        assert torch.equal(batch.index, theirs.index)


def test_a_number_that_may_be_a_nodes_needs_a_word():
    graphs = molecules(20)
    for graph in graphs:
        graph.root_index = torch.tensor([0])
    with pytest.raises(DataError, match=r"'root_index' numbers nodes.*levels=\{'root_index': "):
        PackedDataLoader(graphs, 6)
    batch = next(iter(PackedDataLoader(graphs, 6, levels={"root_index": "graph"})))
    assert not batch.root_index.any()
    graphs[0].root_index = torch.tensor([-1])  # no root
    with pytest.raises(DataError, match="'root_index' numbers nodes"):
        PackedDataLoader(graphs, 6)
    graphs[5].root_index = torch.tensor([0, 1])
    with pytest.raises(DataError, match="'root_index' numbers nodes"):
        PackedDataLoader(graphs, 6, levels={"root_index": "graph"})
    batch = next(iter(PackedDataLoader(graphs, 6, policy="unpadded", shuffle=False)))
    assert torch.equal(batch.root_index, Batch.from_data_list(graphs[:6]).root_index)
