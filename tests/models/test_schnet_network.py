"""SchNet as one operator against its layers, which tests/models compares with plain torch."""

import pytest
import torch
from torch.nn.utils import parametrize

from weft.models import SchNet, SchNetConfig

SHAPE = {"hidden": 12, "filters": 7, "layers": 2, "centres": 40, "spacing": 0.2}


def network(dtype=torch.float64, **changes):
    torch.manual_seed(0)
    model = SchNet(SchNetConfig(**{**SHAPE, **changes})).to(dtype)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def is_one_operator(values):
    return type(values.grad_fn).__name__ == "_NetworkBackward"


def answers(model, function, batch):
    values = function(batch)
    weights = torch.linspace(0.5, 1, len(values), dtype=values.dtype)
    return values, torch.autograd.grad((values * weights).sum(), list(model.parameters()))


@pytest.mark.parametrize(
    "changes",
    [{}, {"bias": True, "activate_filter": False}, {"bias": True, "cutoff": 4.0}, {"cutoff": 4.0}],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_its_layers(atoms_batch, changes, dtype):
    # Few bins for many pairs: in float32 the filters are series.
    for settings in ({}, {"sharpness": 0.1}):
        model = network(dtype, **changes, **settings)
        for batch in (atoms_batch(), atoms_batch(padded=True, periodic=True, paired=True)):
            values, gradients = answers(model, model, batch)
            assert is_one_operator(values)
            wanted, others = answers(model, model.layer_by_layer, batch)
            assert not is_one_operator(wanted)
            close = {"rtol": 1e-12, "atol": 1e-12}
            if dtype == torch.float32:
                close = {"rtol": 1e-4, "atol": 1e-4 * float(wanted.detach().abs().max())}
            torch.testing.assert_close(values, wanted, **close)
            for own, other in zip(gradients, others, strict=True):
                scale = float(other.abs().max()) + 1e-30
                torch.testing.assert_close(own / scale, other / scale, **close)


@pytest.mark.parametrize("bias", [False, True])
def test_second_derivatives(atoms_batch, bias):
    batch, model = atoms_batch(), network(bias=bias)

    def second(function):
        weights = list(model.parameters())
        first = torch.autograd.grad(function(batch).square().sum(), weights, create_graph=True)
        return torch.autograd.grad(sum(each.square().sum() for each in first), weights)

    torch.testing.assert_close(second(model), second(model.layer_by_layer))


def test_frozen_weights_and_what_changes_a_weight(atoms_batch):
    batch, model = atoms_batch(), network()
    model.interactions[0].basis.weight.requires_grad_(False)
    model(batch).sum().backward()
    assert model.interactions[0].basis.weight.grad is None
    assert model.interactions[0].filter.weight.grad.abs().sum() > 0
    parametrize.register_parametrization(model.readout[0], "weight", torch.nn.Identity())
    values = model(batch)
    assert not is_one_operator(values)
    values.sum().backward()
    assert model.readout[0].parametrizations.weight.original.grad is not None


def test_weights_of_other_shapes_are_refused(atoms_batch):
    model = network()
    model.interactions[1].out.weight = torch.nn.Parameter(torch.zeros(12, 11).double())
    with pytest.raises(ValueError, match="weights of one SchNet needed"):
        model(atoms_batch())
