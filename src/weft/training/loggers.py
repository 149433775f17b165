"""Weights & Biases and MLflow, which log a run's metrics beside metrics.jsonl and TensorBoard.

Without a server both write into the run's folder. Sessions of one run are one run there too.
"""

from __future__ import annotations

import os
import random
import secrets
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

from weft.errors import DataError
from weft.files import json_text, read_object, write_atomically

LoggerName = Literal["tensorboard", "wandb", "mlflow"]
_IDS = "loggers.json"
_PROJECT = "weft"
# What an MLflow server takes in one request.
_PARAMETERS = 100


class Logger(ABC):
    """Passes metrics on to a service, whose run it opens with the first of them.

    Where the service fails, one warning says so and training continues without it.
    """

    name: ClassVar[LoggerName]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._run: Any = None
        self._id = ""
        self._has_failed = False

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log the values of a step."""
        if self._has_failed:
            return
        with self._warning():
            if self._run is None:
                config = read_object(self.folder / "config.json").get("config", {})
                path = self.folder / _IDS
                ids = read_object(path) if path.exists() else {}
                self._run, self._id = self._open(ids.get(self.name), config)
                text = json_text({**ids, self.name: self._id}, indent=2) + "\n"
                write_atomically(path, lambda file: file.write(text.encode()))
            self._log(step, values)

    def close(self, *, failed: bool = False) -> None:
        """Tell the service that the run has ended; what is logged later goes on with it."""
        if self._run is not None and not self._has_failed:
            with self._warning():
                self._close(failed=failed)
        self._run = None

    @contextmanager
    def _warning(self) -> Iterator[None]:
        # Their libraries draw from Python's generator, which a run resumes to the bit.
        state = random.getstate()
        try:
            yield
        # Services raise whatever their network and their files do.
        except Exception as error:
            self._has_failed = True
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            warnings.warn(
                f"{self.name} has failed ({reason}); training continues without it, and "
                f"{self.folder / 'metrics.jsonl'} has every metric",
                stacklevel=4,
            )
        finally:
            random.setstate(state)

    @abstractmethod
    def _open(self, known: str | None, config: dict[str, Any]) -> tuple[Any, str]:
        """The service's run, that of the id `known` or a new one, and its id."""

    @abstractmethod
    def _log(self, step: int, values: Mapping[str, float]) -> None: ...

    @abstractmethod
    def _close(self, *, failed: bool) -> None: ...


class WandbLogger(Logger):
    """Weights & Biases: WANDB_MODE=offline for no server; WANDB_PROJECT names the project."""

    name = "wandb"

    def _open(self, known: str | None, config: dict[str, Any]) -> tuple[Any, str]:
        import wandb

        own = known or secrets.token_hex(4)
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            id=own,
            name=self.folder.name,
            dir=self.folder,
            config=config,
            resume="allow",
            reinit="create_new",
            # Progress stays the terminal's.
            settings=wandb.Settings(console="off"),
        )
        return run, own

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def _close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class MlflowLogger(Logger):
    """MLflow: the server of MLFLOW_TRACKING_URI, or files in the run's folder."""

    name = "mlflow"

    def _open(self, known: str | None, config: dict[str, Any]) -> tuple[Any, str]:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            uri = (self.folder / "mlruns").resolve().as_uri()
            # MLflow 3 writes no files unless it is told that they are wanted.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        # Training waits meanwhile: some seconds, not minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        client = MlflowClient(tracking_uri=uri)
        if known is not None:
            client.update_run(known, status="RUNNING")
            return client, known
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        experiment = client.get_experiment_by_name(project)
        number = experiment.experiment_id if experiment else client.create_experiment(project)
        own: str = client.create_run(number, run_name=self.folder.name).info.run_id
        parameters = [Param(name, str(value)) for name, value in _flat(config)]
        for first in range(0, len(parameters), _PARAMETERS):
            client.log_batch(own, params=parameters[first : first + _PARAMETERS])
        return client, own

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._run.log_batch(self._id, metrics=metrics)

    def _close(self, *, failed: bool) -> None:
        self._run.set_terminated(self._id, "FAILED" if failed else "FINISHED")


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """The values in objects, by dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def make_loggers(names: Sequence[str], folder: Path) -> list[Logger]:
    """The loggers of these names but `tensorboard`, which is the metrics log's own.

    Raises:
        DataError: a package is missing, or there is no such logger.
    """
    kinds: dict[str, type[Logger]] = {"wandb": WandbLogger, "mlflow": MlflowLogger}
    found = []
    for name in names:
        if name == "tensorboard":
            continue
        if name not in kinds:
            raise DataError(f"logger is {name!r}; choose from tensorboard, {', '.join(kinds)}")
        if find_spec(name) is None:
            raise DataError(
                f"logger {name} needs the package {name}, which is not installed: "
                "pip install 'weft[loggers]'"
            )
        found.append(kinds[name](folder))
    return found
