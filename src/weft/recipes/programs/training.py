"""Training of gated graph networks over programs, in supergraphs: slots, or misused variables."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from weft.batching import GraphSampler, evaluation_sampler
from weft.graphs import Array, GraphBatch, GraphTable
from weft.layout import BandedAdjacency, TypedEdges
from weft.layout.layout_choice import adjacency_of
from weft.models.ggnn import GGNN, Adjacency, candidate_loss, right_choices
from weft.models.misuse import Judgement, MisuseDetector, misuse_loss
from weft.parallel.world import World, single
from weft.recipes.programs.config import ProgramsConfig
from weft.recipes.programs.data import (
    Baselines,
    baselines,
    check_programs,
    has_misuses,
    learnable,
    split_programs,
    write_spy,
)
from weft.recipes.programs.detection import Examined, examine, write_calibration
from weft.recipes.programs.supergraphs import StepBatch, StepLoader, packed_sampler, settled
from weft.recipes.table_training import (
    Trained,
    describe_run,
    planned_steps,
    start_from,
    train_on_table,
)
from weft.training.compilation import Compilation
from weft.training.config import ScheduleConfig
from weft.training.randomness import seed_everything
from weft.training.ranks import gpu_of
from weft.training.run import Run
from weft.training.step import Number, Outcome, Step, autocast, number_of, read_together

KIND = "programs"


@dataclass(frozen=True, kw_only=True)
class PreparedPrograms:
    """Programs that have been found fit for a recipe, before anything is trained or written.

    Attributes:
        table: what the network reads of the programs.
        config: the recipe, with nothing left to measure.
        split: which graphs are for what.
        sampler: makes the supergraphs of training.
        baselines: what needs no training, by part; a detector's are among its scores.
        num_types: types of edges.
        vocabulary: subtokens.
    """

    table: GraphTable
    config: ProgramsConfig
    split: dict[str, Array]
    sampler: GraphSampler
    baselines: dict[str, Baselines]
    num_types: int
    vocabulary: int


def prepare_programs(
    table: GraphTable, config: ProgramsConfig, *, world: World | None = None
) -> PreparedPrograms:
    """Look at everything that can be wrong with the data.

    Raises:
        ValueError: there are more ranks than supergraphs in a step.
        DataError: the table is not one of programs, a graph has no choice to make, all are of one
            file, or none fits a supergraph.
    """
    ranks = 1 if world is None else world.ranks
    if ranks > config.supergraphs_per_step:
        raise ValueError(
            f"supergraphs_per_step is {config.supergraphs_per_step} and there are {ranks} "
            f"ranks; each needs one at least: take --supergraphs-per-step {ranks}"
        )
    if ranks > 1 and not (config.nodes and config.layout.form != "auto"):
        raise ValueError(
            f"nodes is {config.nodes} and the layout {config.layout.form}: {ranks} ranks may "
            "measure differently; give --nodes and --layout.form"
        )
    check_programs(table)
    if has_misuses(table) and config.compile != "eager":
        raise ValueError(
            f"compile is {config.compile!r} and the data has misuses to detect: their number "
            "changes from supergraph to supergraph; take --compile eager, or --target slot"
        )
    split = split_programs(table, parts=config.split, seed=config.split_seed)
    train = split["train"]
    num_types = len(table.metadata.get("edge_types", ())) or _types_in(table)
    config = settled(table, train, config, num_types)
    sampler = packed_sampler(table, train, config.nodes, policy=config.policy, seed=config.seed)
    return PreparedPrograms(
        table=learnable(table),
        config=config,
        split=split,
        sampler=sampler,
        baselines=(
            {}
            if has_misuses(table)
            else {part: baselines(table, ids) for part, ids in split.items() if len(ids)}
        ),
        num_types=num_types,
        vocabulary=int(table.metadata.get("vocabulary", 0)) or 2,
    )


def _types_in(table: GraphTable) -> int:
    return int(np.asarray(table.column("type")).max(initial=0)) + 1


def make_ggnn(config: ProgramsConfig, *, num_types: int, vocabulary: int) -> GGNN:
    """The network that `config` describes, to fill a slot."""
    return GGNN(config.model_config(num_types=num_types, vocabulary=vocabulary))


def make_detector(config: ProgramsConfig, *, num_types: int, vocabulary: int) -> MisuseDetector:
    """The network that `config` describes, to find misuses."""
    return MisuseDetector(config.model_config(num_types=num_types, vocabulary=vocabulary))


def train_programs(
    table: GraphTable, config: ProgramsConfig, *, world: World | None = None, **session: Any
) -> Trained:
    """`prepare_programs`, then `train_prepared_programs` with the options `session`."""
    prepared = prepare_programs(table, config, world=world)
    return train_prepared_programs(prepared, world=world, **session)


def train_prepared_programs(
    prepared: PreparedPrograms,
    *,
    run: Run | None = None,
    init_from: Path | None = None,
    world: World | None = None,
    quiet: bool = False,
) -> Trained:
    """Train; the scores of training graphs are of no more than there are for validation.

    Args:
        prepared: the programs and the recipe.
        run: folder to log to and to resume from; see `shared_run` for several ranks.
        init_from: a run folder or file whose weights to start from.
        world: ranks that share every step; they give the same losses as one process.
        quiet: no progress.
    """
    config, world = prepared.config, world or single()
    seed_everything(config.seed)
    detects = has_misuses(prepared.table)
    sizes = {"num_types": prepared.num_types, "vocabulary": prepared.vocabulary}
    model = (make_detector if detects else make_ggnn)(config, **sizes)
    if run is not None:
        describe_run(run, {"kind": KIND, **sizes, "detects": detects})
        write_spy(run.folder, prepared.table, prepared.sampler.plan()[0].graphs)
    start_from(model, init_from, world)
    model.to(gpu_of(world))
    form = _Former(prepared)
    train = StepLoader(
        prepared.table,
        prepared.sampler,
        form,
        per_step=config.supergraphs_per_step,
        world=world,
        detects=detects,
    )
    # Thresholds are found on all files at once: each rank looks at all of them.
    parts = _evaluation(prepared, single(world.device) if detects else world)
    counts = {part: len(ids) for part, ids in prepared.split.items()}
    # Those of the training part that are larger than a supergraph.
    counts["skipped"] = counts["train"] - prepared.sampler.statistics().graphs
    compilation = Compilation(config.compile)
    network = compilation.wrap(model)
    seen: dict[str, Examined] = {}

    def measure(part: str) -> dict[str, float]:
        if not detects:
            return measure_programs(model, parts[part], world=world)
        seen[part] = examine(model, parts[part])
        # By the threshold that suits the measured functions themselves: for the log of a run.
        return seen[part].figures(seen[part].calibrated())

    found = train_on_table(
        model,
        train,
        ProgramsStep(network, config, world),
        config=config,
        schedule=_schedule(config, planned_steps(config, len(train))),
        parts=parts,
        measure=measure,
        counts=counts,
        compilation=compilation,
        run=run,
        quiet=quiet,
        world=world,
    )
    if detects and found.scores:
        found = _calibrated(found, seen, run if world.rank == 0 else None)
    return dataclasses.replace(found, outside_share=form.outside / max(1, form.edges))


def _calibrated(found: Trained, seen: dict[str, Examined], run: Run | None) -> Trained:
    """The scores of all parts with temperature and thresholds of the validation files."""
    calibration = seen["validation"].calibrated()
    if run is not None:
        write_calibration(run.folder, calibration)
    scores = {
        f"{part}_{name}": value
        for part, each in seen.items()
        for name, value in each.figures(calibration).items()
    }
    details = {"temperature": calibration.temperature}
    return dataclasses.replace(found, scores=scores, details=details)


def _schedule(config: ProgramsConfig, count: int) -> ScheduleConfig:
    """The schedule with the linear scaling rule: k times the graphs of a step, k times the rate."""
    return dataclasses.replace(
        config.schedule,
        scale=config.schedule.scale * config.supergraphs_per_step,
        warmup=min(config.schedule.warmup, count // 5),
    )


class _Former:
    """Makes the adjacency of each supergraph, and counts the edges that its blocks do not hold."""

    def __init__(self, prepared: PreparedPrograms) -> None:
        self.num_types, self.compiled = prepared.num_types, prepared.config.compile != "eager"
        self.layout = prepared.config.layout
        self.edges = self.outside = 0

    def __call__(self, batch: GraphBatch) -> Adjacency:
        adjacency = adjacency_of(batch, self.num_types, self.layout)
        if isinstance(adjacency, BandedAdjacency):
            self.edges += adjacency.inside + adjacency.outside
            self.outside += adjacency.outside
            if self.compiled:
                # The counts change, and code is made for what is the same in all supergraphs.
                return dataclasses.replace(adjacency, inside=0, outside=0)
        return adjacency


def _evaluation(prepared: PreparedPrograms, world: World) -> dict[str, StepLoader]:
    """Every graph of a part once, whatever its size and band: by the sparse form."""
    split, table = prepared.split, prepared.table
    # As many as there are for validation tell enough about what has been learned by heart.
    some = np.random.default_rng(0).permutation(split["train"])[: len(split["validation"])]
    return {
        part: StepLoader(
            table,
            evaluation_sampler(
                table.num_nodes,
                table.num_edges,
                prepared.sampler.config,
                graphs=np.sort(ids),
                budget=prepared.sampler.budget,
            ),
            partial(TypedEdges.of_batch, num_types=prepared.num_types),
            per_step=world.ranks,
            world=world,
            detects=has_misuses(table),
        )
        for part, ids in {**split, "train": some}.items()
        if len(ids)
    }


class ProgramsStep(Step):
    """The mean loss over the graphs of all supergraphs of a step, and of all ranks.

    Gradients are accumulated over one supergraph after another, then added over the ranks.
    """

    def __init__(self, network: nn.Module, config: ProgramsConfig, world: World) -> None:
        """Take steps with `network`, the compiled or plain model."""
        self.network, self.config, self.world = network, config, world
        self._autocast = autocast(config.precision, world)

    def take(self, model: nn.Module, batch: StepBatch) -> Outcome:
        """See `Step`."""
        config, total, right = self.config, cast(Number, 0.0), cast(Number, 0.0)
        for supergraph in batch.supergraphs:
            graphs = supergraph.batch
            if config.dropout:
                # By its place: the same on any rank, and after a resume.
                place = (config.seed * 2**20 + supergraph.epoch) * 2**24 + supergraph.number
                torch.manual_seed(place % 2**63)
            with self._autocast():
                scores = self.network(*supergraph.inputs)
            if isinstance(scores, Judgement):
                kinds = (t.float() if t.dtype == torch.bfloat16 else t for t in scores)
                verdicts = misuse_loss(graphs, Judgement(*kinds), smoothing=config.smoothing)
                loss, answered = verdicts.loss, verdicts.right
            else:
                scores = scores.float() if scores.dtype == torch.bfloat16 else scores
                loss, _ = candidate_loss(graphs, scores, smoothing=config.smoothing)
                answered = right_choices(graphs, scores)
            torch.autograd.backward(loss / batch.num_graphs)
            total += number_of(loss.double())
            right += number_of(answered.sum())
        assert self.world is not None
        self.world.add_gradients(model.parameters())
        total, right = self.reduced([total, right])
        count = batch.num_graphs
        return Outcome(total / count, {"accuracy": right / count}, count)


def measure_programs(
    model: nn.Module, loader: StepLoader, *, world: World | None = None
) -> dict[str, float]:
    """`accuracy` and `loss`, a mean over all graphs of `loader` and all ranks."""
    found: dict[str, Number] = {"right": 0.0, "total": 0.0, "graphs": 0.0}
    with torch.no_grad():
        for step in loader:
            for supergraph in step.supergraphs:
                scores = model(*supergraph.inputs)
                total, graphs = candidate_loss(supergraph.batch, scores)
                found["right"] += number_of(right_choices(supergraph.batch, scores).sum().double())
                found["total"] += number_of(total.double())
                found["graphs"] += graphs
    sums = torch.tensor(list(read_together([found])[0].values()), dtype=torch.float64)
    (world or single()).reduce(sums)
    right, total, graphs = sums.tolist()
    return {"accuracy": right / graphs, "loss": total / graphs}
