"""Trains in children of this process that are killed or asked to stop, then resumed.

Run as a script with a folder; one import of torch serves all the children. Prints JSON: for each
case the metrics and the weights of the uninterrupted run and of the resumed ones.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # torch's optimizers import it in the end: once here, not in every child
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from weft.training import FitConfig, Run, fit, load_weights, read_metrics, seed_everything

SAMPLES, EPOCHS = 30, 3


class Shuffled:
    """Batches with a state of their own, as a sampler that resumes by itself has."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y, self.epoch, self.done = x, y, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.done = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.done = state["epoch"], state["done"]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch))
        for rows in order.split(8)[self.done :]:
            self.done += 1
            yield self.x[rows], self.y[rows]


def batches(case: str) -> Any:
    x = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(1))
    y = x.sum(1, keepdim=True).sin()
    if case == "full":
        return [(x, y)] * 4
    if case == "stateful":
        return Shuffled(x, y)
    generator = torch.Generator().manual_seed(7) if case == "generator" else None
    return DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True, generator=generator)


def train(case: str, folder: Path, at_step: int, act: Callable[[], None]) -> None:
    """One session of the run in `folder`; `act` is called in the middle of step `at_step`."""
    seed_everything(3)
    model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3))
    model.append(nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    # Moves Adam's first beta too, so the optimizer's groups must come back as well.
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=4 * EPOCHS)
    probe = torch.randn(20, 5, generator=torch.Generator().manual_seed(2))

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        x, y = batch
        # Noise from Python's own random numbers: these must come back too.
        error = model(x * (1 + 0.01 * random.random())) - y
        if int(scheduler.last_epoch) + 1 == at_step:
            act()
        return (error**2).mean(), {"absolute": error.abs().mean()}

    def evaluate(model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            return {"val": float((model(probe) - probe.sum(1, keepdim=True).sin()).abs().mean())}

    config = FitConfig(
        epochs=EPOCHS,
        monitor="val",
        checkpoint_every=3,
        log_every=1,
        clip_norm=5.0,
        ema=0.9 if case == "generator" else 0.0,
        quiet=True,
    )
    with Run.create(folder, {"case": case}, resume=True, tensorboard=False) as run:
        result = fit(
            model,
            optimizer,
            batches(case),
            loss,
            config=config,
            evaluate=evaluate,
            scheduler=scheduler,
            run=run,
        )
        if result.stopped == "finished":
            run.summarise(weights=[p.double().flatten().tolist() for p in model.parameters()])


def in_child(work: Callable[[], None]) -> int:
    """How a child that does `work` ends: its exit code, or minus the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            sys.stderr.write(repr(error))
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_write() -> None:
    """Die while the next checkpoint is on its way to the disk."""
    Path.replace = lambda self, target: kill()  # type: ignore[assignment,method-assign,return-value]


def outcome(folder: Path) -> dict[str, Any]:
    timed = ("seconds", "graphs_per_second")
    lines = [{k: v for k, v in o.items() if k not in timed} for o in read_metrics(folder)]
    summary = json.loads((folder / "summary.json").read_text())
    model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3))
    model.append(nn.Linear(16, 1))
    load_weights(model, folder)
    stored = [p.double().flatten().tolist() for p in model.parameters()]
    return {"metrics": lines, "model": summary["weights"], "stored": stored}


def stopped(folder: Path) -> str | None:
    summary = folder / "summary.json"
    return json.loads(summary.read_text())["stopped"] if summary.exists() else None


WAYS = {
    "kill": kill,
    "kill in write": kill_in_write,
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGINT": lambda: os.kill(os.getpid(), signal.SIGINT),
    # Twice, as the system and the shell both tell of a terminal that was closed.
    "SIGHUP": lambda: [os.kill(os.getpid(), signal.SIGHUP) for _ in range(2)],
}
# Checkpoints are at steps 3, 6, 9, 12; epochs end at 4, 8, 12.
PLAN = {
    "full": [("kill", 5), ("kill in write", 5), ("SIGTERM", 6), ("SIGHUP", 7)],
    "loader": [
        ("kill", 1),
        ("kill", 4),
        ("kill", random.randint(5, 12)),
        ("kill in write", 6),
        ("SIGTERM", 7),
        ("SIGINT", 8),
    ],
    "generator": [("kill", 5), ("kill", 12)],
    "stateful": [("kill", 5), ("kill", 8), ("SIGTERM", 7)],
}


def interrupted(case: str, folder: Path, way: str, step: int) -> dict[str, Any]:
    """Interrupt a run, resume it, and tell what happened."""
    ended = in_child(lambda: train(case, folder, step, WAYS[way]))
    reason = stopped(folder)
    left = [path.name for path in folder.iterdir() if path.suffix == ".partial"]
    resumed = in_child(lambda: train(case, folder, -1, lambda: None))
    about = {"way": way, "step": step, "ended": ended, "reason": reason, "left": left}
    return {**about, "resumed": resumed, **outcome(folder)}


def main(base: Path) -> None:
    report = []
    for case, interruptions in PLAN.items():
        ended = in_child(lambda: train(case, base / case, -1, lambda: None))  # noqa: B023
        whole = {"way": "none", "ended": ended, **outcome(base / case)}
        runs = [
            interrupted(case, base / f"{case}-{number}", way, step)
            for number, (way, step) in enumerate(interruptions)
        ]
        report.append({"case": case, "whole": whole, "runs": runs})
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
