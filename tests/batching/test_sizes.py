from __future__ import annotations

from typing import Any

import pytest
import torch
from size_lists import molecules
from torch.utils.data import Subset

from weft.batching import BatchingConfig, GraphSampler, graph_sizes
from weft.errors import DataError

pyg = pytest.importorskip("torch_geometric")

SIZES = [3, 5, 1, 4]


def samples(**columns: bool) -> list[Any]:
    from torch_geometric.data import Data

    made = []
    for n in SIZES:
        data = Data(edge_index=torch.arange(n).repeat(2, 1))
        if columns.get("pos"):
            data.pos = torch.zeros(n, 3)
        if columns.get("counted"):
            data.num_nodes = n + 1
        made.append(data)
    return made


class InMemory:
    """Made in a function: torch_geometric is imported only where it is used."""

    def __new__(cls, graphs: list[Any], transform: Any = None) -> Any:
        from torch_geometric.data import InMemoryDataset

        class Counted(InMemoryDataset):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__(transform=transform)
                self.data, self.slices = self.collate(graphs)
                self.loaded: list[int] = []

            def get(self, idx: int) -> Any:
                self.loaded.append(idx)
                return super().get(idx)

        return Counted()


def as_lists(data: Any) -> tuple[list[int], list[int]]:
    nodes, edges = graph_sizes(data)
    return nodes.tolist(), edges.tolist()


def test_of_a_table() -> None:
    table = molecules(5)
    assert as_lists(table) == (table.num_nodes.tolist(), table.num_edges.tolist())


def test_of_a_collated_data_set_without_loading_a_sample() -> None:
    data = InMemory(samples(pos=True))
    assert as_lists(data) == (SIZES, SIZES)
    assert as_lists(data[[2, 0]]) == ([1, 3], [1, 3])
    assert as_lists(Subset(data, [3, 1])) == ([4, 5], [4, 5])
    assert data.loaded == []


def test_of_a_collated_data_set_that_counts_its_nodes() -> None:
    data = InMemory(samples(counted=True))
    assert as_lists(data) == ([4, 6, 2, 5], SIZES)
    assert as_lists(data[1:3]) == ([6, 2], [5, 1])


def test_a_transform_may_change_sizes_so_samples_are_taken_once() -> None:
    def without_edges(data: Any) -> Any:
        data.edge_index = data.edge_index[:, :0]
        return data

    data = InMemory(samples(pos=True), transform=without_edges)
    assert as_lists(data) == (SIZES, [0, 0, 0, 0])
    assert data.loaded == [0, 1, 2, 3]


def test_of_a_list_and_its_subset() -> None:
    assert as_lists(samples(pos=True)) == (SIZES, SIZES)
    assert as_lists(Subset(samples(pos=True), [1])) == ([5], [5])


def test_of_something_else() -> None:
    with pytest.raises(DataError, match="sample 0 is a str without num_nodes"):
        graph_sizes(["a"])


def test_a_torch_geometric_loader_takes_the_sampler() -> None:
    from torch_geometric.loader import DataLoader

    data = InMemory(samples(pos=True))
    made = BatchingConfig(policy="static-64", batch_size=3, shuffle=False)
    sampler = GraphSampler(*graph_sizes(data), made)
    loader = DataLoader(data, batch_sampler=sampler)
    assert [batch.num_nodes for batch in loader] == [8, 5]
