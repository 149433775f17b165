"""A record of what travels: each collective, its group, the bytes that this rank receives, time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["broadcast", "all_reduce", "reduce_scatter", "all_gather", "all_to_all"]
Along = Literal["row", "column", "layer", "weights", "world"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """One collective, from the point of view of this rank.

    Attributes:
        kind: what it does.
        along: the dimension of the grid along which it goes. `weights`: all ranks that hold
            different nodes and the same slice of features; `world`: all.
        group: ranks that take part.
        bytes: received by this rank, without headers. Of m bytes a broadcast brings m (nothing
            to its source) and an all_reduce 2 (g - 1) / g of m. A reduce_scatter brings the rank's
            own part from each of the g - 1 others, an all_gather a part as large as the largest,
            an all_to_all what was requested.
        seconds: that this rank spent in it, waiting included, without what overlapped with other
            work. On a GPU the time starts when all earlier work is done.
        purpose: what it was for.
    """

    kind: Kind
    along: Along
    group: int
    bytes: int
    seconds: float
    purpose: str


@dataclass(frozen=True, kw_only=True)
class Total:
    """A sum over events."""

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: Total) -> Total:
        return Total(
            calls=self.calls + other.calls,
            bytes=self.bytes + other.bytes,
            seconds=self.seconds + other.seconds,
        )


@dataclass(eq=False)
class Recorder:
    """Keeps the events of this rank in their order.

    Attributes:
        events: what happened.
        timed: between GPUs, wait for the stream before and after each collective, so that its time
            is that of the message; otherwise only bytes are right there. On CPUs it is always.
    """

    events: list[Event] = field(default_factory=list)
    timed: bool = True

    def add(self, event: Event) -> None:
        """Note an event."""
        self.events.append(event)

    def clear(self) -> None:
        """Forget everything."""
        self.events.clear()

    def totals(self, by: Literal["kind", "along", "purpose"] = "kind") -> dict[str, Total]:
        """Sums by kind, dimension or purpose."""
        sums: dict[str, Total] = {}
        for event in self.events:
            one = Total(calls=1, bytes=event.bytes, seconds=event.seconds)
            name = getattr(event, by)
            sums[name] = sums.get(name, Total()) + one
        return sums

    def total(self) -> Total:
        """The sum of everything."""
        return sum(self.totals().values(), Total())

    @contextmanager
    def section(self) -> Iterator[Recorder]:
        """A recorder of what happens in the block alone; this one notes it too."""
        part = Recorder()
        start = len(self.events)
        yield part
        part.events.extend(self.events[start:])
