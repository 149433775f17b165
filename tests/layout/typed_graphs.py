"""Random graphs with edge types, and the plain product that every form is compared with."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from weft.graphs import Array, Graph, assemble, table_from_graphs
from weft.layout import BandedAdjacency, Outside

Edges = tuple[Array, Array, Array]


@st.composite
def edge_lists(draw, max_nodes=24, max_edges=60, max_types=4):
    """(nodes, types, (senders, receivers, types)): isolated nodes, self-loops, duplicates."""
    nodes = draw(st.integers(1, max_nodes))
    types = draw(st.integers(1, max_types))
    count = draw(st.integers(0, max_edges))
    reach = draw(st.sampled_from([0, 1, 3, max_nodes]))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    senders = rng.integers(0, nodes, count)
    receivers = np.clip(senders + rng.integers(-reach, reach + 1, count), 0, nodes - 1)
    return nodes, types, (senders, receivers, rng.integers(0, types, count))


def typed_graph(nodes: int, edges: int, *, types: int = 3, reach: int = 5, seed: int = 0) -> Graph:
    """Edges between nodes at most `reach` apart, with a column `type` and some more columns."""
    rng = np.random.default_rng([seed, nodes, edges])
    senders = rng.integers(0, nodes, edges)
    receivers = np.clip(senders + rng.integers(-reach, reach + 1, edges), 0, nodes - 1)
    return Graph(
        num_nodes=nodes,
        senders=senders,
        receivers=receivers,
        nodes={"x": rng.normal(size=(nodes, 3)).astype(np.float32)},
        edges={"type": rng.integers(0, types, edges).astype(np.int8)},
        graph={"y": np.float32(seed)},
    )


def banded(
    senders: Array,
    receivers: Array,
    types: Array,
    nodes: int,
    num_types: int,
    *,
    block: int,
    outside: Outside = "raise",
) -> BandedAdjacency:
    """The banded form of these edges, as those of a batch of one graph."""
    graph = Graph(num_nodes=nodes, senders=senders, receivers=receivers, edges={"type": types})
    batch = assemble(table_from_graphs([graph]), [0])
    return BandedAdjacency.of_batch(batch, num_types, block, outside)


def parameters(
    nodes: int, types: int, hidden: int = 3, outputs: int = 2, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """h [N, H], weight [P, H, O] and bias [P, O], with gradients."""
    generator = torch.Generator().manual_seed(nodes)
    shapes = ((nodes, hidden), (types, hidden, outputs), (types, outputs))
    return [
        torch.randn(*shape, generator=generator, dtype=dtype, requires_grad=True)
        for shape in shapes
    ]


def coo(edges: Edges, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The definition: one message an edge, each distinct edge once."""
    found = np.unique(np.stack([np.asarray(part, np.int64) for part in edges]), axis=1)
    senders, receivers, types = torch.from_numpy(found)
    messages = torch.einsum("eh,eho->eo", h[senders], weight[types])
    if bias is not None:
        messages = messages + bias[types]
    return h.new_zeros(h.shape[0], weight.shape[2]).index_add(0, receivers, messages)


def with_gradients(out: Tensor, given: list[Tensor]) -> list[Tensor]:
    """`out` and what a fixed random gradient in it gives in each of `given`."""
    slope = torch.randn(
        out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    ).to(out.dtype)
    found = torch.autograd.grad(out, given, slope, allow_unused=True)
    zeros = [torch.zeros_like(x) if g is None else g for g, x in zip(found, given, strict=True)]
    return [out.detach(), *zeros]


def assert_as_coo(adjacency, edges: Edges, nodes: int, types: int, *, bias: bool = True) -> None:
    """Output and all gradients of `adjacency.propagate`, in float64."""
    given = parameters(nodes, types)
    used = given if bias else given[:2]
    found = with_gradients(adjacency.propagate(*used), used)
    wanted = with_gradients(coo(edges, *(given if bias else [*used, None])), used)
    for actual, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)
