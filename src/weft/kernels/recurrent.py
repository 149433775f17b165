"""A gated recurrent unit as one operator: no gate is written to memory twice.

Same weights and result as torch.nn.GRUCell. N rows, I inputs, H features.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.kernels import recurrent_loops as loops
from weft.kernels.blas import gemm_address
from weft.kernels.custom_op import array_of, has_loop, have_one_loop, operator, require
from weft.kernels.threads import openmp, threads_for

# A chunk sums the gradients of the weights for itself: enough of them to share, not to fill memory.
_CHUNKS = 16


def _chunks_of(rows: int) -> tuple[int, int]:
    size = max(loops.BLOCK_ROWS, -(-rows // _CHUNKS))
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
        return _plain(x, h, *weights)
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


def _plain(
    x: Tensor,
    h: Tensor,
    input_weight: Tensor,
    state_weight: Tensor,
    input_bias: Tensor,
    state_bias: Tensor,
) -> Tensor:
    inputs = functional.linear(x, input_weight, input_bias).chunk(3, dim=1)
    states = functional.linear(h, state_weight, state_bias).chunk(3, dim=1)
    r, z = (torch.sigmoid(inputs[k] + states[k]) for k in range(2))
    n = torch.tanh(inputs[2] + r * states[2])
    return n + z * (h - n)


@operator("weft::gru")
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
    gates = h.new_empty(rows, 4 * width)
    out = h.new_empty(rows, width)
    chunk, chunks = _chunks_of(rows)
    both = 2 * width
    bias = torch.cat([input_bias[:both] + state_bias[:both], input_bias[both:], state_bias[both:]])
    arguments = (
        gemm_address(h.dtype),
        *map(array_of, (x, h, input_weight, state_weight, bias)),
        chunk,
        gates.numpy(),
        out.numpy(),
    )
    threads = threads_for(rows * input_weight.numel())
    loops.share_forward_chunks(openmp(), threads, arguments, None, chunks)
    return out, gates


@_gru.register_fake
def _(x: Tensor, h: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return h.new_empty(h.shape), h.new_empty(h.shape[0], 4 * h.shape[1])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, gates = output
    ctx.mark_non_differentiable(gates)
    # Or the gates would be given a gradient of zeros, four times as large as the states.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:4], gates)


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    wanted = ctx.needs_input_grad[1]
    grad_x, grad_h, *others = _gru_backward(*ctx.saved_tensors, grad, wanted)
    return grad_x, grad_h if wanted else None, *others


_gru.register_autograd(_backward, setup_context=_setup)


@operator("weft::gru_backward")
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
    arguments = (
        gemm_address(h.dtype),
        *map(array_of, (x, h, input_weight, state_weight, gates, grad)),
        wanted,
        chunk,
        *(t.numpy() for t in (grad_x, grad_h, input_grad, state_grad, bias_grad)),
    )
    threads = threads_for(2 * rows * input_weight.numel())
    loops.share_backward_chunks(openmp(), threads, arguments, None, chunks)
    sums = bias_grad.sum(0)
    input_bias = sums[: 3 * width].clone()
    state_bias = torch.cat([sums[: 2 * width], sums[3 * width :]])
    return grad_x, grad_h, input_grad.sum(0), state_grad.sum(0), input_bias, state_bias


@_gru_backward.register_fake
def _(
    x: Tensor, h: Tensor, input_weight: Tensor, state_weight: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape),
        h.new_empty(h.shape),
        torch.empty_like(input_weight),
        torch.empty_like(state_weight),
        h.new_empty(input_weight.shape[0]),
        h.new_empty(state_weight.shape[0]),
    )
