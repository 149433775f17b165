"""A gated recurrent unit as one operator: no gate is written to memory twice.

Same weights and result as torch.nn.GRUCell. Blocks of rows go through all gates in one thread's
cache. N rows, I inputs, H features, C chunks of rows. Gradients of the weights are summed by chunk
first: how many threads there are then changes no bit.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from weft.kernels.backends import forms, runs_triton
from weft.kernels.custom_op import (
    array_of,
    differentiable_gradients,
    has_loop,
    have_one_loop,
    operator,
    require,
)
from weft.kernels.vector_math import add_rows, sigmoid_of, tanh_of
from weft.runtime import gemm, gemm_address, kernel, shared_rows

# Rows of a block: their gates, four times 128 features, fill most of a second-level cache.
_BLOCK_ROWS = 192
# A chunk sums the gradients of the weights for itself: enough of them to share, not to fill memory.
_CHUNKS = 16


# Row by row in functions of their own: over a whole matrix the compiler asks once whether what a
# loop reads and writes may overlap; columns of one matrix may, and it then uses no vectors.


@kernel
def _row_gates(sums: Any, h: Any, bias: Any, gates: Any) -> None:
    """r, z and the state's part of n, of one row; bias as in `_gates`."""
    width = h.shape[0]
    for j in range(2 * width):
        gates[j] = sigmoid_of(sums[j] + bias[j])
    own, own_bias, out = sums[3 * width :], bias[3 * width :], gates[3 * width :]
    for j in range(width):
        out[j] = own[j] + own_bias[j]


@kernel
def _row_new(new: Any, bias: Any, r: Any, own: Any, n: Any) -> None:
    """The gate n of one row."""
    for j in range(n.shape[0]):
        n[j] = tanh_of(new[j] + bias[j] + r[j] * own[j])


@kernel
def _row_state(h: Any, z: Any, n: Any, out: Any) -> None:
    """The new state of one row."""
    for j in range(n.shape[0]):
        out[j] = n[j] + z[j] * (h[j] - n[j])


@kernel
def _gates(sums: Any, h: Any, bias: Any, gates: Any, out: Any) -> None:
    """The gates r, z, n and the state's part of n, from the sums of products; and the new state.

    bias [4 H] is both biases of r and z, the input's of n, the state's of n.
    """
    width = h.shape[1]
    for i in range(h.shape[0]):
        own = gates[i]
        r, z = own[:width], own[width : 2 * width]
        n, state = own[2 * width : 3 * width], own[3 * width :]
        _row_gates(sums[i], h[i], bias, own)
        _row_new(sums[i, 2 * width :], bias[2 * width :], r, state, n)
        _row_state(h[i], z, n, out[i])


@shared_rows
@kernel
def _forward_chunks(
    address: int, x: Any, h: Any, weights: Any, chunk: int, made: Any, first: int, stop: int
) -> None:
    """Chunks first:stop of the gates [N, 4 H] and of the states [N, H]."""
    input_weight, state_weight, bias = weights
    gates, out = made
    inputs, width = x.shape[1], h.shape[1]
    space = np.empty((_BLOCK_ROWS, 4 * width), dtype=h.dtype)
    for number in range(first, stop):
        end = min((number + 1) * chunk, h.shape[0])
        for start in range(number * chunk, end, _BLOCK_ROWS):
            last = min(start + _BLOCK_ROWS, end)
            rows = last - start
            given, state, both = x[start:last], h[start:last], space[:rows]
            new, own = both[:, 2 * width :], both[:, 3 * width :]
            input_new, state_new = input_weight[2 * width :], state_weight[2 * width :]
            gemm(address, False, True, rows, 2 * width, inputs, given, input_weight, both, False)
            gemm(address, False, True, rows, 2 * width, width, state, state_weight, both, True)
            gemm(address, False, True, rows, width, inputs, given, input_new, new, False)
            gemm(address, False, True, rows, width, width, state, state_new, own, False)
            _gates(both, state, bias, gates[start:last], out[start:last])


@kernel
def _gate_gradients(gates: Any, h: Any, grad: Any, out: Any, grad_h: Any) -> None:
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


@shared_rows
@kernel
def _backward_chunks(
    address: int,
    given: Any,
    gates: Any,
    grad: Any,
    wanted: bool,
    chunk: int,
    made: Any,
    first: int,
    stop: int,
) -> None:
    """Chunks first:stop of the gradients in x and h, and those [C, ...] in the weights.

    The weights' must be 0 before; that in h is only right if `wanted`. bias_grad [C, 4 H] is that
    in the sums r, z, n and in the state's part of n.
    """
    x, h, input_weight, state_weight = given
    grad_x, grad_h, input_grad, state_grad, bias_grad = made
    inputs, width = x.shape[1], h.shape[1]
    space = np.empty((_BLOCK_ROWS, 4 * width), dtype=h.dtype)
    for number in range(first, stop):
        end = min((number + 1) * chunk, h.shape[0])
        for start in range(number * chunk, end, _BLOCK_ROWS):
            last = min(start + _BLOCK_ROWS, end)
            rows = last - start
            own_x, state, own_grad = x[start:last], h[start:last], space[:rows]
            before_x, before_h = grad_x[start:last], grad_h[start:last]
            _gate_gradients(gates[start:last], state, grad[start:last], own_grad, before_h)
            own, state_new = own_grad[:, 3 * width :], state_weight[2 * width :]
            target, other = input_grad[number], state_grad[number]
            new = other[2 * width :]
            all_in = input_weight
            gemm(address, False, False, rows, inputs, 3 * width, own_grad, all_in, before_x, False)
            if wanted:
                both = state_weight
                gemm(address, False, False, rows, width, 2 * width, own_grad, both, before_h, True)
                gemm(address, False, False, rows, width, width, own, state_new, before_h, True)
            gemm(address, True, False, 3 * width, inputs, rows, own_grad, own_x, target, True)
            gemm(address, True, False, 2 * width, width, rows, own_grad, state, other, True)
            gemm(address, True, False, width, width, rows, own, state, new, True)
            add_rows(own_grad, bias_grad[number])


def _chunks_of(rows: int) -> tuple[int, int]:
    size = max(_BLOCK_ROWS, -(-rows // _CHUNKS))
    return size, -(-rows // size)


def gru(
    x: Tensor,
    h: Tensor,
    input_weight: Tensor,
    state_weight: Tensor,
    input_bias: Tensor,
    state_bias: Tensor,
) -> Tensor:
    """New states [N, H] of states h [N, H] for inputs x [N, I].

    Args:
        x: [N, I].
        h: [N, H].
        input_weight: [3 H, I]: reset, update and new gate, as `torch.nn.GRUCell.weight_ih`.
        state_weight: [3 H, H].
        input_bias: [3 H].
        state_bias: [3 H].
    """
    weights = (input_weight, state_weight, input_bias, state_bias)
    _check(x, h, *weights)
    same = all(t.dtype == h.dtype for t in (x, *weights))
    fast = has_loop(x, h, *weights) and gemm_address(h.dtype) and same
    # What is exported runs elsewhere, where these loops are not.
    if torch.compiler.is_exporting() or not fast:
        return plain_gru(x, h, *weights)
    out: Tensor = _gru(x, h, *weights)[0]
    return out


def _check(
    x: Tensor, h: Tensor, input_weight: Tensor, state_weight: Tensor, *biases: Tensor
) -> None:
    right = x.ndim == h.ndim == 2 and x.shape[0] == h.shape[0]
    if right:
        gates = 3 * h.shape[1]
        right = input_weight.shape == (gates, x.shape[1])
        right = right and state_weight.shape == (gates, h.shape[1])
        right = right and all(bias.shape == (gates,) for bias in biases)
    needed = "x [N, I], h [N, H], weights [3 H, I] and [3 H, H], biases [3 H] needed"
    require(right, needed, x, h, input_weight, state_weight, *biases)


def _require_one_dtype(*tensors: Tensor) -> None:
    require(
        have_one_loop(*tensors), "all must have one dtype, float32 or float64, on the CPU", *tensors
    )


def _empty_states(x: Tensor, h: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return h.new_empty(h.shape), h.new_empty(h.shape[0], 4 * h.shape[1])


def plain_gru(
    x: Tensor,
    h: Tensor,
    input_weight: Tensor,
    state_weight: Tensor,
    input_bias: Tensor,
    state_bias: Tensor,
) -> Tensor:
    """New states [N, H] by torch's own products; see `gru`."""
    inputs = functional.linear(x, input_weight, input_bias)
    states = functional.linear(h, state_weight, state_bias)
    if torch.compiler.is_exporting() or not runs_triton(inputs, states, h):
        return _plain_gates(inputs, states, h)
    out: Tensor = _gated_states(inputs, states, h)
    return out


def _plain_gates(inputs: Tensor, states: Tensor, h: Tensor) -> Tensor:
    of_inputs, of_states = inputs.chunk(3, dim=1), states.chunk(3, dim=1)
    r, z = (torch.sigmoid(of_inputs[k] + of_states[k]) for k in range(2))
    n = torch.tanh(of_inputs[2] + r * of_states[2])
    return n + z * (h - n)


def _empty_next(inputs: Tensor, _: Tensor, h: Tensor) -> Tensor:
    return h.new_empty(h.shape, dtype=torch.promote_types(inputs.dtype, h.dtype))


@operator("weft::gated_states", _empty_next)
def _gated_states(inputs: Tensor, states: Tensor, h: Tensor) -> Tensor:
    """New states of h [N, H], of the sums [N, 3 H] of inputs and of states: where Triton runs."""
    _check_sums(inputs, states, h)
    out = _empty_next(inputs, states, h)
    forms(inputs, states, h).gated_states(inputs, states, h, out)
    return out


@_gated_states.derivative()
def _gated_states_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    given = ctx.saved_tensors
    # The form may be another one by now.
    if torch.is_grad_enabled() or not runs_triton(*given):
        return tuple(differentiable_gradients(ctx, _plain_gates, given, (grad,)))
    found: tuple[Tensor, ...] = _gate_gradients_of(*given, grad)
    return found


@operator(
    "weft::gated_states_backward", lambda *given: tuple(t.new_empty(t.shape) for t in given[:3])
)
def _gate_gradients_of(
    inputs: Tensor, states: Tensor, h: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in all that `_gated_states` takes."""
    _check_sums(inputs, states, h)
    require(grad.shape == h.shape, "a gradient [N, H] needed", grad, h)
    found: tuple[Tensor, Tensor, Tensor] = forms(h).gate_gradients(inputs, states, h, grad)
    return found


def _check_sums(inputs: Tensor, states: Tensor, h: Tensor) -> None:
    right = h.ndim == 2 and inputs.shape == states.shape == (h.shape[0], 3 * h.shape[1])
    right = right and runs_triton(inputs, states, h)
    require(right, "sums [N, 3 H] and h [N, H] for Triton needed", inputs, states, h)


@operator("weft::gru", _empty_states)
def _gru(
    x: Tensor,
    h: Tensor,
    input_weight: Tensor,
    state_weight: Tensor,
    input_bias: Tensor,
    state_bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """The states, and the gates [N, 4 H]: r, z, n and the state's part of n."""
    _check(x, h, input_weight, state_weight, input_bias, state_bias)
    _require_one_dtype(x, h, input_weight, state_weight, input_bias, state_bias)
    rows, width = h.shape
    out, gates = _empty_states(x, h)
    chunk, chunks = _chunks_of(rows)
    both = 2 * width
    bias = torch.cat([input_bias[:both] + state_bias[:both], input_bias[both:], state_bias[both:]])
    weights = tuple(map(array_of, (input_weight, state_weight, bias)))
    made = (gates.numpy(), out.numpy())
    arguments = (gemm_address(h.dtype), array_of(x), array_of(h), weights, chunk, made)
    _forward_chunks.share(arguments, chunks, rows * input_weight.numel())
    return out, gates


def _saved(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> tuple[Any, ...]:
    _, gates = output
    ctx.mark_non_differentiable(gates)
    # Or the gates would be given a gradient of zeros, four times as large as the states.
    ctx.set_materialize_grads(False)
    return *inputs, gates


@_gru.derivative(_saved)
def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    *given, gates = ctx.saved_tensors
    # The form may be another one by now.
    if torch.is_grad_enabled() or not have_one_loop(*given):
        return tuple(differentiable_gradients(ctx, plain_gru, given, (grad,)))
    wanted = ctx.needs_input_grad[1]
    grad_x, grad_h, *others = _gru_backward(*given[:4], gates, grad, wanted)
    return grad_x, grad_h if wanted else None, *others


def _empty_gradients(*inputs: Any) -> tuple[Tensor, ...]:
    x, h, input_weight, state_weight, *_ = inputs
    biases = (h.new_empty(weight.shape[0]) for weight in (input_weight, state_weight))
    return *(t.new_empty(t.shape) for t in (x, h, input_weight, state_weight)), *biases


@operator("weft::gru_backward", _empty_gradients)
def _gru_backward(
    x: Tensor,
    h: Tensor,
    input_weight: Tensor,
    state_weight: Tensor,
    gates: Tensor,
    grad: Tensor,
    wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients in all that `_gru` takes; that in h is only right if it is `wanted`."""
    _check(x, h, input_weight, state_weight)
    _require_one_dtype(x, h, input_weight, state_weight, gates, grad)
    rows, width = h.shape
    right = grad.shape == h.shape and gates.shape == (rows, 4 * width)
    require(right, "a gradient [N, H] and gates [N, 4 H] needed", grad, gates)
    chunk, chunks = _chunks_of(rows)
    grad_x, grad_h = x.new_empty(x.shape), h.new_empty(h.shape)
    input_grad = h.new_zeros(chunks, *input_weight.shape)
    state_grad = h.new_zeros(chunks, *state_weight.shape)
    bias_grad = h.new_zeros(chunks, 4 * width)
    given = tuple(map(array_of, (x, h, input_weight, state_weight)))
    made = tuple(t.numpy() for t in (grad_x, grad_h, input_grad, state_grad, bias_grad))
    read = (given, array_of(gates), array_of(grad))
    arguments = (gemm_address(h.dtype), *read, wanted, chunk, made)
    _backward_chunks.share(arguments, chunks, 2 * rows * input_weight.numel())
    sums = bias_grad.sum(0)
    input_bias = sums[: 3 * width].clone()
    state_bias = torch.cat([sums[: 2 * width], sums[3 * width :]])
    return grad_x, grad_h, input_grad.sum(0), state_grad.sum(0), input_bias, state_bias
