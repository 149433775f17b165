"""Which weights are made sparse: what multiplies features, of torch_geometric's layers too."""

import importlib
import warnings

import pytest
import torch
from small_models import geometric
from torch import nn
from torch.nn.utils import prune

from weft.sparsify import (
    ADMM,
    SLR,
    UGS,
    DropAndGrow,
    GradualPruning,
    Masks,
    count_flops,
    lottery_ticket,
)
from weft.sparsify.matrices import _KNOWN, select_weights

with warnings.catch_warnings():
    # Its import uses what torch has deprecated.
    warnings.simplefilter("ignore")
    import torch_geometric.nn as pyg

EDGES = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])
TYPES = torch.tensor([0, 1, 2, 0, 1, 2])
X = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
HETERO = (["a", "b"], [("a", "to", "b"), ("b", "of", "a")])

LAYERS = {
    "RGCN of one relation": (
        lambda: pyg.RGCNConv(16, 32, 1),
        (X, EDGES, torch.zeros_like(TYPES)),
        ["weight", "root"],
    ),
    "RGCN of bases": (
        lambda: pyg.RGCNConv(16, 32, 3, num_bases=2),
        (X, EDGES, TYPES),
        ["weight", "root"],
    ),
    "RGCN of blocks": (
        lambda: pyg.RGCNConv(16, 32, 3, num_blocks=4),
        (X, EDGES, TYPES),
        ["weight", "root"],
    ),
    "GGNN of one step": (
        lambda: pyg.GatedGraphConv(32, 1),
        (X, EDGES),
        ["weight", "rnn.weight_ih", "rnn.weight_hh"],
    ),
    "RGAT": (
        lambda: pyg.RGATConv(
            16, 8, 3, heads=2, dim=2, attention_mode="multiplicative-self-attention"
        ),
        (X, EDGES, TYPES),
        ["weight"],
    ),
    "RGAT with scales": (
        lambda: pyg.RGATConv(16, 8, 3, mod="scaled"),
        (X, EDGES, TYPES),
        ["weight"],
    ),
    "RGAT of bases": (
        lambda: pyg.RGATConv(16, 8, 3, num_bases=2),
        (X, EDGES, TYPES),
        ["basis"],
    ),
    "GAT": (lambda: pyg.GATConv(16, 8, heads=2), (X, EDGES), ["lin.weight"]),
    "GATv2": (
        lambda: pyg.GATv2Conv(16, 8, heads=2),
        (X, EDGES),
        ["lin_l.weight", "lin_r.weight"],
    ),
    "SuperGAT": (lambda: pyg.SuperGATConv(16, 8, heads=2), (X, EDGES), ["lin.weight"]),
    "ARMA": (
        lambda: pyg.ARMAConv(16, 8, num_stacks=1, num_layers=2),
        (X, EDGES),
        ["weight", "init_weight", "root_weight"],
    ),
    "GCNII": (lambda: pyg.GCN2Conv(16, 0.1), (X, X, EDGES), ["weight1"]),
    "GMM": (
        lambda: pyg.GMMConv(16, 8, dim=2, kernel_size=3),
        (X, EDGES, torch.rand(6, 2)),
        ["g", "root.weight"],
    ),
    "HGT": (
        lambda: pyg.HGTConv(16, 8, HETERO, heads=2),
        (
            {"a": X, "b": X},
            {("a", "to", "b"): EDGES, ("b", "of", "a"): EDGES},
        ),
        [
            *(f"{part}.lins.{kind}.weight" for part in ("kqv_lin", "out_lin") for kind in "ab"),
            "k_rel.weight",
            "v_rel.weight",
        ],
    ),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_of_torch_geometric(kind):
    """Attention vectors, relation coefficients and scales are left; a dimension of 1 is none."""
    make, example, names = LAYERS[kind]
    model = make()
    assert Masks(model).names == names
    assert Masks(model, example=example).names == names


@pytest.mark.parametrize("path", _KNOWN)
def test_the_layers_that_are_known_are_there(path):
    module, _, name = path.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    assert issubclass(kind, nn.Module)


class Handmade(nn.Module):
    """What a stranger writes: parameters of the layer's own."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(1000, 64))
        self.first = nn.Parameter(torch.randn(64, 32))
        self.relations = nn.Parameter(torch.randn(1, 32, 32))
        self.typed = nn.Parameter(torch.randn(3, 32, 32))
        self.attention = nn.Parameter(torch.randn(32, 1))
        self.gain = nn.Parameter(torch.ones(1, 32))
        self.shift = nn.Parameter(torch.zeros(1, 32))
        self.heads = nn.ParameterDict({"left": torch.randn(32, 4)})
        self.out = nn.Linear(32, 2)

    def forward(self, nodes, types):
        h = torch.relu(self.table[nodes]) @ self.first * self.gain + self.shift
        h = torch.addmm(self.shift, torch.relu(h), self.relations[0])
        h = torch.bmm(h[:, None], self.typed[types])[:, 0]
        weight = torch.softmax(h @ self.attention, 0)
        return self.out(weight * h), torch.relu(h) @ self.heads["left"]


EXAMPLE = (torch.arange(7), torch.arange(7) % 3)


def test_parameters_of_a_layers_own_are_chosen_by_their_use():
    model = Handmade()
    # Nobody can tell them from a table without a look at their use.
    assert Masks(model).names == ["out.weight"]
    masks = Masks(model, example=EXAMPLE)
    assert masks.names == ["first", "relations", "typed", "heads.left", "out.weight"]
    assert set(masks.selection.left) == {"table", "attention", "gain", "shift"}
    assert Masks(model, include=["first", "out.*"]).names == ["first", "out.weight"]
    assert Masks(model, exclude=["typed"], example=EXAMPLE).names == [
        "first",
        "relations",
        "heads.left",
        "out.weight",
    ]
    # Its parts are counted where they are chosen.
    count = {each.name for each in count_flops(model, masks, *EXAMPLE).weights}
    assert set(masks.names) <= count


def test_a_table_that_all_nodes_are_read_from_is_no_weight():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(5, 16))
            self.conv = pyg.GCNConv(16, 4)

        def forward(self, edges):
            return self.conv(self.table, edges)

    assert Masks(Whole(), example=EDGES).names == ["conv.lin.weight"]
    assert Masks(Whole()).names == ["conv.lin.weight"]


def test_a_strangers_subclass_adds_what_is_not_known():
    class Adapted(nn.Linear):
        def __init__(self):
            super().__init__(16, 16)
            self.down = nn.Parameter(torch.randn(16, 2))
            self.up = nn.Parameter(torch.randn(2, 16))

        def forward(self, x):
            return super().forward(x) + x @ self.down @ self.up

    assert Masks(Adapted()).names == ["weight"]
    assert Masks(Adapted(), example=X).names == ["weight", "down", "up"]


def test_the_model_is_left_as_it_was_by_the_example():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.norm = nn.Parameter(torch.randn(16, 4)), nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(x @ self.own)

    model = Both()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert Masks(model, example=X).names == ["own"]
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_was_chosen_and_what_was_left_is_printed():
    text = repr(Masks(Handmade())).splitlines()
    assert text[-1] == (
        "left dense: table, first, relations, typed, attention, gain, shift, heads.left (not known "
        "to multiply features; give an example, which is a batch as the model takes it, or name "
        "them in include)"
    )
    text = str(select_weights(pyg.GATConv(16, 8), exclude=["lin.weight"], required=False))
    assert text.splitlines() == [
        "nothing (0 weights) may become sparse",
        "left dense: att_src, att_dst (no factor of features in GATConv)",
        "left dense: lin.weight (excluded)",
    ]
    many = nn.Sequential(*(nn.Linear(2, 2) for _ in range(11)))
    assert "6.weight, 7.weight and 3 more (44 weights)" in str(select_weights(many))
    with pytest.raises(ValueError, match=r"no weight to mask in Table: .*dense: table \(not"):
        Masks(Table())


class Table(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(10, 4))


def _sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def _trained(model, masks):
    masks.attach(_sgd(model))


METHODS = {
    "DropAndGrow": lambda m, **k: DropAndGrow(m, _sgd(m), total_steps=9, every=2, **k).masks,
    "GradualPruning": lambda m, **k: GradualPruning(m, _sgd(m), total_steps=9, every=2, **k).masks,
    "SLR": lambda m, **k: SLR(m, _sgd(m), sparsity=0.5, **k).masks,
    "ADMM": lambda m, **k: ADMM(m, _sgd(m), sparsity=0.5, **k).masks,
    "lottery": lambda m, **k: lottery_ticket(m, _trained, sparsity=0.5, rounds=1, **k).masks,
    "UGS": lambda m, **k: UGS(m, torch.ones(6), **k).masks,
}


@pytest.mark.parametrize("method", METHODS)
def test_all_methods_choose_alike_and_say_so(method, capsys):
    model = Handmade()
    names = METHODS[method](model, example=EXAMPLE, exclude=["typed"]).names
    assert names == ["first", "relations", "heads.left", "out.weight"]
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "first, relations, heads.left, out.weight (3,264 weights) may become sparse",
        "left dense: table, attention, gain, shift (no product with features as with a matrix in "
        "the example)",
        "left dense: typed (excluded)",
    ]
    assert METHODS[method](Handmade(), include=["first"], quiet=True).names == ["first"]
    assert capsys.readouterr().err == ""


def _older(wrap):
    def wrapped(layer):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return wrap(layer)

    return wrapped


COMPUTED = {
    "weight_norm": nn.utils.parametrizations.weight_norm,
    "spectral_norm": nn.utils.parametrizations.spectral_norm,
    "orthogonal": nn.utils.parametrizations.orthogonal,
    "older weight_norm": _older(nn.utils.weight_norm),
    "older spectral_norm": nn.utils.spectral_norm,
}


@pytest.mark.parametrize("how", COMPUTED)
def test_weights_that_are_computed_are_refused_by_name(how):
    """Masks on their parts gave rows of zeros, which weight_norm divides by their norm."""
    torch.manual_seed(0)
    model = nn.Sequential(COMPUTED[how](nn.Linear(16, 16)), nn.ReLU(), nn.Linear(16, 2))
    optimizer = _sgd(model)
    for names in ({}, {"include": ["0.weight"]}, {"include": ["0.*"]}, {"example": X}):
        with pytest.raises(ValueError, match=r"^0\.weight is computed from .*remove_param"):
            DropAndGrow(model, optimizer, total_steps=10, every=2, quiet=True, **names)
    sparse = DropAndGrow(
        model, optimizer, total_steps=10, every=2, exclude=["0.weight"], quiet=True
    )
    assert sparse.masks.names == ["2.weight"]
    assert Masks(model, include=["2.weight"]).names == ["2.weight"]
    for _ in range(10):
        optimizer.zero_grad()
        model(X).square().mean().backward()
        optimizer.step()
    assert model(X).isfinite().all()


def test_weights_that_torch_prunes_are_masked():
    model = nn.Sequential(nn.Linear(16, 16))
    prune.random_unstructured(model[0], "weight", 0.5)
    assert Masks(model).names == ["0.weight_orig"]


def test_an_embedding_with_a_norm_is_left():
    table = nn.utils.parametrizations.spectral_norm(nn.Embedding(9, 4))
    model = nn.Sequential(table, nn.Linear(4, 2))
    assert Masks(model).names == ["1.weight"]


def test_models_of_torch_geometric_with_an_example():
    for kind in ("GCN", "GAT", "GraphSAGE"):
        model, _ = geometric(kind)
        example = (torch.randn(5, 6, dtype=torch.float64), EDGES)
        assert Masks(model, example=example).names == Masks(model).names


def test_a_layer_is_known_by_what_it_is_not_by_its_name():
    class NormedLinear(nn.Linear):
        pass

    class PatchEmbedding(nn.Conv2d):
        pass

    model = nn.Sequential(NormedLinear(4, 4), PatchEmbedding(3, 8, 2), nn.LayerNorm(4))
    assert Masks(model).names == ["0.weight", "1.weight"]


def test_all_rows_of_an_embedding_are_features():
    class Featureless(nn.Module):
        def __init__(self):
            super().__init__()
            self.nodes = nn.Embedding(6, 8)
            self.weight = nn.Parameter(torch.randn(8, 4))

        def forward(self, adjacency):
            return adjacency @ (self.nodes.weight @ self.weight)

    assert Masks(Featureless(), example=torch.rand(6, 6)).names == ["weight"]
