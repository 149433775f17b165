"""Triton kernels in triton's interpreter: what they compute is what the compiled loops compute."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.kernels import message_passing as mp
from weft.kernels.attention import attention
from weft.kernels.backends import use_backend
from weft.kernels.edge_softmax import edge_softmax
from weft.kernels.fused_messages import EdgeWalks
from weft.kernels.triton.cases import SEGMENT_CASES, all_cases, sample_edges
from weft.kernels.triton.cases_attention import ATTENTION_CASES, _even_layer, _layer
from weft.kernels.triton.checks import compare

KINDS = ("random", "no edges", "no nodes", "hub", "one huge row", "padded")


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**16),
    width=st.sampled_from([1, 2, 31, 64, 130]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    index=st.sampled_from([torch.int32, torch.int64]),
)
@settings(max_examples=4)
def test_a_kernel_computes_what_the_loop_computes(case, kind, seed, width, dtype, index):
    found = compare(case, sample_edges(kind, seed, index), width, dtype, seed=seed)
    assert found.error <= found.bound


@pytest.mark.parametrize("case", all_cases(), ids=lambda case: case.name)
def test_a_kernel_moves_few_more_bytes_than_it_must(case):
    found = compare(case, sample_edges("typical"), 128)
    assert found.right
    assert found.traffic
    for traffic in found.traffic:
        assert traffic.bytes <= 1.3 * traffic.launch.least, traffic.launch


@pytest.mark.parametrize("width", [1, 1000])
def test_rows_wider_than_a_program_are_cut(width):
    for case in SEGMENT_CASES:
        found = compare(case, sample_edges("random"), width)
        assert found.right, case.name


@pytest.mark.parametrize("case", ATTENTION_CASES, ids=lambda case: case.name)
def test_graphs_that_are_empty_and_rows_of_one_or_1000(case):
    for kind, width in (("no edges", 3), ("no nodes", 3), ("random", 1), ("random", 1000)):
        found = compare(case, sample_edges(kind), width)
        assert found.right, (kind, width)


@pytest.mark.parametrize(
    "case", [c for c in ATTENTION_CASES if c.make in (_layer, _even_layer)], ids=lambda c: c.name
)
def test_sparse_layers_of_no_samples_give_no_rows_and_no_gradient(case):
    assert compare(case, sample_edges("random"), 0).right


def test_attention_in_float64_and_twice():
    edges = sample_edges("random")
    walks = EdgeWalks(edges.senders, edges.receivers, edges.num_nodes, edges.num_nodes)
    given = [torch.randn(edges.num_nodes, 1, 2, dtype=torch.float64) for _ in range(3)]

    def weighted(values, keys, queries):
        with use_backend("triton"):
            return attention(walks, values, keys=keys, queries=queries, slope=0.2, scale=0.7)

    exact = attention(walks, given[0], keys=given[1], queries=given[2], slope=0.2, scale=0.7)
    torch.testing.assert_close(weighted(*given), exact, rtol=0, atol=1e-14)
    # The gradient of a gradient, by the plain form that the kernels stand for.
    leaves = [t.requires_grad_() for t in given]
    found = [
        torch.autograd.grad(
            [
                g.square().sum()
                for g in torch.autograd.grad(form(), leaves, exact, create_graph=True)
            ],
            leaves,
        )
        for form in (
            lambda: weighted(*leaves),
            lambda: attention(
                walks, leaves[0], keys=leaves[1], queries=leaves[2], slope=0.2, scale=0.7
            ),
        )
    ]
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-12)


def test_scores_that_are_not_finite_are_as_in_the_loop():
    walks = EdgeWalks(torch.tensor([0, 1, 0, 1, 2]), torch.tensor([0, 0, 1, 2, 2]), 3, 4)
    values, scores = torch.ones(3, 1, 2), torch.tensor([[-torch.inf], [0.0], [torch.nan]])
    found = []
    for backend in ("cpu", "triton", "plain"):
        with use_backend(backend):
            out = attention(walks, values, sender_scores=scores)[:, 0, 0]
            found.append(torch.cat([out, edge_softmax(scores[walks.senders], walks)[:, 0]]))
    torch.testing.assert_close(found[1], found[0], equal_nan=True)
    torch.testing.assert_close(found[2], found[0], equal_nan=True)


def test_float64_is_summed_in_float64():
    edges = sample_edges("random")
    x = torch.randn(edges.num_nodes, 1, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(edges.num_edges, dtype=torch.float64, requires_grad=True)

    def product(x, weight):
        with use_backend("triton"):
            return mp.spmm(edges, x, weight)

    torch.testing.assert_close(product(x, weight), mp.spmm(edges, x, weight), rtol=0, atol=1e-14)
    with use_backend("triton"):
        assert torch.autograd.gradcheck(product, (x, weight), fast_mode=True)
