"""A sparse linear layer whose outputs have as many inputs each: fast for a few samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.kernels.fan_in_linear import fan_in_linear
from weft.kernels.online_loops import MOST_SAMPLES
from weft.sparsify.sparse_layers import ALIKE, SparseLinear


def has_constant_fan_in(layer: SparseLinear) -> bool:
    """Whether every output of a layer has as many inputs."""
    counts = layer.parts.offsets.diff()
    return counts.numel() > 0 and bool((counts == counts[0]).all())


class FanInLinear(SparseLinear):
    """A `SparseLinear` with a constant fan-in; `convert` makes it.

    Training with up to 16 samples at a time has a loop of its own. More of them, inputs that are
    sparse and passes without gradients go through the loops of any `SparseLinear`; so does a layer
    whose weights have been moved to another number of inputs here and there.
    """

    # The columns int32 [K] of a pattern, None where their numbers differ; its version and address.
    _columns: tuple[Tensor | None, int, int] | None = None

    def _output(self, x: Tensor, relu: bool) -> Tensor:
        if not torch.is_grad_enabled():
            # There is nothing that the loop of any sparse layer lacks.
            return super()._output(x, relu)
        few = x.layout == torch.strided and x.ndim == 2 and x.shape[0] <= MOST_SAMPLES
        right = few and x.shape[1] == self.in_features and self.out_features > 0
        columns = self._columns_now() if right and not self.want_dense_gradient else None
        if columns is None or torch.compiler.is_exporting():
            return super()._output(x, relu)
        return fan_in_linear(x, self.values, self.bias, columns, self.out_features, relu)

    def __getstate__(self) -> dict[str, Any]:
        # A copy's weights are elsewhere.
        return {**super().__getstate__(), "_columns": None}

    def _columns_now(self) -> Tensor | None:
        """The inputs of all weights [K], by outputs; None where some outputs have more of them."""
        pattern = self.pattern
        known = self._columns
        if known is None or known[1:] != (pattern._version, pattern.data_ptr()):
            # A copy: checks of a tensor are remembered by its own version.
            columns = self.parts.columns.clone() if has_constant_fan_in(self) else None
            known = columns, pattern._version, pattern.data_ptr()
            self._columns = known
        return known[0]


ALIKE.add(FanInLinear)
