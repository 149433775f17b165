"""SchNet and MPEU against themselves written edge by edge, and the symmetries they promise."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from weft.graphs import assemble, table_from_columns
from weft.models import (
    MPEU,
    MPEUConfig,
    SchNet,
    SchNetConfig,
    energy_and_forces,
    schnet_from_torch_geometric,
)
from weft.sources import FullyConnected, with_neighbours

SMALL = {"hidden": 8, "layers": 2, "centres": 30, "spacing": 0.2}


def schnet(**changes):
    torch.manual_seed(0)
    return SchNet(SchNetConfig(**{**SMALL, "filters": 6, **changes})).double()


def mpeu(**changes):
    torch.manual_seed(0)
    return MPEU(MPEUConfig(**{**SMALL, **changes})).double()


def activation(x):
    return functional.softplus(x) - math.log(2)


def edges_of(batch):
    senders, receivers = batch.senders.long(), batch.receivers.long()
    vectors = batch.nodes["pos"][senders] - batch.nodes["pos"][receivers]
    if "shift" in batch.edges:
        vectors = vectors + batch.edges["shift"]
    return senders, receivers, vectors.norm(dim=1)


def gaussians(config, d):
    centres = torch.arange(config.centres, dtype=d.dtype) * config.spacing
    return torch.exp(-config.sharpness * (d[:, None] - centres) ** 2)


def faded(config, d):
    inside = (d < config.cutoff).to(d.dtype)
    return (0.5 * (torch.cos(d * math.pi / config.cutoff) + 1) * inside)[:, None]


def aggregate(config, batch, messages):
    receivers = batch.receivers.long()
    total = messages.new_zeros(batch.num_nodes, messages.shape[1]).index_add(0, receivers, messages)
    if config.aggregation == "sum":
        return total
    return total / torch.bincount(receivers, minlength=batch.num_nodes).clamp(min=1)[:, None]


def read_out(model, batch, h):
    first, second = model.readout
    values = second(activation(first(h)))[:, 0]
    graphs = batch.num_graphs
    total = values.new_zeros(graphs).index_add(0, batch.node_graph.long(), values)
    if model.config.readout == "sum":
        return total
    return total / torch.bincount(batch.node_graph, minlength=graphs).clamp(min=1)


def plain_schnet(model, batch):
    config = model.config
    senders, _, d = edges_of(batch)
    h = model.elements(batch.nodes["z"])
    for layer in model.interactions:
        weight = layer.filter(activation(layer.basis(gaussians(config, d))))
        if config.activate_filter:
            weight = activation(weight)
        if config.cutoff is not None:
            weight = weight * faded(config, d)
        messages = aggregate(config, batch, weight * layer.message(h)[senders])
        h = h + layer.out(activation(layer.update(messages)))
    return read_out(model, batch, h)


def plain_mpeu(model, batch):
    config = model.config
    senders, receivers, d = edges_of(batch)
    h = model.elements(batch.nodes["z"])
    edge = gaussians(config, d)
    for layer in (model.first, *model.later):
        whole = torch.cat(
            [layer.of_sender.weight, layer.of_receiver.weight, layer.of_edge.weight], 1
        )
        inner = torch.cat([h[senders], h[receivers], edge], 1) @ whole.t()
        edge = layer.edge(activation(inner))
        weight = edge
        for part in layer.filter:
            weight = activation(part(weight))
        if config.cutoff is not None:
            weight = weight * faded(config, d)
        messages = aggregate(config, batch, weight * layer.message(h)[senders])
        h = h + layer.out(activation(layer.update(messages)))
    return read_out(model, batch, h)


def assert_same_values_and_gradients(model, batch, plain):
    real = batch.graph_mask
    out, expected = model(batch)[real], plain(model, batch)[real]
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(out)
    parameters = list(model.parameters())
    for one, other in zip(
        torch.autograd.grad(out, parameters, grad),
        torch.autograd.grad(expected, parameters, grad),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_parameter_counts_of_the_paper():
    assert sum(p.numel() for p in SchNet().parameters()) == 80_352
    assert sum(p.numel() for p in MPEU().parameters()) == 173_152


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("paired", [False, True])
def test_models_equal_themselves_edge_by_edge(atoms_batch, periodic, padded, paired):
    batch = atoms_batch(periodic=periodic, padded=padded, paired=paired)
    assert bool(batch.pairs) == paired
    assert_same_values_and_gradients(schnet(), batch, plain_schnet)
    assert_same_values_and_gradients(mpeu(), batch, plain_mpeu)


@pytest.mark.parametrize(
    "changes",
    [
        {"bias": True, "activate_filter": False, "cutoff": 8.0, "aggregation": "sum"},
        {"readout": "sum", "bias": True},
        {"layers": 1, "aggregation": "sum"},
    ],
)
def test_schnet_with_other_settings(atoms_batch, changes):
    model = schnet(**changes)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    assert_same_values_and_gradients(model, atoms_batch(), plain_schnet)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("aggregation", ["sum", "mean"])
def test_messages_fade_at_the_cutoff(atoms_batch, padded, aggregation):
    batch = atoms_batch(periodic=True, padded=padded)
    # Some neighbours are further away than the cutoff.
    changes = {"cutoff": 3.0, "aggregation": aggregation}
    assert_same_values_and_gradients(schnet(**changes), batch, plain_schnet)
    assert_same_values_and_gradients(mpeu(**changes), batch, plain_mpeu)


@pytest.mark.parametrize("config", [SchNetConfig, MPEUConfig])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cutoff": 0.0}, "cutoff is 0.0 Å; it must be above 0"),
        ({"hidden": 1}, "hidden is 1; it must be at least 2"),
        ({"layers": 0}, "layers is 0"),
        ({"centres": 0}, "centres is 0"),
        ({"spacing": 0.0}, "spacing is 0.0 Å; it must be above 0"),
        ({"sharpness": math.inf}, "sharpness is inf 1/Å²"),
        ({"aggregation": "max"}, "aggregation is 'max'; choose from sum, mean"),
        ({"readout": "max"}, "readout is 'max'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(config, changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


def rotation():
    q, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    return q


@pytest.mark.parametrize("make", [schnet, mpeu])
def test_energies_do_not_change_when_a_molecule_moves_and_forces_turn_with_it(atoms_batch, make):
    model, batch = make(), atoms_batch()
    energy, forces = energy_and_forces(model, batch)
    turn = rotation()
    moved = batch.nodes["pos"] @ turn.t() + torch.tensor([3.0, -1.0, 2.0], dtype=torch.float64)
    turned = batch.replace(nodes={**batch.nodes, "pos": moved})
    other_energy, other_forces = energy_and_forces(model, turned)
    torch.testing.assert_close(other_energy, energy)
    torch.testing.assert_close(other_forces, forces @ turn.t())
    assert forces.abs().max() > 1e-4


@pytest.mark.parametrize("make", [schnet, mpeu])
def test_the_order_of_the_atoms_does_not_matter(atoms_table, make):
    table = atoms_table(4)
    rng = np.random.default_rng(1)
    order = np.concatenate(
        [
            start + rng.permutation(n)
            for start, n in zip(table.node_offsets, table.num_nodes, strict=False)
        ]
    )
    columns = {name: table.columns[name][order] for name in ("z", "pos")}
    other = table_from_columns(table.schema, num_nodes=table.num_nodes, columns=columns)
    (energy, forces), (other_energy, other_forces) = (
        energy_and_forces(
            make(), assemble(with_neighbours(t, FullyConnected(), progress=False), range(4))
        )
        for t in (table, other)
    )
    assert (order != np.arange(len(order))).any()
    torch.testing.assert_close(other_energy, energy)
    torch.testing.assert_close(other_forces, forces[torch.from_numpy(order)])


@pytest.mark.parametrize("make", [schnet, mpeu])
def test_forces_are_minus_the_slope_of_the_energy(atoms_batch, make):
    model, batch = make(), atoms_batch(2, periodic=True)
    _, forces = energy_and_forces(model, batch)
    step = 1e-5
    for atom, axis in ((0, 0), (1, 2), (batch.num_nodes - 1, 1)):
        energies = []
        for sign in (1, -1):
            pos = batch.nodes["pos"].clone()
            pos[atom, axis] += sign * step
            energies.append(model(batch.replace(nodes={**batch.nodes, "pos": pos})).sum())
        slope = float((energies[0] - energies[1]).detach()) / (2 * step)
        assert -slope == pytest.approx(float(forces[atom, axis]), rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("make", [schnet, mpeu])
def test_a_loss_of_forces_has_gradients_in_the_weights(atoms_batch, make):
    model, batch = make(), atoms_batch(2, padded=True)
    parameter = model.readout[0].weight

    def loss():
        energy, forces = energy_and_forces(model, batch, training=True)
        return energy[batch.graph_mask].square().sum() + forces[batch.node_mask].square().sum()

    (grad,) = torch.autograd.grad(loss(), parameter)
    with torch.no_grad():
        parameter[0, 0] += 1e-6
        high = loss()
        parameter[0, 0] -= 2e-6
        low = loss()
    assert float(high - low) / 2e-6 == pytest.approx(float(grad[0, 0]), rel=1e-4)


def test_forces_in_inference_mode(atoms_batch):
    model, batch = schnet(), atoms_batch()
    _, expected = energy_and_forces(model, batch)
    with torch.inference_mode():
        _, forces = energy_and_forces(model, batch)
    assert torch.equal(forces, expected)
    assert forces.abs().max() > 1e-4


@pytest.mark.parametrize("make", [schnet, mpeu])
def test_energies_learn_from_shifts(atoms_batch, make):
    model, batch = make(), atoms_batch(2, periodic=True)

    def energy(stretch):
        shift = batch.edges["shift"].double() * (1 + stretch)
        return model(batch.replace(edges={"shift": shift})).sum()

    stretch = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(energy(stretch), stretch)
    with torch.no_grad():
        expected = (energy(1e-5) - energy(-1e-5)) / 2e-5
    assert abs(slope) > 1e-4
    torch.testing.assert_close(slope, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("make", [SchNet, MPEU])
def test_threads_change_no_bit(atoms_batch, make):
    batch = atoms_batch(40, padded=True)
    batch = batch.replace(nodes={**batch.nodes, "pos": batch.nodes["pos"].float()})
    before, found = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        model = make()
        out = model(batch)
        out.square().sum().backward()
        found.append([out, *(p.grad for p in model.parameters())])
    torch.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_padding_has_finite_values_and_no_forces(atoms_batch):
    model, batch = schnet(), atoms_batch(padded=True)
    energy, forces = energy_and_forces(model, batch)
    assert energy.isfinite().all()
    assert (forces[~batch.node_mask] == 0).all()
    model(batch)[batch.graph_mask].sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_one_atom_has_an_energy_and_no_force(atoms_batch):
    for seed in range(30):
        batch = atoms_batch(1, seed=seed)
        if batch.num_nodes == 1:
            break
    assert batch.num_edges == 0
    for model in (schnet(), mpeu()):
        energy, forces = energy_and_forces(model, batch)
        assert energy.isfinite().all()
        assert torch.equal(forces, torch.zeros(1, 3, dtype=torch.float64))


def test_an_unknown_element_is_refused_and_elements_are_checked(atoms_batch):
    batch = atoms_batch()
    model = schnet(elements=(1, 6))
    with pytest.raises(IndexError):
        model(batch)
    with pytest.raises(ValueError, match="different atomic numbers from 1 to 118"):
        schnet(elements=(1, 1))


def test_schnet_of_torch_geometric_gives_the_same_values(atoms_batch):
    pyg = pytest.importorskip("torch_geometric.nn")
    batch = atoms_batch()
    senders, receivers, d = edges_of(batch)

    def graph(pos, batch):
        return torch.stack([senders, receivers]), d

    for readout, scale in (("add", {}), ("mean", {"mean": 1.5, "std": 2.0})):
        torch.manual_seed(0)
        theirs = pyg.SchNet(
            hidden_channels=12,
            num_filters=10,
            num_interactions=2,
            num_gaussians=20,
            cutoff=10.0,
            interaction_graph=graph,
            readout=readout,
            **scale,
        ).double()
        for parameter in theirs.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        ours = schnet_from_torch_geometric(theirs)
        expected = theirs(batch.nodes["z"].long(), batch.nodes["pos"], batch.node_graph.long())
        # Their constants (the centres, ln 2) are float32, whatever the weights are.
        torch.testing.assert_close(ours(batch), expected[:, 0], rtol=1e-6, atol=1e-6)


def test_models_of_torch_geometric_that_are_refused():
    pyg = pytest.importorskip("torch_geometric.nn")
    theirs = pyg.SchNet(hidden_channels=8, num_filters=8, interaction_graph=lambda *_: None)
    theirs.readout = pyg.MaxAggregation()
    with pytest.raises(ValueError, match="reads out by MaxAggregation"):
        schnet_from_torch_geometric(theirs)
    theirs.atomref = torch.nn.Embedding(100, 1)
    with pytest.raises(ValueError, match="atomref"):
        schnet_from_torch_geometric(theirs)


@pytest.mark.parametrize("make", [schnet, mpeu])
def test_positions_of_another_precision_than_the_weights(atoms_batch, make):
    batch = atoms_batch()
    exact = make()(batch)
    torch.testing.assert_close(make().float()(batch).double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [schnet, mpeu])
def test_a_position_that_is_no_number_makes_no_energy(atoms_batch, make):
    batch = atoms_batch()
    two = int((batch.node_offsets.diff() > 1).nonzero()[0])
    pos = batch.nodes["pos"].clone()
    pos[batch.node_offsets[two]] = math.nan
    energy = make()(batch.replace(nodes={**batch.nodes, "pos": pos}))
    assert energy[two].isnan()
    assert energy.isfinite().sum() == batch.num_graphs - 1


def test_a_layer_with_a_hook_or_another_one_in_its_place_is_called(atoms_batch):
    batch, model = atoms_batch(), schnet()
    expected = model(batch)
    seen = []
    handle = model.interactions[0].update.register_forward_hook(lambda *_: seen.append(1))
    torch.testing.assert_close(model(batch), expected)
    assert seen == [1]
    handle.remove()
    with model.readout[1].register_forward_hook(lambda *_: seen.append(2)):
        torch.testing.assert_close(model(batch), expected)
    assert seen.pop() == 2
    changed = model.interactions[1]
    changed.out = torch.nn.Sequential(changed.out, torch.nn.Identity())
    torch.testing.assert_close(model(batch), expected)
    assert seen == [1]
