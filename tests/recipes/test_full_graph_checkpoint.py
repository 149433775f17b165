"""Checkpoints of full-graph training as earlier versions wrote them: whole or not there."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from old_checkpoints import checksum, write_old

from weft.errors import DataError
from weft.recipes.full_graph.old_checkpoint import Saved, last_epoch, newest_checkpoint

TENSORS = {
    "model.weight": torch.arange(6.0).view(2, 3),
    "best.weight": torch.ones(2, 3, dtype=torch.float64),
    "optimizer.weight.step": torch.tensor(4.0),
    "empty": torch.zeros(0, 3),
}
PRINT = {"model": {"weight": [2, 3]}, "data": "abc", "recipe": {"seed": 1}}


def saved(folder: Path, *epochs: int) -> None:
    for epoch in epochs:
        write_old(folder, epoch, TENSORS, {"lines": epoch, "best": None}, PRINT)


def load(folder: Path) -> Saved:
    found = newest_checkpoint(folder)
    assert found is not None
    assert found[0].parent == folder
    return found[1]


def test_what_was_saved_comes_back(tmp_path):
    saved(tmp_path / "c", 3)
    found = load(tmp_path / "c")
    assert (found.epoch, found.progress) == (3, {"lines": 3, "best": None})
    assert found.fingerprint == PRINT
    assert list(found.tensors) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert found.tensors[name].equal(tensor)


def test_the_newest_is_taken(tmp_path):
    saved(tmp_path, 5, 10)
    assert last_epoch(tmp_path) == load(tmp_path).epoch == 10


def test_nothing_there(tmp_path):
    assert newest_checkpoint(tmp_path / "c") is None
    assert last_epoch(tmp_path / "c") == 0


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flipped(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("harm", [Path.unlink, cut, flipped])
@pytest.mark.parametrize("name", ["manifest.json", ".metadata", "__0_0.distcp"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, harm, name):
    saved(tmp_path, 1, 2)
    whole = (tmp_path / "epoch-000002" / name).read_bytes()
    harm(tmp_path / "epoch-000002" / name)
    found = load(tmp_path)
    # A byte of the manifest's values may change without making it less of a manifest.
    assert found.epoch == 1 or (name == "manifest.json" and harm is flipped)
    assert found.tensors["model.weight"].equal(TENSORS["model.weight"])
    (tmp_path / "epoch-000002" / name).write_bytes(whole)
    assert load(tmp_path).epoch == 2


def test_one_that_was_never_finished_is_ignored(tmp_path):
    saved(tmp_path, 1, 2)
    (tmp_path / "epoch-000002").rename(tmp_path / ".epoch-000002.partial")
    assert load(tmp_path).epoch == 1


def test_another_version(tmp_path):
    saved(tmp_path, 1)
    path = tmp_path / "epoch-000001" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 9}))
    with pytest.raises(DataError, match="has version 9; this weft reads version 1"):
        load(tmp_path)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("touched"),)


def test_an_index_that_asks_for_anything_else_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "c", 1)
    folder = tmp_path / "c" / "epoch-000001"
    (folder / ".metadata").write_bytes(pickle.dumps(Evil()))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][".metadata"] = checksum(folder / ".metadata")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="not on the list of what may be loaded"):
        load(tmp_path / "c")
    assert not (tmp_path / "touched").exists()
