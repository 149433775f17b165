"""What a batch is to be: the policies, as data, and the options beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from weft.batching.budgets import (
    Averages,
    constant_budget,
    dynamic_budget,
    packed_budget,
    up_to_64,
    up_to_power_of_2,
)
from weft.graphs import Array, Budget

PolicyName = Literal["dynamic", "static-64", "static-2^n", "static-constant", "packed", "unpadded"]
Oversize = Literal["raise", "skip", "alone"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How graphs become batches, and batches padded shapes.

    Attributes:
        budget: the one padded size of all batches, from the sizes of the graphs and the batch
            size; None where each batch has its own.
        limited: a batch ends where the next graph would not fit the budget; otherwise it has a
            fixed number of graphs.
        packed: graphs are chosen to fill a batch, not taken in order.
        round_up: the padded size of a batch from its own, where there is no one budget; None
            leaves it unpadded.
    """

    budget: Callable[[Averages, int], Budget] | None = None
    limited: bool = False
    packed: bool = False
    round_up: Callable[[Array], Array] | None = None

    @property
    def padded(self) -> bool:
        """Whether batches have padding, which takes the room of one node and one graph."""
        return self.budget is not None or self.round_up is not None


POLICIES: dict[PolicyName, Policy] = {
    "dynamic": Policy(budget=dynamic_budget, limited=True),
    "static-64": Policy(round_up=up_to_64),
    "static-2^n": Policy(round_up=up_to_power_of_2),
    "static-constant": Policy(budget=constant_budget),
    "packed": Policy(budget=packed_budget, limited=True, packed=True),
    "unpadded": Policy(),
}


@dataclass(frozen=True, kw_only=True)
class BatchingConfig:
    """How a data set is cut into batches.

    Attributes:
        policy: `dynamic`: one padded shape, graphs taken in order until one does not fit.
            `static-64`, `static-2^n`: batch_size - 1 graphs, padded to the next multiple of 64 or
            power of two. `static-constant`: the same, padded to batch_size times the largest
            graph. `packed`: one padded shape, filled as well as possible. `unpadded`: batch_size
            graphs and nothing else.
        batch_size: graphs in a batch; a padded batch keeps one of them for its padding.
        oversize: what becomes of a graph that is larger than the budget: `raise` an error, `skip`
            it, or give it a batch `alone` with a padded shape of its own.
        shuffle: other batches in every epoch; False makes the same ones in each, with the graphs as
            they come (in `packed` they have no order).
        seed: of the shuffles.
        budget: for `dynamic` and `packed`, the padded size in place of the one that the graphs'
            sizes suggest: what a device can hold, or what a model was compiled for.
        paper: for `dynamic`, the budget as published: estimated from the first 1000 graphs, or,
            with "qm9", from the sizes of the authors' first 1000, whatever order is at hand.
    """

    policy: PolicyName
    batch_size: int
    oversize: Oversize = "raise"
    shuffle: bool = True
    seed: int = 0
    budget: Budget | None = None
    paper: bool | Literal["qm9"] = False

    def __post_init__(self) -> None:
        for name, legal in (("policy", tuple(POLICIES)), ("oversize", get_args(Oversize))):
            if getattr(self, name) not in legal:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(legal)}"
                )
        least = 2 if self.rules.padded else 1
        if self.batch_size < least:
            raise ValueError(
                f"batch_size is {self.batch_size}; policy {self.policy} needs at least {least}"
                + (", because one graph of a batch is padding" if least == 2 else "")
            )
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; it must be at least 0")
        if self.paper not in (False, True, "qm9"):
            raise ValueError(f"paper is {self.paper!r}; it must be True, False or 'qm9'")
        if self.paper and self.policy != "dynamic":
            raise ValueError(
                f"paper=True is about the budget of policy dynamic, not of {self.policy}; leave it "
                "out"
            )
        if self.budget is not None:
            self._check_budget(self.budget)

    def _check_budget(self, budget: Budget) -> None:
        if not self.rules.limited:
            raise ValueError(
                f"policy {self.policy} takes its padded sizes from the batches; a budget is for "
                "dynamic and packed"
            )
        if self.paper:
            raise ValueError("budget and paper=True each say how large a batch is; give one")
        if budget.nodes < 2 or budget.edges < 0 or budget.graphs < 2:
            raise ValueError(
                f"{budget} has no room for a graph: it needs at least 2 nodes and 2 graphs, one of "
                "each is padding"
            )

    @property
    def rules(self) -> Policy:
        """The policy's data."""
        return POLICIES[self.policy]
