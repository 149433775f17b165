"""What several commands print."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from weft.training import FitResult


def print_config(config: Any, console: Console) -> int:
    """Print a configuration dataclass as JSON."""
    console.out(json.dumps(asdict(config), indent=2, default=str), highlight=False)
    return 0


def interrupted(result: FitResult, folder: Path, console: Console, *, show: bool = True) -> int:
    """Say how to go on with a run that a signal has stopped; the exit code for that signal."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    if show:
        console.print(
            f"{result.stopped} after epoch {result.epochs}, step {result.steps}; everything is in "
            f"{folder}. Go on with:\n  {shlex.join(['weft', *words, '--resume'])}",
            soft_wrap=True,
        )
    return 128 + int(signal.Signals[result.stopped.removeprefix("interrupted by ")])
