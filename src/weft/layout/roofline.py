"""What the forms of an adjacency cost on an accelerator that is not at hand: a roofline model.

An operator takes as long as its multiply-adds at the peak rate or its bytes at the full bandwidth,
whichever is longer, after the time in which it starts. A matrix unit multiplies whole tiles: sizes
are rounded up. Nothing here has been timed; ASSUMPTIONS says what the figures leave out.

N nodes, K blocks of S, P edge types, E distinct edges, R rows of the sparse form, H features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from weft.errors import DataError
from weft.files import read_object


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """The figures of a machine, of one core each.

    Attributes:
        name: of the machine.
        flops: of its matrix unit at the peak, 1/s.
        bandwidth: of its memory, bytes/s.
        tile: rows, columns and depth of the least product that its matrix unit takes; products are
            rounded up to it.
        gather: share of the bandwidth that rows reach which are read by index.
        start: s until an operator begins.
        memory: bytes.
        cores: each with a supergraph of its own at a time.
        item: bytes of a number in products.
    """

    name: str
    flops: float
    bandwidth: float
    tile: tuple[int, int, int]
    gather: float
    start: float
    memory: float
    cores: int = 1
    item: int = 2

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            for number in value if field.name == "tile" else (value,):
                right = isinstance(number, int | float) and 0 < number < math.inf
                if field.name != "name" and not right:
                    raise ValueError(f"{field.name} is {value}; it must be positive")
        if len(self.tile) != 3:
            raise ValueError(f"tile is {self.tile}; give three: rows, columns and depth")


ACCELERATORS: Mapping[str, Accelerator] = {
    each.name: each
    for each in (
        Accelerator(
            name="tpu-v2-8",
            flops=22.5e12,
            bandwidth=350e9,
            tile=(8, 128, 128),
            gather=0.05,
            start=2e-6,
            memory=8e9,
            cores=8,
        ),
        Accelerator(
            name="a100",
            flops=312e12,
            bandwidth=2.039e12,
            tile=(16, 8, 16),
            gather=0.5,
            start=5e-6,
            memory=80e9,
        ),
        Accelerator(
            name="h100",
            flops=989e12,
            bandwidth=3.35e12,
            tile=(64, 8, 16),
            gather=0.5,
            start=5e-6,
            memory=80e9,
        ),
    )
}
"""Published peaks in bfloat16: half of a TPU v2 chip, A100 80 GB SXM, H100 SXM. `gather` and
`start` are assumptions."""

ASSUMPTIONS = (
    "products run at the peak rate of the matrix unit, in numbers of `item` bytes, and bytes "
    "travel at the full bandwidth of the memory: no real program does either",
    "an operator takes the longer of the two, after its start; nothing overlaps with another "
    "operator, and nothing stays in a cache between two",
    "sizes of products are rounded up to the tile of the matrix unit",
    "rows read by index reach `gather` of the bandwidth, a guess and no published figure",
    "blocks are cast from int8 once a supergraph, read by every product, and multiplied whole, "
    "zeros included; the sparse form multiplies all types in one operator",
    "edges outside the blocks are multiplied as sparse ones, unless they are dropped",
    "counted are the messages and the gated unit, forward and backward; subtokens, readout, loss, "
    "optimizer, loading and what travels between cores are left out",
    "a larger supergraph is a larger step of the optimizer; how well it learns is not modelled",
)
"""What the model takes for granted, in sentences without their full stops."""


def accelerator(name_or_file: str) -> Accelerator:
    """One of ACCELERATORS, or that of a JSON file with the fields of `Accelerator`.

    Raises:
        ValueError: there is neither.
        DataError: the file describes none; the message names the field.
    """
    if name_or_file in ACCELERATORS:
        return ACCELERATORS[name_or_file]
    path = Path(name_or_file)
    if not path.is_file():
        raise ValueError(
            f"machine is {name_or_file!r}; choose from {', '.join(ACCELERATORS)}, or name a JSON "
            f"file with {', '.join(field.name for field in fields(Accelerator))}"
        )
    try:
        values = read_object(path, {"tile": list})
        return Accelerator(**{**values, "tile": tuple(values["tile"])})
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} does not describe an accelerator ({error})") from None


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operator, or several that are alike.

    Attributes:
        flops: of products, sizes rounded up.
        wanted: the same, not rounded.
        bytes: read and written in order.
        gathered: bytes that are read by index.
        times: operators that do this.
    """

    flops: float = 0.0
    wanted: float = 0.0
    bytes: float = 0.0
    gathered: float = 0.0
    times: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Seconds of operations on one core, by what they wait for.

    Attributes:
        products: of operators that the matrix unit holds up.
        traffic: of those that the memory holds up.
        starts: until operators begin.
        rounding: multiply-adds of products over those of their sizes as they are.
    """

    products: float
    traffic: float
    starts: float
    rounding: float

    @property
    def seconds(self) -> float:
        """All of them."""
        return self.products + self.traffic + self.starts

    @property
    def bound(self) -> str:
        """What most of the time is spent on, in a word or two."""
        parts = {
            "products": self.products,
            "memory": self.traffic,
            "starting operators": self.starts,
        }
        return max(parts, key=lambda name: parts[name])


def roofline(machine: Accelerator, operations: Sequence[Operation]) -> Roofline:
    """What these operations take, one after another."""
    products = traffic = starts = 0.0
    for each in operations:
        computed = each.flops / machine.flops
        read = each.bytes + each.gathered / machine.gather
        moved = read / machine.bandwidth
        products += each.times * computed if computed >= moved else 0.0
        traffic += each.times * moved if computed < moved else 0.0
        starts += each.times * machine.start
    wanted = sum(each.times * each.wanted for each in operations)
    rounded = sum(each.times * each.flops for each in operations)
    return Roofline(
        products=products,
        traffic=traffic,
        starts=starts,
        rounding=rounded / wanted if wanted else 1.0,
    )


def product(
    machine: Accelerator, rows: float, columns: float, depth: float, count: int = 1
) -> Operation:
    """`count` products of [rows, depth] and [depth, columns]."""
    sizes = (rows, columns, depth)
    padded = [math.ceil(size / unit) * unit for size, unit in zip(sizes, machine.tile, strict=True)]
    operands = rows * depth + depth * columns + rows * columns
    return Operation(
        flops=2.0 * count * math.prod(padded),
        wanted=2.0 * count * math.prod(sizes),
        bytes=machine.item * count * operands,
    )


def banded_operations(
    machine: Accelerator, *, nodes: int, types: int, block: int, hidden: int, rounds: int
) -> list[Operation]:
    """Messages of `rounds` rounds by blocks beside the diagonal, forward and backward."""
    blocks = -(-nodes // block)
    sources = block if blocks == 1 else 3 * block
    # Three blocks of states beside each other, and their gradients added up again.
    shifts = [] if blocks == 1 else [Operation(bytes=6.0 * machine.item * nodes * hidden, times=2)]
    return _block_operations(machine, blocks, block, sources, types, hidden, rounds, shifts)


def dense_operations(
    machine: Accelerator, *, graphs: int, types: int, block: int, hidden: int, rounds: int
) -> list[Operation]:
    """Messages with a block for each graph, forward and backward."""
    # Nodes into blocks and out of them.
    moved = 2.0 * machine.item * graphs * block * hidden
    shifts = [Operation(bytes=moved / 2, gathered=moved / 2, times=4)]
    return _block_operations(machine, graphs, block, block, types, hidden, rounds, shifts)


def _block_operations(
    machine: Accelerator,
    blocks: int,
    block: int,
    sources: int,
    types: int,
    hidden: int,
    rounds: int,
    shifts: list[Operation],
) -> list[Operation]:
    rows, wide = blocks * block, types * hidden
    cells = rows * types * sources
    each_round = [
        *shifts,
        # Sums over the sources, and their gradient.
        product(machine, block * types, hidden, sources, blocks),
        product(machine, sources, hidden, block * types, blocks),
        # The matrices of all types: the messages, the gradients of the sums and of the matrices.
        product(machine, rows, hidden, wide),
        product(machine, rows, wide, hidden),
        product(machine, wide, hidden, rows),
    ]
    cast = Operation(bytes=cells * (1.0 + machine.item))
    return [cast, *(_repeated(each, rounds) for each in each_round)]


def sparse_operations(
    machine: Accelerator,
    *,
    edges: float,
    rows: Sequence[float],
    nodes: int,
    hidden: int,
    rounds: int,
) -> list[Operation]:
    """Messages of `rounds` rounds by the edges alone, forward and backward.

    Args:
        machine: the figures.
        edges: E.
        rows: of each type, those that are multiplied with its matrix.
        nodes: N.
        hidden: H.
        rounds: T.
    """
    if not edges:
        return []
    vector, total = machine.item * hidden, sum(rows)
    # Summed into rows, and rows into nodes: one of the two reads each edge, the other each row.
    sums = Operation(
        bytes=4.0 * (edges + total) / 2 + vector * (total + nodes) / 2,
        gathered=vector * (edges + total) / 2,
        times=4,
    )
    products = [product(machine, count, hidden, hidden) for count in rows if count]
    together = Operation(
        flops=sum(each.flops for each in products),
        wanted=sum(each.wanted for each in products),
        bytes=sum(each.bytes for each in products),
        times=3,
    )
    return [_repeated(sums, rounds), _repeated(together, rounds)]


def unit_operations(
    machine: Accelerator, *, nodes: int, hidden: int, rounds: int
) -> list[Operation]:
    """The gated unit of `rounds` rounds, forward and backward; the same for every form."""
    forward = product(machine, nodes, 3 * hidden, hidden)
    by_states = product(machine, nodes, hidden, 3 * hidden)
    by_weights = product(machine, 3 * hidden, hidden, nodes)
    # Sums and gates are read, gates and states written; and their gradients.
    gates = Operation(bytes=14.0 * machine.item * nodes * hidden, times=2)
    operations = (forward, by_states, by_weights, gates)
    return [_repeated(each, rounds * (1 if each is gates else 2)) for each in operations]


def block_memory(
    machine: Accelerator, *, cells: float, nodes: int, types: int, hidden: int, rounds: int
) -> float:
    """Bytes of the blocks, as int8 and cast, and of what the way back needs of every round."""
    return cells * (1 + machine.item) + rounds * nodes * hidden * machine.item * (types + 6)


def _repeated(operation: Operation, times: int) -> Operation:
    return Operation(
        flops=operation.flops,
        wanted=operation.wanted,
        bytes=operation.bytes,
        gathered=operation.gathered,
        times=operation.times * times,
    )
