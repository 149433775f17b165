"""Products with an adjacency in blocks of zeros and ones: dense, for matrix units.

K blocks of S nodes, N nodes (at most K S), P edge types, H features. On the CPU `weft.layout` casts
blocks once and takes torch's own product, so there is no compiled loop.
"""

# No `from __future__ import annotations`: torch reads the operators' schemas off the annotations.
from typing import Any

import torch
from torch import Tensor

from weft.kernels.backends import forms
from weft.kernels.custom_op import operator, require


def _empty(x: Tensor, C: Tensor, U: Any, L: Any, transposed: bool) -> Tensor:
    types, given = C.shape[2], x.shape[0]
    return x.new_empty(given // types if transposed else given * types, x.shape[1])


@operator("weft::block_products", _empty)
def block_products(
    x: Tensor, C: Tensor, U: Tensor | None, L: Tensor | None, transposed: bool
) -> Tensor:
    """A x [N P, H] of the 0/1 matrix A [N P, N] in blocks; or, `transposed`, Aᵀ x [N, H].

    Args:
        x: [N, H]; [N P, H] if transposed, each node's types one after another.
        C: int8 [K, S, P, S], the blocks on the diagonal; axes: block, target, type, source.
        U: int8 [K - 1, S, P, S], sources are in the next block; None if all edges are in C.
        L: int8 [K - 1, S, P, S], sources are in the block before.
        transposed: see above.
    """
    right = C.ndim == 4 and C.shape[1] == C.shape[3] and C.shape[2] > 0
    right = right and all(part is None or part.dtype == torch.int8 for part in (C, U, L))
    if right and (U is not None or L is not None):
        beside = (max(C.shape[0] - 1, 0), *C.shape[1:])
        right = all(part is not None and part.shape == beside for part in (U, L))
    require(right, "int8 blocks C [K, S, P, S], U and L [K - 1, S, P, S] needed", C, U, L)
    blocks, size, types, _ = C.shape
    rows = types if transposed else 1
    right = x.ndim == 2 and x.shape[0] % rows == 0 and x.shape[0] <= blocks * size * rows
    require(right, "x must have one row per node (and type) of the blocks", x, C)
    found: Tensor = forms(x).block_products(x, C, U, L, transposed)
    return found


@block_products.derivative(lambda ctx, inputs, output: inputs[1:4])
def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor]:
    (transposed,) = ctx.others
    return (block_products(grad, *ctx.saved_tensors, not transposed),)
