"""Trains on programs in children of this process: several ranks, killed and stopped, resumed.

Run as a script with a folder; one import of torch serves all the children. Prints JSON: for each
case the losses of all steps of every rank, the metrics and the weights.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.multiprocessing
from small_programs import config, small_programs

from weft.parallel.world import joined_replicas
from weft.recipes.programs import training as programs
from weft.training import read_metrics
from weft.training.ranks import shared_run

SECONDS = 600
OPTIONS: dict[str, Any] = {
    "dropout": 0.2,
    "smoothing": 0.1,
    "supergraphs_per_step": 3,
    "epochs": 2,
    "checkpoint_every": 2,
    "start": "subtokens",
}


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])


def at_step(step: int, act: Callable[[], None], losses: list[float]) -> None:
    """Note the losses of all steps, and `act` in the middle of step `step`."""
    take, measure = programs.ProgramsStep.take, programs.candidate_loss

    def recorded(self: Any, model: Any, batch: Any) -> Any:
        found = take(self, model, batch)
        losses.append(found.loss)
        return found

    def acting(*parts: Any, **options: Any) -> Any:
        if torch.is_grad_enabled() and len(losses) + 1 == step:
            act()
        return measure(*parts, **options)

    programs.ProgramsStep.take = recorded  # type: ignore[method-assign]
    programs.candidate_loss = acting


def train(rank: int, size: int, port: int, folder: str, step: int, way: str, who: int) -> None:
    """One rank's session of the run in `folder`; rank `who` gets a signal in step `step`."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = str(port)
    losses: list[float] = []
    sent = []

    def act() -> None:
        if rank == who and not sent:
            sent.append(True)
            os.kill(os.getpid(), getattr(signal, way))

    at_step(step, act, losses)
    table, asked = small_programs(96), config(**OPTIONS)
    with (
        joined_replicas(timedelta(seconds=SECONDS)) as world,
        shared_run(Path(folder), asked, world, resume=True, tensorboard=False) as run,
    ):
        trained = programs.train_programs(table, asked, run=run, world=world, quiet=True)
        if rank == 0:
            weights = [p.double().flatten().tolist() for p in trained.model.parameters()]
            run.summarise(weights=weights, **trained.scores)
    report = {"losses": losses, "stopped": trained.result.stopped, "scores": trained.scores}
    Path(f"{folder}-{rank}.json").write_text(json.dumps(report))


def session(folder: Path, size: int, step: int = 0, way: str = "SIGTERM", who: int = 0) -> Any:
    """What each rank tells of one session; None for one that was killed."""
    paths = [Path(f"{folder}-{rank}.json") for rank in range(size)]
    for path in paths:
        path.unlink(missing_ok=True)
    arguments = (size, free_port(), str(folder), step, way, who)
    children = torch.multiprocessing.start_processes(
        train, arguments, nprocs=size, join=False, start_method="fork"
    )
    for process in children.processes:
        process.join(SECONDS)
    codes = [process.exitcode for process in children.processes]
    told = [json.loads(path.read_text()) if path.exists() else None for path in paths]
    return {"codes": codes, "ranks": told}


def outcome(folder: Path) -> dict[str, Any]:
    timed = ("seconds", "graphs_per_second")
    lines = [{k: v for k, v in o.items() if k not in timed} for o in read_metrics(folder)]
    return {
        "metrics": lines,
        "weights": json.loads((folder / "summary.json").read_text())["weights"],
    }


def main(base: Path) -> None:
    report: dict[str, Any] = {}
    for size in (1, 2, 3):
        folder = base / f"world{size}"
        report[f"world{size}"] = session(folder, size) | outcome(folder)
    killed = session(base / "killed", 1, 4, "SIGKILL")
    resumed = session(base / "killed", 1)
    report["killed"] = {"killed": killed, "resumed": resumed, **outcome(base / "killed")}
    # One rank of two hears of it: both stop after the same step.
    stopped = session(base / "stopped", 2, 3, "SIGTERM", 1)
    resumed = session(base / "stopped", 2)
    report["stopped"] = {"stopped": stopped, "resumed": resumed, **outcome(base / "stopped")}
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
