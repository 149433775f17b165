"""GraphBatch: what a model sees, with one padding contract for every kind of batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from weft.checked_indices import is_known, right_pairs, right_range, right_segments, trust
from weft.errors import DataError
from weft.graphs.edge_loops import pair_up, shift_ranges
from weft.graphs.graph import Array, Budget, Graph
from weft.graphs.table import GraphTable, check_ids, gather_rows, offsets_of


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class GraphBatch:
    """G graphs with N nodes and E edges, as tensors on one device.

    Real graphs come first. In a padded batch the graph after them owns every padding node (at
    least one) and every padding edge, each a self-loop on the first padding node; empty graphs
    follow. Masks are prefix masks, padding rows of columns are 0. An unpadded batch has none of
    this and masks that are all true.

    Edges are sorted by receiver, so a receiver's messages are one segment; `out_order` sorts them
    by sender, which makes the gradient of a gather a segment sum too. Batches from `assemble` are
    right; fields from elsewhere are checked when they first reach an operator.

    Attributes:
        nodes: node columns, each [N, ...].
        edges: edge columns, each [E, ...].
        graphs: graph columns, each [G, ...].
        senders: int32 or int64 [E].
        receivers: int [E], ascending.
        in_offsets: int [N + 1]; edges in_offsets[v]:in_offsets[v + 1] enter node v.
        out_offsets: int [N + 1]; edges out_order[out_offsets[v]:out_offsets[v + 1]] leave node v.
        out_order: int [E], a permutation of the edges, ascending in their sender.
        node_offsets: int [G + 1]; nodes node_offsets[g]:node_offsets[g + 1] are graph g's.
        node_graph: int [N], the graph of each node.
        node_mask: bool [N].
        edge_mask: bool [E].
        graph_mask: bool [G].
        pairs: of a table with symmetric edges, else empty. P = ⌈E / 2⌉ pairs of edges that are each
            other's reverse: `forward` and `backward` int [P], the two edges (an edge alone is
            both), and `of_edge` int [E], the pair of each edge. Quantities that depend only on a
            distance are the same for both.
    """

    nodes: dict[str, Tensor]
    edges: dict[str, Tensor]
    graphs: dict[str, Tensor]
    senders: Tensor
    receivers: Tensor
    in_offsets: Tensor
    out_offsets: Tensor
    out_order: Tensor
    node_offsets: Tensor
    node_graph: Tensor
    node_mask: Tensor
    edge_mask: Tensor
    graph_mask: Tensor
    pairs: dict[str, Tensor] = field(default_factory=dict)

    @property
    def num_nodes(self) -> int:
        """N, padding included."""
        return self.node_mask.shape[0]

    @property
    def num_edges(self) -> int:
        """E, padding included."""
        return self.edge_mask.shape[0]

    @property
    def num_graphs(self) -> int:
        """G, padding included."""
        return self.graph_mask.shape[0]

    @property
    def num_real_graphs(self) -> int:
        """Graphs that are not padding; what `assemble` makes knows it without reading the mask."""
        # A tracer must not take the number for a constant.
        known = None if torch.compiler.is_compiling() else self._known_graphs()
        return int(self.graph_mask.sum()) if known is None else known

    def _known_graphs(self) -> int | None:
        """`num_real_graphs` as long as the mask is what it was when that was counted."""
        known: tuple[int, int] = self.__dict__.get("_real_graphs", (0, -1))
        same = not self.graph_mask.is_inference() and known[1] == self.graph_mask._version
        return known[0] if same else None

    def _know_graphs(self, count: int | None) -> GraphBatch:
        """This batch, which remembers its `num_real_graphs`; not a field, as models read those."""
        if count is not None and not self.graph_mask.is_inference():
            self.__dict__["_real_graphs"] = count, self.graph_mask._version
        return self

    def __repr__(self) -> str:
        return (
            f"GraphBatch({self.num_graphs} graphs, {self.num_nodes} nodes, {self.num_edges} edges, "
            f"columns: {', '.join([*self.nodes, *self.edges, *self.graphs]) or 'none'})"
        )

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> GraphBatch:
        """The same batch on another device."""
        return self.map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> GraphBatch:
        """The same batch in page-locked memory, for a faster copy to a GPU."""
        return self.map(lambda tensor: tensor.pin_memory())

    def replace(self, **changes: Any) -> GraphBatch:
        """A copy with other fields, such as `edges={"weight": w}`."""
        changed = GraphBatch(**{f.name: getattr(self, f.name) for f in fields(self)} | changes)
        if torch.compiler.is_compiling() or changed.graph_mask is not self.graph_mask:
            return changed
        return changed._know_graphs(self._known_graphs())

    @torch.inference_mode(False)
    def map(self, change: Callable[[Tensor], Tensor]) -> GraphBatch:
        """The same batch with every tensor copied by `change`, in a fixed order of the tensors."""
        changed: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, dict):
                changed[f.name] = {name: change(tensor) for name, tensor in value.items()}
            else:
                changed[f.name] = change(value)
        batch = GraphBatch(**changed)
        for own, other in zip(_facts(self), _facts(batch), strict=True):
            if is_known(*own):
                trust(*other)
        return batch._know_graphs(self._known_graphs())

    def unbatch(self) -> list[Graph]:
        """The real graphs, as numpy; their edges in the batch's order."""
        offsets = self.node_offsets.tolist()
        in_offsets = self.in_offsets.tolist()
        host = self.to("cpu")
        graphs = []
        for g in range(self.num_real_graphs):
            first, stop = offsets[g], offsets[g + 1]
            edges = slice(in_offsets[first], in_offsets[stop])
            graphs.append(
                Graph(
                    num_nodes=stop - first,
                    senders=host.senders[edges].numpy() - first,
                    receivers=host.receivers[edges].numpy() - first,
                    nodes={k: v[first:stop].numpy() for k, v in host.nodes.items()},
                    edges={k: v[edges].numpy() for k, v in host.edges.items()},
                    graph={k: v[g].numpy() for k, v in host.graphs.items()},
                )
            )
        return graphs


# Batches are arguments of exported models. A saved program holds an example of its arguments, which
# torch unpickles: from the list of what is allowed, or else anything.
torch.export.register_dataclass(GraphBatch, serialized_type_name="weft.GraphBatch")
torch.serialization.add_safe_globals([GraphBatch])


# torch counts no changes of tensors made in inference mode: each use would check them again.
@torch.inference_mode(False)
def assemble(
    table: GraphTable, graphs: Sequence[int] | Array, budget: Budget | None = None
) -> GraphBatch:
    """The batch of these graphs of `table`, padded to `budget`, or unpadded without one.

    Every column is gathered from the table in one pass; ragged columns stay behind.

    Raises:
        DataError: the graphs do not fit the budget; the message prints both sides.
    """
    ids = check_ids(table, graphs)
    table.check_edges(ids)
    node_starts, node_stops = table.node_offsets[ids], table.node_offsets[ids + 1]
    edge_starts, edge_stops = table.edge_offsets[ids], table.edge_offsets[ids + 1]
    node_bases = offsets_of(node_stops - node_starts)
    edge_bases = offsets_of(edge_stops - edge_starts)
    real = Budget(nodes=int(node_bases[-1]), edges=int(edge_bases[-1]), graphs=len(ids))
    size = real if budget is None else _fitting(real, budget)
    small = max(size.nodes, size.edges) < 2**31
    index = np.dtype(np.int32 if small else np.int64)

    def edge_ends(name: str) -> Tensor:
        out = np.empty(size.edges, dtype=index)
        shift_ranges(table.columns[name], edge_starts, edge_stops, node_bases, out)
        out[real.edges :] = real.nodes
        return torch.from_numpy(out)

    def edge_offsets(name: str) -> Tensor:
        out = np.empty(size.nodes + 1, dtype=index)
        shift_ranges(table.columns[name], node_starts, node_stops, edge_bases, out)
        # The first padding node's edges begin where the real ones end; all later ones have none.
        out[real.nodes] = real.edges
        out[real.nodes + 1 :] = size.edges
        return torch.from_numpy(out)

    out_order = np.empty(size.edges, dtype=index)
    shift_ranges(table.columns["out_order"], edge_starts, edge_stops, edge_bases, out_order)
    out_order[real.edges :] = np.arange(real.edges, size.edges)
    node_offsets = np.full(size.graphs + 1, size.nodes, dtype=index)
    node_offsets[: real.graphs + 1] = node_bases
    levels: dict[str, dict[str, Tensor]] = {"node": {}, "edge": {}, "graph": {}}
    rows = {
        "node": (node_starts, node_stops, size.nodes),
        "edge": (edge_starts, edge_stops, size.edges),
        "graph": (ids, ids + 1, size.graphs),
    }
    for name, column in table.schema.items():
        if column.level != "ragged":
            starts, stops, total = rows[column.level]
            values = gather_rows(table.columns[name], starts, stops, rows=total)
            levels[column.level][name] = torch.from_numpy(values)
    senders, receivers = edge_ends("senders"), edge_ends("receivers")
    batch = GraphBatch(
        nodes=levels["node"],
        edges=levels["edge"],
        graphs=levels["graph"],
        senders=senders,
        receivers=receivers,
        in_offsets=edge_offsets("in_start"),
        out_offsets=edge_offsets("out_start"),
        out_order=torch.from_numpy(out_order),
        node_offsets=torch.from_numpy(node_offsets),
        node_graph=torch.from_numpy(
            np.repeat(np.arange(size.graphs, dtype=index), np.diff(node_offsets))
        ),
        node_mask=_prefix_mask(size.nodes, real.nodes),
        edge_mask=_prefix_mask(size.edges, real.edges),
        graph_mask=_prefix_mask(size.graphs, real.graphs),
        pairs=_pairs(senders, receivers, out_order) if table.symmetric else {},
    )
    return trusted(batch)._know_graphs(real.graphs)


def trusted(batch: GraphBatch) -> GraphBatch:
    """The batch, whose indices no operator will check: for what was made right."""
    for fact in _facts(batch):
        trust(*fact)
    return batch


def _facts(batch: GraphBatch) -> list[tuple[Any, ...]]:
    """The checks that operators make of a batch's indices, each with its arguments."""
    nodes, edges = batch.num_nodes, batch.num_edges
    facts: list[tuple[Any, ...]] = [
        (right_segments, (batch.in_offsets, None, batch.receivers), edges),
        (right_segments, (batch.in_offsets, None, None), edges),
        (right_segments, (batch.out_offsets, batch.out_order, batch.senders), edges),
        (right_segments, (batch.node_offsets, None, batch.node_graph), nodes),
        (right_segments, (batch.node_offsets, None, None), nodes),
        (right_range, (batch.senders,), nodes),
        (right_range, (batch.receivers,), nodes),
    ]
    if batch.pairs:
        facts.append((right_pairs, tuple(batch.pairs.values()), edges))
    return facts


def _pairs(senders: Tensor, receivers: Tensor, out_order: Array) -> dict[str, Tensor]:
    edges = len(out_order)
    pairs = {
        name: np.empty(count, dtype=out_order.dtype)
        for name, count in (
            ("forward", (edges + 1) // 2),
            ("backward", (edges + 1) // 2),
            ("of_edge", edges),
        )
    }
    odd = pair_up(senders.numpy(), receivers.numpy(), out_order, *pairs.values())
    if odd >= 0:
        raise DataError(
            f"the table says that its edges are symmetric, but the edge from node {senders[odd]} "
            f"to node {receivers[odd]} of this batch has no reverse"
        )
    return {name: torch.from_numpy(values) for name, values in pairs.items()}


def _fitting(real: Budget, budget: Budget) -> Budget:
    if (
        real.nodes > budget.nodes - 1
        or real.edges > budget.edges
        or real.graphs > budget.graphs - 1
    ):
        raise DataError(
            f"the batch is larger than its budget: it has {real.nodes} nodes, {real.edges} edges "
            f"and {real.graphs} graphs, the budget has room for {budget.nodes - 1}, "
            f"{budget.edges} and {budget.graphs - 1}; take fewer graphs or a larger budget"
        )
    return budget


def _prefix_mask(size: int, real: int) -> Tensor:
    # In numpy: torch would wake its thread pool for this, which a loader's thread should not wait
    # for.
    mask = np.zeros(size, dtype=np.bool_)
    mask[:real] = True
    return torch.from_numpy(mask)
