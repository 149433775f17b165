import sys

import pytest


@pytest.fixture(autouse=True)
def _peers_of_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same result whether or not `make peers` was run in this checkout."""
    monkeypatch.setenv("WEFT_PEERS_PYTHON", sys.executable)
