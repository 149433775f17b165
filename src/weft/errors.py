"""The one class of user errors that are more than a bad value, and checks of plain values."""

from __future__ import annotations

from typing import Any, get_args


class DataError(ValueError):
    """Data that cannot be used as it is; the message names the file, line, graph or field."""


def check_least(config: object, **least: float) -> None:
    """Raise ValueError where a field of `config` is below its least value; None passes."""
    for name, low in least.items():
        value = getattr(config, name)
        if value is not None and not value >= low:
            raise ValueError(f"{name} is {value}; it must be at least {low}")


def check_choices(config: object, **literals: Any) -> None:
    """Raise ValueError where a field of `config` is none of the values of its Literal."""
    for name, literal in literals.items():
        if (value := getattr(config, name)) not in get_args(literal):
            raise ValueError(f"{name} is {value!r}; choose from {', '.join(get_args(literal))}")
