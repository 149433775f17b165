"""Fused messages against plain torch, in float64: values and gradients over random graphs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.kernels.edge_softmax import edge_softmax
from weft.kernels.fused_messages import EdgeWalks, SortedRows, _Job, fused_messages
from weft.kernels.message_code import OPERATIONS, Leaf, MessageProgram

A, B, C = (("leaf", k) for k in range(3))
RECEIVER, SENDER, EDGE, ONE = (Leaf(place, False) for place in "ijev")
PROGRAMS = {
    "relu of a sum": MessageProgram(("relu", ("add", ("add", A, B), C)), (RECEIVER, SENDER, EDGE)),
    "weights by head": MessageProgram(("mul", A, B), (Leaf("e", True), SENDER)),
    "receivers by head": MessageProgram(("mul", ("sigmoid", A), B), (Leaf("i", True), SENDER)),
    "one row for all": MessageProgram(("mul", ("add", A, B), C), (RECEIVER, SENDER, ONE)),
    "all reductions": MessageProgram(
        ("mul", ("tanh", ("add", A, B)), C),
        (RECEIVER, SENDER, SENDER),
        ("sum", "squares", "max", "min"),
    ),
    "messages themselves": MessageProgram(("sub", A, ("exp", B)), (SENDER, EDGE), ()),
    "scores": MessageProgram(
        ("mul", ("leaky_relu", ("add", A, B), ("const", 0)), C), (RECEIVER, SENDER, ONE), (), True
    ),
}


@st.composite
def graphs(draw):
    senders, receivers = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    ends = st.tuples(st.integers(0, senders - 1), st.integers(0, receivers - 1))
    edges = draw(st.lists(ends, min_size=0, max_size=25))
    if draw(st.booleans()):
        edges.sort(key=lambda edge: edge[1])
    table = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2)
    return EdgeWalks(table[:, 0], table[:, 1], senders, receivers)


def leaves_of(program, edges, *, heads=2, channels=3, whole=False):
    rows = {"i": edges.num_receivers, "j": edges.num_senders, "e": edges.num_edges, "v": 1}
    found = []
    for leaf in program.leaves:
        shape = (rows[leaf.place], heads, 1 if leaf.by_head else channels)
        values = torch.randn(shape, dtype=torch.float64)
        # Whole numbers are equal often: the gradient of a maximum is shared then.
        found.append((values.round() if whole else values).requires_grad_())
    return found


def compare(program, edges, leaves, consts=()):
    heads, channels = leaves[0].shape[1], max(leaf.shape[2] for leaf in leaves)
    found = fused_messages(program, edges, leaves, consts)
    job = _Job(program=program, edges=edges, consts=consts, heads=heads, channels=channels)
    expected = job.plain(*leaves)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    weights = [torch.randn_like(value) for value in expected]
    gradients = [torch.autograd.grad(values, leaves, weights) for values in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=15)
@given(edges=graphs(), seed=st.integers(0, 2**31), whole=st.booleans())
def test_values_and_gradients_are_plain_torchs(name, edges, seed, whole):
    torch.manual_seed(seed)
    program = PROGRAMS[name]
    compare(program, edges, leaves_of(program, edges, whole=whole), (0.2,))


def test_every_operation():
    """All at once: each program is compiled."""
    edges = EdgeWalks(torch.tensor([0, 1, 1, 2]), torch.tensor([1, 0, 1, 1]), 3, 2)
    # Away from where a function has no derivative or no value.
    above, below = ("add", ("abs", A), ("const", 1)), ("sub", B, ("const", 1))
    parts = []
    for name, operation in OPERATIONS.items():
        first = above if name == "sqrt" else below
        numbers = ("const", 0), ("const", 1)
        second = {"leaky_relu": numbers[0], "elu": numbers[0], "div": above}.get(name, A)
        rest = numbers if name == "softplus" else (second,)
        parts.append((name, *(first, *rest)[: len(operation.gradients)]))
    program = MessageProgram(summed(parts), (RECEIVER, SENDER))
    compare(program, edges, leaves_of(program, edges), (0.3, 0.7))


def summed(parts):
    total = parts[0]
    for part in parts[1:]:
        total = ("add", total, part)
    return total


def test_constant_rows_of_edges_in_the_order_of_the_walks():
    torch.manual_seed(0)
    edges = EdgeWalks(torch.randint(0, 9, (40,)), torch.randint(0, 9, (40,)), 9, 9)
    plain = PROGRAMS["weights by head"]
    weights, x = leaves_of(plain, edges)
    weights = weights.detach()
    ordered = MessageProgram(plain.expression, (Leaf("e", True, sorted=True), SENDER))
    rows = {0: SortedRows(weights.numpy(), edges)}
    found = fused_messages(ordered, edges, [weights, x], (), rows)
    expected = fused_messages(plain, edges, [weights, x], ())
    gradients = [torch.autograd.grad(out[0].square().sum(), [x]) for out in (found, expected)]
    torch.testing.assert_close((found, gradients[0]), (expected, gradients[1]), rtol=0, atol=1e-13)


def test_single_precision_is_close():
    torch.manual_seed(0)
    edges = EdgeWalks(torch.randint(0, 9, (40,)), torch.randint(0, 9, (40,)), 9, 9)
    names = ("sigmoid", "tanh", "silu")
    both = ("add", A, B)
    program = MessageProgram(
        ("sub", summed([(name, both) for name in names]), ("exp", ("neg", ("abs", both)))),
        (RECEIVER, SENDER),
    )
    double = [leaf.detach() * 3 for leaf in leaves_of(program, edges, channels=17)]
    single = [leaf.float() for leaf in double]
    found = fused_messages(program, edges, single, ())[0].double()
    expected = fused_messages(program, edges, double, ())[0]
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=2e-5)


@pytest.mark.parametrize("ends", [([0, 3], [0, 0]), ([0, 1], [-1, 0]), ([0, 1], [0, 2])])
def test_an_edge_to_a_node_that_is_not_there(ends):
    edges = EdgeWalks(*map(torch.tensor, ends), 3, 2)
    program = PROGRAMS["weights by head"]
    with pytest.raises(ValueError, match=r"the index at position \d is -?\d; there are"):
        fused_messages(program, edges, leaves_of(program, edges), ())


def test_derivatives_of_derivatives():
    torch.manual_seed(0)
    edges = EdgeWalks(torch.tensor([0, 1, 2, 2]), torch.tensor([1, 1, 0, 2]), 3, 4)
    program = MessageProgram(("mul", ("sigmoid", ("add", A, B)), C), (RECEIVER, SENDER, EDGE))
    leaves = leaves_of(program, edges)

    def function(*inputs):
        return fused_messages(program, edges, inputs, ())[0]

    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


@settings(max_examples=25)
@given(edges=graphs(), seed=st.integers(0, 2**31))
def test_softmax_is_torch_geometrics(edges, seed):
    utils = pytest.importorskip("torch_geometric.utils")
    torch.manual_seed(seed)
    scores = torch.randn(edges.num_edges, 3, dtype=torch.float64, requires_grad=True)
    found = edge_softmax(scores, edges)
    expected = utils.softmax(scores, edges.receivers, num_nodes=edges.num_receivers)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    weight = torch.randn_like(scores)
    gradients = [torch.autograd.grad(each, scores, weight)[0] for each in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-13)


def test_softmax_has_second_derivatives():
    edges = EdgeWalks(torch.tensor([0, 1, 2, 2]), torch.tensor([1, 1, 0, 1]), 3, 4)
    scores = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda s: edge_softmax(s, edges), (scores,))
