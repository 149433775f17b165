"""Triton kernels of models of atoms: derivatives to train with forces, and what tracers see."""

from __future__ import annotations

import pytest
import torch

from weft.kernels import gaussians
from weft.kernels.backends import use_backend
from weft.kernels.triton.cases import SampleEdges
from weft.kernels.triton.cases_atoms import ATOM_CASES, pairs_of
from weft.kernels.triton.launch import recording


def few_edges() -> SampleEdges:
    """Four edges between two nodes: a pair, and two that are alone."""
    return SampleEdges(
        num_nodes=2,
        senders=torch.tensor([1, 0, 0, 1]),
        receivers=torch.tensor([0, 1, 1, 1]),
        in_offsets=torch.tensor([0, 1, 4]),
        out_offsets=torch.tensor([0, 2, 4]),
        out_order=torch.tensor([1, 2, 0, 3]),
    )


def test_edges_are_paired_with_their_reverse():
    forward, backward, of_edge = pairs_of(few_edges())
    assert forward.tolist() == [0, 2, 3]
    assert backward.tolist() == [1, 2, 3]
    assert of_edge.tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("case", ATOM_CASES, ids=lambda case: case.name)
def test_second_derivatives(case):
    edges = few_edges()
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)

    given = case.make(edges, 2, normal)
    leaves = tuple(t.detach().requires_grad_() for t in given)
    launches = []
    with use_backend("triton"), recording(launches.append):
        assert torch.autograd.gradgradcheck(
            lambda *t: case.run(edges, *t), leaves, fast_mode=True, check_undefined_grad=False
        )
    assert launches


def test_torch_checks_the_gaussians():
    d = torch.rand(5, dtype=torch.float64, requires_grad=True)
    fade = torch.rand(5, dtype=torch.float64, requires_grad=True)
    with use_backend("triton"):
        # Not what takes seconds: tracers see plain torch in place of this operator.
        checks = ("test_schema", "test_autograd_registration", "test_faketensor")
        torch.library.opcheck(gaussians._basis.op, (d, fade, 4, 0.3, 9.0), test_utils=checks)
