"""The data folder: where it is, and how a table is built in it once, whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from weft.errors import DataError
from weft.files import user_cache

if TYPE_CHECKING:
    from weft.graphs import GraphTable

_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
_TAKEN = {errno.ENOTEMPTY, errno.EEXIST}
_PAUSES_SECONDS = (0.0, 0.02, 0.1, 0.5)
_OLD = "old"
_REMEDY = "choose another folder with --data-dir or the environment variable WEFT_DATA_DIR"
# A table's name is also a folder's name and stands in a command line.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]*")


def data_folder(given: Path | None = None) -> Path:
    """The folder that holds downloads and tables; it is made if it is not there.

    It is `given`, else $WEFT_DATA_DIR, else weft's folder in the user's cache
    ($XDG_CACHE_HOME/weft or ~/.cache/weft). A folder that may only be read is fine as long as
    everything requested is in it.

    Raises:
        DataError: the folder cannot be made; the message says how to choose another.
    """
    if given is not None:
        folder = given
    elif named := os.environ.get("WEFT_DATA_DIR"):
        folder = Path(named)
    else:
        folder = user_cache()
    folder = folder.expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"the data folder {folder} cannot be made ({error.strerror}); {_REMEDY}"
        ) from None
    return folder


def cached_table(
    name: str,
    build: Callable[[Path], GraphTable],
    *,
    data_dir: Path | None = None,
    rebuild: bool = False,
    remedy: str = "pass rebuild=True",
) -> GraphTable:
    """The table `name` of the data folder; `build` writes it if it is not there yet.

    `build(path)` writes the table to the folder `path` with `write_table`. It works under a
    private name, so that half a table is never seen; when two processes build the same one, the
    first to finish wins and the other opens the winner's. What a killed process left behind is
    cleared by the next that builds the same table.

    Args:
        name: name of the table; it lives in `<data folder>/<name>.weft`.
        build: writes the table.
        data_dir: the data folder, see `data_folder`.
        rebuild: build even if the table is there; the old one stays until the new one is whole.
        remedy: what to do about a damaged table, for the message.

    Raises:
        DataError: the name cannot be a folder's, the folder cannot be written or the disk is full
            (nothing is left behind), or the table there is damaged (the message ends with
            `remedy`).
    """
    # Imported here: finding the data folder should not need the libraries that read tables.
    from weft.graphs import open_table

    if not _NAME.fullmatch(name):
        raise DataError(
            f"'{name}' cannot name a table; use letters, digits, '.', '_' and '-', and begin "
            "with a letter or digit"
        )
    folder = data_folder(data_dir)
    path = folder / f"{name}.weft"
    if rebuild or not path.exists():
        _clear_abandoned(path)
    if rebuild or not path.exists():
        with _workshop(path) as workshop, full_disk_named(folder):
            build(workshop / path.name)
            if rebuild:
                with suppress(FileNotFoundError):
                    path.rename(workshop / _OLD)
            try:
                (workshop / path.name).rename(path)
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
    # A process that rebuilds the table moves the old one away shortly before the new one appears.
    for pause in _PAUSES_SECONDS:
        time.sleep(pause)
        try:
            return open_table(path)
        except (DataError, OSError) as error:
            reason = error
    raise DataError(f"{reason}: {remedy}") from None


@contextmanager
def _workshop(path: Path) -> Iterator[Path]:
    """A private folder beside the table `path`, locked while it is in use and gone at the end."""
    folder = path.parent
    workshop = folder / f".{path.stem}.{secrets.token_hex(4)}.building"
    # It gets the name that _clear_abandoned looks for when it is locked.
    opening = workshop.with_suffix(".opening")
    try:
        opening.mkdir()
        lock = _lock(opening)
        opening.rename(workshop)
    except OSError as error:
        shutil.rmtree(opening, ignore_errors=True)
        if error.errno in _FULL:
            raise _full(folder) from None
        raise DataError(
            f"the data folder {folder} cannot be written ({error.strerror}); {_REMEDY}"
        ) from None
    with lock or nullcontext():
        try:
            yield workshop
        finally:
            _clear(workshop, path)


def _lock(workshop: Path) -> IO[str] | None:
    """Its lock, held until it is closed or the process ends; None if another process has it."""
    try:
        import fcntl
    except ImportError:
        return None
    file = (workshop / "lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held by another, or a network folder without locks
        file.close()
        return None
    return file


def _clear_abandoned(path: Path) -> None:
    """Clear the workshops that killed processes left beside the table `path`."""
    for workshop in path.parent.glob(f".{path.stem}.{'[0-9a-f]' * 8}.building"):
        with suppress(OSError):
            lock = _lock(workshop)
            if lock is not None:
                with lock:
                    _clear(workshop, path)


def _clear(workshop: Path, path: Path) -> None:
    """Remove a workshop; the old table is put back if no new one has taken its place."""
    if (workshop / _OLD).exists() and not path.exists():
        try:
            (workshop / _OLD).rename(path)
        except OSError as error:
            if error.errno not in _TAKEN:
                return
    shutil.rmtree(workshop, ignore_errors=True)


@contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """Turn a write that fails on a full disk into a DataError that names `folder`."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise _full(folder) from error
        raise


def _full(folder: Path) -> DataError:
    return DataError(
        f"no room left to write in {folder} (disk full, quota or file size limit); make room "
        f"there, or {_REMEDY}"
    )
