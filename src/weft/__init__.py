"""weft: sparse graphs woven into dense hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.planning.custom_model import plan as plan

__version__ = "0.1.0"

__all__ = ["__version__", "plan"]


def __getattr__(name: str) -> Any:
    """`weft.plan`, imported when it is asked for: `import weft` does not wait for torch."""
    if name == "plan":
        from weft.planning.custom_model import plan

        return plan
    raise AttributeError(f"module 'weft' has no attribute {name!r}")
