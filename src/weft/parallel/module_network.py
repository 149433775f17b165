"""Training and inference of any module over a graph that the ranks of a grid share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from weft.models import GCN, GraphSAGE
from weft.parallel.distributed_graph import DistributedGraph
from weft.parallel.grid_matrix import exact_reads
from weft.parallel.network import GridNetwork
from weft.parallel.shard import GraphShard
from weft.parallel.targets import Target


class ModuleNetwork:
    """A module that is called as `model(graph, x)`, with the methods of `GridNetwork`.

    The module's weights are whole on every rank and must be the same on all. Every method is called
    by all ranks together.

    Args:
        model: gives the outputs [m, c] of this rank's nodes for a `DistributedGraph` and their
            features [m, f]. It is moved to the device of the shard.
        shard: this rank's part of the graph.
        target: makes what is learned of the nodes that the rank owns.
    """

    def __init__(
        self, model: nn.Module, shard: GraphShard, target: Callable[[GraphShard], Target]
    ) -> None:
        self.model, self.shard, self.world = model.to(shard.world.device), shard, shard.world
        self.graph = graph = DistributedGraph(shard)
        # The nodes are cut over all ranks alike, whatever the grid does with the edges.
        own = replace(shard, world=graph.flat, ids=graph.ids, y=graph.y, masks=graph.masks)
        self.target = target(own)

    def step(self, seed: int) -> float:
        """See `GridNetwork.step`."""
        if not self.shard.counts["train"]:
            raise ValueError("no node is in the training part of the split; mark some as train")
        self.model.zero_grad(set_to_none=True)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            loss = self.target.loss(self.model(self.graph, self.graph.x))
            loss.backward()  # type: ignore[no-untyped-call]
        self.graph.sum_gradients(self.model.parameters())
        return float(loss.detach())

    def evaluate(self, *, ranking: bool = True) -> dict[str, float]:
        """See `GridNetwork.evaluate`."""
        return self.target.scores(self._outputs(), ranking=ranking)

    def outputs(self) -> tuple[Tensor, Tensor]:
        """See `GridNetwork.outputs`."""
        return self.graph.ids.cpu(), self._outputs().cpu()

    @torch.no_grad()
    def _outputs(self) -> Tensor:
        training = self.model.training
        self.model.eval()
        try:
            found: Tensor = self.model(self.graph, self.graph.x)
        finally:
            self.model.train(training)
        return found


@torch.no_grad()
def reads_error(network: GridNetwork | ModuleNetwork) -> float:
    """What `Method.reads` changes at an output at most, beside the largest output.

    All ranks call it together.
    """
    rounded = network.outputs()[1]
    with exact_reads():
        exact = network.outputs()[1]
    found = torch.zeros(2, dtype=torch.float64)
    if exact.numel():
        found = torch.stack([(rounded - exact).abs().amax(), exact.abs().amax()]).double()
    found = network.world.all_reduce("world", found.to(network.world.device), "scores", "max")
    error, largest = found.tolist()
    return error / largest if largest else 0.0


def network_of(
    model: nn.Module, shard: GraphShard, target: Callable[[GraphShard], Target]
) -> GridNetwork | ModuleNetwork:
    """The model on the ranks of a shard, in the way that is fastest for it."""
    if isinstance(model, GCN | GraphSAGE):
        return GridNetwork(model, shard, target(shard))
    return ModuleNetwork(model, shard, target)
