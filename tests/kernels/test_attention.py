"""Attention against torch's softmax of each receiver's edges, in float64."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import leaky_relu

from weft.kernels import attention as module
from weft.kernels.attention import Dropout, attention, attention_part, self_attention
from weft.kernels.fused_messages import EdgeWalks

HEADS, CHANNELS, SLOPE, SCALE = 2, 3, 0.2, 0.7
KINDS = {
    "additive": ("sender_scores", "receiver_scores"),
    "of senders": ("sender_scores",),
    "dot": ("keys", "queries"),
    "joint": ("queries", "vector"),
}


@st.composite
def graphs(draw):
    senders, receivers = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    ends = st.tuples(st.integers(0, senders - 1), st.integers(0, receivers - 1))
    # More edges of a receiver than the loops score at a time.
    edges = draw(st.lists(ends, max_size=20)) * draw(st.sampled_from([1, 1, 40]))
    if draw(st.booleans()):
        edges.sort(key=lambda edge: edge[1])
    table = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2)
    return EdgeWalks(table[:, 0], table[:, 1], senders, receivers)


def inputs_of(kind, edges, dtype=torch.float64):
    wide, senders, receivers = (HEADS, CHANNELS), edges.num_senders, edges.num_receivers
    shapes = {
        "values": (senders, *wide),
        "sender_scores": (senders, HEADS),
        "receiver_scores": (receivers, HEADS),
        "keys": (senders, *wide),
        "queries": (receivers, *wide),
        "vector": wide,
    }
    names = ("values", *KINDS[kind])
    return {name: torch.randn(shapes[name], dtype=dtype, requires_grad=True) for name in names}


def dropout_of(edges):
    return Dropout(kept=torch.rand(edges.num_edges, HEADS) > 0.4, p=0.4)


def expected(edges, dropout, values, **inputs):
    """Receiver by receiver."""
    rows = []
    for receiver in range(edges.num_receivers):
        mine = (edges.receivers == receiver).nonzero()[:, 0]
        senders = edges.senders[mine]
        if "vector" in inputs:
            joint = leaky_relu(values[senders] + inputs["queries"][receiver], SLOPE)
            scores = (joint * inputs["vector"]).sum(-1)
        elif "keys" in inputs:
            products = inputs["keys"][senders] * inputs["queries"][receiver]
            scores = leaky_relu(SCALE * products.sum(-1), SLOPE)
        else:
            scores = inputs["sender_scores"][senders]
            if "receiver_scores" in inputs:
                scores = scores + inputs["receiver_scores"][receiver]
            scores = leaky_relu(scores, SLOPE)
        weights = torch.softmax(scores, 0)
        if dropout is not None:
            weights = weights * dropout.kept[mine] / (1 - dropout.p)
        rows.append((weights[..., None] * values[senders]).sum(0))
    return torch.stack(rows)


def compare(edges, dropout, inputs):
    found = attention(edges, **inputs, slope=SLOPE, scale=SCALE, dropout=dropout)
    right = expected(edges, dropout, **inputs)
    torch.testing.assert_close(found, right, rtol=1e-11, atol=1e-11)
    weights = torch.randn_like(found)
    given = list(inputs.values())
    found = torch.autograd.grad(found, given, weights, allow_unused=True, materialize_grads=True)
    right = torch.autograd.grad(right, given, weights, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(
    edges=graphs(), seed=st.integers(0, 2**31), drops=st.booleans(), far=st.sampled_from([1, 30])
)
def test_outputs_and_gradients_are_torchs(kind, edges, seed, drops, far):
    torch.manual_seed(seed)
    inputs = inputs_of(kind, edges)
    with torch.no_grad():
        # Scores far apart: some weights vanish.
        inputs[KINDS[kind][-1]] *= far
    compare(edges, dropout_of(edges) if drops else None, inputs)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(edges=graphs(), seed=st.integers(0, 2**31), loops=st.booleans())
def test_parts_of_the_edges_are_joined_by_their_log_sums(kind, edges, seed, loops):
    torch.manual_seed(seed)
    inputs = inputs_of(kind, edges)
    first = torch.rand(edges.num_edges) < 0.5
    sizes = edges.num_senders, edges.num_receivers
    outs, sums = [], []
    with pytest.MonkeyPatch.context() as patch:
        if not loops:
            patch.setattr(module, "have_one_loop", lambda *given: False)
        for part in (first, ~first):
            half = EdgeWalks(edges.senders[part], edges.receivers[part], *sizes)
            found = attention_part(half, **inputs, slope=SLOPE, scale=SCALE)
            outs.append(found[0])
            sums.append(found[1])
    log_sums = torch.stack(sums)
    empty = torch.bincount(edges.receivers, minlength=sizes[1]) == 0
    assert torch.equal(log_sums.amax(0).isneginf().all(1), empty)
    shares = log_sums.softmax(0).nan_to_num(0)
    found = (torch.stack(outs) * shares[..., None]).sum(0)
    right = expected(edges, None, **inputs)
    torch.testing.assert_close(found, right, rtol=1e-11, atol=1e-11)
    given = list(inputs.values())
    # A receiver without edges has shares of 0 / 0.
    weights = torch.randn_like(found) * ~empty[:, None, None]
    log_sums.register_hook(lambda grad: grad.nan_to_num(0))
    options = {"allow_unused": True, "materialize_grads": True}
    grads = [torch.autograd.grad(out, given, weights, **options) for out in (found, right)]
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)


@settings(max_examples=15)
@given(edges=graphs(), seed=st.integers(0, 2**31), drops=st.booleans())
def test_scores_made_of_the_values(edges, seed, drops):
    torch.manual_seed(seed)
    nodes = max(edges.num_senders, edges.num_receivers)
    edges = EdgeWalks(edges.senders, edges.receivers, nodes, nodes)
    dropout = dropout_of(edges) if drops else None
    shapes = (nodes, HEADS, CHANNELS), (HEADS, CHANNELS), (HEADS, CHANNELS)
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    found = self_attention(edges, *given, slope=SLOPE, dropout=dropout)
    values, *vectors = given
    scores = {
        name: (values * vector).sum(-1)
        for name, vector in zip(KINDS["additive"], vectors, strict=True)
    }
    right = expected(edges, dropout, values, **scores)
    torch.testing.assert_close(found, right, rtol=1e-11, atol=1e-11)
    grads = [torch.autograd.grad(out.sin().sum(), given) for out in (found, right)]
    torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)


def test_derivatives_of_derivatives_of_scores_made_of_the_values():
    torch.manual_seed(0)
    edges = EdgeWalks(torch.tensor([0, 1, 2, 2]), torch.tensor([1, 1, 0, 2]), 4, 4)
    shapes = (4, HEADS, CHANNELS), (HEADS, CHANNELS), (HEADS, CHANNELS)
    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    function = partial(self_attention, edges, slope=SLOPE)
    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)


@pytest.mark.parametrize("kind", ["additive", "dot", "joint"])
def test_derivatives_of_derivatives(kind):
    torch.manual_seed(0)
    edges = EdgeWalks(torch.tensor([0, 1, 2, 2]), torch.tensor([1, 1, 0, 2]), 3, 4)
    inputs, dropout = inputs_of(kind, edges), dropout_of(edges)

    def function(*tensors):
        given = dict(zip(inputs, tensors, strict=True))
        return attention(edges, **given, slope=SLOPE, dropout=dropout)

    assert torch.autograd.gradcheck(function, tuple(inputs.values()))
    assert torch.autograd.gradgradcheck(function, tuple(inputs.values()))


@pytest.mark.parametrize("kind", KINDS)
def test_single_precision_and_threads(kind, monkeypatch):
    """Close to double precision, and the same bits on any number of threads."""
    torch.manual_seed(0)
    edges = EdgeWalks(torch.randint(0, 900, (9000,)), torch.randint(0, 900, (9000,)), 900, 900)
    single = inputs_of(kind, edges, torch.float32)
    double = {name: each.detach().double().requires_grad_() for name, each in single.items()}
    results = []
    for inputs, threads in ((double, 1), (single, 1), (single, 3)):
        monkeypatch.setattr("weft.runtime.threads_for", lambda _, count=threads: count)
        out = attention(edges, **inputs, slope=SLOPE)
        results.append([out, *torch.autograd.grad(out.sin().sum(), list(inputs.values()))])
    exact, one, three = results
    torch.testing.assert_close(one, [each.float() for each in exact], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(three, one, rtol=0, atol=0)


def test_scores_that_are_not_finite():
    edges = EdgeWalks(torch.tensor([0, 1, 0, 1, 2]), torch.tensor([0, 0, 1, 2, 2]), 3, 4)
    values = torch.ones(3, 1, 2)
    scores = torch.tensor([[-torch.inf], [0.0], [torch.nan]])
    out = attention(edges, values, sender_scores=scores)[:, 0, 0]
    # A weight of 0; no weight at all; not a number; no edges.
    torch.testing.assert_close(out, torch.tensor([1, torch.nan, torch.nan, 0]), equal_nan=True)


def test_nothing_with_a_row_for_every_edge_is_saved():
    edges = EdgeWalks(torch.randint(0, 9, (500,)), torch.randint(0, 9, (500,)), 9, 9)
    saved = []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        attention(edges, **inputs_of("dot", edges))
    assert max(tensor.shape[0] for tensor in saved) == 9


WRONG = {
    "one kind": {"sender_scores": torch.zeros(3, 2), "vector": torch.zeros(2, 3)},
    "the shape": {"sender_scores": torch.zeros(4, 2)},
    "one dtype": {"sender_scores": torch.zeros(3, 2, dtype=torch.float64)},
    "bool": {
        "sender_scores": torch.zeros(3, 2),
        "dropout": Dropout(kept=torch.ones(2, 1, dtype=torch.bool), p=0.5),
    },
    "p = 1.0": {
        "sender_scores": torch.zeros(3, 2),
        "dropout": Dropout(kept=torch.ones(2, 2, dtype=torch.bool), p=1.0),
    },
}


@pytest.mark.parametrize("message", WRONG)
def test_what_the_loops_do_not_take(message):
    edges = EdgeWalks(torch.tensor([0, 1]), torch.tensor([1, 0]), 3, 2)
    with pytest.raises(ValueError, match=message):
        attention(edges, torch.zeros(3, 2, 3), **WRONG[message])
    with pytest.raises(ValueError, match="vectors"):
        self_attention(edges, torch.zeros(3, 2, 3), torch.zeros(2, 3), torch.zeros(2, 2))
    with pytest.raises(ValueError, match="the shape"):
        # The same number of senders and receivers is needed.
        self_attention(edges, torch.zeros(3, 2, 3), torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=f"1 to {module.MOST_FEATURES} features"):
        attention(edges, torch.zeros(3, 2, 600), sender_scores=torch.zeros(3, 2))
