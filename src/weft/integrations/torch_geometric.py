"""weft's batching for torch_geometric: a sampler, and a loader with batches of one padded shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch.utils.data import DataLoader as PlainLoader

from weft.batching import BatchingConfig, GraphSampler, Oversize, PolicyName, graph_sizes
from weft.batching.epoch_plan import Capacity
from weft.errors import DataError
from weft.graphs import Array, Budget

try:
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
except ImportError as error:
    raise ImportError("this needs torch_geometric: pip install torch_geometric") from error

from weft.integrations.geometric.data_columns import Row
from weft.integrations.geometric.data_table import DataTable
from weft.integrations.geometric.read_data import read_once, same_random_numbers, table_of

# The dummy graph has one node more than a budget reserves, so that its edges join two nodes: a
# self-loop has length 0, where the gradient of a model's square root is not finite.
_MORE_NODES = 1

_NUMBERS = (torch.Tensor, int, float)
_MASKS = ("node_mask", "edge_mask", "graph_mask")


def weft_batches(
    dataset: Any,
    *,
    policy: PolicyName = "packed",
    batch_size: int = 32,
    oversize: Oversize = "raise",
    shuffle: bool = True,
    seed: int = 0,
    budget: Budget | None = None,
    rank: int = 0,
    ranks: int = 1,
) -> GraphSampler:
    """Batches of graph numbers, as the `batch_sampler` of any DataLoader.

    `DataLoader(dataset, batch_sampler=weft_batches(dataset))` has torch_geometric's own batches,
    unpadded; `set_epoch` of the sampler draws the next shuffle. A data set is one of
    torch_geometric, or a list of `Data`, or a torch Subset of either. `BatchingConfig` describes
    the options up to `budget`, GraphSampler `rank` and `ranks`.

    Raises:
        ValueError: an impossible setting.
        DataError: a graph larger than the budget, with `oversize="raise"`.
    """
    config = BatchingConfig(
        policy=policy,
        batch_size=batch_size,
        oversize=oversize,
        shuffle=shuffle,
        seed=seed,
        budget=budget,
    )
    return GraphSampler(*graph_sizes(dataset), config, rank=rank, ranks=ranks)


class PackedDataLoader(DataLoader):  # type: ignore[misc]
    """torch_geometric's DataLoader, faster, and with batches of one shape for models compiled once.

    All graphs are read once, when the loader is made, into a table with every attribute of the
    graphs one after another; later changes of the data may or may not be seen. A batch is gathered
    from there; unpadded, it equals `Batch.from_data_list` of its graphs. Attributes that such a
    table cannot hold exactly, such as sparse matrices, are collated by torch_geometric for each
    batch. It also collates all attributes, as its own loader does, where the graphs cannot be kept:
    if they come with random numbers, as from a random transform; if they have different
    attributes; or if they are on disk and too large for the memory.

    Every batch is an ordinary `Batch`: the real graphs, then empty ones up to the number of
    graphs, then one dummy graph that owns all padding. The dummy comes last and is never empty, so
    that pooling by `batch.batch` gives as many rows as the shape has graphs. Its nodes and edges
    repeat one edge of the batch with its two ends, which keeps every value of a model finite; a
    loss leaves it out by `graph_mask`:

        out = model(batch.x, batch.edge_index, batch.batch)
        loss = ((out - batch.y) ** 2)[batch.graph_mask].mean()

    Beside the attributes of the data a batch has `node_mask` [N], `edge_mask` [E] and `graph_mask`
    [G], bool, true first; data with such an attribute cannot be padded, and keeps it with policy
    `unpadded`. Padded sizes are those of the policy and one more node. Layers that compute over all
    nodes of a batch, such as BatchNorm, include the padding.

    torch_geometric takes every attribute with `index` in its name for numbers of nodes, and adds
    the number of nodes before the graph; so do unpadded batches. Padded ones refuse such
    attributes, but for labels, which keep their values: one number for each graph that `levels`
    gives to the `graph`, or that in any graph of the data is not a whole number or not below the
    number of nodes.

    Each iteration is the next epoch, with other batches; `set_epoch` goes to a given one.

    Attributes:
        batch_sampler: which graphs make a batch; its `statistics()` tell how full they are.
        budget: of the sampler; give it to the loader of a test set, whose batches then have the
            shape that the model was compiled for. None where the policy has no single shape.
    """

    batch_sampler: GraphSampler
    collate_fn: Any

    @same_random_numbers()  # graphs are read, which a random transform draws numbers for
    def __init__(
        self,
        dataset: Any,
        batch_size: int = 32,
        *,
        policy: PolicyName = "packed",
        oversize: Oversize = "raise",
        shuffle: bool = True,
        seed: int = 0,
        budget: Budget | None = None,
        rank: int = 0,
        ranks: int = 1,
        levels: Mapping[str, Row] | None = None,
        follow_batch: list[str] | None = None,
        exclude_keys: list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Plan batches from the sizes of the graphs.

        The arguments up to `ranks` are those of `weft_batches`; `batch_size` includes the dummy,
        `budget` does not include its extra node. `levels`, which only padding needs, names
        attributes with a row for each `node`, for each `edge`, or for the `graph`, where the sizes
        of the graphs do not tell.
        `exclude_keys` are attributes to leave out; they and `follow_batch` are those of
        torch_geometric's loader, `kwargs` of torch's DataLoader, such as num_workers.

        Raises:
            ValueError: an impossible setting.
            DataError: a graph larger than the budget, with `oversize="raise"`, or an attribute
                that cannot be padded.
        """
        graphs = read_once(dataset)
        sampler = weft_batches(
            dataset if graphs is None else graphs,
            policy=policy,
            batch_size=batch_size,
            oversize=oversize,
            shuffle=shuffle,
            seed=seed,
            budget=budget,
            rank=rank,
            ranks=ranks,
        )
        super().__init__(
            dataset,
            batch_sampler=sampler,
            follow_batch=follow_batch,
            exclude_keys=exclude_keys,
            **kwargs,
        )
        self.budget = sampler.budget
        rows, indices = _rows_of(dataset, sampler, levels or {}, exclude_keys or ())
        table = table_of(
            dataset,
            graphs,
            sampler.num_nodes,
            follow_batch=follow_batch or (),
            exclude_keys=exclude_keys or (),
        )
        every = dataset if graphs is None else graphs
        for name in indices:
            _check_labels(name, table, every, told=(levels or {}).get(name) == "graph")
        self.collate_fn = padding = _Padding(
            batches=self.collate_fn, room=sampler.room, rows=rows, labels=indices
        )
        if padding.padded and table is not None:
            table = table if table.can_pad(sampler.num_edges, rows, indices) else None
        self._gathered: PlainLoader[Any] | None = None
        if table is not None:
            kwargs.pop("collate_fn", None)
            self._gathered = PlainLoader(
                range(len(dataset)),  # type: ignore[arg-type]
                batch_sampler=sampler,
                collate_fn=_Gathering(
                    table=table, sampler=sampler, dataset=dataset, padding=padding
                ),
                **kwargs,
            )
        self._last_epoch: int | None = None

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be that of `epoch`, from 0."""
        self.batch_sampler.set_epoch(epoch)
        self._last_epoch = None

    def __iter__(self) -> Iterator[Any]:
        # Some trainers call the sampler's own set_epoch: go on only from an epoch that was used.
        if self._last_epoch == self.batch_sampler.epoch:
            self.batch_sampler.set_epoch(self._last_epoch + 1)
        self._last_epoch = self.batch_sampler.epoch
        return iter(self._gathered) if self._gathered is not None else super().__iter__()


@dataclass(frozen=True, kw_only=True)
class _Padding:
    """Collates graphs and adds the padding, in a worker process if there are any.

    Attributes:
        batches: torch_geometric's collater.
        room: the padded size of a batch from its own.
        rows: the level of each attribute: a row for each node, each edge or the graph.
        labels: attributes with one number for each graph that the collater takes for numbers of
            nodes, because of their names; they keep their values.
    """

    batches: Any
    room: Capacity
    rows: dict[str, Row]
    labels: tuple[str, ...]

    @property
    def padded(self) -> bool:
        """Whether anything is added."""
        return self.room.policy.padded

    def spare(self, real: Array) -> tuple[int, int, int]:
        """Nodes, edges and graphs to add to a batch that has `real` of them."""
        spare = self.room.shapes(real[None])[0] - real
        if (spare < [1, 0, 1]).any():
            raise DataError(
                f"a batch of {real[2]} graphs has {real[0]} nodes and {real[1]} edges, more "
                "than was planned from their sizes; a transform that changes them at random "
                "needs policy='unpadded'"
            )
        nodes, edges, count = spare.tolist()
        return nodes + _MORE_NODES, edges, count

    def __call__(self, graphs: list[Any]) -> Any:
        real = np.array(
            [sum(g.num_nodes for g in graphs), sum(g.num_edges for g in graphs), len(graphs)]
        )
        if self.padded:
            nodes, edges, count = self.spare(real)
            empty = self._dummy(graphs, 0, 0) if count > 1 else None
            graphs = [*graphs, *[empty] * (count - 1), self._dummy(graphs, nodes, edges)]
        batch = self.batches(graphs)
        for name in self.labels:
            kept = torch.stack([torch.as_tensor(g[name]).reshape(()) for g in graphs])
            batch[name] = kept.view_as(batch[name])
            batch._inc_dict[name] = torch.zeros_like(batch._inc_dict[name])
        total = [batch.num_nodes, batch.num_edges, batch.num_graphs]
        return self.finished(batch, real, np.array(total))

    def finished(self, batch: Any, real: Array, total: Array) -> Any:
        """The batch with its masks.

        Args:
            batch: of torch_geometric.
            real: its nodes, edges and graphs that are not padding.
            total: all of them.
        """
        here = getattr(batch.edge_index, "device", None)
        for name, rows, known in zip(_MASKS, total.tolist(), real.tolist(), strict=True):
            if name in batch:
                if self.padded:
                    raise _taken(name)
                continue
            batch[name] = mask = torch.ones(rows, dtype=torch.bool, device=here)
            if known < rows:
                mask[known:] = False
        return batch

    def _dummy(self, graphs: Sequence[Any], nodes: int, edges: int) -> Any:
        """A graph of these sizes that repeats one edge of the batch and its ends."""
        source, edge = _first_edge(graphs)
        here = source.edge_index.device
        ends = [0, 0] if edge is None else source.edge_index[:, edge].tolist()
        node_rows = torch.full((nodes,), ends[0], device=here)
        node_rows[1:2] = ends[1]
        edge_rows = torch.full((edges,), edge or 0, device=here)
        dummy = source.__class__()
        for name, value in source.to_dict().items():
            row = self.rows.get(name, "graph")
            if row == "graph":
                dummy[name] = value
                continue
            dim = source.__cat_dim__(name, value)
            rows = node_rows if row == "node" else edge_rows
            if (row == "edge" and edge is None) or not value.size(dim):
                shape = list(value.shape)
                shape[dim] = len(rows)
                dummy[name] = value.new_zeros(shape)
            else:
                dummy[name] = value.index_select(dim, rows)
        dummy.num_nodes = nodes
        # Back and forth between two nodes, as in an undirected graph.
        sender = torch.arange(edges, device=here) % 2
        dummy.edge_index = torch.stack([sender, 1 - sender])
        return dummy


@dataclass(frozen=True, kw_only=True)
class _Gathering:
    """Gathers batches from a table, in a worker process if there are any.

    Attributes:
        table: the graphs.
        sampler: it knows their sizes.
        dataset: the same graphs, for a batch without an edge that padding can repeat.
        padding: adds what is missing.
    """

    table: DataTable
    sampler: GraphSampler
    dataset: Any
    padding: _Padding

    def __call__(self, graphs: list[int]) -> Any:
        numbers = np.array(graphs)
        nodes, edges = self.sampler.num_nodes[numbers], self.sampler.num_edges[numbers]
        real = np.array([nodes.sum(), edges.sum(), len(numbers)])
        if not self.padding.padded:
            batch = self.table.batch(numbers)
            if "edge_index" not in batch:
                real[1] = batch.num_edges
            return self.padding.finished(batch, real, real)
        spare = self.padding.spare(real)
        padding = self.table.padding(numbers, *spare)
        if padding is None:
            return self.padding([self.dataset[i] for i in graphs])
        return self.padding.finished(self.table.batch(numbers, padding), real, real + spare)


def _first_edge(graphs: Sequence[Any]) -> tuple[Any, int | None]:
    """A graph and the number of one of its edges that joins two nodes; None if there is none."""
    for graph in graphs:
        if graph.num_edges:
            apart = graph.edge_index[0] != graph.edge_index[1]
            if apart.any():
                return graph, int(apart.int().argmax())
    return max(graphs, key=lambda graph: graph.num_nodes), None


def _rows_of(
    dataset: Any, sampler: GraphSampler, levels: Mapping[str, Row], left_out: Sequence[str]
) -> tuple[dict[str, Row], tuple[str, ...]]:
    """The level of each tensor of the data, and the names of indices with one number a graph.

    Levels are found from the graphs with most and fewest nodes and edges: a tensor with a row for
    each node has as many rows as nodes in all of them. torch_geometric takes every attribute with
    `index` in its name for numbers of nodes, and adds the number of nodes before the graph in its
    batch. Where nothing is padded all attributes are torch_geometric's: both results are empty.
    """
    told: list[Array] = [sampler.num_nodes, sampler.num_edges]
    chosen = {int(pick(sizes)) for sizes in told for pick in (np.argmin, np.argmax)}
    samples = [dataset[i] for i in sorted(chosen)]
    padded = sampler.room.policy.padded
    rows: dict[str, Row] = {}
    indices: list[str] = []
    for sample in samples:
        if not isinstance(sample, Data):
            raise DataError(
                f"a sample is a {type(sample).__name__}; this loader takes torch_geometric's "
                "Data, with one kind of nodes: give data.to_homogeneous(), or weft_batches as the "
                "batch_sampler of torch_geometric's own DataLoader"
            )
        if padded and sample.edge_index is None:
            raise DataError(
                "a sample has no edge_index; make the edges before batching, not in the model"
            )
    attributes = samples[0].to_dict()
    for name, row in levels.items():
        if name not in attributes or row not in get_args(Row):
            raise ValueError(
                f"levels has {row!r} for '{name}'; give {', '.join(get_args(Row))} for one of "
                f"{', '.join(attributes)}"
            )
    for name, value in attributes.items() if padded else ():
        if name in left_out or name in ("edge_index", "num_nodes"):
            continue
        if name in _MASKS:
            raise _taken(name)
        layout = getattr(value, "layout", torch.strided)
        if hasattr(value, "sparse_sizes") or layout != torch.strided:
            raise DataError(
                f"attribute '{name}' is a sparse matrix; keep edge_index in its place, which can "
                "be padded"
            )
        if not isinstance(value, _NUMBERS):
            continue
        having = [sample for sample in samples if isinstance(sample.get(name), _NUMBERS)]
        if any(torch.as_tensor(each.__inc__(name, each[name])).any() for each in having):
            if any(torch.as_tensor(each[name]).numel() != 1 for each in having):
                raise _numbers_nodes(name)
            indices.append(name)
        if isinstance(value, torch.Tensor):
            rows[name] = levels.get(name) or _row_of(name, samples)
    return rows, tuple(indices)


def _check_labels(name: str, table: DataTable | None, graphs: Any, *, told: bool) -> None:
    """Refuse an attribute that is not one number per graph, or may be a node of it in all graphs.

    A number of the graph itself, such as the `index` of a molecule in its data set, is a label:
    in one of the graphs at least it is not a whole number, or not below the number of nodes. With
    `told` it is one in any case.
    """
    numbers = None if table is None else table.one_number(name)
    if numbers is not None:
        values, nodes = numbers
    else:
        every = [graph for graph in map(graphs.__getitem__, range(len(graphs))) if name in graph]
        parts = [torch.as_tensor(graph[name]).reshape(-1) for graph in every]
        if any(len(part) != 1 for part in parts):
            raise _numbers_nodes(name)
        values = torch.cat(parts).double().numpy()
        nodes = np.array([graph.num_nodes for graph in every])
    if not told and not ((values >= nodes) | (values != np.floor(values))).any():
        raise _numbers_nodes(name)


def _numbers_nodes(name: str) -> DataError:
    return DataError(
        f"attribute '{name}' numbers nodes, as edge_index does; it cannot be padded: "
        f"exclude_keys=['{name}'] leaves it out, and levels={{'{name}': 'graph'}} "
        "takes it for one number of each graph"
    )


def _taken(name: str) -> DataError:
    return DataError(
        f"attribute '{name}' of the data has the name of a mask that tells what is padding; "
        f"rename it, or leave it out by exclude_keys=['{name}']"
    )


def _row_of(name: str, samples: Sequence[Any]) -> Row:
    values = [sample[name] for sample in samples]
    if not values[0].dim():
        return "graph"
    dim = samples[0].__cat_dim__(name, values[0])
    sizes = [value.size(dim) for value in values]
    by_node = sizes == [sample.num_nodes for sample in samples]
    by_edge = sizes == [sample.num_edges for sample in samples]
    if by_node or by_edge:
        # Rings have as many nodes as edges: there the name decides.
        return "edge" if not by_node or (by_edge and "edge" in name) else "node"
    if len(set(sizes)) > 1:
        raise DataError(
            f"attribute '{name}' has from {min(sizes)} to {max(sizes)} rows a graph, neither its "
            f"nodes nor its edges; it cannot be padded: exclude_keys=['{name}'] leaves it out"
        )
    return "graph"
