"""Training batches of plain rows: tensors that share their first dimension, shuffled each epoch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


class RowBatches:
    """Batches of `batch_size` rows of some tensors, in an order of its own for each epoch.

    The order is a function of (seed, epoch), so that a resumed run finds it again.
    """

    def __init__(self, *tensors: Tensor, batch_size: int, seed: int = 0) -> None:
        rows = {len(tensor) for tensor in tensors}
        assert len(rows) == 1, f"tensors of {rows} rows"
        self.tensors, self.batch_size, self.seed = tensors, batch_size, seed
        self.rows, self.epoch = rows.pop(), 0

    def __len__(self) -> int:
        return -(-self.rows // self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for this epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        generator = torch.Generator().manual_seed((self.seed << 32) + self.epoch)
        order = torch.randperm(self.rows, generator=generator)
        for chosen in torch.split(order, self.batch_size):
            yield tuple(tensor[chosen] for tensor in self.tensors)
