"""Unified graph sparsification: edges and weights pruned together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from typing_extensions import Unpack

from weft.graphs import GraphBatch
from weft.sparsify.densities import Choice, choose_weights
from weft.sparsify.masks import mask_of, top
from weft.sparsify.one_shot import keep_top
from weft.sparsify.snapshots import restore, snapshot


class UGS(nn.Module):
    """A model with trainable masks on its weights and on the edges of its graph (Chen et al. 2021).

    In a round the masks, which start at 1, are trained together with the weights, under a penalty
    on their absolute values; `prune` then removes the weights and the edges with the smallest
    masks, rewinds the weights and sets the other masks back to 1. The result of some rounds is a
    graph lottery ticket: `model` with `masks` on the graph `pruned(batch)`.

    ```
    ugs = UGS(model, batch)
    for number in range(rounds):
        optimizer = torch.optim.Adam(ugs.parameters())
        for epoch in range(epochs):
            optimizer.zero_grad()
            (loss(ugs(ugs.weighted(batch))) + ugs.penalty()).backward()
            optimizer.step()
        ugs.prune()
    optimizer = torch.optim.Adam(model.parameters())
    ugs.masks.attach(optimizer)
    ...  # train model on ugs.pruned(batch)
    ```

    A model that takes `edge_weight` is called as `ugs(x, edge_index, edge_weight=ugs.edge_weight)`.

    Args:
        model: any module.
        edges: the batch whose edge column `weight` (ones, if there is none) the masks multiply; or
            these values themselves, [E].
        prunable: bool [E], edges that may be pruned; None: all of them, but of a batch neither
            self-loops nor padding.
        edge_fraction: share of the remaining edges that a round prunes.
        weight_fraction: share of the remaining weights that a round prunes, ranked across layers;
            a layer keeps one at least.
        edge_penalty: on the sum of the edges' masks.
        weight_penalty: on the sum of the weights' masks.
        **choice: `include`, `exclude`, `example`, `quiet`: which weights; see `Choice`.

    Raises:
        ValueError: a setting is out of its range, or shapes do not agree.
    """

    edge_mask: Tensor
    _values: Tensor
    _prunable: Tensor

    def __init__(
        self,
        model: nn.Module,
        edges: GraphBatch | Tensor,
        *,
        prunable: Tensor | None = None,
        edge_fraction: float = 0.05,
        weight_fraction: float = 0.2,
        edge_penalty: float = 1e-2,
        weight_penalty: float = 1e-2,
        **choice: Unpack[Choice],
    ) -> None:
        super().__init__()
        for name, value in (("edge", edge_fraction), ("weight", weight_fraction)):
            if not 0 <= value < 1:
                raise ValueError(f"{name}_fraction is {value}; it must be from 0 to below 1")
        for name, value in (("edge", edge_penalty), ("weight", weight_penalty)):
            if not value >= 0:
                raise ValueError(f"{name}_penalty is {value}; it must be 0 or more")
        values, may_go = _edge_values(edges, prunable)
        self.model = model
        self.masks = choose_weights(model, **choice)
        self.edge_fraction, self.weight_fraction = edge_fraction, weight_fraction
        self.edge_penalty, self.weight_penalty = edge_penalty, weight_penalty
        self.rounds = 0
        self.register_buffer("edge_mask", torch.ones_like(may_go))
        self.register_buffer("_values", values, persistent=False)
        self.register_buffer("_prunable", may_go, persistent=False)
        self.edge_scale = nn.Parameter(torch.ones_like(values))
        self.weight_scales = nn.ParameterList(
            torch.ones_like(self.masks.weight(name)) for name in self.masks
        )
        self._start = snapshot(model)

    @property
    def edge_weight(self) -> Tensor:
        """The edges' values times their masks, [E]; 0 where an edge is pruned."""
        return self._values * torch.where(self._prunable, self.edge_scale, 1) * self.edge_mask

    @property
    def edge_sparsity(self) -> float:
        """Share of the prunable edges that is pruned."""
        return 1 - self._remaining_edges() / max(int(self._prunable.sum()), 1)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The output of the model for these arguments with its weights masked."""
        masked = {
            name: self.masks.weight(name) * (scale * self.masks[name])
            for name, scale in zip(self.masks, self.weight_scales, strict=True)
        }
        return functional_call(self.model, masked, inputs, named)

    def weighted(self, batch: GraphBatch) -> GraphBatch:
        """The batch with the edge column `weight` masked; its shape stays."""
        _check_edges(batch.num_edges, self._values)
        return batch.replace(edges={**batch.edges, "weight": self.edge_weight})

    def penalty(self) -> Tensor:
        """The masks' weighted sums of absolute values, a scalar to add to the loss."""
        edges = (self.edge_scale * (self.edge_mask & self._prunable)).abs().sum()
        weights = [
            (scale * self.masks[name]).abs().sum().to(edges.device)
            for name, scale in zip(self.masks, self.weight_scales, strict=True)
        ]
        return self.edge_penalty * edges + self.weight_penalty * torch.stack(weights).sum()

    def remember(self) -> None:
        """Let later rounds start from the present weights; call it early in the first round."""
        self._start = snapshot(self.model)

    @torch.no_grad()
    def prune(self) -> None:
        """End a round: prune, rewind the weights, set the masks to 1 again.

        Of n remaining edges exactly round(`edge_fraction` · n) are pruned, of weights likewise.
        Make a new optimizer for the next round: the state of the old one belongs to the weights
        before rewinding.
        """
        left = self._remaining_edges()
        scores = self.edge_scale.abs().masked_fill(~(self._prunable & self.edge_mask), -1)
        kept = top(scores, left - round(self.edge_fraction * left))
        self.edge_mask.copy_(mask_of(kept, scores) | ~self._prunable)
        scales = zip(self.masks, self.weight_scales, strict=True)
        groups = torch.cat([self.masks.kept(name).flatten() for name in self.masks])
        active = int(groups.sum())
        share = (active - round(self.weight_fraction * active)) / groups.numel()
        weight_scores = {name: scale.abs() for name, scale in scales}
        keep_top(self.masks, weight_scores, share, keep_one=True, active_only=True)
        restore(self.model, self._start)
        self.masks.apply_()
        for scale in (self.edge_scale, *self.weight_scales):
            scale.fill_(1)
        self.rounds += 1

    def pruned(self, batch: GraphBatch) -> GraphBatch:
        """The batch without its pruned edges, which then cost nothing; weights as they were."""
        _check_edges(batch.num_edges, self._values)
        keep = self.edge_mask.to(batch.senders.device)
        before = torch.cat([keep.new_zeros(1, dtype=torch.int64), keep.cumsum(0)])
        order = batch.out_order[keep[batch.out_order.long()]]
        kept_by_sender = keep[batch.out_order.long()].cumsum(0)
        out_before = torch.cat([before[:1], kept_by_sender])
        index = batch.senders.dtype
        return batch.replace(
            edges={name: column[keep] for name, column in batch.edges.items()},
            senders=batch.senders[keep],
            receivers=batch.receivers[keep],
            in_offsets=before[batch.in_offsets.long()].to(index),
            out_offsets=out_before[batch.out_offsets.long()].to(index),
            out_order=before[order.long()].to(index),
            edge_mask=batch.edge_mask[keep],
            pairs={},  # An edge may be left without its reverse.
        )

    def extra_repr(self) -> str:
        """The state of the masks, for `repr`."""
        total = int(self._prunable.sum())
        return (
            f"round {self.rounds}, {self._remaining_edges():,} of {total:,} prunable edges, "
            f"{self.masks.summary()}"
        )

    def get_extra_state(self) -> dict[str, Any]:
        """The part of `state_dict` beside parameters and buffers."""
        return {
            "rounds": self.rounds,
            "masks": self.masks.state_dict(),
            "start": {name: value.clone() for name, value in self._start.items()},
        }

    def set_extra_state(self, state: Any) -> None:
        """Take what `get_extra_state` returned."""
        self.rounds = int(state["rounds"])
        self.masks.load_state_dict(state["masks"])
        self._start = {name: value.clone() for name, value in state["start"].items()}

    def _remaining_edges(self) -> int:
        return int((self.edge_mask & self._prunable).sum())


def _edge_values(edges: GraphBatch | Tensor, prunable: Tensor | None) -> tuple[Tensor, Tensor]:
    """Values [E] and which of them may be pruned, bool [E]."""
    if isinstance(edges, GraphBatch):
        values = edges.edges.get("weight")
        may_go = edges.edge_mask & (edges.senders != edges.receivers)
        if values is None:
            values = torch.ones(edges.num_edges, device=edges.senders.device)
    else:
        values, may_go = edges, torch.ones(len(edges), dtype=torch.bool, device=edges.device)
    if values.ndim != 1 or not values.is_floating_point():
        raise ValueError(
            f"edge values are {values.dtype} {list(values.shape)}; they must be one real number "
            "for each edge, [E]"
        )
    if prunable is not None:
        if prunable.dtype != torch.bool or prunable.shape != values.shape:
            raise ValueError(
                f"prunable is {prunable.dtype} {list(prunable.shape)}; it must be torch.bool "
                f"{list(values.shape)}"
            )
        may_go = prunable.to(values.device)
    return values.detach().clone(), may_go.clone()


def _check_edges(found: int, values: Tensor) -> None:
    if found != len(values):
        raise ValueError(f"the batch has {found} edges, the masks are of {len(values)}")
