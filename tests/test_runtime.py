from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import weft


def test_works_where_no_cache_can_be_written() -> None:
    # Root may write anywhere, so numba is told that it knows no place for its cache.
    script = (
        "import numba.core.caching as c\n"
        "c.CacheImpl._locator_classes = []\n"
        "import numpy as np\n"
        "from weft.graphs.edge_loops import group_starts\n"
        "print(group_starts(np.array([0, 2, 2]), 3).tolist())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(weft.__file__).parents[1])},
    )
    assert result.stdout.strip() == "[0, 1, 1, 3]"
