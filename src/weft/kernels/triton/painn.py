"""PaiNN's messages of scalars and vectors as Triton kernels, each in one pass over its rows.

E edges over N rows, P pairs, F features. Rows of x and of the filters have three parts of F
features (two where the senders' vectors `mu` are None, for zeros): for scalars, along the edge's
direction, and for the sender's vectors. Nothing of an edge whose mask is 0 is read. Arguments and
results are those of the same names in `weft.kernels.painn_message` and `painn_mixing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.kernels.custom_op import widest
from weft.kernels.triton.launch import bytes_of, dense, feature_block, kernel, row_bytes, sums_in

if TYPE_CHECKING:
    from weft.kernels.edge_pairs import BatchEdges, Pairs
    from weft.kernels.painn_message import MessageInputs

# Edges or pairs of one program where each is alone, with a warp.
_ROWS = 4


def _live(mask: Tensor) -> int:
    """Edges that are no padding."""
    return int(mask.sum())


def _least_messages(
    x: Tensor,
    mu: Tensor | None,
    filters: Tensor,
    direction: Tensor,
    mask: Tensor,
    senders: Tensor,
    offsets: Tensor,
    out_q: Tensor,
    out_mu: Tensor,
    **others: Any,
) -> int:
    of_edge = others["of_edge"]
    rows = _live(mask) * row_bytes(x, mu, filters, direction)
    return rows + bytes_of(mask, senders, of_edge, offsets, out_q, out_mu)


@kernel(
    reason="A program per row and up to 512 features: four sums stay in registers, edges in order.",
    least=_least_messages,
)
def _painn_messages(
    x,
    mu,
    filters,
    direction,
    mask,
    senders,
    of_edge,
    offsets,
    out_q,
    out_mu,
    width,
    PARTS: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = feature < width
    parts, vectors, third = PARTS * width, 3 * width, 2 * width
    start = tl.load(offsets + row).to(tl.int64)
    end = tl.load(offsets + row + 1).to(tl.int64)
    scalars = tl.zeros([BLOCK], SUMS)
    v0 = tl.zeros([BLOCK], SUMS)
    v1 = tl.zeros([BLOCK], SUMS)
    v2 = tl.zeros([BLOCK], SUMS)
    for edge in range(start, end):
        kept = tl.load(mask + edge).to(tl.int32)
        live, here = kept != 0, feature < width * kept
        sender = tl.load(senders + edge).to(tl.int64)
        pair = edge
        if of_edge is not None:
            pair = tl.load(of_edge + edge).to(tl.int64)
        own = x + sender * parts + feature
        weight = filters + pair * parts + feature
        toward = direction + 3 * edge
        d0 = tl.load(toward, mask=live, other=0.0).to(SUMS)
        d1 = tl.load(toward + 1, mask=live, other=0.0).to(SUMS)
        d2 = tl.load(toward + 2, mask=live, other=0.0).to(SUMS)
        w = tl.load(weight, mask=here, other=0.0).to(SUMS)
        scalars += w * tl.load(own, mask=here, other=0.0).to(SUMS)
        w = tl.load(weight + width, mask=here, other=0.0).to(SUMS)
        along = w * tl.load(own + width, mask=here, other=0.0).to(SUMS)
        v0 += d0 * along
        v1 += d1 * along
        v2 += d2 * along
        if mu is not None:
            w = tl.load(weight + third, mask=here, other=0.0).to(SUMS)
            turned = w * tl.load(own + third, mask=here, other=0.0).to(SUMS)
            vector = mu + sender * vectors + feature
            v0 += turned * tl.load(vector, mask=here, other=0.0).to(SUMS)
            v1 += turned * tl.load(vector + width, mask=here, other=0.0).to(SUMS)
            v2 += turned * tl.load(vector + third, mask=here, other=0.0).to(SUMS)
    tl.store(out_q + row * width + feature, scalars, mask=inside)
    made = out_mu + row * vectors + feature
    tl.store(made, v0, mask=inside)
    tl.store(made + width, v1, mask=inside)
    tl.store(made + third, v2, mask=inside)


def painn_message(
    given: MessageInputs, edges: BatchEdges, pairs: Pairs | None
) -> tuple[Tensor, Tensor]:
    """Scalars [N, F] and vectors [N, 3, F] that reach each node."""
    x, mu, filters, direction, mask = given
    parts = 2 if mu is None else 3
    nodes, width = x.shape[0], x.shape[1] // parts
    out_q = x.new_empty(nodes, width, dtype=widest(x, filters))
    out_mu = x.new_empty(nodes, 3, width, dtype=widest(x, mu, filters, direction))
    of_edge = None if pairs is None else pairs.of_edge
    _painn_messages.launch_rows(
        nodes,
        width,
        *(x, mu, filters, direction, mask.view(torch.uint8)),
        *(edges.senders, of_edge, edges.in_offsets, out_q, out_mu),
        PARTS=parts,
        SUMS=sums_in(out_mu),
    )
    return out_q, out_mu


def _least_to_senders(
    grad_q: Tensor,
    grad_mu: Tensor,
    x: Tensor,
    mu: Tensor | None,
    filters: Tensor,
    direction: Tensor,
    mask: Tensor,
    grad_x: Tensor,
    **others: Any,
) -> int:
    rows = _live(mask) * row_bytes(grad_q, grad_mu, filters, direction)
    # Of the sender's own numbers: its vectors, and the factors of them.
    own = 0 if mu is None else bytes_of(x) // 3 + bytes_of(mu, others["grad_mu_in"])
    names = ("receivers", "of_edge", "offsets", "order")
    return rows + own + bytes_of(mask, grad_x, *(others[name] for name in names))


@kernel(
    reason="A program per sender and up to 512 features: five sums in registers, edges in order.",
    least=_least_to_senders,
)
def _painn_to_senders(
    grad_q,
    grad_mu,
    x,
    mu,
    filters,
    direction,
    mask,
    receivers,
    of_edge,
    offsets,
    order,
    grad_x,
    grad_mu_in,
    width,
    PARTS: tl.constexpr,
    SUMS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = feature < width
    parts, vectors, third = PARTS * width, 3 * width, 2 * width
    start = tl.load(offsets + row).to(tl.int64)
    end = tl.load(offsets + row + 1).to(tl.int64)
    scalars = tl.zeros([BLOCK], SUMS)
    along = tl.zeros([BLOCK], SUMS)
    v0 = tl.zeros([BLOCK], SUMS)
    v1 = tl.zeros([BLOCK], SUMS)
    v2 = tl.zeros([BLOCK], SUMS)
    for k in range(start, end):
        edge = tl.load(order + k).to(tl.int64)
        kept = tl.load(mask + edge).to(tl.int32)
        live, here = kept != 0, feature < width * kept
        receiver = tl.load(receivers + edge).to(tl.int64)
        pair = edge
        if of_edge is not None:
            pair = tl.load(of_edge + edge).to(tl.int64)
        weight = filters + pair * parts + feature
        toward = direction + 3 * edge
        d0 = tl.load(toward, mask=live, other=0.0).to(SUMS)
        d1 = tl.load(toward + 1, mask=live, other=0.0).to(SUMS)
        d2 = tl.load(toward + 2, mask=live, other=0.0).to(SUMS)
        reached = grad_mu + receiver * vectors + feature
        g0 = tl.load(reached, mask=here, other=0.0).to(SUMS)
        g1 = tl.load(reached + width, mask=here, other=0.0).to(SUMS)
        g2 = tl.load(reached + third, mask=here, other=0.0).to(SUMS)
        g = tl.load(grad_q + receiver * width + feature, mask=here, other=0.0).to(SUMS)
        scalars += g * tl.load(weight, mask=here, other=0.0).to(SUMS)
        w = tl.load(weight + width, mask=here, other=0.0).to(SUMS)
        along += w * (d0 * g0 + d1 * g1 + d2 * g2)
        if mu is not None:
            w = tl.load(weight + third, mask=here, other=0.0).to(SUMS)
            v0 += w * g0
            v1 += w * g1
            v2 += w * g2
    made = grad_x + row * parts + feature
    tl.store(made, scalars, mask=inside)
    tl.store(made + width, along, mask=inside)
    if mu is not None:
        # The sender's own factors are the same for all its edges, so they come last.
        vector = mu + row * vectors + feature
        turned = v0 * tl.load(vector, mask=inside, other=0.0).to(SUMS)
        turned += v1 * tl.load(vector + width, mask=inside, other=0.0).to(SUMS)
        turned += v2 * tl.load(vector + third, mask=inside, other=0.0).to(SUMS)
        tl.store(made + third, turned, mask=inside)
        factor = tl.load(x + row * vectors + third + feature, mask=inside, other=0.0)
        vector = grad_mu_in + row * vectors + feature
        tl.store(vector, v0 * factor.to(SUMS), mask=inside)
        tl.store(vector + width, v1 * factor.to(SUMS), mask=inside)
        tl.store(vector + third, v2 * factor.to(SUMS), mask=inside)


def _least_to_filters(
    grad_q: Tensor,
    grad_mu: Tensor,
    x: Tensor,
    mu: Tensor | None,
    direction: Tensor,
    mask: Tensor,
    out: Tensor,
    **others: Any,
) -> int:
    rows = _live(mask) * row_bytes(grad_q, grad_mu, x, mu, direction)
    names = ("receivers", "senders", "forward", "backward")
    return rows + bytes_of(mask, out, *(others[name] for name in names))


@kernel(
    reason="A program per 4 pairs, a warp each: an edge's ten rows fit in registers.",
    least=_least_to_filters,
)
def _painn_to_filters(
    grad_q,
    grad_mu,
    x,
    mu,
    direction,
    mask,
    receivers,
    senders,
    forward,
    backward,
    out,
    pairs,
    width,
    PARTS: tl.constexpr,
    WAYS: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    pair = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    feature = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    there = pair < pairs
    scalars = tl.zeros([ROWS, BLOCK], SUMS)
    along = tl.zeros([ROWS, BLOCK], SUMS)
    turned = tl.zeros([ROWS, BLOCK], SUMS)
    first = pair
    if WAYS == 2:
        first = tl.load(forward + pair, mask=there, other=0).to(tl.int64)
    for way in tl.static_range(WAYS):
        edge, live = first, there
        if way == 1:
            # The one edge of a pair that is alone counts once.
            edge = tl.load(backward + pair, mask=there, other=0).to(tl.int64)
            live = there & (edge != first)
        live = live & (tl.load(mask + edge, mask=live, other=0) != 0)
        here = live[:, None] & (feature < width)
        receiver = tl.load(receivers + edge, mask=live, other=0).to(tl.int64)[:, None]
        sender = tl.load(senders + edge, mask=live, other=0).to(tl.int64)[:, None]
        toward = direction + 3 * edge
        d0 = tl.load(toward, mask=live, other=0.0).to(SUMS)[:, None]
        d1 = tl.load(toward + 1, mask=live, other=0.0).to(SUMS)[:, None]
        d2 = tl.load(toward + 2, mask=live, other=0.0).to(SUMS)[:, None]
        reached = grad_mu + receiver * (3 * width) + feature
        g0 = tl.load(reached, mask=here, other=0.0).to(SUMS)
        g1 = tl.load(reached + width, mask=here, other=0.0).to(SUMS)
        g2 = tl.load(reached + 2 * width, mask=here, other=0.0).to(SUMS)
        g = tl.load(grad_q + receiver * width + feature, mask=here, other=0.0).to(SUMS)
        own = x + sender * (PARTS * width) + feature
        scalars += g * tl.load(own, mask=here, other=0.0).to(SUMS)
        factor = tl.load(own + width, mask=here, other=0.0).to(SUMS)
        along += factor * (d0 * g0 + d1 * g1 + d2 * g2)
        if mu is not None:
            vector = mu + sender * (3 * width) + feature
            product = g0 * tl.load(vector, mask=here, other=0.0).to(SUMS)
            product += g1 * tl.load(vector + width, mask=here, other=0.0).to(SUMS)
            product += g2 * tl.load(vector + 2 * width, mask=here, other=0.0).to(SUMS)
            turned += product * tl.load(own + 2 * width, mask=here, other=0.0).to(SUMS)
    inside = there[:, None] & (feature < width)
    made = out + pair[:, None] * (PARTS * width) + feature
    tl.store(made, scalars, mask=inside)
    tl.store(made + width, along, mask=inside)
    if mu is not None:
        tl.store(made + 2 * width, turned, mask=inside)


def _least_to_directions(
    grad_mu: Tensor, x: Tensor, filters: Tensor, mask: Tensor, out: Tensor, **others: Any
) -> int:
    # Of x and the filters one part of two or three.
    parts = row_bytes(x, filters) // others["PARTS"]
    names = ("receivers", "senders", "of_edge")
    rows = _live(mask) * (row_bytes(grad_mu) + parts)
    return rows + bytes_of(mask, out, *(others[name] for name in names))


@kernel(
    reason="A program per 4 edges, a warp each: three dot products need no second pass.",
    least=_least_to_directions,
)
def _painn_to_directions(
    grad_mu,
    x,
    filters,
    mask,
    receivers,
    senders,
    of_edge,
    out,
    edges,
    width,
    PARTS: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    edge = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    there = edge < edges
    live = there & (tl.load(mask + edge, mask=there, other=0) != 0)
    receiver = tl.load(receivers + edge, mask=there, other=0).to(tl.int64)[:, None]
    sender = tl.load(senders + edge, mask=there, other=0).to(tl.int64)[:, None]
    pair = edge
    if of_edge is not None:
        pair = tl.load(of_edge + edge, mask=there, other=0).to(tl.int64)
    v0 = tl.zeros([ROWS], SUMS)
    v1 = tl.zeros([ROWS], SUMS)
    v2 = tl.zeros([ROWS], SUMS)
    for start in range(0, width, BLOCK):
        feature = (start + tl.arange(0, BLOCK))[None, :]
        here = live[:, None] & (feature < width)
        weight = filters + pair[:, None] * (PARTS * width) + width + feature
        own = x + sender * (PARTS * width) + width + feature
        along = tl.load(weight, mask=here, other=0.0).to(SUMS)
        along = along * tl.load(own, mask=here, other=0.0).to(SUMS)
        reached = grad_mu + receiver * (3 * width) + feature
        v0 += tl.sum(along * tl.load(reached, mask=here, other=0.0).to(SUMS), 1)
        v1 += tl.sum(along * tl.load(reached + width, mask=here, other=0.0).to(SUMS), 1)
        v2 += tl.sum(along * tl.load(reached + 2 * width, mask=here, other=0.0).to(SUMS), 1)
    tl.store(out + 3 * edge, v0, mask=there)
    tl.store(out + 3 * edge + 1, v1, mask=there)
    tl.store(out + 3 * edge + 2, v2, mask=there)


def painn_message_backward(
    grad_q: Tensor,
    grad_mu: Tensor,
    given: MessageInputs,
    edges: BatchEdges,
    pairs: Pairs | None,
    want_direction: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, mu (empty where there is none), filters and direction (empty if unwanted)."""
    x, mu, filters, direction = map(dense, given[:4])
    senders, receivers, _, out_offsets, out_order = map(dense, edges)
    forward, backward, of_edge = (None,) * 3 if pairs is None else map(dense, pairs)
    grad_q, grad_mu, mask = dense(grad_q), dense(grad_mu), dense(given.mask.view(torch.uint8))
    nodes, width = grad_q.shape
    grad_x, grad_filters = torch.empty_like(x), torch.empty_like(filters)
    own = x if mu is None else mu
    grad_mu_in = own.new_empty(0 if mu is None else nodes, 3, width)
    grad_direction = direction.new_empty(len(direction) if want_direction else 0, 3)
    constants: dict[str, Any] = {"PARTS": 2 if mu is None else 3, "SUMS": sums_in(*given[:4])}
    _painn_to_senders.launch_rows(
        nodes,
        width,
        *(grad_q, grad_mu, x, mu, filters, direction, mask),
        *(receivers, of_edge, out_offsets, out_order),
        *(grad_x, None if mu is None else grad_mu_in),
        **constants,
    )
    block, warps = feature_block(min(width, 128))
    constants |= {"width": width, "ROWS": _ROWS, "BLOCK": block, "warps": _ROWS * warps}
    _painn_to_filters.launch(
        (triton.cdiv(len(filters), _ROWS), triton.cdiv(width, block)),
        *(grad_q, grad_mu, x, mu, direction, mask),
        *(receivers, senders, forward, backward, grad_filters),
        pairs=len(filters),
        WAYS=1 if pairs is None else 2,
        **constants,
    )
    if want_direction:
        _painn_to_directions.launch(
            (triton.cdiv(len(direction), _ROWS),),
            *(grad_mu, x, filters, mask, receivers, senders, of_edge, grad_direction),
            edges=len(direction),
            **constants,
        )
    return grad_x, grad_mu_in, grad_filters, grad_direction
