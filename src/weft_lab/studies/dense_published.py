"""Figures of "Fast Training of Sparse Graph Neural Networks on Dense Hardware", Balog et al. 2019.

On the C# programs of Allamanis et al. (2018), with hidden states of 128 and 8 rounds of messages.
"""

from __future__ import annotations

from dataclasses import dataclass

STEPS = (100_000, 200_000, 300_000)
"""Training steps at which validation accuracies are published."""


@dataclass(frozen=True, kw_only=True)
class PublishedSlice:
    """A slice of the training data.

    Attributes:
        by: "all data", "bandwidth" or "order".
        below: the limit, itself left out; None for all data.
        share: of the training graphs.
        accuracies: on all validation graphs, percent, at STEPS; None where there is none.
        cost: of an iteration, in the paper's unit.
    """

    by: str
    below: int | None
    share: float
    accuracies: tuple[float | None, float | None, float | None]
    cost: float | None


SLICES = (
    PublishedSlice(by="all data", below=None, share=1.0, accuracies=(78.1, 78.5, 78.9), cost=18.6),
    PublishedSlice(
        by="bandwidth", below=1024, share=0.919, accuracies=(77.9, 78.5, 78.9), cost=3.1
    ),
    PublishedSlice(by="order", below=3493, share=0.919, accuracies=(78.2, 78.3, 78.4), cost=3.5),
    PublishedSlice(
        by="bandwidth", below=512, share=0.835, accuracies=(78.0, None, None), cost=None
    ),
)
"""Table 6."""


def published_slice(by: str, share: float) -> PublishedSlice | None:
    """The published slice of the same kind with about this share of the data; None without one."""
    for each in SLICES:
        if each.by == by and abs(each.share - share) < 0.03:
            return each
    return None
