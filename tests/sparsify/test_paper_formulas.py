import pytest
import torch
from torch import nn

from weft.sparsify.flop_counter import (
    first_layer_share,
    inference_flops,
    input_share,
    propagated_share,
    rigl_step_flops,
    slr_training_share,
    sparse_training_share,
    table_ii,
    training_flops,
)
from weft.sparsify.masks import Masks
from weft.sparsify.one_shot import random_masks

LINKS, NODES = (16, 128, 1), (64, 256, 128, 10)


@pytest.mark.parametrize(
    ("dataset", "exact", "printed"),
    [
        ("ia-email", (0.77344, 0.05554, 0.09375, 0.00673), ("0.773", "0.056", "0.094", "0.0067")),
        ("wiki-talk", (0.77344, 0.06937, 0.09375, 0.00841), ("0.773", "0.069", "0.094", "0.0084")),
        (
            "stackoverflow",
            (0.77344, 0.23622, 0.09375, 0.02863),
            ("0.773", "0.236", "0.094", "0.0286"),
        ),
        ("brain", (0.77344, 0.64001, 0.09375, 0.07758), ("0.773", "0.640", "0.094", "0.0776")),
    ],
)
def test_table_ii(dataset, exact, printed):
    (row,) = [row for row in table_ii() if row.dataset == dataset]
    found = (row.slr_dense, row.slr_sparse, row.training_dense, row.training_sparse)
    assert tuple(round(value, 5) for value in found) == exact
    # And as the paper prints them.
    assert (
        tuple(f"{value:.{len(text) - 2}f}" for value, text in zip(found, printed, strict=True))
        == printed
    )


def test_first_layers_share():
    assert first_layer_share(LINKS) == pytest.approx(0.9412, abs=5e-5)
    assert first_layer_share(NODES) == pytest.approx(0.3249, abs=5e-5)
    assert input_share(LINKS, 0.0) == 1
    assert input_share(LINKS, 1.0) == pytest.approx(1 - 16 / 17)


def test_shares_at_the_ends():
    assert sparse_training_share(NODES, 0.0) == 1
    assert slr_training_share(NODES, 0.0) == 1
    assert slr_training_share(NODES, 1.0, phases=(0, 0, 5)) == 0
    assert slr_training_share(NODES, 0.9, phases=(5, 0, 0)) == 1
    assert propagated_share(NODES, 0.0) == 1
    assert propagated_share(NODES, 1.0) == 0


def test_propagated_zeros_by_hand():
    p, q = 0.9, 0.5
    match = (1 - q) * (1 - p)
    after_first = 1 - (1 - match) ** 16
    wanted = (2048 * match + 128 * after_first * (1 - p)) / 2176
    assert propagated_share(LINKS, p, input_sparsity=q) == pytest.approx(wanted)
    # It knows of zeros that φ does not.
    assert propagated_share(LINKS, p, input_sparsity=q) < sparse_training_share(
        LINKS, p, input_sparsity=q
    )
    first = (1 - q) * (1 - p)
    second = (1 - (1 - first) ** 64) * (1 - p)
    third = (1 - (1 - second) ** 256) * (1 - p)
    wanted = (64 * 256 * first + 256 * 128 * second + 1280 * third) / (16384 + 32768 + 1280)
    assert propagated_share(NODES, p, input_sparsity=q) == pytest.approx(wanted)


def test_propagated_zeros_as_simulated():
    """Multiply-adds of two non-zeros, counted in random matrices without activations."""
    generator = torch.Generator().manual_seed(0)
    p, q, rows = 0.9, 0.7, 400
    x = (torch.rand(rows, 64, generator=generator) > q).double()
    total = 0.0
    for wide, narrow in ((64, 256), (256, 128), (128, 10)):
        w = (torch.rand(wide, narrow, generator=generator) > p).double()
        matches = x @ w
        total += matches.sum().item() / rows
        x = (matches > 0).double()
    dense = 64 * 256 + 256 * 128 + 128 * 10
    assert propagated_share(NODES, p, input_sparsity=q) == pytest.approx(total / dense, rel=0.1)


def test_rigl_steps():
    assert rigl_step_flops(10.0, 100.0, 1) == (30 + 20 + 100) / 2
    assert rigl_step_flops(10.0, 100.0, 100) == pytest.approx((3000 + 20 + 100) / 101)
    assert rigl_step_flops(100.0, 100.0, 7) == pytest.approx(300)


def test_of_a_model_with_masks():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 1))
    masks = Masks(model)
    x = torch.randn(10, 16)
    dense = 2 * 10 * (16 * 128 + 128)
    assert inference_flops(model, None, x) == inference_flops(model, masks, x) == dense
    random_masks(model, masks, {"0.weight": 0.25, "2.weight": 0.5})
    sparse = 2 * 10 * (512 + 64)
    assert inference_flops(model, masks, x) == sparse
    assert inference_flops(model, masks, input=x) == sparse
    assert training_flops(model, masks, x) == 3 * sparse
    assert training_flops(model, masks, x, dense_gradient_every=100) == pytest.approx(
        (3 * sparse * 100 + 2 * sparse + dense) / 101
    )


def test_counted_and_analytic_shares_agree():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    masks = Masks(model)
    random_masks(model, masks, dict.fromkeys(masks.names, 3 / 32))
    x = torch.randn(5, 64)
    share = training_flops(model, masks, x) / training_flops(model, None, x)
    assert share == pytest.approx(sparse_training_share(NODES, 29 / 32))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: first_layer_share([5]), r"widths is \(5,\)"),
        (lambda: first_layer_share([5, 0]), r"widths is \(5, 0\)"),
        (lambda: sparse_training_share(LINKS, 1.2), "sparsity is 1.2"),
        (lambda: input_share(LINKS, -0.1), "input_sparsity is -0.1"),
        (lambda: propagated_share(LINKS, 0.5, input_sparsity=2), "input_sparsity is 2"),
        (lambda: slr_training_share(LINKS, 0.5, phases=(0, 0, 0)), r"phases is \(0, 0, 0\)"),
        (lambda: rigl_step_flops(1.0, 2.0, 0), "every is 0"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(ValueError, match=message):
        call()
