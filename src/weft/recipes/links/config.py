"""Settings for training on the links of a temporal graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from weft.models.config import FNNConfig
from weft.recipes.sparse_recipe import NetworkConfig

Negatives = Literal["any", "alive"]


@dataclass(frozen=True, kw_only=True)
class LinksConfig(NetworkConfig):
    """An FNN that predicts whether an edge will join two nodes, from what is known of them.

    Attributes:
        data: a temporal data set of `weft data list`, or an edge list of your own: src dst time.
        features: Degrees, times of the last edges, earlier edges of the pair and common neighbours
            beside the embeddings. The network is then trained on the latest training edges, with
            inputs computed from the earlier ones. Without features its inputs are the paper's,
            embeddings alone.
        negatives: Draw the nodes of a negative pair from all that are known, or from those alive,
            which had an edge by the time of the positive edge.
        walks: temporal walks from each node.
        dim: width of an embedding; the network reads two.
        hidden: widths of the hidden layers.
        model: Activation and dropout of the FNN.
        test: fraction of the edges, the latest, to test on.
        validation: fraction of the edges, those just before the test's, to choose the best weights
            by.
        compat: the paper's split: validation edges are learned from, and embeddings see the test's
            edges. Scores are then too good. There are no features, walks have a node more than
            `length` as in the authors' code, and slr's alpha is as printed.
        batch_size: pairs in a step.
        learning_rate: Learning rate of SGD.
        momentum: Momentum of SGD.
        epochs: passes over the training pairs.
        patience: stop after this many epochs without a better validation AUC.
        seed: Seed of walks, embeddings, pairs, weights and batches.
    """

    data: str = "CollegeMsg"
    features: bool = True
    negatives: Negatives = "any"
    dim: int = 8
    hidden: tuple[int, ...] = (128,)
    model: FNNConfig = field(default_factory=FNNConfig)
    test: float = 0.2
    validation: float = 0.1
    compat: bool = False
    batch_size: int = 128
    momentum: float = 0.0
    epochs: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.negatives not in get_args(Negatives):
            raise ValueError(
                f"negatives is {self.negatives!r}; choose from {', '.join(get_args(Negatives))}"
            )
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum is {self.momentum}; it must be in [0, 1)")
        if not (self.test > 0 and self.validation > 0 and self.test + self.validation < 1):
            raise ValueError(
                f"test is {self.test} and validation {self.validation}; give fractions above 0 "
                f"that leave some edges for training"
            )

    def settled(self, earlier: Mapping[str, Any] | None = None) -> LinksConfig:
        """These settings after `compat` and those of an earlier run are applied.

        Args:
            earlier: the config of that run, as JSON values; the first versions' lack the setting.
        """
        if not self.compat:
            old = earlier is not None and not earlier.get("features", False)
            return replace(self, features=False) if old else self
        made: dict[str, Any] = {"alpha": "printed"}
        if earlier is not None:
            # Runs of the first versions walked as without compat, and say nothing of alpha.
            made = {"length": earlier["length"], "alpha": earlier.get("alpha", "slr")}
        elif self.alpha != "printed":
            made["length"] = self.length + 1
        return replace(self, features=False, **made)
