"""PaiNN against a plain implementation by edge, against SchNetPack, and under symmetries."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from weft.graphs import Budget, Graph, GraphBatch, GraphTable, assemble, table_from_graphs
from weft.models.config import PaiNNConfig
from weft.models.painn import PaiNN, painn_from_schnetpack
from weft.models.properties import energy_and_forces

DATA = Path(__file__).parent / "data"
CUTOFF = 3.0


def golden_script() -> Any:
    spec = importlib.util.spec_from_file_location("golden", DATA / "make_painn_golden.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def molecule(z: Any, pos: Any, *, cutoff: float = CUTOFF) -> Graph:
    pos = np.asarray(pos, dtype=np.float64)
    near = np.linalg.norm(pos[:, None] - pos[None], axis=-1) < cutoff
    receivers, senders = (near & ~np.eye(len(pos), dtype=bool)).nonzero()
    return Graph(
        num_nodes=len(pos),
        senders=senders,
        receivers=receivers,
        nodes={"z": np.asarray(z, dtype=np.int32), "pos": pos},
    )


def random_molecules(sizes: tuple[int, ...] = (5, 1, 7, 3), seed: int = 0) -> list[Graph]:
    rng = np.random.default_rng(seed)
    return [molecule(rng.choice([1, 6, 8], n), rng.normal(size=(n, 3)) * 1.5) for n in sizes]


def table_of(graphs: list[Graph], *, pairs: bool = True) -> GraphTable:
    table = table_from_graphs(graphs)
    return dataclasses.replace(table, metadata={**table.metadata, "symmetric": pairs})


def batch_of(
    graphs: list[Graph], *, pairs: bool = True, budget: Budget | None = None
) -> GraphBatch:
    return assemble(table_of(graphs, pairs=pairs), range(len(graphs)), budget)


def model_of(**changes: Any) -> PaiNN:
    torch.manual_seed(0)
    options = {"hidden": 8, "layers": 3, "radial": 6, "cutoff": CUTOFF, "elements": (1, 6, 8)}
    model = PaiNN(PaiNNConfig(**options | changes)).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
    return model


def plain_features(model: PaiNN, batch: GraphBatch) -> tuple[Tensor, Tensor]:
    """The published equations on every real edge, with tensors of E rows."""
    config, real = model.config, int(batch.edge_mask.sum())
    s, r = batch.senders[:real].long(), batch.receivers[:real].long()
    pos = batch.nodes["pos"]
    vector = pos[s] - pos[r]
    if "shift" in batch.edges:
        vector = vector + batch.edges["shift"][:real]
    d = vector.norm(dim=1, keepdim=True)
    step = config.cutoff / (config.radial - 1)
    centres = torch.arange(config.radial, dtype=pos.dtype) * step
    fade = 0.5 * (torch.cos(math.pi * d / config.cutoff) + 1) * (d < config.cutoff)
    radial = torch.exp(-0.5 / step**2 * (d - centres) ** 2)
    filters = (model.filters(radial) * fade).chunk(config.layers, dim=1)
    q = model.elements(batch.nodes["z"])
    mu = q.new_zeros(len(q), 3, config.hidden)
    for w, context, mixing in zip(filters, model.contexts, model.mixings, strict=True):
        a, b, c = (w * context(q)[s]).chunk(3, dim=1)
        change = b[:, None] * (vector / d)[:, :, None] + c[:, None] * mu[s]
        q, mu = q.index_add(0, r, a), mu.index_add(0, r, change)
        left, right = functional.linear(mu, mixing.vectors.weight).chunk(2, dim=2)
        norm = (left.square().sum(1) + 1e-8).sqrt()
        a, b, c = mixing.context(torch.cat([q, norm], dim=1)).chunk(3, dim=1)
        q, mu = q + a + c * (left * right).sum(1), mu + b[:, None] * right
    return q, mu


def plain_energies(model: PaiNN, batch: GraphBatch) -> Tensor:
    q, _ = plain_features(model, batch)
    energies = q.new_zeros(batch.num_graphs)
    energies = energies.index_add(0, batch.node_graph.long(), model.readout(q)[:, 0])
    if model.config.readout == "mean":
        energies = energies / batch.node_offsets.diff().clamp(min=1)
    return energies


def rotation(seed: int = 1) -> np.ndarray:
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))
    return q * np.sign(np.linalg.det(q))


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("readout", ["sum", "mean"])
def test_equals_the_plain_implementation_with_gradients(pairs: bool, readout: str) -> None:
    model, batch = model_of(readout=readout), batch_of(random_molecules(), pairs=pairs)
    assert bool(batch.pairs) == pairs
    torch.testing.assert_close(model.features(batch), plain_features(model, batch))
    got, want = model(batch), plain_energies(model, batch)
    torch.testing.assert_close(got, want)
    weights = list(model.parameters())
    losses = [(e**2).sum() for e in (got, want)]
    grads = [
        torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
        for loss in losses
    ]
    torch.testing.assert_close(grads[0], grads[1])


@pytest.mark.parametrize("pairs", [True, False])
def test_training_on_forces_equals_the_plain_implementation(pairs: bool) -> None:
    model, batch = model_of(layers=2), batch_of(random_molecules(), pairs=pairs)
    grads = []
    for energies in (model, lambda batch: plain_energies(model, batch)):
        energy, forces = energy_and_forces(energies, batch, training=True)
        loss = (energy**2).sum() + (forces**2).sum()
        grads.append(
            (
                forces,
                torch.autograd.grad(
                    loss, list(model.parameters()), allow_unused=True, materialize_grads=True
                ),
            )
        )
    torch.testing.assert_close(grads[0], grads[1])
    assert grads[0][0].abs().max() > 1e-3


def test_turning_and_moving_the_atoms() -> None:
    model, graphs = model_of(), random_molecules()
    turn = rotation()
    turned = [
        dataclasses.replace(g, nodes={**g.nodes, "pos": g.nodes["pos"] @ turn.T + 7.0})
        for g in graphs
    ]
    matrix = torch.from_numpy(turn)
    q, mu = model.features(batch_of(graphs))
    turned_q, turned_mu = model.features(batch_of(turned))
    torch.testing.assert_close(turned_q, q)
    torch.testing.assert_close(turned_mu, torch.einsum("ij,njf->nif", matrix, mu))
    energy, forces = energy_and_forces(model, batch_of(graphs))
    turned_energy, turned_forces = energy_and_forces(model, batch_of(turned))
    torch.testing.assert_close(turned_energy, energy)
    torch.testing.assert_close(turned_forces, forces @ matrix.T)
    assert mu.abs().max() > 1e-3


def test_the_order_of_atoms_does_not_matter() -> None:
    model = model_of()
    (graph,) = random_molecules((7,))
    order = np.random.default_rng(3).permutation(7)
    other = molecule(graph.nodes["z"][order], graph.nodes["pos"][order])
    energy, forces = energy_and_forces(model, batch_of([graph]))
    other_energy, other_forces = energy_and_forces(model, batch_of([other]))
    torch.testing.assert_close(other_energy, energy)
    torch.testing.assert_close(other_forces, forces[torch.from_numpy(order)])


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("edges", [0, 1, 5000])
def test_padding_changes_nothing(pairs: bool, edges: int) -> None:
    model, graphs = model_of(), random_molecules()
    batch = batch_of(graphs, pairs=pairs)
    budget = Budget(nodes=batch.num_nodes + 3, edges=batch.num_edges + edges, graphs=6)
    padded = batch_of(graphs, pairs=pairs, budget=budget)
    energy, forces = energy_and_forces(model, batch, training=True)
    padded_energy, padded_forces = energy_and_forces(model, padded, training=True)
    torch.testing.assert_close(padded_energy[:4], energy)
    torch.testing.assert_close(padded_forces[: batch.num_nodes], forces)
    assert padded_energy.abs().max() < 100
    assert (padded_forces[batch.num_nodes :] == 0).all()
    grads = [
        torch.autograd.grad((e[:4] ** 2).sum() + (f**2).sum(), list(model.parameters()))
        for e, f in ((energy, forces), (padded_energy, padded_forces))
    ]
    torch.testing.assert_close(grads[0], grads[1])


def test_shifts_reach_neighbours_in_other_cells() -> None:
    """A chain in a periodic cell of two atoms is the middle of a long chain."""
    model, step = model_of(layers=1, cutoff=1.6), 1.1
    z = [6, 8]
    # Each atom sees one neighbour on either side, one of them an image.
    cell = Graph(
        num_nodes=2,
        senders=[1, 1, 0, 0],
        receivers=[0, 0, 1, 1],
        nodes={"z": np.array(z), "pos": np.array([[0.0, 0, 0], [step, 0, 0]])},
        edges={"shift": np.array([[0.0, 0, 0], [-2 * step, 0, 0], [0, 0, 0], [2 * step, 0, 0]])},
    )
    chain = molecule(z * 3, [[k * step, 0, 0] for k in range(6)], cutoff=1.6)
    q, mu = model.features(batch_of([cell], pairs=False))
    chain_q, chain_mu = model.features(batch_of([chain]))
    torch.testing.assert_close(q, chain_q[2:4])
    torch.testing.assert_close(mu, chain_mu[2:4])


def test_graphs_without_edges_and_lone_atoms() -> None:
    model = model_of()
    for graphs in ([molecule([8], [[0.0, 0, 0]])], [molecule([1, 6], [[0.0, 0, 0], [9.0, 0, 0]])]):
        batch = batch_of(graphs)
        assert batch.num_edges == 0
        energy, forces = energy_and_forces(model, batch, training=True)
        torch.testing.assert_close(energy, plain_energies(model, batch))
        assert (forces == 0).all()
        energy.sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_two_atoms_in_one_place_stay_finite() -> None:
    model = model_of()
    batch = batch_of([molecule([6, 6, 8], [[0.0, 0, 0], [0.0, 0, 0], [1.0, 0, 0]])])
    energy, forces = energy_and_forces(model, batch, training=True)
    grads = torch.autograd.grad((forces**2).sum() + energy.sum(), list(model.parameters()))
    assert all(value.isfinite().all() for value in (energy, forces, *grads))


def test_a_batch_in_single_precision_learns() -> None:
    torch.manual_seed(0)
    model = model_of(hidden=16).float()
    graphs = [
        dataclasses.replace(g, nodes={**g.nodes, "pos": g.nodes["pos"].astype(np.float32)})
        for g in random_molecules((5, 4, 6, 7, 3, 8))
    ]
    batch, target = batch_of(graphs), torch.linspace(-1, 1, 6)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        loss = functional.mse_loss(model(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.05 * losses[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden": 1}, "hidden is 1; it must be at least 2"),
        ({"layers": 0}, "layers is 0"),
        ({"radial": 1}, "radial is 1"),
        ({"cutoff": -1.0}, "cutoff is -1.0 Å"),
        ({"cutoff": math.nan}, "cutoff is nan Å"),
        ({"readout": "max"}, "readout is 'max'"),
    ],
)
def test_shapes_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PaiNNConfig(**changes)


def golden_batch(dtype: Any = np.float32) -> GraphBatch:
    graphs = [
        molecule(z, pos, cutoff=golden_script().CUTOFF) for z, pos in golden_script().MOLECULES
    ]
    return batch_of(
        [
            dataclasses.replace(g, nodes={**g.nodes, "pos": g.nodes["pos"].astype(dtype)})
            for g in graphs
        ]
    )


def check_against(state: dict[str, Tensor], answers: dict[str, np.ndarray]) -> None:
    model = painn_from_schnetpack(state, cutoff=golden_script().CUTOFF)
    batch = golden_batch()
    q, mu = model.features(batch)
    energy, forces = energy_and_forces(model, batch)
    got = {"energy": energy, "forces": forces, "q": q, "mu": mu}
    for name, value in got.items():
        torch.testing.assert_close(
            value.detach(), torch.from_numpy(answers[name]), rtol=2e-5, atol=2e-5
        )


def golden_state() -> dict[str, Tensor]:
    with np.load(DATA / "painn_schnetpack.npz") as file:
        return {
            name.removeprefix("state/"): torch.from_numpy(file[name])
            for name in file
            if name.startswith("state/")
        }


def test_weights_of_schnetpack_give_its_answers() -> None:
    with np.load(DATA / "painn_schnetpack.npz") as file:
        answers = dict(file)
    check_against(golden_state(), answers)


@pytest.mark.parametrize(
    "options", [{}, {"shared_filters": True}, {"shared_interactions": True}], ids=str
)
def test_schnetpack_itself_agrees(options: dict[str, bool]) -> None:
    pytest.importorskip("schnetpack")
    golden = golden_script()
    peer = golden.peer(hidden=16, layers=3, **options)
    check_against(peer.state_dict(), golden.peer_answers(peer))


def test_weights_in_double_precision_are_not_rounded() -> None:
    state = {name: value.double() for name, value in golden_state().items()}
    name = "representation.embedding.weight"
    state[name] = state[name] + 1e-12
    model = painn_from_schnetpack(state, cutoff=golden_script().CUTOFF)
    assert torch.equal(model.elements.embedding.weight, state[name][1:])


def test_weights_that_do_not_fit_are_refused() -> None:
    state = golden_state()
    widths = "representation.radial_basis.widths"
    with pytest.raises(ValueError, match=r"1\.2.* Å wide; only those as wide as .* 0\.6 Å"):
        painn_from_schnetpack({**state, widths: 2 * state[widths]}, cutoff=3.0)
    with pytest.raises(ValueError, match=r"from 0 to 3 Å; only evenly spaced"):
        painn_from_schnetpack(state, cutoff=5.0)
    missing = "representation.mixing.1.mu_channel_mix.weight"
    with pytest.raises(ValueError, match=missing):
        painn_from_schnetpack({k: v for k, v in state.items() if k != missing}, cutoff=3.0)
