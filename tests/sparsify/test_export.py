"""Sparse models on disk and in other programs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from weft.errors import DataError
from weft.sparsify.export import export_program, load_csr, save_csr, save_onnx
from weft.sparsify.layers import FusedReLU, SparseLinear, to_dense


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        SparseLinear(30, 40, 100, relu=True), FusedReLU(), nn.BatchNorm1d(40), nn.Linear(40, 3)
    ).eval()


def test_csr_round_trip(tmp_path: Path) -> None:
    model = small_model()
    path = tmp_path / "model.safetensors"
    save_csr(model, path)
    stored = load_file(path)
    assert stored["0.weight.values"].shape == (100,)
    assert stored["0.weight.offsets"].shape == (41,)
    # A full matrix is smaller as it is.
    assert stored["3.weight"].shape == (3, 40)
    dense = to_dense(small_model())
    with torch.no_grad():
        for parameter in dense.parameters():
            parameter.zero_()
    dense.load_state_dict(load_csr(path))
    x = torch.randn(5, 30)
    torch.testing.assert_close(dense(x), model(x))
    assert path.stat().st_size < 40 * 30 * 4


def test_shared_weights_are_stored_for_each_name(tmp_path: Path) -> None:
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    save_csr(model, tmp_path / "m.safetensors")
    state = load_csr(tmp_path / "m.safetensors")
    assert torch.equal(state["0.weight"], state["2.weight"])


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with pytest.raises(DataError, match=r"m\.safetensors cannot be read"):
        load_csr(path)
    path.write_bytes(b"not a model")
    with pytest.raises(DataError, match=r"m\.safetensors cannot be read"):
        load_csr(path)
    parts = {
        "w.values": torch.ones(2),
        "w.columns": torch.tensor([0, 9], dtype=torch.int32),
        "w.offsets": torch.tensor([0, 1, 2], dtype=torch.int32),
    }
    save_file(parts, path, {"weft_csr_shapes": '{"w": [2, 3]}'})
    with pytest.raises(DataError, match="matrix w is damaged"):
        load_csr(path)
    flat = {name: part[:, None] for name, part in parts.items() if name != "w.offsets"}
    save_file({**parts, **flat}, path, {"weft_csr_shapes": '{"w": [2, 30]}'})
    with pytest.raises(DataError, match="matrix w is damaged"):
        load_csr(path)
    for shapes in ('["w"]', "7", "null"):
        save_file(parts, path, {"weft_csr_shapes": shapes})
        with pytest.raises(DataError, match=r"m\.safetensors cannot be read"):
            load_csr(path)
    del parts["w.offsets"]
    save_file(parts, path, {"weft_csr_shapes": '{"w": [2, 3]}'})
    with pytest.raises(DataError, match="matrix w is damaged"):
        load_csr(path)


def test_exported_program_takes_other_batches() -> None:
    model = nn.Sequential(SparseLinear(30, 40, 60, relu=True), FusedReLU(), nn.Linear(40, 3))
    x = torch.randn(8, 30)
    program = export_program(model, x)
    torch.testing.assert_close(program.module()(x[:5]), model(x[:5]))
    sizes = [value.shape for value in program.state_dict.values()]
    # Units without an input are gone.
    assert max(size[0] for size in sizes) < 40


@pytest.mark.filterwarnings("ignore")
def test_onnx_gives_the_same(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    model = nn.Sequential(SparseLinear(30, 40, 60, relu=True), FusedReLU(), nn.Linear(40, 3))
    x = torch.randn(8, 30)
    save_onnx(model, x, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    (out,) = session.run(None, {session.get_inputs()[0].name: x[:5].numpy()})
    torch.testing.assert_close(torch.from_numpy(out), model(x[:5]).detach(), rtol=1e-4, atol=1e-5)


def test_onnx_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.sparsify.export.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"weft\[export\]"):
        save_onnx(small_model(), torch.randn(2, 30), tmp_path / "m.onnx")
