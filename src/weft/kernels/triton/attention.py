"""Attention over the edges into each receiver as Triton kernels.

M senders, N receivers, E edges, H heads of C channels. The tensors are those of `attention_loops`:
values v [M, H, C]; scores of senders a [M, H] and of receivers b [N, H]; keys k [M, H, C] and
queries q [N, H, C]; a vector [H, C]; the weights that dropout keeps, bool [E, H]. A walk is offsets
of rows, the other end of each edge and its number. No tensor has a row of channels for every edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from weft.kernels.triton.launch import bytes_of, dense, kernel, part, row_bytes, sums_in, tile_of

Walk = tuple[Tensor, Tensor, Tensor]

# Receivers whose part of the vector's gradient one program sums up: what is left to add is small.
_ROWS = 8


@part
def _channels_of(x, at, channels, there, SUMS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows x[at] [EDGES, BLOCK], 0 where there is no edge or no channel."""
    channel = tl.arange(0, BLOCK)
    mask = there[:, None] & (channel < channels)[None, :]
    return tl.load(x + at[:, None] * channels + channel[None, :], mask=mask, other=0.0).to(SUMS)


@part
def _channels_at(x, at, channels, SUMS: tl.constexpr, BLOCK: tl.constexpr):
    """The row x[at] [1, BLOCK]."""
    channel = tl.arange(0, BLOCK)
    return tl.load(x + at * channels + channel, mask=channel < channels, other=0.0).to(SUMS)[
        None, :
    ]


@part
def _sloped(z, x, SLOPE: tl.constexpr):
    """x times the slope of leaky_relu at z."""
    return tl.where(z > 0, x, SLOPE * x)


@part
def _leaky(x, SLOPE: tl.constexpr):
    return _sloped(x, x, SLOPE)


@part
def _weights(z, top, inverse, there, SLOPE: tl.constexpr, JOINT: tl.constexpr):
    """The weights [EDGES] before dropout of scores z, 0 where there is no edge."""
    score = z if JOINT else _leaky(z, SLOPE)
    # Masked first: exp of what was read nowhere could overflow.
    score = tl.where(there, score, float("-inf"))
    return tl.where(there, tl.exp(score - top) * inverse, 0.0)


@part
def _kept_share(kept, edge_of, place, heads, head, there, SHARE: tl.constexpr, SUMS: tl.constexpr):
    """What dropout multiplies the weights [EDGES] with: 0, or SHARE."""
    edge = tl.load(edge_of + place, mask=there, other=0).to(tl.int64)
    return tl.load(kept + edge * heads + head, mask=there, other=0).to(SUMS) * SHARE


def _least_rows(
    v: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    k: Tensor | None,
    q: Tensor | None,
    vector: Tensor | None,
    kept: Tensor | None,
    offsets: Tensor,
    far: Tensor,
    edge_of: Tensor,
    out: Tensor,
    tops: Tensor,
    **_: Any,
) -> int:
    used = edge_of if kept is not None else None
    whole = bytes_of(b, q, vector, kept, offsets, far, used, out, tops)
    return whole + far.shape[0] * row_bytes(v, a, k)


@kernel(
    reason="A program per receiver and head, 8 edges of 64 channels at once: one pass.",
    least=_least_rows,
)
def _attention_rows(
    v,
    a,
    b,
    k,
    q,
    vector,
    kept,
    offsets,
    far,
    edge_of,
    out,
    tops,
    heads,
    channels,
    SLOPE: tl.constexpr,
    SCALE: tl.constexpr,
    SHARE: tl.constexpr,
    SUMS: tl.constexpr,
    EDGES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    near = row * heads + head
    start = tl.load(offsets + row).to(tl.int64)
    end = tl.load(offsets + row + 1).to(tl.int64)
    if q is not None:
        query = _channels_at(q, near, channels, SUMS, BLOCK)
    if vector is not None:
        direction = _channels_at(vector, head, channels, SUMS, BLOCK)
    if b is not None:
        own = tl.load(b + near).to(SUMS)
    top = tl.full([], float("-inf"), SUMS)
    total = tl.zeros([], SUMS)
    sums = tl.zeros([BLOCK], SUMS)
    for first in range(start, end, EDGES):
        place = first + tl.arange(0, EDGES)
        there = place < end
        sender = tl.load(far + place, mask=there, other=0).to(tl.int64) * heads + head
        value = _channels_of(v, sender, channels, there, SUMS, BLOCK)
        if vector is not None:
            score = tl.sum(_leaky(value + query, SLOPE) * direction, 1)
        elif k is not None:
            key = _channels_of(k, sender, channels, there, SUMS, BLOCK)
            score = _leaky(tl.sum(key * query, 1) * SCALE, SLOPE)
        else:
            score = tl.load(a + sender, mask=there, other=0.0).to(SUMS)
            if b is not None:
                score += own
            score = _leaky(score, SLOPE)
        score = tl.where(there, score, float("-inf"))
        most = tl.maximum(top, tl.max(score, 0))
        # Scores that are all -inf have no maximum to subtract.
        shift = tl.where(most > float("-inf"), most, 0.0)
        weight = tl.exp(score - shift)
        # What was summed before was divided by exp of a lower maximum.
        ratio = tl.exp(top - shift)
        total = total * ratio + tl.sum(weight, 0)
        if kept is not None:
            weight *= _kept_share(kept, edge_of, place, heads, head, there, SHARE, SUMS)
        sums = sums * ratio + tl.sum(weight[:, None] * value, 0)
        top = most
    # 0 for a receiver without edges; not a number where all scores are -inf.
    inverse = 1.0 / tl.where(total > 0, total, 1.0)
    inverse = tl.where((total > 0) | (end == start), inverse, float("nan"))
    inverse = tl.where(end > start, inverse, 0.0)
    channel = tl.arange(0, BLOCK)
    tl.store(out + near * channels + channel, sums * inverse, mask=channel < channels)
    tl.store(tops + 2 * row * heads + head, top)
    tl.store(tops + (2 * row + 1) * heads + head, inverse)


def _least_receivers(
    v: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    k: Tensor | None,
    q: Tensor | None,
    vector: Tensor | None,
    kept: Tensor | None,
    offsets: Tensor,
    far: Tensor,
    edge_of: Tensor,
    tops: Tensor,
    grad: Tensor,
    grad_log_sums: Tensor | None,
    means: Tensor,
    d_b: Tensor | None,
    d_q: Tensor | None,
    d_vector: Tensor | None,
    **_: Any,
) -> int:
    used = edge_of if kept is not None else None
    read = bytes_of(b, q, vector, kept, offsets, far, used, tops, grad, grad_log_sums)
    return read + bytes_of(means, d_b, d_q, d_vector) + far.shape[0] * row_bytes(v, a, k)


# The gradient to a score is p (d - Σ p d), where p are the weights of a receiver's edges before
# dropout and d the gradients to them. Since Σ p d is not known before a receiver's last edge, sums
# over p (d - Σ p d) x are made of those over p d x and p x.


@kernel(
    reason="A program per head and 1 or 8 receivers: a vector has few parts to add.",
    least=_least_receivers,
    all_registers=True,
)
def _attention_receivers(
    v,
    a,
    b,
    k,
    q,
    vector,
    kept,
    offsets,
    far,
    edge_of,
    tops,
    grad,
    grad_log_sums,
    means,
    d_b,
    d_q,
    d_vector,
    rows,
    heads,
    channels,
    SLOPE: tl.constexpr,
    SCALE: tl.constexpr,
    SHARE: tl.constexpr,
    SUMS: tl.constexpr,
    ROWS: tl.constexpr,
    EDGES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    chunk = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    channel = tl.arange(0, BLOCK)
    inside = channel < channels
    if vector is not None:
        direction = _channels_at(vector, head, channels, SUMS, BLOCK)
    of_vector = tl.zeros([BLOCK], SUMS)
    for row in range(chunk * ROWS, tl.minimum(chunk * ROWS + ROWS, rows)):
        near = row * heads + head
        start = tl.load(offsets + row).to(tl.int64)
        end = tl.load(offsets + row + 1).to(tl.int64)
        top = tl.load(tops + 2 * row * heads + head)
        inverse = tl.load(tops + (2 * row + 1) * heads + head)
        above = _channels_at(grad, near, channels, SUMS, BLOCK)
        if q is not None:
            query = _channels_at(q, near, channels, SUMS, BLOCK)
        if b is not None:
            own = tl.load(b + near).to(SUMS)
        mean = tl.zeros([], SUMS)
        if grad_log_sums is not None:
            # The gradient of log Σ exp to a score is p: it joins what is subtracted from d.
            mean -= tl.load(grad_log_sums + near).to(SUMS)
        pds, ps = tl.zeros([], SUMS), tl.zeros([], SUMS)
        pdx, px = tl.zeros([BLOCK], SUMS), tl.zeros([BLOCK], SUMS)
        pdx_vector, px_vector = tl.zeros([BLOCK], SUMS), tl.zeros([BLOCK], SUMS)
        for first in range(start, end, EDGES):
            place = first + tl.arange(0, EDGES)
            there = place < end
            sender = tl.load(far + place, mask=there, other=0).to(tl.int64) * heads + head
            value = _channels_of(v, sender, channels, there, SUMS, BLOCK)
            if vector is not None:
                joined = value + query
                z = tl.sum(_leaky(joined, SLOPE) * direction, 1)
            elif k is not None:
                key = _channels_of(k, sender, channels, there, SUMS, BLOCK)
                z = tl.sum(key * query, 1) * SCALE
            else:
                z = tl.load(a + sender, mask=there, other=0.0).to(SUMS)
                if b is not None:
                    z += own
            p = _weights(z, top, inverse, there, SLOPE, vector is not None)
            d = tl.sum(value * above, 1)
            if kept is not None:
                d *= _kept_share(kept, edge_of, place, heads, head, there, SHARE, SUMS)
            mean += tl.sum(p * d, 0)
            if vector is not None:
                term = _sloped(joined, tl.broadcast_to(p[:, None], [EDGES, BLOCK]), SLOPE)
                pdx += tl.sum(d[:, None] * term, 0)
                px += tl.sum(term, 0)
                term *= joined
                pdx_vector += tl.sum(d[:, None] * term, 0)
                px_vector += tl.sum(term, 0)
            elif k is not None:
                step = _sloped(z, p, SLOPE) * SCALE
                pdx += tl.sum((d * step)[:, None] * key, 0)
                px += tl.sum(step[:, None] * key, 0)
            else:
                step = _sloped(z, p, SLOPE)
                pds += tl.sum(d * step, 0)
                ps += tl.sum(step, 0)
        tl.store(means + near, mean)
        if b is not None:
            tl.store(d_b + near, pds - mean * ps)
        if q is not None:
            found = pdx - mean * px
            if vector is not None:
                found *= tl.reshape(direction, [BLOCK])
                of_vector += pdx_vector - mean * px_vector
            tl.store(d_q + near * channels + channel, found, mask=inside)
    if vector is not None:
        tl.store(d_vector + (chunk * heads + head) * channels + channel, of_vector, mask=inside)


def _least_senders(
    v: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    k: Tensor | None,
    q: Tensor | None,
    vector: Tensor | None,
    kept: Tensor | None,
    offsets: Tensor,
    far: Tensor,
    edge_of: Tensor,
    tops: Tensor,
    grad: Tensor,
    means: Tensor,
    d_v: Tensor,
    d_a: Tensor | None,
    d_k: Tensor | None,
    **_: Any,
) -> int:
    used = edge_of if kept is not None else None
    whole = bytes_of(v, a, k, vector, kept, offsets, far, used, d_v, d_a, d_k)
    return whole + far.shape[0] * row_bytes(b, q, tops, grad, means)


@kernel(
    reason="A program per sender and head: receivers' sums are read, edges have none.",
    least=_least_senders,
    all_registers=True,
)
def _attention_senders(
    v,
    a,
    b,
    k,
    q,
    vector,
    kept,
    offsets,
    far,
    edge_of,
    tops,
    grad,
    means,
    d_v,
    d_a,
    d_k,
    heads,
    channels,
    SLOPE: tl.constexpr,
    SCALE: tl.constexpr,
    SHARE: tl.constexpr,
    SUMS: tl.constexpr,
    EDGES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    near = row * heads + head
    start = tl.load(offsets + row).to(tl.int64)
    end = tl.load(offsets + row + 1).to(tl.int64)
    value = _channels_at(v, near, channels, SUMS, BLOCK)
    if k is not None:
        key = _channels_at(k, near, channels, SUMS, BLOCK)
    if vector is not None:
        direction = _channels_at(vector, head, channels, SUMS, BLOCK)
    if a is not None:
        own = tl.load(a + near).to(SUMS)
    of_value = tl.zeros([BLOCK], SUMS)
    of_key = tl.zeros([BLOCK], SUMS)
    of_score = tl.zeros([], SUMS)
    for first in range(start, end, EDGES):
        place = first + tl.arange(0, EDGES)
        there = place < end
        receiver = tl.load(far + place, mask=there, other=0).to(tl.int64)
        at = receiver * heads + head
        top_at = tops + 2 * receiver * heads + head
        top = tl.load(top_at, mask=there, other=0.0)
        inverse = tl.load(top_at + heads, mask=there, other=0.0)
        mean = tl.load(means + at, mask=there, other=0.0)
        above = _channels_of(grad, at, channels, there, SUMS, BLOCK)
        if q is not None:
            query = _channels_of(q, at, channels, there, SUMS, BLOCK)
        if vector is not None:
            joined = value + query
            z = tl.sum(_leaky(joined, SLOPE) * direction, 1)
        elif k is not None:
            z = tl.sum(key * query, 1) * SCALE
        elif b is not None:
            z = own + tl.load(b + at, mask=there, other=0.0).to(SUMS)
        else:
            z = own + tl.zeros([EDGES], SUMS)
        p = _weights(z, top, inverse, there, SLOPE, vector is not None)
        d = tl.sum(value * above, 1)
        dropped = p
        if kept is not None:
            share = _kept_share(kept, edge_of, place, heads, head, there, SHARE, SUMS)
            d *= share
            dropped *= share
        step = p * (d - mean)
        of_value += tl.sum(dropped[:, None] * above, 0)
        if vector is not None:
            of_value += tl.sum(_sloped(joined, step[:, None] * direction, SLOPE), 0)
        else:
            step = _sloped(z, step, SLOPE)
            if k is not None:
                of_key += tl.sum((step * SCALE)[:, None] * query, 0)
            else:
                of_score += tl.sum(step, 0)
    channel = tl.arange(0, BLOCK)
    inside = channel < channels
    tl.store(d_v + near * channels + channel, of_value, mask=inside)
    if k is not None:
        tl.store(d_k + near * channels + channel, of_key, mask=inside)
    if a is not None:
        tl.store(d_a + near, of_score)


def _constants(v: Tensor, numbers: tuple[float, float, float]) -> dict[str, Any]:
    """What the three kernels are compiled with.

    Slope, scale and share are constants, too: as arguments they would be float32 in float64, too.
    """
    edges, block, warps = tile_of(v.shape[2])
    slope, scale, share = numbers
    return {
        "SLOPE": slope,
        "SCALE": scale,
        "SHARE": share,
        "SUMS": sums_in(v),
        "EDGES": edges,
        "BLOCK": block,
        "warps": warps,
    }


def _accumulator(v: Tensor) -> torch.dtype:
    return torch.float64 if v.dtype == torch.float64 else torch.float32


def attention(
    given: Sequence[Tensor | None],
    kept: Tensor | None,
    numbers: tuple[float, float, float],
    into: Walk,
) -> tuple[Tensor, Tensor]:
    """The output [N, H, C], and maximum and 1 / sum of each softmax, [N, 2, H].

    Args:
        given: v, a, b, k, q and vector; those that the scores are not made of are None.
        kept: bool [E, H], or None.
        numbers: the slope of leaky_relu, the scale of the scores, what dropout multiplies with.
        into: the walk by receiver.
    """
    v = given[0]
    assert v is not None
    rows, (_, heads, channels) = into[0].shape[0] - 1, v.shape
    out = v.new_empty(rows, heads, channels)
    tops = v.new_empty(rows, 2, heads, dtype=_accumulator(v))
    _attention_rows.launch(
        (rows, heads),
        *map(dense, (*given, kept, *into)),
        out,
        tops,
        heads=heads,
        channels=channels,
        **_constants(v, numbers),
    )
    return out, tops


def attention_gradients(
    given: Sequence[Tensor | None],
    kept: Tensor | None,
    numbers: tuple[float, float, float],
    into: Walk,
    out: Walk,
    tops: Tensor,
    grad: Tensor,
    grad_log_sums: Tensor | None,
) -> list[Tensor | None]:
    """The gradient to each of the tensors; see `attention`, whose second result `tops` is.

    Args:
        given: as there.
        kept: as there.
        numbers: as there.
        into: the walk by receiver.
        out: the walk by sender.
        tops: [N, 2, H].
        grad: to the output, [N, H, C].
        grad_log_sums: to log Σ exp of the scores, [N, H], or None.
    """
    v, vector = given[0], given[-1]
    assert v is not None
    rows, (senders, heads, channels) = tops.shape[0], v.shape
    order = torch.contiguous_format
    found = [None if t is None else torch.empty_like(t, memory_format=order) for t in given]
    d_v, d_a, d_b, d_k, d_q, _ = found
    many = 1 if vector is None else _ROWS
    chunks = triton.cdiv(rows, many)
    parts = None if vector is None else tops.new_empty(chunks, heads, channels)
    means = tops.new_empty(rows, heads)
    inputs = [*map(dense, (*given, kept))]
    sizes = {"heads": heads, "channels": channels, **_constants(v, numbers)}
    grad = grad.contiguous()
    known = (tops, grad, dense(grad_log_sums))
    _attention_receivers.launch(
        (chunks, heads),
        *inputs,
        *into,
        *known,
        means,
        d_b,
        d_q,
        parts,
        rows=rows,
        ROWS=many,
        **sizes,
    )
    _attention_senders.launch(
        (senders, heads), *inputs, *out, tops, grad, means, d_v, d_a, d_k, **sizes
    )
    if vector is not None and parts is not None:
        found[-1] = parts.sum(0).to(vector.dtype)
    return found
