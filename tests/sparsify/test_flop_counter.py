import copy
import inspect

import numpy as np
import pytest
import torch
from small_models import geometric, ours
from torch import nn

from weft.kernels import gru
from weft.layout import TypedEdges
from weft.sparsify.flop_counter import count_flops
from weft.sparsify.masks import Masks
from weft.sparsify.one_shot import random_masks
from weft.sparsify.sparse_layers import SparseLinear


def given(loss):
    """What a loss of small_models is made of."""
    return inspect.getclosurevars(loss).nonlocals


def by_name(count):
    return {each.name: each for each in count.weights}


def quarter(model, example=None):
    masks = Masks(model, example=example)
    random_masks(model, masks, dict.fromkeys(masks.names, 0.25))
    return masks


def test_rows_times_active_weights():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    masks = quarter(model)
    for x in (torch.randn(10, 6), torch.randn(2, 5, 6)):
        count = count_flops(model, masks, x)
        assert [(w.name, w.size, w.nnz, w.dense, w.sparse) for w in count.weights] == [
            ("0.weight", 48, 12, 960, 240),
            ("2.weight", 32, 8, 640, 160),
        ]
        assert (count.dense, count.sparse, count.other) == (1600, 400, 0)
    assert "400 of 1,600 FLOPs a pass (0.2500)" in repr(count)
    assert "0.weight" in repr(count)


def test_a_weight_used_twice_and_a_shared_one():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(5, 5)
            self.b = nn.Linear(5, 5)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(self.a(x)))

    count = count_flops(Twice(), None, torch.randn(3, 5))
    assert by_name(count)["a.weight"].dense == 3 * 2 * 3 * 25
    assert len(count.weights) == 1


def test_a_part_of_the_model_that_is_not_masked_is_dense():
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4))
    masks = Masks(model, exclude=["1.weight"])
    random_masks(model, masks, 0.25)
    count = by_name(count_flops(model, masks, torch.randn(10, 6)))
    assert (count["0.weight"].sparse, count["1.weight"].sparse) == (240, 640)


@pytest.mark.parametrize(
    ("module", "shape", "uses"),
    [
        # Rows of an output channel's filter: batch times places.
        (lambda: nn.Conv1d(3, 4, 3), (2, 3, 9), {"weight": 14}),
        (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), (2, 4, 5, 5), {"weight": 50}),
        (lambda: nn.GRU(5, 7), (3, 2, 5), {"weight_ih_l0": 6, "weight_hh_l0": 6}),
        (lambda: nn.LSTM(5, 7), (3, 2, 5), {"weight_ih_l0": 6, "weight_hh_l0": 6}),
    ],
)
def test_layers_of_torch(module, shape, uses):
    torch.manual_seed(0)
    model = module()
    masks = Masks(model)
    random_masks(model, masks, dict.fromkeys(masks.names, 0.5))
    for training in (False, True):
        count = by_name(count_flops(model, masks, torch.randn(shape), training=training))
        assert {name: each.dense for name, each in count.items()} == {
            name: 2 * rows * masks.size(name) for name, rows in uses.items()
        }
        assert {name: each.sparse for name, each in count.items()} == pytest.approx(
            {name: 2 * rows * masks.nnz(name) for name, rows in uses.items()}
        )


@pytest.mark.parametrize("training", [False, True])
def test_attention_is_counted(training):
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    count = count_flops(model, None, torch.randn(2, 5, 8), training=training)
    assert {each.name: each.dense for each in count.weights} == {
        "self_attn.in_proj_weight": 2 * 10 * 192,
        "self_attn.out_proj.weight": 2 * 10 * 64,
        "linear1.weight": 2 * 10 * 128,
        "linear2.weight": 2 * 10 * 128,
    }
    assert count.other == 2 * 2 * (2 * 5 * 5 * 8)


@pytest.mark.parametrize("training", [False, True])
def test_our_gcn_with_its_edges(training):
    model, loss = ours("GCN")
    batch = given(loss)["batch"]
    masks = quarter(model)
    count = count_flops(model, masks, batch, training=training)
    found = by_name(count)
    assert {name: (w.dense, w.sparse) for name, w in found.items()} == {
        "layers.0.weight": (2 * 20 * 48, 2 * 20 * 12),
        "layers.1.weight": (2 * 20 * 32, 2 * 20 * 8),
    }
    # A x first, 6 wide; A (x W) in the second layer, 4 wide.
    assert count.other == 2 * batch.num_edges * (6 + 4)


def test_our_schnet():
    model, loss = ours("SchNet")
    batch = given(loss)["batch"]
    found = count_flops(model, quarter(model), batch)
    count, pairs = by_name(found), batch.num_edges // 2
    assert set(count) == set(Masks(model).names)
    for layer in range(2):
        name = f"interactions.{layer}."
        assert count[f"{name}basis.weight"].dense == 2 * pairs * 120
        assert count[f"{name}filter.weight"].dense == 2 * pairs * 36
        assert count[f"{name}message.weight"].dense == 2 * batch.num_nodes * 48
    assert found.other == pytest.approx(
        2 * (2 * batch.num_edges * 6) + 2 * batch.num_nodes, rel=1e-12
    )
    sparse = sum(each.sparse for each in found.weights)
    assert sparse == pytest.approx(sum(each.dense for each in found.weights) / 4)


def test_our_gru():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(5, 7)

        def forward(self, x, h):
            cell = self.cell
            return gru(x, h, cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)

    count = by_name(count_flops(Recurrent(), None, torch.randn(9, 5), torch.randn(9, 7)))
    assert count["cell.weight_ih"].dense == 2 * 9 * 105
    assert count["cell.weight_hh"].dense == 2 * 9 * 147


@pytest.mark.parametrize("kind", ["GCN", "GraphSAGE", "GAT"])
def test_models_of_a_stranger(kind):
    pytest.importorskip("torch_geometric")
    model, loss = geometric(kind)
    masks = quarter(model)
    count = count_flops(model, masks, given(loss)["x"], given(loss)["edges"])
    assert {each.name for each in count.weights} == set(masks.names)
    for each in count.weights:
        assert each.dense == 2 * 20 * each.size
        assert each.sparse == pytest.approx(each.dense / 4)
    # Each edge adds its message once at least.
    assert count.other >= 2 * 60 * (6 if kind == "GraphSAGE" else 8)


def test_our_typed_messages():
    class Typed(nn.Module):
        def __init__(self, edges):
            super().__init__()
            self.edges = edges
            self.weight = nn.Parameter(torch.randn(3, 4, 6))
            self.bias = nn.Parameter(torch.randn(3, 6))

        def forward(self, h):
            return self.edges.propagate(h, self.weight, self.bias)

    rng = np.random.default_rng(0)
    senders, receivers, types = rng.integers([10, 10, 3], size=(40, 3)).T
    edges = TypedEdges.of(senders, receivers, types, 10, 3)
    model = Typed(edges)
    masks = quarter(model, torch.randn(10, 4))
    count = count_flops(model, masks, torch.randn(10, 4))
    assert set(by_name(count)) == {"weight"}
    assert by_name(count)["weight"].dense == pytest.approx(2 * edges.num_rows * 24)
    assert by_name(count)["weight"].sparse == pytest.approx(2 * edges.num_rows * 6)


# torch calls its sparse tensors a beta.
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning")
def test_sparse_layers_dense_and_sparse_inputs():
    torch.manual_seed(0)
    model = nn.Sequential(SparseLinear(16, 32, 100), nn.ReLU(), nn.Linear(32, 1))
    x = torch.randn(10, 16)
    x[torch.rand(10, 16) < 0.7] = 0
    matches = int((model[0].active_mask()[None] & (x != 0)[:, None]).sum())
    for example, products in ((x, 1000), (x.to_sparse_csr(), matches), (x.bfloat16(), 1000)):
        count = count_flops(model.to(example.dtype), None, example)
        layer = by_name(count)["0.values"]
        assert (layer.size, layer.nnz) == (512, 100)
        assert (layer.dense, layer.sparse) == (2 * 10 * 512, 2 * products)
        assert by_name(count)["2.weight"].dense == 2 * 10 * 32
        assert count.other == 0
        model.float()


def test_the_model_is_left_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), SparseLinear(8, 4, 9))
    model[2].eval()
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    state = torch.random.get_rng_state()
    count_flops(model, Masks(model), torch.randn(10, 6, generator=torch.Generator()))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert type(model[0].weight) is nn.Parameter
    assert not model[3]._forward_hooks
    assert not model[3]._forward_pre_hooks


def test_a_weight_that_is_not_used_is_named():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.used(x)

    model = Idle()
    with pytest.warns(UserWarning, match=r"no product with idle\.weight was seen"):
        count = count_flops(model, Masks(model), torch.randn(2, 3))
    assert [each.name for each in count.weights] == ["used.weight"]


def test_masks_of_another_model():
    one, other = nn.Linear(3, 3), nn.Linear(3, 3)
    with pytest.raises(ValueError, match="another model"):
        count_flops(one, Masks(other), torch.randn(2, 3))
