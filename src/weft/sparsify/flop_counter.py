"""Which weight is multiplied how often: floating-point operations, seen as a model runs."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from torch import nn

from weft.sparsify.masks import Masks, check_same_model, table
from weft.sparsify.products import watch_products


@dataclass(frozen=True, kw_only=True)
class WeightFlops:
    """The products of one weight.

    Attributes:
        name: of the parameter.
        size: its weights.
        nnz: those that are active.
        dense: floating-point operations of its products if all of them were.
        sparse: those with active weights alone.
    """

    name: str
    size: int
    nnz: int
    dense: float
    sparse: float


@dataclass(frozen=True, kw_only=True, repr=False)
class FlopCount:
    """Floating-point operations of one pass forward; a multiply-add is two.

    Attributes:
        weights: of each weight that was multiplied, in the order of the model's parameters.
        other: of products without weights: sums over edges (two for each number of a message),
            attention.
    """

    weights: tuple[WeightFlops, ...]
    other: float

    @property
    def dense(self) -> float:
        """Of the model without masks."""
        return sum(each.dense for each in self.weights) + self.other

    @property
    def sparse(self) -> float:
        """Of the model with masks."""
        return sum(each.sparse for each in self.weights) + self.other

    def __repr__(self) -> str:
        rows = [
            (
                each.name,
                f"{each.size:,}",
                f"{each.nnz:,}",
                f"{each.dense:,.0f}",
                f"{each.sparse:,.0f}",
            )
            for each in self.weights
        ]
        rows.append(("(other)", "", "", f"{self.other:,.0f}", f"{self.other:,.0f}"))
        heads = ("weight", "size", "active", "FLOPs dense", "FLOPs sparse")
        share = self.sparse / self.dense if self.dense else 1.0
        return (
            f"FlopCount: {self.sparse:,.0f} of {self.dense:,.0f} FLOPs a pass ({share:.4f})\n"
            f"{table(heads, rows)}"
        )


def count_flops(
    model: nn.Module,
    masks: Masks | None,
    *inputs: Any,
    training: bool = False,
    **named: Any,
) -> FlopCount:
    """Floating-point operations of the model's pass forward on an example.

    The model runs once, in evaluation mode and without being changed; each product with a
    parameter is counted: linear and recurrent layers, convolutions, matrix products of any
    module, weft's own operators, `SparseLinear`. A weight of r rows of input is r · nnz
    multiply-adds. Elementwise operations are not counted.

    Args:
        model: any module.
        masks: of the model; with None, and in what is not masked, all weights are active.
        *inputs: what the model is called with.
        training: with gradients, as some layers multiply in another order then; only the pass
            forward is counted all the same.
        **named: what it is called with, by name.

    Warns:
        UserWarning: a masked weight was used in no product that is known.
    """
    if masks is not None:
        check_same_model(model, masks)
    nnz = {name: masks.nnz(name) for name in masks} if masks is not None else {}
    counter = watch_products(model, inputs, named, nnz=nnz, training=training)
    unseen = [name for name in nnz if name not in counter.dense]
    if unseen:
        warnings.warn(
            f"no product with {', '.join(unseen)} was seen: the example does not use it, or an "
            "operator does that is not known here; its FLOPs are not counted",
            UserWarning,
            stacklevel=2,
        )
    weights = tuple(
        WeightFlops(
            name=name,
            size=counter.sizes[name],
            nnz=counter.nnz[name],
            dense=counter.dense[name],
            sparse=counter.sparse[name],
        )
        for name in counter.sizes
        if name in counter.dense
    )
    return FlopCount(weights=weights, other=counter.other)
