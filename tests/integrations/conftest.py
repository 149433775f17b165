"""Graphs in tests are small; weft's loops run on them nevertheless."""

from __future__ import annotations

import importlib.util
import warnings

import pytest


@pytest.fixture(autouse=True)
def _few_edges_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("torch_geometric") is not None:
        with warnings.catch_warnings():
            # torch_geometric's, when it is imported.
            warnings.simplefilter("ignore", DeprecationWarning)
            from weft.integrations.geometric import redirect
        monkeypatch.setattr(redirect, "LEAST_NUMBERS", 0)
