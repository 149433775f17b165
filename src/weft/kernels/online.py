"""Sparse layers for a few samples, without gradients: a prediction as its inputs come in.

What a call costs beside its products counts as much as they do here, so a chain of layers is made
ready once, and a call passes the addresses of its tensors.

B samples, I inputs, O outputs, K weights of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from weft.kernels import online_loops as loops
from weft.kernels.custom_op import array_of, has_loop, is_plain
from weft.kernels.sparse_linear import Link, check_link, check_pattern, parts_of
from weft.runtime import POOL, threads_for

MOST_INPUTS = 2**16
"""Half of what is read for a weight is its column: the narrower, the better."""


class OnlineChain:
    """A chain of layers made ready for passes of at most 16 samples.

    The loop reads the layers' own memory, so that a step of an optimizer is seen; where the weights
    are is copied.
    """

    def __init__(self, links: Sequence[Link], inputs: int) -> None:
        """Make a chain ready that `can_be_online`.

        Args:
            links: the layers.
            inputs: I of the first.

        Raises:
            ValueError: they do not fit together.
        """
        rows, alive = [], []
        self._inputs, self._dtype = inputs, links[0].values.dtype
        for link in links:
            check_link(link, inputs)
            check_pattern(link.pattern, link.outputs, inputs)
            parts = parts_of(link.pattern, link.outputs, inputs)
            columns = array_of(parts.columns).astype(np.uint16)
            arrays = [columns, *map(array_of, (link.values, link.bias, link.pattern))]
            bias = 0 if link.bias is None else link.bias.data_ptr()
            places = (link.values.data_ptr(), bias, columns.ctypes.data, parts.offsets.data_ptr())
            rows.append((link.outputs, inputs, link.values.shape[0], link.relu, *places))
            alive += arrays
            inputs = link.outputs
        # The loop has only their addresses.
        self._alive = alive
        self._outputs, self._count = inputs, sum(row[loops.COUNT] for row in rows)
        self._table = np.array(rows, dtype=np.int64)
        self._like = array_of(links[0].values)[:0]

    def __call__(self, x: Tensor, by_feature: bool) -> Tensor | None:
        """The output [B, O] of x [B, I], stored `by_feature` or not.

        None where the loop does not take it, as more samples.
        """
        if x.ndim != 2 or not is_plain(x) or x.dtype != self._dtype or not x.is_cpu:
            return None
        samples, inputs = x.shape
        if inputs != self._inputs or not 0 < samples <= loops.MOST_SAMPLES:
            return None
        turned = False
        if not x.is_contiguous():
            turned = x.t().is_contiguous()
            x = x if turned else x.contiguous()
        size = (self._outputs, samples) if by_feature else (samples, self._outputs)
        out = torch.empty(size, dtype=self._dtype)
        threads = threads_for(self._count * samples)
        given = (self._table, self._like, x.data_ptr(), turned, samples, loops.LANES[samples])
        loops.forward(POOL, threads, *given, out.data_ptr(), by_feature)
        return out.t() if by_feature else out


def can_be_online(links: Sequence[Link], inputs: int) -> bool:
    """Whether the loop takes these layers, here and now."""
    widths = [inputs, *(link.outputs for link in links)]
    first = links[0].values
    for values, bias, pattern, *_ in links:
        for tensor in (values, bias):
            right = tensor is None or (is_plain(tensor) and tensor.dtype == first.dtype)
            if not right or not (tensor is None or tensor.is_contiguous()):
                return False
        if pattern.dtype != torch.int32 or not (pattern.is_cpu and pattern.is_contiguous()):
            return False
        if not has_loop(values, bias):
            return False
    return min(widths) > 0 and max(widths) <= MOST_INPUTS
