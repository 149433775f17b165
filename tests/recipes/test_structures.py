"""The recipe for molecules and crystals: it learns, resumes to the bit, and says what is wrong."""

from __future__ import annotations

import os
import signal
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from small_structures import (
    config,
    crystals,
    molecules,
    plain_table,
    table_of,
    write_crystals,
)

import weft.recipes.structures.training
import weft.recipes.table_training
from weft.batching import BatchingConfig
from weft.errors import DataError
from weft.graphs import Budget
from weft.models.target_scale import TargetScale
from weft.recipes.structures.config import NeighbourConfig, StructuresConfig
from weft.recipes.structures.data import (
    file_name_of,
    labelled,
    neighbour_table,
    some_of,
    split_structures,
    structure_table,
    usable_structures,
)
from weft.recipes.structures.training import prepare_structures, train_structures
from weft.recipes.table_training import Trained
from weft.sources import atoms_table
from weft.training import Run, read_metrics
from weft.training.compilation import Compilation


def validation_errors(folder: Path) -> list[float]:
    return [m["validation_mae"] for m in read_metrics(folder) if "validation_mae" in m]


def trained(folder: Path, asked: StructuresConfig, made: list[Any] | None = None) -> Trained:
    table = table_of(folder, molecules() if made is None else made, asked)
    with Run.create(folder / "run", asked, tensorboard=False) as run:
        return train_structures(table, asked, run=run, quiet=True)


@pytest.mark.parametrize("model", ["schnet", "mpeu", "painn"])
def test_training_lowers_the_validation_error(tmp_path: Path, model: Any) -> None:
    asked = config(model=model, epochs=10, envelope=True, learning_rate=3e-3)
    done = trained(tmp_path, asked, molecules(80, largest=5))
    errors = validation_errors(tmp_path / "run")
    assert len(errors) == 10
    assert min(errors) < 0.7 * errors[0]
    assert done.scores["validation_mae"] == pytest.approx(min(errors), rel=1e-6)
    assert done.result.best_epoch == 1 + int(np.argmin(errors))
    assert done.counts == {"train": 56, "validation": 16, "test": 8, "dropped": 0, "skipped": 0}
    assert 0 < done.batching_share < 1


def test_the_first_losses_are_as_ever(tmp_path: Path) -> None:
    # One batch an epoch, so that an epoch's loss is a step's.
    batching = BatchingConfig(policy="dynamic", batch_size=64)
    trained(tmp_path, config(epochs=4, batching=batching, readout="mean"))
    found = [m["train_loss"] for m in read_metrics(tmp_path / "run") if "train_loss" in m]
    assert found == pytest.approx(GOLDEN, abs=1e-5)


GOLDEN = [2.847098, 2.471493, 2.152632, 1.881208]


@pytest.mark.parametrize("model", ["schnet", "painn"])
def test_forces_are_learned_with_the_energy(tmp_path: Path, model: Any) -> None:
    asked = config(model=model, forces="forces", epochs=12, force_weight=10.0, readout="sum")
    done = trained(tmp_path, asked)
    lines = [m for m in read_metrics(tmp_path / "run") if "validation_force_mae" in m]
    assert len(lines) == 12
    assert lines[-1]["validation_force_mae"] < 0.8 * lines[0]["validation_force_mae"]
    assert {"test_force_mae", "test_force_rmse", "test_mae", "test_rmse"} <= done.scores.keys()


@pytest.mark.parametrize("policy", ["packed", "static-64", "static-constant", "unpadded"])
def test_other_batching_gives_the_same_scores(tmp_path: Path, policy: Any) -> None:
    asked = config(epochs=0)
    table = table_of(tmp_path, molecules(), asked)
    plain = train_structures(table, asked, quiet=True).scores
    other = replace(asked, batching=BatchingConfig(policy=policy, batch_size=5))
    assert train_structures(table, other, quiet=True).scores == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize(
    ("model", "mode", "policy"),
    [
        ("schnet", "static", "packed"),
        ("mpeu", "dynamic", "unpadded"),
        ("painn", "static", "packed"),
    ],
)
def test_compiled_training_gives_what_eager_training_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Any, mode: Any, policy: Any
) -> None:
    quickly = partial(Compilation, backend="aot_eager")
    monkeypatch.setattr(weft.recipes.structures.training, "Compilation", quickly)
    batching = BatchingConfig(policy=policy, batch_size=8)
    asked = config(model=model, batching=batching, epochs=1)
    table = table_of(tmp_path, molecules(20), asked)
    plain = train_structures(table, asked, quiet=True)
    done = train_structures(table, replace(asked, compile=mode), quiet=True)
    assert done.compilation.report()["compilations"] == 1
    assert done.compilation.report()["graph_breaks"] == []
    assert done.scores == pytest.approx(plain.scores, rel=1e-5)


def interrupted_after(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send this process SIGTERM in that step of the next training."""
    real, done = weft.recipes.table_training.fit, 0

    def fit(model: Any, optimizer: Any, train: Any, loss: Any, **rest: Any) -> Any:
        def counted(model: Any, batch: Any) -> Any:
            nonlocal done
            done += 1
            if done == steps:
                os.kill(os.getpid(), signal.SIGTERM)
            return loss.loss(model, batch)

        return real(model, optimizer, train, counted, **rest)

    monkeypatch.setattr(weft.recipes.table_training, "fit", fit)


@pytest.mark.parametrize("steps", [2, 5, 8])
@pytest.mark.parametrize("forces", [None, "forces"])
def test_an_interrupted_run_resumes_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, forces: str | None
) -> None:
    asked = config(epochs=3, forces=forces)
    table = table_of(tmp_path, molecules(30), asked)

    def session(folder: str) -> Trained:
        with Run.create(tmp_path / folder, asked, resume=True, tensorboard=False) as run:
            return train_structures(table, asked, run=run, quiet=True)

    def measured(folder: str) -> list[dict[str, Any]]:
        timed = ("seconds", "graphs_per_second")
        lines = read_metrics(tmp_path / folder)
        return [{k: v for k, v in line.items() if k not in timed} for line in lines]

    whole = session("whole")
    assert whole.result.steps == 9
    with monkeypatch.context() as patch:
        interrupted_after(steps, patch)
        cut = session("cut")
    assert (cut.result.steps, cut.result.stopped) == (steps, "interrupted by SIGTERM")
    assert cut.scores == {}
    again = session("cut")
    assert again.result.steps == 9
    assert again.scores == whole.scores
    assert measured("cut") == measured("whole")
    ours, theirs = again.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_resumed_run_keeps_its_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the scale would be now: labels and weights belong together."""
    asked = config(epochs=3)
    table = table_of(tmp_path, molecules(30), asked)

    def session(folder: str) -> Trained:
        with Run.create(tmp_path / folder, asked, resume=True, tensorboard=False) as run:
            return train_structures(table, asked, run=run, quiet=True)

    real = weft.recipes.structures.training.learn_scale
    with monkeypatch.context() as older:
        scale = TargetScale(
            3.0, 7.0, real(table, np.arange(20), "energy", references=True).references
        )
        older.setattr(
            weft.recipes.structures.training, "learn_scale", lambda *_, **__: deepcopy(scale)
        )
        whole = session("whole")
        interrupted_after(5, older)
        session("cut")
    again = session("cut")
    assert again.scores == whole.scores
    assert float(again.model.scale.std) == 7.0


def test_init_from_starts_with_weights_and_scale_of_another_run(tmp_path: Path) -> None:
    first = trained(tmp_path, config(epochs=3))
    asked = config(epochs=0, seed=5)
    table = neighbour_table(
        atoms_table(
            tmp_path / "again", tmp_path / "made.extxyz", targets=["energy"], progress=False
        ),
        asked.settled().neighbours,
        data_dir=tmp_path,
        progress=False,
    )
    second = train_structures(table, asked, init_from=tmp_path / "run", quiet=True)
    ours, theirs = second.model.state_dict(), first.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_structures_without_a_value_are_dropped_and_counted(tmp_path: Path) -> None:
    made = molecules(20)
    made[3].calc = None
    made[7].calc.results["energy"] = float("nan")
    made[9].calc.results["forces"][0, 0] = float("nan")
    del made[11].calc.results["forces"]
    asked = config(forces="forces", epochs=1)
    done = trained(tmp_path, asked, made)
    assert done.counts["dropped"] == 4
    assert done.counts["train"] + done.counts["validation"] + done.counts["test"] == 16
    assert all(np.isfinite(list(done.scores.values())))


def test_seeds_share_the_split_of_the_data(tmp_path: Path) -> None:
    asked = config()
    table = table_of(tmp_path, molecules(20), asked)
    first = prepare_structures(table, asked)
    second = prepare_structures(table, replace(asked, seed=1))
    assert first.split["test"].tolist() == second.split["test"].tolist()
    assert [b.graphs.tolist() for b in first.sampler.plan()] != [
        b.graphs.tolist() for b in second.sampler.plan()
    ]
    other = prepare_structures(table, replace(asked, split_seed=1))
    assert first.split["test"].tolist() != other.split["test"].tolist()


def test_forces_are_of_energies_in_ev(tmp_path: Path) -> None:
    asked = config(forces="forces")
    table = table_of(tmp_path, molecules(5), asked)
    schema = {**table.schema, "energy": replace(table.schema["energy"], unit="eV/atom")}
    with pytest.raises(DataError, match="energy in eV, and 'energy' is in eV/atom"):
        prepare_structures(replace(table, schema=schema), asked)


def test_a_split_uses_every_structure_once() -> None:
    table = plain_table([[1]] * 7, [0.0, 1.0, np.nan, 3.0, 4.0, 5.0, 6.0])
    split = split_structures(table, ["energy"], parts=(0.6, 0.2, 0.2), seed=1)
    ids = np.concatenate([split["train"], split["validation"], split["test"]])
    assert sorted(ids.tolist()) == [0, 1, 3, 4, 5, 6]
    assert usable_structures(table, ["energy"]).sum() == len(table) - 1
    again = split_structures(table, ["energy"], parts=(0.6, 0.2, 0.2), seed=1)
    assert again["train"].tolist() == split["train"].tolist()
    other = split_structures(table, ["energy"], parts=(0.6, 0.2, 0.2), seed=2)
    assert other["train"].tolist() != split["train"].tolist()
    half = split_structures(table, ["energy"], parts=(0.34, 0.17, 0.0), seed=1)
    assert (len(half["train"]), len(half["validation"]), len(half["test"])) == (2, 1, 0)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 9, 11])
def test_a_small_split_has_training_and_validation(count: int) -> None:
    table = plain_table([[1]] * count, np.arange(count))
    split = split_structures(table, ["energy"], parts=(0.8, 0.1, 0.1), seed=0)
    assert len(split["train"]) >= 1
    assert len(split["validation"]) >= 1
    assert len(split["train"]) + len(split["validation"]) + len(split["test"]) == count


@pytest.mark.parametrize("values", [[np.nan] * 3, [1.0, np.nan, np.nan]])
def test_too_few_structures_with_a_value(values: list[float]) -> None:
    table = plain_table([[1]] * 3, values)
    with pytest.raises(DataError, match=r"of 3 structures have energy; training and validation"):
        split_structures(table, ["energy"], parts=(0.8, 0.1, 0.1), seed=0)


@pytest.mark.parametrize(
    "parts", [(0.8, 0.0, 0.2), (0.0, 0.5, 0.5), (0.8, 0.3, 0.1), (0.8, 0.1, -0.1), (1, np.nan, 0)]
)
def test_a_split_that_cannot_be(parts: Any) -> None:
    with pytest.raises(ValueError, match=r"split is \(.*add up to at most 1"):
        config(split=parts)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"model": "gemnet"}, "model is 'gemnet'; choose from schnet, mpeu, painn"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"force_weight": -1.0}, "force_weight is -1.0"),
        ({"split_seed": -1}, "split_seed is -1; it must be at least 0"),
        ({"hidden": 1}, "hidden is 1; it must be at least 2"),
        ({"limit": 1}, "limit is 1; it must be at least 2"),
        ({"forces": "f", "compile": "static"}, "forces need compile = eager"),
    ],
)
def test_settings_that_cannot_be(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        config(**options)
    with pytest.raises(ValueError, match="kind is 'all'; choose from complete, cutoff, nearest"):
        NeighbourConfig(kind="all")  # type: ignore[arg-type]


def test_fewer_structures_than_a_batch(tmp_path: Path) -> None:
    batching = BatchingConfig(policy="dynamic", batch_size=500)
    asked = config(epochs=1, limit=4, batching=batching, split=(0.5, 0.5, 0.0))
    table = some_of(table_of(tmp_path, molecules(12), asked), asked.limit, asked.split_seed)
    done = train_structures(table, asked, quiet=True)
    assert done.result.steps == 1
    assert done.counts["test"] == 0
    kinds = ("mae", "rmse", "mae_per_atom", "rmse_per_atom")
    assert set(done.scores) == {f"validation_{kind}" for kind in kinds}


def test_a_target_with_the_name_of_anything(tmp_path: Path) -> None:
    """Columns that training adds for itself do not meet the user's."""
    made = molecules(20)
    for atoms in made:
        atoms.info["label"] = float(atoms.get_potential_energy())
        atoms.arrays["push"] = atoms.get_forces()
    asked = config(epochs=1)
    plain = train_structures(table_of(tmp_path, made, asked), asked, quiet=True)
    (tmp_path / "b").mkdir()
    asked = config(epochs=1, target="label")
    other = train_structures(table_of(tmp_path / "b", made, asked), asked, quiet=True)
    assert other.scores == plain.scores


def test_training_reads_no_more_columns_than_it_needs(tmp_path: Path) -> None:
    asked = config(forces="forces")
    table = table_of(tmp_path, molecules(5), asked)
    scale = train_structures(table, config(epochs=0), quiet=True).model.scale
    data = labelled(table, "energy", scale, forces="forces")
    assert set(data.schema) == {"z", "pos", "energy", "(label)", "(forces)"}
    assert data.symmetric


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"target": "enthalpy"}, r"no column 'enthalpy' in the table.*it has z, pos, cell, pbc"),
        ({"target": "forces"}, r"'forces' is a node column of shape \[3\]; a target is one number"),
        ({"target": "cell"}, r"'cell' is a graph column of shape \[3, 3\]"),
        ({"forces": "energy"}, r"'energy' is a graph column of shape \[\]; forces are three"),
        ({"forces": "push"}, r"no column 'push' in the table"),
    ],
)
def test_columns_that_cannot_be_learned(
    tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    table = table_of(tmp_path, molecules(5), config(forces="forces"))
    with pytest.raises(DataError, match=named):
        train_structures(table, config(**options), quiet=True)


def test_a_molecule_larger_than_the_budget(tmp_path: Path) -> None:
    # Trained on with certainty: nearly all are.
    made = molecules(20, largest=3) + molecules(20, largest=3, seed=1)
    rng = np.random.default_rng(0)
    made += [
        Atoms(
            numbers=[6] * 12, positions=np.arange(36).reshape(12, 3) + rng.uniform(0, 0.1, (12, 3))
        )
        for _ in range(4)
    ]
    for atoms in made[-4:]:
        atoms.info["energy"] = -12000.0
    budget = Budget(nodes=11, edges=100, graphs=5)
    batching = BatchingConfig(policy="dynamic", batch_size=5, budget=budget)
    complete = NeighbourConfig(kind="complete")
    asked = config(epochs=1, split=(0.9, 0.1, 0.0), batching=batching, neighbours=complete)
    table = table_of(tmp_path, made, asked)
    with pytest.raises(DataError, match=r"has 12 nodes and 132 edges, a batch has room for 10"):
        train_structures(table, asked, quiet=True)
    alone = replace(asked, batching=replace(batching, oversize="alone"))
    assert train_structures(table, alone, quiet=True).counts["skipped"] == 0
    skip = replace(asked, batching=replace(batching, oversize="skip"))
    with pytest.warns(UserWarning, match="graphs are skipped as too large"):
        done = train_structures(table, skip, quiet=True)
    assert 1 <= done.counts["skipped"] <= 4


def test_structures_of_one_atom(tmp_path: Path) -> None:
    made = molecules(40, largest=1)
    done = trained(tmp_path, config(epochs=3, forces="forces"), made)
    # Atoms have nobody to push: their energies are the references, their forces 0.
    assert done.scores["validation_mae"] < 1
    assert done.scores["validation_force_mae"] == 0


def atoms(**options: Any) -> Any:
    given = {"symbols": "HH", "positions": [[0, 0, 0], [0, 0, 0.8]], "info": {"energy": 1.0}}
    return Atoms(**{**given, **options})


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ({"positions": [[0, 0, 1], [0, 0, 1]]}, "graph 3: atoms 0 and 1 are in one place"),
        ({"positions": [[0, 0, 1], [0, np.inf, 1]]}, r"structure 3 \(line 13\): atom 1 is at"),
        ({"positions": [[0, 0, np.nan], [0, 0, 1]]}, r"structure 3 \(line 13\): atom 0 is at"),
        (
            {"cell": [[3, 0, 0], [3, 0, 0], [0, 0, 3]], "pbc": True},
            "structure 3.*periodic along 3 vectors, but the cell",
        ),
        ({"cell": [3, 3, 3], "pbc": True}, r"structure 3 is periodic \(1 of 5 are\).*cutoff or"),
    ],
)
def test_structures_that_are_none(tmp_path: Path, bad: dict[str, Any], named: str) -> None:
    made = [atoms(), atoms(), atoms(), atoms(**bad), atoms()]
    with pytest.raises(DataError, match=named):
        table_of(tmp_path, made, config(neighbours=NeighbourConfig(kind="complete")))


def test_molecules_and_crystals_in_one_file(tmp_path: Path) -> None:
    made = molecules(10)
    for number in range(0, 10, 2):
        made[number].cell = [4, 4, 4]
        made[number].pbc = [True, True, number % 4 == 0]
    asked = config(epochs=1, neighbours=NeighbourConfig(kind="cutoff", cutoff=4.0), model="painn")
    assert np.isfinite(trained(tmp_path, asked, made).scores["validation_mae"])


def test_structure_table_of_a_file(tmp_path: Path) -> None:
    file = write_crystals(tmp_path / "my crystals é.jsonl", crystals(4))
    read = {"data_dir": tmp_path / "data", "progress": False}
    table = structure_table(str(file), ["gap"], **read)
    assert table.path is not None
    assert table.path.name.startswith("my-crystals-")
    assert table.column("gap").shape == (4,)
    assert structure_table(str(file), ["gap"], **read).path == table.path
    # Another state of the file is another table.
    write_crystals(file, crystals(6))
    assert len(structure_table(str(file), ["gap"], **read)) == 6
    both = structure_table("crystals", ["gap"], files=[file], **read)
    assert len(both) == 6
    with pytest.raises(DataError, match=r"--files .* would not be read"):
        structure_table(str(file), ["gap"], files=[file], **read)
    with pytest.raises(DataError, match="no crystal has a target 'energy'; there are gap"):
        structure_table(str(file), ["energy"], **read)
    with pytest.raises(DataError, match="'cora' is one graph, not molecules or crystals"):
        structure_table("cora", ["gap"], **read)
    with pytest.raises(DataError, match=r"'nothing' is neither a file or folder nor one of qm9"):
        structure_table("nothing", ["gap"], **read)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("qm9", "qm9"),
        ("mp-matminer", "mp-matminer"),
        ("a/water (2).extxyz", "water--2"),
        ("é.cif", "own"),
        ("x" * 99, "x" * 40),
    ],
)
def test_names_of_files(data: str, name: str) -> None:
    assert file_name_of(data) == name
    assert file_name_of(".") == file_name_of(Path.cwd())


def test_neighbours_have_a_name_of_their_own() -> None:
    kinds: list[dict[str, Any]] = [
        {"kind": "complete"},
        {"kind": "cutoff", "cutoff": 5.0},
        {"kind": "cutoff", "cutoff": 5.0000001},
        {"kind": "nearest", "nearest": 5},
        {"kind": "nearest", "nearest": 6},
    ]
    assert len({NeighbourConfig(**kind).name for kind in kinds}) == 5
