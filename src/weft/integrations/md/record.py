"""What is kept of a simulation: temperatures and energies over time, distances, trajectories."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.data import chemical_symbols
from ase.io import write
from ase.io.trajectory import TrajectoryWriter

from weft.errors import DataError
from weft.graphs import Array, GraphBatch
from weft.integrations.md.config import MDConfig
from weft.integrations.md.dynamics import Moves, State, System

_BINS = 100
# Kinds of pairs in a plot.
_MOST_PAIRS = 6


class Trajectory:
    """Frames of a simulation in a file, or a file for each structure: NAME-0.extxyz, ...

    Args:
        out: the name, .extxyz or .traj.
        system: the structures.
        source: the file that they were read from, which stays.

    Raises:
        DataError: a file would take the place of the source.
        OSError: a file cannot be written.
    """

    def __init__(self, out: Path, system: System, source: Path) -> None:
        count = len(system.structures)
        self.files = [out]
        if count > 1:
            self.files = [out.with_stem(f"{out.stem}-{number}") for number in range(count)]
        for file in self.files:
            if file.resolve() == source.resolve():
                raise DataError(
                    f"the trajectory {file} would replace {source}, which it is made from; name "
                    "another with --out"
                )
        self._system = system
        self._written = [-1] * count
        for file in self.files:
            file.write_bytes(b"")
            # ASE does not append to an empty .traj.
            file.unlink()

    def write(self, number: int, state: State, step: int, femtoseconds: float) -> None:
        """Add a frame of a structure, unless it is there: places, momenta, cell, energy, forces."""
        if self._written[number] == step:
            return
        self._written[number] = step
        first = self._system.starts[number]
        atoms = slice(first, first + self._system.num_atoms[number])
        given = self._system.structures[number]
        # Nothing else of what was given: its energies and forces are those of other places.
        frame = Atoms(
            given.numbers,
            state.pos[atoms],
            cell=state.cell[number],
            pbc=given.pbc,
            masses=given.get_masses(),
            tags=given.get_tags(),
            info={"step": step, "time_fs": femtoseconds},
        )
        frame.set_velocities(state.velocity[atoms])
        energy = float(state.energy[number])
        frame.calc = SinglePointCalculator(frame, energy=energy, forces=state.forces[atoms])
        file = self.files[number]
        size = file.stat().st_size if file.exists() else 0
        try:
            if file.suffix == ".traj":
                with TrajectoryWriter(file, "a") as trajectory:
                    trajectory.write(frame)
            else:
                write(file, frame, append=True)
        except OSError as error:
            # Whole frames, as far as they go.
            with suppress(OSError):
                os.truncate(file, size)
            raise DataError(f"{file} cannot be written at step {step:,}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A simulation at one step.

    Attributes:
        step: its number.
        temperature: [S], K.
        energy: [S], eV.
        drift: [S], change of the conserved energy since the start, eV per atom.
        volume: [S], Å³; 0 of what has no volume.
    """

    step: int
    temperature: Array
    energy: Array
    drift: Array
    volume: Array


class Record:
    """Samples of a simulation, the distances between its atoms, and what it cost.

    Args:
        moves: the simulation.
        config: what it was asked to do.
    """

    def __init__(self, moves: Moves, config: MDConfig) -> None:
        self.moves, self.system, self.config = moves, moves.system, config
        self.samples: list[Sample] = []
        self.steps = 0
        self._began, self._seconds = time.perf_counter(), 1e-9
        self._listed, self._in_lists = self._list_seconds(), 0.0
        self._first = moves.state.conserved
        z = self.system.fixed.z
        self._elements, self._kind = np.unique(z, return_inverse=True)
        kinds = len(self._elements)
        self._counts = np.zeros((kinds, kinds, _BINS))
        # Expected of an ideal gas of the same density, for what is periodic all around.
        self.periodic = bool(self.system.fixed.pbc.all())
        self._expected = np.zeros((kinds, kinds))

    def sample(self) -> Sample:
        """Look at the simulation as it is now."""
        state, system = self.moves.state, self.system
        return Sample(
            step=self.steps,
            temperature=system.temperature(state.velocity),
            energy=state.energy,
            drift=(state.conserved - self._first) / system.num_atoms,
            volume=np.abs(np.linalg.det(state.cell)),
        )

    def keep(self) -> None:
        """Remember this moment, and count its distances."""
        self.samples.append(self.sample())
        base = 0
        for batch in self.moves.batches():
            base += self._count(batch, base)
        if self.periodic:
            for kinds, volume in zip(
                np.split(self._kind, self.system.starts[1:]), self.samples[-1].volume, strict=True
            ):
                atoms = np.bincount(kinds, minlength=len(self._elements))
                self._expected += np.outer(atoms, atoms) / volume

    def _count(self, batch: GraphBatch, base: int) -> int:
        host = batch.to("cpu")
        pos, senders, receivers = host.nodes["pos"], host.senders.long(), host.receivers.long()
        vectors = pos[senders] - pos[receivers]
        if "shift" in host.edges:
            vectors = vectors + host.edges["shift"]
        place = vectors.norm(dim=1).numpy() * (_BINS / self.moves.potential.cutoff)
        kinds = len(self._elements)
        pair = self._kind[base + receivers.numpy()] * kinds + self._kind[base + senders.numpy()]
        where = pair * _BINS + place.astype(np.int64).clip(max=_BINS - 1)
        self._counts += np.bincount(where, minlength=self._counts.size).reshape(self._counts.shape)
        return host.num_nodes

    def largest_drift(self) -> Array:
        """How far the conserved energy of each structure was from its first value, eV per atom."""
        largest: Array = np.abs([sample.drift for sample in self.samples]).max(axis=0)
        return largest

    def distances(self) -> dict[str, list[tuple[float, float]]]:
        """By pair of elements, points (r in Å, g(r)) of the radial distribution.

        Of what is not periodic all around: (r, neighbours of an atom in a shell of 1 Å).
        """
        width = self.moves.potential.cutoff / _BINS
        middle = width * (np.arange(_BINS) + 0.5)
        shell = 4 / 3 * np.pi * width**3 * np.diff(np.arange(_BINS + 1.0) ** 3)
        found: dict[tuple[float, str], list[tuple[float, float]]] = {}
        for a, b in combinations_with_replacement(range(len(self._elements)), 2):
            counts = self._counts[a, b]
            if not counts.any():
                continue
            if self.periodic:
                values = counts / (self._expected[a, b] * shell)
            else:
                atoms = len(self.samples) * np.count_nonzero(self._kind == a)
                values = counts / (atoms * width)
            name = "–".join(chemical_symbols[self._elements[kind]] for kind in (a, b))
            found[-counts.sum(), name] = list(zip(middle.tolist(), values.tolist(), strict=True))
        return {name: found[size, name] for size, name in sorted(found)[:_MOST_PAIRS]}

    def step_done(self) -> None:
        """Count a step, and the time so far."""
        self.steps += 1
        self._seconds = time.perf_counter() - self._began
        self._in_lists = self._list_seconds() - self._listed

    @property
    def steps_per_second(self) -> float:
        """So far."""
        return self.steps / self._seconds

    @property
    def ns_per_day(self) -> float:
        """Simulated time in a day, of one structure."""
        return self.steps_per_second * self.config.timestep * 1e-6 * 86400

    @property
    def list_share(self) -> float:
        """The share of the time that neighbour lists have taken."""
        return self._in_lists / self._seconds

    def _list_seconds(self) -> float:
        return sum(each.seconds for each in self.moves.lists())

    def words(self) -> str:
        """The latest step in a line."""
        now = self.sample()
        atoms, energy = self.system.num_atoms.sum(), float(now.energy.sum())
        told = [f"step {self.steps:,}/{self.config.steps:,}"]
        if self.config.ensemble == "relax":
            told += [f"E {energy:.6g} eV", f"fmax {self.moves.largest_force().max():.3g} eV/Å"]
        else:
            drift = 1e3 * float(np.abs(now.drift).max())
            told += [f"T {now.temperature.mean():.0f} K", f"E {energy / atoms:.6g} eV/atom"]
            told += [f"drift {drift:.2g} meV/atom"]
        if self.config.ensemble == "npt":
            told.append(f"V {now.volume.mean():.6g} Å³")
        told.append(f"{self.steps_per_second:.3g} steps/s")
        if self.config.ensemble != "relax":
            told.append(f"{self.ns_per_day:.3g} ns/day")
        return ", ".join([*told, f"{self.list_share:.1%} in neighbour lists"])
