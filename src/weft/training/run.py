"""Run: a training run is a folder with what was asked, what was measured, and checkpoints."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

import torch

import weft
from weft.errors import DataError
from weft.files import json_text, read_object, write_atomically
from weft.training import run_lock
from weft.training.checkpoint import CHECKPOINT, WEIGHTS
from weft.training.config import FitResult
from weft.training.hardware import hardware
from weft.training.loggers import make_loggers
from weft.training.metrics import MetricsLog

CONFIG = "config.json"
SUMMARY = "summary.json"
LOGS = "logs"
"""Folder of a run for what its ranks write; it may be there before the run."""


class LivePage(Protocol):
    """A page about a run that is kept up to date while it trains."""

    def evaluated(self) -> None:
        """An evaluation has been logged."""

    def ended(self) -> None:
        """The run is over."""


def _live_page(folder: Path) -> LivePage | None:
    """The page of an installed package; pages are above this room, which must not import them."""
    for point in entry_points(group="weft.live_page"):
        page: LivePage = point.load()(folder)
        return page
    return None


class Run:
    """A folder with config.json, metrics.jsonl, last.pt, weights.safetensors and summary.json.

    After 30 s it has report.html too, its page, where `weft[report]` is installed.

    Made by `Run.create`; pass it to `fit`, which resumes from the folder's checkpoint if there is
    one. Use it as a context manager, or close it.

    Attributes:
        folder: the run's folder.
        metrics: the log of measurements.
        resumed: whether the folder held this run already.
        trained: whether a `fit` has finished with this object; another one is refused.
    """

    def __init__(self, folder: Path, *, tensorboard: bool, loggers: Sequence[str] = ()) -> None:
        self.folder = folder
        self.resumed = False
        self.trained = False
        self.metrics = MetricsLog(
            folder / "metrics.jsonl",
            folder / "tensorboard" if tensorboard or "tensorboard" in loggers else None,
            make_loggers(loggers, folder),
        )
        self._lock = run_lock.hold(folder)
        self._page = _live_page(folder)

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: Any,
        *,
        data: Mapping[str, str] | None = None,
        resume: bool = False,
        tensorboard: bool = True,
        loggers: Sequence[str] = (),
        as_now: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
        recipe: str | None = None,
    ) -> Run:
        """Make the folder of a new run, or open it again to go on.

        Args:
            path: the folder; it is made if it is not there.
            config: what was asked, a dataclass or a mapping of JSON values. A run is only resumed
                with the same one.
            data: checksums of the parts of the data, see `weft.graphs.checksums`; a run that has
                them is only resumed with the same.
            resume: go on with the run in `path`; where there is none it starts.
            tensorboard: also write TensorBoard files.
            loggers: also log metrics to these: `tensorboard`, `wandb`, `mlflow`.
            as_now: gives the config of an older run as it would be recorded today.
            recipe: name of the recipe, which is recorded beside the config.

        Raises:
            DataError: a run is there already and `resume` is not given; it was made with another
                config (names the field) or on other data (names the parts); the folder holds other
                files, is in use, or cannot be written; a logger's package is missing.
        """
        folder = Path(path)
        asked = _as_json(config)
        # Before the lock, which would leave its file among somebody's others.
        _check_is_for_runs(folder)
        run = cls(folder, tensorboard=tensorboard, loggers=loggers)
        whole: dict[str, Any] = {} if recipe is None else {"recipe": recipe}
        sessions: list[Any] = []
        sums = None if data is None else dict(data)
        try:
            # Nobody else can make a run here any more.
            if (folder / CONFIG).exists():
                check_may_run(folder, resume=resume)
                earlier = _read_config(folder / CONFIG)
                recorded = earlier["config"]
                if isinstance(recorded, Mapping):
                    recorded = (as_now or dict)(recorded)
                _check_same(recorded, asked, folder)
                sums = _same_data(earlier["data"], sums, folder)
                sessions, run.resumed = earlier["sessions"], True
                if "recipe" in earlier:
                    whole.setdefault("recipe", earlier["recipe"])
            whole |= {"config": asked, "sessions": [*sessions, _session()]}
            _write_json(folder / CONFIG, whole if sums is None else {**whole, "data": sums})
        except BaseException:
            run.close()
            raise
        return run

    @property
    def checkpoint(self) -> Path:
        """The file with everything needed to go on."""
        return self.folder / CHECKPOINT

    @property
    def weights(self) -> Path:
        """The file with the best weights (the last ones where nothing is monitored)."""
        return self.folder / WEIGHTS

    def summarise(self, **values: Any) -> None:
        """Add JSON values to summary.json."""
        path = self.folder / SUMMARY
        remedy = "remove it, the run writes it again"
        earlier = read_object(path, remedy=remedy) if path.exists() else {}
        _write_json(path, {**earlier, **values})

    def evaluated(self) -> None:
        """An evaluation has been logged: bring the page up to date, if it is time for it."""
        if self._page is not None:
            self._page.evaluated()

    def close(self, *, failed: bool = False) -> None:
        """Close the log and let others use the folder."""
        self.metrics.close(failed=failed)
        if self._page is not None:
            self._page.ended()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self.close(failed=kind is not None)


def check_run_folder(folder: Path, *, resume: bool) -> None:
    """Make the folder of a run, if it is not there, and see whether one can be in it.

    Raises:
        DataError: as of `Run.create`: a run is there already and `resume` is not given; the folder
            holds other files, or cannot be made.
    """
    _check_is_for_runs(folder)
    check_may_run(folder, resume=resume)


def _check_is_for_runs(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        present = {entry.name for entry in folder.iterdir()} - {run_lock.LOCK, LOGS}
    except OSError as error:
        raise DataError(
            f"cannot make the run folder {folder}: {error.strerror or error}; choose another"
        ) from error
    if CONFIG not in present and any(not name.endswith(".partial") for name in present):
        raise DataError(
            f"{folder} is not empty and holds no run (no {CONFIG}); choose another folder"
        )


def check_may_run(folder: Path, *, resume: bool) -> None:
    """See whether a run may start in a folder, or `resume` in it; makes nothing.

    Raises:
        DataError: it holds a run already.
    """
    if not resume and (folder / CONFIG).exists():
        raise DataError(
            f"{folder} holds a run already; resume it (--resume) or choose another folder"
        )


def _session() -> dict[str, Any]:
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {
            "weft": weft.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "machine": hardware(),
    }


def _as_json(config: Any) -> Any:
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = dataclasses.asdict(config)
    try:
        # Not null for what is not finite: a run is resumed with the same config only.
        return json.loads(json.dumps(config, default=_path_name), parse_constant=str)
    except TypeError as error:
        raise DataError(f"the run's config must be JSON values: {error}") from None


def _path_name(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def _write_json(path: Path, value: Any) -> None:
    text = json_text(value, indent=2, default=_path_name) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def _read_config(path: Path) -> dict[str, Any]:
    fields = {"config": object, "sessions": list}
    whole = read_object(path, fields, remedy="choose another folder")
    if not isinstance(whole.setdefault("data", None), dict | None):
        raise DataError(f"{path} is damaged (its field 'data' is no object); choose another folder")
    return whole


def recorded_config(folder: Path) -> dict[str, Any] | None:
    """The settings of the run in `folder`, as JSON values; None where there is no run.

    Raises:
        DataError: its config.json is damaged.
    """
    path = folder / CONFIG
    if not path.exists():
        return None
    config = _read_config(path)["config"]
    return config if isinstance(config, dict) else {}


def _check_same(earlier: Any, asked: Any, folder: Path) -> None:
    found = first_difference(earlier, asked)
    if found is not None:
        field, before, now = found
        raise DataError(
            f"the run in {folder} was started with {field} = {before}, now it is {now}; resume "
            "with the same value, or take its weights into another folder (--init-from)"
        )


def _same_data(
    earlier: dict[str, str] | None, now: dict[str, str] | None, folder: Path
) -> dict[str, str] | None:
    """The checksums to keep; runs of earlier versions have none, and take those of today."""
    if earlier is None or now is None:
        return now if earlier is None else earlier
    changed = [name for name in {**earlier, **now} if earlier.get(name) != now.get(name)]
    if changed:
        raise DataError(
            f"the data has changed since the run in {folder} was started: {', '.join(changed)}; "
            "resume with the data as it was, or take the run's weights into another folder "
            "(--init-from)"
        )
    return now


def first_difference(before: Any, now: Any, field: str = "") -> tuple[str, str, str] | None:
    """The dotted name of the first JSON value that differs, and both values; None if none does."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in [*before, *(name for name in now if name not in before)]:
            inner = f"{field}.{name}" if field else str(name)
            if name not in now:
                return inner, json.dumps(before[name]), "not there"
            if name not in before:
                return inner, "nothing", json.dumps(now[name])
            found = first_difference(before[name], now[name], inner)
            if found is not None:
                return found
        return None
    # As text: 1 is not the same option as true.
    texts = json.dumps(before, sort_keys=True), json.dumps(now, sort_keys=True)
    return None if texts[0] == texts[1] else (field or "the config", *texts)


def summarised_result(folder: Path, signal: str) -> FitResult:
    """How far the run in `folder` has come by its summary, if it has one, till a signal stopped it.

    Raises:
        DataError: the summary is damaged.
    """
    stopped = f"interrupted by {signal}"
    if not (folder / SUMMARY).exists():
        return FitResult(epochs=0, steps=0, stopped=stopped)
    names = [each.name for each in dataclasses.fields(FitResult)]
    found = read_object(folder / SUMMARY, dict.fromkeys(names, object))
    return FitResult(**{name: found[name] for name in names} | {"stopped": stopped})
