"""The compiled loops of `gru`: blocks of rows through all gates, in one thread's cache.

N rows, I inputs, H features, C chunks of rows. Gradients of the weights are summed by chunk first:
how many threads there are then changes no bit.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from weft.compiled import compiled
from weft.kernels.blas import add_rows, gemm
from weft.kernels.threads import share
from weft.kernels.vector_math import sigmoid_of, tanh_of

_here = sys.modules[__name__]
_compiled = compiled(fastmath={"contract"}, error_model="numpy")

# Rows of a block: their gates, four times 128 features, fill most of a second-level cache.
BLOCK_ROWS = 192


@_compiled
def _gates(sums: Any, h: Any, bias: Any, gates: Any, out: Any) -> None:
    """The gates r, z, n and the state's part of n, from the sums of products; and the new state.

    bias [4 H] is both biases of r and z, the input's of n, the state's of n.
    """
    width = h.shape[1]
    # Loops of one or two results each: the compiler then uses vectors.
    for i in range(h.shape[0]):
        for j in range(2 * width):
            gates[i, j] = sigmoid_of(sums[i, j] + bias[j])
        for j in range(width):
            gates[i, 3 * width + j] = sums[i, 3 * width + j] + bias[3 * width + j]
        for j in range(width):
            own = sums[i, 3 * width + j] + bias[3 * width + j]
            new = sums[i, 2 * width + j] + bias[2 * width + j]
            gates[i, 2 * width + j] = tanh_of(new + gates[i, j] * own)
        for j in range(width):
            n = gates[i, 2 * width + j]
            out[i, j] = n + gates[i, width + j] * (h[i, j] - n)


@_compiled
def forward_chunks(
    address: int,
    x: Any,
    h: Any,
    input_weight: Any,
    state_weight: Any,
    bias: Any,
    chunk: int,
    gates: Any,
    out: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of out [N, H] and of gates [N, 4 H]."""
    inputs, width = x.shape[1], h.shape[1]
    space = np.empty((BLOCK_ROWS, 4 * width), dtype=h.dtype)
    for number in range(first, stop):
        end = min((number + 1) * chunk, h.shape[0])
        for start in range(number * chunk, end, BLOCK_ROWS):
            last = min(start + BLOCK_ROWS, end)
            rows = last - start
            given, state, both = x[start:last], h[start:last], space[:rows]
            new, own = both[:, 2 * width :], both[:, 3 * width :]
            input_new, state_new = input_weight[2 * width :], state_weight[2 * width :]
            gemm(address, False, True, rows, 2 * width, inputs, given, input_weight, both, False)
            gemm(address, False, True, rows, 2 * width, width, state, state_weight, both, True)
            gemm(address, False, True, rows, width, inputs, given, input_new, new, False)
            gemm(address, False, True, rows, width, width, state, state_new, own, False)
            _gates(both, state, bias, gates[start:last], out[start:last])


@_compiled
def share_forward_chunks(
    openmp: int, threads: int, arguments: Any, offsets: Any, rows: int
) -> None:
    """forward_chunks on a team of threads, see `share`."""
    share(openmp, threads, _here.forward_chunks, arguments, offsets, rows)


@_compiled
def _slopes(gates: Any, h: Any, grad: Any, out: Any, grad_h: Any) -> None:
    """The gradient in the four sums, and the part of the state's that goes past the gates."""
    width = h.shape[1]
    one = h.dtype.type(1)
    for i in range(h.shape[0]):
        for j in range(width):
            r, z = gates[i, j], gates[i, width + j]
            n, own = gates[i, 2 * width + j], gates[i, 3 * width + j]
            given = grad[i, j]
            new = given * (one - z) * (one - n * n)
            out[i, j] = new * own * r * (one - r)
            out[i, width + j] = given * (h[i, j] - n) * z * (one - z)
            out[i, 2 * width + j] = new
            out[i, 3 * width + j] = new * r
            grad_h[i, j] = given * z


@_compiled
def backward_chunks(
    address: int,
    x: Any,
    h: Any,
    input_weight: Any,
    state_weight: Any,
    gates: Any,
    grad: Any,
    wanted: bool,
    chunk: int,
    grad_x: Any,
    grad_h: Any,
    input_grad: Any,
    state_grad: Any,
    bias_grad: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of the gradients in x and h, and those [C, ...] in the weights.

    The weights' must be 0 before; that in h is only right if `wanted`. bias_grad [C, 4 H] is that
    in the sums r, z, n and in the state's part of n.
    """
    inputs, width = x.shape[1], h.shape[1]
    space = np.empty((BLOCK_ROWS, 4 * width), dtype=h.dtype)
    for number in range(first, stop):
        end = min((number + 1) * chunk, h.shape[0])
        for start in range(number * chunk, end, BLOCK_ROWS):
            last = min(start + BLOCK_ROWS, end)
            rows = last - start
            given, state, slope = x[start:last], h[start:last], space[:rows]
            before_x, before_h = grad_x[start:last], grad_h[start:last]
            _slopes(gates[start:last], state, grad[start:last], slope, before_h)
            own, state_new = slope[:, 3 * width :], state_weight[2 * width :]
            target, other = input_grad[number], state_grad[number]
            new = other[2 * width :]
            all_in = input_weight
            gemm(address, False, False, rows, inputs, 3 * width, slope, all_in, before_x, False)
            if wanted:
                both = state_weight
                gemm(address, False, False, rows, width, 2 * width, slope, both, before_h, True)
                gemm(address, False, False, rows, width, width, own, state_new, before_h, True)
            gemm(address, True, False, 3 * width, inputs, rows, slope, given, target, True)
            gemm(address, True, False, 2 * width, width, rows, slope, state, other, True)
            gemm(address, True, False, width, width, rows, own, state, new, True)
            add_rows(slope, bias_grad[number])


@_compiled
def share_backward_chunks(
    openmp: int, threads: int, arguments: Any, offsets: Any, rows: int
) -> None:
    """backward_chunks on a team of threads, see `share`."""
    share(openmp, threads, _here.backward_chunks, arguments, offsets, rows)
