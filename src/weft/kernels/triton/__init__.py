"""Triton kernels behind the operators, for GPUs, which `weft check gpu` checks without one.

The names are those of `weft.kernels.plain_torch`, so that `backends.forms` can give either, and
those of operators that plain torch differentiates by itself. Rows of a CSR view are walked by the
program that writes them: no atomics, and sums in one fixed order, so that results are the same in
every run. Sums are held in float32, or float64 for float64.
"""

from weft.kernels.triton.attention import attention, attention_gradients
from weft.kernels.triton.banded import block_products
from weft.kernels.triton.dropout import dropped, positive_gradient
from weft.kernels.triton.edge_softmax import edge_softmax, edge_softmax_gradient
from weft.kernels.triton.gates import gate_gradients, gated_states
from weft.kernels.triton.painn import painn_message, painn_message_backward
from weft.kernels.triton.painn_mixing import (
    painn_invariants,
    painn_invariants_backward,
    painn_update,
    painn_update_backward,
)
from weft.kernels.triton.schnet import (
    gaussian_basis,
    gaussian_basis_backward,
    pair_products,
    pair_spmm,
    pair_sums,
)
from weft.kernels.triton.segments import (
    edge_products,
    gather,
    segment_max,
    segment_reduce,
    spmm,
)
from weft.kernels.triton.softplus import edge_softplus, shifted_softplus, softplus_backward
from weft.kernels.triton.sparse_linear import weight_gradients, weighted_rows
from weft.kernels.triton.typed import typed_gradients, typed_messages

__all__ = [
    "attention",
    "attention_gradients",
    "block_products",
    "dropped",
    "edge_products",
    "edge_softmax",
    "edge_softmax_gradient",
    "edge_softplus",
    "gate_gradients",
    "gated_states",
    "gather",
    "gaussian_basis",
    "gaussian_basis_backward",
    "painn_invariants",
    "painn_invariants_backward",
    "painn_message",
    "painn_message_backward",
    "painn_update",
    "painn_update_backward",
    "pair_products",
    "pair_spmm",
    "pair_sums",
    "positive_gradient",
    "segment_max",
    "segment_reduce",
    "shifted_softplus",
    "softplus_backward",
    "spmm",
    "typed_gradients",
    "typed_messages",
    "weight_gradients",
    "weighted_rows",
]
