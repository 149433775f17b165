"""Drop-and-grow on layers that hold only their weights: as on masked ones."""

import copy

import pytest
import torch
from small_models import OPTIMIZERS, batches, fnn, train
from torch import nn

from weft.sparsify import DropAndGrow, Masks
from weft.sparsify.sparse_layers import SparseLinear

PLAN = {"total_steps": 40, "every": 4, "sparsity": 0.7}


def converted(model, masks, layers=(0, 2, 4)):
    """The model with sparse layers in place of masked ones."""
    parts = list(copy.deepcopy(model))
    for i in layers:
        parts[i] = SparseLinear.from_dense(model[i], masks[f"{i}.weight"])
    return nn.Sequential(*parts)


def losses(model):
    """As of `batches`, whatever the layers are."""
    like = fnn()
    given = batches(like)
    like.forward = model.forward
    return given


@pytest.mark.parametrize("growth", ["rigl", "set", "snfs"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "amsgrad", "adamw"])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_sparse_layers_take_the_course_of_masked_ones(growth, optimizer, micro_batches):
    model = fnn()
    first = OPTIMIZERS[optimizer](model.parameters())
    masked = DropAndGrow(model, first, **PLAN, growth=growth)
    other = converted(model, masked.masks)
    second = OPTIMIZERS[optimizer](other.parameters())
    sparse = DropAndGrow(other, second, **PLAN, growth=growth)
    assert sparse.masks.names == []
    start = masked.masks.state_dict()

    expected = train(first, batches(model), 40, micro_batches=micro_batches)
    found = train(second, losses(other), 40, micro_batches=micro_batches)
    assert found == pytest.approx(expected, rel=1e-9)
    for i in (0, 2, 4):
        mask = masked.masks[f"{i}.weight"]
        assert torch.equal(other[i].active_mask(), mask)
        assert not torch.equal(start[f"{i}.weight"], mask)
        torch.testing.assert_close(other[i].weight, model[i].weight, rtol=1e-9, atol=1e-12)
        assert not other[i].want_dense_gradient
    assert sparse.itop == masked.itop
    assert repr(sparse).splitlines()[1:] == repr(masked).splitlines()[1:]


def test_a_batch_whose_gradients_are_thrown_away_counts_for_nothing():
    model = fnn()
    first = OPTIMIZERS["sgd"](model.parameters())
    masked = DropAndGrow(model, first, **PLAN)
    other = converted(model, masked.masks)
    second = OPTIMIZERS["sgd"](other.parameters())
    DropAndGrow(other, second, **PLAN)
    for optimizer, loss in ((first, batches(model)), (second, losses(other))):
        for _ in range(8):
            # As a loop does that leaves out a batch of infinite loss.
            (float("inf") * loss()).backward()
            train(optimizer, loss, 1)
    for i in (0, 2, 4):
        assert torch.equal(other[i].active_mask(), masked.masks[f"{i}.weight"])


def test_masked_and_sparse_layers_in_one_model():
    model = fnn()
    other = converted(model, Masks(model), layers=(2,))
    other[2] = SparseLinear.from_dense(model[2], torch.rand(9, 12) < 0.3)
    optimizer = OPTIMIZERS["adam"](other.parameters())
    sparsifier = DropAndGrow(other, optimizer, **PLAN)
    before = other[2].active_mask()
    assert sparsifier.masks.names == ["0.weight", "4.weight"]
    train(optimizer, losses(other), 40)
    assert other[2].values.numel() == int(before.sum())
    assert not torch.equal(other[2].active_mask(), before)
    names = [line.split()[0] for line in repr(sparsifier).splitlines()[3:]]
    assert names == ["0.weight", "4.weight", "2.weight"]


def test_a_run_of_sparse_layers_goes_on_from_its_states_to_the_bit():
    model = fnn()
    generator = torch.Generator().manual_seed(0)
    masks = {
        f"{i}.weight": torch.rand(model[i].weight.shape, generator=generator) < 0.3
        for i in (0, 2, 4)
    }
    runs = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        one = converted(model, masks)
        optimizer = OPTIMIZERS["adam"](one.parameters())
        runs.append((one, optimizer, DropAndGrow(one, optimizer, **PLAN, growth="snfs")))
    (one, optimizer, sparsifier), (other, theirs, again) = runs
    loss = losses(one)
    train(optimizer, loss, 18)
    other.load_state_dict(one.state_dict())
    theirs.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    again.load_state_dict(sparsifier.state_dict())
    train(optimizer, loss, 22)
    loss = losses(other)
    for _ in range(18):
        loss()
    train(theirs, loss, 22)
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    assert again.itop == sparsifier.itop


def test_excluded_frozen_and_missing_sparse_layers():
    model = fnn()
    other = converted(model, Masks(model), layers=(0, 2))
    other[2].values.requires_grad_(False)
    optimizer = OPTIMIZERS["adam"](other.parameters())
    sparsifier = DropAndGrow(other, optimizer, **PLAN, exclude=["0.weight"])
    assert [line.split()[0] for line in repr(sparsifier).splitlines()[3:]] == ["4.weight"]
    with pytest.raises(ValueError, match=r"the optimizer does not have 0\.values"):
        DropAndGrow(other, OPTIMIZERS["adam"](other[4].parameters()), **PLAN)
    with pytest.raises(ValueError, match=r"override '0\.weight' matches no weight"):
        DropAndGrow(other, optimizer, **PLAN, overrides={"0.weight": 0.5})
