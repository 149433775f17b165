"""What a product with each form of an adjacency costs here, estimated in seconds.

Forward and backward of one step, for N nodes, E distinct edges of P types and H features. The rates
of the machine are measured once a process: large matrix products, batched products of blocks by
their size, gathered bytes and copied bytes. Estimates are right to about a factor of two.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from weft.graphs import Array
from weft.layout.csr import TypedEdges

_BLOCKS = (8, 32, 128, 512)
# Rows of the products that are timed: the results are larger than a cache.
_CALIBRATED_ROWS = 2**15
_LADDER = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a machine does in a second.

    Attributes:
        products: multiply-adds of a large matrix product.
        batched: multiply-adds of batched products, for blocks of each of `blocks` sources.
        blocks: ascending numbers of sources.
        gathered: bytes that a sparse product reads at edges.
        copied: bytes that a copy reads and writes.
    """

    products: float
    batched: tuple[float, ...]
    blocks: tuple[int, ...]
    gathered: float
    copied: float

    def batched_at(self, sources: int) -> float:
        """Multiply-adds a second of blocks with this many sources, between those measured."""
        return float(np.exp(np.interp(np.log(sources), np.log(self.blocks), np.log(self.batched))))


def machine_rates(device: torch.device | str = "cpu") -> Rates:
    """The rates of a device, measured in a second or two and remembered by this process."""
    return _measured_rates(str(device), torch.get_num_threads())


# The timed steps need gradients, even if this is called during a prediction.
@functools.cache
@torch.inference_mode(False)
@torch.enable_grad()
def _measured_rates(device: str, threads: int) -> Rates:
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    size, width = 1024, 64
    square, source, target = randn(size, size), randn(2**22), randn(2**22)
    edges = _band_of_edges().to(device)
    weight, gradient = randn(1, width, width).requires_grad_(), randn(edges.num_nodes, width)
    h = randn(edges.num_nodes, width).requires_grad_()

    def sparse() -> object:
        return torch.autograd.grad(edges.propagate(h, weight), (h, weight), gradient)

    works: list[Callable[[], object]] = [
        lambda: square @ square,
        lambda: target.copy_(source),
        sparse,
    ]
    works += [_batched_product(block, width, randn) for block in _BLOCKS]
    products, copy, sparse_product, *batched = timed_by_turns(works, device)
    rate = size**3 / products
    transform = 3 * edges.num_rows * width**2 / rate
    gathered = _gathered_bytes(edges.into_nodes.shape[0], edges.num_rows, width)
    return Rates(
        products=rate,
        batched=tuple(
            2 * _CALIBRATED_ROWS * block * width / spent
            for block, spent in zip(_BLOCKS, batched, strict=True)
        ),
        blocks=_BLOCKS,
        gathered=gathered / max(sparse_product - transform, sparse_product / 10),
        copied=2 * source.nbytes / copy,
    )


def _band_of_edges(nodes: int = 16384, degree: int = 12) -> TypedEdges:
    """Senders near their receivers, as in batches of graphs."""
    receivers = np.repeat(np.arange(nodes), degree)
    near = np.random.default_rng(0).integers(-64, 64, nodes * degree)
    kinds = np.zeros(nodes * degree, dtype=np.int64)
    return TypedEdges.of((receivers + near) % nodes, receivers, kinds, nodes, 1, aggregate=True)


def _batched_product(
    block: int, width: int, randn: Callable[..., Tensor]
) -> Callable[[], tuple[Tensor, Tensor]]:
    """Blocks of `block` sources and 8 types, forward and backward."""
    count, targets = _CALIBRATED_ROWS // (8 * block), 8 * block
    rows, own, back = (
        randn(count, targets, block),
        randn(count, block, width),
        randn(count, targets, width),
    )
    return lambda: (rows @ own, rows.mT @ back)


def timed_by_turns(
    works: Sequence[Callable[[], object]], device: torch.device | str, rounds: int = 5
) -> list[float]:
    """Median seconds of each of `works`, after one call that is not counted.

    They alternate, so that other load on the machine slows all of them alike.
    """
    samples: list[list[float]] = [[] for _ in works]
    for _ in range(rounds + 1):
        for own, work in zip(samples, works, strict=True):
            start = time.perf_counter()
            work()
            if torch.device(device).type == "cuda":
                torch.cuda.synchronize(device)
            own.append(time.perf_counter() - start)
    return [statistics.median(own[1:]) for own in samples]


def _gathered_bytes(edges: int, rows: int, hidden: int) -> int:
    # Once forward, twice backward; a row is written and read where an edge is only read.
    return 3 * 4 * hidden * (edges + rows)


def csr_seconds(edges: int, rows: int, hidden: int, rates: Rates) -> float:
    """Seconds of TypedEdges with this many distinct edges and rows."""
    transform = 3 * rows * hidden**2 / rates.products
    return transform + _gathered_bytes(edges, rows, hidden) / rates.gathered


def banded_cells(num_nodes: int, num_types: int, block: int) -> int:
    """Numbers that BandedAdjacency multiplies with."""
    blocks = max(-(-num_nodes // block), 1)
    return blocks * block**2 * num_types * (3 if blocks > 1 else 1)


def banded_seconds(num_nodes: int, num_types: int, block: int, hidden: int, rates: Rates) -> float:
    """Seconds of BandedAdjacency without spill."""
    blocks = max(-(-num_nodes // block), 1)
    sources = block if blocks == 1 else 3 * block
    # Three blocks of sources are put side by side, and taken apart again on the way back.
    copied = 0 if blocks == 1 else 12 * 4 * blocks * block * hidden
    return _products_seconds(blocks, num_types, block, sources, hidden, rates) + (
        copied / rates.copied
    )


def dense_seconds(
    num_nodes: int, num_graphs: int, num_types: int, block: int, hidden: int, rates: Rates
) -> float:
    """Seconds of DenseAdjacency."""
    rows = num_graphs * block
    # Into the blocks and out of them, both ways, unless the nodes fill them as they are.
    copied = 0 if rows == num_nodes else 8 * 4 * rows * hidden
    return _products_seconds(num_graphs, num_types, block, block, hidden, rates) + (
        copied / rates.copied
    )


def _products_seconds(
    blocks: int, num_types: int, block: int, sources: int, hidden: int, rates: Rates
) -> float:
    """A batched product and a large one, with the derivatives that they need: one and two."""
    rows = blocks * block * num_types
    sums = 2 * rows * sources * hidden / rates.batched_at(sources)
    return sums + 3 * rows * hidden**2 / rates.products


def blocks_from(least: int, num_nodes: int) -> list[int]:
    """Block sizes to consider: not below `least`, and one that holds all nodes."""
    exact = max(-(-least // 8) * 8, 1)
    sizes = {size for size in _LADDER if least <= size < num_nodes} | {max(num_nodes, 1)}
    return sorted(sizes | ({exact} if 0 < exact < num_nodes else set()))


def choose_block(
    bandwidths: Array | int,
    num_nodes: int,
    num_types: int,
    hidden: int = 128,
    *,
    rates: Rates | None = None,
) -> int:
    """The block size with the least cost that holds every edge.

    Args:
        bandwidths: of the graphs, see `band_statistics`.
        num_nodes: N of a batch.
        num_types: P.
        hidden: H.
        rates: of the machine; those of its processor by default.
    """
    rates = machine_rates() if rates is None else rates
    sizes = blocks_from(int(np.max(bandwidths, initial=1)), num_nodes)
    return min(sizes, key=lambda size: banded_seconds(num_nodes, num_types, size, hidden, rates))
