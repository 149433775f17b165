from __future__ import annotations

import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save as safetensors_bytes
from torch import nn

from weft.errors import DataError
from weft.training import FitConfig, Run, fit, load_weights
from weft.training.checkpoint import load_checkpoint, read_weights, save_checkpoint, save_weights


def model(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 1))


def finished_run(folder: Path) -> nn.Module:
    torch.manual_seed(0)
    ours = model()
    with Run.create(folder, {}, tensorboard=False) as run:
        fit(
            ours,
            torch.optim.Adam(ours.parameters()),
            [torch.randn(5, 2)],
            lambda model, x: model(x).square().mean(),
            config=FitConfig(epochs=2, quiet=True),
            run=run,
        )
    return ours


def test_what_is_stored_comes_back(tmp_path: Path) -> None:
    state = {
        "tensor": torch.arange(3),
        "nested": {"list": [1, 2.5, "x", None, True], "tuple": (1, (2,))},
        "numpy": {"scalar": np.float64(0.1), "count": np.int32(3)},
        0: {"betas": (0.9, 0.999)},
    }
    save_checkpoint(tmp_path / "a.pt", state)  # type: ignore[arg-type]
    back: dict[Any, Any] = load_checkpoint(tmp_path / "a.pt")
    assert torch.equal(back["tensor"], state["tensor"])
    assert back["nested"] == state["nested"]
    assert back["numpy"] == {"scalar": 0.1, "count": 3}
    assert type(back["numpy"]["scalar"]) is float
    assert back[0] == {"betas": (0.9, 0.999)}


def test_objects_are_refused_when_they_are_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot hold extras\.mask\.1, a builtins\.set"):
        save_checkpoint(tmp_path / "a.pt", {"extras": {"mask": [1, {2}]}})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_and_keeps_the_old_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"weights": torch.arange(3)})
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "import torch\n"
        "from weft.errors import DataError\n"
        "from weft.training.checkpoint import save_checkpoint\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))\n"
        "try:\n"
        "    save_checkpoint(Path(sys.argv[1]), {'weights': torch.zeros(100_000)})\n"
        "except DataError as error:\n"
        "    sys.exit(str(error))\n"
    )
    full = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert full.stderr.startswith(f"cannot write {path}: File too large; the file that was there")
    assert torch.equal(load_checkpoint(path)["weights"], torch.arange(3))
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.pt"]


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"weights": torch.arange(100)})
    whole = path.read_bytes()
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(
            DataError, match=r"last\.pt is cut, damaged or not a checkpoint.*remove it"
        ):
            load_checkpoint(path)


def test_a_flipped_bit_in_the_weights_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"weights": torch.full((1000,), 7.0)})
    whole = bytearray(path.read_bytes())
    whole[whole.index(torch.full((4,), 7.0).numpy().tobytes()) + 400] ^= 1
    path.write_bytes(whole)
    with pytest.raises(DataError, match=r"last\.pt is damaged"):
        load_checkpoint(path)


def test_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    torch.save({"weight": torch.ones(2)}, path)
    with pytest.raises(DataError, match=r"is not a weft checkpoint.*--init-from"):
        load_checkpoint(path)
    torch.save({"format": "weft checkpoint", "version": 99}, path)
    with pytest.raises(DataError, match="has version 99; this weft reads version 1"):
        load_checkpoint(path)
    with pytest.raises(DataError, match="does not exist"):
        load_checkpoint(tmp_path / "none.pt")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("evil",)


def test_a_checkpoint_cannot_run_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"format": "weft checkpoint", "version": 1, "x": Evil()}, "zip.pt")
    Path("raw.pt").write_bytes(pickle.dumps(Evil()))
    for name in ("zip.pt", "raw.pt"):
        with pytest.raises(DataError, match=name):
            load_checkpoint(Path(name))
    assert not Path("evil").exists()


def test_init_from_takes_weights_only(tmp_path: Path) -> None:
    trained = finished_run(tmp_path / "run")
    save_weights(tmp_path / "own.safetensors", trained.state_dict(), {"by": "hand"})
    for source in ("run", "run/last.pt", "run/weights.safetensors", "own.safetensors"):
        fresh = model()
        load_weights(fresh, tmp_path / source)
        for name, value in fresh.state_dict().items():
            assert torch.equal(value, trained.state_dict()[name]), (source, name)
        optimizer = torch.optim.Adam(fresh.parameters())
        assert optimizer.state_dict()["state"] == {}


def test_weights_of_another_model(tmp_path: Path) -> None:
    finished_run(tmp_path / "run")
    with pytest.raises(DataError, match=r"'0\.weight' is \[4, 2\] there and \[6, 2\] here"):
        load_weights(model(6), tmp_path / "run")
    larger = model()
    larger.add_module("extra", nn.Linear(1, 1))
    with pytest.raises(DataError, match=r"no 'extra\.weight', which is \[1, 1\] here"):
        load_weights(larger, tmp_path / "run")
    with pytest.raises(DataError, match=r"'1\.bias' \[4\] has no place here"):
        load_weights(nn.Sequential(nn.Linear(2, 4)), tmp_path / "run")


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        load_weights(model(), tmp_path / "none.safetensors")
    with pytest.raises(DataError, match=r"neither weights\.safetensors nor last\.pt"):
        load_weights(model(), tmp_path)
    (tmp_path / "bad.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match=r"bad\.safetensors is not a complete safetensors file"):
        read_weights(tmp_path / "bad.safetensors")


def test_tied_weights(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    save_weights(tmp_path / "w.safetensors", tied.state_dict(), {})
    other = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    load_weights(other, tmp_path / "w.safetensors")
    assert torch.equal(other[1].weight, tied[0].weight)


def test_what_a_killed_write_left_is_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained = finished_run(folder)
    partial = folder / ".last.pt.partial"
    partial.write_bytes(b"half a checkpoint")
    with Run.create(folder, {}, resume=True, tensorboard=False) as run:
        result = fit(
            trained,
            torch.optim.Adam(trained.parameters()),
            [torch.randn(5, 2)],
            lambda model, x: model(x).square().mean(),
            config=FitConfig(epochs=3, quiet=True),
            run=run,
        )
    assert result.steps == 3
    assert not partial.exists()


def test_a_cut_checkpoint_stops_the_resume(tmp_path: Path) -> None:
    trained = finished_run(tmp_path)
    last = tmp_path / "last.pt"
    last.write_bytes(last.read_bytes()[:1000])
    with (
        Run.create(tmp_path, {}, resume=True, tensorboard=False) as run,
        pytest.raises(DataError, match=r"last\.pt is cut.*remove it to start from the beginning"),
    ):
        fit(
            trained,
            torch.optim.Adam(trained.parameters()),
            [torch.randn(5, 2)],
            lambda model, x: model(x).square().mean(),
            config=FitConfig(epochs=3, quiet=True),
            run=run,
        )


@pytest.mark.parametrize("name", ["weights.safetensors", "last.pt"])
def test_a_damaged_byte_is_refused_or_changes_nothing(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    weights = {"a.weight": torch.randn(5, 3), "b": torch.arange(4), "c": torch.tensor(True)}
    if path.suffix == ".pt":
        save_checkpoint(path, {"model": weights})
    else:
        save_weights(path, weights, {"epoch": 3})
    whole, rng, refused = path.read_bytes(), np.random.default_rng(0), 0
    assert all(torch.equal(weights[name], value) for name, value in read_weights(path).items())
    for place in rng.permutation(len(whole))[:150]:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            found = read_weights(path)
        except DataError:
            refused += 1
            continue
        assert found.keys() == weights.keys()
        assert all(
            torch.equal(weights[name], value) and weights[name].dtype == value.dtype
            for name, value in found.items()
        )
    assert refused > 20


def test_weights_without_a_checksum_are_read(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    for metadata in (None, {"weft": '{"epoch": 1}'}, {"weft": "[]"}):
        path.write_bytes(safetensors_bytes({"a": torch.ones(2)}, metadata=metadata))
        assert read_weights(path)["a"].tolist() == [1, 1]
    path.write_bytes(safetensors_bytes({"a": torch.ones(2)}, metadata={"weft": "[" * 9999}))
    with pytest.raises(DataError, match=r"weights\.safetensors, its header's entry 'weft'"):
        read_weights(path)


@pytest.mark.parametrize("state", [{}, {"model": [1]}, {"model": None}])
def test_a_checkpoint_without_a_model_gives_no_weights(tmp_path: Path, state: Any) -> None:
    save_checkpoint(tmp_path / "last.pt", state)
    with pytest.raises(DataError, match=r"last\.pt is damaged \(.* part .model"):
        load_weights(nn.Linear(2, 2), tmp_path)


def test_a_checkpoint_that_could_unpack_to_any_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"model": {"a": torch.zeros(9)}})
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    with pytest.raises(DataError, match=r"last\.pt is damaged"):
        load_checkpoint(path)
