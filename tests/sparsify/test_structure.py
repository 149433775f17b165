"""Structures: exact counts in every group and pool, for every method that makes masks."""

import copy
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import OPTIMIZERS, batches, fnn, geometric, ours, train
from torch import nn

from weft.sparsify import (
    ADMM,
    SLR,
    UGS,
    DropAndGrow,
    GradualPruning,
    Masks,
    grasp_masks,
    lottery_ticket,
    magnitude_masks,
    nnz_of,
    random_masks,
    snip_masks,
    synflow_masks,
)
from weft.sparsify.compaction import compact
from weft.sparsify.densities import EmptyLayer
from weft.sparsify.structure import Groups, structure_of

TEXTS = ("weights", "units", "units:3", "columns", "columns:2", "2:4", "1:3", "block:3x2", "fan-in")
# Every structure fits a weight between these.
WIDTHS = (12, 24, 12, 6)


def sparsity_for(text, asked=0.5):
    density = structure_of(text).density
    return asked if density is None else 1 - density


def expected_groups(text, shape):
    """Groups of each pool, and weights of a group, of a matrix, by the words of the structure."""
    outputs, inputs = shape
    if text == "fan-in":
        return outputs, inputs, 1
    if ":" in text and text[0].isdigit():
        among = int(text.partition(":")[2])
        return outputs * inputs // among, among, 1
    kind, _, size = text.partition(":")
    if kind == "weights":
        return 1, outputs * inputs, 1
    if kind == "units":
        return 1, outputs // int(size or 1), int(size or 1) * inputs
    if kind == "columns":
        return 1, inputs // int(size or 1), int(size or 1) * outputs
    rows, columns = map(int, size.split("x"))
    return 1, outputs * inputs // (rows * columns), rows * columns


def slices(text, shape):
    """The weights of each group, as masks, one by one."""
    outputs, inputs = shape
    kind, _, size = text.partition(":")
    if kind == "units":
        rows, columns = int(size or 1), inputs
    elif kind == "columns":
        rows, columns = outputs, int(size or 1)
    else:
        rows, columns = map(int, size.split("x"))
    for row in range(0, outputs, rows):
        for column in range(0, inputs, columns):
            mask = torch.zeros(shape, dtype=torch.bool)
            mask[row : row + rows, column : column + columns] = True
            yield mask


def check(masks, text, shares=None):
    """Masks are of whole groups, in each pool as many, and as many as the sparsity says."""
    for name in masks:
        mask, shape = masks[name], masks.shapes[name]
        pools, count, size = expected_groups(text, shape)
        if size > 1:
            assert all(int(mask[group].sum()) in (0, size) for group in slices(text, shape))
        else:
            found = mask.view(pools, count).sum(1)
            assert bool((found == found[0]).all())
        share = 1 - sparsity_for(text) if shares is None else shares[name]
        assert masks.nnz(name) == pools * max(nnz_of(share, count), 1) * size
        assert not masks.weight(name)[~mask].any()


@given(
    st.sampled_from(TEXTS),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 2**20),
)
@settings(max_examples=60, deadline=None)
def test_groups_are_a_partition_and_masks_come_back(text, rows, columns, last, seed):
    shape = (12 * rows, 12 * columns)
    given_shape = shape[::-1] if last else shape
    groups = Groups(structure=structure_of(text), shape=given_shape, axis=int(last))
    pools, count, size = expected_groups(text, shape)
    assert (groups.pools, groups.count, groups.size) == (pools, count, size)
    numbers = torch.arange(math.prod(shape)).view(given_shape)
    assert groups.members(numbers).flatten().sort().values.equal(torch.arange(math.prod(shape)))
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(pools, count, generator=generator).argsort(1) < count // 2
    mask = groups.mask(kept)
    assert mask.shape == given_shape
    assert groups.kept(mask, "w").equal(kept)
    if size > 1:
        matrix = mask.t() if last else mask
        whole = [int(matrix[group].sum()) for group in slices(text, shape)]
        assert sorted(set(whole)) == ([0, size] if count > 1 else [0])


def test_texts_name_structures_and_back():
    for text in TEXTS:
        assert str(structure_of(text)) == text
    for text in ("", "unit", "4:2", "0:4", "2:4:8", "block:4", "block:0x4", "units:0", "fanin"):
        with pytest.raises(ValueError, match="is none of weights, units"):
            structure_of(text)


def one_shot(name, model, masks, density, **options):
    loss = batches(model)

    def ones():
        return model(torch.ones(1, WIDTHS[0], dtype=torch.float64))

    ways = {
        "random": lambda: random_masks(model, masks, density, seed=3, **options),
        "magnitude": lambda: magnitude_masks(model, masks, density, **options),
        "snip": lambda: snip_masks(model, masks, density, loss, **options),
        "grasp": lambda: grasp_masks(model, masks, density, loss, **options),
        "synflow": lambda: synflow_masks(model, masks, density, ones, rounds=5, **options),
    }
    ways[name]()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("method", ["random", "magnitude", "snip", "grasp", "synflow"])
def test_one_shot(method, text):
    model = fnn(WIDTHS)
    masks = Masks(model, structure=text)
    density = 1 - sparsity_for(text)
    one_shot(method, model, masks, dict.fromkeys(masks, density))
    check(masks, text)
    # Ranked across layers, the number of groups of all of them is exact.
    model = fnn(WIDTHS)
    masks = Masks(model, structure=text)
    # By magnitude a layer of small weights would be left without any.
    one_shot(method, model, masks, density, keep_one=True)
    groups = [expected_groups(text, shape) for shape in masks.shapes.values()]
    kept = sum(int(masks.kept(name).sum()) for name in masks)
    assert kept == sum(p * nnz_of(density, c) for p, c, _ in groups if p > 1) + nnz_of(
        density, sum(c for p, c, _ in groups if p == 1)
    )


@given(
    st.sampled_from(TEXTS),
    st.sampled_from(["rigl", "set", "snfs"]),
    st.sampled_from(["momentum", "adam", "adamw"]),
    st.sampled_from([0.3, 0.5, 0.8]),
)
@settings(max_examples=12, deadline=None)
def test_drop_and_grow_keeps_the_structure_after_every_step(text, growth, name, asked):
    model = fnn(WIDTHS)
    optimizer = OPTIMIZERS[name](model.parameters())
    sparsity = sparsity_for(text, asked)
    plan = {"total_steps": 30, "every": 3, "sparsity": sparsity, "keep_one": True}
    sparse = DropAndGrow(
        model, optimizer, growth=growth, densities="uniform", structure=text, quiet=True, **plan
    )
    start = sparse.masks.state_dict()
    before = {}

    def after():
        check(sparse.masks, text, dict.fromkeys(sparse.masks, 1 - sparsity))
        for each in sparse.masks:
            mask = sparse.masks[each]
            fresh = mask & ~before.get(each, mask)
            assert not sparse.masks.weight(each)[fresh].any()
            for slot in optimizer.state[sparse.masks.weight(each)].values():
                if slot.shape == mask.shape:
                    assert not slot[fresh].any()
                    assert not slot[~mask].any()
            before[each] = mask.clone()

    train(optimizer, batches(model), 30, after=after)
    assert any(not start[each].equal(sparse.masks[each]) for each in sparse.masks)


@pytest.mark.parametrize("text", TEXTS)
def test_gradual_pruning_and_train_and_prune_end_in_the_structure(text):
    sparsity = sparsity_for(text)
    model = fnn(WIDTHS)
    optimizer = OPTIMIZERS["adam"](model.parameters())
    gradual = GradualPruning(
        model, optimizer, total_steps=16, every=2, sparsity=sparsity, structure=text, quiet=True
    )
    train(optimizer, batches(model), 16)
    check(gradual.masks, text)

    for kind in (SLR, ADMM):
        model = fnn(WIDTHS)
        optimizer = OPTIMIZERS["momentum"](model.parameters())
        method = kind(
            model, optimizer, sparsity=sparsity, phases=(1, 2, 1), structure=text, quiet=True
        )
        loss = batches(model)
        fixed = batches(model, seed=1)
        for _ in range(4):
            if method.phase == "reweight":
                for name, target in method.targets.items():
                    groups = method.masks.groups(name)
                    chosen = groups.kept(target != 0, name)
                    assert int(chosen.sum()) == groups.pools * nnz_of(1 - sparsity, groups.count)
                    # The nearest tensor of that structure: its groups have the largest norms.
                    norms = groups.members(method.masks.weight(name).detach()).norm(dim=2)
                    if method.epoch == 1:
                        assert bool(
                            (
                                norms.where(chosen, norms.max()).amin(1)
                                >= norms.where(~chosen, -norms.max()).amax(1)
                            ).all()
                        )
            train(optimizer, lambda: loss() + method.penalty(), 3)  # noqa: B023
            method.end_epoch(lambda: fixed().detach())  # noqa: B023
        check(method.masks, text)


def test_lottery_tickets_and_ugs_prune_units():
    model = fnn(WIDTHS)

    def learn(model, masks):
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        masks.attach(optimizer)
        train(optimizer, batches(model), 2)

    ticket = lottery_ticket(model, learn, sparsity=0.75, rounds=2, structure="units", quiet=True)
    check(ticket.masks, "units", dict.fromkeys(ticket.masks, 0.25))
    ugs = UGS(fnn(WIDTHS), torch.ones(4), structure="units", weight_fraction=0.25, quiet=True)
    ugs.prune()
    assert sum(int(ugs.masks.kept(name).sum()) for name in ugs.masks) == 27


def test_a_state_goes_on_in_mid_schedule_to_the_bit():
    def run():
        model = fnn(WIDTHS)
        optimizer = OPTIMIZERS["adam"](model.parameters())
        plan = {"total_steps": 30, "every": 3, "sparsity": 0.75, "structure": "fan-in"}
        return model, optimizer, DropAndGrow(model, optimizer, quiet=True, **plan)

    model, optimizer, sparse = run()
    loss = batches(model)
    train(optimizer, loss, 13)
    states = copy.deepcopy([each.state_dict() for each in (model, optimizer, sparse)])
    train(optimizer, loss, 17)
    again, second, other = run()
    for each, state in zip((again, second, other), states, strict=True):
        each.load_state_dict(state)
    loss = batches(again)
    for _ in range(13):
        loss()
    train(second, loss, 17)
    assert all(map(torch.equal, model.parameters(), again.parameters()))
    with pytest.raises(ValueError, match="the state is of structure units, this is fan-in"):
        other.load_state_dict({**states[2], "structure": "units"})
    mask = other.masks["0.weight"].clone()
    mask[0, mask[0].nonzero()[0]] = False
    with pytest.raises(ValueError, match=r"keeps 2 to 3 of the weights of each output"):
        other.masks.set("0.weight", mask)


def test_units_of_a_strangers_model():
    model, _ = geometric("GraphSAGE")
    masks = Masks(model, structure="units")
    assert masks.names == ["convs.0.lin_l.weight", "convs.0.lin_r.weight"]
    assert masks.selection.left["convs.1.lin_l.weight"] == "its units are the outputs of the model"
    model, _ = geometric("GAT")
    magnitude_masks(model, masks := Masks(model, structure="units:4"), 0.5)
    heads = masks["convs.0.lin.weight"].view(2, -1)
    assert heads.all(1).sum() == 1
    assert heads.any(1).sum() == 1


def test_outputs_last_where_a_layer_multiplies_so():
    model, _ = ours("GCN")
    masks = Masks(model, structure="units")
    magnitude_masks(model, masks, 0.5)
    (name,) = masks.names
    assert list(masks[name].shape) == [6, 8]
    assert masks[name].all(0).sum() == masks[name].any(0).sum() == 4


def test_pruned_units_go_from_the_model_but_not_those_that_a_residual_needs():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 8)
            self.inner, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            x = torch.relu(self.first(x))
            x = x + self.inner(torch.relu(self.second(x)))
            return self.last(x)

    torch.manual_seed(0)
    model = Residual().double()
    masks = Masks(model, structure="units")
    assert masks.names == ["first.weight", "second.weight", "inner.weight"]
    magnitude_masks(model, masks, dict.fromkeys(masks, 0.25))
    x = torch.randn(5, 6, dtype=torch.float64)
    small, layers = compact(model, masks)
    torch.testing.assert_close(small(x), model(x), rtol=1e-12, atol=1e-12)
    assert {layer.name: layer.after for layer in layers}["second"] == 2
    # A unit of the sum goes where both of its terms do without it.
    needed = masks["first.weight"].any(1) | masks["inner.weight"].any(1)
    assert small.first.out_features == small.inner.out_features == int(needed.sum()) > 2


def test_bad_structures_are_one_sentence():
    model = fnn((6, 9, 4))
    with pytest.raises(
        ValueError,
        match=r"structure 2:4 fits no weight of Sequential \(0.weight: "
        r"its 6 inputs are no multiple of 4, as 2:4 needs",
    ):
        Masks(model, structure="2:4")
    with pytest.raises(
        ValueError,
        match=r"structure units:2 does not fit 0.weight \[9, 6\]: its 9 "
        r"outputs are no multiple of 2",
    ):
        Masks(model, structure="units:2", include=["0.weight"])
    with pytest.raises(EmptyLayer, match=r"leaves none of the 9 units of 0\.weight"):
        random_masks(model, Masks(model, structure="units"), {"0.weight": 0.01})
    with pytest.raises(ValueError, match="fits no weight of Linear"):
        Masks(nn.Linear(4, 4), structure="units")
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with pytest.raises(
        ValueError,
        match=r"the sparsity of 0.weight is 0.9, and structure 1:2 has "
        r"a sparsity of 0.5: give that one",
    ):
        DropAndGrow(model, optimizer, total_steps=9, every=2, sparsity=0.9, structure="1:2")
    masks = Masks(model, structure="block:3x2", include=["0.weight"])
    half = masks["0.weight"].clone()
    half[0, 0] = False
    with pytest.raises(ValueError, match="keeps a part of a group: structure block:3x2"):
        masks.set("0.weight", half)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        named = Masks(model, structure="units", include=["2.weight"])
    assert named.names == ["2.weight"]
