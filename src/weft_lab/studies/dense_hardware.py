"""The experiments of Balog et al. (2019) on Python programs, on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, GraphTable
from weft.layout import band_statistics
from weft.recipes.programs.training import PreparedPrograms, prepare_programs
from weft.sources.program_graph import NUM_TYPES
from weft.sources.progress_bar import progress_bar
from weft_lab.studies.dense_crossover import FormCell, time_forms
from weft_lab.studies.dense_orders import STUDIED_ORDERS, order_figures, spy
from weft_lab.studies.dense_results import DenseResults
from weft_lab.studies.dense_settings import DenseHardwareStudy
from weft_lab.studies.dense_slices import slices, time_iterations, train_slice
from weft_lab.studies.dense_supergraphs import count_supergraphs
from weft_lab.studies.results_file import RESULTS


def study_dense_hardware(
    config: DenseHardwareStudy,
    table: GraphTable,
    folder: Path,
    *,
    resume: bool = False,
    machine: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> DenseResults:
    """Measure, and keep what was measured in `folder` all along.

    Args:
        config: what to measure.
        table: programs in reverse Cuthill-McKee order.
        folder: where results.json goes.
        resume: go on with the study in `folder`: what it has is not measured again; a training
            that was not finished begins anew.
        machine: what to say about it in the file.
        quiet: no progress.

    Raises:
        DataError: there is a study in `folder` and `resume` is not given, or it has other settings
            or programs; the table is not one of programs.
    """
    about = {
        "graphs": len(table),
        "files": len(table.metadata.get("files", ())),
        "nodes": table.total_nodes,
        "edges": table.total_edges,
    }
    if (folder / RESULTS).exists():
        if not resume:
            raise DataError(
                f"{folder} holds a study already; go on with it (--resume) or choose another folder"
            )
        results = DenseResults.load(folder, config)
        if results.data != about:
            raise DataError(
                f"{folder} holds a study of {results.data}, not of {about}; choose another folder"
            )
    else:
        results = DenseResults(config=config, machine=dict(machine or {}), data=about)
    # Looks at everything that can be wrong with the table before anything is written.
    prepared = prepare_programs(table, config.recipe())
    folder.mkdir(parents=True, exist_ok=True)
    results.save(folder)
    bandwidth = band_statistics(table).bandwidth
    _layouts(results, table, bandwidth, folder, quiet=quiet)
    _forms(results, folder, quiet=quiet)
    if not results.slices:
        results.baselines = asdict(prepared.baselines["validation"])
        results.baselines["graphs"] = len(prepared.split["validation"])
        train, nodes = prepared.split["train"], config.training_nodes
        results.slices = slices(table, bandwidth, train, config.shares, nodes)
    _iterations(results, prepared, bandwidth, folder, quiet=quiet)
    _trainings(results, prepared, bandwidth, folder, quiet=quiet)
    return results


def _layouts(
    results: DenseResults, table: GraphTable, bandwidth: Array, folder: Path, *, quiet: bool
) -> None:
    config = results.config
    known = {figures.order for figures in results.orders}
    with progress_bar("orders", len(STUDIED_ORDERS), show=not quiet, count=True) as move:
        for number, order in enumerate(STUDIED_ORDERS):
            if order not in known:
                results.orders.append(order_figures(table, order, seed=config.seed))
                results.save(folder)
            move(number + 1)
    if results.spy is None:
        results.spy = spy(table)
    if results.supergraphs is None:
        counts = [
            count_supergraphs(
                table,
                bandwidth,
                block=block,
                nodes=nodes,
                num_types=NUM_TYPES,
                hidden=config.hidden,
            )
            for nodes in config.nodes
            for block in config.blocks
        ]
        results.supergraphs = [count for count in counts if count is not None]
    results.save(folder)


def _forms(results: DenseResults, folder: Path, *, quiet: bool) -> None:
    config = results.config
    if not results.cells:
        results.cells = [
            FormCell(types=types, block=block, density=density)
            for types in config.types
            for block in config.form_blocks
            for density in config.densities
        ]
    with progress_bar("banded and csr", len(results.cells), show=not quiet, count=True) as move:
        # In another order than that of the table: what disturbs the machine disturbs all alike.
        for done, number in enumerate(np.random.default_rng(0).permutation(len(results.cells))):
            cell = results.cells[number]
            if not cell.measured and not cell.skipped:
                time_forms(
                    cell,
                    nodes=config.form_nodes,
                    hidden=config.hidden,
                    rounds=config.rounds,
                    max_edges=config.max_edges,
                    seed=config.seed,
                )
                results.save(folder)
            move(done + 1)


def _iterations(
    results: DenseResults,
    prepared: PreparedPrograms,
    bandwidth: Array,
    folder: Path,
    *,
    quiet: bool,
) -> None:
    count = results.config.iterations
    if all(each.timed(count) for each in results.slices):
        return
    with progress_bar("iterations of slices", count + 1, show=not quiet, count=True) as move:
        done = iter(range(1, count + 2))

        def turned() -> None:
            results.save(folder)
            move(next(done))

        time_iterations(results.slices, prepared, bandwidth, iterations=count, done=turned)


def _trainings(
    results: DenseResults,
    prepared: PreparedPrograms,
    bandwidth: Array,
    folder: Path,
    *,
    quiet: bool,
) -> None:
    config = results.config
    left = [each for each in results.slices if not each.curve] if config.epochs else []
    for each in left:
        with progress_bar(f"training: {each.name}", 100, show=not quiet, count=True) as move:
            train_slice(
                each,
                prepared,
                bandwidth,
                epochs=config.epochs,
                evaluations=config.evaluations,
                progress=move,
            )
        results.save(folder)
