import math

import pytest
import torch
from torch.nn import functional

from weft.kernels import edge_softplus


def softplus(x):
    return functional.softplus(x, threshold=100) - math.log(2)


def test_edge_softplus_of_edges_and_of_pairs(molecules):
    batch = molecules(torch.float64)
    topology = (batch.senders, batch.receivers, batch.in_offsets, batch.out_offsets)
    topology += (batch.out_order,)
    nodes, edges = batch.num_nodes, batch.num_edges
    of_edge = batch.pairs["of_edge"].long()
    for pairs in ((None, None, None), tuple(batch.pairs.values())):
        rows = edges if pairs[0] is None else len(pairs[0])
        given = [
            torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (nodes, nodes, rows)
        ]

        def plain(a, b, c, rows=rows):
            own = c if rows == edges else c[of_edge]
            return softplus(a[batch.senders.long()] + b[batch.receivers.long()] + own)

        def fast(a, b, c, pairs=pairs):
            return edge_softplus(a, b, c, *topology, *pairs)

        torch.testing.assert_close(fast(*given), plain(*given))
        grad = torch.randn(edges, 3, dtype=torch.float64)
        for one, other in zip(
            torch.autograd.grad(fast(*given), given, grad),
            torch.autograd.grad(plain(*given), given, grad),
            strict=True,
        ):
            torch.testing.assert_close(one, other)
    forward, backward, of_edge = batch.pairs.values()
    for pairs in ((forward, backward, of_edge[:-1]), (forward, backward[:-1], of_edge)):
        with pytest.raises(ValueError, match="every edge has a pair, and every pair two edges"):
            edge_softplus(*given, *topology, *pairs)
    with pytest.raises(ValueError, match="pairs are given whole or not at all"):
        edge_softplus(*given, *topology, forward, backward, None)
    with pytest.raises(ValueError, match="edges must have two ends"):
        edge_softplus(*given, topology[0], topology[1][:-1], *topology[2:], *batch.pairs.values())
    with pytest.raises(ValueError, match="one row per node"):
        edge_softplus(given[0], given[1], given[2][:-1], *topology, *tuple(batch.pairs.values()))
