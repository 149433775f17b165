"""`weft predict RUN CODE --inject N`: misuses put into new functions, and how many are found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from weft.batching import BatchingConfig, evaluation_sampler
from weft.errors import DataError
from weft.graphs import Graph, GraphBatch, assemble, table_from_graphs
from weft.layout import TypedEdges
from weft.models.misuse import Judgement, MisuseDetector
from weft.recipes.output import print_scores
from weft.recipes.programs.data import learnable, step_budget
from weft.recipes.programs.detection import RATES, Calibration, Examined, examined
from weft.recipes.programs.prediction import is_excluded, load_programs
from weft.recipes.recipe import PredictOptions
from weft.sources.program_graph import KINDS, MISUSE_SCHEMA
from weft.sources.progress_bar import progress_bar
from weft.sources.python_code import MAX_NODES, units_of
from weft.sources.python_misuse import blank_each, each_function
from weft.sources.python_programs import digest, python_files
from weft.sources.python_units import Unusable, read_source

# Of one file, so that a few files do not decide.
_FUNCTIONS_A_FILE = 10
_SHOWN = (0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True, kw_only=True)
class Injected:
    """Functions of new code.

    Attributes:
        functions: graphs of functions with one misuse.
        clean: graphs of all functions of the same files, as they are.
        blanks: graphs of the functions with a misuse, as they were, one for every use, which is
            blanked out.
        files: how many were read.
    """

    functions: list[Graph]
    clean: list[Graph]
    blanks: list[list[Graph]]
    files: int


def inject(
    path: Path, count: int, *, exclude: Sequence[str] = (), seed: int = 0, progress: bool = True
) -> Injected:
    """Put one misuse into each of `count` functions, some a file, of files in an order by `seed`.

    Raises:
        DataError: there is no Python code, or none with a choice among variables.
    """
    if count < 1:
        raise DataError(f"--inject is {count}; it must be at least 1")
    files = [each for each in python_files(path) if not is_excluded(each[0], exclude)]
    files.sort(key=lambda file: digest(file[0], seed))
    functions: list[Graph] = []
    clean: list[Graph] = []
    blanks: list[list[Graph]] = []
    read = 0
    with progress_bar("Functions", count, show=progress, count=True) as move:
        for name, file in files:
            if len(functions) >= count:
                break
            try:
                source = read_source(file)
            except Unusable:
                continue
            read += 1
            made = list(each_function(source, name, Counter(), misuses=1, seed=seed))
            wrong = [each for each in made if each.wrong is not None]
            clean += [each.graph for each in made if each.wrong is None]
            rng = np.random.default_rng([seed, read])
            most = min(_FUNCTIONS_A_FILE, count - len(functions))
            chosen = rng.permutation(len(wrong))[:most]
            functions += [wrong[i].graph for i in chosen]
            units = {wrong[i].unit for i in chosen}
            for unit, (program, nodes) in enumerate(units_of(source, MAX_NODES, Counter())):
                if unit in units:
                    blanks.append([each.graph for each in blank_each(program, nodes)])
            move(len(functions))
    if not functions:
        raise DataError(f"no function in {path} has a variable that another could replace")
    return Injected(functions=functions, clean=clean, blanks=blanks, files=read)


def judge(model: MisuseDetector, least: int, graphs: Sequence[Graph]) -> tuple[Examined, list[int]]:
    """What the detector says of these graphs, and the number of each in the order of looking."""
    table = learnable(table_from_graphs(list(graphs), MISUSE_SCHEMA))
    sizes = (table.num_nodes, table.num_edges)
    budget = step_budget(*sizes, max(least, int(sizes[0].max()) + 1))
    batching = BatchingConfig(policy="dynamic", batch_size=budget.graphs, budget=budget)
    plan = list(evaluation_sampler(*sizes, batching).plan())

    def batches() -> Iterator[tuple[GraphBatch, Judgement]]:
        for planned in plan:
            batch = assemble(table, planned.graphs, planned.budget)
            with torch.no_grad():
                yield batch, model(batch, TypedEdges.of_batch(batch, model.config.num_types))

    return examined(batches()), [graph for planned in plan for graph in planned.graphs.tolist()]


def show_injected(run: Path, path: Path, options: PredictOptions, console: Console) -> None:
    """Print how many injected misuses a run finds, at some rates of false alarms.

    Raises:
        DataError: the run fills slots, or there is no code.
    """
    model, config, calibration = load_programs(run)
    if not isinstance(model, MisuseDetector) or calibration is None:
        raise DataError(
            f"{run} fills slots; --inject is for a run that detects: train with --target misuse"
        )
    assert options.inject is not None
    made = inject(path, options.inject, exclude=options.exclude, progress=not options.quiet)
    seen, _ = judge(model, config.nodes, [*made.clean, *made.functions])
    headings: tuple[str, ...] = (
        "asked",
        "threshold",
        "false alarms",
        "found",
        "repaired",
        "by chance",
    )
    rows = [_row(seen, calibration, rate) for rate in _SHOWN if rate in RATES]
    lines = int(seen.lines[seen.kind == KINDS.index("clean")].sum())
    print_scores(
        f"{path}: {len(made.functions):,} misuses in {made.files:,} files of {lines:,} lines",
        headings,
        rows,
        console,
    )
    here = seen.figures(seen.calibrated())
    console.print(
        f"With a threshold of {here['threshold']:.3f}, at which these files have at most 1 false "
        f"alarm per 1,000 lines: {here['found']:.1%} found, {here['repaired']:.1%} "
        "repaired.\n",
        soft_wrap=True,
    )
    blanks, order = judge(model, config.nodes, [g for graphs in made.blanks for g in graphs])
    rights, randoms, recents = (blanks.blanks[:, column] for column in (0, 2, 3))
    of = np.repeat(np.arange(len(made.blanks)), [len(graphs) for graphs in made.blanks])[order]
    # One use drawn of each function, as an expectation.
    sampled = np.bincount(of, rights) / np.maximum(np.bincount(of), 1)
    sampled = sampled[np.bincount(of) > 0]
    headings = ("slots", "number", "accuracy", "random", "most recent use")
    baselines = (f"{randoms.mean():.1%}", f"{recents.mean():.1%}")
    print_scores(
        "Which variable belongs into a blank, in the same functions",
        headings,
        [
            ("all uses", f"{len(rights):,}", f"{rights.mean():.1%}", *baselines),
            ("one of each function", f"{len(sampled):,}", f"{sampled.mean():.1%}", "", ""),
        ],
        console,
    )
    console.print(
        "False alarms, allowed and measured, are flagged uses per 1,000 lines of the same files "
        "as they are; thresholds of the first table are those of the run's validation files.",
        soft_wrap=True,
    )


def _row(seen: Examined, calibration: Calibration, rate: float) -> tuple[str, ...]:
    found = seen.figures(calibration, rate)
    return (
        f"{rate:g}",
        f"{found['threshold']:.3f}",
        f"{found['false_alarms']:.2f}",
        f"{found['found']:.1%}",
        f"{found['repaired']:.1%}",
        f"{found['found_by_chance']:.1%}, {found['repaired_by_chance']:.1%}",
    )
