"""Checks of settings, the same for studies and benchmarks: the value, the limit, the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.errors import DataError


def at_least(settings: object, **limits: int) -> None:
    """Every named setting is a number of at least this, or None.

    Raises:
        ValueError: one is below.
    """
    for name, least in limits.items():
        value = getattr(settings, name)
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")


def each_at_least(settings: object, least: int, *names: str, count: int = 1) -> None:
    """Every named setting has at least `count` numbers, each at least `least`.

    Raises:
        ValueError: one has fewer numbers, or a smaller one.
    """
    for name in names:
        given = getattr(settings, name)
        if len(given) < count or min(given, default=least) < least:
            raise ValueError(
                f"{name} are {given}; give at least {count} numbers, each at least {least}"
            )


def some_of(settings: object, name: str, legal: Sequence[Any]) -> None:
    """The setting has at least one value, and all of them are legal.

    Raises:
        ValueError: it has none, or another one.
    """
    given = getattr(settings, name)
    if not given or set(given) - set(legal):
        raise ValueError(f"{name} are {given}; choose from {', '.join(legal)}")


def scratch_folder(folder: Path | None) -> None:
    """The folder for large temporary files, where one is named, is there.

    Raises:
        DataError: it is not.
    """
    if folder is not None and not folder.is_dir():
        raise DataError(f"there is no folder {folder}; --scratch names one")
