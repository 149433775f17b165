"""Ways to train on a citation graph: threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.graphs import GraphTable
from weft.planning.candidate import Candidate, applied
from weft.planning.task import ENDLESS, Recipe, content_of, thread_counts
from weft.recipes.nodes.citations import citation_batch, train_citations
from weft.recipes.nodes.config import CitationsConfig


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


class CitationsRecipe(Recipe):
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
