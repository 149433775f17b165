"""The few hot loops, as torch operators: segment reductions, gathers, sparse products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import lazy_names

if TYPE_CHECKING:
    from weft.kernels.counter_dropout import dropout as dropout
    from weft.kernels.counter_dropout import relu_dropout as relu_dropout
    from weft.kernels.edge_states import edge_softplus as edge_softplus
    from weft.kernels.filters import radial_filters as radial_filters
    from weft.kernels.functions import SortedEdges as SortedEdges
    from weft.kernels.functions import gather_receivers as gather_receivers
    from weft.kernels.functions import gather_senders as gather_senders
    from weft.kernels.functions import segment_max as segment_max
    from weft.kernels.functions import segment_mean as segment_mean
    from weft.kernels.functions import segment_sum as segment_sum
    from weft.kernels.functions import spmm as spmm
    from weft.kernels.functions import sum_to_receivers as sum_to_receivers
    from weft.kernels.functions import sum_to_senders as sum_to_senders
    from weft.kernels.gaussians import gaussian_basis as gaussian_basis
    from weft.kernels.gaussians import gaussian_product as gaussian_product
    from weft.kernels.recurrent import gru as gru
    from weft.kernels.softplus import shifted_softplus as shifted_softplus
    from weft.kernels.typed import typed_messages as typed_messages
else:
    __all__ = lazy_names(__name__)
