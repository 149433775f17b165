"""The page of a simulation: temperature, drift of the energy, distances."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shlex import quote

import numpy as np

from weft.errors import DataError
from weft.graphs import Array
from weft.integrations.md.config import MDConfig
from weft.integrations.md.record import Record, Sample
from weft.report.figures import Points, curves
from weft.report.page import (
    Chapter,
    Code,
    Facts,
    Figure,
    Page,
    number,
    percent,
    present,
    write_html,
)

# Lines in a plot; of more structures the mean and the extremes.
_MOST_LINES = 6


def write_md_page(record: Record, run: Path, file: Path, index: int | None, path: Path) -> str:
    """Write the page to `path`; a sentence that says where it is, or why there is none."""
    try:
        chapter = _chapter(record, run, file, _command(record, run, file, index))
        write_html(Page(title=path.stem, chapters=[chapter]), path)
    except DataError as error:
        return f"There is no page: {error}."
    return f"Page: {path}."


def _chapter(record: Record, run: Path, file: Path, command: str) -> Chapter:
    config, system = record.config, record.system
    count, atoms = len(system.num_atoms), int(system.num_atoms.sum())
    what = f"{count:,} structures with {atoms:,} atoms" if count > 1 else f"{atoms:,} atoms"
    time = f", {number(record.steps * config.timestep / 1000)} ps"
    return Chapter(
        kind=f"Simulation, {config.ensemble}",
        title=file.name,
        lead=f"{what}, moved by {run} for {record.steps:,} steps"
        f"{'' if config.ensemble == 'relax' else time}.",
        headline=[Facts(facts=_facts(record))],
        pictures=present(*_over_time(record), _distances(record)),
        again=[Code(caption="Command", text=command)],
    )


def _facts(record: Record) -> list[tuple[str, str, str]]:
    config = record.config
    facts = [("speed", f"{number(record.steps_per_second, 3)} steps/s", "")]
    if config.ensemble == "relax":
        facts.append(
            ("largest force", f"{number(float(record.moves.largest_force().max()), 3)} eV/Å", "")
        )
    else:
        mean = float(np.mean([sample.temperature for sample in record.samples]))
        drift = 1e3 * float(record.largest_drift().max())
        facts += [
            ("simulated", f"{number(record.ns_per_day, 3)} ns/day", ""),
            ("mean temperature", f"{number(mean)} K", ""),
            ("energy drift", f"{number(drift, 3)} meV/atom", "at most"),
        ]
    return [*facts, ("in neighbour lists", percent(record.list_share), "of the time")]


def _over_time(record: Record) -> list[Figure | None]:
    config = record.config
    relaxes = config.ensemble == "relax"
    x = "step" if relaxes else "time [ps]"

    def lines(value: str, scale: float = 1.0, per_atom: bool = False) -> dict[str, Points]:
        share = record.system.num_atoms if per_atom else 1
        return _lines(record.samples, config, lambda s: scale * getattr(s, value) / share)

    energy = curves("Potential energy", lines("energy", per_atom=True), x=x, y="energy [eV/atom]")
    volume = curves("Volume", lines("volume"), x=x, y="volume [Å³]") if config.needs_cell else None
    if relaxes:
        return [energy, volume]
    note = {
        "nve": "The drift is that of the total energy, which nve keeps.",
        "nvt": "The drift is that of the total energy without what the thermostat has given.",
        "npt": "The drift is that of the total energy with thermostat and barostat.",
    }[config.ensemble]
    temperature = curves("Temperature", lines("temperature"), x=x, y="temperature [K]")
    drift = curves("Energy drift", lines("drift", 1e3), x=x, y="drift [meV/atom]", note=note)
    return [temperature, drift, energy, volume]


def _lines(
    samples: list[Sample], config: MDConfig, value: Callable[[Sample], Array]
) -> dict[str, Points]:
    """A line for each structure, or of many the mean, the least and the largest."""
    relaxes = config.ensemble == "relax"
    at = [s.step if relaxes else s.step * config.timestep / 1000 for s in samples]
    values: Array = np.array([value(sample) for sample in samples])
    if values.shape[1] <= _MOST_LINES:
        named = {f"structure {n}": column for n, column in enumerate(values.T)}
    else:
        named = {"mean": values.mean(1), "least": values.min(1), "largest": values.max(1)}
    return {name: list(zip(at, column.tolist(), strict=True)) for name, column in named.items()}


def _distances(record: Record) -> Figure | None:
    if record.periodic:
        title, y = "Radial distribution", "g(r)"
        note = "g(r) is 1 where atoms are as dense as on average; it ends at the model's cutoff."
    else:
        title, y = "Distances between atoms", "neighbours [1/Å]"
        note = "The neighbours of an atom by their distance, up to the model's cutoff."
    return curves(title, record.distances(), x="r [Å]", y=y, note=note)


def _command(record: Record, run: Path, file: Path, index: int | None) -> str:
    config, plain = record.config, MDConfig()
    words = [f"weft md {quote(str(run))} {quote(str(file))} --ensemble {config.ensemble}"]
    words += [] if index is None else [f"--index {index}"]
    for name in MDConfig.__dataclass_fields__:
        value = getattr(config, name)
        if name != "ensemble" and value != getattr(plain, name):
            option = f"--{name.replace('_', '-')}"
            words.append(option if value is True else f"{option} {value}")
    return " ".join(words)
