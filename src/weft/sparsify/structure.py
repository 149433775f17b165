"""Which weights become sparse together: single ones, units, blocks, N of each M, a constant fan-in.

A structure is data that every method reads. The weights of a matrix fall into groups, which are
kept or removed as a whole, and the groups into pools, in each of which as many are kept. This
module needs no torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

FORMS = (
    "weights, units, units:K (K outputs at a time, such as an attention head), columns, columns:K, "
    "N:M such as 2:4, block:RxC such as block:4x4, fan-in"
)


@dataclass(frozen=True, kw_only=True)
class Structure:
    """Which weights of a matrix [outputs, inputs] are kept or removed together.

    Attributes:
        rows: outputs of a group; 0 for all.
        columns: inputs of a group; 0 for all.
        among: neighbouring inputs of an output among which groups are ranked, and as many are kept
            in each; 0 for all inputs of an output; None: groups are ranked in the whole matrix.
        keep: of `among` groups, where the structure says it; 0 where the sparsity does.
    """

    rows: int = 1
    columns: int = 1
    among: int | None = None
    keep: int = 0

    def __str__(self) -> str:
        if self.keep:
            return f"{self.keep}:{self.among}"
        if self.among is not None:
            return "fan-in"
        if self.columns == 0:
            return "units" if self.rows == 1 else f"units:{self.rows}"
        if self.rows == 0:
            return "columns" if self.columns == 1 else f"columns:{self.columns}"
        single = self.rows == self.columns == 1
        return "weights" if single else f"block:{self.rows}x{self.columns}"

    @property
    def is_single(self) -> bool:
        """Whether each weight is kept or removed by itself, wherever it is."""
        return self == Structure()

    @property
    def density(self) -> float | None:
        """The share of weights that it keeps of every layer; None: any."""
        return self.keep / self.among if self.among and self.keep else None

    @property
    def noun(self) -> str:
        """What is counted, in the plural."""
        if self.among is not None:
            return f"weights of each {self.among or 'output'}"
        if self.columns == 0 or self.rows == 0:
            return "units" if self.columns == 0 else "columns"
        return "weights" if self.is_single else "blocks"

    def misfit(self, shape: Sequence[int], axis: int | None) -> str | None:
        """Why a weight of this shape cannot have the structure; None if it can.

        Args:
            shape: of the weight.
            axis: of its outputs; None where it is not known.
        """
        if self.is_single:
            return None
        if axis is None:
            return f"it is not known which of its axes {list(shape)} are outputs"
        outputs = shape[axis]
        inputs = math.prod(shape) // max(outputs, 1)
        for size, unit, what in (
            (outputs, self.rows, "outputs"),
            (inputs, self.columns, "inputs"),
            (inputs, self.among or 1, "inputs"),
        ):
            if unit and size % unit:
                return f"its {size:,} {what} are no multiple of {unit}, as {self} needs"
        return None


def structure_of(text: str | Structure) -> Structure:
    """The structure that a text names; see `FORMS`.

    Raises:
        ValueError: it names none.
    """
    if isinstance(text, Structure):
        return text
    if text in ("weights", "fan-in"):
        return Structure(among=0) if text == "fan-in" else Structure()
    if found := re.fullmatch(r"(units|columns)(?::(\d+))?", text):
        count = int(found[2] or 1)
        if count:
            units = found[1] == "units"
            return Structure(rows=count if units else 0, columns=0 if units else count)
    elif found := re.fullmatch(r"block:(\d+)x(\d+)", text):
        rows, columns = int(found[1]), int(found[2])
        if rows and columns:
            return Structure(rows=rows, columns=columns)
    elif found := re.fullmatch(r"(\d+):(\d+)", text):
        keep, among = int(found[1]), int(found[2])
        if 0 < keep < among:
            return Structure(keep=keep, among=among)
    raise ValueError(f"structure {text!r} is none of {FORMS}")


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The groups of one weight.

    Attributes:
        structure: that they have.
        shape: of the weight.
        axis: of its outputs; any where the structure is of single weights.
    """

    structure: Structure
    shape: tuple[int, ...]
    axis: int = 0

    @cached_property
    def _tiles(self) -> tuple[int, int, int, int]:
        """Tiles down, outputs of a tile, tiles across, inputs of a tile."""
        outputs = self.shape[self.axis]
        inputs = math.prod(self.shape) // max(outputs, 1)
        rows, columns = self.structure.rows or outputs, self.structure.columns or inputs
        return outputs // max(rows, 1), rows, inputs // max(columns, 1), columns

    @cached_property
    def pools(self) -> int:
        """P, sets of groups in which as many are kept."""
        down, _, across, _ = self._tiles
        if self.structure.among is None:
            return 1
        return down * across // (self.structure.among or max(across, 1))

    @cached_property
    def count(self) -> int:
        """G, groups of a pool."""
        return math.prod(self.shape) // max(self.pools * self.size, 1)

    @cached_property
    def size(self) -> int:
        """Weights of a group."""
        return self._tiles[1] * self._tiles[3]

    def members(self, values: Tensor) -> Tensor:
        """Values in the weight's shape as [P, G, weights of a group]."""
        if not self.structure.is_single:
            down, rows, across, columns = self._tiles
            values = values.movedim(self.axis, 0).reshape(down, rows, across, columns)
            values = values.transpose(1, 2)
        return values.reshape(self.pools, self.count, self.size)

    def scores(self, values: Tensor) -> Tensor:
        """The mean of each group [P, G], of values in the weight's shape."""
        members = self.members(values)
        return members[:, :, 0] if self.size == 1 else members.double().mean(2)

    def magnitudes(self, weight: Tensor) -> Tensor:
        """How large each group is [P, G]: |w|, or the mean square of several weights.

        The largest groups are the nearest to all of them in the Euclidean sense.
        """
        if self.size == 1:
            return self.members(weight)[:, :, 0].abs()
        return self.members(weight).double().square().mean(2)

    def mask(self, kept: Tensor) -> Tensor:
        """The mask in the weight's shape, of the groups that are kept, bool [P, G]."""
        if self.structure.is_single:
            return kept.reshape(self.shape)
        down, rows, across, columns = self._tiles
        kept = kept.reshape(down, 1, across, 1).expand(down, rows, across, columns)
        outer = self.shape[self.axis]
        rest = [size for axis, size in enumerate(self.shape) if axis != self.axis]
        return kept.reshape(outer, *rest).movedim(0, self.axis).contiguous()

    def kept(self, mask: Tensor, name: str) -> Tensor:
        """The groups that a mask keeps, bool [P, G]; `name` is the weight's.

        Raises:
            ValueError: it keeps a part of a group, or more of one pool than of another.
        """
        members = self.members(mask)
        found = members[:, :, 0]
        if self.size > 1 and not bool((members == found[:, :, None]).all()):
            raise ValueError(
                f"the mask of {name} keeps a part of a group: structure {self.structure} keeps or "
                "removes its weights together"
            )
        if self.pools > 1:
            counts = found.sum(1)
            if not bool((counts == counts[0]).all()):
                raise ValueError(
                    f"the mask of {name} keeps {int(counts.min())} to {int(counts.max())} of the "
                    f"{self.structure.noun}; structure {self.structure} keeps as many everywhere"
                )
        return found
