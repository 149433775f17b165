"""The few hot loops, as torch operators: segment reductions, gathers, sparse products."""

from weft.kernels.counter_dropout import dropout, relu_dropout
from weft.kernels.functions import (
    SortedEdges,
    gather_receivers,
    gather_senders,
    segment_max,
    segment_mean,
    segment_sum,
    spmm,
    sum_to_receivers,
    sum_to_senders,
)

__all__ = [
    "SortedEdges",
    "dropout",
    "gather_receivers",
    "gather_senders",
    "relu_dropout",
    "segment_max",
    "segment_mean",
    "segment_sum",
    "spmm",
    "sum_to_receivers",
    "sum_to_senders",
]
