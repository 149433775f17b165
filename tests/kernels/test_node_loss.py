"""The loss of some nodes beside torch's cross-entropy of their rows."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

from weft.kernels import node_cross_entropy


def given(nodes: int, width: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(nodes)
    logits = 5 * torch.randn(nodes, width, dtype=dtype, generator=generator)
    classes = torch.randint(-1, width, (nodes,), generator=generator)
    classes[0] = 0
    return logits.requires_grad_(), classes


@pytest.mark.parametrize(("nodes", "width"), [(1, 1), (7, 3), (5000, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_torchs(nodes: int, width: int, dtype: torch.dtype) -> None:
    logits, classes = given(nodes, width, dtype)
    known = classes >= 0
    expected = functional.cross_entropy(logits[known], classes[known])
    found = node_cross_entropy(logits, classes)
    torch.testing.assert_close(found, expected)
    (slope,) = torch.autograd.grad(expected, logits)
    for factor in (1.0, -2.5):
        (own,) = torch.autograd.grad(factor * found, logits, retain_graph=True)
        torch.testing.assert_close(own, factor * slope)


def test_derivatives_of_both_orders() -> None:
    logits, classes = given(6, 4)
    assert gradcheck(lambda x: node_cross_entropy(x, classes), logits)
    assert gradgradcheck(lambda x: node_cross_entropy(x, classes), logits)


def test_nan_and_no_node_are_noticed() -> None:
    logits, classes = given(6, 4)
    logits.data[0, 2] = torch.nan
    assert node_cross_entropy(logits, classes).isnan()
    assert node_cross_entropy(logits, torch.full((6,), -1)).isnan()
    assert node_cross_entropy(logits[:0], classes[:0]).isnan()


@pytest.mark.parametrize("wrong", [-2, 4])
def test_a_class_that_is_not_there(wrong: int) -> None:
    logits, classes = given(6, 4)
    classes[3] = wrong
    with pytest.raises(ValueError, match="with 4 logits they must be from -1, for none, to 3"):
        node_cross_entropy(logits, classes)
    with pytest.raises(ValueError, match="whole numbers"):
        node_cross_entropy(logits, classes[:5])
