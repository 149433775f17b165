"""A simulation from a file of structures to trajectories and a page, however it ends."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from weft.errors import DataError
from weft.integrations.md.config import MDConfig
from weft.integrations.md.dynamics import BatchMoves, CellMoves, Moves, System
from weft.integrations.md.page import write_md_page
from weft.integrations.md.record import Record, Trajectory
from weft.integrations.potential import load_potential
from weft.recipes.output import notes, prediction_file, print_scores
from weft.recipes.structures.data import reader_of
from weft.recipes.structures.prediction import check_elements
from weft.sources.atoms import check_structure, files_of, read_structures
from weft.training.free_cores import FreeCores
from weft.training.stopping import StopRequest, stop_on_signals

Show = Callable[[Record], None]
_SHOWN = 10
_LINE_SECONDS = 10.0
_REFRESH_SECONDS = 0.25


def simulate(
    run: Path,
    file: Path,
    config: MDConfig,
    *,
    console: Console,
    index: int | None = None,
    out: Path | None = None,
    quiet: bool = False,
) -> int:
    """Move the structures of `file`, or one of them, by the model of `run`; gives the exit code.

    The trajectories are whole whether it comes to its end, is stopped by a signal, or the atoms fly
    apart.

    Raises:
        DataError: there is no such run, the structures or the trajectory cannot be, or the atoms
            have flown apart.
    """
    out = prediction_file(
        out or Path(f"{file.resolve().stem}-{config.ensemble}.extxyz"),
        file,
        (".extxyz", ".traj"),
        "trajectories",
    )
    potential = load_potential(run, dtype=config.dtype)
    structures = _read(file, index, config)
    system = System(structures)
    check_elements(potential.elements, system.fixed.z, system.num_atoms, str(file))
    trajectory = Trajectory(out, system, file)
    kind = CellMoves if config.needs_cell else BatchMoves
    moves: Moves = kind(system, potential, config)
    record = Record(moves, config)
    failure = ""
    cores = FreeCores()
    with stop_on_signals() as request, _progress(quiet=quiet) as show:
        try:
            failure = _move(moves, record, trajectory, request, show, cores)
        # Such as two atoms in one place.
        except DataError as error:
            failure = f"{error} after step {record.steps:,}"
        finally:
            cores.restore()
    _keep(record, trajectory)
    page = write_md_page(record, run, file, index, out.with_suffix(".html"))
    _tell(record, trajectory, page, console)
    if failure:
        raise DataError(
            f"{file}: {failure}. The model has not learned such structures, or a step is too long: "
            "take a shorter --timestep or a lower --temperature, or train on frames like the last "
            f"ones in {trajectory.files[next(iter(moves.failures), 0)]}"
        )
    if request.signal is not None:
        notes().print(f"weft: interrupted by {request.signal} after step {record.steps:,}")
        return 128 + int(signal.Signals[request.signal])
    return 0


def _read(file: Path, index: int | None, config: MDConfig) -> list[Any]:
    """The structures, each of which can be moved as asked."""
    if reader_of(file) != "atoms":
        raise DataError(f"{file}: structures to move come from a file that ASE reads, as .extxyz")
    structures = list(read_structures(files_of([file]), lambda *position, **total: None))
    if index is not None:
        if not -len(structures) <= index < len(structures):
            raise DataError(f"--index is {index}, and {file} has {len(structures)} structures")
        structures = [structures[index]]
    for where, atoms, _, _ in structures:
        check_structure(where, atoms.numbers, atoms.positions, atoms.cell.array, atoms.pbc)
        if config.needs_cell and not atoms.pbc.all():
            what = "npt" if config.ensemble == "npt" else "--relax-cell"
            raise DataError(
                f"{where}: {what} changes the cell by the stress, and pbc is "
                f"{atoms.pbc.tolist()}; it takes structures that are periodic in three directions"
            )
        if atoms.constraints:
            kinds = ", ".join(sorted({type(each).__name__ for each in atoms.constraints}))
            raise DataError(
                f"{where} has constraints ({kinds}), which would be ignored; remove them, or use "
                "weft.calculator with ASE's own dynamics, which keep them"
            )
    return [structure.atoms for structure in structures]


def _move(
    moves: Moves,
    record: Record,
    trajectory: Trajectory,
    request: StopRequest,
    show: Show,
    cores: FreeCores,
) -> str:
    """Take the steps, writing frames; says which structures have flown apart, if any."""
    failure, told = "", 0
    _keep(record, trajectory)
    while record.steps < record.config.steps and request.signal is None:
        cores.look()
        if not moves.advance():
            break
        for number in list(moves.failures)[told:]:
            _write(record, trajectory, number)
            failure = failure or (
                f"structure {number} flies apart after step {record.steps:,}: "
                f"{moves.failures[number]}"
            )
        told = len(moves.failures)
        record.step_done()
        if record.steps % record.config.every == 0:
            _keep(record, trajectory)
        show(record)
    more = len(moves.failures) - 1
    return failure + (f" (and {more:,} more structures)" if more > 0 else "")


def _keep(record: Record, trajectory: Trajectory) -> None:
    """Remember and write this moment, if it is not yet."""
    if not record.samples or record.samples[-1].step != record.steps:
        record.keep()
    for number in np.flatnonzero(~record.moves.fallen).tolist():
        _write(record, trajectory, number)


def _write(record: Record, trajectory: Trajectory, number: int) -> None:
    femtoseconds = round(record.steps * record.config.timestep, 9)
    trajectory.write(number, record.moves.state, record.steps, femtoseconds)


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Show]:
    """A line that is kept up to date on a terminal; elsewhere one every 10 s or tenth of the run.

    It gives a function of the record.
    """
    told = notes(quiet=quiet)
    shown = {"at": time.perf_counter(), "step": 0.0}
    live = told.status("starting") if told.is_terminal and not quiet else None

    def show(record: Record) -> None:
        gap, tenth = time.perf_counter() - shown["at"], record.config.steps / 10
        due = gap >= _REFRESH_SECONDS
        if live is None:
            due = gap >= _LINE_SECONDS or (gap > 1 and record.steps - shown["step"] >= tenth)
        if due:
            shown.update(at=time.perf_counter(), step=float(record.steps))
            if live is None:
                told.print(record.words())
            else:
                live.update(record.words())

    if live is None:
        yield show
    else:
        with live:
            yield show


def _tell(record: Record, trajectory: Trajectory, page: str, console: Console) -> None:
    """Print a row for each structure, what it cost, and where everything is."""
    first, last, config = record.samples[0], record.samples[-1], record.config
    headings, rows = ["structure", "atoms", "energy before [eV]", "after [eV]"], []
    relaxes = config.ensemble == "relax"
    headings += ["largest force [eV/Å]"] if relaxes else ["mean T [K]", "largest drift [meV/atom]"]
    headings += ["volume [Å³]"] if config.needs_cell else []
    forces, drift = record.moves.largest_force(), record.largest_drift()
    for number in range(min(_SHOWN, len(forces))):
        row = [str(number), f"{record.system.num_atoms[number]:,}"]
        row += [f"{sample.energy[number]:.6f}" for sample in (first, last)]
        if relaxes:
            row.append(f"{forces[number]:.3g}")
        else:
            mean = sum(sample.temperature[number] for sample in record.samples)
            row += [f"{mean / len(record.samples):.0f}", f"{1e3 * drift[number]:.3g}"]
        rows.append([*row, *([f"{last.volume[number]:.6g}"] if config.needs_cell else [])])
    more = len(forces) - len(rows)
    print_scores(f"{config.ensemble}: {record.steps:,} steps", headings, rows, console)
    said = f"... and {more:,} more structures. " if more else ""
    if relaxes:
        done = int(record.moves.relaxed().sum())
        said += f"{done:,} of {len(forces):,} are relaxed to {config.fmax:g} eV/Å. "
    files = trajectory.files
    where = str(files[0]) if len(files) == 1 else f"{files[0]} to {files[-1].name}"
    if record.steps:
        many = f" of {len(files):,} structures" if len(files) > 1 else ""
        pace = "" if relaxes else f", {record.ns_per_day:.3g} ns/day"
        said += f"{record.steps_per_second:.3g} steps/s{many}{pace}, "
        said += f"{record.list_share:.1%} of the time in neighbour lists. "
    console.print(
        f"{said}Trajectory: {where}. {page}",
        soft_wrap=True,
        highlight=False,
    )
