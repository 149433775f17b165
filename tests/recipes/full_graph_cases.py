"""What the ranks of the tests of full-graph training do, for new processes to import."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
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
from weft.training import checkpoint


def dying(path: Path, config: FullGraphConfig, grid: Grid, session: dict[str, Any]) -> Any:
    """A rank of `train_full_graph`; `die.json` beside the run says which is killed, when and where.

    `epoch` is the step, or the evaluation or the checkpoint, counted from 1. `where` is `step`;
    `collective`, number `message` of those that the layers of the step start, while it is under
    way; `evaluation`, in the same way; or `checkpoint`, when half of it is in its file.
    """
    beside = session["folder"].parent
    plan = json.loads((beside / "die.json").read_text())
    where, epoch, rank = plan.get("where", "step"), plan["epoch"], plan["rank"]
    dead = beside / f"dead-{epoch}"
    step, evaluate, start = GridNetwork.step, GridNetwork.evaluate, World._start
    write = checkpoint.write_atomically
    # What is under way, how many evaluations and checkpoints there were, messages of this one.
    now: dict[str, Any] = {"in": "", "evaluation": 0, "checkpoint": 0, "messages": 0}

    def die() -> None:
        if not dead.exists():
            dead.write_text(now["in"])
            os.kill(os.getpid(), signal.SIGKILL)

    def stepped(self: GridNetwork, seed: int) -> float:
        if self.world.rank == rank and seed % 2**32 == epoch:
            if where == "step":
                die()
            now.update({"in": "collective", "messages": 0})
        found = step(self, seed)
        now["in"] = ""
        return found

    def evaluated(self: GridNetwork, **options: Any) -> dict[str, float]:
        # One before the graph is there only loads code, in a world of one rank.
        now["evaluation"] += self.world.ranks > 1
        if self.world.rank == rank and now["evaluation"] == epoch:
            now.update({"in": "evaluation", "messages": 0})
        found = evaluate(self, **options)
        now["in"] = ""
        return found

    def started(self: World, kind: Any, along: Any, received: int, purpose: str, *rest: Any) -> Any:
        pending = start(self, kind, along, received, purpose, *rest)
        of_layer = purpose not in ("loss", "weights", "setup") or where == "evaluation"
        if now["in"] == where and self.size(along) > 1 and of_layer:
            now["messages"] += 1
            if now["messages"] == plan["message"]:
                die()
        return pending

    def written(target: Path, writer: Any) -> None:
        def half(file: Any) -> None:
            whole = io.BytesIO()
            writer(whole)
            file.write(whole.getvalue()[: len(whole.getvalue()) // 2])
            file.flush()
            now["in"] = "checkpoint"
            die()
            file.write(whole.getvalue()[len(whole.getvalue()) // 2 :])

        now["checkpoint"] += target.name == checkpoint.CHECKPOINT
        fatal = where == "checkpoint" and now["checkpoint"] == epoch
        write(target, half if fatal and target.name == checkpoint.CHECKPOINT else writer)

    GridNetwork.step, GridNetwork.evaluate = stepped, evaluated  # type: ignore[method-assign]
    World._start = started  # type: ignore[method-assign, assignment]
    checkpoint.write_atomically = written
    try:
        return full_graph._train_launched(path, config, grid, session)
    finally:
        GridNetwork.step, GridNetwork.evaluate = step, evaluate  # type: ignore[method-assign]
        World._start, checkpoint.write_atomically = start, write  # type: ignore[method-assign]


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


def refusals(commands: list[list[str]], local_ranks: list[int]) -> list[tuple[int, str]]:
    """Exit codes and last lines of `weft WORDS`; the ranks have these numbers on their hosts.

    `{rank}` in a word is this rank's number.
    """
    rank = os.environ["RANK"]
    os.environ["LOCAL_RANK"] = str(local_ranks[int(rank)])
    found = []
    for words in commands:
        with redirect_stderr(io.StringIO()) as errors, redirect_stdout(io.StringIO()):
            code = main([word.replace("{rank}", rank) for word in words])
        found.append((code, errors.getvalue().rstrip().rpartition("\n")[2]))
    return found


def command(words: list[str], restarts: int) -> int:
    """Run `weft WORDS` as a rank that torchrun has started, and started again so often."""
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(restarts)
    sys.argv = ["weft", *words]
    return main(words)
