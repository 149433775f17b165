"""A small call of every public operator, for tests that hold of all of them."""

from __future__ import annotations

import warnings

import numpy as np
import torch

from weft import kernels
from weft.kernels import message_passing, segment_ops
from weft.kernels.attention import attention, attention_part, self_attention
from weft.kernels.block_products import block_products
from weft.kernels.edge_pairs import pair_products, pair_spmm, pair_sums, sorted_pairs
from weft.kernels.edge_softmax import edge_softmax
from weft.kernels.fan_in_linear import fan_in_linear
from weft.kernels.fused_messages import EdgeWalks
from weft.kernels.painn_message import painn_message
from weft.kernels.painn_mixing import invariants, update
from weft.kernels.sparse_input_linear import sparse_input_linear
from weft.kernels.sparse_linear import pattern_of, sparse_linear
from weft.layout import TypedEdges


def calls(batch, dtype=torch.float32):
    """By operator: a function, and the tensors that its result is differentiated in.

    Those registered with torch have their name there; attention, which is not, that of its module.
    """
    generator = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    nodes, edges, pairs = batch.num_nodes, batch.num_edges, tuple(batch.pairs.values())
    views = (batch.receivers, batch.senders, batch.in_offsets, None)
    views = (*views, batch.out_offsets, batch.out_order)
    sorted_views = (batch.senders, batch.receivers, batch.in_offsets, *views[4:])
    x, values, of_pairs = randn(nodes, 6), randn(edges, 6), randn(len(pairs[0]), 6)
    kinds = np.random.default_rng(0).integers(0, 3, edges)
    typed = TypedEdges.of(batch.senders.numpy(), batch.receivers.numpy(), kinds, nodes, 3)
    pattern = pattern_of(torch.tensor([0, 3, 7, 11]), 2, 6)
    columns = torch.tensor([0, 3, 1, 5], dtype=torch.int32)
    walks = EdgeWalks(batch.senders, batch.receivers, nodes, nodes)
    wide, heads = randn(nodes, 2, 3), randn(nodes, 2)
    blocks = torch.randint(2, (2, 3, 2, 3), generator=generator, dtype=torch.int8)
    basis = {"spacing": 0.5, "sharpness": 2.0}
    plain_filters = {**basis, "activate": False}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        sparse = torch.tensor([[0.5, 0, 0, 2, 0, 0], [0, 0, 0, 0, 0, 1]]).to(dtype).to_sparse_csr()

    return {
        "spmm": (lambda x, w: message_passing.spmm(batch, x, w), (x, randn(edges))),
        "gather": (lambda x: message_passing.gather_senders(batch, x), (x,)),
        "segment_sum": (lambda v: message_passing.sum_to_receivers(batch, v), (values,)),
        "segment_max": (lambda v: message_passing.segment_max(v, batch.in_offsets), (values,)),
        "edge_products": (
            lambda a, b: segment_ops.edge_products(a, b, *views, False),
            (x, randn(nodes, 6)),
        ),
        "pair_spmm": (lambda x, w: pair_spmm(x, w, *views, *pairs), (x, of_pairs)),
        "pair_products": (
            lambda a, b: pair_products(a, b, *views, *pairs),
            (x, randn(nodes, 6)),
        ),
        "pair_sums": (lambda v: pair_sums(v, *pairs), (values,)),
        "sorted_pairs": (
            # In another order where there is a loop.
            lambda pos: sorted_pairs(pos, None, *sorted_views[:2], *pairs, 0.5)[0].sort()[0],
            # It has no derivative.
            (randn(nodes, 3).detach(),),
        ),
        "edge_softplus": (
            lambda a, b, c: kernels.edge_softplus(a, b, c, *sorted_views, *pairs),
            (x, randn(nodes, 6), of_pairs),
        ),
        "painn_message": (
            lambda x, mu, w, d: torch.cat(
                [part.flatten(1) for part in painn_message(batch, x, mu, w, d)], 1
            ),
            (x, randn(nodes, 3, 2), of_pairs, randn(edges, 3)),
        ),
        "painn_invariants": (
            lambda mixed, q: torch.cat([t.flatten(1) for t in invariants(mixed, q, 1e-8)], 1),
            (randn(nodes, 3, 4), randn(nodes, 2)),
        ),
        "painn_update": (
            lambda *given: torch.cat([t.flatten(1) for t in update(*given)], 1),
            (heads, randn(nodes, 3, 2), x, randn(nodes, 2), randn(nodes, 3, 2)),
        ),
        "typed_messages": (typed.propagate, (x, randn(3, 6, 4), randn(3, 4))),
        "gru": (
            kernels.gru,
            (x, randn(nodes, 2), randn(6, 6), randn(6, 2), randn(6), randn(6)),
        ),
        "sparse_linear": (
            lambda x, v, b: sparse_linear(x, v, b, pattern, 2, True),
            (x, randn(4), randn(2)),
        ),
        "fan_in_linear": (
            lambda x, v, b: fan_in_linear(x, v, b, columns, 2),
            (x[:3].detach().requires_grad_(), randn(4), randn(2)),
        ),
        "sparse_input_linear": (
            lambda v, b: sparse_input_linear(sparse, v, b, pattern, 2),
            (randn(4), randn(2)),
        ),
        "radial_filters": (
            lambda d, a, b: kernels.radial_filters(d, a, None, b, None, **plain_filters)[0],
            # Distances that learn have no loop.
            (randn(9).detach().abs(), randn(1, 2, 4), randn(1, 2, 2)),
        ),
        "gaussian_product": (
            lambda d, w: kernels.gaussian_product(d, w, **basis),
            (randn(9).detach().abs(), randn(4, 2)),
        ),
        "shifted_softplus": (kernels.shifted_softplus, (x,)),
        "dropout": (lambda x: kernels.relu_dropout(x, 0.5), (x,)),
        "attention": (
            lambda v, a, b: attention(walks, v, sender_scores=a, receiver_scores=b, slope=0.2),
            (wide, heads, randn(nodes, 2)),
        ),
        "attention_part": (
            lambda v, k, q: attention_part(walks, v, keys=k, queries=q)[0],
            (wide, randn(nodes, 2, 3), randn(nodes, 2, 3)),
        ),
        "self_attention": (
            lambda v, a, b: self_attention(walks, v, a, b),
            (wide, randn(2, 3), randn(2, 3)),
        ),
        "edge_softmax": (lambda scores: edge_softmax(scores, walks), (randn(edges, 2),)),
        "block_products": (lambda x: block_products(x, blocks, None, None, False), (randn(6, 4),)),
    }
