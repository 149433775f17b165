"""Gradual pruning: exact counts at every step, nothing comes back, resuming, bad settings."""

import copy

import pytest
import torch
from small_models import OPTIMIZERS, batches, fnn, geometric, train

from weft.sparsify import GradualPruning, nnz_of

SHORT = {"total_steps": 40, "every": 4, "sparsity": 0.8}


def pruned(model=None, optimizer="adam", **changes):
    model = model or fnn()
    made = OPTIMIZERS[optimizer](model.parameters())
    return model, made, GradualPruning(model, made, **{**SHORT, **changes})


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
@pytest.mark.parametrize(("initial", "begin"), [(0.0, 0), (0.2, 6)])
def test_counts_are_those_of_the_cubic_curve_at_every_step(optimizer, initial, begin):
    model, optimizer, pruning = pruned(optimizer=optimizer, initial=initial, begin=begin)
    masks, step, last = pruning.masks, 0, pruning.masks.state_dict()

    def expected():
        if step < begin:
            return 0.0
        at = 30 if step >= 30 else begin + (step - begin) // 4 * 4
        return 0.8 + (initial - 0.8) * (1 - (at - begin) / (30 - begin)) ** 3

    def check():
        nonlocal step, last
        step += 1
        for name in masks:
            assert masks.nnz(name) == nnz_of(1 - expected(), masks.size(name))
            assert not (masks[name] & ~last[name]).any()
            assert not masks.weight(name)[~masks[name]].any()
        last = masks.state_dict()

    assert masks.nnz() == sum(nnz_of(1 - expected(), masks.size(name)) for name in masks)
    train(optimizer, batches(model), 40, after=check)


def test_the_smallest_go_first():
    model, optimizer, pruning = pruned(total_steps=8, every=3, stop=0.5)
    train(optimizer, batches(model), 2)
    other, theirs = copy.deepcopy((model, optimizer))
    loss = batches(model, seed=3)
    train(optimizer, loss, 1)
    train(theirs, batches(other, seed=3), 1)
    for name in pruning.masks:
        sizes, kept = other.get_parameter(name).abs(), pruning.masks[name]
        assert 0 < kept.sum() < kept.numel()
        assert sizes[kept].min() >= sizes[~kept].max()


def test_a_layer_of_its_own_sparsity():
    model, optimizer, pruning = pruned(
        overrides={"2.*": 0.5, "4.*": 0.1}, initial=0.3, exclude=["0.weight"]
    )
    # Denser at the end than others at the beginning: never pruned below its own.
    assert pruning.masks.nnz("4.weight") == nnz_of(0.9, 27)
    train(optimizer, batches(model), 40)
    assert {n: pruning.masks.nnz(n) for n in pruning.masks} == {"2.weight": 54, "4.weight": 24}


@pytest.mark.parametrize("made_first", [True, False])
def test_a_run_goes_on_from_its_states_to_the_bit(made_first):
    model, optimizer, pruning = pruned(initial=0.2)
    loss = batches(model)
    train(optimizer, loss, 14)
    states = copy.deepcopy([part.state_dict() for part in (model, optimizer, pruning)])
    train(optimizer, loss, 26)
    other = fnn(seed=4)
    if made_first:
        _, theirs, again = pruned(other, initial=0.2)
        other.load_state_dict(states[0])
    else:
        other.load_state_dict(states[0])
        _, theirs, again = pruned(other, initial=0.2)
    theirs.load_state_dict(states[1])
    again.load_state_dict(states[2])
    loss = batches(other)
    for _ in range(14):
        loss()
    train(theirs, loss, 26)
    assert all(torch.equal(v, other.state_dict()[k]) for k, v in model.state_dict().items())
    assert again.step == 40


def test_a_deep_copy_prunes_by_itself():
    model, optimizer, pruning = pruned()
    train(optimizer, batches(model), 10)
    now = pruning.masks.nnz()
    model_2, optimizer_2, pruning_2 = copy.deepcopy((model, optimizer, pruning))
    train(optimizer_2, batches(model_2), 30)
    assert pruning.masks.nnz() == now > pruning_2.masks.nnz()


def test_a_model_of_torch_geometric():
    model, loss = geometric("GAT")
    model, optimizer, pruning = pruned(model)
    values = train(optimizer, loss, 40)
    assert values[-1] < values[0]
    assert pruning.masks.sparsity == pytest.approx(0.8, abs=0.01)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"sparsity": 1.0}, r"leaves none of the 72 weights of 0\.weight"),
        ({"sparsity": -1.0}, r"sparsity is -1\.0"),
        ({"initial": 1.0}, r"initial is 1\.0"),
        ({"begin": 30}, "begin is 30; it must be from 0 to below step 30"),
        ({"overrides": {"x": 0.5}}, "override 'x' matches no weight"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        pruned(**wrong)


def test_an_empty_layer_keeps_one_weight_where_asked():
    model, optimizer, pruning = pruned(sparsity=1.0, keep_one=True)
    train(optimizer, batches(model), 40)
    assert {pruning.masks.nnz(name) for name in pruning.masks} == {1}


def test_pruning_at_once_warns_with_the_numbers():
    with pytest.warns(UserWarning, match=r"all of it is at step 180, as every=1000"):
        pruned(total_steps=240, every=1000)


def test_the_table():
    lines = repr(pruned()[2]).splitlines()
    assert lines[0] == "GradualPruning: step 0 of 40, every 4 steps from 0 to 30"
    assert lines[1] == "Masks: 207 of 207 weights active, sparsity 0.0000"
