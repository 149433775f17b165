"""Options for storing an adjacency; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from weft.errors import check_choices

Outside = Literal["raise", "drop", "spill"]
"""How edges outside the blocks are handled: refused, dropped, or multiplied as a sparse part."""

Form = Literal["auto", "csr", "banded", "dense"]


@dataclass(frozen=True, kw_only=True)
class LayoutConfig:
    """How the adjacency of a batch is stored and multiplied.

    Attributes:
        form: `csr` for any graph, `banded` for edges close to the diagonal, `dense` for small
            graphs with many edges; `auto` measures which is the fastest.
        block: S of a banded or dense form; None takes what the cost model prefers for a batch, or
            its largest graph if dense, so that shapes may change between batches.
        outside: what becomes of edges outside the blocks of a banded form.
        hidden: H, features of a node, for the cost model.
        memory_gb: a banded or dense form that takes more than this in float32 is refused.
    """

    form: Form = "auto"
    block: int | None = None
    outside: Outside = "raise"
    hidden: int = 128
    memory_gb: float = 2.0

    def __post_init__(self) -> None:
        check_choices(self, form=Form, outside=Outside)
        if self.block is not None and (self.block < 1 or self.form == "csr"):
            raise ValueError(
                f"block is {self.block} with form '{self.form}'; it must be at least 1, and 'csr' "
                "has none"
            )
        if self.hidden < 1 or not self.memory_gb > 0:
            raise ValueError(
                f"hidden is {self.hidden} and memory_gb {self.memory_gb}; both must be above 0"
            )
