"""A clock of a training's steps from outside: the planner's, which times and interleaves runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from weft.training.compilation import Compilation


class Pace(Protocol):
    """Called at every training step; evaluation and whatever else lies between two is not timed."""

    def before_step(self) -> None:
        """A step is about to begin, its batch included; may wait."""
        ...

    def after_step(self, graphs: int) -> None:
        """A step over this many graphs is done; may wait."""
        ...


_pace: ContextVar[Pace | None] = ContextVar("pace", default=None)
_compilations: ContextVar[tuple[Compilation, ...]] = ContextVar("compilations", default=())


@contextmanager
def paced(pace: Pace) -> Iterator[None]:
    """Have `fit` and the other loops in the block, in this thread, keep this pace.

    They do not write checkpoints meanwhile.
    """
    before = _pace.set(pace)
    noted = _compilations.set(())
    try:
        yield
    finally:
        _compilations.reset(noted)
        _pace.reset(before)


def current_pace() -> Pace | None:
    """The pace in force; None in an ordinary run."""
    return _pace.get()


def note_compilation(compilation: Compilation) -> None:
    """Remember, under a pace, whose compile time a step may contain."""
    if _pace.get() is not None:
        _compilations.set((*_compilations.get(), compilation))


def noted_compilations() -> tuple[Compilation, ...]:
    """The compilations made under the current pace, in order."""
    return _compilations.get()
