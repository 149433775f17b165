"""How weft compiles its loops: numba, without the interpreter lock, cached between processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(**options: Any) -> Callable[[Loop], Loop]:
    """Decorator for a loop; `options` are numba's.

    Machine code is cached beside the source or in the user's cache folder. Where neither can be
    written (a read-only container), every process compiles anew.
    """

    def decorate(loop: Loop) -> Loop:
        try:
            dispatcher: Loop = njit(cache=True, nogil=True, **options)(loop)
        except RuntimeError:
            dispatcher = njit(nogil=True, **options)(loop)
        return dispatcher

    return decorate
