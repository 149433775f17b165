"""Masks: which parameters they are on, and inactive weights stay at 0 in an optimizer's steps."""

import copy

import pytest
import torch
from small_models import OPTIMIZERS, batches, fnn, geometric, ours, train
from torch import nn

from weft.models import GatedGraph
from weft.sparsify import Masks


class Stranger(nn.Module):
    """Layers of all kinds, a shared weight and a frozen one."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.conv = nn.Conv1d(4, 4, 1)
        self.norm = nn.LayerNorm((3, 4))
        self.gru = nn.GRUCell(4, 4)
        self.own = nn.Parameter(torch.ones(4, 4))
        self.attention = nn.Parameter(torch.ones(1, 2, 4))
        self.table_bias = nn.Parameter(torch.ones(3, 4))
        self.first = nn.Linear(4, 4)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.first.weight
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.decoder = nn.Linear(4, 5, bias=False)
        self.decoder.weight = self.embedding.weight
        self.out = nn.Linear(4, 1)


MATRICES = ["conv.weight", "gru.weight_ih", "gru.weight_hh", "first.weight", "out.weight"]


class LossOf(nn.Module):
    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self):
        return self.loss()


def half(masks, *, seed=0):
    """A random half of every weight."""
    generator = torch.Generator().manual_seed(seed)
    for name in masks:
        masks.set(name, torch.rand(masks.shapes[name], generator=generator) < 0.5)


def test_weight_matrices_of_a_stranger():
    masks = Masks(Stranger())
    assert masks.names == MATRICES
    assert masks.sparsity == 0.0
    assert masks.nnz() == masks.size() == sum(p.numel() for p in map(masks.weight, masks))


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("GCN", ["convs.0.lin.weight", "convs.1.lin.weight"]),
        ("GAT", ["convs.0.lin.weight", "convs.1.lin.weight"]),
        ("GraphSAGE", [f"convs.{i}.lin_{side}.weight" for i in (0, 1) for side in "lr"]),
    ],
)
def test_weight_matrices_of_torch_geometric(kind, names):
    assert Masks(geometric(kind)[0]).names == names


def test_weight_matrices_of_ours():
    assert Masks(ours("GCN")[0]).names == ["layers.0.weight", "layers.1.weight"]
    assert Masks(ours("GraphSAGE")[0]).names == [
        f"layers.{i}.{name}" for i in (0, 1) for name in ("neighbours", "own")
    ]
    schnet = Masks(ours("SchNet")[0])
    assert len(schnet) == 2 * 5 + 2
    assert not any("embedding" in name for name in schnet)


def test_include_and_exclude_take_names_and_patterns():
    model = Stranger()
    assert Masks(model, include=["gru.*", "out.weight"]).names == [
        "gru.weight_ih",
        "gru.weight_hh",
        "out.weight",
    ]
    # Patterns are of weight matrices; an exact name may be anything of two dimensions.
    with pytest.raises(ValueError, match=r"'\*embedding\*' matches no weight"):
        Masks(model, include=["*embedding*"])
    assert Masks(model, include=["embedding.weight"]).names == ["embedding.weight"]
    # Nor is it known what a parameter of a layer's own is for, but it may be named.
    assert Masks(model, include=["ow*", "out.weight"]).names == ["own", "out.weight"]
    assert Masks(model, exclude=["gru.*", "conv.weight"]).names == [
        name for name in MATRICES if "gru" not in name and name != "conv.weight"
    ]


def test_a_shared_weight_answers_to_all_its_names():
    model = Stranger()
    assert Masks(model, include=["again.weight"]).names == ["first.weight"]
    assert "first.weight" not in Masks(model, exclude=["again.weight"]).names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"include": ["lin*"]},
            r"include 'lin\*' matches no weight; there are own, attention,",
        ),
        ({"exclude": ["lin*"]}, r"exclude 'lin\*' matches no weight; there are own,"),
        ({"include": ["frozen.weight"]}, "frozen.weight is frozen"),
        ({"include": ["out.bias"]}, "include 'out.bias' matches no weight"),
        ({"include": ["own"], "exclude": ["own"]}, "no weight to mask in Stranger"),
    ],
)
def test_names_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Masks(Stranger(), **arguments)


def test_a_model_without_weights_and_one_without_shapes_are_refused():
    with pytest.raises(ValueError, match="no weight to mask in ReLU"):
        Masks(nn.ReLU())
    with pytest.raises(ValueError, match=r"0\.weight has no shape before the first batch"):
        Masks(nn.Sequential(nn.LazyLinear(3)))


def test_masks_of_the_wrong_kind_are_refused():
    masks = Masks(fnn())
    with pytest.raises(ValueError, match=r"float64 \[12, 6\]; it must be torch.bool \[12, 6\]"):
        masks.set("0.weight", torch.ones(12, 6, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"torch.bool \[6, 12\]"):
        masks.set("0.weight", torch.ones(6, 12, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"'nothing' is not masked; there are 0\.weight"):
        masks["nothing"]


def test_apply_zeroes_inactive_weights_and_nothing_else():
    model = fnn()
    before = copy.deepcopy(model.state_dict())
    masks = Masks(model, exclude=["4.*"])
    half(masks)
    # Not a number times 0 would not be 0.
    with torch.no_grad():
        model[0].weight[~masks["0.weight"]] = torch.nan
    masks.apply_()
    for name, value in model.state_dict().items():
        expected = before[name] * masks[name] if name in masks.names else before[name]
        assert torch.equal(value, expected)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_inactive_weights_are_exactly_zero_after_every_step(name):
    model = fnn()
    optimizer, loss = OPTIMIZERS[name](model.parameters()), batches(model)
    train(optimizer, loss, 3)
    masks = Masks(model)
    half(masks)
    masks.attach(optimizer)
    start = copy.deepcopy(model.state_dict())

    def zeros():
        for each in masks:
            inactive = masks.weight(each).detach()[~masks[each]]
            assert inactive.numel()
            assert not inactive.view(torch.int64).any()

    zeros()
    train(optimizer, loss, 10, after=zeros)
    assert all(not torch.equal(value, start[key]) for key, value in model.state_dict().items())


def test_training_is_that_of_the_masked_product():
    """As if the weight were w · mask in the model, from the same start."""
    model = fnn()
    masks = Masks(model)
    half(masks)
    masks.apply_()
    plain = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    masks.attach(optimizer)
    found = train(optimizer, batches(model), 20)

    pattern = masks.state_dict()
    other = torch.optim.Adam(plain.parameters(), lr=0.01)
    given = batches(plain)

    def masked_loss():
        weights = {
            key: weight * pattern[key] if key in pattern else weight
            for key, weight in plain.named_parameters()
        }
        # Not in place: autograd itself multiplies with the mask.
        return torch.func.functional_call(
            LossOf(plain, given), {f"model.{k}": w for k, w in weights.items()}, ()
        )

    assert train(other, masked_loss, 20) == pytest.approx(found, rel=1e-12)


def test_a_clipped_norm_is_that_of_the_active_weights():
    model = fnn()
    masks, optimizer = Masks(model), torch.optim.SGD(model.parameters(), lr=0.1)
    half(masks)
    masks.attach(optimizer)
    loss = batches(model)
    loss().backward()
    loss().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    assert all(not gradients[name][~masks[name]].any() for name in masks)
    expected = torch.cat([g.flatten() for g in gradients.values()]).norm()
    assert nn.utils.clip_grad_norm_(model.parameters(), 1e9) == pytest.approx(expected.item())
    assert all(gradients[name][masks[name]].any() for name in masks)


def test_gradients_that_came_another_way_are_masked_too():
    model = fnn()
    masks, optimizer = Masks(model), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    half(masks)
    masks.attach(optimizer)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    for name in masks:
        slot = optimizer.state[masks.weight(name)]["momentum_buffer"]
        assert torch.equal(slot != 0, masks[name])


def test_closures_find_their_gradients_within_the_step():
    model = fnn()
    masks, optimizer = Masks(model), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    half(masks)
    seen = []
    masks.attach(optimizer, before=lambda: seen.append(model[0].weight.grad is not None))
    loss = batches(model)

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    for _ in range(3):
        optimizer.step(closure)
        assert all(not masks.weight(name)[~masks[name]].any() for name in masks)
    assert seen == [True] * 3


@pytest.mark.parametrize("name", ["momentum", "adam", "amsgrad", "adamw", "fused"])
def test_all_slots_of_weights_that_change_sides_are_reset(name):
    model = fnn()
    optimizer = OPTIMIZERS[name](model.parameters())
    masks = Masks(model)
    masks.attach(optimizer)
    train(optimizer, batches(model), 3)
    mask = torch.ones(12, 6, dtype=torch.bool)
    mask[3:] = False
    state = optimizer.state[model[0].weight]
    slots = {key: slot for key, slot in state.items() if slot.shape == (12, 6)}
    assert len(slots) == {"momentum": 1, "amsgrad": 3}.get(name, 2)
    before = {key: slot.clone() for key, slot in slots.items()}
    masks.set("0.weight", mask)
    for key, slot in slots.items():
        assert not slot[3:].any()
        assert slot[:3].any()
        assert torch.equal(slot[:3], before[key][:3])
        # Grown weights begin anew as well, whatever was there.
        slot[3:] = 7.0
    masks.set("0.weight", torch.ones_like(mask))
    for key, slot in slots.items():
        assert not slot[3:].any()
        assert torch.equal(slot[:3], before[key][:3])


def test_an_optimizer_without_the_parameter_is_refused_by_name():
    model = fnn()
    masks = Masks(model)
    with pytest.raises(ValueError, match=r"does not have 2\.weight, 4\.weight"):
        masks.attach(torch.optim.SGD(model[0].parameters(), lr=0.1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    masks.attach(optimizer)
    with pytest.raises(ValueError, match=r"attached to an optimizer already; detach\(\)"):
        masks.attach(optimizer)


def test_detached_masks_leave_no_trace():
    model = fnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    masks = Masks(model)
    half(masks)
    masks.attach(optimizer)
    masks.detach()
    train(optimizer, batches(model), 1)
    assert masks.weight("4.weight")[~masks["4.weight"]].any()
    masks.attach(optimizer)
    assert not masks.weight("4.weight")[~masks["4.weight"]].any()


def test_copies():
    model = fnn()
    optimizer = torch.optim.Adam(model.parameters())
    masks = Masks(model)
    half(masks)
    masks.attach(optimizer)
    # A copy of all three goes on by itself.
    model_2, optimizer_2, masks_2 = copy.deepcopy((model, optimizer, masks))
    assert masks_2.weight("0.weight") is model_2[0].weight
    assert masks_2.optimizer is optimizer_2
    masks_2.set("0.weight", ~masks["0.weight"])
    train(optimizer_2, batches(model_2), 2)
    assert model_2[0].weight.any()
    assert not model_2[0].weight[masks["0.weight"]].any()
    assert torch.equal(model[0].weight != 0, masks["0.weight"])
    # A copy of the model alone is given the masks; it may be frozen.
    average = copy.deepcopy(model).requires_grad_(False)
    theirs = masks.to_model(average)
    theirs.set("0.weight", ~masks["0.weight"])
    theirs.apply_()
    assert not average[0].weight.any()
    assert model[0].weight.any()
    assert theirs.optimizer is None
    with pytest.raises(ValueError, match=r"has \[5, 6\] as 0.weight where these masks have \[12"):
        masks.to_model(fnn((6, 5, 3)))
    with pytest.raises(ValueError, match=r"has nothing as 4\.weight"):
        masks.to_model(fnn((6, 12, 9)))


def test_states():
    masks = Masks(fnn())
    half(masks)
    state = masks.state_dict()
    others = Masks(fnn())
    others.load_state_dict(state)
    assert all(torch.equal(others[name], masks[name]) for name in masks)
    state["0.weight"][:] = False
    assert masks["0.weight"].any()
    with pytest.raises(ValueError, match=r"4\.weight is in one of them only"):
        Masks(fnn(), exclude=["4.weight"]).load_state_dict(state)


def test_masks_stay_where_the_model_changes_its_numbers():
    model = fnn()
    masks = Masks(model)
    half(masks)
    model.bfloat16()
    masks.apply_()
    assert torch.equal(model[0].weight != 0, masks["0.weight"])


def test_the_table():
    masks = Masks(fnn())
    masks.set("2.weight", torch.arange(108).view(9, 12) % 4 == 0)
    assert repr(masks).splitlines() == [
        "Masks: 126 of 207 weights active, sparsity 0.3913",
        "  weight     shape  active  sparsity",
        "  0.weight  12 × 6      72    0.0000",
        "  2.weight  9 × 12      27    0.7500",
        "  4.weight   3 × 9      27    0.0000",
    ]


def test_a_gated_network_is_masked_on_its_messages_and_its_cell():
    model = GatedGraph(hidden=4, num_types=3, steps=1)
    assert Masks(model).shapes == {
        "weight": (3, 4, 4),
        "cell.weight_ih": (12, 4),
        "cell.weight_hh": (12, 4),
    }
