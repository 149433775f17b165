"""SparseLinear: the layer around the sparse product."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from weft.sparsify.sparse_layers import FusingSequential, SparseLinear, to_dense


def masked_linear(seed: int = 0) -> tuple[nn.Linear, torch.Tensor]:
    torch.manual_seed(seed)
    linear = nn.Linear(12, 8)
    mask = torch.rand(8, 12) < 0.3
    with torch.no_grad():
        linear.weight.mul_(mask)
    return linear, mask


def test_from_dense_and_back() -> None:
    linear, mask = masked_linear()
    layer = SparseLinear.from_dense(linear, mask)
    assert layer.values.shape == (int(mask.sum()),)
    assert torch.equal(layer.active_mask(), mask)
    assert torch.equal(layer.weight, linear.weight)
    assert torch.equal(layer.to_dense().weight, linear.weight)
    assert torch.equal(layer.to_dense().bias, linear.bias)
    assert torch.equal(SparseLinear.from_dense(linear).active_mask(), mask)


@pytest.mark.parametrize("shape", [(12,), (5, 12), (2, 3, 12), (0, 12)])
def test_batch_shapes(shape: tuple[int, ...]) -> None:
    linear, mask = masked_linear()
    layer = SparseLinear.from_dense(linear, mask)
    x = torch.randn(shape)
    torch.testing.assert_close(layer(x), linear(x))
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), linear(x))


@pytest.mark.parametrize("shape", [(12,), (5, 12), (2, 3, 12), (0, 12)])
def test_what_it_returns_may_be_changed_in_place(shape: tuple[int, ...]) -> None:
    linear, mask = masked_linear()
    layer = SparseLinear.from_dense(linear, mask)
    x = torch.randn(shape)
    for each in (linear, layer):
        h = each(x)
        h += 0.25
        torch.relu_(h).square().sum().backward()
    assert linear.weight.grad is not None
    torch.testing.assert_close(layer.values.grad, linear.weight.grad[mask])
    torch.testing.assert_close(layer.bias.grad, linear.bias.grad)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("relu", [False, True])
def test_sparse_input(relu: bool) -> None:
    linear, mask = masked_linear()
    layer = SparseLinear.from_dense(linear, mask, relu=relu)
    x = torch.randn(20, 12) * (torch.rand(20, 12) < 0.2)
    torch.testing.assert_close(layer(x.to_sparse_csr()), layer(x))


def test_trains_as_the_masked_dense_layer() -> None:
    linear, mask = masked_linear()
    layer = SparseLinear.from_dense(linear, mask)
    x = torch.randn(30, 12)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (linear, layer)]
    for _ in range(5):
        for module, optimizer in zip((linear, layer), optimizers, strict=True):
            optimizer.zero_grad()
            module(x).square().mean().backward()
            if module is linear:
                assert linear.weight.grad is not None
                linear.weight.grad.mul_(mask)
            optimizer.step()
    torch.testing.assert_close(layer.weight, linear.weight)
    # The optimizer holds as many numbers as there are weights.
    assert optimizers[1].state[layer.values]["exp_avg"].shape == layer.values.shape


@pytest.mark.parametrize("relu", [False, True])
def test_dense_gradient_only_when_wanted(relu: bool) -> None:
    linear, mask = masked_linear()
    layer = SparseLinear.from_dense(linear, mask, relu=relu)
    x = torch.randn(30, 12)
    layer(x).square().sum().backward()
    with pytest.raises(RuntimeError, match="want_dense_gradient"):
        layer.dense_gradient()
    layer.want_dense_gradient = True
    # Two passes, as in gradient accumulation.
    for part in (x[:10], x[10:]):
        layer(part).square().sum().backward()
    out = linear(x)
    (out.relu() if relu else out).square().sum().backward()
    torch.testing.assert_close(layer.dense_gradient(), linear.weight.grad)
    with pytest.raises(RuntimeError, match="want_dense_gradient"):
        layer.dense_gradient()


def test_topology_moves_weights_and_slots_in_place() -> None:
    linear, mask = masked_linear()
    layer = SparseLinear.from_dense(linear, mask)
    addresses = [t.data_ptr() for t in (layer.values, layer.pattern)]
    moments = torch.arange(1.0, layer.values.numel() + 1)
    dense_moments = torch.zeros(96)
    dense_moments[layer.index] = moments
    drop = layer.index[[0, 3, 7]]
    grow = (~mask).flatten().nonzero()[:, 0][[1, 5, 20]]
    wanted = mask.flatten().clone()
    wanted[drop], wanted[grow] = False, True
    layer.topology(wanted.view(8, 12), [moments])
    expected, expected_moments = linear.weight.detach().clone().flatten(), dense_moments.clone()
    expected[drop] = 0
    expected_moments[drop] = 0
    assert torch.equal(layer.weight.flatten(), expected)
    assert torch.equal(layer.active_mask().flatten(), wanted)
    assert torch.equal(moments, expected_moments[layer.index])
    assert [t.data_ptr() for t in (layer.values, layer.pattern)] == addresses
    x = torch.randn(9, 12)
    torch.testing.assert_close(layer(x), x @ expected.view(8, 12).T + linear.bias)


def test_topology_refuses_what_changes_the_number() -> None:
    linear, mask = masked_linear()
    layer = SparseLinear.from_dense(linear, mask)
    for change, places in ((False, mask), (True, ~mask)):
        wrong = mask.clone()
        wrong.view(-1)[places.flatten().nonzero()[0]] = change
        with pytest.raises(ValueError, match=r"has \d+ active weights, the layer \d+"):
            layer.topology(wrong)
    assert torch.equal(layer.active_mask(), mask)


def test_topology() -> None:
    linear, mask = masked_linear()
    layer = SparseLinear.from_dense(linear, mask)
    new = mask.flip(1)
    layer.topology(new)
    assert torch.equal(layer.active_mask(), new)
    assert torch.equal(layer.weight, linear.weight * new)
    with pytest.raises(ValueError, match=r"has 96 active weights, the layer \d+"):
        layer.topology(torch.ones(8, 12, dtype=torch.bool))


def test_state_dict_and_deepcopy() -> None:
    linear, mask = masked_linear()
    layer = SparseLinear.from_dense(linear, mask)
    other = SparseLinear(12, 8, int(mask.sum()))
    other.load_state_dict(layer.state_dict())
    x = torch.randn(70, 12, requires_grad=True)
    assert torch.equal(other(x), layer(x))
    first, second = (torch.autograd.grad(m(x).sum(), x)[0] for m in (layer, other))
    assert torch.equal(first, second)
    twin = copy.deepcopy(layer)
    twin.topology(mask.flip(1))
    assert torch.equal(layer.active_mask(), mask)


def test_damaged_state_is_refused() -> None:
    linear, mask = masked_linear()
    layer = SparseLinear.from_dense(linear, mask)
    for place in (0, layer.values.numel() + 2, -1):
        state = copy.deepcopy(layer.state_dict())
        state["pattern"][place] = 1000
        with pytest.raises(ValueError, match="pattern is not that of a matrix 8 x 12"):
            layer.load_state_dict(state)


def test_number_of_weights_at_random() -> None:
    layer = SparseLinear(10, 20, 15, bias=False, dtype=torch.float64)
    assert int(layer.active_mask().sum()) == 15
    assert layer.bias is None
    assert layer.values.dtype == torch.float64
    assert layer.sparsity == pytest.approx(0.925)
    with pytest.raises(ValueError, match="give 0 to 200"):
        SparseLinear(10, 20, 201)


def test_wrong_shapes() -> None:
    with pytest.raises(ValueError, match=r"bool \[20, 10\] needed"):
        SparseLinear(10, 20, torch.ones(10, 20, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"x \[..., 10\] needed"):
        SparseLinear(10, 20, 5)(torch.randn(3, 11))


def test_repr_tells_the_sparsity() -> None:
    shown = repr(SparseLinear(10, 20, 20, relu=True))
    assert "in_features=10, out_features=20, nnz=20, sparsity=90.0%, bias=True, relu=True" in shown


def test_compiles_and_exports() -> None:
    linear, mask = masked_linear()
    layer = SparseLinear.from_dense(linear, mask)
    x = torch.randn(6, 12)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), linear(x))
    compiled(x).sum().backward()
    assert layer.values.grad is not None
    program = torch.export.export(layer, (x,))
    torch.testing.assert_close(program.module()(x), linear(x))
    assert not any("weft" in str(node.target) for node in program.graph.nodes)


def test_to_dense_gives_relus_back() -> None:
    linear, mask = masked_linear()
    layer = SparseLinear.from_dense(linear, mask, relu=True)
    x = torch.randn(5, 12)
    torch.testing.assert_close(to_dense(layer)(x), layer(x))
    for model in (nn.Sequential(layer, nn.Linear(8, 2)), FusingSequential(layer, nn.ReLU())):
        dense = to_dense(model)
        assert type(dense) is nn.Sequential
        torch.testing.assert_close(dense(x), model(x))


@pytest.mark.parametrize("inplace", [False, True])
def test_a_relu_is_computed_by_the_layer_before_it_and_nobody_can_tell(inplace: bool) -> None:
    linear, mask = masked_linear()
    relu = nn.ReLU(inplace)
    layers = (SparseLinear.from_dense(linear, mask), relu, nn.Linear(8, 2), relu)
    plain, model = nn.Sequential(*layers), FusingSequential(*layers)
    x = torch.randn(5, 12)
    assert str(model) == str(plain)
    assert list(model.state_dict()) == list(plain.state_dict())
    called: list[str] = []
    model[0].forward = lambda x: called.append("layer") or linear(x)
    torch.testing.assert_close(model(x), plain(x))
    assert called
    del model[0].forward
    for again in (model, model[:], copy.deepcopy(model), copy.copy(model)):
        torch.testing.assert_close(again(input=x), plain(x))
    torch.testing.assert_close(model[0](x), linear(x))
    torch.testing.assert_close(model[:1](x), linear(x))
    torch.testing.assert_close(FusingSequential()(x), x)
    seen: list[torch.Tensor] = []
    for layer in layers[:2]:
        with layer.register_forward_hook(lambda module, inputs, out: seen.append(out.clone())):
            torch.testing.assert_close(model(x), plain(x))
    assert any((out < 0).any() for out in seen)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), plain(x))


def test_a_layer_made_from_one_that_torch_has_pruned_can_be_reset() -> None:
    linear = nn.Linear(30, 20)
    prune.random_unstructured(linear, "weight", 0.5)
    before = linear.weight.clone()
    layer = SparseLinear.from_dense(linear, linear.weight_mask.bool())
    old = layer.values.detach().clone()
    layer.reset_parameters()
    assert not torch.equal(layer.values, old)
    assert layer.values.abs().max() <= 30**-0.5
    assert torch.equal(linear.weight, before)
