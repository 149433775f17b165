"""How a distributed product is carried out: what travels, when, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Exchange = Literal["rows", "blocks"]
Panels = Literal["kept", "sent"]
Precision = Literal["full", "bfloat16"]
DeviceName = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True)
class Method:
    """Every combination gives the same result; only `wire="bfloat16"` rounds.

    Attributes:
        reductions: multiply in the cheaper order, keep the first product, and get the gradient
            of the weights from what the forward pass has summed. False: as published, (AᵀH) W
            and a product A G in every layer.
        exchange: `rows` sends the rows that a receiver's edges touch, `blocks` whole blocks.
        panels: on grids of several columns, `kept`: every rank of a row has the row's edges;
            `sent`: each has its share, and they travel in every product.
        overlap: the next block travels while this one is multiplied.
        wire: features travel as they are, or rounded to bfloat16; sums are always whole.
    """

    reductions: bool = True
    exchange: Exchange = "rows"
    panels: Panels = "kept"
    overlap: bool = True
    wire: Precision = "full"

    def __post_init__(self) -> None:
        for name, kind in (("exchange", Exchange), ("panels", Panels), ("wire", Precision)):
            if getattr(self, name) not in get_args(kind):
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; it must be {' or '.join(get_args(kind))}"
                )
        if self.exchange == "rows" and self.panels == "sent":
            raise ValueError(
                "exchange 'rows' asks for the rows that a rank's own edges touch, so its panel "
                "must be kept: set panels to 'kept', or exchange to 'blocks'"
            )


PUBLISHED = Method(reductions=False, exchange="blocks", panels="sent", overlap=False)
"""The algorithms as their authors' code runs them."""
