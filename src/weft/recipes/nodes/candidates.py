"""Ways to train on the classes of nodes: the form of the layers, threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from weft.planning.task import content_of_arrays
from weft.recipes.nodes.training import PreparedNodes, train_nodes
from weft.recipes.sparse_candidates import IDLE, SparseTask, endless, mask_interval


@dataclass(frozen=True, kw_only=True, eq=False)
class NodesWork:
    """Training on nodes with a class, for the planner.

    Attributes:
        prepared: nodes and what the network reads.
        update_every: steps between two changes of the masks, as in the run that is planned.
        units: what a step is counted in.
    """

    prepared: PreparedNodes
    update_every: int
    units: str = "nodes"

    def train(self, settings: Mapping[str, Any]) -> None:
        """Train without end."""
        asked = dataclasses.replace(self.prepared.config, patience=None)
        config = endless(asked, settings, self.update_every)
        parts = {**self.prepared.parts, "validation": self.prepared.parts["validation"][:1]}
        train_nodes(dataclasses.replace(self.prepared, config=config, parts=parts), quiet=True)


class NodesTask(SparseTask):
    """`weft train nodes`, or a recipe of another name with its settings."""

    idle = (*IDLE, "weight_decay", "patience")

    def __init__(self, prepared: PreparedNodes, name: str = "nodes") -> None:
        config, train = prepared.config, prepared.parts["train"]
        assert config.epochs is not None
        self.rows, self.epochs = len(train), config.epochs
        self.linear = config.model == "fnn"
        self.epoch_steps = -(-self.rows // config.batch_size) if self.linear else 1
        work = NodesWork(prepared=prepared, update_every=mask_interval(config, self.run_steps))
        inputs = prepared.inputs
        own = (
            {"x": inputs}
            if isinstance(inputs, Tensor)
            else {"senders": inputs.senders, "receivers": inputs.receivers, **inputs.nodes}
        )
        tensors = {"y": prepared.y, "train": train, **own}
        data = content_of_arrays({name: tensor.numpy() for name, tensor in tensors.items()})
        super().__init__(name, config, work, data)
