"""Sparse training: exact counts, what is dropped and grown, resuming, copies, bad settings."""

import copy
import io
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import OPTIMIZERS, batches, fnn, geometric, ours, train
from torch import nn

from weft.sparsify import DropAndGrow, DropSchedule, erk, nnz_of
from weft.sparsify.drop_and_grow import drop_count, dropped_and_grown

GROWTHS = ["rigl", "set", "snfs"]
SHORT = {"total_steps": 40, "every": 4, "sparsity": 0.7}


def sparse(model=None, optimizer="adam", **changes):
    model = model or fnn()
    made = OPTIMIZERS[optimizer](model.parameters())
    return model, made, DropAndGrow(model, made, **{**SHORT, **changes})


def counts_of(masks):
    return {name: masks.nnz(name) for name in masks}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_an_update_is_that_of_its_definition(data):
    size = data.draw(st.integers(1, 24))
    numbers = st.lists(st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5]), min_size=size, max_size=size)
    active = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    weights, scores = data.draw(numbers), data.draw(numbers)
    count = data.draw(st.integers(0, sum(active)))

    kept = sorted((i for i in range(size) if active[i]), key=lambda i: (abs(weights[i]), i))[count:]
    others = sorted((i for i in range(size) if i not in kept), key=lambda i: (-scores[i], i))
    expected = sorted(kept + others[:count])

    # One pool of groups of one weight.
    one_pool = (torch.tensor([each]) for each in (weights, active, scores))
    magnitudes, chosen, given_scores = one_pool
    mask = dropped_and_grown(magnitudes.abs(), chosen, given_scores, count)[0]
    assert mask.nonzero().flatten().tolist() == expected


def test_the_count_is_rounded_up_but_not_for_rounding_errors():
    assert 0.55 * 100 > 55
    assert drop_count(0.55, 100) == 55
    assert drop_count(0.1, 30) == 3
    assert drop_count(0.1, 31) == 4
    assert drop_count(0.3, 1) == 1
    assert drop_count(1.0, 7) == 7
    assert drop_count(0.0, 7) == 0


@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_counts_are_constant_and_inactive_weights_zero_after_every_step(growth, optimizer):
    model, optimizer, sparsifier = sparse(optimizer=optimizer, growth=growth)
    masks = sparsifier.masks
    start, patterns = counts_of(masks), [masks.state_dict()]
    shares = erk(masks.shapes, 1 - SHORT["sparsity"])
    assert start == {name: nnz_of(shares[name], masks.size(name)) for name in masks}

    def check():
        assert counts_of(masks) == start
        for name in masks:
            weight = masks.weight(name).detach()
            assert not weight[~masks[name]].view(torch.int64).any()
        patterns.append(masks.state_dict())

    train(optimizer, batches(model), 40, after=check)
    changed = [
        step
        for step in range(1, 41)
        if any(not torch.equal(patterns[step][n], patterns[step - 1][n]) for n in masks)
    ]
    assert changed == [4, 8, 12, 16, 20, 24, 28]
    assert sparsifier.step == 40
    assert not masks.keep_dense


@pytest.mark.parametrize("growth", GROWTHS)
def test_each_update_drops_the_smallest_and_grows_the_chosen(growth):
    model, optimizer, sparsifier = sparse(growth=growth, momentum=0.8)
    masks, loss, averages = sparsifier.masks, batches(model), {}
    plan = DropSchedule(total_steps=40, every=4)
    for step in range(1, 41):
        optimizer.zero_grad()
        loss().backward()
        dense = {name: masks.weight(name).grad.clone() for name in masks}
        for name, gradient in dense.items():
            averages[name] = 0.8 * averages.get(name, 0.0) + 0.2 * gradient
        old_masks = masks.state_dict()
        # What the step does to the weights, without the update after it.
        twin, twin_optimizer = copy.deepcopy((model, optimizer))
        for name in masks:
            twin.get_parameter(name).grad = dense[name] * old_masks[name]
        twin_optimizer.step()
        before = {name: twin.get_parameter(name).detach() for name in masks}
        optimizer.step()
        for name in masks:
            old, new, weight = old_masks[name], masks[name], masks.weight(name).detach()
            if not plan.updates_at(step):
                assert torch.equal(old, new)
                assert torch.equal(weight, before[name])
                continue
            count = drop_count(plan.rate(step), int(old.sum()))
            sizes = before[name].abs().masked_fill(~old, math.inf).flatten()
            smallest = sizes.argsort(stable=True)[:count]
            left = old.flatten().clone()
            left[smallest] = False
            grown = new.flatten() & ~left
            assert int(grown.sum()) == count
            assert (new.flatten() & left).sum() == left.sum()
            if growth != "set":
                scores = (dense if growth == "rigl" else averages)[name].abs().flatten()
                assert scores[grown].min() >= scores[~new.flatten()].max()
            # New weights are 0 and have no past; the others have not moved.
            fresh = new & ~old
            assert not weight[fresh].any()
            assert torch.equal(weight[new & old], before[name][new & old])
            for slot in ("exp_avg", "exp_avg_sq"):
                assert not optimizer.state[masks.weight(name)][slot][old ^ new].any()


def test_gradients_are_dense_only_where_growth_needs_them():
    for growth, dense_steps in (("set", []), ("rigl", [4, 8]), ("snfs", range(1, 9))):
        model, optimizer, sparsifier = sparse(growth=growth, total_steps=11)
        loss = batches(model)
        for step in range(1, 12):
            optimizer.zero_grad()
            loss().backward()
            inactive = ~sparsifier.masks["2.weight"]
            assert bool(model[2].weight.grad[inactive].any()) == (step in dense_steps)
            optimizer.step()
            # The norm that is logged after a step is that of the sparse model.
            assert not model[2].weight.grad[inactive & ~sparsifier.masks["2.weight"]].any()


def test_micro_batches_grow_by_the_gradient_of_the_whole_step():
    x = torch.randn(16, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.arange(16) % 3
    patterns = {}
    for parts in (1, 4):
        model, optimizer, sparsifier = sparse(optimizer="momentum")
        for _ in range(12):
            optimizer.zero_grad()
            for rows in torch.arange(16).chunk(parts):
                (nn.functional.cross_entropy(model(x[rows]), y[rows]) / parts).backward()
            optimizer.step()
        patterns[parts] = sparsifier.masks.state_dict()
        assert sparsifier.step == 12
    assert all(torch.equal(patterns[1][name], patterns[4][name]) for name in patterns[1])


def test_a_closure_and_gradient_clipping_and_a_scheduler_change_nothing_about_counts():
    model, optimizer, sparsifier = sparse(optimizer="momentum")
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    loss, start = batches(model), counts_of(sparsifier.masks)
    first = sparsifier.masks.state_dict()

    def closure():
        optimizer.zero_grad()
        value = loss()
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        return value

    for _ in range(40):
        optimizer.step(closure)
        scheduler.step()
    assert sparsifier.step == 40
    assert counts_of(sparsifier.masks) == start
    for name in sparsifier.masks:
        assert not sparsifier.masks.weight(name)[~sparsifier.masks[name]].any()
        assert not torch.equal(first[name], sparsifier.masks[name])


def test_weight_decay_does_not_move_inactive_weights():
    model, optimizer, sparsifier = sparse(optimizer="adamw")
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    for name in sparsifier.masks:
        assert torch.equal(sparsifier.masks.weight(name) != 0, sparsifier.masks[name])


@pytest.mark.parametrize("growth", GROWTHS)
@pytest.mark.parametrize("optimizer_name", ["momentum", "amsgrad", "adamw"])
@pytest.mark.parametrize("order", ["made first", "loaded first", "masks first"])
def test_a_run_goes_on_from_its_states_to_the_bit(growth, optimizer_name, order):
    model, optimizer, sparsifier = sparse(optimizer=optimizer_name, growth=growth)
    loss = batches(model)
    train(optimizer, loss, 18)
    file = io.BytesIO()
    parts = {"model": model, "optimizer": optimizer, "sparsifier": sparsifier}
    torch.save({key: part.state_dict() for key, part in parts.items()}, file)
    train(optimizer, loss, 22)

    file.seek(0)
    state = torch.load(file, weights_only=True)
    other = fnn(seed=5)
    if order == "loaded first":
        other.load_state_dict(state["model"])
        theirs = OPTIMIZERS[optimizer_name](other.parameters())
        theirs.load_state_dict(state["optimizer"])
        again = DropAndGrow(other, theirs, **SHORT, growth=growth, seed=0)
        again.load_state_dict(state["sparsifier"])
    else:
        _, theirs, again = sparse(other, optimizer_name, growth=growth)
        if order == "masks first":
            again.load_state_dict(state["sparsifier"])
        other.load_state_dict(state["model"])
        theirs.load_state_dict(state["optimizer"])
        if order == "made first":
            again.load_state_dict(state["sparsifier"])
    assert again.step == 18
    loss = batches(other)
    for _ in range(18):
        loss()
    train(theirs, loss, 22)
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    assert again.itop == sparsifier.itop
    assert all(torch.equal(again.masks[n], sparsifier.masks[n]) for n in again.masks)


def test_a_state_of_another_growth_is_refused():
    state = sparse(growth="set")[2].state_dict()
    with pytest.raises(ValueError, match="the state is of growth 'set', this is 'rigl'"):
        sparse()[2].load_state_dict(state)
    with pytest.raises(ValueError, match=r"4\.weight is in the state or in this model"):
        sparse(growth="set", exclude=["4.*"])[2].load_state_dict(state)


@pytest.mark.parametrize("growth", GROWTHS)
def test_a_deep_copy_trains_the_same_by_itself(growth):
    model, optimizer, sparsifier = sparse(growth=growth)
    train(optimizer, batches(model), 10)
    model_2, optimizer_2, sparsifier_2 = copy.deepcopy((model, optimizer, sparsifier))
    frozen = copy.deepcopy(model.state_dict())
    train(optimizer_2, batches(model_2, seed=1), 20)
    assert all(torch.equal(value, frozen[key]) for key, value in model.state_dict().items())
    assert (sparsifier.step, sparsifier_2.step) == (10, 30)
    train(optimizer, batches(model, seed=1), 20)
    for key, value in model.state_dict().items():
        assert torch.equal(value, model_2.state_dict()[key])


def test_seeds():
    first, same, other = (sparse(growth="set", seed=seed) for seed in (3, 3, 4))
    for model, optimizer, _ in (first, same, other):
        # Whatever else is random.
        torch.rand(int(torch.randint(1, 9, ())))
        train(optimizer, batches(model), 20)
    masks, same_masks, other_masks = (each[2].masks for each in (first, same, other))
    assert all(torch.equal(masks[name], same_masks[name]) for name in masks)
    assert not all(torch.equal(masks[name], other_masks[name]) for name in masks)


def test_coverage_is_of_all_weights_that_ever_were_active():
    model, optimizer, sparsifier = sparse(growth="set", schedule="constant")
    seen = sparsifier.masks.state_dict()
    assert sparsifier.itop == sparsifier.masks.nnz() / sparsifier.masks.size()

    def look():
        for name in seen:
            seen[name] |= sparsifier.masks[name]

    train(optimizer, batches(model), 40, after=look)
    total = sum(int(mask.sum()) for mask in seen.values())
    assert sparsifier.itop == total / sparsifier.masks.size()
    assert sparsifier.itop > 0.6


@pytest.mark.parametrize("kind", ["GCN", "GAT", "GraphSAGE"])
def test_models_of_torch_geometric(kind):
    model, loss = geometric(kind)
    model, optimizer, sparsifier = sparse(model, total_steps=60)
    start = counts_of(sparsifier.masks)
    values = train(optimizer, loss, 60)
    assert counts_of(sparsifier.masks) == start
    assert values[-1] < 0.9 * values[0]
    assert sparsifier.itop > 1 - sparsifier.masks.sparsity


@pytest.mark.parametrize("kind", ["GCN", "GraphSAGE", "SchNet"])
def test_our_models(kind):
    model, loss = ours(kind)
    model, optimizer, sparsifier = sparse(
        model, total_steps=60, exclude=["*readout.1*"][: kind == "SchNet"]
    )
    start = counts_of(sparsifier.masks)
    values = train(optimizer, loss, 60)
    assert counts_of(sparsifier.masks) == start
    assert values[-1] < 0.9 * values[0]
    for name in sparsifier.masks:
        assert not sparsifier.masks.weight(name)[~sparsifier.masks[name]].any()


def test_overrides_and_exclusions():
    _, _, sparsifier = sparse(
        densities="uniform", sparsity=0.75, overrides={"4.*": 0.0}, exclude=["0.weight"]
    )
    assert counts_of(sparsifier.masks) == {"2.weight": 27, "4.weight": 27}


def test_sparsity_0_is_dense_training():
    model, optimizer, sparsifier = sparse(sparsity=0.0)
    plain = fnn()
    found = train(optimizer, batches(model), 20)
    expected = train(OPTIMIZERS["adam"](plain.parameters()), batches(plain), 20)
    assert found == expected
    assert sparsifier.masks.sparsity == 0.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sparsity": 1.0}, r"sparsity 1 leaves none of the 72 weights of 0\.weight"),
        ({"sparsity": -0.1}, r"sparsity is -0\.1; it must be from 0"),
        ({"sparsity": 1.1}, r"sparsity is 1\.1; it must be from 0"),
        ({"overrides": {"4.*": 1.0}}, r"none of the 27 weights of 4\.weight.*keep_one=True"),
        ({"overrides": {"4.*": 1.5}}, r"the sparsity of 4\.\* is 1\.5"),
        ({"overrides": {"conv": 0.5}}, r"override 'conv' matches no weight; there are 0\.weight"),
        ({"exclude": ["conv"]}, r"exclude 'conv' matches no weight; there are 0\.weight"),
        ({"growth": "magic"}, "growth 'magic' is not one of rigl, set, snfs"),
        ({"densities": "magic"}, "densities 'magic' is not one of uniform, erk"),
        ({"momentum": 1.0}, r"momentum is 1\.0"),
        ({"death": 0.0}, r"death is 0\.0"),
        ({"stop": 2.0}, r"stop is 2\.0"),
        ({"schedule": "magic"}, "schedule 'magic' is not one of cosine"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        sparse(**wrong)


def test_an_empty_layer_keeps_one_weight_where_asked():
    model, optimizer, sparsifier = sparse(sparsity=1.0, keep_one=True)
    assert set(counts_of(sparsifier.masks).values()) == {1}
    train(optimizer, batches(model), 10)
    assert set(counts_of(sparsifier.masks).values()) == {1}


def test_a_schedule_that_never_fires_warns_with_the_numbers():
    with pytest.warns(UserWarning, match=r"every=1000.*before step 180.*total_steps=240"):
        sparse(total_steps=240, every=1000)


def test_frozen_shared_and_missing_parameters():
    model = fnn((6, 9, 9, 9, 3))
    model[4].weight = model[2].weight
    model[0].requires_grad_(False)
    _, optimizer, sparsifier = sparse(model)
    assert sparsifier.masks.names == ["2.weight", "6.weight"]
    frozen = model[0].weight.clone()
    train(optimizer, batches(model), 20)
    assert torch.equal(model[0].weight, frozen)
    assert torch.equal(model[4].weight != 0, sparsifier.masks["2.weight"] & (model[2].weight != 0))
    other = fnn()
    with pytest.raises(ValueError, match=r"optimizer does not have 2\.weight, 4\.weight"):
        DropAndGrow(other, torch.optim.SGD(other[0].parameters(), lr=0.1), total_steps=1000)


def test_a_layer_that_no_loss_reaches_stays_as_it_is():
    model = nn.ModuleDict({"used": fnn((6, 9, 3)), "unused": fnn((6, 9, 3))})
    _, optimizer, sparsifier = sparse(model)
    before = sparsifier.masks.state_dict()
    train(optimizer, batches(model["used"]), 10)
    for name in before:
        same = torch.equal(before[name], sparsifier.masks[name])
        assert same == name.startswith("unused")


def test_the_table():
    _, _, sparsifier = sparse()
    lines = repr(sparsifier).splitlines()
    assert lines[0] == (
        "DropAndGrow: rigl, step 0 of 40, 7 updates every 4 steps before step 30, death 0.5 cosine"
    )
    assert lines[1] == "63 of 207 weights active, sparsity 0.6957, ever active 0.3043"
    assert lines[2].split() == ["weight", "shape", "active", "sparsity", "ever", "active"]
    assert [line.split()[0] for line in lines[3:]] == ["0.weight", "2.weight", "4.weight"]
