"""The forms of the operators off the CPU: no sum of theirs depends on the order of atomics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from weft.kernels import edge_softplus, message_passing, segment_ops
from weft.kernels.attention import attention
from weft.kernels.edge_pairs import pair_products, pair_spmm
from weft.kernels.edge_softmax import edge_softmax
from weft.kernels.fused_messages import EdgeWalks
from weft.kernels.painn_message import painn_message
from weft.kernels.sparse_linear import pattern_of, sparse_linear
from weft.layout import TypedEdges

# bfloat16 has no compiled loop, so it goes the way of a tensor on a GPU.
DTYPE = torch.bfloat16
# On a GPU these add with atomics, in an order that changes from run to run.
ATOMIC = ("index_add", "index_reduce", "scatter_add", "put_", "bincount", "histc")
EXACT = ("amax", "amin")


class Recorder(TorchDispatchMode):
    """Notes each operator that adds with atomics on a GPU."""

    def __init__(self):
        super().__init__()
        self.calls = 0
        self.atomic = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.calls += 1
        if name.startswith(("index_put", "_index_put", "_unsafe_index_put")):
            accumulate = (*args, *(kwargs or {}).values())[3:4]
            if accumulate and accumulate[0]:
                self.atomic.append(f"{name}(accumulate)")
        elif name.startswith("scatter_reduce"):
            if not any(kind in args for kind in EXACT):
                self.atomic.append(name)
        elif any(part in name for part in ATOMIC):
            self.atomic.append(name)
        return func(*args, **(kwargs or {}))


def randn(*shape):
    return torch.randn(*shape, dtype=DTYPE, requires_grad=True)


def cases(batch):
    """By name: a function, and the tensors that its result is differentiated in."""
    nodes, edges, pairs = batch.num_nodes, batch.num_edges, tuple(batch.pairs.values())
    views = (batch.receivers, batch.senders, batch.in_offsets, None)
    views = (*views, batch.out_offsets, batch.out_order)
    sorted_views = (batch.senders, batch.receivers, batch.in_offsets, *views[4:])
    x, values, of_pairs = randn(nodes, 6), randn(edges, 6), randn(len(pairs[0]), 6)
    rng = np.random.default_rng(0)
    typed = TypedEdges.of(
        batch.senders.numpy(), batch.receivers.numpy(), rng.integers(0, 3, edges), nodes, 3
    )
    pattern = pattern_of(torch.tensor([0, 3, 7, 11]), 2, 6)
    yield "spmm", lambda x, w: message_passing.spmm(batch, x, w), (x, randn(edges))
    yield "spmm by feature", lambda x, w: message_passing.spmm(batch, x, w), (x, values)
    yield "gather_senders", lambda x: message_passing.gather_senders(batch, x), (x,)
    yield "gather_receivers", lambda x: message_passing.gather_receivers(batch, x), (x,)
    yield "sum_to_senders", lambda v: message_passing.sum_to_senders(batch, v), (values,)
    yield "sum_to_receivers", lambda v: message_passing.sum_to_receivers(batch, v), (values,)
    for name in ("segment_sum", "segment_mean", "segment_max"):
        yield name, lambda v, n=name: getattr(message_passing, n)(v, batch.in_offsets), (values,)
    yield (
        "edge_products",
        lambda a, b: segment_ops.edge_products(a, b, *views, False),
        (x, randn(nodes, 6)),
    )
    yield "pair_spmm", lambda x, w: pair_spmm(x, w, *views, *pairs), (x, of_pairs)
    yield "pair_products", lambda a, b: pair_products(a, b, *views, *pairs), (x, randn(nodes, 6))
    yield (
        "edge_softplus",
        lambda a, b, c: edge_softplus(a, b, c, *sorted_views, *pairs),
        (x, randn(nodes, 6), of_pairs),
    )
    yield (
        "painn_message",
        lambda x, mu, w, d: sum(part.sum() for part in painn_message(batch, x, mu, w, d)),
        (x, randn(nodes, 3, 2), of_pairs, randn(edges, 3)),
    )
    yield "typed_messages", typed.propagate, (x, randn(3, 6, 4), randn(3, 4))
    yield (
        "sparse_linear",
        lambda x, v, b: sparse_linear(x, v, b, pattern, 2),
        (x, randn(4), randn(2)),
    )
    walks = EdgeWalks(batch.senders, batch.receivers, nodes, nodes)
    yield (
        "attention",
        lambda v, k, q: attention(walks, v, keys=k, queries=q),
        (randn(nodes, 2, 3), randn(nodes, 2, 3), randn(nodes, 2, 3)),
    )
    yield "edge_softmax", lambda scores: edge_softmax(scores, walks), (randn(edges, 2),)


NAMES = [
    "spmm", "spmm by feature", "gather_senders", "gather_receivers", "sum_to_senders",
    "sum_to_receivers", "segment_sum", "segment_mean", "segment_max", "edge_products", "pair_spmm",
    "pair_products", "edge_softplus", "painn_message", "typed_messages", "sparse_linear",
    "attention", "edge_softmax",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_no_sum_depends_on_the_order_of_atomics(molecules, name):
    batch = molecules(torch.float32)
    found = {case[0]: case[1:] for case in cases(batch)}
    assert list(found) == NAMES
    function, inputs = found[name]
    with Recorder() as recorder:
        out = function(*inputs)
        first = torch.autograd.grad(out.sin().sum(), inputs, create_graph=True)
    assert recorder.calls
    assert recorder.atomic == []
    # A loss of forces differentiates once more. The places that a sparse layer's weights have are
    # all different, so that nothing is added up there.
    if name != "sparse_linear":
        with Recorder() as recorder:
            torch.autograd.grad(sum(g.sin().sum() for g in first if g.requires_grad), inputs)
        assert recorder.calls
        assert recorder.atomic == []


def test_whole_numbers_are_summed_without_atomics():
    values = torch.randint(-(2**62), 2**62, (50, 3))
    offsets = torch.tensor([0, 0, 7, 7, 30, 50])
    for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8):
        given = values.to(dtype)
        with Recorder() as recorder:
            found = message_passing.segment_sum(given, offsets)
        assert recorder.calls
        assert recorder.atomic == []
        # Sums that overflow wrap, as those of torch do.
        rows = torch.arange(5).repeat_interleave(offsets.diff())
        assert torch.equal(found, torch.zeros(5, 3, dtype=dtype).index_add(0, rows, given))


def test_typed_messages_have_the_gradients_of_the_compiled_loops(molecules):
    batch = molecules(torch.float32)
    (typed,) = (case[1].__self__ for case in cases(batch) if case[0] == "typed_messages")
    given = [torch.randn(*s) for s in ((batch.num_nodes, 6), (3, 6, 4), (3, 4))]
    results = []
    for dtype in (torch.float32, DTYPE):
        inputs = [t.to(dtype).requires_grad_() for t in given]
        results.append(torch.autograd.grad(typed.propagate(*inputs).sum(), inputs))
    for loop, plain in zip(*results, strict=True):
        torch.testing.assert_close(plain.float(), loop, rtol=0.05, atol=0.2)
