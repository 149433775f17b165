"""How products and layers are carried out on a grid: what travels, when, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from weft.errors import check_choices

Exchange = Literal["rows", "blocks"]
Panels = Literal["kept", "sent"]
Precision = Literal["full", "bfloat16"]
DeviceName = Literal["auto", "cpu", "cuda"]
Model = Literal["gcn", "sage"]
PARTITIONS = ("contiguous", "random", "metis", "volume", "balanced", "rcm")
"""contiguous: the order the nodes have; random: any (evens out hubs); metis: few edges between
blocks; volume: METIS, then nodes moved so that fewer rows travel; balanced: as many nonzeros on
every rank; rcm: reverse Cuthill-McKee, neighbours close together, for any number of blocks."""

CUT_FOR_GRID = ("metis", "volume", "balanced")
"""Partitions whose blocks are made for one number of them; others are orders to be cut anywhere."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """What travels in a product, and when; all is exact but for `bfloat16` in wire or reads.

    Attributes:
        reductions: multiply in the cheaper order, keep the first product, and get the gradient
            of the weights from what the forward pass has summed. False: as published, (AᵀH) W
            and a product A G in every layer.
        exchange: `rows` sends the rows that a receiver's edges touch, `blocks` whole blocks.
        panels: on grids of several columns, `kept`: every rank of a row has the row's edges;
            `sent`: each has its share, and they travel in every product.
        overlap: the next block travels while this one is multiplied.
        wire: features travel in full precision or rounded to bfloat16; sums are never rounded.
        reads: sparse products read features in full precision or from a copy in bfloat16, which
            halves the memory traffic of float32; sums are never rounded, nor is the first product,
            which is computed once. The error is printed after training.
    """

    reductions: bool = True
    exchange: Exchange = "rows"
    panels: Panels = "kept"
    overlap: bool = True
    wire: Precision = "full"
    reads: Precision = "full"

    def __post_init__(self) -> None:
        check_choices(self, exchange=Exchange, panels=Panels, wire=Precision, reads=Precision)
        if self.exchange == "rows" and self.panels == "sent":
            raise ValueError(
                "exchange 'rows' requests the rows that a rank's own edges touch, so its panel "
                "must be kept: set panels to 'kept', or exchange to 'blocks'"
            )


PUBLISHED = Method(reductions=False, exchange="blocks", panels="sent", overlap=False)
"""The algorithms as the code of their authors runs them."""


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """How Z = AᵀH W is computed.

    Attributes:
        width_in: features of H.
        width_out: features of Z.
        order: `aggregate`, (AᵀH) W; `transform`, Aᵀ(H W); `published`, (AᵀH) W with the backward
            pass that multiplies A with the gradient of Z.
        gather: on grids of several columns, the slices of features are gathered before they are
            multiplied with W; otherwise partial products are summed and scattered.
        kept: AᵀH is computed once for all steps.
        learns: H has a gradient.
    """

    width_in: int
    width_out: int
    order: Literal["aggregate", "transform", "published"]
    gather: bool
    kept: bool
    learns: bool

    @property
    def products(self) -> tuple[int, ...]:
        """Widths of the sparse products of a training step, forward first."""
        if self.order == "transform":
            return self.width_out, self.width_out
        forward = () if self.kept else (self.width_in,)
        if self.order == "published":
            return *forward, self.width_out
        return (*forward, self.width_in) if self.learns else forward


def plan_layers(
    widths: Sequence[int], method: Method, *, model: Model = "gcn", input_dropout: bool = False
) -> list[LayerPlan]:
    """The layers of a network of these widths, the features first and the classes last.

    Args:
        widths: features, hidden layers, classes.
        method: whether anything may be reduced.
        model: a GraphSAGE layer multiplies H itself too.
        input_dropout: the features change in every step, so that nothing can be kept.
    """
    plans = []
    for number, (width_in, width_out) in enumerate(pairwise(widths)):
        learns = number > 0
        kept = method.reductions and not learns and not input_dropout
        aggregated = 0 if kept else width_in * (1 + learns)
        if not method.reductions:
            order: Literal["aggregate", "transform", "published"]
            order = "published" if model == "gcn" else "aggregate"
            gather = True
        else:
            order = "aggregate" if aggregated <= 2 * width_out else "transform"
            gathered, scattered = _column_widths(width_in, width_out, order, model)
            gather = gathered <= scattered
        plans.append(
            LayerPlan(
                width_in=width_in,
                width_out=width_out,
                order=order,
                gather=gather,
                kept=kept,
                learns=learns,
            )
        )
    return plans


def _column_widths(width_in: int, width_out: int, order: str, model: Model) -> tuple[int, int]:
    """Widths that travel along the grid's columns if slices are gathered, and if scattered."""
    if model == "gcn":
        return width_in, width_out
    return (2 * width_in, width_out) if order == "aggregate" else (width_in, 2 * width_out)
