"""What the ranks of test_launch.py do; in a module of its own, for new processes to import."""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from weft.errors import DataError
from weft.parallel.world import joined_replicas
from weft.training.launch import LaunchStopped, launch
from weft.training.stopping import stop_on_signals


def rank() -> int:
    return int(os.environ["RANK"])


def join() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))


def add(value: float) -> tuple[float, int, int]:
    """The sum over the ranks of value * rank; this one's threads and its process."""
    join()
    total = torch.tensor(value * rank())
    dist.all_reduce(total)
    dist.destroy_process_group()
    sys.stdout.write(f"rank {rank()} is done\n")
    sys.stdout.flush()
    return float(total), torch.get_num_threads(), os.getpid()


def killed(folder: str, who: int, times: int) -> str:
    """Rank `who` is killed in the first collective, the first `times` times."""
    Path(folder, f"pid-{rank()}").write_text(str(os.getpid()))
    join()
    before = len(list(Path(folder).glob("dead-*")))
    dist.barrier()
    if before < times and rank() == who:
        Path(folder, f"dead-{before}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    return "whole"


def mistaken(who: int) -> None:
    """Rank `who` finds bad data while the others wait for it."""
    join()
    if rank() == who:
        raise DataError("x.npy: row 3 is not finite; repair it")
    dist.barrier()


def mistaken_first(text: str) -> None:
    """Rank 0 finds bad data before the others have their turn."""
    try:
        with joined_replicas() as world, world.in_turn():
            raise DataError(text)
    except DataError:
        if rank() == 0:
            # The others end first, and are still not the ones to be heard.
            time.sleep(1.0)
        raise


def broken(who: int) -> None:
    join()
    if rank() == who:
        raise KeyError("weight")
    dist.barrier()


def leaving(who: int) -> None:
    if rank() == who:
        sys.exit(3)
    time.sleep(3600)


def silent(who: int) -> None:
    """Rank `who` never comes to the collective."""
    join()
    # Only now: that both come so far may take longer on a busy machine.
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=2), dist.group.WORLD)
    if rank() == who:
        time.sleep(3600)
    dist.barrier()


def waiting(folder: str) -> None:
    """Works until it is asked to stop."""
    Path(folder, f"pid-{rank()}").write_text(str(os.getpid()))
    with stop_on_signals(patient=True) as request:
        Path(folder, f"ready-{rank()}").touch()
        while request.signal is None:
            time.sleep(0.05)
        Path(folder, f"stopped-{rank()}").write_text(request.signal)


def main(folder: Path) -> None:
    try:
        launch(waiting, (str(folder),), ranks=2, logs=folder / "logs")
    except LaunchStopped as stop:
        (folder / "said").write_text(str(stop))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
