"""`weft train molecules` on files for each part, and ensembles."""

from __future__ import annotations

import json

import numpy as np
import pytest
from ase.io import read, write
from command_fixtures import molecules

from weft import calculator as weft_calculator
from weft.recipes.structures.prediction import load_structures, predict_file

SMALL = ("--hidden", "8", "--layers", "1", "--batching.batch-size", "8", "--quiet")


def test_files_for_each_part_and_an_ensemble(weft, mistake, tmp_path):
    made = molecules(24)
    for atoms in made:
        atoms.info["REF_energy"] = atoms.calc.results.pop("energy")
        atoms.arrays["REF_forces"] = atoms.calc.results.pop("forces")
    write(tmp_path / "a.extxyz", made[:10])
    write(tmp_path / "b.extxyz", made[10:16])
    write(tmp_path / "v.extxyz", made[15:20])
    write(tmp_path / "t.extxyz", made[20:])
    words = (
        *("train", "molecules", "--data", "a.extxyz", "b.extxyz", "--validation-file", "v.extxyz"),
        *("--test-file", "t.extxyz", "--epochs", "1", "--seeds", "2", *SMALL[:-1]),
    )
    said = weft(*words)
    assert said.code == 0, said.err
    assert "Learning from a.extxyz: energy: REF_energy; forces: REF_forces." in said.out
    assert "16 for train, 5 for validation, 4 for test." in said.out
    assert "1 structures for validation are also among those for train" in said.err
    assert "Mean of 2 networks; their test MAE goes from " in said.out
    run = tmp_path / "runs/molecules-a-REF_energy"
    configs = [json.loads((run / f"member-{n}/config.json").read_text()) for n in range(2)]
    assert [each["config"]["seed"] for each in configs] == [0, 1]
    assert configs[0]["config"]["validation_file"] == ["v.extxyz"]
    assert "epochs in" in weft(*words, "--resume").out
    assert "holds a run already" in weft(*words).err
    assert "holds no run" in weft(*words, "--seeds", "1", "--out", run).err
    said = weft("predict", run, "t.extxyz", "--forces", "--out", "p.extxyz")
    assert said.code == 0, said.err
    assert "spread of REF_energy [eV]" in said.out
    back = read(tmp_path / "p.extxyz", ":")
    members = [load_structures(run / f"member-{n}") for n in range(2)]
    both = [predict_file(each, tmp_path / "t.extxyz", progress=False).values for each in members]
    found = [atoms.info["predicted_REF_energy"] for atoms in back]
    np.testing.assert_allclose(found, np.mean(both, axis=0))
    spread = [atoms.info["predicted_REF_energy_spread"] for atoms in back]
    np.testing.assert_allclose(spread, np.std(both, axis=0), rtol=1e-5)
    calculator = weft_calculator(run)
    back[0].calc = calculator
    assert back[0].get_potential_energy() == pytest.approx(found[0], rel=1e-6)
    assert back[0].arrays["predicted_forces_spread"].shape == (len(back[0]), 3)
