"""Downloads that are checked: no file is kept whose SHA-256 is not the expected one."""

from __future__ import annotations

import logging
import re
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from weft.errors import DataError
from weft.sources.progress_bar import Move, progress_bar
from weft.sources.table_cache import full_disk_named

# Seconds to connect, and to wait for the next bytes.
_TIMEOUT = (10.0, 60.0)
_CHUNK_BYTES = 2**16


def fetch(
    url: str, sha256: str, *, folder: Path, name: str | None = None, progress: bool = True
) -> Path:
    """The file at `url`, kept in `folder`; it is downloaded only if it is not there yet.

    Args:
        url: http or https address.
        sha256: the file's SHA-256, 64 hexadecimal digits; a file with another one is not kept.
        folder: where the file goes.
        name: the file's name there; the last part of the address by default.
        progress: show a progress bar.

    Raises:
        DataError: the address cannot be reached (the message says where to put the file by hand),
            or it serves a file other than the expected one.
    """
    import pooch
    from requests.exceptions import RequestException

    assert re.fullmatch(r"[0-9a-f]{64}", sha256), f"not a SHA-256: {sha256!r}"
    name = name or PurePosixPath(urlsplit(url).path).name
    path = folder / name
    stale = ""
    if path.exists() and pooch.file_hash(str(path)) != sha256:
        stale = f" ({path} is there, but it is another file: its SHA-256 is not {sha256})"
    # The progress bar shows what pooch would log.
    pooch.get_logger().setLevel(logging.WARNING)
    with full_disk_named(folder), progress_bar(name, None, show=progress) as move:
        try:
            pooch.retrieve(
                url,
                known_hash=f"sha256:{sha256}",
                fname=name,
                path=folder,
                downloader=pooch.HTTPDownloader(
                    progressbar=_Meter(move), chunk_size=_CHUNK_BYTES, timeout=_TIMEOUT
                ),
            )
        except RequestException as error:
            raise DataError(
                f"{url} cannot be downloaded ({_reason(error)}){stale}; download it elsewhere and "
                f"put it at {path}"
            ) from None
        except ValueError:
            raise DataError(
                f"{url} has a file whose SHA-256 is not {sha256}; it was not kept: try again, or "
                f"put the right file at {path}"
            ) from None
    return path


def _reason(error: Exception) -> str:
    """The innermost cause in a few words: requests wraps a failed look-up four times."""
    deepest: BaseException = error
    while deepest.__context__ is not None:
        deepest = deepest.__context__
    return f"{type(error).__name__}: {getattr(deepest, 'strerror', None) or deepest}"


class _Meter:
    """The interface that pooch expects of a progress bar, around one of ours."""

    def __init__(self, move: Move) -> None:
        self._move, self._done, self.total = move, 0, 0

    def update(self, amount: int) -> None:
        self._done += amount
        total = self.total or None
        self._move(min(self._done, total or self._done), total=total)

    def reset(self) -> None:
        self._done = 0

    def close(self) -> None:
        pass
