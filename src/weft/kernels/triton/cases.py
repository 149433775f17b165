"""What the certificate runs: every operator that has a Triton kernel, on every kind of graph.

A case takes float32 tensors of a graph and a width and gives what the operator makes of them. The
certificate runs it with compiled loops and with Triton kernels, forward and backward, and compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from weft.kernels import message_passing as mp
from weft.kernels import segment_ops
from weft.kernels.counter_dropout import Part, dropout, relu_dropout
from weft.kernels.triton.launch import MOST_FEATURES

GraphKind = Literal["random", "typical", "no edges", "no nodes", "hub", "one huge row", "padded"]


@dataclass(frozen=True, kw_only=True)
class SampleEdges:
    """E edges over N nodes, sorted by receiver, with CSR views both ways, as `SortedEdges`."""

    num_nodes: int
    senders: Tensor
    receivers: Tensor
    in_offsets: Tensor
    out_offsets: Tensor
    out_order: Tensor

    @property
    def num_edges(self) -> int:
        """E."""
        return self.senders.shape[0]


def sample_edges(kind: GraphKind, seed: int = 0, index: torch.dtype = torch.int32) -> SampleEdges:
    """A small graph of that kind.

    Args:
        kind: random; typical (24 nodes of degree 14, what bytes are counted on); without edges;
            without nodes; a node that sends half of all edges; a node that receives 120; nodes
            without edges at the end, as padding is.
        seed: of the graph.
        index: dtype of its indices.
    """
    if kind not in get_args(GraphKind):
        raise ValueError(f"kind is {kind!r}; choose from {', '.join(get_args(GraphKind))}")
    rng = np.random.default_rng(seed)
    nodes = {"no nodes": 0, "typical": 24, "one huge row": 9, "padded": 24}.get(kind, 13)
    edges = {"no nodes": 0, "no edges": 0, "typical": 336, "one huge row": 130}.get(kind, 40)
    real = 12 if kind == "padded" else nodes
    senders, receivers = rng.integers(0, max(real, 1), (2, edges))
    if kind == "hub":
        senders[: edges // 2] = 3
    if kind == "one huge row":
        receivers[:120] = 2
    receivers.sort()
    order = np.argsort(senders, kind="stable")

    def offsets(ends: Any) -> Tensor:
        counts = np.bincount(ends, minlength=nodes)
        return torch.from_numpy(np.concatenate([[0], np.cumsum(counts)])).to(index)

    return SampleEdges(
        num_nodes=nodes,
        senders=torch.from_numpy(senders).to(index),
        receivers=torch.from_numpy(receivers).to(index),
        in_offsets=offsets(receivers),
        out_offsets=offsets(senders),
        out_order=torch.from_numpy(order).to(index),
    )


Random = Callable[..., Tensor]
Make = Callable[[SampleEdges, int, Random], tuple[Tensor, ...]]
Run = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One use of an operator.

    Attributes:
        name: what is computed.
        make: the tensors that it learns from, of (edges, width, normal), where normal(*shape) is a
            tensor of normal numbers.
        run: the result, a tensor or several, of (edges, *those tensors).
        widths: how many features it is tried with.
        bound: largest difference to the compiled loop in float32, beside the largest number.
    """

    name: str
    make: Make
    run: Run
    widths: tuple[int, ...] = (1, 33, 130)
    bound: float = 1e-5


def _of_nodes(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    return (normal(edges.num_nodes, width),)


def _of_edges(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    return (normal(edges.num_edges, width),)


def _pairs_of_nodes(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    return normal(edges.num_nodes, width), normal(edges.num_nodes, width)


def _weighted(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    return normal(edges.num_nodes, width), normal(edges.num_edges)


def _weighted_by_feature(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    return normal(edges.num_nodes, width), normal(edges.num_edges, width)


def _products(by_feature: bool) -> Run:
    return lambda edges, a, b: segment_ops.edge_products(a, b, *mp.matrix_of(edges), by_feature)


WIDE = (1, 33, 130, MOST_FEATURES + 8)


def _dropout(function: Callable[..., Tensor]) -> Run:
    """Of rows that are a part of a larger matrix."""

    def run(edges: SampleEdges, x: Tensor) -> Tensor:
        ids = 2**33 + 3 * torch.arange(x.shape[0], device=x.device)
        return function(x, 0.4, part=Part(seed=-5, ids=ids, first_column=7))

    return run


SEGMENT_CASES = (
    Case(name="spmm", make=_of_nodes, run=mp.spmm, widths=WIDE),
    Case(name="spmm, a weight per edge", make=_weighted, run=mp.spmm),
    Case(name="spmm, a weight per feature", make=_weighted_by_feature, run=mp.spmm),
    Case(name="gather of senders", make=_of_nodes, run=mp.gather_senders, widths=WIDE),
    Case(name="gather of receivers", make=_of_nodes, run=mp.gather_receivers),
    Case(name="sum to receivers", make=_of_edges, run=mp.sum_to_receivers),
    Case(name="sum to senders", make=_of_edges, run=mp.sum_to_senders),
    Case(
        name="segment mean",
        make=_of_edges,
        run=lambda edges, x: mp.segment_mean(x, edges.in_offsets),
    ),
    Case(
        name="segment max",
        make=_of_edges,
        run=lambda edges, x: mp.segment_max(x, edges.in_offsets),
    ),
    Case(name="dropout", make=_of_nodes, run=_dropout(dropout)),
    Case(name="dropout after a ReLU", make=_of_nodes, run=_dropout(relu_dropout)),
    Case(name="edge products", make=_pairs_of_nodes, run=_products(False), widths=WIDE),
    Case(name="edge products by feature", make=_pairs_of_nodes, run=_products(True)),
)


def all_cases() -> tuple[Case, ...]:
    """Every case, of every family of operators."""
    # Their modules take what is above.
    from weft.kernels.triton.cases_atoms import ATOM_CASES
    from weft.kernels.triton.cases_attention import ATTENTION_CASES
    from weft.kernels.triton.cases_typed import TYPED_CASES

    return (*SEGMENT_CASES, *ATOM_CASES, *ATTENTION_CASES, *TYPED_CASES)
