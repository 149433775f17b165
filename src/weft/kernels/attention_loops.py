"""The compiled loops of attention: forward, and backward by receiver and by sender.

All take the same arrays: values v [M, H, C]; scores of senders a [M, H] and of receivers b [N, H];
keys k [M, H, C] and queries q [N, H, C]; a vector [H, C]; the weights that dropout keeps, bool
[E, H]; and the wide rows of edges' other ends, which are prefetched. One of a, k and vector
is not None, and says what the scores are. `numbers` are 0, 1, the slope of leaky_relu, the scale of
the scores, and what dropout multiplies with.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.kernels.vector_math import exp_of
from weft.runtime import compiled, prefetch, shared_rows, stack_numbers

CHUNK = 256
"""Receivers whose part of the vector's gradient is summed up in one row."""

# Numbers on the stack, and edges whose scores are there at a time.
_SPACE, _EDGES = 1024, 32
_AHEAD = 12

# A sum over features may be taken in any fixed order, so that vectors can be used.
_loop = compiled(error_model="numpy", fastmath={"contract", "reassoc"})


@_loop
def _fill_scores(
    z: Any,
    v: Any,
    a: Any,
    b: Any,
    k: Any,
    q: Any,
    vector: Any,
    numbers: Any,
    far_of: Any,
    far_rows: Any,
    more_rows: Any,
    near: int,
    is_sender: bool,
    first: int,
    stop: int,
) -> None:
    """z[edge, head] = the scores of the edges first:stop of a node, before an outer leaky_relu.

    That is vector · leaky_relu(v_j + q_i), scale k_j · q_i, or a_j + b_i.
    """
    heads, channels = v.shape[1], v.shape[2]
    zero, slope, scale = numbers[0], numbers[2], numbers[3]
    last = far_of.shape[0] - 1
    for edge in range(first, stop):
        ahead = np.intp(far_of[min(edge + _AHEAD, last)])
        for f in range(0, heads * channels, 16):
            prefetch(far_rows, ahead, np.intp(f))
            if more_rows is not None:
                prefetch(more_rows, ahead, np.intp(f))
        far = np.intp(far_of[edge])
        j, i = (np.intp(near), far) if is_sender else (far, np.intp(near))
        for h in range(heads):
            score = zero
            if vector is not None:
                for c in range(channels):
                    x = v[j, h, c] + q[i, h, c]
                    score += vector[h, c] * (x if x > zero else slope * x)
            if k is not None:
                for c in range(channels):
                    score += k[j, h, c] * q[i, h, c]
                score *= scale
            if a is not None:
                score = a[j, h]
                if b is not None:
                    score += b[i, h]
            z[(edge - first) * heads + h] = score


@shared_rows
@_loop
def forward_rows(
    v: Any,
    a: Any,
    b: Any,
    k: Any,
    q: Any,
    vector: Any,
    kept: Any,
    numbers: Any,
    offsets: Any,
    far_of: Any,
    edge_of: Any,
    far_rows: Any,
    more_rows: Any,
    out: Any,
    tops: Any,
    first: int,
    stop: int,
) -> None:
    """out[i] = Σ weight v_j; tops[i] = the scores' maximum and 1 / Σ exp(score - maximum)."""
    heads, channels = v.shape[1], v.shape[2]
    zero, one, slope, share = numbers[0], numbers[1], numbers[2], numbers[4]
    lowest = zero - one / zero
    z, sums = stack_numbers(numbers, _SPACE), stack_numbers(numbers, _SPACE)
    most, total = stack_numbers(numbers, _SPACE), stack_numbers(numbers, _SPACE)
    block = min(_EDGES, _SPACE // heads)
    for i in range(first, stop):
        for h in range(heads):
            most[h], total[h] = lowest, zero
        for f in range(heads * channels):
            sums[f] = zero
        for begin in range(offsets[i], offsets[i + 1], block):
            end = min(begin + block, offsets[i + 1])
            rows = (far_rows, more_rows)
            _fill_scores(z, v, a, b, k, q, vector, numbers, far_of, *rows, i, False, begin, end)
            for h in range(heads):
                top = most[h]
                for n in range(end - begin):
                    if vector is None:
                        x = z[n * heads + h]
                        z[n * heads + h] = x if x > zero else slope * x
                    top = max(top, z[n * heads + h])
                if top > most[h]:
                    # What was summed before was divided by exp of a lower maximum.
                    ratio = exp_of(most[h] - top)
                    most[h] = top
                    total[h] *= ratio
                    for c in range(channels):
                        sums[h * channels + c] *= ratio
                if top > lowest:
                    for n in range(end - begin):
                        z[n * heads + h] -= top
            for n in range((end - begin) * heads):
                z[n] = exp_of(z[n])
            for edge in range(begin, end):
                j = np.intp(far_of[edge])
                for h in range(heads):
                    weight = z[(edge - begin) * heads + h]
                    total[h] += weight
                    if kept is not None:
                        weight *= share if kept[edge_of[edge], h] else zero
                    for c in range(channels):
                        sums[h * channels + c] += weight * v[j, h, c]
        for h in range(heads):
            inverse = one / total[h]
            if most[h] == lowest:
                # No edges; or scores that are all -inf, which have no softmax.
                inverse = zero if offsets[i] == offsets[i + 1] else zero / zero
            tops[i, 0, h], tops[i, 1, h] = most[h], inverse
            for c in range(channels):
                out[i, h, c] = sums[h * channels + c] * inverse


# The gradient to a score is p (d - Σ p d), where p are the weights of a receiver's edges before
# dropout and d the gradients to them.


@shared_rows
@_loop
def backward_receivers(
    v: Any,
    a: Any,
    b: Any,
    k: Any,
    q: Any,
    vector: Any,
    kept: Any,
    numbers: Any,
    offsets: Any,
    far_of: Any,
    edge_of: Any,
    far_rows: Any,
    more_rows: Any,
    tops: Any,
    grad: Any,
    grad_log_sums: Any,
    ends: Any,
    d_b: Any,
    d_q: Any,
    d_vector: Any,
    first: int,
    stop: int,
) -> None:
    """The gradients d_b [N, H], d_q [N, H, C] and d_vector [chunks, H, C], for chunks of receivers.

    ends[i] = tops[i] and Σ p d, all that the pass by sender needs. Since Σ p d is not known before
    a receiver's last edge, sums over p (d - Σ p d) x are made of those over p d x and p x.
    grad_log_sums [N, H] is the gradient to log Σ exp of the scores, or None.
    """
    heads, channels = v.shape[1], v.shape[2]
    zero, slope, scale, share = numbers[0], numbers[2], numbers[3], numbers[4]
    z, p = stack_numbers(numbers, _SPACE), stack_numbers(numbers, _SPACE)
    pdx, px = stack_numbers(numbers, _SPACE), stack_numbers(numbers, _SPACE)
    pdx_vector, px_vector = stack_numbers(numbers, _SPACE), stack_numbers(numbers, _SPACE)
    pd, chunk_sums = stack_numbers(numbers, _SPACE), stack_numbers(numbers, _SPACE)
    block = min(_EDGES, _SPACE // heads)
    for chunk in range(first, stop):
        for f in range(heads * channels):
            chunk_sums[f] = zero
        for i in range(chunk * CHUNK, min((chunk + 1) * CHUNK, tops.shape[0])):
            for h in range(heads):
                # The gradient of log Σ exp to a score is p: it joins what is subtracted from d.
                pd[h] = zero if grad_log_sums is None else -grad_log_sums[i, h]
            for f in range(heads * channels):
                pdx[f], px[f], pdx_vector[f], px_vector[f] = zero, zero, zero, zero
            for begin in range(offsets[i], offsets[i + 1], block):
                end = min(begin + block, offsets[i + 1])
                rows = (far_rows, more_rows)
                _fill_scores(z, v, a, b, k, q, vector, numbers, far_of, *rows, i, False, begin, end)
                for n in range(end - begin):
                    for h in range(heads):
                        x = z[n * heads + h]
                        if vector is None:
                            x = x if x > zero else slope * x
                        p[n * heads + h] = x - tops[i, 0, h]
                for n in range((end - begin) * heads):
                    p[n] = exp_of(p[n])
                for edge in range(begin, end):
                    j = np.intp(far_of[edge])
                    for h in range(heads):
                        at = (edge - begin) * heads + h
                        weight = p[at] * tops[i, 1, h]
                        d = zero
                        for c in range(channels):
                            d += grad[i, h, c] * v[j, h, c]
                        if kept is not None:
                            d *= share if kept[edge_of[edge], h] else zero
                        pd[h] += weight * d
                        step = weight if z[at] > zero else slope * weight
                        if a is not None:
                            pdx[h] += d * step
                            px[h] += step
                        if k is not None:
                            step *= scale
                            for c in range(channels):
                                term = step * k[j, h, c]
                                pdx[h * channels + c] += d * term
                                px[h * channels + c] += term
                        if vector is not None:
                            for c in range(channels):
                                x = v[j, h, c] + q[i, h, c]
                                term = weight if x > zero else slope * weight
                                pdx[h * channels + c] += d * term
                                px[h * channels + c] += term
                                pdx_vector[h * channels + c] += d * (term * x)
                                px_vector[h * channels + c] += term * x
            for h in range(heads):
                ends[i, 0, h], ends[i, 1, h], ends[i, 2, h] = tops[i, 0, h], tops[i, 1, h], pd[h]
                if b is not None:
                    d_b[i, h] = pdx[h] - pd[h] * px[h]
                if q is not None:
                    for c in range(channels):
                        f = h * channels + c
                        d_q[i, h, c] = pdx[f] - pd[h] * px[f]
                        if vector is not None:
                            d_q[i, h, c] *= vector[h, c]
                            chunk_sums[f] += pdx_vector[f] - pd[h] * px_vector[f]
        if vector is not None:
            for h in range(heads):
                for c in range(channels):
                    d_vector[chunk, h, c] = chunk_sums[h * channels + c]


@shared_rows
@_loop
def backward_senders(
    v: Any,
    a: Any,
    b: Any,
    k: Any,
    q: Any,
    vector: Any,
    kept: Any,
    numbers: Any,
    offsets: Any,
    far_of: Any,
    edge_of: Any,
    far_rows: Any,
    more_rows: Any,
    grad: Any,
    ends: Any,
    d_v: Any,
    d_a: Any,
    d_k: Any,
    first: int,
    stop: int,
) -> None:
    """The gradients d_v [M, H, C], d_a [M, H] and d_k [M, H, C], from `ends` of the receivers."""
    heads, channels = v.shape[1], v.shape[2]
    zero, slope, scale, share = numbers[0], numbers[2], numbers[3], numbers[4]
    z, p = stack_numbers(numbers, _SPACE), stack_numbers(numbers, _SPACE)
    sums, score_sums = stack_numbers(numbers, _SPACE), stack_numbers(numbers, _SPACE)
    block = min(_EDGES, _SPACE // heads)
    for j in range(first, stop):
        for f in range(heads * channels):
            sums[f], score_sums[f] = zero, zero
        for begin in range(offsets[j], offsets[j + 1], block):
            end = min(begin + block, offsets[j + 1])
            rows = (far_rows, more_rows)
            _fill_scores(z, v, a, b, k, q, vector, numbers, far_of, *rows, j, True, begin, end)
            for n in range(end - begin):
                i = np.intp(far_of[begin + n])
                for h in range(heads):
                    x = z[n * heads + h]
                    if vector is None:
                        x = x if x > zero else slope * x
                    p[n * heads + h] = x - ends[i, 0, h]
            for n in range((end - begin) * heads):
                p[n] = exp_of(p[n])
            for edge in range(begin, end):
                i = np.intp(far_of[edge])
                for h in range(heads):
                    at = (edge - begin) * heads + h
                    weight = p[at] * ends[i, 1, h]
                    d = zero
                    for c in range(channels):
                        d += grad[i, h, c] * v[j, h, c]
                    dropped = weight
                    if kept is not None:
                        keep = share if kept[edge_of[edge], h] else zero
                        d *= keep
                        dropped *= keep
                    step = weight * (d - ends[i, 2, h])
                    if vector is None:
                        step = step if z[at] > zero else slope * step
                    if a is not None:
                        score_sums[h] += step
                        for c in range(channels):
                            sums[h * channels + c] += dropped * grad[i, h, c]
                    if k is not None:
                        step *= scale
                        for c in range(channels):
                            sums[h * channels + c] += dropped * grad[i, h, c]
                            score_sums[h * channels + c] += step * q[i, h, c]
                    if vector is not None:
                        for c in range(channels):
                            x = v[j, h, c] + q[i, h, c]
                            part = vector[h, c] * (step if x > zero else slope * step)
                            sums[h * channels + c] += dropped * grad[i, h, c] + part
        for h in range(heads):
            if a is not None:
                d_a[j, h] = score_sums[h]
            for c in range(channels):
                d_v[j, h, c] = sums[h * channels + c]
                if k is not None:
                    d_k[j, h, c] = score_sums[h * channels + c]
