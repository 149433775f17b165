from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

import weft
from weft.errors import DataError
from weft.training import Run, run_lock


@dataclass(frozen=True, kw_only=True)
class Inner:
    lr: float = 0.01


@dataclass(frozen=True, kw_only=True)
class Config:
    epochs: int = 5
    data: Path = Path("cora")
    widths: tuple[int, ...] = (16, 7)
    optimizer: Inner = field(default_factory=Inner)


def test_records_what_was_asked(tmp_path: Path) -> None:
    with Run.create(tmp_path / "deep" / "run", Config()) as run:
        assert not run.resumed
        run.summarise(loss=0.5)
        run.summarise(accuracy=0.8)
    with Run.create(tmp_path / "deep" / "run", Config(), resume=True) as run:
        assert run.resumed
    recorded = json.loads((run.folder / "config.json").read_text())
    assert recorded["config"] == {
        "epochs": 5,
        "data": "cora",
        "widths": [16, 7],
        "optimizer": {"lr": 0.01},
    }
    assert len(recorded["sessions"]) == 2
    assert recorded["sessions"][0]["versions"]["weft"] == weft.__version__
    assert recorded["sessions"][0]["versions"]["torch"] == torch.__version__
    assert recorded["sessions"][0]["command"]
    assert json.loads((run.folder / "summary.json").read_text()) == {"loss": 0.5, "accuracy": 0.8}


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    Run.create(tmp_path, Config()).close()
    with pytest.raises(DataError, match=r"holds a run already.*--resume.*another folder"):
        Run.create(tmp_path, Config())


def test_resume_with_another_config_names_the_field(tmp_path: Path) -> None:
    Run.create(tmp_path, Config()).close()
    with pytest.raises(DataError, match=r"optimizer\.lr = 0\.01, now it is 0\.02"):
        Run.create(tmp_path, Config(optimizer=Inner(lr=0.02)), resume=True)
    with pytest.raises(DataError, match=r"widths = \[16, 7\], now it is \[16\]"):
        Run.create(tmp_path, Config(widths=(16,)), resume=True)
    with pytest.raises(DataError, match="epochs = 5, now it is not there"):
        Run.create(tmp_path, {}, resume=True)


def test_resume_without_a_run_starts_one(tmp_path: Path) -> None:
    with Run.create(tmp_path / "new", Config(), resume=True) as run:
        assert not run.resumed


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    for resume in (False, True):
        with pytest.raises(DataError, match="not empty and holds no run"):
            Run.create(tmp_path, Config(), resume=resume)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=r"cannot make the run folder .*file/run.*choose another"):
        Run.create(tmp_path / "file" / "run", Config())


def test_two_processes_cannot_share_a_run(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    with (
        Run.create(tmp_path, Config()),
        pytest.raises(DataError, match="in use by another process"),
    ):
        Run.create(tmp_path, Config(), resume=True)
    Run.create(tmp_path, Config(), resume=True).close()


def test_a_run_made_by_another_just_before_the_lock_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = run_lock.hold

    def late(folder: Path) -> int | None:
        monkeypatch.undo()
        Run.create(tmp_path, Config(epochs=1)).close()
        return lock(folder)

    monkeypatch.setattr(run_lock, "hold", late)
    with pytest.raises(DataError, match="holds a run already"):
        Run.create(tmp_path, Config(epochs=2))
    assert json.loads((tmp_path / "config.json").read_text())["config"]["epochs"] == 1


def test_a_refused_run_leaves_the_folder_free(tmp_path: Path) -> None:
    Run.create(tmp_path, Config()).close()
    for config, resume in ((Config(), False), (Config(epochs=6), True)):
        with pytest.raises(DataError, match=r"already|epochs = 5"):
            Run.create(tmp_path, config, resume=resume)
        Run.create(tmp_path, Config(), resume=True).close()


def test_what_is_not_finite_is_valid_json(tmp_path: Path) -> None:
    def refuse(name: str) -> None:
        pytest.fail(f"{name} is not JSON")

    with Run.create(tmp_path, {"limit": math.inf}) as run:
        run.summarise(metrics={"loss": math.nan})
    for name in ("config.json", "summary.json"):
        json.loads((tmp_path / name).read_text(), parse_constant=refuse)
    assert json.loads((tmp_path / "summary.json").read_text()) == {"metrics": {"loss": None}}
    Run.create(tmp_path, {"limit": math.inf}, resume=True).close()
    with pytest.raises(DataError, match="limit"):
        Run.create(tmp_path, {"limit": None}, resume=True)


def test_damaged_or_unfit_config(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"must be JSON values: .* is a set"):
        Run.create(tmp_path / "a", {"x": {1}})
    Run.create(tmp_path / "b", Config()).close()
    (tmp_path / "b" / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"config\.json is damaged"):
        Run.create(tmp_path / "b", Config(), resume=True)


@pytest.mark.parametrize("text", ["[1, 2]", '{"a": 1', "[" * 9999])
def test_a_damaged_summary_is_named(tmp_path: Path, text: str) -> None:
    with Run.create(tmp_path / "run", {}) as run:
        (tmp_path / "run" / "summary.json").write_text(text)
        with pytest.raises(DataError, match=r"summary\.json is damaged \(.*\); remove it"):
            run.summarise(a=1)
