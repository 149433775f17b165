"""The operators in plain torch: for devices and dtypes without a compiled loop, and for tests.

Nothing here adds with atomics (index_add, scatter_add, an index_put that accumulates): on a GPU the
order of such sums, and so their last bits, would change from run to run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from weft.kernels.edge_pairs import BatchEdges, Pairs
    from weft.kernels.painn_message import MessageInputs

_LN2 = math.log(2)


def segment_reduce(values: Tensor, offsets: Tensor, order: Tensor | None, reduce: str) -> Tensor:
    """Sum or mean [N, F] of segments of `values` [E, F]; 0 for an empty one."""
    if order is not None:
        values = values.index_select(0, order)
    if not values.is_floating_point():
        return _integer_sum(values, offsets, reduce)
    out = torch.segment_reduce(
        values.contiguous(), reduce, offsets=offsets.long(), axis=0, unsafe=True, initial=0
    )
    return out.nan_to_num(nan=0.0) if values.shape[0] == 0 else out


def _integer_sum(values: Tensor, offsets: Tensor, reduce: str) -> Tensor:
    if reduce != "sum":
        raise ValueError(f"the mean of {values.dtype} values is not whole: convert them to floats")
    # Whole numbers wrap, so differences of running sums are exact.
    sums = values.new_zeros(values.shape[0] + 1, values.shape[1], dtype=torch.int64)
    torch.cumsum(values, 0, out=sums[1:])
    ends = sums.index_select(0, offsets)
    return (ends[1:] - ends[:-1]).to(values.dtype)


def segment_max(values: Tensor, offsets: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor]:
    """Maximum [N, F] by segment and the edge it came from (-1 for an empty segment)."""
    if order is None:
        order = torch.arange(values.shape[0], device=values.device)
    counts = offsets.diff().long()
    segment = torch.repeat_interleave(counts, output_size=values.shape[0])
    shape = (counts.shape[0], values.shape[1])
    sorted_values = values.index_select(0, order)
    floating = values.is_floating_point()
    lowest = -torch.inf if floating else torch.iinfo(values.dtype).min
    spread = segment[:, None].expand_as(sorted_values)
    best = sorted_values.new_full(shape, lowest).scatter_reduce(0, spread, sorted_values, "amax")
    # Among equal values the first position wins, as in the compiled loop.
    position = torch.arange(values.shape[0], device=values.device)[:, None].expand_as(spread)
    mine = best.gather(0, spread)
    wins = (sorted_values == mine) | (sorted_values.isnan() & mine.isnan())
    none = values.shape[0]
    first = position.new_full(shape, none).scatter_reduce(
        0, spread, position.where(wins, none), "amin"
    )
    winners = torch.cat([order.long(), order.new_full((1,), -1).long()])[first]
    return best.masked_fill(winners < 0, 0), winners


def gather(x: Tensor, index: Tensor) -> Tensor:
    """Rows x[index], [E, F]."""
    return x.index_select(0, index)


def spmm(
    x: Tensor, weight: Tensor | None, columns: Tensor, offsets: Tensor, order: Tensor | None
) -> Tensor:
    """Weighted sums [N, F] of rows of `x` by CSR row."""
    messages = x.index_select(0, columns)
    if weight is not None:
        # Mixed precision: the result has the dtype of x, as the tracer is told.
        messages = (messages * (weight[:, None] if weight.ndim == 1 else weight)).to(x.dtype)
    return segment_reduce(messages, offsets, order, "sum")


def edge_products(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, by_feature: bool) -> Tensor:
    """Products a[rows] · b[columns] by edge: dot products [E], or [E, F] by feature."""
    product = (a.index_select(0, rows) * b.index_select(0, columns)).to(a.dtype)
    return product if by_feature else product.sum(1)


def pair_spmm(
    x: Tensor,
    weight: Tensor,
    of_edge: Tensor,
    columns: Tensor,
    offsets: Tensor,
    order: Tensor | None,
) -> Tensor:
    """As `spmm`, where edge e has the weights of its pair, row of_edge[e] of weight [P, F]."""
    return spmm(x, weight.index_select(0, of_edge), columns, offsets, order)


def pair_products(
    a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, forward: Tensor, backward: Tensor
) -> Tensor:
    """Sums [P, F] of the products a[rows] · b[columns] by feature, over the edges of each pair."""
    return pair_sums(edge_products(a, b, rows, columns, by_feature=True), forward, backward)


def pair_sums(values: Tensor, forward: Tensor, backward: Tensor) -> Tensor:
    """Sums [P, F] of edge values [E, F] over the one or two edges of each pair."""
    second = values.index_select(0, backward)
    alone = (forward == backward)[:, None]
    return values.index_select(0, forward) + second.masked_fill(alone, 0.0)


def block_products(
    x: Tensor, C: Tensor, U: Tensor | None, L: Tensor | None, transposed: bool
) -> Tensor:
    """A x [N P, H] of the blocks A and x [N, H]; or Aᵀ x [N, H] of x [N P, H]."""
    blocks, size, types, _ = C.shape
    given, made = x.shape[0], x.shape[0] // types if transposed else x.shape[0] * types
    height = size * types if transposed else size
    own = torch.nn.functional.pad(x, (0, 0, 0, blocks * height - given))
    own = own.reshape(blocks, height, x.shape[1])

    def times(part: Tensor, sources: Tensor) -> Tensor:
        rows = part.flatten(1, 2).to(x.dtype)
        return torch.bmm(rows.mT if transposed else rows, sources)

    out = times(C, own)
    if U is not None and L is not None and blocks > 1:
        after, before = (L, U) if transposed else (U, L)
        out[:-1] += times(after, own[1:])
        out[1:] += times(before, own[:-1])
    return out.flatten(0, 1)[:made]


def shifted_softplus(x: Tensor) -> Tensor:
    """ln(1 + e^x) - ln 2 of every element."""
    return functional.softplus(x) - _LN2


def softplus_backward(y: Tensor, grad: Tensor) -> Tensor:
    """The gradient in x of y = shifted_softplus(x)."""
    return (grad * (1 - 0.5 * torch.exp(-y))).to(y.dtype)


def edge_softplus(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    senders: Tensor,
    receivers: Tensor,
    of_edge: Tensor | None,
) -> Tensor:
    """Shifted softplus [E, F] of a[sender] + b[receiver] + c[edge, or its pair]."""
    own = c if of_edge is None else c.index_select(0, of_edge)
    return shifted_softplus(a.index_select(0, senders) + b.index_select(0, receivers) + own)


def gaussian_basis(
    d: Tensor, fade: Tensor | None, centres: int, spacing: float, sharpness: float
) -> Tensor:
    """Gaussians [P, K] of distances d [P]; with fade [P], times it, and it as column K."""
    places = torch.arange(centres, dtype=d.dtype, device=d.device) * spacing
    basis = torch.exp(-sharpness * (d[:, None] - places) ** 2)
    return basis if fade is None else torch.cat([basis * fade[:, None], fade[:, None]], dim=1)


def gaussian_basis_backward(
    grad: Tensor, d: Tensor, fade: Tensor | None, spacing: float, sharpness: float
) -> list[Tensor]:
    """Gradients [P] in d and, where there is one, in fade."""
    centres = grad.shape[1] - (fade is not None)
    away = d[:, None] - torch.arange(centres, dtype=d.dtype, device=d.device) * spacing
    own = grad[:, :centres] * torch.exp(-sharpness * away**2)
    to_d = -2 * sharpness * (own * away).sum(1)
    if fade is None:
        return [to_d.to(d.dtype)]
    return [(to_d * fade).to(d.dtype), (own.sum(1) + grad[:, centres]).to(fade.dtype)]


def _painn_parts(
    given: MessageInputs, edges: BatchEdges, pairs: Pairs | None
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The parts of each edge's filters, 0 for padding, and of its sender's x; each [E, F]."""
    x, mu, filters, _, mask = given
    parts = 2 if mu is None else 3
    rows = filters if pairs is None else filters.index_select(0, pairs.of_edge)
    of_senders = x.index_select(0, edges.senders)
    return (rows * mask[:, None]).chunk(parts, dim=1), of_senders.chunk(parts, dim=1)


def painn_message(
    given: MessageInputs, edges: BatchEdges, pairs: Pairs | None
) -> tuple[Tensor, Tensor]:
    """Scalars [N, F] and vectors [N, 3, F] that reach each node."""
    senders, _, in_offsets, _, _ = edges
    _, mu, _, direction, _ = given
    w, xs = _painn_parts(given, edges, pairs)
    width = xs[0].shape[1]
    vectors = (w[1] * xs[1])[:, None] * direction[:, :, None]
    if mu is not None:
        vectors = vectors + (w[2] * xs[2])[:, None] * mu.index_select(0, senders)
    flat = vectors.reshape(-1, 3 * width)
    return (
        segment_reduce(w[0] * xs[0], in_offsets, None, "sum"),
        segment_reduce(flat, in_offsets, None, "sum").view(-1, 3, width),
    )


def painn_message_backward(
    grad_q: Tensor,
    grad_mu: Tensor,
    given: MessageInputs,
    edges: BatchEdges,
    pairs: Pairs | None,
    want_direction: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, mu (empty where there is none), filters and direction (empty if unwanted)."""
    x, mu, filters, direction, mask = given
    senders, receivers, _, out_offsets, out_order = edges
    w, xs = _painn_parts(given, edges, pairs)
    width = grad_q.shape[1]
    gq, gv = grad_q.index_select(0, receivers), grad_mu.index_select(0, receivers)
    factors = [gq, (direction[:, :, None] * gv).sum(1)]
    grad_mu_in, grad_direction = x.new_empty(0, 3, width), direction.new_empty(0, 3)
    if mu is not None:
        factors.append((mu.index_select(0, senders) * gv).sum(1))
        flat = ((w[2] * xs[2])[:, None] * gv).reshape(-1, 3 * width)
        grad_mu_in = segment_reduce(flat, out_offsets, out_order, "sum").view(-1, 3, width)
        grad_mu_in = grad_mu_in.to(mu.dtype)
    if want_direction:
        grad_direction = ((w[1] * xs[1])[:, None] * gv).sum(2).to(direction.dtype)
    to_x = torch.cat([a * b for a, b in zip(w, factors, strict=True)], dim=1)
    by_edge = torch.cat([a * b for a, b in zip(xs, factors, strict=True)], dim=1) * mask[:, None]
    by_filter = by_edge if pairs is None else pair_sums(by_edge, *pairs[:2])
    return (
        segment_reduce(to_x, out_offsets, out_order, "sum").to(x.dtype),
        grad_mu_in,
        by_filter.to(filters.dtype),
        grad_direction,
    )


def painn_invariants(mixed: Tensor, q: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """[q, |left|] [N, 2 F], left · right [N, F] and a copy of right of mixed [N, 3, 2 F]."""
    left, right = mixed.chunk(2, dim=2)
    length = (left.square().sum(1) + epsilon).sqrt()
    return torch.cat([q, length], dim=1), (left * right).sum(1), right.contiguous()


def painn_invariants_backward(
    grad_context: Tensor, grad_dot: Tensor, grad_right: Tensor, mixed: Tensor, context: Tensor
) -> Tensor:
    """Gradient of `mixed`."""
    width = grad_dot.shape[1]
    left, right = mixed.chunk(2, dim=2)
    by_length = (grad_context[:, width:] / context[:, width:])[:, None]
    to_left = by_length * left + grad_dot[:, None] * right
    to_right = grad_dot[:, None] * left + grad_right
    return torch.cat([to_left, to_right], dim=2).to(mixed.dtype)


def painn_update(
    q: Tensor, mu: Tensor, mixes: Tensor, dot: Tensor, right: Tensor
) -> tuple[Tensor, Tensor]:
    """q + a + c · dot [N, F] and μ + b · right [N, 3, F] of mixes [N, 3 F] = a, b, c."""
    a, b, c = mixes.chunk(3, dim=1)
    return q + a + c * dot, mu + b[:, None] * right


def painn_update_backward(
    grad_q: Tensor, grad_mu: Tensor, mixes: Tensor, dot: Tensor, right: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `mixes`, `dot` and `right`."""
    _, b, c = mixes.chunk(3, dim=1)
    grad_mixes = torch.cat([grad_q, (grad_mu * right).sum(1), grad_q * dot], dim=1)
    grad_dot, grad_right = grad_q * c, grad_mu * b[:, None]
    return grad_mixes.to(mixes.dtype), grad_dot.to(dot.dtype), grad_right.to(right.dtype)
