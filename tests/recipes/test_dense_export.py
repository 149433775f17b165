"""Networks for programs as files of dense operators, run where weft is not."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from small_code import write_code
from small_programs import config, small_programs

import weft
from weft.errors import DataError
from weft.graphs import GraphTable
from weft.parallel.world import single
from weft.recipes.programs.config import ProgramsConfig
from weft.recipes.programs.dense_export import answered
from weft.recipes.programs.dense_supergraphs import (
    pairs_of,
    shape_of,
    supergraphs,
    write_supergraphs,
)
from weft.recipes.programs.prediction import load_programs
from weft.recipes.programs.training import train_programs
from weft.sources.program_graph import MAY_STAND_IN
from weft.sources.python_programs import program_table
from weft.training.ranks import shared_run

SCRIPT = Path(__file__).with_name("run_without_weft.py")
BLOCK = 64


def trained(folder: Path, table: GraphTable, asked: ProgramsConfig) -> Path:
    with shared_run(folder, asked, single(), resume=False, recipe="programs") as run:
        found = train_programs(table, asked, run=run, quiet=True)
        run.summarise(**found.scores)
    return folder


@pytest.fixture(scope="module")
def code(tmp_path_factory) -> Path:
    return write_code(tmp_path_factory.mktemp("code") / "code", files=8)


@pytest.fixture(scope="module")
def detector(tmp_path_factory, code) -> Path:
    table = program_table([code], misuses=1, workers=1, progress=False)
    asked = config(start="subtokens", nodes=400, steps=2)
    return trained(tmp_path_factory.mktemp("run") / "detector", table, asked)


@pytest.fixture(scope="module")
def slots(tmp_path_factory) -> Path:
    asked = config(target="slot", nodes=200, steps=1)
    return trained(tmp_path_factory.mktemp("run") / "slots", small_programs(48), asked)


def outputs_without_weft(model: Path, inputs: list[Path], folder: Path) -> dict[str, Any]:
    """Outputs of a file for saved supergraphs, in a fresh process in an empty folder."""
    out = folder / "outputs.npz"
    command = [sys.executable, "-I", str(SCRIPT), str(model), *map(str, inputs), str(out)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(np.load(out))


def test_a_detector_runs_in_onnxruntime_and_openvino_without_weft(detector, code, tmp_path):
    made = weft.export(detector, tmp_path / "model.onnx", layout="banded", block=BLOCK)
    assert max(made.differences.values()) < 1e-4
    assert "none gathers, scatters, indexes or sorts" in made.notes[0]
    proto = onnx.load(tmp_path / "model.onnx")
    operators = Counter(node.op_type for node in proto.graph.node)
    irregular = ("Gather", "Scatter", "NonZero", "TopK", "Sequence", "Loop", "If", "Sort", "Unique")
    assert not [name for name in operators if any(word in name for word in irregular)]
    for value in (*proto.graph.input, *proto.graph.output):
        assert all(dim.dim_value > 0 for dim in value.type.tensor_type.shape.dim), value.name
    # Of other code than the file was made with.
    written, left_out = write_supergraphs(detector, code, tmp_path / "new", block=BLOCK)
    assert len(written) > 1
    assert not left_out
    inputs = [tmp_path / "model-example.npz", *written]
    found = outputs_without_weft(tmp_path / "model.onnx", inputs, tmp_path)
    run = load_programs(detector)
    shape = shape_of(run, BLOCK)
    expected = [answered(run, each.batch) for each in supergraphs(run, shape, code, Counter())]
    for number, each in enumerate(expected, 1):
        for name, value in each.items():
            assert value.numel()
            for own in (f"{name}_{number}", f"openvino_{name}_{number}"):
                np.testing.assert_allclose(found[own][: len(value)], value.numpy(), atol=1e-4)
    np.testing.assert_allclose(found["openvino_wrong_0"], found["wrong_0"], atol=1e-4)
    # The metadata tells what to give.
    metadata = {each.key: each.value for each in proto.metadata_props}
    saved = np.load(tmp_path / "model-example.npz")
    for line in metadata["shapes"].split("\n"):
        name, dtype, shape = line.split(" ", 2)
        assert (str(saved[name].dtype), str(list(saved[name].shape))) == (dtype, shape)
    assert metadata["inputs"].split() == [each.name for each in proto.graph.input]
    assert metadata["edge_types"].split("\n")[MAY_STAND_IN] == "MayStandIn"


def test_slots_run_in_onnxruntime_and_openvino_without_weft(slots, code, tmp_path):
    weft.export(slots, tmp_path / "model.onnx", layout="banded", block=BLOCK)
    written, _ = write_supergraphs(slots, code, tmp_path / "new", block=BLOCK)
    found = outputs_without_weft(tmp_path / "model.onnx", written[:2], tmp_path)
    run = load_programs(slots)
    made_again = supergraphs(run, shape_of(run, BLOCK), code, Counter())
    for number, each in zip(range(2), made_again, strict=False):
        expected = answered(run, each.batch)["probability"].numpy()
        for name in (f"probability_{number}", f"openvino_probability_{number}"):
            np.testing.assert_allclose(found[name], expected, atol=1e-4)


def test_slots_in_a_compiled_file(slots, code, tmp_path):
    made = weft.export(slots, tmp_path / "model.pt2", layout="banded", block=BLOCK)
    assert made.runtime == "AOTInductor"
    written, _ = write_supergraphs(slots, code, tmp_path / "new", block=BLOCK)
    found = outputs_without_weft(tmp_path / "model.pt2", written[:2], tmp_path)
    run = load_programs(slots)
    made_again = supergraphs(run, shape_of(run, BLOCK), code, Counter())
    for number, each in zip(range(2), made_again, strict=False):
        expected = answered(run, each.batch)["probability"]
        np.testing.assert_allclose(found[f"probability_{number}"], expected.numpy(), atol=1e-4)
        assert expected.sum() == pytest.approx(each.batch.num_real_graphs, rel=1e-4)


def test_a_supergraph_says_what_its_nodes_are(detector, code):
    run = load_programs(detector)
    first, *others = supergraphs(run, shape_of(run, BLOCK), code, Counter())
    inputs, chosen = first.inputs, first.inputs["use"] >= 0
    assert len(first.name) == len(first.place) == shape_of(run, BLOCK).nodes
    places = set(first.place[inputs["use"][chosen].numpy()])
    assert "part0.py:3:13" in places
    at = first.place[inputs["use"].numpy()] == "part0.py:3:13"
    names = set(first.name[inputs["variable"][torch.from_numpy(at)].numpy()])
    assert {"first", "second"} <= names
    assert set(first.name[inputs["use"][torch.from_numpy(at)].numpy()]) == {"first"}
    assert int((inputs["graph"] >= 0).sum()) == int(first.batch.node_mask.sum())
    graphs = sum(each.batch.num_real_graphs for each in (first, *others))
    assert graphs == len(program_table([code], misuses=0, blanks=0, workers=1, progress=False))


def test_what_does_not_fit_is_counted(detector, code, tmp_path):
    run, left_out = load_programs(detector), Counter[str]()
    for each in supergraphs(run, shape_of(run, 6), code, left_out):
        raise AssertionError(each)
    assert sum(left_out.values()) == 32
    assert list(left_out) == ["an edge between nodes more than 6 apart"]
    with pytest.raises(DataError, match=r"no function fits .* in blocks of 6: .*; take a larger"):
        write_supergraphs(detector, code, tmp_path / "new", block=6)
    function = next(iter(supergraphs(run, shape_of(run, BLOCK), code, left_out))).batch.unbatch()[0]
    assert pairs_of(function) > 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("model.onnx", {}, "whose sparse products no other runtime has; .* --layout banded"),
        ("model.onnx", {"layout": "banded", "int8": True}, "8-bit weights are not for runs of"),
        ("model.onnx", {"layout": "banded", "block": 0}, "block is 0; it must be at least 1"),
        ("model.onnx", {"block": 8}, "block is 8, and there is no layout"),
        ("model.onnx", {"layout": "banded", "block": 10**5}, "take a smaller --block"),
        ("model.onn", {"layout": "banded"}, "exported as .pt2 or .onnx"),
        (
            "model.mlir",
            {"layout": "banded"},
            r"torch 2\S+ writes no StableHLO by itself",
        ),
    ],
)
def test_what_cannot_be(slots, tmp_path, name, options, message):
    with pytest.raises((DataError, ValueError), match=message):
        weft.export(slots, tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


def test_the_layout_is_for_programs(tmp_path):
    linear = torch.nn.Linear(2, 3)
    with pytest.raises(ValueError, match=r"layout and block are for runs of `weft train programs`"):
        weft.export(linear, tmp_path / "a.onnx", example=torch.randn(4, 2), layout="banded")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"recipe": "nodes", "config": {}}')
    with pytest.raises(ValueError, match="is one of `weft train nodes`; leave it out"):
        weft.export(tmp_path / "run", tmp_path / "a.onnx", layout="banded")
