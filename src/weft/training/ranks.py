"""Several processes that train one model: the run's folder, and shares of batches of graphs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from weft.batching import GraphLoader, GraphSampler
from weft.errors import DataError
from weft.graphs import GraphBatch, GraphTable
from weft.training.batches import Share, share_of
from weft.training.run import Run

if TYPE_CHECKING:
    from weft.batching.epoch_plan import PlannedBatch
    from weft.parallel.world import World


@contextmanager
def shared_run(folder: Path, config: Any, world: World, **options: Any) -> Iterator[Run]:
    """The run in `folder` on rank 0; on the others one in a folder that is removed afterwards.

    Only rank 0 needs `folder`. Options as of `Run.create`, and the same errors; on the other
    ranks a DataError that says so.
    """
    with TemporaryDirectory(prefix="weft-rank-") as spare:
        with world.in_turn():
            if world.rank == 0:
                run = Run.create(folder, config, **options)
            else:
                run = Run.create(spare, config, tensorboard=False)
        with run:
            yield run


def agree(world: World, own: Mapping[str, Any]) -> None:
    """See that what this rank has, JSON values by what they are, all ranks have.

    Raises:
        DataError: on every rank, the same words: they name a rank that differs, and in what.
    """
    if world.ranks == 1:
        return
    everyone = [json.loads(text) for text in world.all_texts(json.dumps(own, default=str))]
    for name in own:
        values = [json.dumps(each.get(name)) for each in everyone]
        usual = max(
            sorted(set(values)), key=lambda value: (values.count(value), value == values[0])
        )
        odd = [rank for rank, value in enumerate(values) if value != usual]
        if odd:
            raise DataError(
                f"ranks do not agree on {name}: it is {values[odd[0]]} on rank {odd[0]} and "
                f"{usual} on rank {values.index(usual)}; give all ranks the same files and options"
            )


def gpu_of(world: World | None) -> torch.device | None:
    """The GPU that a rank computes on; None for the CPU, where weights and batches are made."""
    return None if world is None or world.device.type == "cpu" else world.device


def load_on_all(model: nn.Module, load: Callable[[], None], world: World | None) -> None:
    """Have rank 0 `load` weights into its model, and give them to those of all ranks.

    Raises:
        DataError: on every rank, where rank 0 cannot load them.
    """
    if world is None:
        load()
        return
    world.broadcast_from_rank0(load)
    for value in [*model.parameters(), *model.buffers()]:
        world.broadcast("world", 0, value.data, "setup").wait()


class SharedLoader(GraphLoader):
    """A GraphLoader of whose batches each rank of `world` gets its `Share`.

    The sampler plans the batches of one process; so does every rank, and all take as many steps.
    """

    def __init__(
        self, table: GraphTable, sampler: GraphSampler, world: World, **options: Any
    ) -> None:
        """Connect the parts; options as of GraphLoader."""
        super().__init__(table, sampler, **options)
        self._rank, self._ranks = world.rank, world.ranks

    def __iter__(self) -> Iterator[Any]:
        if self._ranks == 1:
            yield from super().__iter__()
            return
        plan = self.sampler.plan()
        first = self.sampler.begin()
        for number, batch in enumerate(self._batches(first), start=first):
            yield Share(batch, share_of(plan[number].graphs, self._rank, self._ranks)[1])

    def _make(self, planned: PlannedBatch, used: GraphBatch | None = None) -> GraphBatch:
        graphs, _ = share_of(planned.graphs, self._rank, self._ranks)
        return super()._make(replace(planned, graphs=graphs), used)
