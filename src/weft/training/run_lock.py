"""The lock of a run's folder, by which others see whether the run is going on."""

from __future__ import annotations

import os
import time
from pathlib import Path

from weft.errors import DataError

LOCK = ".lock"
# Whoever looks at a run holds its folder for an instant.
_TRIES, _PAUSE_SECONDS = 5, 0.02


def hold(folder: Path) -> int | None:
    """Hold the folder for this process: two of them would mix their steps in one log.

    Returns a descriptor to be closed, None where there are no locks.

    Raises:
        DataError: another process holds it, or it cannot be written.
    """
    try:
        import fcntl
    except ImportError:
        return None
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise DataError(
            f"cannot write in the run folder {folder}: {error.strerror or error}; choose another"
        ) from error
    for left in reversed(range(_TRIES)):
        try:
            # The system lets go of it when the process ends, however it ends.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if left:
                time.sleep(_PAUSE_SECONDS)
                continue
            os.close(descriptor)
            raise DataError(
                f"{folder} is in use by another process; wait for it, stop it or choose another "
                "folder"
            ) from None
        except OSError:
            # Some network file systems have no locks; the run itself does not need them.
            os.close(descriptor)
            return None
    return descriptor


def is_held(folder: Path) -> bool:
    """Whether a process of this machine trains in the folder; False where there are no locks."""
    try:
        import fcntl

        descriptor = os.open(folder / LOCK, os.O_RDONLY)
    except (ImportError, OSError):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
