import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from weft.sparsify.densities import erk
from weft.sparsify.train_and_prune import SLR, step_factor


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def samples(count=64):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 6, generator=generator)
    return x, torch.randn(count, 3, generator=generator)


def sgd(model, lr=0.05):
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def epoch(model, optimizer, method, steps=3):
    x, y = samples()
    for _ in range(steps):
        optimizer.zero_grad()
        (F.mse_loss(model(x), y) + method.penalty()).backward()
        optimizer.step()
    method.end_epoch(lambda: F.mse_loss(model(x), y))


def weights(method):
    return {name: method.masks.weight(name).detach().clone() for name in method.masks}


# ---------------------------------------------------------------- the numbers of the method


def test_step_factors():
    assert step_factor(1) == pytest.approx(0.995, abs=1e-12)
    assert step_factor(2) == pytest.approx(0.995227, abs=5e-7)
    assert step_factor(10) == pytest.approx(0.996886, abs=5e-7)
    factors = [step_factor(k) for k in range(1, 200)]
    assert factors == sorted(factors)
    assert factors[-1] < 1


def test_step_factors_as_printed():
    # 1 - 1 / (M k^(1 - 1/(k r))), by hand: r = 0.1 makes the exponents 1 - 10/k.
    expected = {1: 1 - 1 / 200, 2: 1 - 2**4 / 200, 5: 1 - 5 / 200, 10: 1 - 1 / 200}
    for k, value in expected.items():
        assert step_factor(k, alpha="printed") == pytest.approx(value, rel=1e-12)
    with pytest.raises(ValueError, match="choose from slr, printed"):
        SLR(torch.nn.Linear(4, 4), None, sparsity=0.5, alpha="paper")  # type: ignore[arg-type]


def numpy_top(values, count):
    out = np.zeros_like(values)
    order = np.argsort(-np.abs(values).ravel(), kind="stable")[:count]
    out.ravel()[order] = values.ravel()[order]
    return out


def numpy_slr(starts, goals, counts, *, rho, s, rates, steps):
    """SLR on f = Σ ½ ‖W - goal‖², written out without torch."""
    W = [w.copy() for w in starts]
    Z = [numpy_top(w, c) for w, c in zip(W, counts, strict=True)]
    dual = [np.zeros_like(w) for w in W]
    before, k, trace = [w.copy() for w in W], 1, []

    def f(weights):
        return sum(0.5 * ((w - g) ** 2).sum() for w, g in zip(weights, goals, strict=True))

    def lagrangian(weights, Z):
        gaps = [w - z for w, z in zip(weights, Z, strict=True)]
        linear = sum((d * gap).sum() for d, gap in zip(dual, gaps, strict=True))
        return f(weights) + linear + rho / 2 * sum((gap**2).sum() for gap in gaps)

    def norm(one, other):
        return np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(one, other, strict=True)))

    for lr in rates:
        for _ in range(steps):
            slopes = [
                w - g + d + rho * (w - z) for w, g, d, z in zip(W, goals, dual, Z, strict=True)
            ]
            W = [w - lr * slope for w, slope in zip(W, slopes, strict=True)]
        alpha = 1 - 1 / (200 * k ** (1 - k**-0.1))
        first = lagrangian(W, Z) < lagrangian(before, Z)
        gap = norm(before, Z)
        if first:
            s = alpha * s * gap / norm(W, Z)
            dual = [d + s * (w - z) for d, w, z in zip(dual, W, Z, strict=True)]
        new = [numpy_top(w + d / rho, c) for w, d, c in zip(W, dual, counts, strict=True)]
        second = lagrangian(W, new) < lagrangian(W, Z)
        if second:
            s = alpha * s * gap / norm(W, new)
            dual = [d + s * (w - z) for d, w, z in zip(dual, W, new, strict=True)]
            k += 1
        Z, before = new, [w.copy() for w in W]
        trace.append((W, Z, dual, s, k, (first, second)))
    return trace


class Quadratic(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(5, 4, bias=False)
        self.b = nn.Linear(4, 3, bias=False)
        self.double()
        self.goals = [torch.randn_like(self.a.weight), torch.randn_like(self.b.weight)]

    def loss(self):
        pairs = zip((self.a.weight, self.b.weight), self.goals, strict=True)
        return sum(0.5 * (w - goal).square().sum() for w, goal in pairs)


# A rate of 1.9 overshoots, so that L rises in W and only Z's condition holds.
@pytest.mark.parametrize(
    ("rates", "rho", "held"),
    [
        ([0.05] * 9, 0.02, {True}),
        ([0.3] * 9, 0.5, {True}),
        ([1.9] * 9, 0.3, {False}),
        ([0.3, 0.3, 1.9, 1.9, 0.2, 0.2, 1.9, 0.1, 0.1], 0.3, {True, False}),
    ],
)
def test_equals_a_plain_implementation(rates, rho, held):
    model = Quadratic()
    starts = [w.detach().numpy().copy() for w in (model.a.weight, model.b.weight)]
    goals = [goal.numpy() for goal in model.goals]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    slr = SLR(model, optimizer, sparsity=0.75, phases=(0, 9, 0), rho=rho, step=0.03)
    counts = [5, 3]
    trace = numpy_slr(starts, goals, counts, rho=rho, s=0.03, rates=rates, steps=2)
    assert {conditions[0] for *_, conditions in trace} == held
    for number, (W, Z, dual, s, k, conditions) in enumerate(trace):
        optimizer.param_groups[0]["lr"] = rates[number]
        for _ in range(2):
            optimizer.zero_grad()
            (model.loss() + slr.penalty()).backward()
            optimizer.step()
        last = number == len(trace) - 1
        if not last:
            slr.end_epoch(model.loss)
            assert slr.conditions == conditions
            assert slr.iteration == k
            assert slr.step == pytest.approx(s, rel=1e-10)
            for name, w, z, d in zip(("a.weight", "b.weight"), W, Z, dual, strict=True):
                np.testing.assert_allclose(slr.masks.weight(name).detach().numpy(), w, rtol=1e-9)
                np.testing.assert_allclose(slr.targets[name].numpy(), z, rtol=1e-9, atol=1e-12)
                np.testing.assert_allclose(slr.multipliers[name].numpy(), d, rtol=1e-9, atol=1e-12)
    slr.end_epoch(model.loss)
    assert slr.phase == "done"
    for name, w, count in zip(("a.weight", "b.weight"), trace[-1][0], counts, strict=True):
        np.testing.assert_allclose(
            slr.masks.weight(name).detach().numpy(), numpy_top(w, count), rtol=1e-9, atol=0
        )


def test_a_rising_loss_moves_no_multipliers_by_the_first_condition():
    model = network()
    optimizer = sgd(model)
    slr = SLR(model, optimizer, sparsity=0.5, phases=(0, 5, 1), rho=0.1, step=0.1)
    with torch.no_grad():
        model[0].weight.add_(0.3 * torch.sign(model[0].weight))
    moved = {name: w - slr.targets[name] for name, w in weights(slr).items()}
    values = iter([5.0, 1.0])  # now, an epoch ago
    slr.end_epoch(lambda: next(values))
    assert slr.conditions[0] is False
    # Z still moves to the new weights, after which W - Z is smaller: the second condition holds.
    assert slr.conditions[1] is True
    assert slr.iteration == 2
    for name, weight in weights(slr).items():
        gap = weight - slr.targets[name]
        torch.testing.assert_close(slr.multipliers[name], slr.step * gap)
        assert gap.norm() <= moved[name].norm()


def test_an_iteration_is_repeated_where_z_does_not_change():
    model = network()
    slr = SLR(model, sgd(model), sparsity=0.5, phases=(0, 5, 1))
    step = slr.step
    # Nothing was trained: neither inequality is strict.
    slr.end_epoch(lambda: 1.0)
    assert slr.conditions == (False, False)
    assert (slr.iteration, slr.step, slr.epoch) == (1, step, 1)
    assert all((multiplier == 0).all() for multiplier in slr.multipliers.values())


def test_weights_that_are_sparse_already_give_no_direction():
    model = network()
    slr = SLR(model, sgd(model), sparsity=0.0, phases=(0, 2, 1))
    with torch.no_grad():
        model[0].weight.mul_(1.5)
    values = iter([1.0, 9.0])
    slr.end_epoch(lambda: next(values))
    assert np.isfinite(slr.step)
    assert slr.step > 0
    assert all(m.isfinite().all() for m in slr.multipliers.values())


# ---------------------------------------------------------------- snapshots and gradients


def test_snapshots_are_not_aliases():
    model = network()
    optimizer = sgd(model)
    slr = SLR(model, optimizer, sparsity=0.5, phases=(0, 3, 1))
    x, y = samples()
    targets = {name: z.clone() for name, z in slr.targets.items()}
    start = F.mse_loss(model(x), y).item()
    for _ in range(4):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    assert all(torch.equal(slr.targets[name], targets[name]) for name in targets)
    seen = []

    def objective():
        seen.append(F.mse_loss(model(x), y).item())
        assert not model.training
        assert not torch.is_grad_enabled()
        return seen[-1]

    now = {name: value.clone() for name, value in model.state_dict().items()}
    slr.end_epoch(objective)
    # With the weights of now, then with those from before the epoch, biases too.
    assert seen[1] == pytest.approx(start, rel=1e-6)
    assert seen[0] < seen[1]
    assert model.training
    assert all(torch.equal(value, now[name]) for name, value in model.state_dict().items())


def test_gradients_flow_to_the_weights_alone():
    model = network()
    slr = SLR(model, sgd(model), sparsity=0.5, phases=(0, 3, 1), rho=0.2, step=0.4)
    epoch(model, slr.optimizer, slr)
    assert not any(t.requires_grad for t in (*slr.targets.values(), *slr.multipliers.values()))
    model.zero_grad()
    slr.penalty().backward()
    for name, weight in weights(slr).items():
        wanted = slr.multipliers[name] + 0.2 * (weight - slr.targets[name])
        torch.testing.assert_close(slr.masks.weight(name).grad, wanted)
    assert model[0].bias.grad is None


def test_targets_have_exactly_the_wanted_nonzeros_by_layer():
    model = network()
    optimizer = sgd(model)
    slr = SLR(
        model, optimizer, sparsity=0.8, phases=(1, 4, 1), overrides={"2.*": 0.5}, rho=0.3, step=0.3
    )
    for _ in range(4):
        epoch(model, optimizer, slr)
        counts = {name: int((z != 0).sum()) for name, z in slr.targets.items()}
        assert counts == {"0.weight": 10, "2.weight": 12}


def test_narrow_layers_may_be_spared():
    model = network()
    slr = SLR(model, sgd(model), sparsity=0.75, phases=(0, 0, 1), densities="erk")
    shapes = {"0.weight": (8, 6), "2.weight": (3, 8)}
    wanted = {name: round(d * math.prod(shapes[name])) for name, d in erk(shapes, 0.25).items()}
    assert {name: slr.masks.nnz(name) for name in slr.masks} == wanted
    assert wanted["2.weight"] > 6


# ---------------------------------------------------------------- phases


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
        lambda p: torch.optim.Adam(p, lr=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01),
    ],
    ids=["sgd", "adam", "adamw"],
)
def test_phases_in_a_loop(make):
    model = network()
    optimizer = make(model.parameters())
    slr = SLR(model, optimizer, sparsity=0.75, phases=(2, 3, 2), rho=0.1, step=0.1)
    wanted = {"0.weight": 12, "2.weight": 6}
    x, y = samples()
    seen, objectives = [], []
    for _ in range(slr.total_epochs):
        seen.append(slr.phase)
        for _ in range(3):
            optimizer.zero_grad()
            penalty = slr.penalty()
            assert (penalty.item() != 0) == (slr.phase == "reweight")
            (F.mse_loss(model(x), y) + penalty).backward()
            optimizer.step()
            nonzeros = {name: int((w != 0).sum()) for name, w in weights(slr).items()}
            if slr.phase == "retrain":
                assert nonzeros == wanted
                assert all((w[~slr.masks[name]] == 0).all() for name, w in weights(slr).items())
            else:
                assert nonzeros == {"0.weight": 48, "2.weight": 24}
        slr.end_epoch(lambda: objectives.append(slr.epoch) or F.mse_loss(model(x), y))
    assert seen == ["dense"] * 2 + ["reweight"] * 3 + ["retrain"] * 2
    assert objectives == [2, 2, 3, 3, 4, 4]
    assert slr.phase == "done"
    # Whoever trains on keeps the sparse model.
    epoch(model, optimizer, slr)
    assert {name: slr.masks.nnz(name) for name in slr.masks} == wanted
    assert {name: int((w != 0).sum()) for name, w in weights(slr).items()} == wanted


def test_pruning_keeps_the_largest_and_the_optimizer_forgets_the_others():
    model = network()
    optimizer = sgd(model)
    slr = SLR(model, optimizer, sparsity=0.75, phases=(1, 0, 1))
    x, y = samples()
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()
    before = weights(slr)
    slr.end_epoch()
    for name, weight in before.items():
        mask = slr.masks[name]
        assert weight[mask].abs().min() >= weight[~mask].abs().max()
        assert torch.equal(slr.masks.weight(name).detach(), weight * mask)
        momentum = optimizer.state[slr.masks.weight(name)]["momentum_buffer"]
        assert (momentum[~mask] == 0).all()
        assert (momentum[mask] != 0).any()


@pytest.mark.parametrize(
    ("phases", "first"),
    [
        ((0, 2, 1), "reweight"),
        ((0, 0, 2), "retrain"),
        ((1, 0, 1), "dense"),
        ((0, 0, 0), "done"),
        ((1, 1, 0), "dense"),
    ],
)
def test_a_phase_may_have_no_epochs(phases, first):
    model = network()
    optimizer = sgd(model)
    slr = SLR(model, optimizer, sparsity=0.5, phases=phases)
    assert slr.phase == first
    for _ in range(slr.total_epochs):
        epoch(model, optimizer, slr)
    assert slr.phase == "done"
    assert slr.masks.nnz() == 36
    assert sum(int((w != 0).sum()) for w in weights(slr).values()) == 36


def test_a_model_of_a_stranger():
    pyg = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    model = pyg.GCN(5, 8, num_layers=2, out_channels=3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    slr = SLR(model, optimizer, sparsity=0.75, phases=(1, 2, 1))
    x, edges = torch.randn(4, 5), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    for _ in range(4):
        optimizer.zero_grad()
        (model(x, edges).square().mean() + slr.penalty()).backward()
        optimizer.step()
        slr.end_epoch(lambda: model(x, edges).square().mean())
    assert {name: slr.masks.nnz(name) for name in slr.masks} == {
        "convs.0.lin.weight": 10,
        "convs.1.lin.weight": 6,
    }


# ---------------------------------------------------------------- saving and copying


@pytest.mark.parametrize("stop", [1, 3, 6])
def test_a_state_goes_on_to_the_same_weights(stop, tmp_path):
    def start(seed):
        model = network(seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        slr = SLR(model, optimizer, sparsity=0.8, phases=(2, 3, 3), rho=0.2, step=0.2)
        return model, optimizer, slr

    model, optimizer, slr = start(0)
    for number in range(slr.total_epochs):
        if number == stop:
            states = [part.state_dict() for part in (model, optimizer, slr)]
            torch.save(states, tmp_path / "state.pt")
        epoch(model, optimizer, slr)
    other = start(5)
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    for part, state in zip(other, saved, strict=True):
        part.load_state_dict(state)
    assert other[2].epoch == stop
    while other[2].phase != "done":
        epoch(*other)
    assert other[2].step == slr.step
    for name, value in model.state_dict().items():
        assert torch.equal(value, other[0].state_dict()[name])
    assert all(torch.equal(slr.masks[name], other[2].masks[name]) for name in slr.masks)


def test_a_state_of_an_earlier_phase_takes_the_masks_off():
    model = network()
    optimizer = sgd(model)
    slr = SLR(model, optimizer, sparsity=0.5, phases=(1, 0, 2))
    early, start = slr.state_dict(), copy.deepcopy(model.state_dict())
    epoch(model, optimizer, slr)
    assert slr.masks.nnz() == 36
    model.load_state_dict(start)
    slr.load_state_dict(early)
    assert slr.phase == "dense"
    assert slr.masks.nnz() == 72
    optimizer.step()
    assert all((w != 0).all() for w in weights(slr).values())


def test_a_state_of_other_settings_is_refused():
    model = network()
    state = SLR(model, sgd(model), sparsity=0.5).state_dict()
    with pytest.raises(ValueError, match=r"phases is \(20, 10, 10\), here it is \(1, 2, 3\)"):
        SLR(model, sgd(model), sparsity=0.5, phases=(1, 2, 3)).load_state_dict(state)
    with pytest.raises(ValueError, match="weights to keep"):
        SLR(model, sgd(model), sparsity=0.6).load_state_dict(state)


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_a_deep_copy_goes_its_own_way(stop):
    model = network()
    optimizer = sgd(model)
    slr = SLR(model, optimizer, sparsity=0.8, phases=(2, 2, 3), rho=0.2, step=0.2)
    for _ in range(stop):
        epoch(model, optimizer, slr)
    theirs = copy.deepcopy((model, optimizer, slr))
    before = weights(theirs[2])
    while slr.phase != "done":
        epoch(model, optimizer, slr)
    assert all(torch.equal(w, before[name]) for name, w in weights(theirs[2]).items())
    while theirs[2].phase != "done":
        epoch(*theirs)
    for name, weight in weights(slr).items():
        assert torch.equal(weight, theirs[2].masks.weight(name))
        assert theirs[0].get_parameter(name) is theirs[2].masks.weight(name)


def test_repr_tells_the_phase_and_the_layers():
    model = network()
    text = repr(SLR(model, sgd(model), sparsity=0.5, phases=(0, 0, 3)))
    assert "epoch 0 of 3 (0 + 0 + 3), phase retrain" in text
    assert "0.weight" in text
    assert "0.5000" in text


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": -0.1}, "sparsity is -0.1"),
        ({"sparsity": 1.5}, "sparsity is 1.5"),
        ({"sparsity": 1.0}, "0.weight"),
        ({"sparsity": 0.99}, "0.weight|2.weight"),
        ({"phases": (1, 2)}, r"phases is \(1, 2\)"),
        ({"phases": (1, -2, 3)}, r"phases is \(1, -2, 3\)"),
        ({"phases": (1, 2.5, 3)}, "whole numbers"),
        ({"densities": "even"}, "densities 'even' is not one of uniform, erk"),
        ({"rho": 0.0}, "rho is 0.0"),
        ({"rho": float("nan")}, "rho is nan"),
        ({"step": -1.0}, "step is -1.0"),
        ({"M": 1.0}, "M is 1.0"),
        ({"r": 1.0}, "r is 1.0"),
        ({"exclude": ("nothing*",)}, "nothing"),
        ({"overrides": {"nothing": 0.5}}, "nothing"),
    ],
)
def test_wrong_settings(settings, message):
    model = network()
    with pytest.raises(ValueError, match=message):
        SLR(model, sgd(model), **{"sparsity": 0.5, **settings})


def test_one_weight_may_be_kept():
    model = network()
    slr = SLR(model, sgd(model), sparsity=0.99, phases=(0, 0, 1), keep_one=True)
    assert [slr.masks.nnz(name) for name in slr.masks] == [1, 1]


def test_an_optimizer_without_the_weights_is_known_at_once():
    model = network()
    with pytest.raises(ValueError, match=r"2\.weight"):
        SLR(model, torch.optim.SGD(model[0].parameters(), lr=0.1), sparsity=0.5)


def test_reweighting_needs_a_finite_objective():
    model = network()
    slr = SLR(model, sgd(model), sparsity=0.5, phases=(0, 2, 1))
    with pytest.raises(ValueError, match="function that computes the loss"):
        slr.end_epoch()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="objective is nan"):
        slr.end_epoch(lambda: float("nan"))
    assert slr.epoch == 0
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
