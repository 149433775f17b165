"""Sparse layers in anyone's module while it trains: as masks, and back."""

import copy

import pytest
import torch
from small_models import OPTIMIZERS, fnn, geometric, train
from torch import nn

import weft
from weft.sparsify import (
    DropAndGrow,
    FanInLinear,
    Masks,
    SparseLinear,
    convert,
    random_masks,
    to_dense,
    to_semi_structured,
)


@pytest.mark.parametrize("structure", ["weights", "fan-in"])
@pytest.mark.parametrize("kind", ["GCN", "GraphSAGE", "GIN", "GAT"])
def test_models_of_torch_geometric_train_as_with_masks(kind, structure):
    model, loss = geometric(kind)
    # The loss of a copy is that of the original.
    other, theirs = geometric(kind)
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    plan = {"total_steps": 12, "every": 3, "sparsity": 0.5, "structure": structure, "quiet": True}
    optimizer = OPTIMIZERS["adam"](model.parameters())
    masked = DropAndGrow(model, optimizer, **plan)

    assert convert(other, masked.masks.state_dict()) == {}
    kinds = {type(other.get_submodule(name.rpartition(".")[0])) for name in masked.masks}
    assert kinds == {FanInLinear if structure == "fan-in" else SparseLinear}
    second = OPTIMIZERS["adam"](other.parameters())
    sparse = DropAndGrow(other, second, **plan)
    assert sparse.masks.names == []

    expected = train(optimizer, loss, 12)
    assert train(second, theirs, 12) == pytest.approx(expected, rel=1e-9)
    dense = to_dense(other)
    assert dense.state_dict().keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(dense.state_dict()[name], value, rtol=1e-8, atol=1e-11)

    before = other.state_dict()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(theirs(), loss(), rtol=1e-12, atol=0)
    model.load_state_dict(dense.state_dict())
    other.load_state_dict(before)
    weft.restore(other)
    assert type(other) is type(model)
    assert not any(isinstance(module, SparseLinear) for module in other.modules())
    torch.testing.assert_close(theirs(), loss(), rtol=1e-12, atol=0)


def test_what_cannot_be_converted_is_one_sentence():
    model = fnn((6, 9, 4))
    masks = Masks(model)
    random_masks(model, masks, 0.5)
    masks.attach(OPTIMIZERS["sgd"](model.parameters()))
    with pytest.raises(ValueError, match=r"attached to an optimizer .* masks\.detach\(\)"):
        convert(model, masks)
    masks.detach()
    with pytest.raises(ValueError, match=r"must be torch.bool \[9, 6\]"):
        convert(model, {"0.weight": torch.ones(3, 3, dtype=torch.bool)})
    with pytest.raises(ValueError, match="there is a mask for 'gone'"):
        convert(model, {"gone": masks["0.weight"]})
    recurrent = nn.Sequential(nn.GRU(4, 4))
    with pytest.raises(ValueError, match="no masked layer of Sequential has a sparse form"):
        convert(recurrent, Masks(recurrent))
    dense = copy.deepcopy(model.state_dict())
    convert(model, masks)
    dense["0.weight"][~masks["0.weight"]] = 1
    with pytest.raises(ValueError, match=r"0\.weight is not 0 where this layer has no weight"):
        model.load_state_dict(dense)


def test_semi_structured_weights_need_a_gpu():
    model = fnn((8, 8, 4))
    with pytest.raises(ValueError, match="structure weights; semi-structured weights are of 2:4"):
        to_semi_structured(model, Masks(model))
    with pytest.raises(ValueError, match=r"0\.weight is on cpu: only NVIDIA GPUs multiply"):
        to_semi_structured(model, Masks(model, structure="2:4"))
