"""Runs a script of this folder in a process of its own, since it forks and kills, and reads it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def report_of(script: str, folder: Path) -> Any:
    """The JSON that the script, beside this file or anywhere, prints when it works in `folder`."""
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / script), str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
