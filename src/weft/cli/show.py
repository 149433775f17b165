"""What several commands print."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console


def print_config(config: Any, console: Console) -> int:
    """Print a configuration dataclass as JSON."""
    console.out(json.dumps(asdict(config), indent=2, default=str), highlight=False)
    return 0
