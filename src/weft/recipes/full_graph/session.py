"""One rank's part in training on a graph that many share: its step, its costs, its memory."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from weft.errors import DataError
from weft.graphs import Graph, GraphTable
from weft.parallel.clusters import ClusterSteps
from weft.parallel.grid import Grid
from weft.parallel.labels import METRICS
from weft.parallel.module_network import ModuleNetwork, network_of, reads_error
from weft.parallel.network import GridNetwork
from weft.parallel.prepare import prepare
from weft.parallel.recorder import Recorder
from weft.parallel.shard import GraphShard, fingerprint_of, predicted_own_bytes, release
from weft.parallel.splits import PARTS
from weft.parallel.targets import target_of
from weft.parallel.world import World, alone, settle
from weft.recipes.full_graph.config import SMALLER_IS_BETTER, FullGraphConfig
from weft.recipes.table_training import describe_run, start_from
from weft.sources.edge_lists import column_lines
from weft.training.batches import Batches, Stateful
from weft.training.config import FitResult
from weft.training.hardware import peak_memory, process_memory
from weft.training.loop import FitState, fit, save_fit_checkpoint
from weft.training.optimizers import make_optimizer
from weft.training.randomness import seed_everything
from weft.training.ranks import agree
from weft.training.run import Run, first_difference
from weft.training.schedules import make_scheduler
from weft.training.step import Outcome, Step

KIND = "full graph"
OLD_CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints of earlier versions in that of a run."""
_COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter")


@dataclass(frozen=True, kw_only=True)
class Communication:
    """What an epoch costs the rank that it costs most, a mean over the epochs of this session.

    Attributes:
        bytes: received, by kind of collective.
        predicted_bytes: the same by the formulas, from the edges that the rank holds; nothing
            where they do not count such a network.
        seconds: in collectives, waiting for others included, and in everything else.
        peak: bytes of memory at most, beyond what the process holds with all code loaded and no
            graph; of the GPU's memory on a GPU.
        predicted: that memory by the cost model; None where it does not count such a network.
    """

    bytes: dict[str, float]
    predicted_bytes: dict[str, float]
    seconds: dict[str, float]
    peak: float
    predicted: float | None


@dataclass(frozen=True, kw_only=True)
class TrainedFullGraph:
    """What came out.

    Attributes:
        result: how the training went; the weights are in the run's folder.
        scores: loss and metrics of each part of the split, with these weights.
        communication: None where no epoch was trained in this session.
    """

    result: FitResult
    scores: dict[str, float]
    communication: Communication | None


def check_alike(
    table: GraphTable,
    world: World,
    config: FullGraphConfig,
    clusters: GraphTable | None = None,
) -> None:
    """See that all ranks have the same table, settings and software.

    Raises:
        DataError: on every rank, the same words: they name a rank that differs, and in what.
    """
    own = {
        "the dtype of the features": str(table.column("x").dtype),
        "the graph's fingerprint": fingerprint_of(table),
        "the clusters' fingerprint": None if clusters is None else fingerprint_of(clusters),
        **{f"the option {name}": value for name, value in dataclasses.asdict(config).items()},
        "the device": world.device.type,
        "torch": str(torch.__version__),
    }
    agree(world, own)


def train_shared(
    table: GraphTable,
    world: World,
    config: FullGraphConfig,
    *,
    clusters: GraphTable | None = None,
    run: Run | None = None,
    init_from: Path | None = None,
    quiet: bool = False,
) -> TrainedFullGraph:
    """Train as one rank of `world`; all of them call this.

    Args:
        table: the prepared graph.
        world: the ranks.
        config: the recipe.
        clusters: the same graph in clusters, where `config` asks for them.
        run: what rank 0 logs to and resumes from; the other ranks need none.
        init_from: a run folder or file whose weights to start from; rank 0's counts.
        quiet: no progress.
    """
    assert (clusters is None) == (config.clusters is None)
    check_alike(table, world, config, clusters)
    before = before_graph(config, world.device)
    shard = GraphShard.open(table, world, config.method, config.torch_dtype)
    seed_everything(config.seed)
    model = config.make_model(shard.features, shard.classes)
    network = network_of(
        model, shard, lambda own: target_of(own, own.classes, config.class_weights)
    )
    start_from(model, init_from, world)
    first = list(model.layers[0].parameters())
    known = set(map(id, first))
    groups: list[dict[str, Any]] = [
        {"params": first, "weight_decay": config.weight_decay},
        {"params": [p for p in model.parameters() if id(p) not in known], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    optimizer = make_optimizer(config, groups, rate=config.learning_rate)
    validated = shard.counts["validation"] > 0
    fit_config = config.fit_config(quiet=quiet or world.rank > 0)
    metrics = METRICS[table.metadata.get("target", "classes")]
    watched: str = config.monitor or f"validation_{metrics[0]}"
    if not validated:
        watched = "train_loss"
    mode: Literal["min", "max"] = "min" if watched in (*SMALLER_IS_BETTER, "train_loss") else "max"
    batches = None
    if clusters is not None:
        batches = ClusterSteps(
            clusters,
            model,
            network.target,
            world,
            per_step=config.clusters_per_step,
            normalisation=config.matrix,
            seed=config.seed,
        )
    steps = 1 if batches is None else len(batches)
    fit_config = dataclasses.replace(
        fit_config,
        monitor=watched,
        mode=mode,
        checkpoint_every=config.checkpoint_every * steps,
    )
    scheduler = make_scheduler(
        optimizer, config.schedule, max(1, config.epochs * steps), fit_config.mode
    )
    source = "the checkpoint" if run is None else str(run.checkpoint)
    fingerprint = _Fingerprint(table, config, model, source)
    extras = {"fingerprint": fingerprint}
    step = GridStep(network, config.seed, scheduler, extras, batches)
    if run is not None:
        about = {
            "kind": KIND,
            "config": dataclasses.asdict(config),
            "features": shard.features,
            "classes": shard.classes,
            "target": table.metadata.get("target", "classes"),
            "target_scale": table.metadata.get("target_scale"),
            "class_names": column_lines(table.column("classes"))
            if "classes" in table.schema
            else None,
            "table": None if table.path is None else str(table.path.resolve()),
            "grid": world.grid.name,
            "ranks": world.grid.ranks,
        }
        describe_run(run, about)
    world.broadcast_from_rank0(lambda: _convert_old(run, model, optimizer, scheduler, step))

    def measure(*, ranking: bool) -> dict[str, float]:
        found = network.evaluate(ranking=ranking)
        world.recorder.clear()
        return found

    def evaluate(_: nn.Module) -> dict[str, float]:
        # A ranking sorts the scores of all nodes on rank 0: at the end, unless it is watched.
        found = measure(ranking=watched == "validation_auc")
        names = [f"train_{metrics[0]}"]
        if validated:
            each = (f"validation_{name}" for name in (*metrics, "loss"))
            names += [name for name in each if name in found]
        return {name: found[name] for name in names}

    result = fit(
        model,
        optimizer,
        range(steps),
        step,
        config=fit_config,
        evaluate=evaluate,
        scheduler=scheduler,
        run=run,
    )
    model.eval()
    scores = {} if result.stopped.startswith("interrupted") else measure(ranking=True)
    if scores and config.method.reads != "full":
        scores["reads_error"] = reads_error(network)
        world.recorder.clear()
    cost = step.communication(table, config, before)
    if run is not None:
        partition = table.metadata["partition"]
        run.summarise(
            **scores,
            grid=world.grid.name,
            ranks=world.grid.ranks,
            partition={name: value for name, value in partition.items() if name != "offsets"},
            counts=shard.counts,
            communication=cost and dataclasses.asdict(cost),
        )
    return TrainedFullGraph(result=result, scores=scores, communication=cost)


class _Fingerprint:
    """What tells a run from any other, in its checkpoints; another one is refused."""

    def __init__(
        self, table: GraphTable, config: FullGraphConfig, model: nn.Module, source: str
    ) -> None:
        self._source = source
        where = ("data", "features", "labels")
        recipe = {name: value for name, value in config.recipe().items() if name not in where}
        shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
        found = {"model": shapes, "data": table.metadata["original"], "recipe": recipe}
        self.values: dict[str, Any] = json.loads(json.dumps(found))

    def state_dict(self) -> dict[str, Any]:
        return self.values

    def load_state_dict(self, state: dict[str, Any], source: str | None = None) -> None:
        found = first_difference(state, self.values)
        if found is not None:
            what, before, now = found
            raise DataError(
                f"{source or self._source} is of another run: {what} is {before} there and {now} "
                "here; resume with the same, or take its weights into another folder (--init-from)"
            )


class GridStep(Step):
    """A step over a whole graph that the ranks of a grid share: an epoch; or over clusters of it.

    Its epoch metrics are what the steps cost the rank that each cost most.
    """

    def __init__(
        self,
        network: GridNetwork | ModuleNetwork,
        seed: int,
        scheduler: LRScheduler,
        extras: Mapping[str, Stateful],
        clusters: ClusterSteps | None = None,
    ) -> None:
        """Take steps with `network` or `clusters`; `seed` and the steps decide what is dropped."""
        self.clusters, self._number = clusters, 0
        self.network, self.world, self.seed = network, network.world, seed
        self.scheduler = scheduler
        # The costs too: a checkpoint may lie between a step and the end of its epoch.
        self.extras = {**extras, "epoch costs": self}
        self._costs: dict[str, float] = {}
        self._bytes: dict[str, float] = {}
        self._spent = {"communication": 0.0, "compute": 0.0}
        self._steps = 0
        self._began, self._part = 0.0, Recorder()

    def take(self, model: nn.Module, batch: int) -> Outcome:
        """See `Step`; `batch` is the number of the step in its epoch."""
        self._began, self._number = time.perf_counter(), batch
        with self.network.world.recorder.section() as self._part:
            # By the step alone: the same on any grid, and after a restart.
            seed = self.seed * 2**32 + self.scheduler.last_epoch + 1
            if self.clusters is not None:
                loss, nodes = self.clusters.step(self.epoch, batch, seed)
                return Outcome(loss, {}, nodes)
            return Outcome(self.network.step(seed), {}, 1)

    def updated(self) -> None:
        """Count what the step has cost this rank, and learn what it has cost the others."""
        world, total = self.network.world, self._part.total()
        settle(world.device)
        seconds = time.perf_counter() - self._began
        for kind, each in self._part.totals().items():
            self._bytes[kind] = self._bytes.get(kind, 0.0) + each.bytes
        # What was said is counted; what was noted must not grow for ever.
        world.recorder.clear()
        self._steps += 1
        self._spent["communication"] += total.seconds
        self._spent["compute"] += seconds - total.seconds
        own = {
            "bytes_received": float(total.bytes),
            "communication_seconds": total.seconds,
            "compute_seconds": seconds - total.seconds,
            "peak_memory_bytes": peak_on(world.device),
        }
        found = self._most(own)
        if self._number:
            added = {name: each + self._costs.get(name, 0.0) for name, each in found.items()}
            found = {**added, "peak_memory_bytes": found["peak_memory_bytes"]}
        self._costs = found

    def _most(self, own: Mapping[str, float]) -> dict[str, float]:
        """Each value of the rank that has most of it."""
        return dict(zip(own, self.reduced(own.values(), "max"), strict=True))

    def epoch_metrics(self) -> dict[str, float]:
        """What the steps of the epoch have cost the rank that each cost most."""
        return self._costs

    def state_dict(self) -> dict[str, Any]:
        """The costs of the epoch."""
        return dict(self._costs)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back."""
        self._costs = dict(state)

    def communication(
        self, table: GraphTable, config: FullGraphConfig, before: float
    ) -> Communication | None:
        """What an epoch of this session cost the rank that it cost most; all ranks together.

        Args:
            table: the graph.
            config: the recipe.
            before: memory that this process held before it had the graph, bytes.
        """
        if not self._steps:
            return None
        shard = self.network.shard
        formulas: dict[str, int] = {}
        if config.counted:
            formulas = predicted_own_bytes(
                shard,
                (shard.features, *config.hidden, shard.classes),
                model="sage" if config.model == "sage" else "gcn",
                input_dropout=config.input_dropout > 0,
            )
        epochs = self._steps / (1 if self.clusters is None else len(self.clusters))
        peak = peak_on(self.network.world.device)
        received = self._most({kind: self._bytes.get(kind, 0.0) / epochs for kind in _COLLECTIVES})
        by_formulas = self._most({kind: float(formulas.get(kind, 0)) for kind in _COLLECTIVES})
        (predicted,) = config.on_grid(self.network.world.grid).estimates_of(table)
        return Communication(
            bytes={kind: count for kind, count in received.items() if count},
            predicted_bytes={kind: count for kind, count in by_formulas.items() if count},
            seconds=self._most({kind: spent / epochs for kind, spent in self._spent.items()}),
            peak=self._most({"peak": max(0.0, peak - before)})["peak"],
            predicted=predicted.memory.total if config.counted else None,
        )


def _convert_old(
    run: Run | None,
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: LRScheduler,
    step: GridStep,
) -> None:
    """Where a run has only checkpoints of the old format, write the newest as an ordinary one."""
    folder = None if run is None else run.folder / OLD_CHECKPOINTS
    if run is None or folder is None or run.checkpoint.exists() or not folder.is_dir():
        return
    # Imported here: torch's distributed checkpoints take a while, and few runs have them.
    from weft.recipes.full_graph.old_checkpoint import newest_checkpoint

    found = newest_checkpoint(folder)
    if found is None:
        return
    path, saved = found
    fingerprint = step.extras["fingerprint"]
    assert isinstance(fingerprint, _Fingerprint)
    fingerprint.load_state_dict(saved.fingerprint, str(path))
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimizer": {}}
    for name, tensor in saved.tensors.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = tensor
    for name, parameter in model.named_parameters():
        own = {
            key.removeprefix(f"{name}."): value
            for key, value in parts["optimizer"].items()
            if key.startswith(f"{name}.")
        }
        if own:
            optimizer.state[parameter] = own
    scheduler.last_epoch = saved.epoch
    at = dict(saved.progress)
    lines = at.pop("lines")
    state = FitState(step=saved.epoch, graphs=saved.epoch, evaluated_step=saved.epoch, **at)
    save_fit_checkpoint(
        run.checkpoint,
        state,
        model=parts["model"],
        best=parts["best"] or None,
        optimizer=optimizer,
        scheduler=scheduler,
        extras=step.extras,
        batches=Batches(range(1)).state(0),
        metrics_lines=lines,
    )


def peak_on(device: torch.device) -> float:
    """The most bytes that this process has held: of a GPU's memory if that is what computes."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    return peak_memory()


def before_graph(config: FullGraphConfig, device: torch.device) -> float:
    """Memory that this process holds, bytes, when all code is loaded and no graph is.

    A graph of three nodes is trained on, so that libraries, compiled loops and threads are there:
    beside a small graph they are most of what a process holds. Earlier peaks are forgotten.
    """
    ends, nodes = np.array([0, 1]), np.arange(len(PARTS))
    graph = Graph(
        num_nodes=len(nodes),
        senders=ends,
        receivers=ends[::-1].copy(),
        nodes={
            "x": np.ones((len(nodes), 2), dtype=np.float32),
            "y": nodes % 2,
            **{part: nodes == number for number, part in enumerate(PARTS)},
        },
    )
    table = prepare(graph, blocks=1, normalisation=config.matrix, dtype=config.dtype)
    world = alone(Grid(rows=1), 0, device)
    shard = GraphShard.open(table, world, config.method, config.torch_dtype)
    model = config.make_model(2, 2)
    network = network_of(model, shard, lambda own: target_of(own, own.classes))
    network.step(0)
    torch.optim.Adam(model.parameters()).step()
    network.evaluate()
    for values in table.columns.values():
        release(values)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return float(torch.cuda.memory_allocated(device))
    with suppress(OSError):
        # Linux takes this for: the peak is what is held now.
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return process_memory("VmRSS")
