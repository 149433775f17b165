"""compact: units that do nothing go, outputs stay."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from weft.models.config import FNNConfig
from weft.models.fnn import FNN
from weft.sparsify import Masks
from weft.sparsify.compaction import compact
from weft.sparsify.sparse_layers import SparseLinear


@settings(deadline=None, max_examples=25)
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
    small, table = compact(model)
    assert table == ()
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
        self.inside, self.twice, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inside(x).relu()
        h = self.twice(self.twice(h)) + h
        out: torch.Tensor = self.out(h)
        return out


def test_units_with_other_readers_stay() -> None:
    model = Residual()
    with torch.no_grad():
        model.twice.weight[:, 1] = 0
        model.inside.weight[2] = 0
        model.out.weight[0, 3] = 0
    small, table = compact(model)
    assert table == ()
    x = torch.randn(5, 4)
    assert torch.equal(small(x), model(x))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        return out if x.sum() > 0 else -out


def test_a_model_that_cannot_be_traced_is_refused() -> None:
    with pytest.raises(ValueError, match="Branching cannot be traced"):
        compact(Branching())
