"""Potentials as programs: in torch without weft, in C++, in onnxruntime, and in float64."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from ase.io import write
from ase.neighborlist import neighbor_list
from small_structures import config, molecules

from weft.models import exported_program
from weft.models.exported_program import trace
from weft.models.target_scale import Standardised, TargetScale
from weft.recipes.structures import export as structures_export
from weft.recipes.structures.config import NeighbourConfig
from weft.recipes.structures.data import read_structures
from weft.recipes.structures.export import INPUTS, Potential, export_structures
from weft.recipes.structures.prediction import TrainedStructures, load_structures, predict_file
from weft.recipes.structures.training import make_network, train_structures
from weft.training import Run

WATER = Atoms("OH2", [[0.0, 0.0, 0.0], [0.0, 0.8, 0.6], [0.0, -0.8, 0.6]])
DOCS = Path(__file__).resolve().parents[2] / "docs"
# After the program of the docs: one atom, an unknown element, indices out of range, a wrong dtype.
WRONG_INPUTS = """
about = model.get_metadata()
print(about["cutoff"], about["elements"], about["unit"], about["outputs"], sep=",")
def inputs(atoms, edges=0, **given):
    return {
        "z": torch.ones(atoms, dtype=torch.int64),
        "pos": torch.zeros(atoms, 3, dtype=torch.float64),
        "edge_index": torch.zeros(2, edges, dtype=torch.int64),
        "shift": torch.ones(edges, 3, dtype=torch.float64),
        "batch": torch.zeros(atoms, dtype=torch.int64),
        "cell": torch.zeros(1, 3, 3, dtype=torch.float64),
    } | given
print(model(**inputs(1))["energy"].isfinite().item())
print(model(**inputs(2, z=torch.tensor([1, 92])))["energy"].item())
print(model(**inputs(2, 1, edge_index=torch.tensor([[2], [0]])))["forces"].isnan().all().item())
print(model(**inputs(2, batch=torch.tensor([0, 1])))["energy"].item())
for wrong in ({"pos": torch.zeros(1, 3)}, {"cell": torch.zeros(1, 3, 4, dtype=torch.float64)}):
    try:
        model(**inputs(1, **wrong))
    except RuntimeError as error:
        print(str(error).splitlines()[0])
"""
REFERENCES = {1: -13.6, 6: -1030.0, 8: -2040.0}


def run_of(folder: Path, **options: Any) -> Path:
    """A run on some molecules with forces, of a network of 8 features."""
    write(folder / "made.extxyz", molecules(20))
    asked = config(
        data=str(folder / "made.extxyz"),
        forces="forces",
        **{"epochs": 1, "hidden": 8, "layers": 1, **options},
    )
    table = read_structures(asked, data_dir=folder / "data", progress=False)
    with Run.create(folder / "run", asked, tensorboard=False) as run:
        train_structures(table, asked, run=run, quiet=True)
    return folder / "run"


def inputs_of(atoms: Any, cutoff: float) -> dict[str, torch.Tensor]:
    """What a program takes, with the neighbours that ASE finds."""
    receivers, senders, images = neighbor_list("ijS", atoms, cutoff)
    return {
        "z": torch.tensor(atoms.numbers, dtype=torch.int64),
        "pos": torch.tensor(atoms.positions),
        "edge_index": torch.tensor(np.stack([senders, receivers])),
        "shift": torch.tensor(images @ atoms.cell.array),
        "batch": torch.zeros(len(atoms), dtype=torch.int64),
        "cell": torch.tensor(atoms.cell.array)[None],
    }


class TestCompiled:
    """One SchNet as .pt2: compiling takes half a minute."""

    @pytest.fixture(scope="class")
    @staticmethod
    def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
        """With a run, model.pt2, and molecule.xyz of three atoms."""
        folder = tmp_path_factory.mktemp("compiled")
        made = export_structures(run_of(folder), folder / "model.pt2")
        assert made.runtime == "AOTInductor"
        assert made.differences.keys() == {"energy", "forces"}
        assert max(made.differences.values()) < 1e-5
        write(folder / "molecule.xyz", WATER)
        return folder

    @pytest.fixture(scope="class")
    @staticmethod
    def expected(folder: Path) -> tuple[float, Any]:
        """Energy and forces of the molecule by the run."""
        trained = load_structures(folder / "run")
        found = predict_file(trained, folder / "molecule.xyz", forces=True, progress=False)
        assert found.forces is not None
        return float(found.values[0]), found.forces[0]

    def test_a_process_without_weft(self, folder: Path, expected: tuple[float, Any]) -> None:
        text = (DOCS / "export.md").read_text(encoding="utf-8")
        snippet = re.search(r"^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        assert snippet is not None
        program = f"import sys; sys.modules['weft'] = None\n{snippet[1]}{WRONG_INPUTS}"
        where = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            capture_output=True,
            text=True,
            cwd=folder,
            env=where,
        )
        assert done.returncode == 0, done.stderr
        result, *others = done.stdout.splitlines()
        energy, _, forces = result.partition(" ")
        assert float(energy) == pytest.approx(expected[0], abs=1e-5)
        np.testing.assert_allclose(json.loads(forces), expected[1], atol=1e-5)
        assert others == [
            "5.0,1 6 8,eV,energy forces",
            "True",
            "nan",
            "True",
            "nan",
            "input_handles[1]: unmatched dtype, expected: 7(at::kDouble), but got: 6",
            "input_handles[5]: unmatched dim value at 2, expected: 3, but got: 4",
        ]

    @pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
    def test_the_cpp_example(self, folder: Path, expected: tuple[float, Any]) -> None:
        torch_folder = Path(torch.__path__[0])
        lib = torch_folder / "lib"
        text = (DOCS / "export.md").read_text(encoding="utf-8")
        assert "-Wl,--no-as-needed -ltorch -ltorch_cpu -lc10" in text
        subprocess.run(
            [
                *("g++", "-std=c++20", DOCS / "examples" / "potential.cpp", "-o", "potential"),
                *(f"-I{torch_folder / 'include'}", f"-L{lib}", f"-Wl,-rpath,{lib}"),
                *("-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10"),
            ],
            check=True,
            cwd=folder,
        )
        done = subprocess.run(
            ["./potential", "model.pt2"],
            input="8 0 0 0\n1 0 0.8 0.6\n1 0 -0.8 0.6\n",
            capture_output=True,
            text=True,
            cwd=folder,
            check=True,
        )
        energy, *forces = [[float(x) for x in line.split()] for line in done.stdout.splitlines()]
        assert energy[0] == pytest.approx(expected[0], abs=1e-5)
        np.testing.assert_allclose(forces, expected[1], atol=1e-5)


def test_painn_with_stress_in_onnxruntime(weft: Callable[..., Any], tmp_path: Path) -> None:
    run = run_of(tmp_path, model="painn", layers=2)
    said = weft("export", run, "model.onnx", "--stress")
    assert said.code == 0, said.err
    assert re.match(
        r"Written to model.onnx, 0.1\d MB. Largest differences from the run in onnxruntime: "
        r"energy \S+, forces \S+, stress \S+\.\n"
        r"8 structures, 320 atoms, 10,372 edges: \S+ ms in weft, \S+ ms in onnxruntime.\n",
        said.out,
    )
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    about = session.get_modelmeta().custom_metadata_map
    assert (about["model"], about["cutoff"], about["elements"]) == ("painn", "5.0", "1 6 8")
    assert [each.name for each in session.get_inputs()] == list(INPUTS)
    # onnxruntime's ScatterND loses sums where several threads add to the same row.
    graph = onnx.load(tmp_path / "model.onnx").graph
    adding = [
        node.op_type
        for node in graph.node
        if any(each.name == "reduction" and each.s == b"add" for each in node.attribute)
    ]
    assert set(adding) == {"ScatterElements"}

    # The cell is smaller than the cutoff: atoms are their own neighbours.
    diamond = bulk("C", "diamond", a=3.5)
    diamond.positions[1] += 0.1
    for atoms in (diamond, Atoms("O"), Atoms("CO", [[0.0, 0.0, 0.0], [0.0, 0.0, 9.0]])):
        given = {name: value.numpy() for name, value in inputs_of(atoms, 5.0).items()}
        energy, forces, stress = session.run(None, given)
        write(tmp_path / "one.extxyz", atoms)
        file = tmp_path / "one.extxyz"
        found = predict_file(load_structures(run), file, forces=True, progress=False)
        assert energy[0] == pytest.approx(found.values[0], abs=1e-5)
        assert found.forces is not None
        np.testing.assert_allclose(forces, found.forces[0], atol=1e-5)
        assert stress.shape == (1, 3, 3)
    with pytest.raises(Exception, match="float"):
        session.run(None, {**given, "pos": given["pos"].astype(np.float32)})


@pytest.mark.parametrize(
    ("forces", "options"),
    [
        (True, {"model": "mpeu"}),
        (False, {"readout": "mean", "neighbours": NeighbourConfig(kind="nearest", nearest=3)}),
    ],
    ids=["mpeu", "schnet-mean"],
)
def test_programs_are_exact_in_float64(forces: bool, options: dict[str, Any]) -> None:
    asked = config(**{"hidden": 8, **options}).settled()
    torch.manual_seed(0)
    references = np.zeros(119)
    references[list(REFERENCES)] = list(REFERENCES.values())
    scale = TargetScale(0.0 if forces else 2.0, 0.7, references)
    network = make_network(asked, tuple(REFERENCES)).double()
    trained = TrainedStructures(
        model=Standardised(network, scale), config=asked, elements=tuple(REFERENCES), unit="eV"
    )
    program = trace(Potential(trained, forces=forces, stress=False), INPUTS).module()
    for sizes in ([1], [2, 9, 1], [12]):
        batch = structures_export._batch(trained, sizes, periodic=False)
        batch = batch.replace(nodes={**batch.nodes, "pos": batch.nodes["pos"].double()})
        found = structures_export._by_name(
            structures_export.properties_of(trained.model, batch, forces=forces)
        )
        made = program(**structures_export._inputs(batch))
        assert made.keys() == found.keys()
        for name, values in found.items():
            torch.testing.assert_close(made[name], values, rtol=1e-12, atol=1e-10)


def test_a_program_that_differs_is_refused() -> None:
    case = exported_program.Case(
        inputs={"x": torch.zeros(2)}, expected={"y": torch.ones(2)}, scales={"y": 10.0}
    )
    for found in (torch.ones(2) + 1e-3, torch.ones(3), torch.tensor([1.0, torch.nan])):
        with pytest.raises(ValueError, match=r"in R y differs .* for x \[2\]; nothing was written"):
            exported_program._compare(lambda _, found=found: {"y": found}, [case], "R")
    near = exported_program._compare(lambda _: {"y": torch.ones(2) + 5e-5}, [case], "R")
    assert near["y"] == pytest.approx(5e-5, rel=1e-2)
