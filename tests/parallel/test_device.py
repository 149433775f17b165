"""What a rank computes on, and that everything which it computes with is there."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from grid_examples import graph_of, model_of
from rank_processes import results_of

from stand_in_device import DEVICE, Elsewhere, There
from weft.graphs import open_table
from weft.parallel import world as worlds
from weft.parallel.device import (
    backend_of,
    checked_device,
    device_of,
    own_device,
    replica_device,
)
from weft.parallel.grid import grid_of
from weft.parallel.method import PUBLISHED, Method
from weft.parallel.network import GridNetwork
from weft.parallel.prepare import prepare
from weft.parallel.shard import GraphShard
from weft.parallel.world import joined

CPU = torch.device("cpu")
METHODS = [
    ("gcn", Method()),
    ("sage", Method(exchange="blocks")),
    ("gcn", Method(exchange="blocks", panels="sent", wire="bfloat16")),
    ("gcn", PUBLISHED),
]


@pytest.mark.parametrize(
    ("name", "gpus", "rank", "ranks", "expected"),
    [
        ("auto", 0, 3, 4, "cpu"),
        ("auto", 4, 3, 4, "cuda:3"),
        ("auto", 8, 0, 1, "cuda:0"),
        ("cpu", 8, 1, 4, "cpu"),
        ("cpu", 1, 1, 4, "cpu"),
        ("cuda", 2, 1, 2, "cuda:1"),
    ],
)
def test_a_rank_has_a_gpu_of_its_own_or_the_cpu(name, gpus, rank, ranks, expected):
    found = device_of(name, gpus=gpus, local_rank=rank, local_ranks=ranks)
    assert found == torch.device(expected)
    assert backend_of(found) == ("gloo" if expected == "cpu" else "cpu:gloo,cuda:nccl")


def test_devices_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="device is cuda, but torch finds no GPU here"):
        device_of("cuda", gpus=0, local_rank=0, local_ranks=1)
    for name in ("auto", "cuda"):
        with pytest.raises(ValueError, match=r"4 ranks on a host with 1 GPU, .* start 1 on this"):
            device_of(name, gpus=1, local_rank=0, local_ranks=4)
    with pytest.raises(ValueError, match="device is 'tpu'; choose from auto, cpu, cuda"):
        device_of("tpu", gpus=1, local_rank=0, local_ranks=1)


def test_ranks_are_counted_by_host_where_the_launcher_tells(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    for name, value in {"RANK": 6, "WORLD_SIZE": 8}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(ValueError, match="8 ranks on a host with 4 GPUs"):
        own_device()
    for name, value in {"LOCAL_RANK": 2, "LOCAL_WORLD_SIZE": 4}.items():
        monkeypatch.setenv(name, str(value))
    assert own_device() == torch.device("cuda", 2)
    with pytest.raises(ValueError, match="5 ranks on a host with 4 GPUs"):
        own_device(ranks=5)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert own_device() == CPU


def test_a_device_by_its_name(monkeypatch):
    assert replica_device() == replica_device("cpu", ranks=3) == CPU
    for name in ("tpu", "cuda:x", "cpu:0", ""):
        with pytest.raises(ValueError, match=r"choose from cpu, cuda, cuda:N"):
            replica_device(name)
    with pytest.raises(ValueError, match="device is mps, which has no float64"):
        replica_device("mps")
    with pytest.raises(ValueError, match="device is cuda, but torch finds no GPUs here"):
        replica_device("cuda")
    with pytest.raises(ValueError, match="device is cuda, but torch finds no GPU here"):
        replica_device("cuda", ranks=2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert replica_device("cuda") == torch.device("cuda", 0)
    assert replica_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ValueError, match="device is cuda:2, but torch finds 2 GPUs here"):
        replica_device("cuda:2")
    with pytest.raises(ValueError, match="cuda:1, one GPU, and there are several ranks"):
        replica_device("cuda:1", ranks=2)
    for name, value in {"RANK": 1, "WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    assert replica_device("cuda") == torch.device("cuda", 1)


def test_a_device_that_torch_does_not_find_is_refused(monkeypatch):
    assert checked_device("cpu") == CPU
    with pytest.raises(ValueError, match="device is 'gpu'; choose from cpu, cuda, cuda:N"):
        checked_device("gpu")
    for name in ("cuda", "cuda:3"):
        with pytest.raises(ValueError, match=f"device is {name}, but torch finds no GPUs here"):
            checked_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert checked_device(torch.device("cuda")) == torch.device("cuda")
    with pytest.raises(ValueError, match="device is cuda:1, but torch finds 1 GPU here"):
        checked_device("cuda:1")


def trained(path, grid, replication, model, method, device):
    """Two steps, an evaluation and predictions, and which messages were for the set-up."""
    with joined(grid, replication, device=device) as world:
        shard = GraphShard.open(open_table(path), world, method, torch.float64)
        sizes = (shard.features, (6,), shard.classes)
        rates = (0.3, 0.2 if method.reductions else 0.0)
        network = GridNetwork(model_of(model, *sizes, *rates), shard)
        learned = list(network.model.parameters())
        optimizer = torch.optim.Adam(learned)
        losses = []
        for seed in range(2):
            losses.append(network.step(seed))
            optimizer.step()
        gradients = [parameter.grad for parameter in learned]
        assert {type(each) for each in gradients} == {There if device == DEVICE else torch.Tensor}
        network.model.eval()
        scores = network.evaluate()
        ids, probabilities = network.predict()
        found = {
            "losses": losses,
            "gradients": [each.cpu() for each in gradients],
            "weights": [each.detach().cpu() for each in learned],
            "scores": scores,
            "predicted": (ids.numpy(), probabilities.numpy()),
        }
        return found, [event.purpose == "setup" for event in world.recorder.events]


def trained_on_both(path, grid, replication):
    answers = []
    for model, method in METHODS:
        expected, _ = trained(path, grid, replication, model, method, CPU)
        with Elsewhere() as there:
            found, setup = trained(path, grid, replication, model, method, DEVICE)
        answers.append((expected, found, setup, there.messages))
    return answers


@pytest.mark.parametrize(
    ("grid", "ranks", "replication"),
    [("1d", 3, None), ("1x3", 3, None), ("1.5d", 4, 2), ("2d", 4, None), ("3d", 8, None)],
)
def test_another_device_has_all_that_is_computed_with(grid, ranks, replication, tmp_path):
    path = str(tmp_path / "graph")
    # Directed, and of fewer features and classes than the widest grid has columns.
    graph = graph_of(nodes=41, edges=120, features=2, classes=2)
    prepare(graph, path, blocks=1, partition="random")
    for answer in results_of(ranks, trained_on_both, path, grid, replication):
        for expected, found, setup, sent in answer:
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
            # Counts and row numbers go through the CPU, everything else is sent from the device.
            assert sorted(sent) == sorted(not each for each in setup)
            assert any(sent)


def test_without_other_ranks_all_is_there_too():
    table = prepare(graph_of(), blocks=1)
    with Elsewhere(), joined("1d", device=DEVICE) as world:
        assert world.device == DEVICE
        shard = GraphShard.open(table, world, Method())
        values = [shard.ids, shard.y, shard.x(), *shard.masks.values()]
        values += [shard.matrix.exchange.kept[0].columns, shard.matrix.exchange.kept[0].weights]
        assert {type(value) for value in values} == {There}
        with pytest.raises(RuntimeError, match="tensors on both devices"):
            shard.y + torch.ones(len(shard.y))


WAIT = timedelta(seconds=300)


def groups_for_gpus(grid, replication):
    """The groups of a rank on a GPU, with gloo instead of the NCCL that is not here."""

    class Stand:
        @staticmethod
        def Options():
            return dist.ProcessGroupGloo.Options("gloo", timedelta(minutes=30))

    dist.ProcessGroupNCCL = Stand
    worlds.backend_of = lambda device: "cpu:gloo,cuda:gloo"
    shape = grid_of(grid, dist.get_world_size(), replication)
    groups = worlds._groups(shape, torch.device("cuda", 0), WAIT)
    world = worlds.World(shape, dist.get_rank(), groups, CPU)
    found = {}
    for along in ("row", "column", "layer", "weights", "world"):
        own = torch.tensor([2**world.rank])
        found[along] = (world.size(along), int(world.all_reduce(along, own, "test")))
        if world.size(along) > 1:
            assert groups[along]._get_backend(CPU).options._timeout == WAIT
    assert groups["world"] is not dist.group.WORLD
    return found


@pytest.mark.parametrize(
    ("grid", "ranks", "replication"), [("1d", 2, None), ("1.5d", 4, 2), ("3d", 8, None)]
)
def test_gpus_have_groups_for_every_direction(grid, ranks, replication):
    answers = results_of(ranks, groups_for_gpus, grid, replication)
    shape = grid_of(grid, ranks, replication)
    for rank, answer in enumerate(answers):
        place = shape.place(rank)
        for size, members in answer.values():
            assert members.bit_count() == size
            assert members >> rank & 1
        together = [other for other in range(ranks) if answer["row"][1] >> other & 1]
        assert {shape.place(other).layer for other in together} == {place.layer}
        assert {shape.place(other).column for other in together} == {place.column}
        assert answer["world"][1] == 2**ranks - 1
