from __future__ import annotations

import pytest
import torch
from torch import Tensor

from weft.kernels import hidden_layer, relu_dropout
from weft.kernels.counter_dropout import Part
from weft.kernels.hidden_layer import hidden_product


@pytest.fixture(autouse=True)
def blocks_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_layer, "WORTH_BLOCKS", 1)


def inputs(rows: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(rows, 6), (6, 5), (5,), (5, 3)]
    x, *learned = [torch.randn(*shape, dtype=dtype) for shape in shapes]
    return [x, *(each.requires_grad_() for each in learned)]


def part(rows: int, first_column: int = 0) -> Part:
    return Part(seed=11, ids=torch.arange(rows).flip(0) * 3, first_column=first_column)


@pytest.mark.parametrize("rows", [1, 255, 256, 20_000])
def test_equals_the_layers_one_by_one(rows: int) -> None:
    x, weight, bias, second = inputs(rows)
    found = hidden_product(x, weight, bias, second, 0.4, part=part(rows, 2))
    inner = relu_dropout(torch.addmm(bias, x, weight), 0.4, part=part(rows, 2))
    torch.testing.assert_close(found, inner @ second)
    grad, learned = torch.randn_like(found), (weight, bias, second)
    expected = torch.autograd.grad(inner @ second, learned, grad)
    torch.testing.assert_close(torch.autograd.grad(found, learned, grad), expected)


def test_threads_change_no_bit() -> None:
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            x, *learned = inputs(30_000, torch.float32)
            out = hidden_product(x, *learned, 0.5, part=part(30_000))
            results.append([out, *torch.autograd.grad(out.square().sum(), learned)])
    finally:
        torch.set_num_threads(before)
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


def test_second_derivatives() -> None:
    x, *learned = inputs(7)
    given = part(7)

    def function(*learned: Tensor) -> Tensor:
        return hidden_product(x, *learned, 0.5, part=given)

    assert torch.autograd.gradcheck(function, learned)
    assert torch.autograd.gradgradcheck(function, learned)


def test_follows_torch_seed_and_evaluation_drops_nothing() -> None:
    x, weight, bias, second = inputs(40)
    results = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        results.append(hidden_product(x, weight, bias, second, 0.5))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    expected = torch.addmm(bias, x, weight).relu() @ second
    found = hidden_product(x, weight, bias, second, 0.5, False)
    torch.testing.assert_close(found, expected)


def test_wrong_shapes_are_refused() -> None:
    x, weight, bias, second = inputs(8)
    with pytest.raises(ValueError, match="layers"):
        hidden_product(x[:, 1:], weight, bias, second, 0.5)
    with pytest.raises(ValueError, match="one per row"):
        hidden_product(x, weight, bias, second, 0.5, part=part(7))
