"""Ways to train on the classes of nodes: the form of the layers, threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from weft.graphs import GraphTable
from weft.planning.candidate import Candidate, applied
from weft.planning.task import ENDLESS, PlanTask, content_of, content_of_arrays, thread_counts
from weft.recipes.nodes.citations import citation_batch, train_citations
from weft.recipes.nodes.config import CitationsConfig
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
        config = endless(self.prepared.config, settings, self.update_every)
        parts = {**self.prepared.parts, "validation": self.prepared.parts["validation"][:1]}
        train_nodes(dataclasses.replace(self.prepared, config=config, parts=parts), quiet=True)


class NodesTask(SparseTask):
    """`weft train nodes`."""

    idle = (*IDLE, "weight_decay")

    def __init__(self, prepared: PreparedNodes) -> None:
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
        super().__init__("nodes", config, work, data)


@dataclass(frozen=True, kw_only=True, eq=False)
class CitationsWork:
    """Training on a citation graph, for the planner.

    Attributes:
        table: of one graph.
        config: what the candidates' settings are put into.
        units: what a step is counted in.
    """

    table: GraphTable
    config: CitationsConfig
    units: str = "epochs"

    def train(self, settings: Mapping[str, Any]) -> None:
        """Train without end."""
        config = dataclasses.replace(applied(self.config, settings), epochs=ENDLESS, patience=None)
        train_citations(citation_batch(self.table), config, quiet=True)


class CitationsTask(PlanTask):
    """`weft train citations`: the whole graph is a batch, and a step an epoch."""

    config: CitationsConfig
    idle = (
        *("data", "learning_rate", "schedule", "weight_decay", "epochs", "patience"),
        *("checkpoint_every", "seed"),
    )

    def __init__(self, table: GraphTable, config: CitationsConfig) -> None:
        work = CitationsWork(table=table, config=config)
        super().__init__("citations", config, work, content_of(table))

    @property
    def steps(self) -> int:
        """Of the run that is asked for."""
        return self.config.epochs

    @property
    def step_units(self) -> float:
        """A step is an epoch."""
        return 1.0

    def waves(self) -> list[list[Candidate]]:
        """Every number of threads."""
        return [[Candidate({"threads": threads}) for threads in thread_counts()]]
