"""The few hot loops, as torch operators: segment reductions, gathers, sparse products."""

from weft.kernels.counter_dropout import dropout, relu_dropout
from weft.kernels.edge_types import typed_messages
from weft.kernels.filter_networks import radial_filters
from weft.kernels.gaussians import gaussian_basis, gaussian_product
from weft.kernels.hidden_layer import hidden_product
from weft.kernels.message_passing import (
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
from weft.kernels.node_loss import node_cross_entropy
from weft.kernels.recurrent import gru
from weft.kernels.softplus import edge_softplus, shifted_softplus

__all__ = [
    "SortedEdges",
    "dropout",
    "edge_softplus",
    "gather_receivers",
    "gather_senders",
    "gaussian_basis",
    "gaussian_product",
    "gru",
    "hidden_product",
    "node_cross_entropy",
    "radial_filters",
    "relu_dropout",
    "segment_max",
    "segment_mean",
    "segment_sum",
    "shifted_softplus",
    "spmm",
    "sum_to_receivers",
    "sum_to_senders",
    "typed_messages",
]
