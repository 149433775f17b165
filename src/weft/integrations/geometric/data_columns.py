"""Columns of a torch_geometric data set: an attribute of all graphs, and its values in a batch.

A column gives what torch_geometric's own collate gives for the same graphs: the value, its slices
and its increments. An attribute that no column holds exactly raises NoColumn.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from weft.graphs import Array
from weft.graphs.edge_loops import copy_ranges, shift_ranges
from weft.graphs.table import offsets_of

Row = Literal["node", "edge", "graph"]
Collated = tuple[Any, Any, Any]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_DTYPES = frozenset((*_FLOATS, *_INTEGERS))
# Types of values that torch_geometric leaves as a list, beside arrays and lists of these.
_WORDS = (str, int, float, bool)


class NoColumn(Exception):
    """An attribute that torch_geometric has to collate itself."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Rows starts[i]:stops[i] of a column belong to graph i; int64 [g] each."""

    starts: Array
    stops: Array

    @classmethod
    def of_sizes(cls, sizes: Sequence[int] | Array) -> Rows:
        """Rows of one graph after another, `sizes` [g] each."""
        offsets = offsets_of(np.asarray(sizes, dtype=np.int64))
        return cls(starts=offsets[:-1], stops=offsets[1:])

    @property
    def sizes(self) -> Array:
        """int64 [g]."""
        sizes: Array = self.stops - self.starts
        return sizes


@dataclass(frozen=True, kw_only=True)
class Padding:
    """The graphs at the end of a padded batch: some without nodes, then the dummy.

    The dummy repeats an edge of graph `source` and its two ends; all have its other values.

    Attributes:
        source: the number of the graph.
        edge: the number of the edge in its graph.
        ends: its sender and receiver there.
        nodes: of the dummy.
        edges: of the dummy.
        graphs: all that are added, the dummy included.
    """

    source: int
    edge: int
    ends: tuple[int, int]
    nodes: int
    edges: int
    graphs: int


@dataclass(frozen=True, kw_only=True, eq=False)
class PickedRows:
    """The rows of a batch in a column.

    Attributes:
        starts: int64 [r], the batch is rows starts[i]:stops[i], one range after another; its first
            b ranges are those of the graphs, all others are rows of the dummy.
        stops: int64 [r].
        offsets: int64 [b + 1], where the rows of each graph of the batch begin.
    """

    starts: Array
    stops: Array
    offsets: Array

    @cached_property
    def slices(self) -> Tensor:
        """The offsets as a tensor."""
        return torch.from_numpy(self.offsets)


@dataclass(frozen=True, kw_only=True, eq=False)
class Picks:
    """Which graphs make a batch of b graphs, and their rows.

    Attributes:
        graphs: int64 [b], the numbers of the graphs; those of the padding are its source's.
        nodes: int64 [b], the nodes of each.
        padding: what is added, if anything.
    """

    graphs: Array
    nodes: Array
    padding: Padding | None = None
    _rows: dict[tuple[int, Row], PickedRows] = field(default_factory=dict)

    @cached_property
    def numbers(self) -> list[int]:
        """The same as `graphs`."""
        numbers: list[int] = self.graphs.tolist()
        return numbers

    @cached_property
    def node_offsets(self) -> Array:
        """int64 [b + 1], where the nodes of each graph begin."""
        return offsets_of(self.nodes)

    @cached_property
    def nothing(self) -> Tensor:
        """int64 [b], zeros: the increments of most attributes."""
        return torch.zeros(len(self.graphs), dtype=torch.int64)

    def of(self, rows: Rows, level: Row) -> PickedRows:
        """The rows of these graphs; each pair of arguments is looked up once."""
        key = (id(rows), level)
        if key not in self._rows:
            self._rows[key] = self._find(rows, level)
        return self._rows[key]

    def _find(self, rows: Rows, level: Row) -> PickedRows:
        starts, stops = rows.starts[self.graphs], rows.stops[self.graphs]
        padding = self.padding
        if padding is None or level == "graph":
            return PickedRows(starts=starts, stops=stops, offsets=offsets_of(stops - starts))
        first, real = rows.starts[padding.source], len(starts) - padding.graphs
        stops[real:] = starts[real:]
        if level == "node":
            repeated = np.full(padding.nodes, first + padding.ends[0])
            repeated[1:2] = first + padding.ends[1]
        else:
            repeated = np.full(padding.edges, first + padding.edge)
        sizes = stops - starts
        sizes[-1] = len(repeated)
        return PickedRows(
            starts=np.concatenate([starts, repeated]),
            stops=np.concatenate([stops, repeated + 1]),
            offsets=offsets_of(sizes),
        )


class TensorColumn:
    """Tensors of all graphs, concatenated along one dimension.

    Attributes:
        rows: the rows of each graph along that dimension.
        level: what the rows are; it only matters for padding.
        lines: the memory, a flat array for each row along the dimensions before that one.
    """

    level: Row = "graph"

    def __init__(self, whole: Tensor, dim: int, rows: Rows, increments: Array | None) -> None:
        """Look at the memory of `whole`, or copy it where it is not contiguous.

        Args:
            whole: the tensors of all graphs in one.
            dim: the dimension with the rows.
            rows: the rows of each graph.
            increments: what each graph adds to the values of those after it in a batch: an int64
                number [g], or [g, ...] with one for each row along the dimensions before `dim`.
                None for 0; an empty array [0] for its number of nodes.

        Raises:
            NoColumn: increments that do not fit the values, or rows that are not there.
        """
        self.rows, self._increments = rows, increments
        self._dtype = whole.dtype
        self._before, self._after = whole.shape[:dim], whole.shape[dim + 1 :]
        count, inner = self._before.numel(), self._after.numel()
        fits = (rows.starts >= 0).all() and (rows.stops >= rows.starts).all()
        if not fits or (rows.stops > whole.shape[dim]).any():
            raise NoColumn
        plain = whole.contiguous()
        self.lines: list[Array] = []
        if increments is None:
            self._width = inner * whole.element_size()
            if whole.numel():
                self.lines = list(plain.reshape(-1).view(torch.uint8).numpy().reshape(count, -1))
            return
        each = increments.shape[1:]
        along = (*self._before, 1, *[1] * len(self._after))
        if whole.dtype not in (torch.int32, torch.int64) or (each and each != along):
            raise NoColumn
        if each and whole.dtype != torch.int64:
            raise NoColumn
        self._width = inner
        if whole.numel():
            self.lines = list(plain.numpy().reshape(count, -1))

    def one_number(self) -> Array | None:
        """The value of each graph [g], where that is one number and has increments."""
        single = self._increments is not None and len(self.lines) == 1 and self._width == 1
        return self.lines[0][self.rows.starts] if single and (self.rows.sizes == 1).all() else None

    def without_increments(self) -> None:
        """Let a batch have the values as they are."""
        if self._increments is not None:
            self.lines = [line.view(np.uint8) for line in self.lines]
            self._width *= self._dtype.itemsize
            self._increments = None

    def collated(self, picks: Picks) -> Collated:
        """The rows of these graphs, with slices int64 [b + 1] and increments int64 [b, ...]."""
        picked = picks.of(self.rows, self.level)
        added, increments = self._added(picks)
        shape = (*self._before, int(picked.offsets[-1]), *self._after)
        out = torch.empty(shape, dtype=self._dtype)
        if not out.numel():
            return out, picked.slices, increments
        if added is None:
            lines = out.reshape(-1).view(torch.uint8).numpy().reshape(len(self.lines), -1)
            for line, into in zip(self.lines, lines, strict=True):
                copy_ranges(line, picked.starts, picked.stops, self._width, into)
            return out, picked.slices, increments
        starts, stops = picked.starts * self._width, picked.stops * self._width
        shifts = np.zeros((len(self.lines), len(starts)), dtype=np.int64)
        shifts[:, : len(added)] = added.reshape(len(added), -1).T
        lines = out.numpy().reshape(len(self.lines), -1)
        for line, shift, into in zip(self.lines, shifts, lines, strict=True):
            shift_ranges(line, starts, stops, shift, into)
        return out, picked.slices, increments

    def _added(self, picks: Picks) -> tuple[Array | None, Tensor]:
        """The increment of each graph's values, as an array (None for none) and as a tensor."""
        if self._increments is None:
            return None, picks.nothing
        if len(self._increments):
            each = self._increments[picks.graphs]
            added = np.zeros_like(each)
            np.cumsum(each[:-1], axis=0, out=added[1:])
        else:
            added = picks.node_offsets[:-1]
        return added, torch.from_numpy(added)


@dataclass(frozen=True, eq=False)
class ListColumn:
    """Texts and other objects, which a batch has in a list."""

    values: Sequence[Any]

    def collated(self, picks: Picks) -> Collated:
        """Copies of the objects of these graphs."""
        values = [self.values[i] for i in picks.numbers]
        copies = [each if type(each) is str else copy.deepcopy(each) for each in values]
        return copies, torch.arange(len(picks.numbers) + 1), None


@dataclass(frozen=True, eq=False)
class NestedColumn:
    """A dict of columns, or a list of them by their places."""

    parts: Mapping[Any, Column]
    is_list: bool

    def collated(self, picks: Picks) -> Collated:
        """Three dicts, or three lists."""
        found = {name: part.collated(picks) for name, part in self.parts.items()}
        each: Any = [{name: parts[k] for name, parts in found.items()} for k in range(3)]
        if self.is_list:
            each = [list(part.values()) for part in each]
        return each[0], each[1], each[2]


Column = TensorColumn | ListColumn | NestedColumn


def is_plain(value: Any) -> bool:
    """Whether a column can hold a tensor: dense numbers on the CPU, without gradients."""
    return (
        type(value) is Tensor
        and value.layout is torch.strided
        and value.dtype in _DTYPES
        and value.is_cpu
        and not (value.requires_grad or value.is_nested or value.is_neg())
    )


def has_own_rules(kind: type[Any]) -> bool:
    """Whether a class of Data has its own `__cat_dim__` or `__inc__`."""
    return kind.__cat_dim__ is not Data.__cat_dim__ or kind.__inc__ is not Data.__inc__


# The increments of attributes that number nodes, see TensorColumn.
BY_NODES: Array = np.zeros(0, dtype=np.int64)


def increments_of(name: str, values: Sequence[Any], graphs: Sequence[Any]) -> Array | None:
    """The increments of each graph, see TensorColumn."""
    if not has_own_rules(type(graphs[0])) and not ("batch" in name and torch.is_tensor(values[0])):
        return BY_NODES if "index" in name or name == "face" else None
    try:
        found = [
            graph.__inc__(name, value, graph._store)
            for graph, value in zip(graphs, values, strict=True)
        ]
    except RuntimeError as error:  # such as the maximum of nothing
        raise NoColumn from error
    stacked: Array
    if all(type(each) is int for each in found):
        stacked = np.array(found, dtype=np.int64)
    else:
        if not all(is_plain(each) and each.dtype == torch.int64 for each in found):
            raise NoColumn
        if len({each.shape for each in found}) > 1:
            raise NoColumn
        stacked = torch.stack(found).numpy()
    if stacked.ndim > 1:
        return stacked
    if (stacked < 0).any():  # torch_geometric adds nothing in a batch where they sum up to 0
        raise NoColumn
    return stacked if stacked.any() else None


def column_of(name: str, values: Sequence[Any], graphs: Sequence[Any]) -> Column:
    """The column of attribute `name`, from its value in each of `graphs`.

    Raises:
        NoColumn: no column holds these values exactly as torch_geometric collates them.
    """
    first = values[0]
    if isinstance(first, Tensor):
        return _tensors(name, values, graphs)
    if type(first) in (int, float, bool):
        if any(type(value) is not type(first) for value in values):
            raise NoColumn
        try:
            whole = torch.tensor(values)
        except (OverflowError, RuntimeError) as error:
            raise NoColumn from error
        increments = increments_of(name, values, graphs)
        if increments is not None and increments.ndim > 1:
            raise NoColumn
        return TensorColumn(whole, 0, Rows.of_sizes(np.ones(len(values))), increments)
    if isinstance(first, Mapping):
        keys = list(first)
        if not all(isinstance(v, Mapping) and list(v) == keys for v in values) or not all(
            isinstance(key, str) for key in keys
        ):
            raise NoColumn
        parts = {key: column_of(key, [value[key] for value in values], graphs) for key in keys}
        return NestedColumn(parts, is_list=False)
    if isinstance(first, (list, tuple)) and first and isinstance(first[0], Tensor):
        if any(type(v) is not type(first) or len(v) != len(first) for v in values):
            raise NoColumn
        places = {
            i: column_of(name, [value[i] for value in values], graphs) for i in range(len(first))
        }
        return NestedColumn(places, is_list=True)
    if not all(map(is_word, values)):
        raise NoColumn
    return ListColumn(values)


def is_word(value: Any) -> bool:
    """Whether a batch keeps such values in a list: texts, arrays, lists of texts or numbers."""
    if type(value) in (list, tuple):
        return not value or type(value[0]) in _WORDS
    return type(value) is str or type(value) is np.ndarray


def _tensors(name: str, values: Sequence[Any], graphs: Sequence[Any]) -> TensorColumn:
    first = values[0]
    if not all(map(is_plain, values)) or any(value.dtype != first.dtype for value in values):
        raise NoColumn
    dim = graphs[0].__cat_dim__(name, first, graphs[0]._store)
    if has_own_rules(type(graphs[0])):
        for value, graph in zip(values, graphs, strict=True):
            if graph.__cat_dim__(name, value, graph._store) != dim:
                raise NoColumn
    if dim is None or not first.dim():
        if any(value.shape != first.shape for value in values):
            raise NoColumn
        values = [value.unsqueeze(0) for value in values]
        dim = 0
    elif type(dim) is not int or not -first.dim() <= dim < first.dim():
        raise NoColumn
    dim %= values[0].dim()
    shapes = {(*value.shape[:dim], -1, *value.shape[dim + 1 :]) for value in values}
    if len(shapes) > 1:
        raise NoColumn
    rows = Rows.of_sizes([value.shape[dim] for value in values])
    increments = increments_of(name, values, graphs)
    return TensorColumn(torch.cat(list(values), dim), dim, rows, increments)
