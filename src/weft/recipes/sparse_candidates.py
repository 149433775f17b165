"""Ways to train networks that may be sparse: the form of their layers, threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from weft.planning.candidate import Candidate, applied
from weft.planning.task import ENDLESS, Recipe, content_of_arrays, thread_counts
from weft.recipes.links.data import Pairs
from weft.recipes.links.training import PreparedLinks, train_links
from weft.recipes.nodes.training import PreparedNodes, train_nodes
from weft.training.config import SparsityConfig

_IDLE = (
    *("data", "walks", "length", "learning_rate", "schedule", "epochs", "checkpoint_every"),
    *("seed", "death", "rho"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class LinksWork:
    """Training on pairs of nodes, for the planner.

    Attributes:
        prepared: pairs and embeddings.
        update_every: steps between two changes of the masks, as in the run that is planned.
        units: what a step is counted in.
    """

    prepared: PreparedLinks
    update_every: int
    units: str = "pairs"

    def train(self, settings: Mapping[str, Any]) -> None:
        """Train without end."""
        config = _endless(self.prepared.config, settings, self.update_every)
        held = self.prepared.split.validation
        # One of each kind, which is what a score needs.
        few = Pairs(nodes=held.nodes[[0, -1]], labels=held.labels[[0, -1]])
        split = dataclasses.replace(self.prepared.split, validation=few)
        train_links(dataclasses.replace(self.prepared, config=config, split=split), quiet=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class NodesWork:
    """Training on nodes with a class, for the planner; attributes as of LinksWork."""

    prepared: PreparedNodes
    update_every: int
    units: str = "nodes"

    def train(self, settings: Mapping[str, Any]) -> None:
        """Train without end."""
        config = _endless(self.prepared.config, settings, self.update_every)
        parts = {**self.prepared.parts, "validation": self.prepared.parts["validation"][:1]}
        train_nodes(dataclasses.replace(self.prepared, config=config, parts=parts), quiet=True)


class _SparseRecipe(Recipe):
    """What the two have in common."""

    config: SparsityConfig
    planned = ("form",)

    @property
    def steps(self) -> int:
        """Of the run that is asked for, with the trainings that look for a lottery ticket."""
        rounds = 1 + self.config.rounds if self.config.sparsify == "lottery" else 1
        return rounds * self._steps

    @property
    def step_units(self) -> float:
        """Rows in a step, the mean."""
        return self._rows / self._epoch_steps

    def waves(self) -> list[list[Candidate]]:
        """Both forms with every number of threads."""
        forms = ["dense"]
        if self.config.may_be_sparse and self._linear:
            forms.append("sparse")
        elif self.config.sparsify != "none":
            sparse = Candidate({"form": "sparse", "threads": thread_counts()[0]})
            why = "needs all weights for a part of the training"
            if not self._linear:
                why = "a gcn has no layers of that form"
            self.note(sparse, f"not tried: {why}")
        return [
            [
                Candidate({"form": form, "threads": threads})
                for threads in thread_counts()
                for form in forms
            ]
        ]

    # What the recipes know of their rows and epochs.
    _rows: int
    _epoch_steps: int
    _epochs: int
    _linear = True

    @property
    def _steps(self) -> int:
        return self._epochs * self._epoch_steps


class LinksRecipe(_SparseRecipe):
    """`weft train links`."""

    idle = (*_IDLE, "momentum", "test", "validation", "compat")

    def __init__(self, prepared: PreparedLinks) -> None:
        config, train = prepared.config, prepared.split.train
        self._rows, self._epochs = len(train.labels), config.epochs
        self._epoch_steps = -(-self._rows // config.batch_size)
        work = LinksWork(prepared=prepared, update_every=_every(config, self._steps))
        data = content_of_arrays({"nodes": train.nodes, "labels": train.labels})
        super().__init__("links", config, work, data)


class NodesRecipe(_SparseRecipe):
    """`weft train nodes`."""

    idle = (*_IDLE, "weight_decay")

    def __init__(self, prepared: PreparedNodes) -> None:
        config, train = prepared.config, prepared.parts["train"]
        assert config.epochs is not None
        self._rows, self._epochs = len(train), config.epochs
        self._linear = config.model == "fnn"
        self._epoch_steps = -(-self._rows // config.batch_size) if self._linear else 1
        work = NodesWork(prepared=prepared, update_every=_every(config, self._steps))
        inputs = prepared.inputs
        own = (
            {"x": inputs}
            if isinstance(inputs, Tensor)
            else {"senders": inputs.senders, "receivers": inputs.receivers, **inputs.nodes}
        )
        tensors = {"y": prepared.y, "train": train, **own}
        data = content_of_arrays({name: tensor.numpy() for name, tensor in tensors.items()})
        super().__init__("nodes", config, work, data)


def _every(config: SparsityConfig, steps: int) -> int:
    return config.update_every or max(1, steps // 20)


def _endless(config: Any, settings: Mapping[str, Any], update_every: int) -> Any:
    changes = {**settings, "epochs": ENDLESS, "update_every": update_every}
    return applied(config, changes)
