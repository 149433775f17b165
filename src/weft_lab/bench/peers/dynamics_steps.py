"""A step of molecular dynamics of silicon with the calculators of weft and of SchNetPack."""
# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-call"

from __future__ import annotations

import os
import time
from collections.abc import Callable
from importlib.metadata import version
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import torch
from ase import units
from ase.build import bulk
from ase.md.verlet import VelocityVerlet
from torch.utils.data import dataloader


def weft(case: dict[str, Any]) -> tuple[Callable[[], dict[str, float]], dict[str, str]]:
    """A step of molecular dynamics of case["repeats"]³ cells of silicon."""
    from weft import __version__
    from weft.integrations.ase_calculator import WeftCalculator
    from weft.integrations.potential import Potential
    from weft.models import PaiNN, PaiNNConfig, Standardised, TargetScale
    from weft.training import prepare_process

    prepare_process()
    torch.manual_seed(0)
    network = PaiNN(PaiNNConfig(hidden=64, cutoff=case["cutoff"], elements=(14,)))
    model = Standardised(network, TargetScale(std=1e-3))
    potential = Potential([model], cutoff=case["cutoff"], elements=[14])
    calculator = WeftCalculator(potential)
    run = _moving_silicon(case["repeats"], calculator)

    def step() -> dict[str, float]:
        lists = calculator.neighbours
        before = 0.0 if lists is None else lists.seconds
        run()
        after = calculator.neighbours
        return {"graphs": 1, "batching": 0.0 if after is None else after.seconds - before}

    return step, {"weft": __version__, "torch": torch.__version__}


def schnetpack(case: dict[str, Any]) -> tuple[Callable[[], dict[str, float]], dict[str, str]]:
    """A step of molecular dynamics of case["repeats"]³ cells of silicon."""
    # SchNetPack 2.1.1 imports a name that newer releases of torch no longer have there.
    if not hasattr(dataloader, "T_co"):
        dataloader.T_co = TypeVar("T_co", covariant=True)  # type: ignore[attr-defined]
    from schnetpack.atomistic import Atomwise, Forces, PairwiseDistances
    from schnetpack.interfaces import SpkCalculator
    from schnetpack.model import NeuralNetworkPotential
    from schnetpack.nn import CosineCutoff, GaussianRBF
    from schnetpack.representation import PaiNN
    from schnetpack.transform import MatScipyNeighborList, SkinNeighborList

    # The calculator takes a pickled model, which torch no longer opens unless told to.
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
    torch.manual_seed(0)
    cutoff = case["cutoff"]
    model = NeuralNetworkPotential(
        representation=PaiNN(
            n_atom_basis=64,
            n_interactions=3,
            radial_basis=GaussianRBF(n_rbf=20, cutoff=cutoff),
            cutoff_fn=CosineCutoff(cutoff),
        ),
        input_modules=[PairwiseDistances()],
        output_modules=[
            Atomwise(n_in=64, output_key="energy"),
            Forces(energy_key="energy", force_key="forces"),
        ],
    )
    with torch.no_grad():
        for weight in model.output_modules[0].outnet[1].parameters():
            weight.mul_(1e-3)
    lists: Any = MatScipyNeighborList(cutoff=cutoff)
    if case["skin"]:
        lists = SkinNeighborList(neighbor_list=lists, cutoff_skin=case["skin"])
    with TemporaryDirectory() as folder:
        path = f"{folder}/model"
        torch.save(model, path)
        calculator = SpkCalculator(path, neighbor_list=lists, energy_unit="eV", position_unit="Ang")
    convert, searched = calculator.converter, 0.0

    def timed(atoms: Any) -> Any:
        nonlocal searched
        start = time.perf_counter()
        inputs = convert(atoms)
        searched += time.perf_counter() - start
        return inputs

    calculator.converter = timed
    run = _moving_silicon(case["repeats"], calculator)

    def step() -> dict[str, float]:
        before = searched
        run()
        return {"graphs": 1, "batching": searched - before}

    return step, {"schnetpack": version("schnetpack"), "torch": torch.__version__}


def _moving_silicon(repeats: int, calculator: Any) -> Callable[[], None]:
    """A step of 0.5 fs of 8 repeats³ atoms at 300 K."""
    rng = np.random.default_rng(0)
    atoms = bulk("Si", cubic=True).repeat(repeats)
    atoms.positions += rng.normal(0, 0.05, atoms.positions.shape)
    speeds = np.sqrt(units.kB * 300 / atoms.get_masses())[:, None]
    velocities = rng.normal(size=atoms.positions.shape) * speeds
    atoms.set_velocities(velocities - velocities.mean(axis=0))
    atoms.calc = calculator
    dynamics = VelocityVerlet(atoms, 0.5 * units.fs)

    def step() -> None:
        dynamics.run(1)

    return step
