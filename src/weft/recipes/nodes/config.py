"""Settings for training on the nodes of one graph."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from weft.errors import check_choices, check_least
from weft.recipes.sparse_recipe import NetworkConfig
from weft.training.config import ScheduleConfig

ModelName = Literal["fnn", "gcn"]
SplitName = Literal["random", "public"]


@dataclass(frozen=True, kw_only=True)
class NodesConfig(NetworkConfig):
    """A network that predicts the class of a node.

    Attributes:
        data: a data set of `weft data list` whose nodes have classes, or an edge list of your own
            with a file of labels; every edge has a time: src dst time.
        model: fnn: a network on embeddings of walks, in order of time where edges have times;
            gcn: a graph convolutional network on features `x`.
        split: random: 60% of the nodes with a class for training, 20% for validation, 20% for the
            test; public: that of the data set.
        walks: for fnn: walks from each node.
        length: for fnn: nodes of a walk.
        dim: for fnn: width of an embedding.
        keep: for fnn: fraction of the embeddings' values to keep, the largest ones; 1 keeps all.
        hidden: widths of the hidden layers; by default 256 and 128 (fnn), 16 (gcn).
        dropout: Dropout of hidden activations; by default 0 (fnn), 0.5 (gcn).
        input_dropout: for gcn: dropout of features; by default that of hidden activations.
        batch_size: for fnn: nodes in a step; a gcn takes all of them.
        learning_rate: Learning rate of SGD (fnn) or Adam (gcn).
        weight_decay: for gcn: decay of the first layer's weights; by default 5e-5 for the random
            split, 5e-4 for the public one.
        epochs: passes over the training nodes; by default 40 (fnn), 200 (gcn).
        patience: stop after this many epochs without a better validation accuracy.
        seed: Seed of the split, walks, embeddings, weights, batches and dropout.
    """

    data: str = "cora"
    model: ModelName = "gcn"
    split: SplitName = "random"
    dim: int = 64
    hidden: tuple[int, ...] | None = None
    dropout: float | None = None
    input_dropout: float | None = None
    batch_size: int = 512
    weight_decay: float | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, model=ModelName, split=SplitName)
        check_least(self, weight_decay=0)
        for name in ("dropout", "input_dropout"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1:
                raise ValueError(f"{name} is {value}; it must be in [0, 1)")
        if self.keep < 1 and self.model == "gcn":
            raise ValueError("keep is for the embeddings of model = fnn; a gcn reads features")
        if self.form == "sparse" and self.model == "gcn":
            raise ValueError(
                "form is sparse, but a gcn's layers have no sparse form: choose model = fnn, or "
                "leave the form dense"
            )

    def settled(self) -> NodesConfig:
        """The same with the model's own defaults where nothing is given."""
        fnn = self.model == "fnn"
        own: dict[str, Any] = {
            "hidden": (256, 128) if fnn else (16,),
            "dropout": 0.0 if fnn else 0.5,
            "weight_decay": 5e-4 if self.split == "public" else 5e-5,
            "epochs": 40 if fnn else 200,
        }
        return replace(self, **{k: v for k, v in own.items() if getattr(self, k) is None})


PUBLISHED = NodesConfig(
    split="public",
    dropout=0.5,
    input_dropout=0.5,
    learning_rate=0.01,
    schedule=ScheduleConfig(),
)
"""The settings of Kipf and Welling (2017) for citation graphs."""
