"""What ranks run on, as the cost model sees it: latency, bandwidth, rates of products."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import get_args

from weft.errors import DataError
from weft.files import read_object, write_atomically
from weft.parallel.recorder import Along


def _check_positive(value: object, *names: str) -> None:
    for name in names:
        number = getattr(value, name)
        if not (isinstance(number, int | float) and 0 < number < math.inf):
            raise ValueError(f"{name} is {number}; it must be a positive number")


@dataclass(frozen=True, kw_only=True)
class Link:
    """The way between two ranks.

    Attributes:
        alpha: latency of a message, s.
        beta: inverse bandwidth, s/byte.
    """

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        _check_positive(self, "alpha", "beta")


NETWORKS: Mapping[str, Link] = {
    "ethernet-10": Link(alpha=30e-6, beta=1 / 1.1e9),
    "infiniband-100": Link(alpha=2e-6, beta=1 / 11e9),
}
"""Usual figures of two networks: 10 Gb/s Ethernet with TCP, 100 Gb/s InfiniBand."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the ranks run on.

    Attributes:
        name: where the figures come from.
        link: between any two ranks.
        links: between ranks along a dimension of the grid, where that differs: `layer` inside a
            host, say, and the others between hosts.
        flops: floating-point operations of a matrix product on one rank, 1/s.
        spmm_bytes: bytes that a sparse product of one rank reads and writes, 1/s.
    """

    name: str
    link: Link
    links: Mapping[str, Link] = field(default_factory=dict)
    flops: float = 1e12
    spmm_bytes: float = 5e10

    def __post_init__(self) -> None:
        _check_positive(self, "flops", "spmm_bytes")
        for name in self.links:
            if name not in get_args(Along):
                raise ValueError(
                    f"links has '{name}'; a dimension is one of {', '.join(get_args(Along))}"
                )

    def along(self, dimension: str) -> Link:
        """The link along a dimension of the grid."""
        return self.links.get(dimension, self.link)


def save_machine(machine: Machine, path: Path) -> None:
    """Write a machine as JSON, whole or not at all."""
    text = json.dumps(asdict(machine), indent=1)
    write_atomically(path, lambda file: file.write(text.encode()))


def load_machine(path: Path) -> Machine:
    """Read what `save_machine` has written, or a file of the same form.

    Raises:
        DataError: it is not one; the message names the field.
    """
    try:
        fields = read_object(path, {"link": dict})
        links = {name: Link(**link) for name, link in fields.pop("links", {}).items()}
        return Machine(link=Link(**fields.pop("link")), links=links, **fields)
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path} does not describe a machine ({error}); `weft plan full-graph --calibrate "
            "--save FILE` writes one"
        ) from error
