"""A candidate: one choice of settings that a plan may come to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

THREADS = "threads"
"""Compute threads: a setting of the process, not of a recipe's configuration."""
PROCESSES = "processes"
"""Ranks that share every batch: a setting of the launch, not of a recipe's configuration."""

Config = TypeVar("Config")


@dataclass(frozen=True)
class Candidate:
    """Settings to be measured together.

    Attributes:
        settings: values by their dotted names in the recipe's configuration (`batching.policy`,
            `compile`), `threads` and `processes`; plain JSON values.
    """

    settings: Mapping[str, Any]

    def __hash__(self) -> int:
        return hash(self.label)

    @property
    def label(self) -> str:
        """In words, such as `packed, eager, 2 threads`."""
        words = [_words(name, value) for name, value in self.settings.items() if value is not None]
        return ", ".join(filter(None, words)) or "as it is"

    @property
    def compiles(self) -> bool:
        """Whether torch.compile is part of it."""
        return str(self.settings.get("compile", "eager")) != "eager"

    def but(self, **changes: Any) -> Candidate:
        """These settings with some changed or added; `__` in a name stands for its dot."""
        named = {name.replace("__", "."): value for name, value in changes.items()}
        return Candidate({**self.settings, **named})


def applied(config: Config, settings: Mapping[str, Any]) -> Config:
    """The configuration with these settings, but `threads` and `processes`, which it has not.

    Raises:
        ValueError: the configuration has no setting of that name, or refuses the value.
    """
    changes = {name: value for name, value in settings.items() if name not in (THREADS, PROCESSES)}
    # All at once: a value may fit only together with the others.
    return cast("Config", _replaced(config, changes, ""))


def set_threads(settings: Mapping[str, Any]) -> None:
    """Give this process the number of compute threads that the settings name, if they do."""
    threads = settings.get(THREADS)
    if threads is None:
        return
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise ValueError(f"threads is {threads!r}; it must be a whole number of at least 1")
    import torch

    torch.set_num_threads(threads)


def _replaced(config: Any, changes: Mapping[str, Any], inside: str) -> Any:
    is_config = dataclasses.is_dataclass(config)
    known = [field.name for field in dataclasses.fields(config)] if is_config else []
    values: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        first, _, rest = name.partition(".")
        if first not in known:
            raise ValueError(
                f"a plan sets {inside + name!r}, which {type(config).__name__} does not have; its "
                f"settings are {', '.join(known) or 'none'}"
            )
        if rest:
            nested.setdefault(first, {})[rest] = value
        else:
            # JSON has no tuples, and configurations have no lists.
            values[first] = tuple(value) if isinstance(value, list) else value
    for first, inner in nested.items():
        values[first] = _replaced(getattr(config, first), inner, f"{inside}{first}.")
    return dataclasses.replace(config, **values)


def _words(name: str, value: Any) -> str:
    last = name.rpartition(".")[2]
    if name == THREADS:
        return f"{value} thread{'s' * (value != 1)}"
    if name == "compile":
        return "eager" if value == "eager" else f"compiled ({value})"
    if name == "accelerate":
        return "accelerated" if value else ""
    if isinstance(value, str) and last != "partition":
        return value
    if last in ("ranks", PROCESSES):
        return f"{value} rank{'s' * (value != 1)}"
    if isinstance(value, (list, tuple)):
        return f"{last} {'x'.join(str(each) for each in value)}"
    return f"{last} {value}"
