"""`weft export RUN FILE`: a sentence for whatever cannot be written."""

from __future__ import annotations

import json

from command_fixtures import is_one_sentence
from torch._inductor import config


def test_what_cannot_be(weft, tmp_path, small_molecules, monkeypatch):
    words = ("--data", small_molecules, "--target", "energy", "--epochs", "1")
    shape = ("--hidden", "8", "--layers", "1", "--out", "run", "--quiet")
    assert weft("train", "molecules", *words, *shape).code == 0

    for wrong, message in (
        (("run", "model.onn"), "models are exported as .pt2 or .onnx, not as model.onn"),
        (("run", "none/model.pt2"), "there is no folder none"),
        (("none", "model.pt2"), "none holds no run of `weft train`"),
        (("run", "model.onnx", "--int8"), "8-bit weights are not for potentials"),
        (("run/config.json", "model.onnx"), "cannot be read as a program of torch.export"),
    ):
        said = weft("export", *wrong)
        assert is_one_sentence(said), said.err
        assert message in said.err

    with config.patch({"cpp.cxx": ("no-such-compiler",)}):
        said = weft("export", "run", "model.pt2")
    assert is_one_sentence(said), said.err
    assert "no C++ compiler works here" in said.err

    whole = json.loads((tmp_path / "run" / "config.json").read_text())
    whole["config"]["readout"] = "mean"
    (tmp_path / "run" / "config.json").write_text(json.dumps(whole))
    said = weft("export", "run", "model.onnx")
    assert is_one_sentence(said)
    assert "has no sound forces: readout is 'mean'" in said.err
    assert "--no-forces" in said.err
    assert not (tmp_path / "model.onnx").exists()

    monkeypatch.setattr("weft.models.exported_program.find_spec", lambda name: None)
    said = weft("export", "run", "model.onnx", "--no-forces")
    assert is_one_sentence(said)
    assert "pip install 'weft[export]'" in said.err


def test_recipes_that_cannot_be_exported_or_not_so(weft, tmp_path):
    for recipe, message in (
        ("full-graph", "run is a run of `weft train full-graph`, which cannot be exported"),
        ("programs", "export it in dense blocks, with --layout banded"),
    ):
        (tmp_path / "run").mkdir(exist_ok=True)
        recorded = json.dumps({"recipe": recipe, "config": {}})
        (tmp_path / "run" / "config.json").write_text(recorded)
        said = weft("export", "run", "model.pt2")
        assert is_one_sentence(said)
        assert message in said.err
