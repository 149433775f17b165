"""Checkpoints that many ranks share: whole or not there, of this model and data or refused."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import full_graph_cases
import pytest
import torch

from weft.errors import DataError
from weft.recipes.full_graph import checkpoint as full_graph_checkpoint
from weft.recipes.full_graph.checkpoint import Checkpoints, last_epoch
from weft.training.launch import launch

TENSORS = {
    "model.weight": torch.arange(6.0).view(2, 3),
    "best.weight": torch.ones(2, 3, dtype=torch.float64),
    "optimizer.weight.step": torch.tensor(4.0),
    "empty": torch.zeros(0, 3),
}
PRINT = {"model": {"weight": [2, 3]}, "data": "abc", "recipe": {"seed": 1}}


def saved(folder: Path, *epochs: int) -> Checkpoints:
    checkpoints = Checkpoints(folder, PRINT)
    for epoch in epochs:
        checkpoints.save(epoch, TENSORS, {"lines": epoch, "best": None})
    return checkpoints


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_saved_comes_back(tmp_path):
    found = saved(tmp_path / "c", 3).load()
    assert found is not None
    assert (found.epoch, found.progress) == (3, {"lines": 3, "best": None})
    assert list(found.tensors) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert found.tensors[name].dtype == tensor.dtype
        assert found.tensors[name].equal(tensor)


def test_the_last_two_are_kept(tmp_path):
    saved(tmp_path, 5, 10, 15)
    assert names(tmp_path) == ["epoch-000010", "epoch-000015"]
    assert last_epoch(tmp_path) == 15


def test_nothing_there(tmp_path):
    assert Checkpoints(tmp_path / "c", PRINT).load() is None
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
    checkpoints = saved(tmp_path, 1, 2)
    whole = (tmp_path / "epoch-000002" / name).read_bytes()
    harm(tmp_path / "epoch-000002" / name)
    found = checkpoints.load()
    assert found is not None
    # A byte of the manifest's values may change without making it less of a manifest.
    assert found.epoch == 1 or (name == "manifest.json" and harm is flipped)
    assert found.tensors["model.weight"].equal(TENSORS["model.weight"])
    (tmp_path / "epoch-000002" / name).write_bytes(whole)
    assert checkpoints.load().epoch == 2


def test_one_that_was_never_finished_is_ignored_and_cleared(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path, 1)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(full_graph_checkpoint, "write_atomically", stop)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(2, TENSORS, {})
    assert names(tmp_path) == [".epoch-000002.partial", "epoch-000001"]
    assert checkpoints.load().epoch == 1
    checkpoints.save(2, TENSORS, {})
    assert names(tmp_path) == ["epoch-000001", "epoch-000002"]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "c").write_text("a file")
    with pytest.raises(DataError, match=r"cannot write the checkpoint .*epoch-000001"):
        saved(tmp_path / "c", 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": "xyz"}, 'data is "abc" there and "xyz" here'),
        ({"model": {"weight": [2, 4]}}, "model.weight is [2, 3] there and [2, 4] here"),
        ({"model": {"bias": [3]}}, "model.weight is [2, 3] there and not there here"),
        ({"recipe": {"seed": 1, "b": 2}}, "recipe.b is not there there and 2 here"),
    ],
)
def test_a_stale_checkpoint_says_what_differs(tmp_path, change, words):
    saved(tmp_path, 1)
    with pytest.raises(DataError) as caught:
        Checkpoints(tmp_path, {**PRINT, **change}).load()
    assert words in str(caught.value)
    assert "epoch-000001" in str(caught.value)


def test_another_version(tmp_path):
    checkpoints = saved(tmp_path, 1)
    path = tmp_path / "epoch-000001" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 9}))
    with pytest.raises(DataError, match="has version 9; this weft reads version 1"):
        checkpoints.load()


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("touched"),)


def test_an_index_that_asks_for_anything_else_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoints = saved(tmp_path / "c", 1)
    folder = tmp_path / "c" / "epoch-000001"
    (folder / ".metadata").write_bytes(pickle.dumps(Evil()))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][".metadata"] = full_graph_checkpoint._sum(folder / ".metadata")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="not on the list of what may be loaded"):
        checkpoints.load()
    assert not (tmp_path / "touched").exists()


def test_ranks_agree_on_what_rank_0_finds(tmp_path):
    # The other ranks are given a folder that is not there: only rank 0 reads and writes.
    found = launch(
        full_graph_cases.save_and_load, (str(tmp_path / "c"), PRINT), ranks=3, logs=tmp_path
    )
    assert found == [[7, {"best": 0.5}, [0.0, 1.0, 2.0]]] * 3
    assert names(tmp_path / "c") == ["epoch-000007"]
    shutil.copytree(tmp_path / "c", tmp_path / "d")
    stale = launch(
        full_graph_cases.load_stale, (str(tmp_path / "d"), PRINT), ranks=2, logs=tmp_path
    )
    assert stale[0] == stale[1]
    assert 'data is "abc" there and "other" here' in stale[0]
