"""Batches of a table equal those of torch_geometric's own collate, attribute by attribute."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Subset

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    pytest.importorskip("torch_geometric")
    from torch_geometric import EdgeIndex
    from torch_geometric.data import Batch, Data, Dataset, HeteroData, InMemoryDataset
    from torch_geometric.transforms import BaseTransform, RandomJitter

import weft
from weft.errors import DataError
from weft.integrations.geometric import read_data
from weft.integrations.torch_geometric import PackedDataLoader

MASKS = ("node_mask", "edge_mask", "graph_mask")


def assert_same(ours: Any, theirs: Any, where: str) -> None:
    """Equal in type, shape, dtype and value, however deeply nested."""
    assert type(ours) is type(theirs), where
    if isinstance(theirs, Mapping):
        assert set(ours) == set(theirs), where
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), where
        for i, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_same(*pair, f"{where}[{i}]")
    elif isinstance(theirs, EdgeIndex):
        assert ours.sparse_size() == theirs.sparse_size(), where
        assert ours.sort_order == theirs.sort_order, where
        assert torch.equal(ours.as_tensor(), theirs.as_tensor()), where
    elif isinstance(theirs, Tensor):
        assert (ours.dtype, ours.shape, ours.layout) == (theirs.dtype, theirs.shape, theirs.layout)
        assert ours.requires_grad == theirs.requires_grad, where
        if theirs.layout == torch.strided:
            assert ours.is_contiguous() == theirs.is_contiguous(), where
        else:
            ours, theirs = ours.to_dense(), theirs.to_dense()
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True, msg=where)
    elif isinstance(theirs, np.ndarray):
        np.testing.assert_array_equal(ours, theirs, where)
    else:
        assert ours == theirs, where


def assert_same_batch(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    found = {name: value for name, value in ours.to_dict().items() if name not in MASKS}
    assert_same(found, theirs.to_dict(), "batch")
    for name in ("_slice_dict", "_inc_dict", "_num_graphs"):
        assert_same(getattr(ours, name), getattr(theirs, name), name)
    assert (ours.num_nodes, ours.num_edges) == (theirs.num_nodes, theirs.num_edges)


# An attribute of each kind that torch_geometric collates, from the number of a graph and its sizes.
Maker = Callable[[int, int, int], Any]
KINDS: dict[str, Maker] = {
    "x": lambda i, n, e: torch.randn(n, 3),
    "z": lambda i, n, e: torch.randint(9, (n,), dtype=torch.int32),
    "pos": lambda i, n, e: torch.full((n, 3), torch.nan, dtype=torch.float64),
    "node_half": lambda i, n, e: torch.randn(n, 2).bfloat16(),
    "train_mask": lambda i, n, e: torch.rand(n) > 0.5,
    "edge_attr": lambda i, n, e: torch.randn(e, 4, 2),
    "edge_weight": lambda i, n, e: torch.rand(e),
    "y": lambda i, n, e: torch.randn(1, 5),
    "energy": lambda i, n, e: torch.tensor(0.5 * i),
    "rooted": lambda i, n, e: torch.tensor(i),
    "charge": lambda i, n, e: i - 3,
    "mass": lambda i, n, e: 0.25 * i,
    "chiral": lambda i, n, e: i % 2 == 0,
    "mixed_numbers": lambda i, n, e: i if i % 2 else 0.5,
    "smiles": lambda i, n, e: "C" * i,
    "names": lambda i, n, e: ["a", "b"] * (i % 3),
    "sizes": lambda i, n, e: (n, e),
    "array": lambda i, n, e: np.arange(n),
    "path": lambda i, n, e: torch.arange(i % 4),
    "nothing": lambda i, n, e: torch.zeros(n, 0),
    "face": lambda i, n, e: torch.randint(max(n, 1), (3, i % 3)),
    "tuple_index": lambda i, n, e: torch.randint(max(n, 1), (2, 2, i % 4)),
    "first_index": lambda i, n, e: torch.tensor(n // 2, dtype=torch.int32),
    "number_index": lambda i, n, e: n // 2,
    "refractive_index": lambda i, n, e: torch.rand(1),
    "flag_index": lambda i, n, e: torch.rand(2) > 0.5,
    "part_batch": lambda i, n, e: torch.randint(3, (n + 1,)),
    "two_types": lambda i, n, e: torch.zeros(n, dtype=torch.float32 if i % 2 else torch.float64),
    "learned": lambda i, n, e: torch.ones(n, requires_grad=True),
    "wave": lambda i, n, e: torch.randn(n, dtype=torch.complex64),
    "more": lambda i, n, e: {"h": torch.randn(n, 2), "index": torch.arange(n), "text": str(i)},
    "layers": lambda i, n, e: [torch.randn(n), torch.randn(i % 3, 2)],
    "pairs": lambda i, n, e: (torch.randn(e), torch.tensor(i)),
    "adj": lambda i, n, e: torch.eye(n).to_sparse(),
    "adj_t": lambda i, n, e: torch.eye(n).to_sparse_csr(),
}


def graphs_with(names: list[str], count: int, seed: int, *, counted: bool = False) -> list[Data]:
    torch.manual_seed(seed)
    least = 0 if counted else 1
    made = []
    for i in range(count):
        nodes = int(torch.randint(least, 7, ()))
        edges = int(torch.randint(9, ())) if nodes else 0
        data = Data(edge_index=torch.randint(max(nodes, 1), (2, edges)))
        for name in names:
            data[name] = KINDS[name](i, nodes, edges)
        if counted:
            data.num_nodes = nodes
        made.append(data)
    return made


class InMemory(InMemoryDataset):
    def __init__(self, graphs: list[Data], transform: Any = None) -> None:
        super().__init__(transform=transform)
        self._data, self.slices = self.collate(graphs)


class OnDisk(Dataset):
    """A data set that makes its graphs when they are asked for."""

    def __init__(self, graphs: list[Data], transform: Any = None) -> None:
        super().__init__(transform=transform)
        self.graphs, self.taken = graphs, 0

    def len(self) -> int:
        return len(self.graphs)

    def get(self, idx: int) -> Data:
        self.taken += 1
        return copy.copy(self.graphs[idx])


def unpadded(data: Any, **options: Any) -> PackedDataLoader:
    return PackedDataLoader(data, 4, policy="unpadded", **options)


def planned(loader: PackedDataLoader) -> list[list[int]]:
    return [batch.graphs.tolist() for batch in loader.batch_sampler.plan()]


def assert_same_batches(loader: PackedDataLoader, data: Any, **options: Any) -> None:
    # Its epoch stays the same in the first iteration.
    for numbers, ours in zip(planned(loader), loader, strict=True):
        assert_same_batch(ours, Batch.from_data_list([data[i] for i in numbers], **options))


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(st.sampled_from(sorted(KINDS)), max_size=8, unique=True),
    seed=st.integers(0, 999),
    source=st.sampled_from(["list", "memory", "view", "subset", "disk"]),
    follow=st.lists(st.sampled_from(["x", "edge_index", "y", "more", "smiles", "face", "adj"])),
    excluded=st.lists(st.sampled_from(["z", "charge", "num_nodes", "more"]), max_size=1),
)
def test_every_kind_of_attribute(names, seed, source, follow, excluded):
    with warnings.catch_warnings():
        # torch's own, of its sparse matrices.
        warnings.filterwarnings("ignore", "Sparse", UserWarning)
        count = 9
        graphs = graphs_with(names, count, seed, counted=True)
        if source in ("memory", "view") and {"adj", "adj_t", "learned"} & set(names):
            source = "list"  # torch_geometric's data sets in memory do not have those
        data: Any = {
            "list": lambda: graphs,
            "memory": lambda: InMemory(graphs),
            "view": lambda: InMemory(graphs)[[7, 2, 5, 1, 0]],
            "subset": lambda: Subset(Subset(graphs, [8, 1, 3, 2, 6, 5]), [4, 2, 0, 5]),
            "disk": lambda: OnDisk(graphs),
        }[source]()
        options = {"follow_batch": follow, "exclude_keys": excluded}
        loader = unpadded(data, levels={}, **options)
        assert_same_batches(loader, data, **options)


# What torch_geometric collates itself: other values would be rounded, promoted or lost.
STOCK = {"adj", "adj_t", "flag_index", "learned", "mixed_numbers", "refractive_index"}
STOCK |= {"two_types", "wave"}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_most_attributes_have_columns():
    table = unpadded(graphs_with(sorted(KINDS), 9, 0))._gathered.collate_fn.table
    assert set(table.stock) == STOCK
    held = sorted(set(KINDS) - STOCK)
    table = unpadded(InMemory(graphs_with(held, 9, 0)))._gathered.collate_fn.table
    assert table.stock == ["part_batch"]


class Pair(Data):
    """Two graphs, as torch_geometric's documentation has them; and odd rules."""

    def __inc__(self, key, value, *args, **kwargs):
        if key == "edge_index":
            return torch.tensor([[self.x_s.size(0)], [self.x_t.size(0)]])
        if key == "cluster":
            return int(value.max()) + 1 if value.numel() else 0
        return super().__inc__(key, value, *args, **kwargs)

    def __cat_dim__(self, key, value, *args, **kwargs):
        if key == "image":
            return None
        return 1 if key == "wide" else super().__cat_dim__(key, value, *args, **kwargs)


def pairs() -> list[Pair]:
    torch.manual_seed(0)
    made = []
    for i in range(9):
        s, t = 1 + i % 3, 2 + i % 2
        ends = torch.stack([torch.randint(s, (i,)), torch.randint(t, (i,))])
        parts = {"x_s": torch.randn(s, 2), "x_t": torch.randn(t, 2), "edge_index": ends}
        parts |= {"image": torch.randn(3, 4), "wide": torch.randn(2, i), "num_nodes": s + t}
        made.append(Pair(**parts, cluster=torch.randint(5, (i, 2))))
    return made


@pytest.mark.parametrize("memory", [False, True])
def test_own_rules_of_a_class(memory):
    data = InMemory(pairs()) if memory else pairs()
    loader = unpadded(data, follow_batch=["x_s", "x_t"])
    assert loader._gathered.collate_fn.table.stock == []
    assert_same_batches(loader, data, follow_batch=["x_s", "x_t"])


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2, 3)])
def test_increments_of_other_shapes(shape):
    class Odd(Data):
        def __init__(self, x=None, **others):
            super().__init__(x=x, **others)
            self.notes = ["new"]

        def __inc__(self, key, value, *args, **kwargs):
            return torch.full(shape, self.num_nodes) if key == "edge_index" else 0

    made = []
    for i in range(8):
        n = 1 + i % 4
        made.append(Odd(x=torch.randn(n, 1), edge_index=torch.randint(n, (2, 3))))
    assert_same_batches(unpadded(made), made)


@pytest.mark.parametrize("number", [int, torch.tensor])
def test_increments_that_sum_up_to_nothing(number):
    class Alternating(Data):
        def __inc__(self, key, value, *args, **kwargs):
            return number(self.step) if key == "c" else super().__inc__(key, value, *args, **kwargs)

    made = [
        Alternating(x=torch.randn(2, 1), c=torch.zeros(2).long(), step=(-1) ** i) for i in range(12)
    ]
    for size in (2, 3, 4):
        batch = next(iter(PackedDataLoader(made, size, policy="unpadded", shuffle=False)))
        assert_same_batch(batch, Batch.from_data_list(made[:size]))


@pytest.mark.parametrize("kind", [list, InMemory])
def test_keys_that_are_no_texts(kind):
    graphs = graphs_with(["x"], 9, 0)
    for graph in graphs:
        graph.orders = {1: torch.randn(2), 2: torch.randn(3)}
    data = kind(graphs)
    loader = unpadded(data)
    assert loader._gathered.collate_fn.table.stock == ["orders"]
    assert_same_batches(loader, data)


@pytest.mark.parametrize("names", [["x"], ["x", "edge_attr"], ["x", "mixed_numbers"]])
def test_without_edges_no_edge_is_masked(names):
    graphs = graphs_with(names, 8, 0)
    for batch in unpadded(graphs, exclude_keys=["edge_index"]):
        assert batch.edge_mask.shape == (batch.num_edges,)
        assert batch.edge_mask.all()


def test_edges_that_know_their_order():
    graphs = graphs_with(["x", "edge_attr"], 9, 3)
    for graph in graphs:
        ends = graph.edge_index[:, graph.edge_index[1].argsort()]
        size = (graph.num_nodes, graph.num_nodes)
        graph.edge_index = EdgeIndex(ends, sparse_size=size, sort_order="col")
    loader = unpadded(graphs)
    assert loader._gathered.collate_fn.table.stock == ["edge_index"]
    assert_same_batches(loader, graphs)


def test_graphs_with_different_attributes():
    graphs = graphs_with(["x", "y"], 4, 0)
    del graphs[2].y
    for order in ([0, 1, 2, 3], [2, 0, 1, 3]):
        data = [graphs[i] for i in order]
        loader = unpadded(data, shuffle=False)
        if order[0] == 2:
            assert_same_batch(next(iter(loader)), Batch.from_data_list(data))
            continue
        with pytest.raises(KeyError, match="y"):
            next(iter(loader))
    uneven = graphs_with(["x"], 4, 0)
    uneven[1].x = torch.zeros(uneven[1].num_nodes, 5)
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        next(iter(unpadded(uneven, shuffle=False)))


def test_a_batch_gives_its_graphs_back():
    graphs = graphs_with(["x", "smiles", "charge", "face", "layers", "energy"], 9, 1, counted=True)
    loader = unpadded(graphs)
    for numbers, batch in zip(planned(loader), loader, strict=True):
        again = pickle.loads(pickle.dumps(batch))
        plain = Batch.from_data_list([graphs[i] for i in numbers])
        for ours in (batch, copy.copy(batch), again.clone()):
            assert ours.num_graphs == len(ours) == len(numbers)
            for i, part in enumerate(ours.to_data_list()):
                assert_same(part.to_dict(), plain[i].to_dict(), f"graph {i}")
                assert_same(ours.get_example(i).to_dict(), plain[i].to_dict(), f"graph {i}")


@pytest.mark.parametrize("kind", [list, InMemory, OnDisk])
def test_a_changed_batch_leaves_the_table_as_it_is(kind):
    loader = unpadded(kind(graphs_with(["x", "array", "names", "smiles"], 8, 0)), shuffle=False)
    assert loader._gathered is not None
    kept = [copy.deepcopy(batch.to_dict()) for batch in loader]
    for batch in loader:
        batch.x.zero_()
        for array, names in zip(batch.array, batch.names, strict=True):
            array.fill(7)
            names.append("c")
    for batch, before in zip(loader, kept, strict=True):
        assert_same(batch.to_dict(), before, "batch")


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("adjacent", [False, True])
def test_masks_of_the_data_stay(name, adjacent):
    graphs = graphs_with(["x", "adj"] if adjacent else ["x"], 8, 0)
    for graph in graphs:
        graph[name] = torch.zeros(graph.num_nodes, dtype=torch.bool)
    for batch in unpadded(graphs):
        assert not batch[name].any()
        assert all(batch[other].all() for other in MASKS if other != name)
    if not adjacent:
        with pytest.raises(DataError, match=rf"'{name}' of the data.*exclude_keys=\['{name}'\]"):
            PackedDataLoader(graphs, 4)
        batch = next(iter(PackedDataLoader(graphs, 4, exclude_keys=[name])))
        assert batch[name].any()


PADDABLE = ["x", "z", "node_half", "edge_attr", "y", "energy", "charge", "smiles", "more", "layers"]


@settings(max_examples=30, deadline=None)
@given(
    names=st.lists(st.sampled_from(PADDABLE), max_size=5, unique=True),
    seed=st.integers(0, 999),
    policy=st.sampled_from(["packed", "dynamic", "static-64"]),
    source=st.sampled_from(["list", "memory"]),
)
def test_padding_is_that_of_collated_graphs(names, seed, policy, source):
    graphs = graphs_with(names, 12, seed, counted=True)
    for i, graph in enumerate(graphs):
        graph.label_index = torch.tensor([100 + i])
    data: Any = InMemory(graphs) if source == "memory" else graphs
    levels = dict.fromkeys({"y", "label_index"} & set(graphs[0].keys()), "graph")
    levels |= {name: "node" for name in ("x", "z", "node_half") if name in names}
    levels |= {name: "edge" for name in ("edge_attr",) if name in names}
    loader = PackedDataLoader(
        data, 5, policy=policy, oversize="alone", levels=levels, follow_batch=["label_index"]
    )
    assert loader._gathered is not None
    for numbers, ours in zip(planned(loader), loader, strict=True):
        theirs = loader.collate_fn([data[i] for i in numbers])
        assert_same(ours.to_dict(), theirs.to_dict(), "batch")
        assert_same(ours._slice_dict, theirs._slice_dict, "slices")
        assert_same(ours._inc_dict, theirs._inc_dict, "increments")
        assert ours.label_index[ours.graph_mask].tolist() == [100 + i for i in numbers]


def test_an_edge_of_a_node_that_is_not_there_is_not_repeated():
    graphs = graphs_with(["x"], 4, 0)
    for graph in graphs:
        graph.edge_index = torch.tensor([[0], [999]])
    loader = PackedDataLoader(graphs, 3)
    with pytest.raises(IndexError, match="out of range"):
        list(loader)
    with pytest.raises(IndexError, match="out of bounds"):
        unpadded(graphs)._gathered.collate_fn([0, 4])


class Halved(BaseTransform):
    """Not random."""

    calls = 0

    def forward(self, data):
        Halved.calls += 1
        data.x = data.x / 2
        return data


@pytest.mark.parametrize("kind", [InMemory, OnDisk])
def test_a_data_set_is_read_once(kind):
    graphs = graphs_with(["x", "y"], 40, 0)
    data = kind(graphs, transform=Halved())
    Halved.calls = 0
    loader = unpadded(data)
    read = Halved.calls
    assert 40 <= read < 60
    again = kind(graphs, transform=Halved())
    assert_same_batches(loader, again)
    before = Halved.calls
    list(loader)
    assert Halved.calls == before


class OwnNoise(BaseTransform):
    """Random numbers that only it knows."""

    def __init__(self) -> None:
        self.draws = np.random.default_rng(0)

    def forward(self, data):
        data.x = data.x + float(self.draws.random())
        return data


class OwnArray(OwnNoise):
    """The same in an array."""

    def forward(self, data):
        data.array = self.draws.random(2)
        return data


def test_random_arrays_are_new_in_every_epoch():
    loader = unpadded(InMemory(graphs_with(["x"], 12, 0), transform=OwnArray()), shuffle=False)
    first, second = (np.stack([each for batch in loader for each in batch.array]) for _ in range(2))
    assert first.shape == (12, 2)
    assert not (first == second).any()


@pytest.mark.parametrize("noise", [RandomJitter(0.1), OwnNoise()])
def test_random_graphs_are_new_in_every_epoch(noise):
    graphs = graphs_with(["x"], 12, 0)
    for graph in graphs:
        graph.pos = graph.x
    torch.manual_seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    loader = unpadded(InMemory(graphs, transform=noise), shuffle=False)
    PackedDataLoader(InMemory(graphs, transform=noise), 4)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert loader._gathered is None
    first, second = (torch.cat([batch.x + batch.pos for batch in loader]) for _ in range(2))
    assert first.shape == second.shape
    assert not torch.equal(first, second)


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("weighed", [4, 200])
@pytest.mark.parametrize("name", ["x", "array", "layers", "more", "adj"])
def test_graphs_larger_than_the_memory_stay_on_disk(monkeypatch, weighed, name):
    graphs = graphs_with([name], 12, 0, counted=True)
    for graph in graphs:
        graph.edge_index = graph.edge_index[:, :0]
    monkeypatch.setattr(read_data, "_room", lambda: 8 * 12)
    monkeypatch.setattr(read_data, "_WEIGHED", weighed)
    data = OnDisk(graphs)
    loader = unpadded(data)
    assert loader._gathered is None
    assert_same_batches(loader, data)
    monkeypatch.setattr(read_data, "_room", lambda: 1e6)
    assert unpadded(data)._gathered is not None


def test_several_kinds_of_nodes_are_refused():
    hetero = HeteroData()
    hetero["a"].x = torch.ones(2, 1)
    for policy in ("packed", "unpadded"):
        with pytest.raises(ValueError, match=r"a sample is a HeteroData.*to_homogeneous"):
            weft.loader([hetero, hetero], policy=policy)
