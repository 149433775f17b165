"""Torch functions on tensors of edges that are not made, in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

pytest.importorskip("torch_geometric")

from torch_geometric.nn import MessagePassing

from weft.integrations.geometric.redirect import redirect
from weft.integrations.geometric.running import noted

NODES, WIDTH = 7, 4
EDGES = torch.tensor([[0, 1, 2, 2, 4, 0, 3, 5], [1, 0, 0, 3, 4, 1, 1, 0]])

ACTIVATIONS = [
    *(nn.ELU(), nn.ELU(0.5, inplace=True), nn.Softplus(), nn.Softplus(beta=2, threshold=3)),
    *(nn.GELU(), nn.GELU(approximate="tanh")),
]


class Activated(MessagePassing):
    """A function of a sum of both ends."""

    def __init__(self, activation):
        super().__init__(aggr="mean")
        self.i, self.j = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.activation = activation

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        return self.activation(3 * (self.i(x_i) + self.j(x_j)))


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_activations_are_part_of_the_loop(activation):
    check(activation, torch.float64, 1e-10)


def test_an_activation_in_float32():
    check(nn.GELU(), torch.float32, 3e-6)


LOOPS = ["products on nodes", "messages reduced in one loop"]


def check(activation, dtype, tolerance, expected=LOOPS):
    torch.manual_seed(0)
    stock = Activated(activation).to(dtype)
    fast = copy.deepcopy(stock)
    redirect(fast)
    x = 4 * torch.randn(NODES, WIDTH, dtype=dtype)
    found = []
    for layer in (stock, fast):
        with noted() as notes:
            out = layer(x, EDGES)
        loss = (out * torch.arange(out.shape[1])).sum()
        found.append([out, *torch.autograd.grad(loss, list(layer.parameters()))])
    torch.testing.assert_close(found[1], found[0], rtol=tolerance, atol=tolerance)
    assert expected is None or list(notes) == expected


def of_a_difference(h):
    return nn.functional.linear(h - 2 * h.abs(), torch.ones(3, WIDTH, dtype=h.dtype))


def in_heads(h):
    heads = (h * h).view(-1, 2, WIDTH // 2)
    return (heads + 1).flatten(1)


def in_heads_and_in_place(h):
    heads = (h * h).view(-1, 2, WIDTH // 2)
    heads += 1
    return h * h + heads.flatten(1)


@pytest.mark.parametrize("function", [of_a_difference, in_heads, in_heads_and_in_place])
def test_other_functions_of_expressions(function):
    check(function, torch.float64, 1e-10, expected=None)


class Difference(MessagePassing):
    """A product of a difference, which is a difference of products."""

    def __init__(self):
        super().__init__(aggr="max")
        self.linear = nn.Linear(WIDTH, 3)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_i, x_j):
        return self.linear(x_j - (x_i + 0.5 * x_j))


def test_a_product_of_a_difference_is_computed_on_nodes():
    stock = Difference().double()
    fast = copy.deepcopy(stock)
    redirect(fast)
    x = torch.randn(NODES, WIDTH, dtype=torch.float64)
    with noted() as notes:
        found = fast(x, EDGES)
    torch.testing.assert_close(found, stock(x, EDGES))
    assert list(notes) == LOOPS
