"""Reading a torch_geometric data set into a DataTable, once, where that is exact."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset
from torch_geometric.data import Batch, Data, Dataset, InMemoryDataset

from weft.graphs import Array
from weft.integrations.geometric.data_columns import (
    BY_NODES,
    Column,
    ListColumn,
    NestedColumn,
    NoColumn,
    Rows,
    TensorColumn,
    column_of,
    has_own_rules,
    is_plain,
    is_word,
)
from weft.integrations.geometric.data_table import DataTable

# Graphs that are read a second time, to compare.
_COMPARED = 8
# Graphs from which the memory of all is estimated, and the part of the free memory they may take.
_WEIGHED, _SHARE = 200, 0.25


def read_once(dataset: Any) -> Sequence[Any] | None:
    """Every graph of a data set; None where a table needs no reading, or cannot be made.

    A list is itself. A data set in memory has the table already. One that draws random numbers, as
    a random transform does, has other graphs in every epoch; and one on disk may be larger than
    the memory. Random generators are left as they were.
    """
    if type(dataset) in (list, tuple):
        graphs: Sequence[Any] = dataset
        return graphs
    if _in_memory(dataset) is not None:
        return None
    read: list[Any] = []
    weight, room = 0, _room()
    with same_random_numbers() as drawn:
        for number in range(len(dataset)):
            read.append(dataset[number])
            if number == 0 and drawn():
                break
            if number < _WEIGHED:
                weight += _weight(read[-1])
                times = len(dataset) / _WEIGHED if number + 1 == _WEIGHED else 1
                if weight * times > room:
                    return None
        return None if drawn() else read


def table_of(
    dataset: Any,
    graphs: Sequence[Any] | None,
    num_nodes: Array,
    *,
    follow_batch: Sequence[str] = (),
    exclude_keys: Sequence[str] = (),
) -> DataTable | None:
    """The table of a data set; None where torch_geometric has to collate whole batches.

    Args:
        dataset: a data set, or a list of Data.
        graphs: what `read_once` gave for it.
        num_nodes: int64 [g], the nodes of each graph.
        follow_batch: as in torch_geometric's loader.
        exclude_keys: attributes to leave out.
    """
    attributes = _held_attributes(dataset) if graphs is None else _read_attributes(graphs)
    if attributes is None:
        return None
    names = [name for name in attributes.names if name not in exclude_keys]
    if issubclass(attributes.kind, Batch) or {"batch", "ptr"} & set(names):
        return None
    counts = attributes.num_nodes if "num_nodes" not in exclude_keys else None
    if counts is not None and (
        any(type(count) is not int for count in counts) or counts != num_nodes.tolist()
    ):
        return None
    columns: dict[str, Column | None] = {}
    for name in names:
        try:
            columns[name] = attributes.column(name)
        except NoColumn:
            columns[name] = None
        if name in follow_batch and isinstance(columns[name], NestedColumn):
            columns[name] = None
    if not any(columns.values()):
        return None
    table = DataTable(
        dataset, columns, num_nodes, counted=counts is not None, follow_batch=follow_batch
    )
    return table if _agrees(table, dataset, follow_batch, exclude_keys) else None


@dataclass(frozen=True, kw_only=True)
class _Attributes:
    """What all graphs of a data set have.

    Attributes:
        kind: their class.
        names: their attributes but `num_nodes`.
        num_nodes: this attribute of each graph, if they have it.
        column: makes the column of an attribute, or raises NoColumn.
    """

    kind: type[Any]
    names: list[str]
    num_nodes: list[Any] | None
    column: Callable[[str], Column]


def _read_attributes(graphs: Sequence[Any]) -> _Attributes | None:
    """The attributes of graphs that were read; None where they differ."""
    kind = type(graphs[0])
    if not issubclass(kind, Data) or any(type(graph) is not kind for graph in graphs):
        return None
    names = graphs[0].keys()
    if any(set(graph.keys()) != set(names) for graph in graphs):
        return None

    def values(name: str) -> list[Any]:
        return [graph._store[name] for graph in graphs]

    return _Attributes(
        kind=kind,
        names=[name for name in names if name != "num_nodes"],
        num_nodes=values("num_nodes") if "num_nodes" in names else None,
        column=lambda name: column_of(name, values(name), graphs),
    )


def _held_attributes(dataset: Any) -> _Attributes | None:
    """The attributes of a data set in memory; None if it is none."""
    held = _in_memory(dataset)
    if held is None:
        return None
    whole, chosen = held
    store = whole._data._store
    counts = getattr(store, "_num_nodes", None)
    return _Attributes(
        kind=type(whole._data),
        names=[name for name in whole.slices if name in store],
        num_nodes=None if counts is None else [counts[i] for i in chosen],
        column=lambda name: _held_column(
            name, store[name], whole.slices[name], whole.len(), chosen
        ),
    )


def _in_memory(dataset: Any) -> tuple[InMemoryDataset, Array] | None:
    """The data set whose memory has all graphs one after another, and which of them are meant."""
    chosen: Any = slice(None)
    while type(dataset) is Subset:
        chosen = np.asarray(dataset.indices, dtype=np.int64)[chosen]
        dataset = dataset.dataset
    kind = type(dataset)
    usual = (
        isinstance(dataset, InMemoryDataset)
        and kind.get is InMemoryDataset.get
        and kind.len is InMemoryDataset.len
        and kind.indices is Dataset.indices
        and kind.__getitem__ is Dataset.__getitem__
    )
    if not usual or dataset.transform is not None or not isinstance(dataset.slices, dict):
        return None
    data = dataset._data
    if not isinstance(data, Data) or has_own_rules(type(data)) or dataset.len() < 2:
        return None
    return dataset, np.asarray(list(dataset.indices()), dtype=np.int64)[chosen]


def _held_column(name: str, value: Any, cuts: Any, count: int, chosen: Array) -> Column:
    """The column of an attribute that a data set in memory has concatenated.

    Args:
        name: of the attribute.
        value: of all graphs.
        cuts: where the value of each graph begins.
        count: graphs in memory.
        chosen: int64 [g], those that the column is for.
    """
    if isinstance(value, Mapping) and isinstance(cuts, Mapping) and set(value) == set(cuts):
        if not all(isinstance(key, str) for key in value):
            raise NoColumn
        parts: dict[Any, Column] = {
            key: _held_column(key, value[key], cuts[key], count, chosen) for key in value
        }
        return NestedColumn(parts, is_list=False)
    if type(value) is list and type(cuts) is list and len(value) == len(cuts) > 0:
        if not all(isinstance(each, Tensor) for each in value):
            raise NoColumn
        parts = {
            i: _held_column(name, *each, count, chosen)
            for i, each in enumerate(zip(value, cuts, strict=True))
        }
        return NestedColumn(parts, is_list=True)
    if type(value) is list:
        if not isinstance(cuts, Tensor) or len(value) != count:
            raise NoColumn
        words = [value[i] for i in chosen]
        if not all(map(is_word, words)):
            raise NoColumn
        return ListColumn(words)
    if not (is_plain(value) and is_plain(cuts) and value.dim() and cuts.dtype == torch.int64):
        raise NoColumn
    if cuts.shape != (count + 1,) or "batch" in name:
        raise NoColumn
    offsets = cuts.numpy()
    rows = Rows(starts=offsets[:-1][chosen], stops=offsets[1:][chosen])
    numbers_nodes = "index" in name or name == "face"
    dim = value.dim() - 1 if numbers_nodes else 0
    return TensorColumn(value, dim, rows, BY_NODES if numbers_nodes else None)


@contextmanager
def same_random_numbers() -> Iterator[Any]:
    """Leave the generators of torch, numpy and Python as they are, and tell whether they moved."""

    def states() -> tuple[bytes, Any, Any]:
        numbers: Any = np.random.get_state()
        kept = (numbers[0], numbers[1].tobytes(), *numbers[2:])
        return torch.get_rng_state().numpy().tobytes(), kept, random.getstate()

    before, torch_state, numpy_state = states(), torch.get_rng_state(), np.random.get_state()
    try:
        yield lambda: states() != before
    finally:
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(before[2])


def _weight(value: Any) -> int:
    """Bytes of the tensors, arrays and texts in a graph or one of its attributes."""
    if isinstance(value, Data):
        value = value.to_dict()
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return sum(map(_weight, value))
    if isinstance(value, Tensor):
        if value.layout is not torch.strided:
            return int(value._nnz()) * (16 + value.element_size())
        return value.numel() * value.element_size()
    return value.nbytes if isinstance(value, np.ndarray) else sys.getsizeof(value)


def _room() -> float:
    """Bytes that graphs in memory may take."""
    from weft.planning.worker import available_memory

    return _SHARE * available_memory()


def _agrees(
    table: DataTable, dataset: Any, follow_batch: Sequence[str], exclude_keys: Sequence[str]
) -> bool:
    """Whether a batch of some graphs, which are read again, is torch_geometric's own."""
    numbers = np.unique(np.linspace(0, len(dataset) - 1, _COMPARED).astype(np.int64))
    with same_random_numbers():
        try:
            graphs = [dataset[i] for i in numbers.tolist()]
            theirs = Batch.from_data_list(graphs, follow_batch, exclude_keys)
        except Exception:  # its own error comes with the batch that has such graphs
            return False
        ours = table.batch(numbers)
    return _same(
        [ours.to_dict(), ours._slice_dict, ours._inc_dict],
        [theirs.to_dict(), theirs._slice_dict, theirs._inc_dict],
    )


def _same(ours: Any, theirs: Any) -> bool:
    """Whether two attributes are of one type and equal; of other objects, of one type."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, Mapping):
        return set(ours) == set(theirs) and all(_same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if type(ours) is Tensor and ours.layout is torch.strided:
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return False
        both_nan = (ours != ours) & (theirs != theirs)
        return bool(((ours == theirs) | both_nan).all())
    if isinstance(ours, np.ndarray):
        alike = ours.dtype == theirs.dtype and ours.shape == theirs.shape
        return bool(alike and ours.tobytes() == theirs.tobytes())
    return not isinstance(ours, (str, int, float)) or ours == theirs
