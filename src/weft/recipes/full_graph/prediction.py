"""A trained run of the recipe for one big graph, applied to all nodes of its graph or another."""

from __future__ import annotations

import csv
import dataclasses
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from weft.errors import DataError
from weft.files import read_object, write_atomically
from weft.graphs import Array, GraphTable, open_table
from weft.parallel.grid import Grid, grid_of
from weft.parallel.labels import TargetKind
from weft.parallel.method import CUT_FOR_GRID
from weft.parallel.module_network import network_of
from weft.parallel.shard import GraphShard
from weft.parallel.targets import Target, predictions_of
from weft.parallel.world import joined_replicas
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.full_graph.data import full_graph_table
from weft.recipes.full_graph.session import check_alike
from weft.recipes.full_graph.training import PREPARING, first_of_host, join
from weft.recipes.recipe import ABOUT, from_json
from weft.sources.edge_lists import column_lines
from weft.training.checkpoint import load_weights
from weft.training.launch import is_a_rank, launch, lost_ranks_named
from weft.training.ranks import load_on_all
from weft.training.run import LOGS


def load_nodes(run: Path) -> tuple[FullGraphConfig, dict[str, Any]]:
    """The recipe of the run in a folder, and its model.json: `features`, `classes` and `table`.

    Raises:
        DataError: it is not a run of this recipe, or damaged.
    """
    fields: dict[str, Any] = {"config": dict, "features": int, "classes": int}
    try:
        about = read_object(run / ABOUT, fields | {"table": (str, type(None))})
        config = from_json(FullGraphConfig, about["config"])
    except (ValueError, TypeError) as error:
        raise DataError(f"{run} holds no run of `weft train full-graph` ({error})") from error
    # Where it was trained says nothing of this machine.
    return dataclasses.replace(config, device="auto"), about


def predict_nodes(
    run: Path,
    out: Path,
    *,
    data: str | None = None,
    features: str | None = None,
    ranks: int | None = None,
    data_dir: Path | None = None,
    tell: Callable[[str], object] | None = None,
) -> Array | None:
    """What the run says of every node, written to `out` as CSV in the order of the nodes.

    No rank holds the graph: each reads its part and sends what it finds to rank 0, which writes.
    The ranks are started here, on this machine; in a process that torchrun has started, this is
    one of them, and only the host of rank 0 needs the folder of the run.

    Args:
        run: the folder of a run of `weft train full-graph`.
        out: the file: node, class and probability; of labels node and the probability of each; of
            numbers node and these.
        data: another graph than the run's; as for training, classes are not needed.
        features: .npy [n, f], where `data` is an edge list.
        ranks: processes, in a 1d grid; by default 1, or as many as torchrun has started.
        data_dir: the data folder.
        tell: takes a sentence for the user while ranks of torchrun are waited for.

    Returns:
        A record for each node with the fields of the file, nodes and classes by their names where
        they have any; None on ranks other than rank 0.

    Raises:
        DataError: the graph has other features than the network reads, or a rank has failed.
    """
    if not is_a_rank():
        config, about = load_nodes(run)
        table, grid = _graph(config, about, data, features, ranks or 1, data_dir)
        assert table.path is not None
        arguments = (table.path, run, config, about, grid, out)
        if grid.ranks == 1:
            return _predict(*arguments)
        answers = launch(_predict, arguments, ranks=grid.ranks, logs=run / LOGS / "predict")
        found: Array | None = answers[0]
        return found
    started = int(os.environ["WORLD_SIZE"])
    if ranks not in (None, started):
        raise ValueError(f"--ranks is {ranks}, but torchrun has started {started}; leave it out")
    with lost_ranks_named(), joined_replicas(PREPARING, tell=tell) as world:
        config, about = world.broadcast_from_rank0(lambda: load_nodes(run))
        # The table of the training is taken where every host has it.
        there = torch.tensor(float(about["table"] is not None and Path(about["table"]).exists()))
        world.reduce(there, "min")
        if not there.item():
            about = {**about, "table": None}
        table, grid = first_of_host(
            lambda: _graph(config, about, data, features, started, data_dir), tell
        )
        assert table.path is not None
        return _predict(table.path, run, config, about, grid, out)


def _graph(
    config: FullGraphConfig,
    about: dict[str, Any],
    data: str | None,
    features: str | None,
    ranks: int,
    data_dir: Path | None,
) -> tuple[GraphTable, Grid]:
    """The graph to predict, cut for these ranks, where it fits the table of the training."""
    config = dataclasses.replace(
        config, ranks=ranks, grid="1d", replication=None, partition="contiguous"
    )
    if data is not None:
        config = dataclasses.replace(
            config,
            data=data,
            features=None,
            labels=None,
            split=None,
            train_mask=None,
            validation_mask=None,
            test_mask=None,
        )
        return full_graph_table(config, data_dir=data_dir, unlabelled=True, features=features)
    grid = grid_of("1d", ranks)
    if about["table"] is not None and Path(about["table"]).exists():
        table = open_table(Path(about["table"]))
        partition = table.metadata["partition"]
        if partition["how"] not in CUT_FOR_GRID or partition["blocks"] == grid.blocks:
            return table, grid
    return full_graph_table(config, data_dir=data_dir)


def _predict(
    path: Path, run: Path, config: FullGraphConfig, about: dict[str, Any], grid: Grid, out: Path
) -> Array | None:
    """Predict this rank's nodes of the prepared graph in `path`; rank 0 writes those of all."""
    table = open_table(path, check=False)
    width = int(table.column("x").shape[1])
    if width != about["features"]:
        raise DataError(
            f"the graph has {width} features a node, the network of {run} reads {about['features']}"
        )
    with join(grid, config) as world:
        check_alike(table, world, config)
        shard = GraphShard.open(table, world, config.method, config.torch_dtype)
        model = config.make_model(shard.features, about["classes"])
        network = network_of(model, shard, lambda own: Target(own, about["classes"]))
        load_on_all(model, lambda: load_weights(model, run), world)
        model.eval()
        ids, outputs = network.outputs()
        kind: TargetKind = about.get("target", "classes")
        own = _records(ids, predictions_of(outputs, kind, about.get("target_scale")), kind)
        found = _on_rank0(own)
        if found is not None:
            names = column_lines(table.column("names")) if "names" in table.schema else None
            found = _called(found, {"node": names, "class": about.get("class_names")})
        # The others wait for it: its disk may be full, which is everyone's affair.
        world.broadcast_from_rank0(lambda: _write(out, found))
        return found


def _records(ids: Tensor, values: Tensor, kind: TargetKind) -> Array:
    """A record for each node: its class and the probability of that; or the values [n, t]."""
    if kind == "classes":
        fields = [("class", "<i8"), ("probability", "<f8")]
    else:
        word = "label" if kind == "multilabel" else "value"
        fields = [(f"{word}_{number}", "<f8") for number in range(values.shape[1])]
    found = np.empty(len(ids), dtype=[("node", "<i8"), *fields])
    found["node"] = ids.numpy()
    if kind != "classes":
        for (name, _), column in zip(fields, values.T, strict=True):
            found[name] = column.double().numpy()
    elif len(ids):
        best, chosen = values.max(1)
        found["class"], found["probability"] = chosen.numpy(), best.double().numpy()
    return found


def _on_rank0(own: Array) -> Array | None:
    """The records of all ranks in the order of the nodes, on rank 0, which the others send to."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        parts = [own]
    elif dist.get_rank() > 0:
        dist.send(torch.tensor([own.nbytes]), 0)
        # Not of nothing: gloo sends no empty message.
        if own.nbytes:
            dist.send(torch.from_numpy(own.view(np.uint8)), 0)
        return None
    else:
        parts = [own]
        for rank in range(1, dist.get_world_size()):
            size = torch.zeros(1, dtype=torch.int64)
            dist.recv(size, rank)
            raw = torch.empty(int(size), dtype=torch.uint8)
            if len(raw):
                dist.recv(raw, rank)
            parts.append(raw.numpy().view(own.dtype))
    found = np.concatenate(parts)
    return found[np.argsort(found["node"], kind="stable")]


def _called(found: Array, names: dict[str, list[str] | None]) -> Array:
    """The records with names instead of numbers in the fields that there are names for."""
    fields = found.dtype.names or ()
    known = {field: given for field in fields if (given := names.get(field)) is not None}
    if not known:
        return found
    out = np.empty(len(found), [(f, object if f in known else found.dtype[f]) for f in fields])
    for field in fields:
        values = found[field]
        out[field] = np.array(known[field], dtype=object)[values] if field in known else values
    return out


def _write(out: Path, found: Array | None) -> None:
    assert found is not None

    def rows(file: BinaryIO) -> None:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(found.dtype.names or ())
        for record in found.tolist():
            writer.writerow([f"{x:.6g}" if isinstance(x, float) else x for x in record])
        text.detach()

    write_atomically(out, rows)
