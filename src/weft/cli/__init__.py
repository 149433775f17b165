"""The command line: `weft data | train | bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import lazy_names

if TYPE_CHECKING:
    from weft.cli.main import main as main
else:
    __all__ = lazy_names(__name__)
