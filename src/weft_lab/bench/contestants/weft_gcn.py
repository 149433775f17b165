"""weft's GCN, a full-batch training epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

import weft
from weft.graphs import assemble, open_table
from weft.models import GCN, GCNConfig, with_first_product
from weft.training import prepare_process


def prepare(case: dict[str, Any]) -> tuple[Callable[[], None], dict[str, str]]:
    """One epoch over the table case["table"]; case["first_product"] keeps A x between epochs."""
    prepare_process()
    torch.manual_seed(0)
    batch = assemble(open_table(case["table"]), [0])
    features = batch.nodes["x"].shape[1]
    if case["first_product"]:
        batch = with_first_product(batch)
    y, train = batch.nodes["y"], batch.nodes["train"]
    model = GCN(
        features,
        case["classes"],
        GCNConfig(hidden=(case["hidden"],), dropout=0.5, input_dropout=0.0),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(batch)[train], y[train]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step, {"weft": weft.__version__, "torch": torch.__version__}
