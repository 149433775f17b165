"""The command line: `weft data | train | bench`."""

from weft.cli.main import main

__all__ = ["main"]
