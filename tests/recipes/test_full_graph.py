"""Training on one graph over several ranks: the same losses whatever happens to them."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import full_graph_cases
import numpy as np
import pytest
from old_checkpoints import write_old

from stand_in_device import DEVICE, Elsewhere, There
from weft.cli import main
from weft.errors import DataError
from weft.graphs import Graph, GraphTable, open_table, store, write_table
from weft.models.config import LayerOptions
from weft.parallel.grid import Grid, grid_of
from weft.parallel.method import PUBLISHED, Method
from weft.parallel.network import GridNetwork
from weft.parallel.prepare import prepare
from weft.parallel.shard import GraphShard
from weft.parallel.world import joined
from weft.recipes.full_graph import training as module
from weft.recipes.full_graph.data import full_graph_clusters, full_graph_table
from weft.recipes.full_graph.prediction import predict_nodes
from weft.recipes.full_graph.session import train_shared
from weft.recipes.full_graph.training import (
    FullGraphConfig,
    TrainedFullGraph,
    done_epochs,
    train_full_graph,
)
from weft.sources import planted_partition
from weft.training import NonFiniteLoss, ScheduleConfig, checkpoint, load_weights, read_metrics
from weft.training.checkpoint import load_checkpoint
from weft.training.launch import RankError, launch
from weft.training.ranks import load_on_all
from weft.training.run import Run

CONFIG = FullGraphConfig(
    data="made",
    hidden=(6,),
    epochs=8,
    checkpoint_every=3,
    dtype="float64",
    dropout=0.3,
    timeout=300.0,
    feature_scale="none",
)
NODES = 53


def graph(nodes: int = NODES, seed: int = 2) -> Graph:
    return planted_partition(nodes, 3, mean_degree=5, homophily=0.9, num_features=7, seed=seed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("full-graph")


@pytest.fixture(scope="module")
def table(folder: Path) -> GraphTable:
    return prepare(graph(), folder / "graph.weft", blocks=4, partition="random", dtype="float64")


def train(
    table: GraphTable, folder: Path, grid: Grid | None = None, config: Any = CONFIG, **options: Any
) -> TrainedFullGraph:
    grid = grid or Grid(rows=1)
    config = replace(config, ranks=grid.ranks)
    return train_full_graph(table, config, grid, folder=folder, quiet=True, **options)


def losses(folder: Path) -> list[float]:
    lines = read_metrics(folder)
    assert [line["epoch"] for line in lines] == list(range(1, len(lines) + 1))
    return [line["train_loss"] for line in lines]


@pytest.fixture(scope="module")
def serial(table: GraphTable, folder: Path) -> list[float]:
    """Losses of one process that nobody disturbs."""
    trained = train(table, folder / "serial")
    assert trained.result.stopped == "finished"
    found = losses(folder / "serial")
    assert len(found) == CONFIG.epochs
    assert found[-1] < found[0]
    return found


def test_one_process_leaves_a_whole_run(table, folder, serial):
    run = folder / "serial"
    summary = json.loads((run / "summary.json").read_text())
    assert summary["grid"] == "1d"
    # Libraries are not counted: they would be a hundred times what this graph takes.
    cost = summary["communication"]
    assert 0 < cost["predicted"] < 1e5
    assert 0 <= cost["peak"] < 1.5e7
    assert summary["counts"] == table.metadata["counts"]
    assert 0 < summary["test_accuracy"] <= 1
    assert (run / "weights.safetensors").exists()
    assert done_epochs(run)[1] == 8
    line = read_metrics(run)[-1]
    assert line["bytes_received"] == 0
    assert line["peak_memory_bytes"] > 0
    assert {"communication_seconds", "compute_seconds", "validation_accuracy"} <= set(line)


@pytest.mark.parametrize(
    ("model", "layer", "grid"),
    [
        ("gat", {"heads": 2, "norm": "batch", "residual": True, "checkpoint": True}, ("2d", 4)),
        ("sage", {"aggregate": "max"}, ("1d", 2)),
        ("sgc", {"steps": 2}, ("1.5d", 4)),
    ],
)
def test_any_network_has_the_losses_of_one_process(model, layer, grid, tmp_path):
    config = replace(CONFIG, model=model, hidden=(6, 6), layer=LayerOptions(**layer))
    how = {"normalisation": config.matrix, "dtype": "float64"}
    table = prepare(graph(), tmp_path / "t", blocks=4, partition="random", **how)
    train(table, tmp_path / "serial", config=config)
    expected = losses(tmp_path / "serial")
    assert expected[-1] < expected[0]
    # Half of it, then the rest on other ranks.
    train(table, tmp_path / "run", config=replace(config, epochs=4))
    trained = train(table, tmp_path / "run", grid_of(*grid), config=config, resume=True)
    np.testing.assert_allclose(losses(tmp_path / "run"), expected, rtol=1e-10)
    cost = trained.communication
    assert cost is not None
    assert cost.predicted is None
    assert cost.bytes
    assert not cost.predicted_bytes
    one = predict_nodes(tmp_path / "serial", tmp_path / "one.csv")
    two = predict_nodes(tmp_path / "run", tmp_path / "two.csv", ranks=2)
    assert (tmp_path / "one.csv").read_text() == (tmp_path / "two.csv").read_text()
    assert one is not None
    assert two is not None
    assert len(one) == len(two) == NODES


def test_clusters_go_on_where_they_stopped(tmp_path):
    store_in = {"data_dir": tmp_path / "data"}
    write_table(tmp_path / "graph.weft", [graph()])
    config = replace(
        CONFIG, data=str(tmp_path / "graph.weft"), clusters=5, clusters_per_step=2, epochs=6
    )
    table, _ = full_graph_table(config, **store_in)
    clusters = full_graph_clusters(config, **store_in)
    assert clusters is not None
    assert clusters.metadata["partition"]["blocks"] == 5
    train(table, tmp_path / "whole", config=config, clusters=clusters)
    expected = losses(tmp_path / "whole")
    assert expected[-1] < expected[0]
    assert all("validation_accuracy" in line for line in read_metrics(tmp_path / "whole"))
    half = replace(config, epochs=3)
    train(table, tmp_path / "run", config=half, clusters=clusters)
    trained = train(table, tmp_path / "run", config=config, clusters=clusters, resume=True)
    assert losses(tmp_path / "run") == expected
    assert trained.result.steps == 18
    # Ranks take clusters of their own, so that an epoch has fewer steps.
    shared = train(table, tmp_path / "ranks", grid_of("1d", 2), config, clusters=clusters)
    assert shared.result.steps == 12
    assert losses(tmp_path / "ranks")[-1] < expected[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clusters": 3, "clusters_per_step": 4}, "cut the graph into more"),
        ({"clusters": 3, "method": PUBLISHED}, "the published algorithms have no clusters"),
        ({"layer": LayerOptions(heads=8)}, "layer.heads is 8, but gcn has none: it is for gat and"),
        ({"model": "gat", "hidden": (6,)}, "6 features cannot be shared by 4 heads"),
        ({"model": "gat", "method": Method(exchange="blocks")}, "set it to rows"),
        ({"model": "gin", "method": PUBLISHED}, "the published algorithms have no such layers"),
        ({"model": "sage", "method": PUBLISHED}, "the published algorithms have no sage"),
        ({"model": "mlp"}, "model is 'mlp'"),
    ],
)
def test_networks_that_are_refused(options, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        FullGraphConfig(**options)


def test_maxima_take_grids_of_whole_rows():
    config = FullGraphConfig(model="sage", layer=LayerOptions(aggregate="max"), ranks=8)
    assert {each.grid.layers for each in config.estimates(100, 500, 7, 3)} == {1}
    with pytest.raises(ValueError, match="GraphSAGE with maxima needs all edges of a node"):
        replace(config, grid="3d").estimates(100, 500, 7, 3)


def test_a_killed_rank_changes_no_loss(table, serial, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_train_launched", full_graph_cases.dying)
    (tmp_path / "die.json").write_text(json.dumps({"rank": 2, "epoch": 5}))
    said: list[str] = []
    trained = train(table, tmp_path / "run", grid_of("2d", 4), tell=said.append)
    assert (tmp_path / "dead-5").exists()
    (text,) = said
    assert text.startswith("rank 2 was killed by SIGKILL")
    assert text.endswith("restarting from epoch 3 (1 of 3)")
    assert trained.result.stopped == "finished"
    np.testing.assert_allclose(losses(tmp_path / "run"), serial, rtol=1e-10)
    assert trained.communication is not None
    assert sum(trained.communication.bytes.values()) > 0
    assert trained.communication.predicted_bytes == trained.communication.bytes
    assert read_metrics(tmp_path / "run")[-1]["bytes_received"] > 0


# How often each; more by hand: WEFT_KILLS=20 pytest -k kill_in.
KILLS = int(os.environ.get("WEFT_KILLS", "1"))


@pytest.mark.parametrize("draw", range(KILLS))
@pytest.mark.parametrize("where", ["checkpoint", "evaluation", "collective"])
def test_a_kill_in_the_midst_of_it_changes_no_loss(
    table, serial, tmp_path, monkeypatch, where, draw
):
    monkeypatch.setattr(module, "_train_launched", full_graph_cases.dying)
    rng = np.random.default_rng([draw, len(where)])
    # Rank 0 alone writes, and keeps the beginning, epochs 3 and 6, and the end.
    latest = 4 if where == "checkpoint" else CONFIG.epochs
    plan = {
        "where": where,
        "rank": 0 if where == "checkpoint" else int(rng.integers(4)),
        "epoch": int(rng.integers(1, latest + 1)),
        "message": int(rng.integers(1, 4)),
    }
    (tmp_path / "die.json").write_text(json.dumps(plan))
    grid = grid_of("2d", 4) if draw % 2 == 0 else grid_of("1.5d", 4, 2)
    said: list[str] = []
    trained = train(table, tmp_path / "run", grid, tell=said.append)
    # It died there, and nowhere else.
    assert (tmp_path / f"dead-{plan['epoch']}").read_text() == where, plan
    (text,) = said
    assert text.startswith(f"rank {plan['rank']} was killed by SIGKILL")
    assert trained.result.stopped == "finished"
    np.testing.assert_allclose(losses(tmp_path / "run"), serial, rtol=1e-10)
    assert not list((tmp_path / "run").glob(".*.partial"))


def test_another_device_gives_the_same_run_and_goes_on_elsewhere(table, serial, tmp_path):
    run = tmp_path / "run"

    def on_device(config: FullGraphConfig, *, resume: bool = False) -> TrainedFullGraph:
        with (
            Elsewhere(),
            joined("1d", device=DEVICE) as world,
            Run.create(run, config.recipe(), resume=resume) as kept,
        ):
            return train_shared(table, world, config, run=kept, quiet=True)

    on_device(replace(CONFIG, epochs=3))
    # On the CPU, back to the device, each from the other's checkpoint.
    train(table, run, config=replace(CONFIG, epochs=6, device="cpu"), resume=True)
    trained = on_device(CONFIG, resume=True)
    assert trained.result.epochs == CONFIG.epochs
    np.testing.assert_allclose(losses(run), serial, rtol=1e-10)
    whole = train(table, tmp_path / "cpu")
    assert trained.scores == pytest.approx(whole.scores, rel=1e-10)


def test_weights_to_start_from_reach_the_device(table, serial, folder):
    with Elsewhere(), joined("1d", device=DEVICE) as world:
        shard = GraphShard.open(table, world, CONFIG.method, CONFIG.torch_dtype)
        network = GridNetwork(CONFIG.make_model(shard.features, shard.classes), shard)
        load_on_all(network.model, lambda: load_weights(network.model, folder / "serial"), world)
        network.model.eval()
        found = network.evaluate()
        assert {type(value) for value in network.model.parameters()} == {There}
    summary = json.loads((folder / "serial" / "summary.json").read_text())
    assert found["test_loss"] == pytest.approx(summary["test_loss"], rel=1e-10)


def test_a_rank_that_dies_in_the_first_step_is_named(table, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_train_launched", full_graph_cases.dying)
    (tmp_path / "die.json").write_text(json.dumps({"rank": 1, "epoch": 1}))
    with pytest.raises(RankError, match=r"^rank 1 was killed by SIGKILL.*logs are in .*run/logs$"):
        train(table, tmp_path / "run", Grid(rows=2), max_restarts=0)
    # Nothing is lost: the beginning was kept.
    assert (tmp_path / "run" / "last.pt").exists()
    assert done_epochs(tmp_path / "run")[1] == 0


def test_a_run_goes_on_with_other_ranks_and_another_grid(table, serial, tmp_path):
    run, short = tmp_path / "run", replace(CONFIG, epochs=5)
    train(table, run, Grid(rows=2), short)
    trained = train(table, run, grid_of("1.5d", 4, 2), resume=True)
    assert trained.result.epochs == CONFIG.epochs
    np.testing.assert_allclose(losses(run), serial, rtol=1e-10)
    with pytest.raises(DataError, match="holds a run already"):
        train(table, run, Grid(rows=2))


def in_old_format(run: Path) -> None:
    """Replace the checkpoint of a run by one that the versions before wrote."""
    state = load_checkpoint(run / "last.pt")
    names = list(state["model"])
    tensors = {f"model.{name}": value for name, value in state["model"].items()}
    tensors |= {f"best.{name}": value for name, value in (state["best"] or {}).items()}
    for number, own in state["optimizer"]["state"].items():
        tensors |= {f"optimizer.{names[number]}.{key}": value for key, value in own.items()}
    kept = ("epoch", "seconds", "train_seconds", "metrics", "evaluated_epoch")
    best = ("best_value", "best_epoch", "best_metrics")
    progress = {name: state["progress"][name] for name in (*kept, *best)}
    progress["lines"] = state["metrics_lines"]
    fingerprint = state["extras"]["fingerprint"]
    write_old(run / "checkpoints", progress["epoch"], tensors, progress, fingerprint)
    (run / "last.pt").unlink()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_of_an_earlier_version_goes_on_to_the_bit(table, serial, tmp_path, ranks):
    run = tmp_path / "run"
    train(table, run, config=replace(CONFIG, epochs=4))
    in_old_format(run)
    assert done_epochs(run)[1] == 4
    trained = train(table, run, Grid(rows=ranks), resume=True)
    assert trained.result.epochs == CONFIG.epochs
    assert done_epochs(run)[1] == 8
    if ranks == 1:
        np.testing.assert_array_equal(losses(run), serial)
    np.testing.assert_allclose(losses(run), serial, rtol=1e-10)


def test_a_checkpoint_of_an_earlier_version_and_of_another_run(table, tmp_path):
    run = tmp_path / "run"
    train(table, run, config=replace(CONFIG, epochs=2))
    in_old_format(run)
    other = prepare(graph(seed=9), tmp_path / "other.weft", blocks=1, dtype="float64")
    config = json.loads((run / "config.json").read_text())
    del config["data"]
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"epoch-000002 is of another run: data is .* there and "):
        train(other, run, resume=True)


def test_a_damaged_checkpoint_does_not_hide_why_ranks_start_again(table, tmp_path, monkeypatch):
    run = tmp_path / "run"

    def launched(*_: Any, again: Callable[[], str], **__: Any) -> None:
        (run / "last.pt").write_bytes(b"damaged")
        raise RankError(f"rank 1 was killed; restarting from {again()}")

    monkeypatch.setattr(module, "launch", launched)
    with pytest.raises(RankError, match="killed; restarting from the last checkpoint"):
        train(table, run, Grid(rows=2))


@pytest.mark.parametrize("harm", ["cut", "flipped"])
def test_a_damaged_checkpoint_is_named_on_every_rank(table, tmp_path, harm):
    run = tmp_path / "run"
    train(table, run, config=replace(CONFIG, epochs=2))
    raw = bytearray((run / "last.pt").read_bytes())
    raw[len(raw) // 2] ^= 255
    (run / "last.pt").write_bytes(raw[:-9] if harm == "cut" else raw)
    with pytest.raises(DataError, match=r"last\.pt is (cut, )?damaged"):
        train(table, run, resume=True)
    with pytest.raises(DataError, match=r"rank \d: .*last\.pt is (cut, )?damaged"):
        train(table, run, Grid(rows=2), resume=True)


def test_a_full_disk_leaves_the_checkpoint_before(table, serial, tmp_path, monkeypatch):
    run, write = tmp_path / "run", checkpoint.write_atomically

    def full(path: Path, writer: Any) -> None:
        if path.name == "last.pt" and path.exists() and done_epochs(run)[1] == 3:
            raise DataError(f"cannot write {path}: No space left on device")
        write(path, writer)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_atomically", full)
        with pytest.raises(DataError, match=r"cannot write .*last\.pt: No space left"):
            train(table, run)
    assert done_epochs(run)[1] == 3
    train(table, run, resume=True)
    np.testing.assert_array_equal(losses(run), serial)


def test_killed_while_a_checkpoint_is_written(table, serial, tmp_path, monkeypatch):
    run, save = tmp_path / "run", checkpoint.torch.save

    def stop(state: Any, file: Any) -> None:
        if state["progress"]["step"] == 6:
            raise KeyboardInterrupt
        save(state, file)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.torch, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            train(table, run)
    assert done_epochs(run)[1] == 3
    train(table, run, resume=True)
    np.testing.assert_array_equal(losses(run), serial)


def test_a_schedule_clipping_averages_and_another_optimizer_on_any_grid(table, tmp_path):
    config = replace(
        CONFIG,
        schedule=ScheduleConfig(shape="cosine", warmup=2),
        clip_norm=0.05,
        ema=0.5,
        optimizer="sgd",
        momentum=0.9,
        epochs=6,
    )
    train(table, tmp_path / "one", config=config)
    train(table, tmp_path / "four", grid_of("2d", 4), config=config)
    found = losses(tmp_path / "one")
    np.testing.assert_allclose(losses(tmp_path / "four"), found, rtol=1e-10)
    train(table, tmp_path / "plain", config=replace(CONFIG, epochs=6))
    assert losses(tmp_path / "plain") != found
    assert "schedule" not in replace(CONFIG, epochs=6).recipe()
    assert config.recipe()["clip_norm"] == 0.05


def test_a_stale_checkpoint_says_what_differs_before_anything_is_lost(table, tmp_path):
    run = tmp_path / "run"
    train(table, run, config=replace(CONFIG, epochs=2))
    other = prepare(graph(seed=9), tmp_path / "other.weft", blocks=1, dtype="float64")
    words = r"data has changed since the run in .*run was started: features, edges, labels, split; "
    for grid in (Grid(rows=1), Grid(rows=2)):
        with pytest.raises(DataError, match=words):
            train(other, run, grid, resume=True)
    # As a run has it that knows no checksums: its checkpoints still know some of the data.
    config = json.loads((run / "config.json").read_text())
    del config["data"]
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"run/last\.pt is of another run: data is .* there and "):
        train(other, run, resume=True)
    config = json.loads((run / "config.json").read_text())
    del config["data"]
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"rank \d: .* is of another run: data is .* there and "):
        train(other, run, Grid(rows=2), resume=True)
    with pytest.raises(DataError, match=r"started with hidden = \[6\], now it is \[9\]"):
        train(table, run, config=replace(CONFIG, hidden=(9,)), resume=True)
    assert len(losses(run)) == 2


def test_what_has_changed_in_the_data_is_named(tmp_path):
    plain = graph(nodes=100)
    weights = np.random.default_rng(0).uniform(0.5, 2, plain.num_edges)
    whole = replace(plain, edges={"weight": weights})
    run, config = tmp_path / "run", replace(CONFIG, epochs=2)
    train(prepare(whole, blocks=1, dtype="float64"), run, config=config)
    nodes = {name: values.copy() for name, values in whole.nodes.items()}
    # Beyond the first rows, with the degrees, classes and split as they were.
    nodes["x"][-1, -1] += 1e-3
    swapped = whole.senders.copy()
    swapped[[0, -1]] = swapped[[-1, 0]]
    weights = weights.copy()
    weights[-1] *= 1 + 1e-12
    classes = {**whole.nodes, "y": whole.nodes["y"][::-1].copy()}
    masks = {**whole.nodes, "test": whole.nodes["test"] & False}
    for changed, what in (
        (replace(whole, nodes=nodes), "features"),
        (replace(whole, senders=swapped), "edges, weights"),
        (replace(whole, edges={"weight": weights}), "weights"),
        (replace(whole, nodes=classes), "labels"),
        (replace(whole, nodes=masks), "split"),
    ):
        with pytest.raises(DataError, match=rf"run was started: {what}; resume with the data as"):
            train(prepare(changed, blocks=1, dtype="float64"), run, config=CONFIG, resume=True)
    order = np.random.default_rng(1).permutation(whole.num_edges)
    same = replace(
        whole,
        senders=whole.senders[order],
        receivers=whole.receivers[order],
        edges={"weight": whole.edges["weight"][order]},
    )
    assert train(prepare(same, blocks=1, dtype="float64"), run, resume=True).result.epochs == 8


def test_a_run_without_checksums_goes_on_and_takes_those_of_today(table, serial, tmp_path):
    run = tmp_path / "run"
    train(table, run, config=replace(CONFIG, epochs=2))
    config = json.loads((run / "config.json").read_text())
    kept = config.pop("data")
    (run / "config.json").write_text(json.dumps(config))
    train(table, run, resume=True)
    np.testing.assert_array_equal(losses(run), serial)
    assert json.loads((run / "config.json").read_text())["data"] == kept


def test_ranks_that_differ_are_named_on_every_rank(table, tmp_path):
    original = graph()
    wide = {**original.nodes, "x": original.nodes["x"].astype(np.float64)}
    changed = {**original.nodes, "x": original.nodes["x"] + np.float32(1e-3)}
    paths = [[str(table.path)] * 2 for _ in range(2)]
    for name, nodes, pair in (("wide", wide, paths[0]), ("changed", changed, paths[1])):
        prepare(
            replace(original, nodes=nodes),
            tmp_path / name,
            blocks=4,
            partition="random",
            dtype="float64",
        )
        pair[1] = str(tmp_path / name)
    said = launch(full_graph_cases.disagreeing, (paths, CONFIG), ranks=3, logs=tmp_path / "logs")
    assert said[0] == said[1] == said[2]
    dtype, content, option, none = said[0]
    assert 'the dtype of the features: it is "float64" on rank 1 and "float32" on rank 0' in dtype
    assert "the graph's fingerprint: it is " in content
    assert " on rank 1 and " in content
    assert "the option learning_rate: it is 0.5 on rank 1 and 0.01 on rank 0" in option
    assert none == "alike"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"grid": "2d", "ranks": 6}, "the grid 2d needs q² ranks, not 6"),
        ({"grid": "1.5d", "ranks": 6, "replication": 3}, "replication is 3 for 6 ranks"),
        ({"grid": "4d", "ranks": 6}, "grid is '4d'"),
        ({"replication": 2}, "only the grid 1.5d"),
        ({"ranks": 0}, "ranks is 0"),
        ({"timeout": 0}, "timeout is 0 s"),
        (
            {"test_mask": "t.npy"},
            "masks say which node is in which part, but train_mask is missing",
        ),
        ({"dtype": "float16"}, "dtype is 'float16'"),
        ({"epochs": -1}, "epochs is -1"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0"),
    ],
)
def test_settings_that_cannot_be(options, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        FullGraphConfig(**options)


def test_a_grid_of_other_ranks_and_a_table_in_memory(table, tmp_path):
    with pytest.raises(ValueError, match="has 4 ranks, not 2"):
        train_full_graph(table, replace(CONFIG, ranks=2), Grid(rows=4), folder=tmp_path / "run")
    with pytest.raises(ValueError, match="the table is in memory"):
        train(prepare(graph(), blocks=2, dtype="float64"), tmp_path / "run", Grid(rows=2))
    bare = prepare(replace(graph(), nodes={"x": graph().nodes["x"]}), blocks=1)
    with pytest.raises(DataError, match="made has no node to train on"):
        train(bare, tmp_path / "run")
    with pytest.raises(DataError, match="with a matrix of float32, and dtype float64 is requested"):
        train(prepare(graph(), blocks=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("epoch", [4, 6])
def test_a_signal_stops_with_a_checkpoint(table, serial, tmp_path, monkeypatch, epoch):
    step = GridNetwork.step

    def signalled(self: GridNetwork, seed: int) -> float:
        if seed % 2**32 == epoch:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, seed)

    with monkeypatch.context() as patch:
        patch.setattr(GridNetwork, "step", signalled)
        trained = train(table, tmp_path / "run")
    assert trained.result.stopped == "interrupted by SIGTERM"
    assert trained.result.steps == done_epochs(tmp_path / "run")[1] == epoch
    train(table, tmp_path / "run", resume=True)
    np.testing.assert_array_equal(losses(tmp_path / "run"), serial)


def test_files_that_are_not_as_the_manifest_says(tmp_path, monkeypatch):
    # As for a large table, whose bytes are not all read when it is opened.
    monkeypatch.setattr(store, "CHECK_BYTES", 0)
    prepare(graph(), tmp_path / "graph.weft", blocks=1, dtype="float64")
    with (tmp_path / "graph.weft" / "x.npy").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x3f")
    with pytest.raises(DataError, match=r"x\.npy"):
        train(open_table(tmp_path / "graph.weft"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_early_stopping_and_weights_of_another_run(table, folder, serial, tmp_path):
    config = replace(CONFIG, epochs=50, patience=2, evaluate_every=2, learning_rate=0.0)
    trained = train(table, tmp_path / "run", config=config, init_from=folder / "serial")
    assert trained.result.stopped == "early stopping"
    assert trained.result.best_epoch == 2
    assert trained.result.epochs == 4
    first = json.loads((folder / "serial" / "summary.json").read_text())
    assert trained.scores["test_loss"] == pytest.approx(first["test_loss"], rel=1e-12)


def test_a_loss_that_is_not_finite(table, tmp_path):
    config = replace(CONFIG, learning_rate=1e300, epochs=20)
    with pytest.raises(NonFiniteLoss, match=r"the loss is .* at step \d+ \(epoch \d"):
        train(table, tmp_path / "run", config=config)


@pytest.mark.parametrize(("model", "layer"), [("gcn", {}), ("gin", {})])
def test_rounded_reads_say_how_much_they_change(model, layer, tmp_path):
    table = prepare(graph(), blocks=1, normalisation="symmetric" if model == "gcn" else "none")
    config = replace(CONFIG, model=model, layer=LayerOptions(**layer), dtype="float32")
    whole = train(table, tmp_path / "whole", config=config)
    rounding = replace(config, method=Method(reads="bfloat16"))
    trained = train(table, tmp_path / "rounded", config=rounding)
    assert 0 < trained.scores["reads_error"] < 0.02
    assert "reads_error" not in whole.scores
    assert losses(tmp_path / "rounded") == pytest.approx(losses(tmp_path / "whole"), rel=0.02)
    summary = json.loads((tmp_path / "rounded" / "summary.json").read_text())
    assert summary["reads_error"] == trained.scores["reads_error"]


def test_graphsage_in_float32(tmp_path):
    means = prepare(graph(), blocks=2, normalisation="row")
    config = replace(CONFIG, model="sage", dtype="float32", dropout=0.0)
    train(means, tmp_path / "run", config=config)
    found = losses(tmp_path / "run")
    assert found[-1] < found[0]
    np.testing.assert_array_equal(found, np.float32(found))


def test_ranks_that_torchrun_starts_again_go_on_by_themselves(tmp_path):
    write_table(tmp_path / "own.weft", [graph()])
    run = tmp_path / "run"
    words = ["train", "full-graph", "--data", str(tmp_path / "own.weft"), "--out", str(run)]
    words += ["--data-dir", str(tmp_path / "data"), "--quiet", "--epochs"]

    def ranks(epochs: int, *, restarts: int) -> list[int]:
        task = ([*words, str(epochs)], restarts)
        return launch(full_graph_cases.command, task, ranks=2, logs=tmp_path / "logs")

    assert main([*words, "3"]) == 0
    assert ranks(5, restarts=1) == [0, 0]
    assert len(losses(run)) == 5
    # Not started again, and not told to go on: the run is refused, on every rank.
    assert ranks(5, restarts=0) == [2, 2]
    assert "holds a run already" in (tmp_path / "logs" / "rank-1.log").read_text()
