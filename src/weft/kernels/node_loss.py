"""Cross-entropy of some of a graph's nodes and its gradient, in one pass over the logits.

torch copies the rows that count, and takes four more passes over them and a tensor of zeros.
N nodes, C classes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.kernels.custom_op import array_of, differentiable_gradients, is_fusable, require
from weft.kernels.vector_math import exp_of
from weft.runtime import compiled, kernel, shared_rows

IGNORED = -1
"""The class of a node that does not count."""


@compiled()
def _largest(x: Any) -> Any:
    """The largest of x [C]; four at a time, so that comparisons do not wait for each other."""
    a = b = c = d = x[0]
    whole = len(x) - len(x) % 4
    for k in range(0, whole, 4):
        a, b, c, d = max(a, x[k]), max(b, x[k + 1]), max(c, x[k + 2]), max(d, x[k + 3])
    for k in range(whole, len(x)):
        a = max(a, x[k])
    return max(max(a, b), max(c, d))


@compiled()
def _sum(x: Any) -> Any:
    """Σ x [C], four at a time in a fixed order."""
    a = b = c = d = x.dtype.type(0)
    whole = len(x) - len(x) % 4
    for k in range(0, whole, 4):
        a += x[k]
        b += x[k + 1]
        c += x[k + 2]
        d += x[k + 3]
    for k in range(whole, len(x)):
        a += x[k]
    return (a + b) + (c + d)


@shared_rows
@kernel
def _loss_rows(
    logits: Any, classes: Any, share: Any, losses: Any, grad: Any, first: int, stop: int
) -> None:
    """Losses [N] and grad = share · (softmax - one-hot) [N, C]; 0 where a node does not count."""
    width = logits.shape[1]
    for row in range(first, stop):
        own = classes[row]
        losses[row] = 0
        if own < 0:
            for column in range(width):
                grad[row, column] = 0
            continue
        most = _largest(logits[row])
        # A loop of its own, so that it is computed in vectors.
        for column in range(width):
            grad[row, column] = exp_of(logits[row, column] - most)
        total = _sum(grad[row])
        losses[row] = math.log(total) + most - logits[row, own]
        scale = share / total
        for column in range(width):
            grad[row, column] *= scale
        grad[row, own] -= share


def node_cross_entropy(logits: Tensor, classes: Tensor) -> Tensor:
    """The mean cross-entropy of the nodes that have a class.

    Args:
        logits: [N, C].
        classes: int64 [N], 0 to C - 1, or -1 for a node that does not count.

    Returns:
        A number; nan where no node counts.
    """
    right = (
        logits.ndim == 2 and classes.shape == logits.shape[:1] and not classes.is_floating_point()
    )
    require(right, "logits [N, C] and whole numbers [N] needed", logits, classes)
    if not (is_fusable(logits) and classes.is_cpu and classes.numel()):
        return _plain(logits, classes=classes)
    low, high = (int(each) for each in classes.aminmax())
    if low < IGNORED or high >= logits.shape[1]:
        raise ValueError(
            f"classes are {low} to {high}; with {logits.shape[1]} logits they must be from -1, for "
            f"none, to {logits.shape[1] - 1}"
        )
    out: Tensor = _NodeCrossEntropy.apply(logits, classes)  # type: ignore[no-untyped-call]
    return out


def _plain(logits: Tensor, *, classes: Tensor) -> Tensor:
    return functional.cross_entropy(logits, classes, ignore_index=IGNORED)


class _NodeCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, classes: Tensor) -> Tensor:
        count = int((classes >= 0).sum())
        losses = logits.new_empty(len(logits))
        grad = torch.empty_like(logits, memory_format=torch.contiguous_format)
        share = losses.numpy().dtype.type(1 / max(count, 1))
        arguments = (array_of(logits), array_of(classes), share, losses.numpy(), grad.numpy())
        _loss_rows.share(arguments, len(logits), 10 * logits.numel(), None)
        ctx.save_for_backward(logits, classes, grad)
        return losses.sum() / count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        logits, classes, grad = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(logits: Tensor) -> Tensor:
                return _plain(logits, classes=classes)

            return *differentiable_gradients(ctx, plain, [logits], grads), None
        # A loss that is summed with nothing else needs no further pass.
        return (grad if float(grads[0]) == 1 else grad * grads[0]), None
