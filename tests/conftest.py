import os
import sys
from collections.abc import Iterator

import pytest

# Threads that wait spin by default: beside any other busy process a small step takes ten times as
# long. Read when torch is loaded, so it is set before any test imports it; children inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Ranks of the tests outnumber any machine's GPUs, and what is compared are numbers of the CPU.
os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.fixture(autouse=True)
def _plain_arithmetic() -> Iterator[None]:
    """A command that trains flushes denormals in its process; the next test expects none of it."""
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)
