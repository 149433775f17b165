"""What the study of sparsification measures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from weft_lab.studies.settings import keep_given

Task = Literal["links", "nodes", "gcn"]
"""An FNN for temporal links, an FNN for classes of nodes, a GCN for classes of nodes."""

SPARSITIES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 0.906, 0.938, 0.969)
"""Those of Peng et al. (2022)."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A feed-forward network to be timed.

    Attributes:
        widths: of the input, the hidden layers and the output.
        batch: rows of a step.
    """

    widths: tuple[int, ...]
    batch: int

    @classmethod
    def read(cls, text: str) -> Network:
        """From text such as 64-256-128-10x512: widths, x, rows.

        Raises:
            ValueError: it is no such text.
        """
        try:
            widths, batch = text.split("x")
            found = cls(widths=tuple(map(int, widths.split("-"))), batch=int(batch))
        except ValueError:
            found = cls(widths=(), batch=0)
        if len(found.widths) < 2 or min(*found.widths, found.batch) < 1:
            raise ValueError(
                f"network {text!r} is not of the form 64-256-128-10x512: widths joined by -, then "
                "x and the rows of a batch"
            )
        return found

    def __str__(self) -> str:
        return f"{'-'.join(map(str, self.widths))}, batch {self.batch}"


@dataclass(frozen=True, kw_only=True)
class SparsificationStudy:
    """What to measure.

    Attributes:
        tasks: links: temporal link prediction; nodes: classes of nodes from embeddings of walks;
            gcn: classes of nodes from features and neighbours.
        sparsities: of the weights, in the trainings.
        curve_sparsity: the one whose scores are shown epoch by epoch.
        links_keep: fraction of the links' embeddings that stays where they are sparse.
        nodes_keep: the same of the nodes' embeddings.
        epochs: of the trainings on pairs of embeddings.
        nodes_epochs: of the trainings on embeddings of single nodes, which have fewer steps.
        gcn_epochs: of the GCN's trainings.
        batch_size: of the trainings on embeddings.
        repeats: trainings of each kind, from different seeds.
        edges: of the generated stream, where no temporal graph is given.
        nodes: of the generated graphs, where none is given.
        networks: to be timed, such as 64-256-128-10x512 for the widths 64, 256, 128 and 10 and
            batches of 512; none to time nothing.
        time_sparsities: of the weights, in the timing.
        rounds: turns of each form in the timing.
        seed: of data, splits, embeddings and timed weights.
    """

    tasks: tuple[Task, ...] = get_args(Task)
    sparsities: tuple[float, ...] = SPARSITIES
    curve_sparsity: float = 0.906
    links_keep: float = 0.262
    nodes_keep: float = 0.469
    epochs: int = 40
    nodes_epochs: int = 40
    gcn_epochs: int = 200
    batch_size: int = 128
    repeats: int = 5
    edges: int = 20_000
    nodes: int = 3_000
    networks: tuple[str, ...] = ("16-128-1x128", "64-256-128-10x512", "1024-1024-1024-16x1024")
    time_sparsities: tuple[float, ...] = (*SPARSITIES, 0.99)
    rounds: int = 9
    seed: int = 0

    def __post_init__(self) -> None:
        for task in self.tasks:
            if task not in get_args(Task):
                raise ValueError(f"task {task!r} is none of {', '.join(get_args(Task))}")
        for name in ("sparsities", "time_sparsities"):
            given = getattr(self, name)
            if not all(0 < value < 1 for value in given):
                raise ValueError(f"{name} are {given}; each is above 0 and below 1")
        if not 0 < self.curve_sparsity < 1:
            raise ValueError(f"curve_sparsity is {self.curve_sparsity}; it is above 0 and below 1")
        for name in ("links_keep", "nodes_keep"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; it is a fraction above 0, up to 1"
                )
        for name, least in (
            # Each phase of SLR needs an epoch.
            ("epochs", 4),
            ("nodes_epochs", 4),
            ("gcn_epochs", 4),
            ("batch_size", 1),
            ("repeats", 1),
            ("edges", 100),
            ("nodes", 40),
            ("rounds", 1),
            ("seed", 0),
        ):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        self.timed()

    def timed(self) -> list[Network]:
        """The networks to be timed."""
        return [Network.read(text) for text in self.networks]


def quick_sparsification(config: SparsificationStudy) -> SparsificationStudy:
    """`config` with less of everything that is as it is by default: under 5 minutes on 2 cores."""
    smaller = SparsificationStudy(
        sparsities=(0.5, 0.75, 0.906, 0.969),
        epochs=16,
        # Sparse networks begin slowly: fewer steps would show that and nothing else.
        nodes_epochs=60,
        gcn_epochs=80,
        repeats=3,
        edges=5_000,
        nodes=1_500,
        time_sparsities=(0.5, 0.75, 0.875, 0.906, 0.938, 0.969),
        rounds=5,
    )
    return keep_given(config, SparsificationStudy(), smaller)
