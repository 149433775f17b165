"""Training and inference of a GCN or GraphSAGE on a graph that the ranks of a grid share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.kernels import dropout, hidden_product, relu_dropout
from weft.kernels.counter_dropout import Part
from weft.models import GCN, GraphSAGE
from weft.parallel.grid_layers import (
    Sliced,
    gather_columns,
    multiply,
    published_layer,
    slice_of,
    sum_gradients,
)
from weft.parallel.grid_matrix import FIRST_PRODUCT, propagate
from weft.parallel.method import LayerPlan, plan_layers
from weft.parallel.shard import GraphShard
from weft.parallel.targets import Target, predictions_of, target_of


class GridNetwork:
    """A model on a grid: the same losses, gradients and weights as in one process.

    The model's weights are whole on every rank and must be the same on all. Every method is called
    by all ranks together.

    Args:
        model: GCN or GraphSAGE; in its training mode `step` drops activations. It may have more
            classes than the graph. It is moved to the device of the shard.
        shard: this rank's part of the graph.
        target: what is learned; by default what the graph was prepared with, classes unweighted.
    """

    def __init__(
        self, model: GCN | GraphSAGE, shard: GraphShard, target: Target | None = None
    ) -> None:
        self.model, self.shard, self.world = model.to(shard.world.device), shard, shard.world
        self._sage = isinstance(model, GraphSAGE)
        layers: list[Any] = list(model.layers)
        self._layers = layers
        weights = [layer.neighbours if self._sage else layer.weight for layer in layers]
        widths = [weights[0].shape[0], *(weight.shape[1] for weight in weights)]
        if widths[0] != shard.features or widths[-1] < shard.classes:
            raise ValueError(
                f"the model maps {widths[0]} features to {widths[-1]} classes; the graph has "
                f"{shard.features} features and {shard.classes} classes"
            )
        self.classes = widths[-1]
        self.plans = plan_layers(
            widths,
            shard.method,
            model="sage" if self._sage else "gcn",
            input_dropout=model.config.input_dropout > 0,
        )
        self._sliced = [
            Sliced(weight=weight, dim=self._cut(plan, weight))
            for layer, plan in zip(layers, self.plans, strict=True)
            for weight in layer.parameters()
        ]
        self.target = target or target_of(shard, self.classes)
        # The inputs of the first layer, the same in every step.
        self._x: Tensor | None = None
        self._sums: Tensor | None = None
        self._read_inputs()

    def step(self, seed: int) -> float:
        """The loss of a training step; its gradients, over all nodes, are left in `.grad`.

        Args:
            seed: of the dropped activations.

        Raises:
            ValueError: on every rank: there is no node to train on.
        """
        if not self.shard.counts["train"]:
            raise ValueError("no node is in the training part of the split; mark some as train")
        self.model.zero_grad(set_to_none=True)
        loss = self.target.loss(self._logits(seed if self.model.training else None))
        loss.backward()  # type: ignore[no-untyped-call]
        sum_gradients(self.world, self._sliced)
        return float(loss.detach())

    @torch.no_grad()
    def evaluate(self, *, ranking: bool = True) -> dict[str, float]:
        """`PART_loss` and the target's scores for train, validation and test, without dropout.

        Accuracy of classes; F1 and AUC of labels, the latter if `ranking`; MAE, RMSE and R².
        """
        return self.target.scores(self._logits(None), ranking=ranking)

    @torch.no_grad()
    def predict(self) -> tuple[Tensor, Tensor]:
        """Numbers int64 [n] of nodes and what is predicted of them [n, c], on the CPU.

        That is the probability of each class or label, or the numbers in the target's unit.

        The ranks together return every node once; a rank that holds a replica returns none.
        """
        about = self.shard.table.metadata
        ids, outputs = self.outputs()
        kind = about.get("target", "classes")
        return ids, predictions_of(outputs, kind, about.get("target_scale"))

    @torch.no_grad()
    def outputs(self) -> tuple[Tensor, Tensor]:
        """The same with the network's outputs [n, c] as they are."""
        found = gather_columns(self.world, self._logits(None), self.classes)
        count = len(found) if self.world.counts else 0
        return self.shard.ids[:count].cpu(), found[:count].cpu()

    def _cut(self, plan: LayerPlan, weight: Tensor) -> int:
        """The dimension along which the grid's columns share the gradient of a weight."""
        if weight.ndim == 1:
            return 0
        return 1 if plan.gather and plan.order != "published" else 0

    def _read_inputs(self) -> None:
        plan, x = self.plans[0], self.shard.x()
        if plan.kept:
            with torch.no_grad():
                self._sums = self.shard.matrix.multiply(x, FIRST_PRODUCT)
                if plan.gather:
                    self._sums = gather_columns(self.world, self._sums, plan.width_in)
                    x = gather_columns(self.world, x, plan.width_in) if self._sage else x
        if not plan.kept or self._sage:
            self._x = x

    def _logits(self, seed: int | None) -> Tensor:
        """This rank's rows and slice of the logits; with a seed, as in training."""
        config, training = self.model.config, seed is not None
        x = self._x
        fused = self._fuses_first()
        for number, (layer, plan) in enumerate(zip(self._layers, self.plans, strict=True)):
            if fused and number == 0:
                continue
            first_column = slice_of(self.world, plan.width_in).start
            part = Part(
                seed=_mixed(seed or 0, number), ids=self.shard.ids, first_column=first_column
            )
            if fused and number == 1:
                before, sums = self._layers[0], self._sums
                assert sums is not None
                given = (before.weight, before.bias, layer.weight, config.dropout, training)
                product = hidden_product(sums, *given, part=part)
                x = propagate(product, self.shard.matrix, self.shard.transpose) + layer.bias
                continue
            if number:
                assert x is not None
                x = relu_dropout(x, config.dropout, training, part=part)
            elif x is not None:
                x = dropout(x, config.input_dropout, training, part=part)
            x = self._layer(layer, plan, x)
        assert x is not None
        return x

    def _fuses_first(self) -> bool:
        """Whether all between the kept sums and the next sparse product is local."""
        local = not self._sage and self.world.grid.columns == 1 and len(self.plans) > 1
        return local and self.plans[0].kept and self.plans[1].order == "transform"

    def _layer(self, layer: Any, plan: LayerPlan, x: Tensor | None) -> Tensor:
        shard, world = self.shard, self.world
        bias: Tensor = layer.bias[slice_of(world, plan.width_out)]
        if plan.order == "published":
            assert x is not None
            return published_layer(x, layer.weight, shard.matrix, shard.transpose) + bias
        neighbours = layer.neighbours if self._sage else layer.weight

        def whole(values: Tensor) -> Tensor:
            return gather_columns(world, values, plan.width_in) if plan.gather else values

        if plan.order == "transform":
            assert x is not None
            x = whole(x)
            out = multiply(world, [x], [neighbours], gather=plan.gather)
            out = propagate(out, shard.matrix, shard.transpose)
            if self._sage:
                out = out + multiply(world, [x], [layer.own], gather=plan.gather)
            return out + bias
        if plan.kept:
            sums, own = self._sums, x
        else:
            assert x is not None
            sums = whole(propagate(x, shard.matrix, shard.transpose))
            own = whole(x) if self._sage else None
        assert sums is not None
        inputs, weights = [sums], [neighbours]
        if self._sage:
            assert own is not None
            inputs, weights = [*inputs, own], [*weights, layer.own]
        return multiply(world, inputs, weights, gather=plan.gather) + bias


def _mixed(seed: int, number: int) -> int:
    """A seed for each layer, in 63 bits."""
    return (seed * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9 + 1) % 2**63
