"""The operators in plain torch: for devices and dtypes without a compiled loop, and for tests.

Nothing here adds with atomics (index_add, scatter_add, an index_put that accumulates): on a GPU the
order of such sums, and so their last bits, would change from run to run.
"""

import torch
from torch import Tensor


def segment_reduce(values: Tensor, offsets: Tensor, order: Tensor | None, reduce: str) -> Tensor:
    """Sum or mean [N, F] of segments of `values` [E, F]; 0 for an empty one."""
    if order is not None:
        values = values.index_select(0, order)
    if not values.is_floating_point():
        return _integer_sum(values, offsets, reduce)
    out = torch.segment_reduce(
        values.contiguous(), reduce, offsets=offsets.long(), axis=0, unsafe=True, initial=0
    )
    return out.nan_to_num(nan=0.0) if values.shape[0] == 0 else out


def _integer_sum(values: Tensor, offsets: Tensor, reduce: str) -> Tensor:
    if reduce != "sum":
        raise ValueError(f"the mean of {values.dtype} values is not whole: convert them to floats")
    # Whole numbers wrap, so differences of running sums are exact.
    sums = values.new_zeros(values.shape[0] + 1, values.shape[1], dtype=torch.int64)
    torch.cumsum(values, 0, out=sums[1:])
    ends = sums.index_select(0, offsets)
    return (ends[1:] - ends[:-1]).to(values.dtype)


def segment_max(values: Tensor, offsets: Tensor, order: Tensor | None) -> tuple[Tensor, Tensor]:
    """Maximum [N, F] by segment and the edge it came from (-1 for an empty segment)."""
    if order is None:
        order = torch.arange(values.shape[0], device=values.device)
    counts = offsets.diff().long()
    segment = torch.repeat_interleave(counts, output_size=values.shape[0])
    shape = (counts.shape[0], values.shape[1])
    sorted_values = values.index_select(0, order)
    floating = values.is_floating_point()
    lowest = -torch.inf if floating else torch.iinfo(values.dtype).min
    spread = segment[:, None].expand_as(sorted_values)
    best = sorted_values.new_full(shape, lowest).scatter_reduce(0, spread, sorted_values, "amax")
    # Among equal values the first position wins, as in the compiled loop.
    position = torch.arange(values.shape[0], device=values.device)[:, None].expand_as(spread)
    mine = best.gather(0, spread)
    wins = (sorted_values == mine) | (sorted_values.isnan() & mine.isnan())
    none = values.shape[0]
    first = position.new_full(shape, none).scatter_reduce(
        0, spread, position.where(wins, none), "amin"
    )
    winners = torch.cat([order.long(), order.new_full((1,), -1).long()])[first]
    return best.masked_fill(winners < 0, 0), winners


def spmm(
    x: Tensor, weight: Tensor | None, columns: Tensor, offsets: Tensor, order: Tensor | None
) -> Tensor:
    """Weighted sums [N, F] of rows of `x` by CSR row."""
    messages = x.index_select(0, columns)
    if weight is not None:
        # Mixed precision: the result has the dtype of x, as the tracer is told.
        messages = (messages * (weight[:, None] if weight.ndim == 1 else weight)).to(x.dtype)
    return segment_reduce(messages, offsets, order, "sum")


def edge_products(a: Tensor, b: Tensor, rows: Tensor, columns: Tensor, by_feature: bool) -> Tensor:
    """Products a[rows] · b[columns] by edge: dot products [E], or [E, F] by feature."""
    product = (a.index_select(0, rows) * b.index_select(0, columns)).to(a.dtype)
    return product if by_feature else product.sum(1)


def pair_sums(values: Tensor, forward: Tensor, backward: Tensor) -> Tensor:
    """Sums [P, F] of edge values [E, F] over the one or two edges of each pair."""
    second = values.index_select(0, backward)
    alone = (forward == backward)[:, None]
    return values.index_select(0, forward) + second.masked_fill(alone, 0.0)
