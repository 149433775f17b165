"""Forces are the gradient of an energy that grows with the structure and has no jumps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.io import write
from small_structures import config, molecules

from weft.batching import BatchingConfig
from weft.graphs import Column, GraphTable, assemble, table_from_columns
from weft.models.target_scale import Standardised, TargetScale
from weft.recipes.structures.config import BEFORE, NeighbourConfig, StructuresConfig
from weft.recipes.structures.data import read_structures
from weft.recipes.structures.prediction import (
    Predictions,
    TrainedStructures,
    load_structures,
    predict_table,
)
from weft.recipes.structures.recipe import CRYSTALS, MOLECULES
from weft.recipes.structures.training import (
    make_network,
    prepare_structures,
    train_prepared,
    train_structures,
)
from weft.training import Run, read_metrics
from weft.training.run import recorded_config

MODELS = ["schnet", "mpeu", "painn"]


def trained(folder: Path, **options: Any) -> TrainedStructures:
    """A run of some molecules, with forces unless told otherwise, opened again, in float64."""
    write(folder / "made.extxyz", molecules(20))
    options = {"forces": "forces", **options}
    asked = config(data=str(folder / "made.extxyz"), epochs=1, **options)
    table = read_structures(asked, data_dir=folder / "data", progress=False)
    with Run.create(folder / "run", asked, tensorboard=False) as run:
        train_structures(table, asked, run=run, quiet=True)
    found = load_structures(folder / "run")
    found.model.double()
    return found


def untrained(asked: StructuresConfig, elements: tuple[int, ...]) -> TrainedStructures:
    torch.manual_seed(0)
    model = Standardised(make_network(asked, elements).double(), TargetScale())
    return TrainedStructures(model=model, config=asked, elements=elements, unit="eV")


def table_of(structures: list[Any]) -> GraphTable:
    """In memory, positions in float64."""
    schema = {
        "z": Column(level="node", dtype="uint8"),
        "pos": Column(level="node", dtype="float64", shape=(3,), unit="Å"),
        "cell": Column(level="graph", dtype="float64", shape=(3, 3), unit="Å"),
        "pbc": Column(level="graph", dtype="bool", shape=(3,)),
    }
    columns = {
        "z": np.concatenate([atoms.numbers for atoms in structures]).astype(np.uint8),
        "pos": np.concatenate([atoms.positions for atoms in structures]),
        "cell": np.array([np.asarray(atoms.cell) for atoms in structures]),
        "pbc": np.array([atoms.pbc for atoms in structures]),
    }
    sizes = np.array([len(atoms) for atoms in structures])
    return table_from_columns(schema, num_nodes=sizes, columns=columns)


def predicted(network: TrainedStructures, structures: list[Any]) -> Predictions:
    return predict_table(network, table_of(structures), forces=True)


@pytest.mark.parametrize("forces", ["forces", None])
@pytest.mark.parametrize("model", MODELS)
def test_two_molecules_far_apart_are_as_if_alone(
    tmp_path: Path, model: Any, forces: str | None
) -> None:
    network = trained(tmp_path, model=model, forces=forces)
    one = molecules(1, largest=6, seed=4)[0]
    far = one.copy()
    far.positions += [40.0, 0.0, 0.0]
    found = predicted(network, [one, one + far])
    assert found.forces is not None
    alone, both = found.forces
    assert np.abs(alone).max() > 1e-3
    np.testing.assert_allclose(both, np.concatenate([alone, alone]), rtol=0, atol=1e-10)
    assert found.values[1] - 2 * found.values[0] == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("model", MODELS)
def test_no_jump_where_an_atom_crosses_the_cutoff(tmp_path: Path, model: Any) -> None:
    network = trained(tmp_path, model=model)
    cutoff = network.config.neighbours.cutoff
    places = np.array([[0.0, 0, 0], [1.1, 0.4, 0], [0.3, 1.2, 0.5], [0, 0, 0]])
    # Through three cutoffs, those of the first atoms, one after the other.
    way = np.linspace(cutoff - 0.3, cutoff + 1.5, 361)
    line = np.array([1.0, 0.2, 0.1]) / np.linalg.norm([1.0, 0.2, 0.1])
    path = []
    for at in way:
        places[3] = at * line
        path.append(Atoms("OCHC", positions=places.copy()))
    found = predicted(network, path)
    assert found.forces is not None
    force = np.array([each[3] @ line for each in found.forces])
    # By the trapezoidal rule: the error of a step is of the third order.
    work = (force[1:] + force[:-1]) / 2 * np.diff(way)
    assert np.abs(np.diff(found.values) + work).max() < 1e-5
    assert np.ptp(found.values) > 1e-3


@pytest.mark.parametrize("model", MODELS)
def test_a_perfect_crystal_has_no_forces_and_no_first_atom(model: Any) -> None:
    asked = replace(CRYSTALS.default(), model=model, hidden=16, target="energy", forces="forces")
    network = untrained(asked.settled("crystals"), (29, 79))
    # Images are that far apart in float32, too, in which shifts are stored.
    copper = bulk("Cu", "fcc", a=3.625, cubic=True).repeat(2)
    mixed = copper.copy()
    mixed.numbers[[3, 7, 20]] = 79
    mixed.rattle(0.03, seed=1)
    order = np.random.default_rng(0).permutation(len(mixed))
    found = predicted(network, [copper, mixed, mixed[order]])
    assert found.forces is not None
    perfect, some, other = found.forces
    assert np.abs(perfect).max() < 1e-10
    assert np.abs(some).max() > 1e-3
    assert found.values[1] == pytest.approx(found.values[2], abs=1e-9)
    np.testing.assert_allclose(some[order], other, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"readout": "mean"}, "readout is 'mean'.*half the forces of one: .* --readout sum"),
        (
            {"neighbours": NeighbourConfig(kind="nearest")},
            "kind is 'nearest'.*energy jumps .*--neighbours.kind cutoff",
        ),
        ({"envelope": False}, "envelope is False.*crosses the cutoff of 5 Å.*--envelope True"),
        (
            {"envelope": False, "neighbours": NeighbourConfig(kind="complete")},
            "envelope is False.*a mean over all atoms.*half the forces.*--envelope True",
        ),
    ],
)
def test_models_without_sound_forces_are_refused(options: dict[str, Any], named: str) -> None:
    asked = config(forces="forces", **options)
    with pytest.raises(ValueError, match=f"forces is 'forces' and .*{named}"):
        asked.check_forces()
    with pytest.raises(ValueError, match=named):
        prepare_structures(table_of(molecules(3)), asked)
    config(**options).check_forces()
    config(forces="forces").check_forces()


@pytest.mark.parametrize("model", MODELS)
def test_what_is_left_open_is_decided_by_what_is_learned(model: Any) -> None:
    def decided(recipe: str, **options: Any) -> tuple[Any, ...]:
        found = config(model=model, **options).settled(recipe)
        assert found.settled() == found
        return found.readout, found.neighbours.kind, found.envelope, found.monitor

    grows = ("sum", "cutoff", True, "validation_mae")
    assert decided("molecules") == decided("crystals") == grows
    assert decided("molecules", readout="mean") == ("mean", "complete", False, "validation_mae")
    nearest = NeighbourConfig(kind="nearest")
    assert decided("crystals", neighbours=nearest) == ("sum", "nearest", False, "validation_mae")
    energy_per_atom = ("mean", "nearest", False, "validation_mae")
    assert decided("crystals", references=False) == energy_per_atom
    with_forces = ("sum", "cutoff", True, "validation_loss")
    for recipe in ("molecules", "crystals"):
        for references in (True, False):
            assert decided(recipe, forces="forces", references=references) == with_forces
    given: dict[str, Any] = {
        "readout": "mean",
        "neighbours": NeighbourConfig(kind="nearest"),
        "envelope": True,
        "monitor": "validation_rmse",
    }
    assert decided("molecules", **given) == ("mean", "nearest", True, "validation_rmse")


def as_older(run: Path) -> None:
    """Make the config of a run one that was written before some settings were there."""
    whole = json.loads((run / "config.json").read_text())
    for name in BEFORE:
        del whole["config"][name]
    (run / "config.json").write_text(json.dumps(whole))


@pytest.mark.parametrize("model", MODELS)
def test_older_runs_open_with_what_they_were_trained_with(tmp_path: Path, model: Any) -> None:
    write(tmp_path / "made.extxyz", molecules(20))
    asked = config(
        data=str(tmp_path / "made.extxyz"),
        model=model,
        forces="forces",
        readout="mean",
        neighbours=NeighbourConfig(kind="nearest", nearest=3),
        **BEFORE,
    )
    table = read_structures(asked, data_dir=tmp_path, progress=False)
    prepared = prepare_structures(table, asked, resumed=True)
    with Run.create(tmp_path / "run", asked, tensorboard=False) as run:
        done = train_prepared(prepared, run=run, quiet=True)
    as_older(tmp_path / "run")
    found = load_structures(tmp_path / "run")
    assert found.config == asked
    batch = assemble(table, range(10))
    assert torch.equal(found.model(batch), done.model(batch))
    # An open setting is as the run has it, and the run is not refused.
    again = replace(asked, readout=None, envelope=None, monitor=None)
    again = again.settled(earlier=recorded_config(tmp_path / "run"))
    assert again == asked
    now = MOLECULES.as_now
    with Run.create(tmp_path / "run", again, resume=True, tensorboard=False, as_now=now) as run:
        resumed = prepare_structures(table, again, resumed=True)
        assert train_prepared(resumed, run=run, quiet=True).scores == done.scores


def test_the_kept_epoch_is_the_best_by_energy_and_forces(tmp_path: Path) -> None:
    write(tmp_path / "made.extxyz", molecules(20))
    asked = config(data=str(tmp_path / "made.extxyz"), forces="forces", force_weight=3.0, epochs=6)
    table = read_structures(asked, data_dir=tmp_path, progress=False)
    for monitor in (None, "validation_force_rmse"):
        chosen = replace(asked, monitor=monitor)
        folder = tmp_path / str(monitor)
        with Run.create(folder, chosen, tensorboard=False) as run:
            done = train_structures(table, chosen, run=run, quiet=True)
        name = monitor or "validation_loss"
        values = [line[name] for line in read_metrics(folder) if name in line]
        assert len(values) == 6
        assert done.result.best_epoch == 1 + int(np.argmin(values))
        assert done.scores[name] == pytest.approx(min(values), rel=1e-6)
        scores = done.scores
        squares = scores["test_rmse"] ** 2 + 3 * scores["test_force_rmse"] ** 2
        assert scores["test_loss"] == pytest.approx(squares / float(done.model.scale.std) ** 2)


def test_the_loss_of_validation_is_that_of_training(tmp_path: Path) -> None:
    """With one batch and no step taken, both are of the same weights and structures."""
    write(tmp_path / "made.extxyz", molecules(20))
    asked = config(
        data=str(tmp_path / "made.extxyz"),
        forces="forces",
        force_weight=3.0,
        epochs=1,
        learning_rate=0.0,
        batching=BatchingConfig(policy="dynamic", batch_size=64),
    )
    table = read_structures(asked, data_dir=tmp_path, progress=False)
    prepared = prepare_structures(table, asked)
    same = {**prepared.split, "validation": prepared.split["train"]}
    done = train_prepared(replace(prepared, split=same), quiet=True)
    found = done.result.metrics
    assert found["validation_loss"] == pytest.approx(found["train_loss"], rel=1e-5)


def test_metrics_to_watch() -> None:
    with pytest.raises(ValueError, match=r"'loss'; choose from validation_loss, .*_mae"):
        config(forces="forces", monitor="loss")
    named = "choose from validation_mae, validation_rmse, or learn from --forces"
    with pytest.raises(ValueError, match=f"monitor is 'validation_force_mae'; {named}"):
        config(monitor="validation_force_mae")
    # Forces may still be found in the data.
    config(target="", data="own.extxyz", monitor="validation_force_mae")
