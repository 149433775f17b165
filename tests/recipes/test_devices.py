"""Recipes on a device that is not the CPU: everything is there, and the results are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import small_programs
import torch
from elsewhere import DEVICE, Elsewhere, There
from small_structures import config, molecules, table_of
from temporal_graphs import circles, grouped
from torch.optim import Adam

from weft.parallel.grid import Grid
from weft.parallel.world import World, alone
from weft.recipes.links.config import LinksConfig
from weft.recipes.links.training import prepare_links
from weft.recipes.nodes.config import NodesConfig
from weft.recipes.nodes.training import prepare_nodes
from weft.recipes.programs.training import train_programs
from weft.recipes.sparse_training import train_network
from weft.recipes.structures.training import train_structures
from weft.training import optimizers

SMALL: dict[str, Any] = {"dim": 6, "hidden": (12,), "walks": 20, "epochs": 2}


def structures(folder: Path, **options: Any) -> Callable[[World], Any]:
    asked = config(epochs=2, ema=0.9, **options)
    table = table_of(folder, molecules(), asked)
    return lambda world: train_structures(table, asked, world=world, quiet=True)


def nodes(folder: Path, **options: Any) -> Callable[[World], Any]:
    graph = grouped()
    if options["model"] == "gcn":
        graph = replace(graph, nodes={**graph.nodes, "x": torch.eye(graph.num_nodes).numpy()})
    prepared = prepare_nodes(graph, NodesConfig(**SMALL, **options))
    return lambda world: train_network(prepared, world=world, quiet=True)


def links(folder: Path, **options: Any) -> Callable[[World], Any]:
    prepared = prepare_links(circles(), LinksConfig(**SMALL, batch_size=101, **options))
    return lambda world: train_network(prepared, world=world, quiet=True)


def programs(folder: Path, **options: Any) -> Callable[[World], Any]:
    table, asked = small_programs.small_programs(40), small_programs.config(epochs=1, **options)
    return lambda world: train_programs(table, asked, world=world, quiet=True)


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (structures, {}),
        (structures, {"forces": "forces", "readout": "sum", "model": "painn"}),
        (structures, {"model": "mpeu"}),
        (nodes, {"model": "fnn"}),
        (nodes, {"model": "gcn"}),
        (links, {"sparsify": "rigl", "sparsity": 0.5}),
        (programs, {"dropout": 0.0}),
    ],
)
def test_another_device_has_all_that_is_computed_with(make, options, tmp_path, monkeypatch):
    # The stand-in has no fused optimizer.
    monkeypatch.setitem(
        optimizers._KINDS, "adam", lambda given, fused=False, **kw: Adam(given, **kw)
    )
    train = make(tmp_path, **options)
    here = train(alone(Grid(rows=1), 0))
    with Elsewhere():
        there = train(alone(Grid(rows=1), 0, DEVICE))
        weights = [p.detach() for p in there.model.parameters()]
        assert {type(p.data) for p in weights} == {There}
        moved = [p.cpu() for p in weights]
    assert there.result.steps == here.result.steps
    for name, value in here.result.metrics.items():
        assert there.result.metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
    for one, other in zip(here.model.parameters(), moved, strict=True):
        torch.testing.assert_close(other, one.detach(), rtol=1e-2, atol=1e-3)
