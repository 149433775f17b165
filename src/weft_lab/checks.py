"""Checks of settings, the same for studies and benchmarks: the value, the limit, the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from weft.errors import DataError


def at_least(settings: object, least: int, *names: str, count: int = 1) -> None:
    """Every named setting is at least this, or None; each number of it, where it has several.

    Args:
        settings: that have them.
        least: the smallest number that is allowed.
        names: of the settings.
        count: how many numbers a setting must have that has several.

    Raises:
        ValueError: one is below, or has fewer numbers.
    """
    for name in names:
        given = getattr(settings, name)
        if isinstance(given, tuple):
            if len(given) < count or min(given, default=least) < least:
                raise ValueError(
                    f"{name} are {given}; give at least {count} numbers, each at least {least}"
                )
        elif given is not None and given < least:
            raise ValueError(f"{name} is {given}; it must be at least {least}")


def fractions(settings: object, *names: str, zero: bool = False, one: bool = False) -> None:
    """Every named setting is above 0 and below 1; each number of it, where it has several.

    Args:
        settings: that have them.
        names: of the settings.
        zero: 0 is allowed too.
        one: 1 is allowed too.

    Raises:
        ValueError: one is not.
    """
    limits = f"{'at least' if zero else 'above'} 0 and {'at most' if one else 'below'} 1"
    for name in names:
        given = getattr(settings, name)
        several = isinstance(given, tuple)
        for each in given if several else (given,):
            if not (0 < each < 1 or (zero and each == 0) or (one and each == 1)):
                raise ValueError(
                    f"{name} {'are' if several else 'is'} {given}; "
                    f"{'each' if several else 'it'} is {limits}"
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
