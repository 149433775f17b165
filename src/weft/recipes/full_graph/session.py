"""One rank's part in training on a graph that many share: epochs, evaluation, checkpoints."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from weft.errors import DataError
from weft.files import json_text, write_atomically
from weft.graphs import GraphTable
from weft.models import GCN, GraphSAGE
from weft.parallel.grid import Grid
from weft.parallel.network import GridNetwork
from weft.parallel.shard import GraphShard, predicted_own_bytes
from weft.parallel.shard_io import fingerprint_of
from weft.parallel.world import World, settle
from weft.recipes.full_graph.checkpoint import CHECKPOINTS, Checkpoints, Saved, broadcast_from_rank0
from weft.recipes.full_graph.config import FullGraphConfig
from weft.recipes.full_graph.memory import before_graph, peak_on
from weft.training.checkpoint import copy_weights, load_weights, put_weights, save_weights
from weft.training.config import FitResult, NonFiniteLoss
from weft.training.launch import note_signals
from weft.training.numerics import denormals_flushed
from weft.training.progress import FitProgress, RecentRate
from weft.training.randomness import seed_everything
from weft.training.run import Run
from weft.training.step_hooks import current_pace
from weft.training.stopping import SIGNALS, is_better

ABOUT = "model.json"
"""File in a run's folder that says what was trained."""
KIND = "full graph"


@dataclass(frozen=True, kw_only=True)
class Communication:
    """What an epoch costs the rank that it costs most, a mean over the epochs of this session.

    Attributes:
        bytes: received, by kind of collective.
        predicted_bytes: the same by the formulas, from the edges that the rank holds.
        seconds: in collectives, waiting for others included, and in everything else.
        peak: bytes of memory at most, beyond what the process holds with all code loaded and no
            graph; of the GPU's memory on a GPU.
        predicted: that memory by the cost model.
    """

    bytes: dict[str, float]
    predicted_bytes: dict[str, float]
    seconds: dict[str, float]
    peak: float
    predicted: float


@dataclass(frozen=True, kw_only=True)
class TrainedFullGraph:
    """What came out.

    Attributes:
        result: how the training went; the weights are in the run's folder.
        scores: loss and accuracy of each part of the split, with these weights.
        grid: of the ranks.
        partition: how nodes were shared out, and how evenly.
        counts: nodes in each part of the split.
        communication: None where no epoch was trained in this session.
    """

    result: FitResult
    scores: dict[str, float]
    grid: Grid
    partition: dict[str, Any]
    counts: dict[str, int]
    communication: Communication | None


def check_alike(table: GraphTable, world: World, config: FullGraphConfig) -> None:
    """See that all ranks have the same table, settings and software.

    Raises:
        DataError: on every rank, the same words: they name a rank that differs, and in what.
    """
    own = {
        "the dtype of the features": str(table.column("x").dtype),
        "the graph's fingerprint": fingerprint_of(table),
        **{f"the option {name}": value for name, value in dataclasses.asdict(config).items()},
        "the device": world.device.type,
        "torch": str(torch.__version__),
    }
    if world.grid.ranks == 1:
        return
    texts = _all_texts(json.dumps(own, default=str))
    everyone = [json.loads(text) for text in texts]
    for name in own:
        values = [json.dumps(each.get(name)) for each in everyone]
        usual = max(
            sorted(set(values)), key=lambda value: (values.count(value), value == values[0])
        )
        odd = [rank for rank, value in enumerate(values) if value != usual]
        if odd:
            raise DataError(
                f"ranks do not agree on {name}: it is {values[odd[0]]} on rank {odd[0]} and "
                f"{usual} on rank {values.index(usual)}; give all ranks the same files and options"
            )


def _all_texts(text: str) -> list[str]:
    """Everyone's text, in the order of the ranks."""
    raw = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    longest = torch.tensor([raw.numel()])
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    padded = torch.full((int(longest),), ord(" "), dtype=torch.uint8)
    padded[: raw.numel()] = raw
    found = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
    dist.all_gather(found, padded)
    return [bytes(each.tolist()).decode() for each in found]


def train_shared(
    table: GraphTable,
    world: World,
    config: FullGraphConfig,
    *,
    folder: Path,
    run: Run | None = None,
    init_from: Path | None = None,
    quiet: bool = False,
) -> TrainedFullGraph:
    """Train as one rank of `world`; all of them call this.

    Args:
        table: the prepared graph.
        world: the ranks.
        config: the recipe.
        folder: of the run; only rank 0 reads and writes there.
        run: what rank 0 logs to.
        init_from: a run folder or file whose weights to start from; rank 0's counts.
        quiet: no progress.
    """
    check_alike(table, world, config)
    with denormals_flushed():
        session = _Session(table, world, config, folder, run, quiet=quiet or world.rank > 0)
        if init_from is not None:
            session.take_weights(init_from)
        return session.go()


@dataclass(kw_only=True)
class _Progress:
    """How far a run has come; all plain values."""

    epoch: int = 0
    seconds: float = 0.0
    train_seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict)
    best_value: float | None = None
    best_epoch: int | None = None
    best_metrics: dict[str, float] = field(default_factory=dict)
    evaluated_epoch: int = 0
    lines: int = 0


class _Session:
    """One rank's part in training from a checkpoint, or the beginning, to the end."""

    def __init__(
        self,
        table: GraphTable,
        world: World,
        config: FullGraphConfig,
        folder: Path,
        run: Run | None,
        *,
        quiet: bool,
    ) -> None:
        self.table, self.world, self.config = table, world, config
        self.folder, self.run, self.quiet = folder, run, quiet
        self.before = before_graph(table, config, world.device)
        shard = GraphShard.open(table, world, self.config.method, self.config.torch_dtype)
        self.shard = shard
        seed_everything(self.config.seed)
        self.model: GCN | GraphSAGE = self.config.make_model(shard.features, shard.classes)
        self.network = GridNetwork(self.model, shard)
        first, *others = self.model.layers
        groups: list[dict[str, Any]] = [
            {"params": list(first.parameters()), "weight_decay": self.config.weight_decay},
            {"params": [p for layer in others for p in layer.parameters()]},
        ]
        groups = [group for group in groups if group["params"]]
        self.optimizer = torch.optim.Adam(groups, lr=self.config.learning_rate)
        self.checkpoints = Checkpoints(folder / CHECKPOINTS, self.fingerprint())
        self.at = _Progress()
        self.best: dict[str, Tensor] | None = None
        self.validated = shard.counts["validation"] > 0
        self.bytes: dict[str, float] = {}
        self.spent = {"communication": 0.0, "compute": 0.0}
        self.epochs_here = 0
        self.clock = time.perf_counter()
        self.pace = current_pace()
        self.recent = RecentRate()

    def take_weights(self, path: Path) -> None:
        """Those of rank 0's file, on every rank."""
        broadcast_from_rank0(lambda: load_weights(self.model, path))
        for parameter in self.model.parameters():
            self.world.broadcast("world", 0, parameter.data, "setup").wait()

    def fingerprint(self) -> dict[str, Any]:
        recipe = {
            k: v for k, v in self.config.recipe().items() if k not in ("data", "features", "labels")
        }
        shapes = {name: list(value.shape) for name, value in self.model.state_dict().items()}
        return {"model": shapes, "data": self.table.metadata["original"], "recipe": recipe}

    def go(self) -> TrainedFullGraph:
        config = self.config
        saved = self.checkpoints.load()
        with FitProgress(epochs=config.epochs, quiet=self.quiet) as progress:
            if saved is not None:
                self.resume(saved)
                progress.note(f"going on after epoch {self.at.epoch} of {self.folder}")
            else:
                if self.run is not None:
                    self.run.metrics.keep(0, 0)
                self.save()
            self.describe()
            with note_signals() as heard:
                stopped = self.train(progress, heard)
                if self.at.epoch % config.checkpoint_every:
                    self.save()
        if self.best is not None:
            put_weights(self.model, self.best, "the best epoch")
        self.save_best()
        scores = {} if stopped.startswith("interrupted") else self.measure()
        result = FitResult(
            epochs=self.at.epoch,
            steps=self.at.epoch,
            stopped=stopped,
            metrics=self.at.metrics,
            best_metrics=self.at.best_metrics,
            best_epoch=self.at.best_epoch,
            seconds=self.tick(),
            graphs_per_second=self.mean_rate(),
        )
        trained = TrainedFullGraph(
            result=result,
            scores=scores,
            grid=self.world.grid,
            partition=self.table.metadata["partition"],
            counts=self.shard.counts,
            communication=self.communication(),
        )
        if self.run is not None:
            self.run.summarise(
                **dataclasses.asdict(result),
                **scores,
                grid=self.world.grid.name,
                ranks=self.world.grid.ranks,
                partition={k: v for k, v in trained.partition.items() if k != "offsets"},
                counts=trained.counts,
                communication=trained.communication and dataclasses.asdict(trained.communication),
            )
        return trained

    def train(self, progress: FitProgress, heard: list[str]) -> str:
        """Epochs until there is a reason to stop, the same on every rank."""
        config, at = self.config, self.at
        while at.epoch < config.epochs:
            if self.is_stale():
                return "early stopping"
            loss, values = self.epoch(at.epoch + 1)
            at.epoch += 1
            at.metrics = {"train_loss": loss}
            if at.epoch % config.evaluate_every == 0 or at.epoch == config.epochs:
                self.evaluate(progress)
            signal = self.share(values, heard)
            self.log({**at.metrics, **values, "graphs_per_second": self.recent.value()})
            progress.step(
                epoch=at.epoch,
                step=at.epoch,
                total=config.epochs,
                loss=loss,
                graphs_per_second=self.recent.value(),
            )
            if at.epoch % config.checkpoint_every == 0:
                self.save()
            if signal is not None:
                return f"interrupted by {signal}"
        return "finished"

    def epoch(self, number: int) -> tuple[float, dict[str, float]]:
        """A step over the whole graph; its loss, and what it cost this rank."""
        if self.pace is not None:
            self.pace.before_step()
        began = time.perf_counter()
        self.model.train()
        with self.world.recorder.section() as part:
            # By the epoch alone: the same on any grid, and after a restart.
            loss = self.network.step(self.config.seed * 2**32 + number)
        if not math.isfinite(loss):
            raise NonFiniteLoss(
                f"the loss is {loss} at epoch {number}; lower the learning rate, or look at the "
                f"features; the checkpoints before it are in {self.checkpoints.folder}",
                step=number,
                epoch=number,
                batch=1,
            )
        self.optimizer.step()
        settle(self.world.device)
        seconds = time.perf_counter() - began
        if self.pace is not None:
            self.pace.after_step(1)
        self.at.train_seconds += seconds
        self.recent.add(1, seconds)
        total = part.total()
        for kind, each in part.totals().items():
            self.bytes[kind] = self.bytes.get(kind, 0.0) + each.bytes
        # What was said is counted; what was noted must not grow for ever.
        self.world.recorder.clear()
        self.epochs_here += 1
        self.spent["communication"] += total.seconds
        self.spent["compute"] += seconds - total.seconds
        values = {
            "bytes_received": float(total.bytes),
            "communication_seconds": total.seconds,
            "compute_seconds": seconds - total.seconds,
            "peak_memory_bytes": peak_on(self.world.device),
        }
        return loss, values

    def share(self, values: dict[str, float], heard: list[str]) -> str | None:
        """The largest over the ranks of each value, and a signal that any of them has heard."""
        vector = torch.tensor(
            [*values.values(), *(float(name in heard) for name in SIGNALS)], dtype=torch.float64
        )
        if self.world.grid.ranks > 1:
            dist.all_reduce(vector, dist.ReduceOp.MAX)
        values.update(zip(values, vector.tolist(), strict=False))
        numbers = vector[-len(SIGNALS) :].tolist()
        return next((name for name, number in zip(SIGNALS, numbers, strict=True) if number), None)

    def measure(self) -> dict[str, float]:
        """Loss and accuracy of each part."""
        self.model.eval()
        found = self.network.evaluate()
        self.world.recorder.clear()
        return found

    def evaluate(self, progress: FitProgress) -> None:
        """Measure, and remember the best."""
        at = self.at
        found = self.measure()
        parts = ("train", "validation") if self.validated else ("train",)
        shown = {f"{part}_accuracy": found[f"{part}_accuracy"] for part in parts}
        if self.validated:
            shown["validation_loss"] = found["validation_loss"]
        progress.evaluated(shown)
        at.metrics |= shown
        at.evaluated_epoch = at.epoch
        value = shown["validation_accuracy"] if self.validated else at.metrics["train_loss"]
        if is_better(value, at.best_value, "max" if self.validated else "min"):
            at.best_value, at.best_epoch, at.best_metrics = value, at.epoch, dict(at.metrics)
            self.best = copy_weights(self.model)

    def is_stale(self) -> bool:
        """Whether the best epoch was too long ago when the model was last evaluated."""
        if self.config.patience is None or self.at.best_epoch is None:
            return False
        return self.at.evaluated_epoch - self.at.best_epoch >= self.config.patience

    def tick(self) -> float:
        """Seconds so far, brought up to date."""
        now = time.perf_counter()
        self.at.seconds += now - self.clock
        self.clock = now
        return self.at.seconds

    def mean_rate(self) -> float:
        """Epochs per second, of all of them."""
        return self.at.epoch / self.at.train_seconds if self.at.train_seconds else 0.0

    def log(self, values: Mapping[str, float]) -> None:
        if self.run is not None:
            self.run.metrics.log(
                step=self.at.epoch, epoch=self.at.epoch, seconds=self.tick(), values=values
            )

    def save(self) -> None:
        """A checkpoint of where the run is; all ranks together, which all keep a pace, or none."""
        if self.pace is not None:
            return
        self.tick()
        if self.run is not None:
            self.run.metrics.sync()
            self.at.lines = self.run.metrics.lines
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, value in (self.best or {}).items():
            tensors[f"best.{name}"] = value
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer.{name}.{key}"] = value
        self.checkpoints.save(self.at.epoch, tensors, dataclasses.asdict(self.at))
        self.save_best()

    def save_best(self) -> None:
        """The weights alone, for whoever uses them; the last ones where none are the best yet."""
        if self.run is not None:
            about = {"epoch": self.at.best_epoch, "metrics": self.at.best_metrics}
            save_weights(self.run.weights, self.best or copy_weights(self.model), about)

    def resume(self, saved: Saved) -> None:
        """Put everything back as the checkpoint has it."""
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "optimizer": {}}
        for name, tensor in saved.tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor
        put_weights(self.model, parts["model"], f"the checkpoint of epoch {saved.epoch}")
        self.best = parts["best"] or None
        for name, parameter in self.model.named_parameters():
            own = {
                # How many steps there were is asked for on the CPU, by torch too.
                key.removeprefix(f"{name}."): value.to(parameter.device) if value.ndim else value
                for key, value in parts["optimizer"].items()
                if key.startswith(f"{name}.")
            }
            if own:
                self.optimizer.state[parameter] = own
        self.at = _Progress(**saved.progress)
        if self.run is not None:
            self.run.metrics.keep(self.at.lines, self.at.epoch)

    def describe(self) -> None:
        """Write what was trained, and on what, into the run's folder."""
        if self.run is None:
            return
        about = {
            "kind": KIND,
            "config": dataclasses.asdict(self.config),
            "features": self.shard.features,
            "classes": self.shard.classes,
            "table": None if self.table.path is None else str(self.table.path.resolve()),
            "grid": self.world.grid.name,
            "ranks": self.world.grid.ranks,
        }
        text = json_text(about, indent=2) + "\n"
        write_atomically(self.run.folder / ABOUT, lambda file: file.write(text.encode()))

    def communication(self) -> Communication | None:
        """What an epoch of this session cost the rank that it cost most; all ranks together."""
        if not self.epochs_here:
            return None
        kinds = ("all_gather", "all_reduce", "all_to_all", "broadcast", "reduce_scatter")
        shard, asked = self.shard, self.config
        formulas = predicted_own_bytes(
            shard,
            (shard.features, *asked.hidden, shard.classes),
            model=asked.model,
            input_dropout=asked.input_dropout > 0,
        )
        mine = [self.bytes.get(kind, 0.0) / self.epochs_here for kind in kinds]
        mine += [float(formulas.get(kind, 0)) for kind in kinds]
        mine += [seconds / self.epochs_here for seconds in self.spent.values()]
        mine.append(max(0.0, peak_on(self.world.device) - self.before))
        vector = torch.tensor(mine, dtype=torch.float64)
        if self.world.grid.ranks > 1:
            dist.all_reduce(vector, dist.ReduceOp.MAX)
        most = vector.tolist()
        config = dataclasses.replace(self.config, grid=self.world.grid.shape, replication=None)
        if self.world.grid.replicated:
            config = dataclasses.replace(
                self.config, grid="1.5d", replication=self.world.grid.layers
            )
        (predicted,) = config.estimates(
            self.table.total_nodes,
            self.table.total_edges,
            self.shard.features,
            self.shard.classes,
            symmetric=bool(self.table.metadata["symmetric_values"]),
            training=self.shard.counts["train"],
        )
        return Communication(
            bytes={kind: each for kind, each in zip(kinds, most, strict=False) if each},
            predicted_bytes={
                kind: each for kind, each in zip(kinds, most[len(kinds) :], strict=False) if each
            },
            seconds=dict(zip(self.spent, most[2 * len(kinds) :], strict=False)),
            peak=most[-1],
            predicted=predicted.memory.total,
        )
