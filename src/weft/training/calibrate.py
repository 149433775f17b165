"""How fast this machine is: messages between ranks, matrix products, sparse products.

Ranks are processes of this machine that talk through gloo. Each size of group broadcasts a small
message, whose time is latency, and a large one, whose time beyond that is bandwidth.
"""

from __future__ import annotations

import math
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

from weft.errors import DataError
from weft.graphs import Graph, assemble, table_from_graphs
from weft.kernels import spmm
from weft.parallel.cost_model import Link, Machine, product_bytes
from weft.parallel.world import joined_replicas
from weft.training.launch import LaunchStopped, RankError, launch

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
        DataError: the ranks cannot talk to each other.
    """
    if ranks < 2:
        raise ValueError(f"ranks is {ranks}; a message needs at least 2")
    with TemporaryDirectory(prefix="weft-calibrate-") as folder:
        try:
            measured = launch(_rank, ranks=ranks, logs=Path(folder))[0]
        except LaunchStopped:
            raise KeyboardInterrupt from None
        except RankError as error:
            raise DataError(
                f"the ranks that measure this machine have failed ({error}); give --alpha and "
                "--beta instead"
            ) from error
    # After the ranks have ended: they would take the processor away.
    flops, spmm_bytes = local_rates()
    return Calibration(links=measured, flops=flops, spmm_bytes=spmm_bytes)


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


def _rank() -> dict[int, Link]:
    """What each rank measures; rank 0 is in all groups."""
    torch.set_num_threads(1)
    links = {}
    with joined_replicas(_TIMEOUT) as world:
        size = 2
        while True:
            # All ranks must name every group, also those that they are not in.
            group = dist.new_group(list(range(size)))
            if world.rank < size:
                small, large = (_round_trip(count, group) for count in (_SMALL, _LARGE))
                # A busy machine may disturb either: never nothing, never negative.
                beta = max(large - small, 1e-3 * large) / _LARGE
                links[size] = Link(alpha=small / 2 / math.log2(size), beta=beta)
            if size == world.ranks:
                break
            size = min(2 * size, world.ranks)
        dist.barrier()
    return links


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
