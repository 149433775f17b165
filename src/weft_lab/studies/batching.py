"""The experiment of Speckhard et al. (2025), on this machine: what a way to batch costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.batching import BatchingConfig
from weft.errors import DataError
from weft.graphs import GraphTable
from weft.models.target_scale import element_counts, learn_scale
from weft.recipes.structures.config import ModelName, StructuresConfig
from weft.recipes.structures.data import labelled, neighbour_table, some_of
from weft.recipes.structures.training import make_network
from weft.sources.progress_bar import progress_bar
from weft.training.compilation import why_not_inductor
from weft_lab.studies.cells import Cell, CellTimer, Timings
from weft_lab.studies.repeats import repeat_trainings
from weft_lab.studies.results import StudyResults
from weft_lab.studies.results_file import RESULTS
from weft_lab.studies.settings import BatchingStudy, StudyData
from weft_lab.studies.shapes import ShapeCount, count_shapes

# Policies of the paper; the shapes of the others need no 100,000 steps to be known.
_COUNTED = ("dynamic", "static-64", "static-2^n")


def study_batching(
    config: BatchingStudy,
    data: Sequence[StudyData],
    folder: Path,
    *,
    resume: bool = False,
    machine: Mapping[str, Any] | None = None,
    data_dir: Path | None = None,
    quiet: bool = False,
    backend: str = "inductor",
) -> StudyResults:
    """Measure, and keep what was measured in `folder` from round to round.

    Args:
        config: what to measure.
        data: what to measure it on.
        folder: where results.json goes.
        resume: go on with the study in `folder`: what it has is not measured again. Cells with
            compiled code that were not finished begin anew, since the code is gone.
        machine: what to say about it in the file.
        data_dir: the data folder, where neighbours of whole data sets are kept.
        quiet: no progress.
        backend: of torch.compile.

    Raises:
        DataError: there is a study in `folder` and `resume` is not given, or it has other settings.
    """
    if (folder / RESULTS).exists():
        if not resume:
            raise DataError(
                f"{folder} holds a study already; go on with it (--resume) or choose another folder"
            )
        results = StudyResults.load(folder, config)
        if set(results.data) != {each.name for each in data}:
            raise DataError(
                f"{folder} holds a study of {', '.join(results.data)}, not of "
                f"{', '.join(each.name for each in data)}; choose another folder"
            )
    else:
        results = StudyResults(config=config, machine=dict(machine or {}))
        for each in data:
            results.data[each.name] = {
                "structures": len(each.table),
                "target": each.target,
                "unit": each.table.schema[each.target].unit,
            }
    folder.mkdir(parents=True, exist_ok=True)
    results.save(folder)
    for each in data:
        if each.name not in results.shapes and each.neighbours["schnet"].kind == "complete":
            results.shapes[each.name] = _count(each, config, quiet=quiet)
            results.save(folder)
    _time(results, data, folder, data_dir=data_dir, quiet=quiet, backend=backend)
    if config.repeats:
        for each in data:
            _repeat(results, each, folder, data_dir=data_dir, quiet=quiet)
    return results


def _count(data: StudyData, config: BatchingStudy, *, quiet: bool) -> list[ShapeCount]:
    nodes = data.table.num_nodes.astype(np.int64)
    edges = nodes * (nodes - 1)
    cells = [(size, policy) for size in config.batch_sizes for policy in config.policies]
    counts = []
    with progress_bar(f"{data.name}: shapes", len(cells), show=not quiet, count=True) as move:
        for number, (size, policy) in enumerate(cells):
            published = policy == "dynamic" and data.name == "qm9"
            batching = BatchingConfig(
                policy=policy, batch_size=size, paper="qm9" if published else False
            )
            # One epoch of the others, or less.
            steps = config.planned_steps
            if policy not in _COUNTED:
                steps = min(steps, max(1, len(nodes) // size))
            counts.append(count_shapes(nodes, edges, batching, steps=steps))
            move(number + 1)
    return counts


def _cells(config: BatchingStudy, data: Sequence[StudyData]) -> Iterator[Cell]:
    for each in data:
        for model in config.models:
            for size in config.batch_sizes:
                for policy in config.policies:
                    for mode in config.compile:
                        if mode == "eager" or policy in config.compiled_policies:
                            yield Cell(
                                data=each.name,
                                model=model,
                                batch_size=size,
                                policy=policy,
                                mode=mode,
                            )


def _time(
    results: StudyResults,
    data: Sequence[StudyData],
    folder: Path,
    *,
    data_dir: Path | None,
    quiet: bool,
    backend: str,
) -> None:
    """Give every cell its turns, round by round: what disturbs the machine disturbs all alike."""
    config = results.config
    known = {str(timings.cell): timings for timings in results.cells}
    results.cells = []
    missing = why_not_inductor() if backend == "inductor" and config.compile != ("eager",) else None
    for cell in _cells(config, data):
        timings = known.get(str(cell)) or Timings(cell=cell)
        if timings.rounds < config.rounds and cell.mode != "eager":
            timings = Timings(cell=cell, skipped=missing or "")
        results.cells.append(timings)
    left = [t for t in results.cells if not t.skipped and t.rounds < config.rounds]
    if not left:
        return
    tables = _Tables(data, config, data_dir=data_dir, quiet=quiet)
    for each, model in dict.fromkeys((t.cell.data, t.cell.model) for t in left):
        tables.made_ready(each, model)
    timers = []
    with progress_bar("cells made ready", len(left), show=not quiet, count=True) as move:
        for number, timings in enumerate(left):
            cell = timings.cell
            table, network = tables.made_ready(cell.data, cell.model)
            timer = CellTimer(
                table,
                network,
                timings,
                seed=0,
                steps=config.rounds * config.steps,
                max_compilations=config.max_compilations,
                backend=backend,
            )
            if not timings.skipped:
                timer.warm_up()
                timers.append(timer)
            move(number + 1)
    total = sum(config.rounds - timer.timings.rounds for timer in timers)
    done = 0
    with progress_bar("turns", total, show=not quiet, count=True) as move:
        for turn in range(1, config.rounds + 1):
            # In another order each time: a neighbour leaves its traces in the caches.
            for number in np.random.default_rng(turn).permutation(len(timers)):
                timer = timers[number]
                if timer.timings.rounds < turn:
                    timer.turn(config.steps)
                    done += 1
                    move(done)
            results.save(folder)


class _Tables:
    """Data sets with neighbours and labels, made once for all cells that share them."""

    def __init__(
        self,
        data: Sequence[StudyData],
        config: BatchingStudy,
        *,
        data_dir: Path | None,
        quiet: bool,
    ) -> None:
        self._data = {each.name: each for each in data}
        self._config, self._data_dir, self._quiet = config, data_dir, quiet
        self._made: dict[tuple[str, str], GraphTable] = {}

    def made_ready(self, data: str, model: ModelName) -> tuple[GraphTable, torch.nn.Module]:
        """A table that a cell can train on, and a new network for it."""
        each = self._data[data]
        rule = each.neighbours[model]
        key = (data, rule.name)
        if key not in self._made:
            table = some_of(each.usable(), self._config.structures, 0)
            table = neighbour_table(table, rule, data_dir=self._data_dir, progress=not self._quiet)
            scale = learn_scale(
                table, np.arange(len(table)), each.target, references=each.references
            )
            self._made[key] = labelled(table, each.target, scale)
        table = self._made[key]
        config = StructuresConfig(
            model=model, hidden=self._config.hidden, readout="mean", neighbours=rule
        )
        torch.manual_seed(0)
        elements = tuple(int(z) for z in element_counts(table)[0])
        return table, make_network(config, elements)


def _repeat(
    results: StudyResults,
    data: StudyData,
    folder: Path,
    *,
    data_dir: Path | None,
    quiet: bool,
) -> None:
    config = results.config
    errors = results.errors.setdefault(data.name, {})
    total = config.repeats * len(config.policies)
    if sum(map(len, errors.values())) == total:
        return
    rule = data.neighbours[config.repeat_model]
    table = neighbour_table(
        some_of(data.usable(), config.repeat_structures, 0),
        rule,
        data_dir=data_dir,
        progress=not quiet,
    )
    with progress_bar(f"{data.name}: trainings", total, show=not quiet, count=True) as move:

        def done() -> None:
            results.save(folder)
            move(sum(map(len, errors.values())))

        repeat_trainings(
            table,
            errors,
            model=config.repeat_model,
            target=data.target,
            references=data.references,
            neighbours=rule,
            policies=config.policies,
            batch_size=config.repeat_batch_size,
            epochs=config.repeat_epochs,
            hidden=config.hidden,
            repeats=config.repeats,
            done=done,
        )
