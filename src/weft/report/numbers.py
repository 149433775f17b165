"""Numbers as people read them."""

from __future__ import annotations

import math
from typing import Any


def number(value: float | None, digits: int = 4) -> str:
    """`value` with so many digits that count; a dash for nothing."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def seconds(value: float | None) -> str:
    """A time in the unit that suits it."""
    if value is None:
        return "–"
    if value == 0:
        return "0 s"
    for unit, scale in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        # Up to two of a unit, the smaller one says more.
        if value >= scale * (2 if scale > 1 else 1):
            return f"{value / scale:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"


def memory(value: float | None) -> str:
    """Bytes in the unit that suits them."""
    if value is None:
        return "–"
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} bytes"


def percent(value: float | None) -> str:
    """A share."""
    return "–" if value is None else f"{value:.1%}"


def plain(value: Any) -> str:
    """A setting's value."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value)) or "–"
    return f"{value:g}" if isinstance(value, float) else str(value)
