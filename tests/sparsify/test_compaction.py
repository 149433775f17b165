"""compact: units that do nothing go, outputs stay."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch_geometric_models import geometric_models

from weft.models.config import FNNConfig
from weft.models.fnn import FNN
from weft.sparsify import Masks, magnitude_masks
from weft.sparsify.compaction import compact
from weft.sparsify.sparse_layers import SparseLinear


@settings(deadline=None, max_examples=6)
@given(
    activation=st.sampled_from(["relu", "gelu", "tanh", "sigmoid"]),
    sparsity=st.sampled_from([0.0, 0.6, 0.9, 1.0]),
    seed=st.integers(0, 100),
)
def test_outputs_are_equal(activation: str, sparsity: float, seed: int) -> None:
    torch.manual_seed(seed)
    model = FNN((7, 20, 15, 3), FNNConfig(activation=activation, dropout=0.2)).double().eval()
    masks = {
        name: torch.rand_like(p) >= sparsity for name, p in model.named_parameters() if p.ndim == 2
    }
    with torch.no_grad():
        for name, mask in masks.items():
            model.get_parameter(name).mul_(mask)
    small, table = compact(model)
    x = torch.randn(30, 7, dtype=torch.float64)
    torch.testing.assert_close(small(x), model(x))
    assert [row.name for row in table] == ["layers.0", "layers.1"]
    # Every unit that is left is read and is not constant.
    for row, name in zip(table, ("layers.1", "layers.2"), strict=True):
        made, reads = small.get_submodule(row.name), small.get_submodule(name)
        assert isinstance(made, nn.Linear)
        assert isinstance(reads, nn.Linear)
        assert row.after == made.out_features == reads.in_features
        if row.after > 1:
            assert (made.weight != 0).any(1).all()
            assert (reads.weight != 0).any(0).all()
    if sparsity == 1.0:
        assert [row.after for row in table] == [1, 1]


def test_functions_in_place() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(inplace=True), nn.Linear(32, 3)).eval()
    masks = Masks(model)
    for name in masks:
        masks.set(name, torch.rand_like(masks.weight(name)) >= 0.7)
    masks.apply_()
    x = torch.randn(50, 8)
    small, (row,) = compact(model)
    assert row.after < row.before
    torch.testing.assert_close(small(x), model(x))


class AlwaysDropping(nn.Module):
    """Samples its outputs by dropout, in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 64), nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(nn.functional.dropout(self.first(x).relu(), 0.5))
        return y


def test_units_that_are_dropped_at_random_are_no_constants() -> None:
    model = AlwaysDropping()
    with torch.no_grad():
        model.first.weight.zero_()
    small, (row,) = compact(model)
    assert (row.before, row.after) == (64, 64)
    assert row.reason == "the operation dropout reads them all at once"
    x = torch.ones(20, 4)
    assert small(x).unique().numel() > 1


def test_the_papers_link_network_keeps_a_dozen_units() -> None:
    torch.manual_seed(0)
    model = FNN((16, 128, 1))
    masks = Masks(model)
    for name in masks.names:
        masks.set(name, torch.rand_like(masks.weight(name)) >= 0.906)
    # Masks that were not applied yet count as well.
    small, (row,) = compact(model, masks)
    masks.apply_()
    x = torch.randn(50, 16)
    torch.testing.assert_close(small(x), model(x))
    assert row.before == 128
    assert 4 <= row.after <= 20


def test_a_constant_unit_needs_a_bias_to_go_into() -> None:
    first, second = nn.Linear(2, 3), nn.Linear(3, 2, bias=False)
    with torch.no_grad():
        first.weight[1] = 0
        first.bias[1] = 2.0
    model = nn.Sequential(first, nn.Sigmoid(), second)
    small, (row,) = compact(model)
    assert (row.before, row.after) == (3, 2)
    x = torch.randn(6, 2)
    torch.testing.assert_close(small(x), model(x))
    assert second.bias is None


def test_sparse_layers_become_small_dense_ones() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(SparseLinear(6, 40, 30), nn.ReLU(), SparseLinear(40, 2, 10))
    small, (row,) = compact(model)
    assert row.after <= 10
    assert [type(m) for m in small] == [nn.Linear, nn.ReLU, nn.Linear]
    x = torch.randn(9, 6)
    torch.testing.assert_close(small(x), model(x))


class Residual(nn.Module):
    """Units that are read twice, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.twice, self.out = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inside(x).relu()
        h = self.twice(self.twice(h)) + h
        out: torch.Tensor = self.out(h)
        return out


def test_units_that_a_residual_needs_stay() -> None:
    model = Residual()
    with torch.no_grad():
        for layer in (model.inside, model.twice):
            # Of the second unit both have nothing, of the third one of them.
            layer.weight[1], layer.bias[1] = 0, -1
        model.twice.weight[2], model.twice.bias[2] = 0, 0
        model.twice.weight[:, 1], model.out.weight[0, 1] = 0, 0
    small, table = compact(model)
    assert [(row.name, row.before, row.after) for row in table] == [
        ("inside", 6, 5),
        ("twice", 6, 5),
    ]
    assert table[1].reason == "1 without inputs are added to those of inside"
    x = torch.randn(5, 4)
    torch.testing.assert_close(small(x), model(x))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out if x.sum() > 0 else -out


def test_a_model_that_depends_on_values_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"Branching cannot be exported.* on the values of its"):
        compact(Branching())
    assert capfd.readouterr() == ("", "")


def test_several_inputs_need_an_example() -> None:
    with pytest.raises(ValueError, match="Bilinear takes input1, input2: give `example`"):
        compact(nn.Bilinear(2, 2, 2))


class ManyWays(nn.Module):
    """Units of a table, tied weights, weights of three dimensions, a masked weight, a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 12)
        self.first, self.gate = nn.Linear(12, 20), nn.Linear(12, 20, bias=False)
        self.relations = nn.Parameter(torch.randn(3, 20, 16))
        self.masked = nn.Parameter(torch.randn(10, 32))
        self.register_buffer("mask", torch.rand(10, 32) < 0.8)
        self.scale = nn.Parameter(torch.randn(10))
        self.norm = nn.BatchNorm1d(10)

    def forward(self, nodes: torch.Tensor) -> torch.Tensor:
        h = self.table(nodes)
        h = self.first(h).tanh_() * self.gate(h).sigmoid()
        a = h @ self.relations[0] + h.flip(0) @ self.relations[2]
        h = torch.cat([a.relu(), h @ self.relations[1]], dim=1)
        h = nn.functional.linear(h, self.masked * self.mask) * self.scale
        h = self.norm(h.relu())
        return nn.functional.linear(h, self.masked.T)


def test_many_ways_to_a_product() -> None:
    torch.manual_seed(0)
    model = ManyWays().double().eval()
    with torch.no_grad():
        model.first.weight[:, 5], model.gate.weight[:, 5] = 0, 0
        model.relations[:, 3] = 0
        model.relations[0, :, 2], model.relations[2, :, 2] = 0, 0
        model.masked[4] = 0
        model.norm.running_mean.normal_()
    small, table = compact(model, example=torch.arange(9))
    nodes = torch.randint(0, 9, (30,))
    torch.testing.assert_close(small(nodes), model(nodes))
    shapes = {name: tuple(p.shape) for name, p in small.named_parameters()}
    # A flip of rows is not followed: all units that it reads stay.
    assert shapes["first.weight"] == (20, 11)
    assert {row.name: (row.before, row.after, bool(row.reason)) for row in table} == {
        "first": (20, 20, True),
        "gate": (20, 20, True),
        "masked": (10, 9, False),
    }


def test_weights_that_are_computed() -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 3)]
    model = nn.Sequential(*layers).double()
    with torch.no_grad():
        model[0].weight[:7] = 0
        model[4].weight[:, :2] = 0
    parametrizations.weight_norm(model[2])
    parametrizations.orthogonal(model[4])
    prune.random_unstructured(model[0], "weight", 0.5)
    x = torch.randn(9, 6, dtype=torch.float64)
    expected = model(x)
    small, table = compact(model)
    torch.testing.assert_close(small(x), expected)
    torch.testing.assert_close(model(x), expected)
    assert type(small[2]) is nn.Linear
    assert table[0].after <= 13


@pytest.mark.parametrize("name", ["GCN", "GraphSAGE", "GIN", "GAT"])
def test_models_of_torch_geometric(name: str) -> None:
    torch.manual_seed(0)
    model = getattr(geometric_models(), name)(16, 32, num_layers=2, out_channels=5).double().eval()
    masks = Masks(model)
    magnitude_masks(model, masks, 0.5)
    for each in masks.names:
        mask = masks[each].clone()
        if mask.shape[0] == 32:
            # Whole units without inputs, and, of the next layer, without readers.
            mask[:8] = False
        if mask.shape[1] == 32:
            mask[:, 8:12] = False
        masks.set(each, mask)
    x, edges = torch.randn(20, 16, dtype=torch.float64), torch.randint(0, 20, (2, 50))
    small, table = compact(model, masks, example=(x, edges))
    masks.apply_()
    x, edges = torch.randn(7, 16, dtype=torch.float64), torch.randint(0, 7, (2, 30))
    torch.testing.assert_close(small(x, edges), model(x, edges))
    if name == "GAT":
        assert all(row.after == row.before for row in table)
        assert "attention heads" in table[0].reason
        return
    # Constants that neighbours are summed over stay.
    assert table[0].after <= 22
    assert {tuple(p.shape) for p in small.parameters()} & {(table[0].after, 16)}


def test_code_that_counts_on_the_width() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 5), nn.Linear(5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.second(self.first(x).reshape(-1, 5))
            return out

    model = Fixed()
    with torch.no_grad():
        model.first.weight[2] = 0
    small, (row,) = compact(model)
    assert row.after == 5
    assert "the code of the model counts on their number" in row.reason
    assert small.first.weight.shape == (5, 3)
