"""Cases of the operators of models of atoms: SchNet's pair messages and PaiNN's messages."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.kernels import edge_softplus, gaussian_basis, gaussian_product, shifted_softplus
from weft.kernels.edge_pairs import BatchEdges, Pairs, pair_products, pair_spmm, pair_sums
from weft.kernels.message_passing import matrix_of
from weft.kernels.painn_message import painn_message
from weft.kernels.painn_mixing import invariants, update
from weft.kernels.triton.cases import WIDE, Case, Random, SampleEdges

_SPACING, _SHARPNESS = 0.12, 9.0
_EPSILON = 1e-8


def pairs_of(edges: SampleEdges) -> Pairs:
    """Each edge with its reverse, if that has no pair yet, or alone."""
    forward: list[int] = []
    backward: list[int] = []
    of_edge: list[int] = []
    waiting: dict[tuple[int, int], list[int]] = {}
    ends = zip(edges.senders.tolist(), edges.receivers.tolist(), strict=True)
    for edge, (sender, receiver) in enumerate(ends):
        reverses = waiting.get((receiver, sender))
        if reverses:
            pair = of_edge[reverses.pop()]
            backward[pair] = edge
        else:
            pair = len(forward)
            forward.append(edge)
            backward.append(edge)
            waiting.setdefault((sender, receiver), []).append(edge)
        of_edge.append(pair)
    return Pairs(*(edges.senders.new_tensor(places) for places in (forward, backward, of_edge)))


@dataclass(frozen=True, kw_only=True)
class _Batch(SampleEdges):
    """Edges of which the last eighth is padding, with their pairs or without."""

    edge_mask: Tensor
    pairs: dict[str, Tensor]

    @classmethod
    def of(cls, edges: SampleEdges, paired: bool) -> _Batch:
        places = torch.arange(edges.num_edges, device=edges.senders.device)
        mask = places < edges.num_edges - edges.num_edges // 8
        pairs = pairs_of(edges)._asdict() if paired else {}
        return cls(**vars(edges), edge_mask=mask, pairs=pairs)


def _count(edges: SampleEdges) -> int:
    return len(pairs_of(edges).forward)


def _nodes_and_pairs(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    return normal(edges.num_nodes, width), normal(_count(edges), width)


def _two_of_nodes(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    return normal(edges.num_nodes, width), normal(edges.num_nodes, width)


def _of_edges(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    return (normal(edges.num_edges, width),)


def _ends_and_edges(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    return *_two_of_nodes(edges, width, normal), normal(edges.num_edges, width)


def _ends_and_pairs(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    return *_two_of_nodes(edges, width, normal), normal(_count(edges), width)


def _distances(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    """Distances, and weights of as many Gaussians as the width says."""
    return normal(edges.num_edges).abs() * 2, normal(width, 3)


def _faded_distances(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    """Distances with weights for the Gaussians and the cutoff, and the values of that."""
    return *_distances(edges, width + 1, normal), normal(edges.num_edges)


def _messages(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    nodes = edges.num_nodes
    filters = normal(_count(edges), 3 * width)
    direction = normal(edges.num_edges, 3)
    return normal(nodes, 3 * width), normal(nodes, 3, width), filters, direction


def _first_messages(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    rows = edges.num_edges
    return normal(edges.num_nodes, 2 * width), normal(rows, 2 * width), normal(rows, 3)


def _invariants(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    return normal(edges.num_nodes, 3, 2 * width), normal(edges.num_nodes, width)


def _update(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    nodes = edges.num_nodes
    scalars, vectors = (nodes, width), (nodes, 3, width)
    shapes = (scalars, vectors, (nodes, 3 * width), scalars, vectors)
    return tuple(normal(*shape) for shape in shapes)


def _pair_messages(edges: SampleEdges, x: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = pair_spmm(x, weight, *matrix_of(edges), *pairs_of(edges))
    return out


def _pair_products(edges: SampleEdges, a: Tensor, b: Tensor) -> Tensor:
    out: Tensor = pair_products(a, b, *matrix_of(edges), *pairs_of(edges))
    return out


def _pair_sums(edges: SampleEdges, values: Tensor) -> Tensor:
    out: Tensor = pair_sums(values, *pairs_of(edges))
    return out


def _softplus_of_pairs(edges: SampleEdges, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    out: Tensor = edge_softplus(a, b, c, *BatchEdges.of(edges), *pairs_of(edges))
    return out


def _softplus_of_edges(edges: SampleEdges, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    out: Tensor = edge_softplus(a, b, c, *BatchEdges.of(edges), None, None, None)
    return out


def _gaussian_product(edges: SampleEdges, d: Tensor, weight: Tensor) -> Tensor:
    return gaussian_product(d, weight, spacing=_SPACING, sharpness=_SHARPNESS)


def _faded_product(edges: SampleEdges, d: Tensor, weight: Tensor, fade: Tensor) -> Tensor:
    return gaussian_basis(d, len(weight) - 1, _SPACING, _SHARPNESS, fade) @ weight


def _painn_messages(edges: SampleEdges, *given: Tensor) -> tuple[Tensor, Tensor]:
    return painn_message(_Batch.of(edges, paired=True), *given)


def _painn_first_messages(
    edges: SampleEdges, x: Tensor, filters: Tensor, direction: Tensor
) -> tuple[Tensor, Tensor]:
    return painn_message(_Batch.of(edges, paired=False), x, None, filters, direction)


ATOM_CASES = (
    Case(name="messages of pairs", make=_nodes_and_pairs, run=_pair_messages, widths=WIDE),
    Case(name="products of pairs", make=_two_of_nodes, run=_pair_products),
    Case(name="sums of pairs", make=_of_edges, run=_pair_sums),
    Case(name="softplus", make=_of_edges, run=lambda edges, x: shifted_softplus(x)),
    Case(name="edge softplus", make=_ends_and_edges, run=_softplus_of_edges),
    Case(name="edge softplus of pairs", make=_ends_and_pairs, run=_softplus_of_pairs),
    Case(name="Gaussians of distances", make=_distances, run=_gaussian_product),
    Case(name="Gaussians within a cutoff", make=_faded_distances, run=_faded_product),
    Case(name="PaiNN messages", make=_messages, run=_painn_messages, widths=WIDE),
    Case(name="PaiNN first messages", make=_first_messages, run=_painn_first_messages),
    Case(
        name="PaiNN invariants",
        make=_invariants,
        run=lambda edges, mixed, q: invariants(mixed, q, _EPSILON),
    ),
    Case(name="PaiNN update", make=_update, run=lambda edges, *given: update(*given)),
)
