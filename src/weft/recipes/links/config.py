"""What training on the links of a temporal graph is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.models.config import FNNConfig
from weft.training.config import ScheduleConfig, SparsityConfig


@dataclass(frozen=True, kw_only=True)
class LinksConfig(SparsityConfig):
    """An FNN that tells from the embeddings of two nodes whether an edge joins them.

    Attributes:
        data: a temporal data set of `weft data list`, or an edge list of your own: src dst time.
        walks: temporal walks from each node.
        length: nodes of a walk.
        dim: width of an embedding; the network reads two.
        keep: fraction of the embeddings' values that stay, the largest; 1 for dense embeddings.
        hidden: widths of the hidden layers.
        model: What lies between the layers.
        test: fraction of the edges, the latest, to test on.
        validation: fraction of the edges, those before them, to choose the best weights by.
        compat: the paper's split: validation edges are learned from, and embeddings see the test's
            edges. Scores are then too good.
        batch_size: pairs in a step.
        learning_rate: Learning rate of SGD.
        momentum: Momentum of SGD.
        schedule: how the learning rate moves.
        epochs: passes over the training pairs.
        checkpoint_every: steps from one checkpoint to the next; 0 for every 30 seconds.
        seed: Seed of walks, embeddings, pairs, weights and batches.
    """

    data: str = "CollegeMsg"
    walks: int = 10
    length: int = 5
    dim: int = 8
    keep: float = 1.0
    hidden: tuple[int, ...] = (128,)
    model: FNNConfig = field(default_factory=FNNConfig)
    test: float = 0.2
    validation: float = 0.1
    compat: bool = False
    batch_size: int = 128
    learning_rate: float = 0.1
    momentum: float = 0.0
    schedule: ScheduleConfig = field(default_factory=lambda: ScheduleConfig(shape="cosine"))
    epochs: int = 40
    checkpoint_every: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low in (
            ("walks", 1),
            ("length", 2),
            ("dim", 1),
            ("batch_size", 1),
            ("learning_rate", 0),
            ("epochs", 1),
            ("checkpoint_every", 0),
            ("seed", 0),
        ):
            if not getattr(self, name) >= low:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {low}")
        if not all(width > 0 for width in self.hidden):
            raise ValueError(f"hidden widths are {self.hidden}; each must be at least 1")
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep is {self.keep}; it is a fraction above 0, up to 1")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}; it must be in [0, 1)")
        if not (self.test > 0 and self.validation > 0 and self.test + self.validation < 1):
            raise ValueError(
                f"test is {self.test} and validation {self.validation}; fractions above 0 that "
                "leave some edges for training are wanted"
            )
