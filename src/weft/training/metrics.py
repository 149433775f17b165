"""Metrics as JSON lines and, for live curves, TensorBoard and other loggers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from weft.errors import DataError
from weft.files import json_text, parse_json, write_atomically
from weft.training.loggers import Logger


class MetricsLog:
    """Appends measurements to a file of JSON lines, and to TensorBoard and loggers where asked.

    A line is one object: `step`, `epoch` (both counted from 1), `seconds` since the run began,
    and the values by name. Floats are written so that reading gives the same bits; what is not
    finite is written null.
    """

    def __init__(
        self, path: Path, tensorboard: Path | None = None, loggers: Sequence[Logger] = ()
    ) -> None:
        self.path = path
        self._loggers, self._known_lines = loggers, 0
        self._tensorboard = tensorboard
        self._file: TextIO | None = None
        self._writer: Any = None
        self._unhook: Callable[[], None] = lambda: None
        self._purge_step: int | None = None
        self.lines = 0

    def keep(self, lines: int, step: int) -> None:
        """Go on after the first `lines` lines, at `step`; later ones are of steps to be redone."""
        self.close()
        every = _whole_lines(self.path)
        whole = every[:lines]
        # Steps that are done again give the same lines, which loggers have had.
        self._known_lines = len(every)
        if self.path.exists():
            write_atomically(self.path, lambda file: file.writelines(whole))
        self.lines = len(whole)
        self._purge_step = step + 1

    def log(self, *, step: int, epoch: int, seconds: float, values: Mapping[str, float]) -> None:
        """Write one line."""
        numbers = {name: float(value) for name, value in values.items()}
        line = json_text({"step": step, "epoch": epoch, "seconds": round(seconds, 3), **numbers})
        with _writing(self.path):
            if self._file is None:
                self._file = self.path.open("a", encoding="utf-8")
            self._file.write(line + "\n")
            self._file.flush()
        self.lines += 1
        if self._tensorboard is not None:
            with _writing(self._tensorboard):
                for name, number in numbers.items():
                    self._summary_writer().add_scalar(name, number, step)
        if self.lines > self._known_lines:
            for logger in self._loggers:
                logger.log(step, numbers)

    def _summary_writer(self) -> Any:
        if self._writer is None:
            # Imported here: it takes a third of a second, and most programs never need it.
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._tensorboard), purge_step=self._purge_step)
            self._unhook = _hush_tensorboard()
        return self._writer

    def sync(self) -> None:
        """Make sure that every line so far is on the disk.

        Raises:
            DataError: it is full, or gone.
        """
        if self._file is not None:
            with _writing(self.path):
                os.fsync(self._file.fileno())
        if self._writer is not None and self._tensorboard is not None:
            with _writing(self._tensorboard):
                self._writer.flush()

    def close(self, *, failed: bool = False) -> None:
        """Close the files and loggers; logging again opens them.

        `log` has already reported a full disk: every line was written there and then.
        """
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
        if self._writer is not None:
            with suppress(OSError):
                self._writer.close()
            self._writer = None
            self._unhook()
        for logger in self._loggers:
            logger.close(failed=failed)


def _hush_tensorboard() -> Callable[[], None]:
    """Leave errors of TensorBoard's thread to `log` and `sync`; returns what undoes that."""
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        theirs = type(args.thread).__module__.startswith("tensorboard.")
        if not (theirs and isinstance(args.exc_value, OSError)):
            before(args)

    def undo() -> None:
        if threading.excepthook is hook:
            threading.excepthook = before

    threading.excepthook = hook
    return undo


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write {path}: {error.strerror or error}; make room, then resume with --resume"
        ) from error


def _whole_lines(path: Path) -> list[bytes]:
    """All lines but a last one that a killed process did not finish."""
    if not path.exists():
        return []
    return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a metrics file (or of a run's folder), a half-written last one left out.

    Raises:
        DataError: no such file, or a line that is not JSON; names file and line.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "metrics.jsonl"
    if not path.exists():
        raise DataError(f"{path} does not exist")
    objects = []
    for number, line in enumerate(_whole_lines(path), start=1):
        value = parse_json(line, f"{path}, line {number}")
        if not isinstance(value, dict):
            raise DataError(f"{path}, line {number}: not an object of a step's values")
        objects.append(value)
    return objects
