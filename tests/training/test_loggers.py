"""Weights & Biases and MLflow, the real packages, without a server."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
from small_fits import adam, data, fixed_model, losses, quiet, squared_error

from weft.errors import DataError
from weft.training import Run, fit, read_metrics
from weft.training.loggers import MlflowLogger, WandbLogger


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_X_DISABLE_STATS", "true")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    # Set by the logger, and put back after the test.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")


def trained(folder: Path, *loggers: str, **options: Any) -> list[float]:
    model = fixed_model()
    config = {"model": {"hidden": 4}, "epochs": 2}
    with Run.create(folder, config, tensorboard=False, loggers=loggers, resume=True) as run:
        how = quiet(epochs=2, log_every=1, checkpoint_every=2, **options)
        fit(model, adam(model), [data()] * 3, squared_error, config=how, run=run)
    return losses(folder)


def ids(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((folder / "loggers.json").read_text())
    return found


def wandb_records(folder: Path) -> list[Any]:
    """What the files of all sessions of a run hold, in order."""
    from wandb.proto.wandb_internal_pb2 import Record

    found, parts = [], b""
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        content, place = path.read_bytes(), 7
        # The log format of LevelDB: blocks of 32 kB of checksum, length, kind and data.
        while place < len(content):
            if 2**15 - place % 2**15 < 7:
                place += 2**15 - place % 2**15
            length, kind = struct.unpack_from("<HB", content, place + 4)
            parts += content[place + 7 : place + 7 + length]
            place += 7 + length
            # Whole, or the last part of one.
            if kind in (1, 4):
                found.append(Record.FromString(parts))
                parts = b""
    return found


def wandb_history(folder: Path) -> list[dict[str, Any]]:
    return [
        {
            item.key or item.nested_key[0]: json.loads(item.value_json)
            for item in record.history.item
        }
        for record in wandb_records(folder)
        if record.WhichOneof("record_type") == "history"
    ]


def mlflow_history(folder: Path, name: str) -> list[tuple[int, float]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(folder / "mlruns").as_uri())
    run = client.get_run(ids(folder)["mlflow"])
    assert run.data.params == {"model.hidden": "4", "epochs": "2"}
    assert run.info.status == "FINISHED"
    return [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, name)]


def test_both_have_every_metric_and_a_resume_goes_on_with_their_run(tmp_path):
    plain = trained(tmp_path / "plain")
    random.seed(1)
    expected = random.getstate()
    folder = tmp_path / "run"
    trained(folder, "wandb", "mlflow", max_steps=4)
    first = ids(folder)
    again = trained(folder, "wandb", "mlflow")
    assert random.getstate() == expected
    assert again == plain
    assert ids(folder) == first
    steps = [(n + 1, value) for n, value in enumerate(plain)]
    assert mlflow_history(folder, "loss") == steps
    seen = [(row["_step"], row["loss"]) for row in wandb_history(folder) if "loss" in row]
    assert seen == steps
    last = read_metrics(folder)[-1]
    assert mlflow_history(folder, "train_loss")[-1] == (6, last["train_loss"])
    runs = [r.run for r in wandb_records(folder) if r.WhichOneof("record_type") == "run"]
    assert {run.run_id for run in runs} == {first["wandb"]}
    assert {run.project for run in runs} == {"weft"}


def test_lines_that_come_again_after_a_kill_are_logged_once(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    plain = trained(tmp_path / "plain")

    def killed(*_: Any, **__: Any) -> None:
        raise SystemExit

    # Dies at the end of the first epoch: the checkpoint is of step 2, the metrics of step 3.
    with monkeypatch.context() as patched:
        patched.setattr("weft.training.loop._Fit.end_epoch", killed)
        with pytest.raises(SystemExit):
            trained(folder, "mlflow")
    assert len(read_metrics(folder)) == 3
    assert trained(folder, "mlflow") == plain
    assert mlflow_history(folder, "loss") == [(n + 1, value) for n, value in enumerate(plain)]


@pytest.mark.parametrize(("kind", "name"), [(WandbLogger, "wandb"), (MlflowLogger, "mlflow")])
def test_a_logger_that_fails_warns_once_and_training_goes_on(tmp_path, monkeypatch, kind, name):
    def broken(*_: Any) -> None:
        raise OSError("the server is gone\nand more")

    monkeypatch.setattr(kind, "_open", broken)
    with pytest.warns(
        UserWarning, match=f"{name} has failed .the server is gone.; training continues"
    ):
        found = trained(tmp_path / "run", name)
    assert found == trained(tmp_path / "plain")
    assert not (tmp_path / "run" / "loggers.json").exists()


def test_a_package_that_is_missing_and_a_logger_that_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr("weft.training.loggers.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"wandb, which is not installed: pip install 'weft\[log"):
        trained(tmp_path / "run", "wandb")
    with pytest.raises(DataError, match="logger is 'neptune'; choose from tensorboard, wandb, mlf"):
        trained(tmp_path / "run", "neptune")
