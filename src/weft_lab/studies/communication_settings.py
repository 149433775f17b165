"""What the study of communication measures."""

from __future__ import annotations

from dataclasses import dataclass

from weft.parallel.partition import PARTITIONS
from weft_lab.studies.settings import keep_given


@dataclass(frozen=True, kw_only=True)
class CommunicationStudy:
    """What to measure.

    Attributes:
        ranks: numbers of ranks; every grid of each is measured.
        real_ranks: up to so many are processes; more are simulated, one rank at a time.
        simulated: ranks of a grid that are simulated, spread over it; all by default.
        widths: features, hidden layers and classes for the bytes; on random features.
        partition: of the nodes for the sparsity-aware method.
        timed_epochs: epochs of each grid and method on real ranks.
        accuracy_ranks: numbers of ranks on which the graph's own classes are learned.
        epochs: of these trainings.
        hidden: their hidden layers.
        nodes: of the generated graph, where no other is given.
        seed: of the graph, the weights, dropout and partition.
    """

    ranks: tuple[int, ...] = (1, 2, 4, 8, 9, 16, 27, 36, 64)
    real_ranks: int = 16
    simulated: int | None = None
    widths: tuple[int, ...] = (128, 128, 16)
    partition: str = "metis"
    timed_epochs: int = 5
    accuracy_ranks: tuple[int, ...] = (2, 4, 8, 9)
    epochs: int = 100
    hidden: tuple[int, ...] = (16,)
    nodes: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("ranks", "accuracy_ranks"):
            given = getattr(self, name)
            if min(given, default=1) < 1:
                raise ValueError(f"{name} are {given}; each must be at least 1")
        if not self.ranks:
            raise ValueError("ranks are none; one number at least")
        for name in ("real_ranks", "simulated", "timed_epochs", "epochs", "nodes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        for name, least in (("widths", 2), ("hidden", 0)):
            given = getattr(self, name)
            if len(given) < least or min(given, default=1) < 1:
                raise ValueError(
                    f"{name} are {given}; at least {least} numbers, and each at least 1"
                )
        if self.partition not in PARTITIONS:
            raise ValueError(
                f"partition is {self.partition!r}; choose from {', '.join(PARTITIONS)}"
            )


def quick_communication(config: CommunicationStudy) -> CommunicationStudy:
    """`config` with less of everything that is as it is by default: under 3 minutes on 2 cores."""
    smaller = CommunicationStudy(
        ranks=(1, 2, 4, 8, 16, 64),
        real_ranks=4,
        simulated=3,
        timed_epochs=3,
        accuracy_ranks=(2, 4),
        epochs=60,
        nodes=8_000,
    )
    return keep_given(config, CommunicationStudy(), smaller)
