import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from weft.graphs import Budget, Graph, assemble, gcn_weights, symmetrised, table_from_graphs
from weft.kernels import spmm
from weft.models import GCN, GCNConfig
from weft.sparsify.ugs import UGS

NODES, FEATURES, CLASSES = 30, 6, 3


def communities():
    """Three groups of nodes, most edges inside one, some between."""
    rng = np.random.default_rng(0)
    labels = np.arange(NODES) % CLASSES
    ends = rng.integers(NODES, size=(2, 140))
    ends = ends[:, ends[0] != ends[1]]
    same = labels[ends[0]] == labels[ends[1]]
    ends = ends[:, same | (rng.random(len(same)) < 0.3)]
    x = np.eye(CLASSES, FEATURES)[labels] + 0.7 * rng.standard_normal((NODES, FEATURES))
    graph = Graph(
        num_nodes=NODES,
        senders=ends[0],
        receivers=ends[1],
        nodes={"x": x.astype(np.float32)},
    )
    return gcn_weights(symmetrised(graph)), torch.from_numpy(labels)


def problem(budget=None):
    graph, labels = communities()
    batch = assemble(table_from_graphs([graph]), [0], budget)
    torch.manual_seed(0)
    model = GCN(FEATURES, CLASSES, GCNConfig(hidden=(8,), dropout=0.0, input_dropout=0.0))
    return model, batch, labels


def train(ugs, batch, labels, epochs=20):
    optimizer = torch.optim.Adam(ugs.parameters(), lr=0.02)
    for _ in range(epochs):
        optimizer.zero_grad()
        out = ugs(ugs.weighted(batch))[: len(labels)]
        (F.cross_entropy(out, labels) + ugs.penalty()).backward()
        optimizer.step()


def copies(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_counts_are_exact_in_every_round():
    model, batch, labels = problem()
    ugs = UGS(model, batch, edge_fraction=0.05, weight_fraction=0.2)
    edges, weights = batch.num_edges - NODES, 6 * 8 + 8 * 3
    assert (ugs.edge_sparsity, ugs.masks.sparsity) == (0.0, 0.0)
    for number in range(1, 5):
        train(ugs, batch, labels, epochs=5)
        before = ugs.edge_mask.clone(), ugs.masks.state_dict()
        ugs.prune()
        edges -= round(0.05 * edges)
        weights -= round(0.2 * weights)
        assert int(ugs.edge_mask.sum()) == edges + NODES
        assert ugs.masks.nnz() == weights
        assert ugs.rounds == number
        # What is pruned stays so.
        assert not (ugs.edge_mask & ~before[0]).any()
        assert not any((ugs.masks[name] & ~before[1][name]).any() for name in ugs.masks)
    assert ugs.edge_mask[batch.senders == batch.receivers].all()


def test_the_smallest_masks_go():
    model, batch, _ = problem()
    ugs = UGS(model, batch, edge_fraction=0.25, weight_fraction=0.5)
    with torch.no_grad():
        ugs.edge_scale.copy_(torch.randn_like(ugs.edge_scale))
        for scale in ugs.weight_scales:
            scale.copy_(torch.randn_like(scale))
    edge_scale = ugs.edge_scale.detach().abs().clone()
    flat = torch.cat([scale.detach().abs().flatten() for scale in ugs.weight_scales])
    ugs.prune()
    loop = batch.senders == batch.receivers
    kept, lost = edge_scale[ugs.edge_mask & ~loop], edge_scale[~ugs.edge_mask]
    assert kept.min() >= lost.max()
    active = torch.cat([ugs.masks[name].flatten() for name in ugs.masks])
    assert flat[active].min() >= flat[~active].max()


def test_rewinds_weights_and_begins_masks_again():
    model, batch, labels = problem()
    start = copies(model)
    ugs = UGS(model, batch)
    train(ugs, batch, labels)
    assert not torch.equal(model.layers[0].weight, start["layers.0.weight"])
    assert (ugs.edge_scale != 1).any()
    ugs.prune()
    for name, value in model.state_dict().items():
        mask = ugs.masks[name] if name in ugs.masks.names else 1
        assert torch.equal(value, start[name] * mask)
    assert all((scale == 1).all() for scale in (ugs.edge_scale, *ugs.weight_scales))


def test_rewinds_to_an_early_step():
    model, batch, labels = problem()
    ugs = UGS(model, batch)
    train(ugs, batch, labels, epochs=3)
    early = copies(model)
    ugs.remember()
    train(ugs, batch, labels, epochs=10)
    ugs.prune()
    assert torch.equal(model.layers[0].bias, early["layers.0.bias"])
    name = "layers.0.weight"
    assert torch.equal(model.layers[0].weight, early[name] * ugs.masks[name])


def test_masks_multiply_weights_and_edges():
    model, batch, _ = problem()
    ugs = UGS(model, batch)
    torch.testing.assert_close(ugs(ugs.weighted(batch)), model(batch))
    with torch.no_grad():
        for scale in (ugs.edge_scale, *ugs.weight_scales):
            scale.copy_(torch.rand_like(scale))
    scaled = copy.deepcopy(model)
    loop = batch.senders == batch.receivers
    with torch.no_grad():
        for layer, scale in zip(scaled.layers, ugs.weight_scales, strict=True):
            layer.weight.mul_(scale)
        # Self-loops are not edges of the graph: their mask does nothing.
        values = batch.edges["weight"] * torch.where(loop, 1, ugs.edge_scale)
    wanted = scaled(batch.replace(edges={"weight": values}))
    torch.testing.assert_close(ugs(ugs.weighted(batch)), wanted)


def test_penalty_is_the_sum_of_what_is_left():
    model, batch, _ = problem()
    ugs = UGS(model, batch, edge_penalty=0.5, weight_penalty=2.0)
    edges = batch.num_edges - NODES
    assert ugs.penalty().item() == pytest.approx(0.5 * edges + 2 * 72)
    ugs.prune()
    left = edges - round(0.05 * edges)
    assert ugs.penalty().item() == pytest.approx(0.5 * left + 2 * (72 - round(0.2 * 72)))
    ugs.penalty().backward()
    assert (ugs.edge_scale.grad != 0).sum() == left


def test_pruned_weights_stay_zero_while_masks_train():
    model, batch, labels = problem()
    ugs = UGS(model, batch, weight_fraction=0.5)
    for _ in range(2):
        train(ugs, batch, labels, epochs=5)
        ugs.prune()
    train(ugs, batch, labels, epochs=5)
    for name in ugs.masks:
        assert (ugs.masks.weight(name)[~ugs.masks[name]] == 0).all()


@pytest.mark.parametrize("padded", [False, True])
def test_a_pruned_batch_equals_masked_edges(padded):
    graph, _ = communities()
    budget = Budget(nodes=NODES + 5, edges=graph.num_edges + 9, graphs=2) if padded else None
    model, batch, labels = problem(budget)
    ugs = UGS(model, batch, edge_fraction=0.4)
    train(ugs, batch, labels, epochs=10)
    ugs.prune()
    small = ugs.pruned(batch)
    assert small.num_edges == int(ugs.edge_mask.sum()) < batch.num_edges
    assert small.num_edges == batch.num_edges - round(0.4 * (graph.num_edges - NODES))
    torch.testing.assert_close(model(small), model(ugs.weighted(batch)))
    # The order by senders too: a gradient uses it.
    x = torch.randn(batch.num_nodes, 4, requires_grad=True)
    seed = torch.randn(batch.num_nodes, 4)
    slopes = [
        torch.autograd.grad((spmm(b, x, b.edges["weight"]) * seed).sum(), x)[0]
        for b in (small, ugs.weighted(batch))
    ]
    torch.testing.assert_close(*slopes)
    senders = small.senders[small.out_order.long()]
    assert (senders.diff() >= 0).all()
    assert small.out_order.sort().values.tolist() == list(range(small.num_edges))


def test_the_ticket_trains_under_its_masks():
    model, batch, labels = problem()
    ugs = UGS(model, batch, edge_fraction=0.2, weight_fraction=0.5)
    for _ in range(2):
        train(ugs, batch, labels)
        ugs.prune()
    small, optimizer = ugs.pruned(batch), torch.optim.Adam(model.parameters(), lr=0.02)
    ugs.masks.attach(optimizer)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(small), labels).backward()
        optimizer.step()
    assert sum(int((layer.weight != 0).sum()) for layer in model.layers) == 18
    assert (model(small).argmax(1) == labels).float().mean() > 0.8


def test_edges_between_communities_go_first():
    model, batch, labels = problem()
    ugs = UGS(model, batch, edge_fraction=0.3, edge_penalty=1e-3)
    train(ugs, batch, labels, epochs=100)
    ugs.prune()
    between = labels[batch.senders.long()] != labels[batch.receivers.long()]
    real = batch.senders != batch.receivers
    lost = ~ugs.edge_mask
    assert between[lost].float().mean() > 1.3 * between[real].float().mean()


def test_a_model_of_a_stranger_that_takes_edge_weights():
    pyg = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    model = pyg.GCN(5, 8, num_layers=2, out_channels=3)
    senders = torch.randint(12, (40,))
    # No self-loops: the layer would keep the value of one in place of its own.
    edge_index = torch.stack([senders, (senders + torch.randint(1, 12, (40,))) % 12])
    x = torch.randn(12, 5)
    labels = torch.arange(12) % 3
    prunable = torch.ones(40, dtype=torch.bool)
    prunable[:10] = False
    ugs = UGS(model, torch.ones(40), prunable=prunable, edge_fraction=0.1, weight_fraction=0.25)
    optimizer = torch.optim.Adam(ugs.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        out = ugs(x, edge_index, edge_weight=ugs.edge_weight)
        (F.cross_entropy(out, labels) + ugs.penalty()).backward()
        optimizer.step()
    ugs.prune()
    assert int(ugs.edge_mask.sum()) == 37
    assert ugs.edge_mask[:10].all()
    assert ugs.masks.nnz() == 48
    kept = ugs.edge_mask
    torch.testing.assert_close(
        model(x, edge_index, edge_weight=ugs.edge_weight),
        model(x, edge_index[:, kept], edge_weight=torch.ones(37)),
    )


def test_a_layer_keeps_one_weight():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 1))
    ugs = UGS(model, torch.ones(4), weight_fraction=0.9)
    with torch.no_grad():
        ugs.weight_scales[1].fill_(1e-6)
    ugs.prune()
    assert [ugs.masks.nnz(name) for name in ugs.masks] == [5, 1]


def test_a_state_goes_on_to_the_same_masks(tmp_path):
    model, batch, labels = problem()
    ugs = UGS(model, batch)
    train(ugs, batch, labels, epochs=5)
    ugs.prune()
    train(ugs, batch, labels, epochs=3)
    torch.save(ugs.state_dict(), tmp_path / "ugs.pt")
    other = UGS(copy.deepcopy(model), batch)
    with torch.no_grad():
        other.model.layers[0].weight.zero_()
    other.load_state_dict(torch.load(tmp_path / "ugs.pt", weights_only=True))
    for each in (ugs, other):
        train(each, batch, labels, epochs=3)
        each.prune()
    assert other.rounds == 2
    assert torch.equal(ugs.edge_mask, other.edge_mask)
    for name in ugs.masks:
        assert torch.equal(ugs.masks[name], other.masks[name])
        assert torch.equal(ugs.masks.weight(name), other.masks.weight(name))


def test_a_deep_copy_goes_its_own_way():
    model, batch, labels = problem()
    ugs = UGS(model, batch)
    other = copy.deepcopy(ugs)
    train(ugs, batch, labels, epochs=5)
    ugs.prune()
    assert other.edge_mask.all()
    assert other.masks.sparsity == 0
    train(other, batch, labels, epochs=5)
    other.prune()
    assert torch.equal(ugs.edge_mask, other.edge_mask)
    assert other.masks.weight("layers.0.weight") is other.model.layers[0].weight


def test_repr_tells_what_is_left():
    model, batch, _ = problem()
    ugs = UGS(model, batch)
    ugs.prune()
    text = repr(ugs)
    assert "round 1" in text
    assert "58 of 72 weights active" in text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"edge_fraction": 1.0}, "edge_fraction is 1.0"),
        ({"weight_fraction": -0.1}, "weight_fraction is -0.1"),
        ({"edge_penalty": -1.0}, "edge_penalty is -1.0"),
        ({"weight_penalty": float("nan")}, "weight_penalty is nan"),
        ({"prunable": torch.ones(3, dtype=torch.bool)}, r"prunable is torch.bool \[3\]"),
        ({"exclude": ("no*",)}, "no"),
    ],
)
def test_mistakes(settings, message):
    model, batch, _ = problem()
    with pytest.raises(ValueError, match=message):
        UGS(model, batch, **settings)


def test_edges_of_another_graph():
    model, batch, _ = problem()
    ugs = UGS(model, torch.ones(7))
    with pytest.raises(ValueError, match="the masks are of 7"):
        ugs.weighted(batch)
    with pytest.raises(ValueError, match="one real number for each edge"):
        UGS(model, torch.ones(7, 2))
    with pytest.raises(ValueError, match="int64"):
        UGS(model, torch.ones(7, dtype=torch.int64))
