"""How fast this machine is: messages between ranks, matrix products, sparse products.

Ranks are processes of this machine that talk through gloo. Each size of group broadcasts a small
message, whose time is latency, and a large one, whose time beyond that is bandwidth.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessException, start_processes

from weft.errors import DataError
from weft.files import read_object
from weft.graphs import Graph, assemble, table_from_graphs
from weft.kernels import spmm
from weft.parallel.cost_model import Link, Machine, product_bytes
from weft.parallel.world import process_group

_SMALL, _LARGE = 8, 2**23
_ROUNDS = 9
_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What was measured.

    Attributes:
        links: α and β of groups of each size, of 2 ranks and more.
        flops: floating-point operations of a large matrix product, 1/s.
        spmm_bytes: bytes that a sparse product reads and writes, 1/s.
    """

    links: dict[int, Link]
    flops: float
    spmm_bytes: float

    def machine(self) -> Machine:
        """The machine of the cost model, with the link of the largest group."""
        return Machine(
            name=f"measured here with {max(self.links)} ranks",
            link=self.links[max(self.links)],
            flops=self.flops,
            spmm_bytes=self.spmm_bytes,
        )


def calibrate(ranks: int = 2) -> Calibration:
    """Measure this machine in some seconds, with groups of 2, 4, ... ranks up to `ranks`.

    Raises:
        ValueError: fewer than 2 ranks.
        TimeoutError: the ranks did not finish in five minutes.
        DataError: they cannot talk to each other.
    """
    if ranks < 2:
        raise ValueError(f"ranks is {ranks}; a message needs at least 2")
    with TemporaryDirectory() as folder:
        # Imports take longer than messages: a fork server does them once for all ranks.
        multiprocessing.set_forkserver_preload([__name__])
        context = start_processes(  # type: ignore[no-untyped-call]
            _rank, (ranks, folder), nprocs=ranks, join=False, start_method="forkserver"
        )
        deadline = time.monotonic() + _TIMEOUT.total_seconds()
        try:
            while not context.join(timeout=1.0):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{ranks} ranks did not exchange messages in "
                        f"{_TIMEOUT.total_seconds():.0f} s; is the loopback network usable?"
                    )
        except ProcessException as error:
            last = str(error).strip().rpartition("\n")[2]
            raise DataError(
                f"the ranks that measure this machine have failed ({last}); give --alpha and "
                "--beta instead"
            ) from error
        finally:
            for process in context.processes:
                if process.is_alive():
                    process.kill()
        measured = read_object(Path(folder) / "links.json")
    # After the ranks have ended: they would take the processor away.
    flops, spmm_bytes = local_rates()
    links = {int(size): Link(**link) for size, link in measured.items()}
    return Calibration(links=links, flops=flops, spmm_bytes=spmm_bytes)


def local_rates(nodes: int = 2**15, degree: int = 16, width: int = 32) -> tuple[float, float]:
    """FLOP/s of a matrix product and bytes/s of a sparse product, float32, all threads."""
    size = 1024
    square = torch.ones(size, size)
    graph = Graph(
        num_nodes=nodes,
        senders=np.random.default_rng(0).integers(0, nodes, nodes * degree),
        receivers=np.repeat(np.arange(nodes), degree),
    )
    batch, x = assemble(table_from_graphs([graph]), [0]), torch.ones(nodes, width)
    weight = torch.ones(nodes * degree)
    flops = 2 * size**3 / _median_seconds(lambda: square @ square)
    moved = product_bytes(nodes, nodes * degree, width, 4)
    return flops, moved / _median_seconds(lambda: spmm(batch, x, weight))


def _rank(rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    with process_group(init_method=meeting, rank=rank, ranks=ranks, timeout=_TIMEOUT):
        links = {}
        size = 2
        while True:
            # All ranks must name every group, also those that they are not in.
            group = dist.new_group(list(range(size)))
            if rank < size:
                small, large = (_round_trip(count, group) for count in (_SMALL, _LARGE))
                links[size] = {
                    "alpha": small / 2 / math.log2(size),
                    # A busy machine may disturb either: never nothing, never negative.
                    "beta": max(large - small, 1e-3 * large) / _LARGE,
                }
            if size == ranks:
                break
            size = min(2 * size, ranks)
        if rank == 0:
            (Path(folder) / "links.json").write_text(json.dumps(links), encoding="utf-8")
        dist.barrier()


def _round_trip(count: int, group: dist.ProcessGroup) -> float:
    """Seconds of a broadcast of `count` bytes and of a small one back."""
    message = torch.zeros(count, dtype=torch.uint8)
    answer = torch.zeros(_SMALL, dtype=torch.uint8)

    def there_and_back() -> None:
        # The source of a broadcast may go on before anybody has received it: it waits for an
        # answer of the last of the others.
        dist.broadcast(message, 0, group)
        dist.broadcast(answer, dist.get_world_size(group) - 1, group)

    return _median_seconds(there_and_back)


def _median_seconds(work: Callable[[], object]) -> float:
    samples = []
    for _ in range(_ROUNDS + 1):
        start = time.perf_counter()
        work()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples[1:])
