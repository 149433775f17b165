"""Ways to train on links: the form of the layers, threads."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weft.planning.task import content_of_arrays
from weft.recipes.links.data import Pairs
from weft.recipes.links.training import PreparedLinks, train_links
from weft.recipes.sparse_candidates import IDLE, SparseTask, endless, mask_interval


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
        config = endless(self.prepared.config, settings, self.update_every)
        held = self.prepared.split.validation
        # One of each kind, which is what a score needs.
        few = Pairs(nodes=held.nodes[[0, -1]], labels=held.labels[[0, -1]])
        split = dataclasses.replace(self.prepared.split, validation=few)
        train_links(dataclasses.replace(self.prepared, config=config, split=split), quiet=True)


class LinksTask(SparseTask):
    """`weft train links`."""

    idle = (*IDLE, "momentum", "test", "validation", "compat")

    def __init__(self, prepared: PreparedLinks) -> None:
        config, train = prepared.config, prepared.split.train
        self.rows, self.epochs = len(train.labels), config.epochs
        self.epoch_steps = -(-self.rows // config.batch_size)
        work = LinksWork(prepared=prepared, update_every=mask_interval(config, self.run_steps))
        data = content_of_arrays({"nodes": train.nodes, "labels": train.labels})
        super().__init__("links", config, work, data)
