"""A sparse linear layer whose outputs have as many inputs each: fast for a few samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.kernels.custom_op import has_loop
from weft.kernels.fan_in_linear import MOST_SAMPLES, FanInRows, fan_in_linear
from weft.sparsify.sparse_layers import SparseLinear


def has_constant_fan_in(layer: SparseLinear) -> bool:
    """Whether every output of a layer has as many inputs."""
    counts = layer.parts.offsets.diff()
    return counts.numel() > 0 and bool((counts == counts[0]).all())


class FanInLinear(SparseLinear):
    """A `SparseLinear` with a constant fan-in; `convert` makes it.

    Up to 16 samples, as in online inference and training, go through a loop of their own; more of
    them, and inputs that are sparse, as in any `SparseLinear`; so does a layer whose weights have
    been moved to another number of inputs here and there.
    """

    # The columns int32 [K] of a pattern, None where their numbers differ; its version and address.
    _columns: tuple[Tensor | None, int, int] | None = None
    # The layer for passes without gradients, and what it was made of.
    _ready: tuple[FanInRows, Any] | None = None

    def _output(self, x: Tensor, relu: bool) -> Tensor:
        if not (torch.is_grad_enabled() or torch.compiler.is_compiling()):
            rows = self._rows()
            out = None if rows is None else rows(x, relu)
            if out is not None:
                return out
        few = x.layout == torch.strided and x.ndim == 2 and x.shape[0] <= MOST_SAMPLES
        right = few and x.shape[1] == self.in_features and self.out_features > 0
        columns = self._columns_now() if right and not self.want_dense_gradient else None
        if columns is None or torch.compiler.is_exporting():
            return super()._output(x, relu)
        return fan_in_linear(x, self.values, self.bias, columns, self.out_features, relu)

    def _rows(self) -> FanInRows | None:
        """The layer made ready; None where it has no constant fan-in, or is elsewhere."""
        values, bias, pattern = self.values, self.bias, self.pattern
        made_of = (
            values.data_ptr(),
            bias if bias is None else bias.data_ptr(),
            pattern._version,
            pattern.data_ptr(),
            values.dtype,
        )
        if self._ready is None or self._ready[1] != made_of:
            columns = self._columns_now() if has_loop(values, bias) else None
            if columns is None or not values.is_contiguous() or self.out_features == 0:
                return None
            sizes = self.out_features, self.in_features
            self._ready = FanInRows(values, bias, columns, *sizes), made_of
        return self._ready[0]

    def __getstate__(self) -> dict[str, Any]:
        # A copy's weights are elsewhere.
        return {**self.__dict__, "_ready": None, "_columns": None}

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
