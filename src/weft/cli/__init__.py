"""The command line: `weft data | train | predict | plan | report | ...`."""

from weft.cli.main import main

__all__ = ["main"]
