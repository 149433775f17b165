"""Sparse models in few bytes on disk."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.sparse import csr_array
from torch import nn

from weft.errors import DataError
from weft.sparsify import Masks, magnitude_masks
from weft.sparsify.csr_files import load_csr, save_csr
from weft.sparsify.sparse_layers import SparseLinear, to_dense


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        SparseLinear(30, 40, 100), nn.ReLU(), nn.BatchNorm1d(40), nn.Linear(40, 3)
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


class Tied(nn.Module):
    """An encoder and a decoder of one weight, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(40, 30), nn.Linear(40, 30)
        self.decoder.weight = self.encoder.weight
        self.first = nn.Linear(40, 40)
        self.again = self.first
        # Equal numbers, but weights of their own.
        self.other = nn.Linear(40, 40)
        self.other.load_state_dict(self.first.state_dict())
        with torch.no_grad():
            self.encoder.weight[torch.rand(30, 40) < 0.9] = 0


def test_shared_weights_are_stored_once_and_loaded_shared(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, path = Tied(), tmp_path / "m.safetensors"
    save_csr(model, path)
    stored = load_file(path)
    assert {name for name in stored if "coder.weight" in name} == {
        f"encoder.weight.{part}" for part in ("values", "columns", "offsets")
    }
    assert {"first.weight", "other.weight"} < set(stored)
    assert not any(name.startswith("again") for name in stored)
    state = load_csr(path)
    assert set(state) == set(model.state_dict())
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert state["decoder.weight"] is state["encoder.weight"]
    assert state["again.bias"] is state["first.bias"]
    assert state["other.weight"] is not state["first.weight"]
    fresh = Tied()
    fresh.load_state_dict(state)
    assert fresh.decoder.weight is fresh.encoder.weight


@pytest.mark.parametrize("shape", [(1, 30, 40), (3, 30, 40), (8, 6, 3, 3), (2, 1, 500)])
def test_weights_of_more_dimensions_are_sparse_too(tmp_path: Path, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model, path = nn.Module(), tmp_path / "m.safetensors"
    model.weight = nn.Parameter(torch.randn(shape))
    with torch.no_grad():
        model.weight[torch.rand(shape) < 0.9] = 0
    save_csr(model, path)
    stored = load_file(path)
    active = int(torch.count_nonzero(model.weight))
    rows = shape[0]
    assert {name: tuple(value.shape) for name, value in stored.items()} == {
        "weight.values": (active,),
        "weight.columns": (active,),
        "weight.offsets": (rows + 1,),
    }
    # As another program would read it.
    parts = [stored[f"weight.{part}"].numpy() for part in ("values", "columns", "offsets")]
    matrix = csr_array(tuple(parts), shape=(rows, model.weight[0].numel()))
    assert torch.equal(torch.from_numpy(matrix.toarray()).view(shape), model.weight.detach())
    assert torch.equal(load_csr(path)["weight"], model.weight.detach())


def test_a_stranger_model_of_many_relations(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    with warnings.catch_warnings():
        # Its import uses what torch has deprecated.
        warnings.simplefilter("ignore")
        from torch_geometric.nn import RGCNConv

    torch.manual_seed(0)
    model, path = RGCNConv(16, 32, 5), tmp_path / "m.safetensors"
    masks = Masks(model)
    magnitude_masks(model, masks, 0.1)
    masks.apply_()
    save_csr(model, path)
    assert path.stat().st_size < 0.35 * 4 * masks.size()
    other = RGCNConv(16, 32, 5)
    other.load_state_dict(load_csr(path))
    assert all(map(torch.equal, other.state_dict().values(), model.state_dict().values()))


def test_files_of_matrices_alone_still_load(tmp_path: Path) -> None:
    """As they were written when each name of a shared weight was stored."""
    parts = {
        "values": torch.tensor([1.0, 2.0]),
        "columns": torch.tensor([2, 0], dtype=torch.int32),
        "offsets": torch.tensor([0, 1, 2], dtype=torch.int32),
    }
    tensors = {f"{name}.{part}": t.clone() for name in "ab" for part, t in parts.items()}
    save_file(tensors, tmp_path / "m", {"weft_csr_shapes": '{"a": [2, 3], "b": [2, 3]}'})
    state = load_csr(tmp_path / "m")
    expected = torch.tensor([[0.0, 0.0, 1.0], [2.0, 0.0, 0.0]])
    assert torch.equal(state["a"], expected)
    assert torch.equal(state["b"], expected)


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
    for shape in ("[2]", "[2, -3]", "[2, 3, 0.5]", '"23"', "[2, 30, 99999999999999]", "null"):
        save_file(parts, path, {"weft_csr_shapes": f'{{"w": {shape}}}'})
        with pytest.raises(DataError, match="matrix w is damaged"):
            load_csr(path)
    good = {"weft_csr_shapes": '{"w": [2, 10]}'}
    for tied in ('["w"]', "7", '{"v": "x"}', '{"v": 7}', '{"v": ["w"]}'):
        save_file(parts, path, {**good, "weft_shared": tied})
        with pytest.raises(DataError, match=r"m\.safetensors cannot be read|v is stored as"):
            load_csr(path)
    for shapes in ('["w"]', "7", "null"):
        save_file(parts, path, {"weft_csr_shapes": shapes})
        with pytest.raises(DataError, match=r"m\.safetensors cannot be read"):
            load_csr(path)
    del parts["w.offsets"]
    save_file(parts, path, {"weft_csr_shapes": '{"w": [2, 3]}'})
    with pytest.raises(DataError, match="matrix w is damaged"):
        load_csr(path)
