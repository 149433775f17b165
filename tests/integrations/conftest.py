"""Graphs in tests are small; weft's loops run on them nevertheless."""

from __future__ import annotations

import importlib.util

import pytest


@pytest.fixture(autouse=True)
def _few_edges_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("torch_geometric") is not None:
        from weft.integrations.geometric import redirect

        monkeypatch.setattr(redirect, "LEAST_NUMBERS", 0)
