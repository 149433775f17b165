"""Structures that move: all in one batch by our integrators, or in turn by ASE's with their cell.

Units are ASE's: Å, eV, amu, and for times the one that follows from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase import units

from weft.graphs import Array, GraphBatch
from weft.graphs.table import offsets_of
from weft.integrations.md.config import MDConfig
from weft.integrations.potential import Potential
from weft.sources.verlet_list import Fixed, VerletList

_SKIN = 0.5
# Å. In one step no atom goes as far; hydrogen at 300 K moves by 0.02 Å in 0.5 fs.
_FARTHEST = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class State:
    """S structures with N atoms at one moment.

    Attributes:
        pos: [N, 3].
        velocity: [N, 3].
        cell: [S, 3, 3].
        energy: [S], potential energy.
        forces: [N, 3].
        conserved: [S], what the equations of motion keep: the total energy without what a
            thermostat or barostat has given.
    """

    pos: Array
    velocity: Array
    cell: Array
    energy: Array
    forces: Array
    conserved: Array


class System:
    """What does not change of some structures.

    Args:
        structures: ASE's Atoms.
    """

    def __init__(self, structures: Sequence[Any]) -> None:
        self.structures = structures
        self.num_atoms: Array = np.array([len(atoms) for atoms in structures])
        self.starts = offsets_of(self.num_atoms)[:-1]
        self.graph = np.repeat(np.arange(len(structures)), self.num_atoms)
        self.masses: Array = np.concatenate([atoms.get_masses() for atoms in structures])[:, None]
        self.fixed = Fixed(
            z=np.concatenate([atoms.numbers for atoms in structures]),
            num_atoms=self.num_atoms,
            pbc=np.array([atoms.pbc for atoms in structures]),
        )
        # The total momentum is 0 and stays so.
        self.freedom = np.maximum(3 * self.num_atoms - 3, 1)

    def sums(self, values: Array) -> Array:
        """Sums over the atoms of each structure, [S, ...] of [N, ...]."""
        found: Array = np.add.reduceat(values, self.starts)
        return found

    def kinetic(self, velocity: Array) -> Array:
        """Kinetic energies [S]."""
        return self.sums(0.5 * (self.masses * velocity**2).sum(axis=1))

    def temperature(self, velocity: Array) -> Array:
        """Temperatures [S], K."""
        found: Array = 2 * self.kinetic(velocity) / (self.freedom * units.kB)
        return found

    def at_rest(self, velocity: Array) -> Array:
        """The velocities without that of each structure as a whole."""
        drift = self.sums(self.masses * velocity) / self.sums(self.masses)
        rest: Array = velocity - drift[self.graph]
        return rest

    def velocities(self, temperature: float, noise: Array) -> Array:
        """Those of the structures, or where they have none, `noise` made one of this temperature.

        Structures as a whole are at rest. New velocities have this temperature exactly.
        """
        drawn = self.at_rest(noise / np.sqrt(self.masses))
        now = self.temperature(drawn)
        # A single atom at rest has none.
        drawn *= np.sqrt(temperature / np.where(now > 0, now, 1.0))[self.graph, None]
        given = self.at_rest(np.concatenate([atoms.get_velocities() for atoms in self.structures]))
        has_some = self.sums(np.abs(given).sum(axis=1)) > 0
        return np.where(has_some[self.graph, None], given, drawn)


class Moves:
    """Some structures on their way, a step at a time.

    Args:
        system: the structures.
        potential: that moves them.
        config: how.

    Attributes:
        state: now.
        failures: why structures have flown apart, by their number; they stay where they were.
        fallen: bool [S], which ones.
    """

    state: State

    def __init__(self, system: System, potential: Potential, config: MDConfig) -> None:
        self.system, self.potential, self.config = system, potential, config
        self.failures: dict[int, str] = {}
        self.fallen: Array = np.zeros(len(system.num_atoms), dtype=bool)
        # Of its own for each structure, so that one moves alone as it does beside others.
        self._generators = [
            np.random.default_rng([config.seed, number]) for number in range(len(system.num_atoms))
        ]

    def advance(self) -> bool:
        """Take a step; False if nothing is left to do."""
        raise NotImplementedError

    def lists(self) -> list[VerletList]:
        """The neighbour lists, for what they have cost."""
        raise NotImplementedError

    def batches(self) -> list[GraphBatch]:
        """The structures as graphs, as they are now."""
        raise NotImplementedError

    def largest_force(self) -> Array:
        """The length of the largest force of each structure, [S]."""
        lengths = np.sqrt((self.state.forces**2).sum(axis=1))
        largest: Array = np.maximum.reduceat(lengths, self.system.starts)
        return largest

    def relaxed(self) -> Array:
        """Which structures have come to rest, bool [S]."""
        return self.largest_force() <= self.config.fmax

    def noise(self) -> Array:
        """Normal random numbers [N, 3]."""
        sizes = self.system.num_atoms
        return np.concatenate(
            [rng.standard_normal((n, 3)) for rng, n in zip(self._generators, sizes, strict=True)]
        )

    def _first_velocities(self) -> Array:
        if self.config.ensemble == "relax":
            return np.zeros((len(self.system.graph), 3))
        return self.system.velocities(self.config.temperature, self.noise())

    def _accept(self, new: State, lost: Array | None = None) -> None:
        """Make `new` the state, but of structures that fly apart keep the state that is.

        Args:
            new: after a step.
            lost: bool [N], the atoms that have no neighbour any more.
        """
        system, old = self.system, self.state
        reach = np.sqrt(((new.pos - old.pos) ** 2).sum(axis=1))
        fast = ~np.isfinite(reach)
        if self.config.ensemble != "relax":
            fast |= reach > _FARTHEST
        for wrong, what in (
            (~np.isfinite(new.forces).all(axis=1), "has a force that is not a number"),
            (fast, f"moves by more than {_FARTHEST} Å in a step"),
            (lost, f"has no neighbour within {self.potential.cutoff:g} Å any more"),
        ):
            for atom in np.flatnonzero(wrong) if wrong is not None else ():
                number = int(system.graph[atom])
                place = int(atom - system.starts[number])
                self.failures.setdefault(number, f"its atom {place} {what}")
        self.fallen[list(self.failures)] = True
        by_atom = self.fallen[system.graph]
        self.state = State(
            pos=np.where(by_atom[:, None], old.pos, new.pos),
            velocity=np.where(by_atom[:, None], old.velocity, new.velocity),
            cell=np.where(self.fallen[:, None, None], old.cell, new.cell),
            energy=np.where(self.fallen, old.energy, new.energy),
            forces=np.where(by_atom[:, None], old.forces, new.forces),
            conserved=np.where(self.fallen, old.conserved, new.conserved),
        )


class BatchMoves(Moves):
    """All structures at once, in cells that stay: nve, nvt and relax."""

    def __init__(self, system: System, potential: Potential, config: MDConfig) -> None:
        super().__init__(system, potential, config)
        self._list = potential.neighbours(system.fixed, skin=_SKIN)
        pos = np.concatenate([atoms.positions for atoms in system.structures])
        self._cell = np.array([atoms.cell.array for atoms in system.structures])
        self._heat = np.zeros(len(system.num_atoms))
        velocity = self._first_velocities()
        energy, forces = self._evaluated(pos)
        self._joined = self._has_neighbours()
        self.state = self._state(pos, velocity, energy, forces)
        # Of FIRE (Bitzek et al. 2006), each structure's own.
        count = len(system.num_atoms)
        self._pace, self._mixing = np.full(count, 0.1), np.full(count, 0.1)
        self._downhill = np.zeros(count)

    def lists(self) -> list[VerletList]:
        """The one of all structures."""
        return [self._list]

    def batches(self) -> list[GraphBatch]:
        """The one that was evaluated last."""
        return [self._batch]

    def advance(self) -> bool:
        """A step of velocity Verlet, of BAOAB (Leimkuhler and Matthews 2013), or of FIRE."""
        if self.config.ensemble == "relax":
            return self._relax()
        if self.fallen.all():
            return False
        system, config, state = self.system, self.config, self.state
        dt = config.timestep * units.fs * ~self.fallen[system.graph, None]
        velocity = state.velocity + 0.5 * dt * state.forces / system.masses
        pos = state.pos + 0.5 * dt * velocity
        if config.ensemble == "nvt" and config.friction:
            before = system.kinetic(velocity)
            kept = np.exp(-config.friction * config.timestep)
            spread = np.sqrt((1 - kept**2) * units.kB * config.temperature / system.masses)
            velocity = system.at_rest(kept * velocity + spread * self.noise())
            self._heat = self._heat + system.kinetic(velocity) - before
        pos = pos + 0.5 * dt * velocity
        energy, forces = self._evaluated(pos)
        velocity = velocity + 0.5 * dt * forces / system.masses
        new = self._state(pos, velocity, energy, forces)
        self._accept(new, self._joined & ~self._has_neighbours())
        return True

    def _relax(self) -> bool:
        system, state, graph = self.system, self.state, self.system.graph
        going = ~self.relaxed() & ~self.fallen
        if not going.any():
            return False
        velocity, forces = state.velocity, state.forces

        def dot(a: Array, b: Array) -> Array:
            return system.sums((a * b).sum(axis=1))

        downhill = dot(forces, velocity) > 0
        along = np.sqrt(dot(velocity, velocity) / np.maximum(dot(forces, forces), 1e-30))
        mixing = self._mixing[graph, None]
        turned = (1 - mixing) * velocity + mixing * along[graph, None] * forces
        velocity = np.where(downhill[graph, None], turned, 0.0)
        self._downhill = np.where(downhill, self._downhill + 1, 0)
        steady = self._downhill > 5
        faster = np.where(steady, np.minimum(1.1 * self._pace, 1.0), self._pace)
        self._pace = np.where(downhill, faster, np.maximum(0.5 * self._pace, 0.01))
        self._mixing = np.where(downhill, np.where(steady, 0.99 * self._mixing, self._mixing), 0.1)
        pace = np.where(going, self._pace, 0.0)[graph, None]
        velocity = velocity + pace * forces
        move = pace * velocity
        longest = np.sqrt(np.maximum.reduceat((move**2).sum(axis=1), system.starts))
        pos = state.pos + move * (0.2 / np.maximum(longest, 0.2))[graph, None]
        new = self._state(pos, velocity, *self._evaluated(pos))
        self._accept(new, self._joined & ~self._has_neighbours())
        return True

    def _evaluated(self, pos: Array) -> tuple[Array, Array]:
        """Energies and forces there."""
        self._batch = self._list.batch(pos, self._cell)
        found = self.potential(self._batch)
        return found.energy.numpy(), found.forces.numpy()

    def _has_neighbours(self) -> Array:
        return np.diff(self._batch.in_offsets.numpy(force=True)) > 0

    def _state(self, pos: Array, velocity: Array, energy: Array, forces: Array) -> State:
        conserved = energy
        if self.config.ensemble != "relax":
            conserved = energy + self.system.kinetic(velocity) - self._heat
        return State(
            pos=pos,
            velocity=velocity,
            cell=self._cell,
            energy=energy,
            forces=forces,
            conserved=conserved,
        )


class CellMoves(Moves):
    """Each structure with its cell, by ASE: npt, and relax with the cell."""

    def __init__(self, system: System, potential: Potential, config: MDConfig) -> None:
        from weft.integrations.ase_calculator import WeftCalculator

        super().__init__(system, potential, config)
        parts = np.split(self._first_velocities(), system.starts[1:])
        self._atoms = [atoms.copy() for atoms in system.structures]
        for atoms, velocity in zip(self._atoms, parts, strict=True):
            atoms.calc = WeftCalculator(potential, skin=_SKIN)
            atoms.set_velocities(velocity)
        self._drivers = [self._driver(atoms) for atoms in self._atoms]
        self._steps: list[Iterator[Any] | None] = [
            driver.irun(config.steps)
            if config.ensemble == "npt"
            else driver.irun(fmax=config.fmax, steps=config.steps)
            for driver in self._drivers
        ]
        self._relaxed: Array = np.zeros(len(parts), dtype=bool)
        self.advance()

    def _driver(self, atoms: Any) -> Any:
        config, bar = self.config, units.bar
        if config.ensemble == "npt":
            from ase.md.nose_hoover_chain import IsotropicMTKNPT

            return IsotropicMTKNPT(
                atoms,
                config.timestep * units.fs,
                temperature_K=config.temperature,
                pressure_au=config.pressure * bar,
                tdamp=units.fs / config.friction,
                pdamp=10 * units.fs / config.friction,
            )
        from ase.filters import FrechetCellFilter
        from ase.optimize import FIRE

        return FIRE(FrechetCellFilter(atoms, scalar_pressure=config.pressure * bar), logfile=None)

    def lists(self) -> list[VerletList]:
        """One of each structure."""
        return [atoms.calc.neighbours for atoms in self._atoms]

    def relaxed(self) -> Array:
        """Which structures and cells have come to rest, bool [S]."""
        return self._relaxed

    def batches(self) -> list[GraphBatch]:
        """Each structure by itself."""
        # Not those of the atoms, which may have flown apart since.
        places = np.split(self.state.pos, self.system.starts[1:])
        return [
            found.batch(pos, cell[None])
            for pos, cell, found in zip(places, self.state.cell, self.lists(), strict=True)
        ]

    def advance(self) -> bool:
        """A step of every structure that has not come to its end."""
        moved = False
        for number, steps in enumerate(self._steps):
            if steps is not None:
                found = None if self.fallen[number] else next(steps, None)
                if found is None:
                    self._steps[number] = None
                else:
                    moved, self._relaxed[number] = True, found
        pos = np.concatenate([atoms.positions for atoms in self._atoms])
        forces = np.concatenate([atoms.calc.results["forces"] for atoms in self._atoms])
        energy = np.array([atoms.calc.results["energy"] for atoms in self._atoms])
        conserved = energy
        if self.config.ensemble == "npt":
            conserved = np.array([driver.get_conserved_energy() for driver in self._drivers])
        new = State(
            pos=pos,
            velocity=np.concatenate([atoms.get_velocities() for atoms in self._atoms]),
            cell=np.array([atoms.cell.array for atoms in self._atoms]),
            energy=energy,
            forces=forces,
            conserved=conserved,
        )
        if not hasattr(self, "state"):
            self.state = new
        self._accept(new)
        return moved
