"""Masks chosen once: each score by its definition, exact counts, the model as it was."""

import copy

import pytest
import torch
from small_models import fnn, geometric, ours, train
from torch import nn

from weft.sparsify import (
    Masks,
    erk,
    grasp_masks,
    keep_top,
    magnitude_masks,
    nnz_of,
    random_masks,
    snip_masks,
    synflow_masks,
    uniform,
)


def data(rows=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 6, generator=generator, dtype=torch.float64)
    return x, torch.arange(rows) % 3


def loss_of(model):
    x, y = data()
    return lambda: nn.functional.cross_entropy(model(x), y)


def ones_of(model):
    return lambda: model(torch.ones(1, 6, dtype=torch.float64))


METHODS = {
    "random": lambda model, masks, density, **k: random_masks(model, masks, density, **k),
    "magnitude": lambda model, masks, density, **k: magnitude_masks(model, masks, density, **k),
    "snip": lambda model, masks, density, **k: snip_masks(
        model, masks, density, loss_of(model), **k
    ),
    "grasp": lambda model, masks, density, **k: grasp_masks(
        model, masks, density, loss_of(model), **k
    ),
    "synflow": lambda model, masks, density, **k: synflow_masks(
        model, masks, density, ones_of(model), **k
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_counts_are_exact_and_only_masked_weights_change(method):
    model = fnn()
    before = copy.deepcopy(model.state_dict())
    model[1].eval()
    masks = Masks(model)
    METHODS[method](model, masks, 0.3)
    assert masks.nnz() == nnz_of(0.3, masks.size())
    for name, value in model.state_dict().items():
        expected = (
            torch.where(masks[name], before[name], 0.0) if name in masks.names else before[name]
        )
        assert torch.equal(value, expected)
    assert [module.training for module in model.modules()] == [True, True, False, *[True] * 3]
    assert all(p.grad is None for p in model.parameters())

    model.load_state_dict(before)
    for rule in (erk, uniform):
        densities = rule(masks.shapes, 0.25)
        METHODS[method](model, masks, densities)
        for name in masks:
            assert masks.nnz(name) == nnz_of(densities[name], masks.size(name))
        model.load_state_dict(before)


def test_magnitude_keeps_the_largest_of_all_layers():
    model = fnn()
    every = torch.cat([p.detach().abs().flatten() for p in map(Masks(model).weight, Masks(model))])
    masks = Masks(model)
    magnitude_masks(model, masks, 0.4)
    kept = torch.cat([masks[name].flatten() for name in masks])
    assert every[kept].min() >= every[~kept].max()


def test_equal_scores_are_kept_from_the_first():
    model = fnn()
    masks = Masks(model)
    keep_top(
        masks, {name: torch.ones(masks.shapes[name]) for name in masks}, uniform(masks.shapes, 0.5)
    )
    assert masks["0.weight"].flatten().tolist() == [True] * 36 + [False] * 36


def test_snip_is_what_the_loss_feels():
    """|g · w| is the slope of the loss in a factor on the weight."""
    model = fnn()
    loss, name = loss_of(model), "2.weight"
    factor = torch.ones(9, 12, dtype=torch.float64, requires_grad=True)
    x, y = data()
    out = torch.func.functional_call(model, {name: model[2].weight.detach() * factor}, (x,))
    nn.functional.cross_entropy(out, y).backward()
    masks = Masks(model, include=[name])
    snip_masks(model, masks, 0.3, loss)
    scores = factor.grad.abs()
    assert scores[masks[name]].min() >= scores[~masks[name]].max()


def flow(model, loss, names):
    """The squared norm of the gradient."""
    weights = [model.get_parameter(name) for name in names]
    return sum(g.square().sum() for g in torch.autograd.grad(loss(), weights)).item()


def test_grasp_keeps_what_gradients_need_to_flow():
    torch.manual_seed(0)
    # Smooth, so that first order tells what removing a little of each weight does.
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    loss, name = loss_of(model), "0.weight"
    weight, change = model[0].weight, torch.zeros(30, dtype=torch.float64)
    names = ["0.weight", "2.weight"]
    now = flow(model, loss, names)
    for i in range(30):
        with torch.no_grad():
            old = weight.view(-1)[i].clone()
            weight.view(-1)[i] *= 1 - 1e-6
        change[i] = (flow(model, loss, names) - now) / 1e-6
        with torch.no_grad():
            weight.view(-1)[i] = old
    masks = Masks(model)
    grasp_masks(model, masks, {"0.weight": 0.5, "2.weight": 1.0}, loss)
    kept = masks[name].flatten()
    # Removing what is kept would cost the most flow.
    assert change[kept].max() <= change[~kept].min() + 1e-6
    assert change[kept].min() < 0 < change[~kept].max()


def test_grasp_has_the_right_sign():
    """Of all weights a few: more gradient is left than by the opposite choice."""
    model = fnn((6, 30, 20, 3))
    weights, loss = copy.deepcopy(model.state_dict()), loss_of(model)
    masks = Masks(model)
    grasp_masks(model, masks, 0.9, loss)
    right = flow(model, loss, masks.names)
    model.load_state_dict(weights)
    gradients = torch.autograd.grad(loss(), [masks.weight(n) for n in masks], create_graph=True)
    products = torch.autograd.grad(
        sum((g.detach() * g).sum() for g in gradients), [masks.weight(n) for n in masks]
    )
    opposite = {
        name: -masks.weight(name).detach() * product
        for name, product in zip(masks, products, strict=True)
    }
    keep_top(masks, opposite, 0.9)
    assert right > flow(model, loss, masks.names)


def synflow_by_hand(weights, density, rounds):
    """For a chain of linear layers: outputs' sum is 1ᵀ |W_n| ... |W_1| 1."""
    sizes = [w.numel() for w in weights]
    masks = [torch.ones_like(w) for w in weights]
    for number in range(1, rounds + 1):
        parts = [w.abs() * m for w, m in zip(weights, masks, strict=True)]
        scores = []
        for i, part in enumerate(parts):
            left = torch.ones(parts[-1].shape[0], dtype=torch.float64)
            for other in reversed(parts[i + 1 :]):
                left = left @ other
            right = torch.ones(parts[0].shape[1], dtype=torch.float64)
            for other in parts[:i]:
                right = other @ right
            scores.append((left[:, None] * part * right[None, :]).flatten())
        every = torch.cat(scores)
        kept = every.argsort(descending=True, stable=True)[
            : round(density ** (number / rounds) * sum(sizes))
        ]
        flat = torch.zeros_like(every)
        flat[kept] = 1
        masks = [m.view(w.shape) for m, w in zip(flat.split(sizes), weights, strict=True)]
    return masks


@pytest.mark.parametrize("rounds", [1, 7, 100])
def test_synflow_is_that_of_its_definition(rounds):
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(a, b, bias=False) for a, b in ((6, 9), (9, 7), (7, 3)))
    ).double()
    expected = synflow_by_hand([p.detach().clone() for p in model.parameters()], 0.1, rounds)
    masks = Masks(model)
    synflow_masks(model, masks, 0.1, ones_of(model), rounds=rounds)
    assert all(torch.equal(masks[n], m.bool()) for n, m in zip(masks, expected, strict=True))


def test_synflow_never_cuts_a_network_where_magnitude_does():
    model = fnn((6, 40, 40, 40, 3))
    with torch.no_grad():
        model[4].weight *= 0.01
    masks = Masks(model)
    with pytest.raises(ValueError, match=r"density 0\.2.*none of the 1,600 weights of 4\.weight"):
        magnitude_masks(model, masks, 0.2)
    assert masks.sparsity == 0.0
    synflow_masks(model, masks, 0.03, ones_of(model))
    assert all(masks.nnz(name) for name in masks)
    out = model(torch.randn(5, 6, dtype=torch.float64))
    assert out.std(0).any()


def test_a_layer_that_would_be_empty_keeps_one_weight_where_asked():
    model = fnn((6, 40, 40, 40, 3))
    with torch.no_grad():
        model[4].weight *= 0.01
    largest = model[4].weight.abs().argmax()
    masks = Masks(model)
    magnitude_masks(model, masks, 0.2, keep_one=True)
    assert masks.nnz() == nnz_of(0.2, masks.size())
    assert masks["4.weight"].flatten().nonzero().tolist() == [[largest]]
    magnitude_masks(model, masks, 0.0, keep_one=True)
    assert {masks.nnz(name) for name in masks} == {1}


def test_synflow_puts_everything_back_where_it_fails():
    model = fnn()
    masks, before = Masks(model), copy.deepcopy(model.state_dict())

    def infinite():
        return model(torch.full((1, 6), torch.inf, dtype=torch.float64))

    with pytest.raises(ValueError, match=r"the synaptic flow is inf.*model\.double\(\)"):
        synflow_masks(model, masks, 0.5, infinite)
    with pytest.raises(ValueError, match="rounds is 0"):
        synflow_masks(model, masks, 0.5, ones_of(model), rounds=0)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert masks.sparsity == 0.0
    assert model.training


def test_random_masks_are_of_their_seed():
    def made(seed):
        model = fnn()
        masks = Masks(model)
        random_masks(model, masks, 0.3, seed=seed)
        return torch.cat([masks[name].flatten() for name in masks])

    assert torch.equal(made(0), made(0))
    assert not torch.equal(made(0), made(1))


@pytest.mark.parametrize("kind", ["GCN", "GAT", "GraphSAGE"])
@pytest.mark.parametrize("method", [snip_masks, grasp_masks, synflow_masks])
def test_models_of_torch_geometric(kind, method):
    model, loss = geometric(kind)
    masks = Masks(model)
    method(model, masks, 0.3, loss)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    masks.attach(optimizer)
    values = train(optimizer, loss, 30)
    assert values[-1] < values[0]
    assert masks.nnz() == nnz_of(0.3, masks.size())


@pytest.mark.parametrize("kind", ["GCN", "GraphSAGE", "SchNet"])
@pytest.mark.parametrize("method", [snip_masks, grasp_masks, synflow_masks])
def test_our_models(kind, method):
    model, loss = ours(kind)
    masks = Masks(model)
    method(model, masks, 0.3, loss, keep_one=True)
    assert masks.nnz() == nnz_of(0.3, masks.size())


class Once(torch.autograd.Function):
    """A square that can be differentiated once."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


def test_a_loss_without_a_second_derivative():
    model = torch.nn.Linear(4, 3)
    masks = Masks(model)
    with pytest.raises(ValueError, match=r"no second derivative \(.*choose another score"):
        grasp_masks(model, masks, 0.3, lambda: Once.apply(model(torch.ones(2, 4))).sum())


@pytest.mark.parametrize(
    ("density", "message"),
    [
        (-0.1, r"density is -0\.1; it must be above 0"),
        (1.1, r"density is 1\.1; it must be above 0"),
        (0.0, r"density 0 of all layers leaves none of the 72 weights of 0\.weight"),
        ({"0.weight": 2.0}, r"the density of 0\.weight is 2\.0"),
        ({"0.weight": 0.5}, r"densities are of 0\.weight; they must be of 0\.weight, 2\.weight"),
        (
            {"0.weight": 0.5, "2.weight": 0.0, "4.weight": 1},
            r"none of the 108 weights of 2\.weight",
        ),
    ],
)
@pytest.mark.parametrize("method", ["magnitude", "synflow"])
def test_densities_that_cannot_be_are_refused(method, density, message):
    model = fnn()
    with pytest.raises(ValueError, match=message):
        METHODS[method](model, Masks(model), density)


def test_masks_of_another_model_are_refused():
    masks = Masks(fnn())
    with pytest.raises(ValueError, match="the masks are of another model's weights"):
        magnitude_masks(fnn(), masks, 0.5)
