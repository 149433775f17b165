"""torch_geometric's models, where it is installed."""

from __future__ import annotations

import warnings
from typing import Any

import pytest


def geometric_models() -> Any:
    """The module with GCN, GraphSAGE, GAT and GIN; skips the test where there is none."""
    pytest.importorskip("torch_geometric")
    with warnings.catch_warnings():
        # Its import uses what torch has deprecated.
        warnings.simplefilter("ignore")
        from torch_geometric.nn import models

    return models
