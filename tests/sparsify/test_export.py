"""Any model in other runtimes: ONNX and AOTInductor, with what cannot be."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch_geometric_models import geometric_models

import weft
from weft.errors import DataError
from weft.models import exported_program
from weft.sparsify import Masks, export_model
from weft.sparsify.export import load_program
from weft.sparsify.sparse_layers import SparseLinear


def feed_forward() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 5))
    with torch.no_grad():
        model[0].weight[16:] = 0
    return model


def session_of(path: Path) -> Any:
    return onnxruntime.InferenceSession(path)


def test_sparse_layers_leave_as_a_small_dense_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(SparseLinear(30, 40, 60), nn.ReLU(), nn.Linear(40, 3))
    x = torch.randn(8, 30)
    made = weft.export(model, tmp_path / "m.onnx", example=x)
    assert made.runtime == "onnxruntime"
    assert made.differences["output"] < 1e-5
    assert [each.form for each in made.others] == ["onnxruntime with all hidden units"]
    assert made.path.stat().st_size < made.others[0].size
    assert made.notes[0].startswith("Hidden units: 0 40 to ")
    x = torch.randn(3, 30)
    (found,) = session_of(made.path).run(None, {"input": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(x).detach(), rtol=1e-4, atol=1e-5)
    # What another runtime says of other shapes.
    with pytest.raises(Exception, match=r"mismatch|Got: 4"):
        session_of(made.path).run(None, {"input": np.zeros((3, 4), dtype=np.float32)})


@pytest.mark.parametrize("name", ["GCN", "GAT"])
def test_graph_networks_of_any_size_without_weft(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = getattr(geometric_models(), name)(6, 8, num_layers=2, out_channels=3).eval()
    x, edges = torch.randn(20, 6), torch.randint(0, 20, (2, 50))
    masks = Masks(model)
    for each in masks.names:
        masks.set(each, torch.rand_like(masks.weight(each)) < 0.7)
    made = export_model(model, tmp_path / "m.onnx", example=(x, edges), masks=masks)
    assert made.notes[-1] == ("Compared at 4 sizes; inputs are x [s77, 6], edge_index [2, s43].")
    assert ("attention heads" in made.notes[1]) == (name == "GAT")
    masks.apply_()
    x, edges = torch.randn(9, 6), torch.randint(0, 9, (2, 17))
    given = {"x": x.numpy(), "edge_index": edges.numpy()}
    np.savez(tmp_path / "given.npz", **given)
    program = (
        "import numpy, onnxruntime, sys; sys.modules['weft'] = sys.modules['torch'] = None\n"
        "session = onnxruntime.InferenceSession('m.onnx')\n"
        "numpy.save('found.npy', session.run(['output'], dict(numpy.load('given.npz')))[0])"
    )
    where = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, env=where)
    found = torch.from_numpy(np.load(tmp_path / "found.npy"))
    torch.testing.assert_close(found, model(x, edges).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_compiled_in_a_process_without_weft(tmp_path: Path) -> None:
    model = feed_forward()
    torch.export.save(
        torch.export.export(
            model, (torch.randn(8, 32),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
        ),
        tmp_path / "program.pt2",
    )
    # A program of torch.export, from a file, is a model like any other.
    made = weft.export(tmp_path / "program.pt2", tmp_path / "m.pt2")
    assert made.runtime == "AOTInductor"
    assert made.notes[0] == "Hidden units: 0 64 to 16."
    x = torch.randn(3, 32)
    torch.save(x, tmp_path / "x.pt")
    program = (
        "import sys; sys.modules['weft'] = None\n"
        "import torch\n"
        "model = torch._inductor.aoti_load_package('m.pt2')\n"
        "torch.save(model(input=torch.load('x.pt'))['output'], 'found.pt')\n"
        "try:\n    model(input=torch.zeros(3, 4))\n"
        "except RuntimeError as error:\n    print(str(error).splitlines()[0])"
    )
    where = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        check=True,
        cwd=tmp_path,
        env=where | {"AOTI_RUNTIME_CHECK_INPUTS": "1"},
        capture_output=True,
        text=True,
    )
    torch.testing.assert_close(torch.load(tmp_path / "found.pt"), model(x).detach())
    assert "unmatched dim value at 1, expected: 32, but got: 4" in done.stdout


def test_int8_weights_and_their_error(tmp_path: Path) -> None:
    model = feed_forward()
    made = export_model(model, tmp_path / "m.onnx", example=torch.randn(8, 32), int8=True)
    assert made.runtime == "onnxruntime with 8-bit weights"
    assert 1e-5 < made.differences["output"] < 0.1 * made.largest["output"]
    assert [each.form for each in made.others] == [
        "onnxruntime with all hidden units",
        "onnxruntime with float weights",
    ]
    before = made.path.read_bytes()
    with pytest.raises(DataError, match=r"8-bit weights are for \.onnx files, which m\.pt2 is not"):
        export_model(model, tmp_path / "m.pt2", example=torch.randn(8, 32), int8=True)
    with pytest.raises(DataError, match="there are no 8-bit weights to make"):
        export_model(nn.ReLU(), tmp_path / "m.onnx", example=torch.randn(8, 32), int8=True)
    assert made.path.read_bytes() == before


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Whole(nn.Module):
    def forward(self, x: torch.Tensor, others: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sum": x + others["a"], "large": (x > 1).long()}


def test_inputs_and_outputs_have_names(tmp_path: Path) -> None:
    made = export_model(
        Whole(),
        tmp_path / "m.onnx",
        example={"x": torch.ones(3, 4), "others": {"a": torch.ones(4)}},
    )
    assert made.notes[0] == "No hidden units to remove."
    session = session_of(made.path)
    assert [each.name for each in session.get_inputs()] == ["x", "others_a"]
    assert [each.name for each in session.get_outputs()] == ["sum", "large"]


def test_what_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    path.write_text("before")
    x = torch.randn(4, 32)
    for model, example, message in (
        (feed_forward(), None, "an export of Sequential needs an example"),
        (feed_forward(), (x, x), "the example does not fit Sequential: too many"),
        (feed_forward(), torch.randn(4, 3), "Sequential cannot be exported"),
        (Branching(), x, "must not depend on the values of its inputs"),
    ):
        with pytest.raises(DataError, match=message):
            export_model(model, path, example=example)
    monkeypatch.setattr("weft.sparsify.export._SCALE", -1.0)
    with pytest.raises(DataError, match=r"in onnxruntime output differs .*nothing was written"):
        export_model(feed_forward(), path, example=x)
    # A runtime that is older than the file.
    monkeypatch.setattr(onnxruntime, "InferenceSession", _refusing)
    with pytest.raises(DataError, match=r"does not take the file, of operator set 18: opset"):
        export_model(feed_forward(), path, example=x)
    monkeypatch.setattr(exported_program, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"weft\[export\]"):
        export_model(feed_forward(), path, example=x)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def _refusing(*args: Any) -> None:
    raise RuntimeError("opset 18 is under development and support for this is limited")


def test_files_that_are_no_programs(tmp_path: Path) -> None:
    path = tmp_path / "p.pt2"
    path.write_bytes(b"no archive")
    with pytest.raises(DataError, match="cannot be read as a program"):
        load_program(path)

    class Shout:
        def __reduce__(self) -> Any:
            return print, ("unpickled",)

    size = [torch.export.Dim.DYNAMIC, None]
    torch.export.save(
        torch.export.export(feed_forward(), (torch.randn(8, 32),), dynamic_shapes=(size,)), path
    )
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    (model,) = (name for name in parts if "/models/" in name)
    (inputs,) = (name for name in parts if "sample_inputs" in name)
    root = model.split("/")[0]
    for name, content, message in (
        (model, re.sub(rb'("expr_str": *)"[^"]*"', rb'\1"exit()"', parts[model]), "for a size"),
        (inputs, pickle.dumps(Shout()), "cannot be read"),
        (f"{root}/data/constants/opaque_obj_0", pickle.dumps(Shout()), "holds pickled objects"),
    ):
        with zipfile.ZipFile(path, "w") as archive:
            for each, old in {**parts, name: content}.items():
                archive.writestr(each, old if each != name else content)
        with pytest.raises(DataError, match=message):
            load_program(path)
