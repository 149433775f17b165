"""A trained run of the recipe for one big graph, applied to all nodes of its graph or another."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch.distributed as dist

from weft.errors import DataError
from weft.files import read_object, write_atomically
from weft.graphs import Array, GraphTable, open_table
from weft.parallel.grid import Grid, grid_of
from weft.parallel.method import CUT_FOR_GRID
from weft.parallel.network import GridNetwork
from weft.parallel.shard import GraphShard
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.full_graph.data import full_graph_table
from weft.recipes.full_graph.session import check_alike
from weft.recipes.full_graph.training import join
from weft.recipes.recipe import ABOUT, from_json
from weft.training.checkpoint import load_weights
from weft.training.launch import is_a_rank, launch
from weft.training.run import LOGS

_ROW = np.dtype([("node", "<i8"), ("class", "<i8"), ("probability", "<f8")])


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
    ranks: int = 1,
    data_dir: Path | None = None,
) -> Array:
    """Class and probability of every node, written to `out` as CSV in the order of the nodes.

    No rank holds the graph: each reads its part and writes what it finds, and rank 0 joins that.

    Args:
        run: the folder of a run of `weft train full-graph`.
        out: the file: node, class, probability.
        data: another graph than the run's; as for training, classes are not needed.
        features: .npy [n, f], where `data` is an edge list.
        ranks: processes, in a 1d grid.
        data_dir: the data folder.

    Returns:
        A record for each node with the fields node, class and probability.

    Raises:
        DataError: the graph has other features than the network reads, or a rank has failed.
    """
    if is_a_rank():
        raise ValueError("weft predict starts its ranks itself: leave torchrun out, pass --ranks")
    config, about = load_nodes(run)
    earlier = None if about["table"] is None else Path(about["table"])
    table, grid = _graph(config, earlier, data, features, ranks, data_dir)
    width = int(table.column("x").shape[1])
    if width != about["features"]:
        raise DataError(
            f"the graph has {width} features a node, the network of {run} reads {about['features']}"
        )
    assert table.path is not None
    with TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as parts:
        arguments = (table.path, run, config, about["classes"], grid, Path(parts))
        if ranks == 1:
            _predict(*arguments)
        else:
            launch(_predict, arguments, ranks=ranks, logs=run / LOGS / "predict")
        found = np.concatenate([np.load(path) for path in sorted(Path(parts).glob("*.npy"))])
    found = found[np.argsort(found["node"], kind="stable")]
    heading = ",".join(_ROW.names or ())
    write_atomically(
        out, lambda file: np.savetxt(file, found, "%d,%d,%.6g", header=heading, comments="")
    )
    return found


def _graph(
    config: FullGraphConfig,
    earlier: Path | None,
    data: str | None,
    features: str | None,
    ranks: int,
    data_dir: Path | None,
) -> tuple[GraphTable, Grid]:
    """The graph to predict, cut for these ranks; `earlier` is the table of the training."""
    config = dataclasses.replace(
        config, ranks=ranks, grid="1d", replication=None, partition="contiguous"
    )
    if data is not None:
        config = dataclasses.replace(config, data=data, features=None, labels=None, split=None)
        return full_graph_table(config, data_dir=data_dir, unlabelled=True, features=features)
    grid = grid_of("1d", ranks)
    if earlier is not None and earlier.exists():
        table = open_table(earlier)
        partition = table.metadata["partition"]
        if partition["how"] not in CUT_FOR_GRID or partition["blocks"] == grid.blocks:
            return table, grid
    return full_graph_table(config, data_dir=data_dir)


def _predict(
    path: Path, run: Path, config: FullGraphConfig, classes: int, grid: Grid, parts: Path
) -> None:
    """Write this rank's rows, of the prepared graph in `path`, by the network of `run`."""
    table = open_table(path, check=False)
    with join(grid, config) as world:
        check_alike(table, world, config)
        shard = GraphShard.open(table, world, config.method, config.torch_dtype)
        model = config.make_model(shard.features, classes)
        load_weights(model, run)
        model.eval()
        ids, probabilities = GridNetwork(model, shard).predict()
        found = np.empty(len(ids), dtype=_ROW)
        found["node"] = ids.numpy()
        if len(ids):
            best, chosen = probabilities.max(1)
            found["class"], found["probability"] = chosen.numpy(), best.double().numpy()
        np.save(parts / f"{world.rank:06d}.npy", found)
        if grid.ranks > 1:
            dist.barrier()
