"""What the ranks of the tests of full-graph training do, for new processes to import."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import weft.cli.train  # noqa: F401  (once for all ranks that run a command)
from weft.cli import main
from weft.errors import DataError
from weft.graphs import GraphTable, open_table
from weft.parallel.grid import Grid
from weft.parallel.network import GridNetwork
from weft.parallel.world import World, joined
from weft.recipes.full_graph import training as full_graph
from weft.recipes.full_graph.session import check_alike
from weft.recipes.full_graph.training import FullGraphConfig


def dying(path: Path, config: FullGraphConfig, grid: Grid, session: dict[str, Any]) -> Any:
    """A rank of `train_full_graph`; `die.json` beside the run says which is killed, and when."""
    beside = session["folder"].parent
    plan = json.loads((beside / "die.json").read_text())
    step = GridNetwork.step

    def killed(self: GridNetwork, seed: int) -> float:
        dead = beside / f"dead-{plan['epoch']}"
        if self.world.rank == plan["rank"] and seed % 2**32 == plan["epoch"] and not dead.exists():
            dead.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, seed)

    GridNetwork.step = killed  # type: ignore[method-assign]
    try:
        return full_graph._train_launched(path, config, grid, session)
    finally:
        GridNetwork.step = step  # type: ignore[method-assign]


def disagreeing(paths: list[list[str]], config: FullGraphConfig) -> list[str]:
    """What `check_alike` says where this rank has the last table of each pair, and others not."""
    odd = 1
    said = []
    with joined("1d", timeout=timedelta(seconds=300)) as world:
        for first, last in paths:
            table = open_table(last if world.rank == odd else first)
            said.append(_said(table, world, config))
        table = open_table(paths[0][0])
        other = replace(config, learning_rate=0.5) if world.rank == odd else config
        said.append(_said(table, world, other))
        said.append(_said(table, world, config))
    return said


def _said(table: GraphTable, world: World, config: FullGraphConfig) -> str:
    try:
        check_alike(table, world, config)
    except DataError as error:
        return str(error)
    return "alike"


def command(words: list[str], restarts: int) -> int:
    """Run `weft WORDS` as a rank that torchrun has started, and started again so often."""
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(restarts)
    sys.argv = ["weft", *words]
    return main(words)
