"""The experiments of Balog et al. (2019) on Python programs, on this machine."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from weft.errors import DataError
from weft.graphs import Array, GraphTable
from weft.layout import band_statistics
from weft.recipes.programs.training import PreparedPrograms, prepare_programs
from weft.sources import load
from weft.sources.program_graph import NUM_TYPES
from weft.sources.progress_bar import progress_bar
from weft.sources.python_programs import program_table
from weft_lab.studies.dense_layouts import (
    STUDIED_ORDERS,
    FormCell,
    OrderFigures,
    Spy,
    SupergraphCount,
    count_supergraphs,
    order_figures,
    spy,
    time_forms,
)
from weft_lab.studies.dense_slices import Slice, slices, time_iterations, train_slice
from weft_lab.study import StudyResults
from weft_lab.study_settings import DenseHardwareStudy


@dataclass(kw_only=True)
class DenseResults(StudyResults):
    """Everything that was measured, and where.

    Attributes:
        orders: bandwidths by order of nodes.
        supergraphs: by block and nodes; None until they are counted.
        spy: one graph before and after.
        slices: of the training data; empty until they are cut.
        baselines: accuracies on the validation graphs that need no training.
        cells: banded against csr.
    """

    schemas: ClassVar[tuple[str, ...]] = ("weft study dense-hardware 1",)
    title: ClassVar[str] = "Study of dense hardware"
    kind: ClassVar[str] = "study of dense hardware"
    method: ClassVar[str] = (
        "Forms and slices took turns, round by round, so that what disturbs the machine disturbs "
        "all alike. Times are medians."
    )

    config: DenseHardwareStudy
    orders: list[OrderFigures] = field(default_factory=list)
    supergraphs: list[SupergraphCount] | None = None
    spy: Spy | None = None
    slices: list[Slice] = field(default_factory=list)
    baselines: dict[str, float] = field(default_factory=dict)
    cells: list[FormCell] = field(default_factory=list)


def program_data(
    config: DenseHardwareStudy,
    *,
    data_dir: Path | None = None,
    quiet: bool = False,
    data: Path | None = None,
) -> GraphTable:
    """Programs in a folder of .py files; without one, of the standard library of this Python.

    Raises:
        DataError: the folder is not there, or holds no programs.
    """
    if data is not None and not data.exists():
        raise DataError(f"--data {data} does not exist; name a folder of .py files")
    if data is None and config.graphs is None:
        return load("python", data_dir=data_dir, progress=not quiet)
    return program_table(data, limit=config.graphs, progress=not quiet, seed=config.seed)


def about_programs(table: GraphTable) -> dict[str, Any]:
    """How many graphs, files, nodes and edges there are."""
    return {
        "graphs": len(table),
        "files": len(table.metadata.get("files", ())),
        "nodes": table.total_nodes,
        "edges": table.total_edges,
    }


def measure_dense_hardware(results: DenseResults, table: GraphTable, quiet: bool) -> None:
    """Orders, supergraphs, forms, then iterations of and trainings on slices.

    Args:
        results: are filled.
        table: programs in reverse Cuthill-McKee order.
        quiet: show no progress.
    """
    config = results.config
    # Looks at everything that can be wrong with the table before anything is written.
    prepared = prepare_programs(table, config.recipe())
    results.save()
    bandwidth = band_statistics(table).bandwidth
    _layouts(results, table, bandwidth, quiet=quiet)
    _forms(results, quiet=quiet)
    if not results.slices:
        results.baselines = asdict(prepared.baselines["validation"])
        results.baselines["graphs"] = len(prepared.split["validation"])
        train, nodes = prepared.split["train"], config.training_nodes
        results.slices = slices(table, bandwidth, train, config.shares, nodes)
    _iterations(results, prepared, bandwidth, quiet=quiet)
    _trainings(results, prepared, bandwidth, quiet=quiet)


def _layouts(results: DenseResults, table: GraphTable, bandwidth: Array, *, quiet: bool) -> None:
    config = results.config
    known = {figures.order for figures in results.orders}
    with progress_bar("orders", len(STUDIED_ORDERS), show=not quiet, count=True) as move:
        for number, order in enumerate(STUDIED_ORDERS):
            if order not in known:
                results.orders.append(order_figures(table, order, seed=config.seed))
                results.save()
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
    results.save()


def _forms(results: DenseResults, *, quiet: bool) -> None:
    config = results.config
    if not results.cells:
        results.cells = [
            FormCell(types=types, block=block, density=density)
            for types, block, density in product(config.types, config.form_blocks, config.densities)
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
                results.save()
            move(done + 1)


def _iterations(
    results: DenseResults, prepared: PreparedPrograms, bandwidth: Array, *, quiet: bool
) -> None:
    count = results.config.iterations
    if all(each.timed(count) for each in results.slices):
        return
    with progress_bar("iterations of slices", count + 1, show=not quiet, count=True) as move:
        done = iter(range(1, count + 2))

        def turned() -> None:
            results.save()
            move(next(done))

        time_iterations(results.slices, prepared, bandwidth, iterations=count, done=turned)


def _trainings(
    results: DenseResults, prepared: PreparedPrograms, bandwidth: Array, *, quiet: bool
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
        results.save()
