from __future__ import annotations

import pytest
import torch

from weft.kernels import counter_dropout as module
from weft.kernels.counter_dropout import Part, dropout, relu_dropout


def seed_of(number: int) -> torch.Tensor:
    return torch.tensor([number])


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_drops_the_asked_fraction_everywhere(p: float) -> None:
    torch.manual_seed(0)
    kept = dropout(torch.ones(4000, 250), p) != 0
    # Standard deviations of a mean of a million, 4,000 and 250 x 4,000 independent draws.
    spread = (p * (1 - p)) ** 0.5
    assert abs(kept.double().mean() - (1 - p)) < 5 * spread / 1000
    assert (kept.double().mean(0) - (1 - p)).abs().max() < 5 * spread / 4000**0.5
    assert (kept.double().mean(1) - (1 - p)).abs().max() < 6 * spread / 250**0.5


def test_neighbouring_rows_columns_and_seeds_are_independent() -> None:
    x = torch.ones(2000, 500)
    masks = [
        (module._dropout(x, seed_of(s), 0.5, False, None, 0) > 0).double() - 0.5 for s in (1, 2)
    ]
    a = masks[0]
    for left, right in ((a[1:], a[:-1]), (a[:, 1:], a[:, :-1]), (a, masks[1])):
        assert abs((left * right).mean() * 4) < 5 / left.numel() ** 0.5


def test_plain_torch_draws_the_same_mask() -> None:
    for number in (0, 1, -5, 2**62):
        compiled = module._dropout(torch.ones(40, 70), seed_of(number), 0.3, False, None, 0) > 0
        plain = module._plain_keep(torch.ones(40, 70), seed_of(number), 0.3, None, 0)
        assert torch.equal(compiled, plain)


def test_mask_of_a_row_does_not_depend_on_the_width_or_the_threads() -> None:
    wide = module._dropout(torch.ones(3000, 100), seed_of(3), 0.5, False, None, 0)
    narrow = module._dropout(torch.ones(3000, 10), seed_of(3), 0.5, False, None, 0)
    assert torch.equal(wide[:, :10], narrow)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(
            wide, module._dropout(torch.ones(3000, 100), seed_of(3), 0.5, False, None, 0)
        )
    finally:
        torch.set_num_threads(before)


def test_follows_torch_seed_and_is_off_in_evaluation() -> None:
    x = torch.randn(30, 8)
    results = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        results.append(relu_dropout(x, 0.5))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert torch.equal(dropout(x, 0.5, training=False), x)
    assert torch.equal(relu_dropout(x, 0.5, training=False), x.relu())
    assert torch.equal(dropout(x, 0.0), x)


@pytest.mark.parametrize("relu", [False, True])
def test_opcheck_and_gradcheck(relu: bool) -> None:
    x = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(module._dropout.op, (x, seed_of(4), 0.4, relu, None, 0))

    def function(x: torch.Tensor) -> torch.Tensor:
        return module._dropout(x, seed_of(4), 0.4, relu, None, 0)

    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))
    kept = module._plain_keep(x, seed_of(4), 0.4, None, 0)
    torch.testing.assert_close(function(x), (x.relu() if relu else x) * kept / 0.6)


def test_half_precision_takes_the_plain_path() -> None:
    x = torch.randn(20, 5).bfloat16().requires_grad_()
    out = module._dropout(x, seed_of(1), 0.5, True, None, 0)
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad, 2.0 * (out > 0))


def test_nan_comes_through() -> None:
    x = torch.full((20, 10), torch.nan, requires_grad=True)
    out = relu_dropout(x, 0.5)
    assert out.isnan().any()
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(grad != 0, out.detach().isnan())


def test_any_row_shape_and_only_probabilities() -> None:
    assert dropout(torch.ones(5), 0.5).shape == (5,)
    assert relu_dropout(torch.ones(4, 3, 2), 0.5).shape == (4, 3, 2)
    for p in (-0.1, 1.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="must be in"):
            dropout(torch.ones(2, 2), p)


@pytest.mark.parametrize("relu", [False, True])
def test_a_part_of_a_matrix_has_its_part_of_the_mask(relu):
    x = torch.randn(50, 30, dtype=torch.float64)
    apply = relu_dropout if relu else dropout
    whole = apply(x, 0.5, part=Part(seed=7, ids=torch.arange(50)))
    rows = torch.tensor([40, 3, 17])
    part = apply(x[rows, 10:25], 0.5, part=Part(seed=7, ids=rows, first_column=10))
    assert torch.equal(part, whole[rows, 10:25])
    kept = module._plain_keep(x[rows, 10:25], torch.tensor([7]), 0.5, rows, 10)
    assert torch.equal(kept & (x[rows, 10:25] > 0), part > 0)
    piece = x[rows].requires_grad_()
    apply(piece, 0.5, part=Part(seed=7, ids=rows)).sum().backward()
    assert torch.equal(piece.grad != 0, whole[rows] != 0)
    with pytest.raises(ValueError, match="one per row"):
        apply(x, 0.5, part=Part(seed=7, ids=rows))
