"""A trained run of the recipe for one big graph, applied to all nodes of its graph or another."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch.distributed as dist

from weft.errors import DataError
from weft.files import read_object, write_atomically
from weft.graphs import Array, GraphTable, open_table
from weft.parallel.grid import Grid, grid_of
from weft.parallel.network import GridNetwork
from weft.parallel.shard import GraphShard
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.full_graph.data import full_graph_table
from weft.recipes.full_graph.session import check_alike
from weft.recipes.full_graph.training import join
from weft.recipes.recipe import ABOUT
from weft.recipes.structures.prediction import from_json
from weft.training.checkpoint import load_weights
from weft.training.launch import is_a_rank, launch
from weft.training.run import LOGS

_ROW = np.dtype([("node", "<i8"), ("class", "<i8"), ("probability", "<f8")])


@dataclass(frozen=True, kw_only=True)
class TrainedNodes:
    """A run, as its folder describes it.

    Attributes:
        folder: the run's.
        config: the recipe.
        features: that its network reads.
        classes: that it tells apart.
        table: the prepared graph that it was trained on.
    """

    folder: Path
    config: FullGraphConfig
    features: int
    classes: int
    table: Path | None


def load_nodes(run: Path) -> TrainedNodes:
    """What the run in a folder was trained for.

    Raises:
        DataError: it is not a run of this recipe, or damaged.
    """
    try:
        about = read_object(
            run / ABOUT,
            {"config": dict, "features": int, "classes": int, "table": (str, type(None))},
        )
        config = from_json(FullGraphConfig, about["config"])
        return TrainedNodes(
            folder=run,
            # Where it was trained says nothing of this machine.
            config=dataclasses.replace(config, device="auto"),
            features=about["features"],
            classes=about["classes"],
            table=None if about["table"] is None else Path(about["table"]),
        )
    except (ValueError, TypeError) as error:
        raise DataError(f"{run} holds no run of `weft train full-graph` ({error})") from error


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
    trained = load_nodes(run)
    table, grid = _graph(trained, data, features, ranks, data_dir)
    width = int(table.column("x").shape[1])
    if width != trained.features:
        raise DataError(
            f"the graph has {width} features a node, the network of {run} reads {trained.features}"
        )
    assert table.path is not None
    with TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as parts:
        arguments = (table.path, trained, grid, Path(parts))
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
    trained: TrainedNodes,
    data: str | None,
    features: str | None,
    ranks: int,
    data_dir: Path | None,
) -> tuple[GraphTable, Grid]:
    config = dataclasses.replace(
        trained.config, ranks=ranks, grid="1d", replication=None, partition="contiguous"
    )
    if data is not None:
        config = dataclasses.replace(config, data=data, features=None, labels=None, split=None)
        return full_graph_table(config, data_dir=data_dir, unlabelled=True, features=features)
    grid = grid_of("1d", ranks)
    if trained.table is not None and trained.table.exists():
        table = open_table(trained.table)
        partition = table.metadata["partition"]
        if partition["how"] != "metis" or partition["blocks"] == grid.blocks:
            return table, grid
    return full_graph_table(config, data_dir=data_dir)


def _predict(path: Path, trained: TrainedNodes, grid: Grid, parts: Path) -> None:
    """Write this rank's rows, of the prepared graph in `path`."""
    config, table = trained.config, open_table(path, check=False)
    with join(grid, config) as world:
        check_alike(table, world, config)
        shard = GraphShard.open(table, world, config.method, config.torch_dtype)
        model = config.make_model(trained.features, trained.classes)
        load_weights(model, trained.folder)
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
