"""Filters and their derivatives at some distances, against autograd."""

from __future__ import annotations

import math

import pytest
import torch

from weft.kernels import shifted_softplus
from weft.kernels.filter_tables import TableSettings, filter_tables

ROWS, CENTRES, NETWORKS, FEATURES = 1100, 9, 2, 6


def by_autograd(d, first, first_bias, second, second_bias, settings):
    """The same, with derivatives in d that can be differentiated in the weights."""
    d = d.clone().requires_grad_()
    places = torch.arange(CENTRES, dtype=d.dtype) * settings.spacing
    basis = torch.exp(-settings.sharpness * (d[:, None] - places) ** 2)
    values = []
    for k in range(NETWORKS):
        inner = basis @ first[k].t() + (first_bias[k] if first_bias else 0)
        outer = shifted_softplus(inner) @ second[k].t() + (second_bias[k] if second_bias else 0)
        outer = shifted_softplus(outer) if settings.activate else outer
        if settings.cutoff:
            fade = 0.5 * (torch.cos(d * math.pi / settings.cutoff) + 1) * (d < settings.cutoff)
            outer = outer * fade[:, None]
        values.append(outer)
    slopes = [
        torch.stack(
            [torch.autograd.grad(column.sum(), d, create_graph=True)[0] for column in value.t()],
            dim=1,
        )
        for value in values
    ]
    return torch.stack([*values, *slopes])


@pytest.mark.parametrize("rows", [3, ROWS])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("cutoff", "activate"), [(4.0, True), (0.0, False)])
def test_values_and_gradients(rows, bias, cutoff, activate):
    generator = torch.Generator().manual_seed(0)

    def weights(*shape):
        made = torch.randn(NETWORKS, *shape, generator=generator, dtype=torch.float64)
        return [part.requires_grad_() for part in made.unbind()]

    d = 0.1 + 4.8 * torch.rand(rows, generator=generator, dtype=torch.float64)
    of_bias = (weights(FEATURES), weights(FEATURES)) if bias else ([], [])
    given = (weights(FEATURES, CENTRES), of_bias[0], weights(FEATURES, FEATURES), of_bias[1])
    settings = TableSettings(0.5, 4.0, cutoff, activate)
    ours, exact = filter_tables(d, *given, settings), by_autograd(d, *given, settings)
    torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-12)
    learned = [weight for part in given for weight in part]
    upper = torch.randn(exact.shape, generator=generator, dtype=torch.float64)
    found, wanted = (torch.autograd.grad(table, learned, upper) for table in (ours, exact))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("wrong", ["first", "second", "biases", "distances"])
def test_shapes_that_do_not_fit(wrong):
    d, first, second = torch.ones(4), [torch.ones(3, 5)] * 2, [torch.ones(3, 3)] * 2
    biases: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    if wrong == "first":
        first = [torch.ones(3, 5), torch.ones(3, 6)]
    elif wrong == "second":
        second = [torch.ones(3, 2)] * 2
    elif wrong == "biases":
        biases = ([torch.ones(3)] * 2, [])
    else:
        d = torch.ones(4, 1)
    with pytest.raises(ValueError, match="needed"):
        filter_tables(d, first, biases[0], second, biases[1], TableSettings(0.5, 4.0, 0.0, False))
