"""The operators in torch's own operations, for graphs that run without weft: see `portable_ops`.

A graph that calls `weft::spmm` runs only where weft is installed, and no other runtime knows the
operator. The forms here add up rows by `index_add`, which every runtime has, so they need no sorted
edges: of a CSR view only the number of rows is read. Batches have no pairs: each edge is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from weft.kernels.plain_torch import painn_invariants, painn_update, shifted_softplus
from weft.kernels.recurrent import plain_gru


class portable_ops(TorchFunctionMode):  # noqa: N801
    """Within this context every operator of weft is replaced by operations of torch.

    For tracers (`make_fx` with fake tensors): where nothing is traced, eager calls of operators go
    past it. Raises NotImplementedError for an operator that has no such form.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The result of `func`, in torch's own operations."""
        if getattr(func, "namespace", "") != "weft":
            return func(*args, **(kwargs or {}))
        name = str(func).split(".")[1]
        if name not in _FORMS:
            raise NotImplementedError(f"the operator weft::{name} has no portable form")
        return _FORMS[name](*args, **(kwargs or {}))


def _sums(values: Tensor, index: Tensor, offsets: Tensor) -> Tensor:
    """Sums of the rows of `values` [E, ...] by index [E], for the rows that `offsets` counts."""
    return values.new_zeros(offsets.shape[0] - 1, *values.shape[1:]).index_add(0, index, values)


def _segment_sum(
    values: Tensor, offsets: Tensor, order: Any, index: Tensor | None, mean: bool
) -> Tensor:
    if index is None:
        raise NotImplementedError("a segment sum without the segment of each row is not portable")
    sums = _sums(values, index, offsets)
    if not mean:
        return sums
    return sums / _sums(values.new_ones(values.shape[0], 1), index, offsets).clamp(min=1)


def _gather(x: Tensor, index: Tensor, *_: Any) -> Tensor:
    return x.index_select(0, index)


def _spmm(
    x: Tensor, weight: Tensor | None, rows: Tensor, columns: Tensor, offsets: Tensor, *_: Any
) -> Tensor:
    messages = x.index_select(0, columns)
    if weight is not None:
        messages = messages * (weight[:, None] if weight.ndim == 1 else weight)
    return _sums(messages, rows, offsets)


def _sorted_pairs(
    pos: Tensor, shift: Tensor | None, senders: Tensor, receivers: Tensor, *others: Any
) -> tuple[Any, ...]:
    """Distances in the order of the edges: only compiled loops gain from another one."""
    vectors = pos.index_select(0, senders) - pos.index_select(0, receivers)
    vectors = vectors if shift is None else vectors + shift
    # As `lengths` of the models, whose derivative is taken where there is any.
    return vectors.square().sum(1).clamp(min=1e-12).sqrt(), *others[:3]


def _edge_softplus(
    a: Tensor, b: Tensor, c: Tensor, senders: Tensor, receivers: Tensor, *_: Any
) -> Tensor:
    return shifted_softplus(a.index_select(0, senders) + b.index_select(0, receivers) + c)


def _painn_message(
    x: Tensor,
    mu: Tensor | None,
    filters: Tensor,
    direction: Tensor,
    mask: Tensor,
    senders: Tensor,
    receivers: Tensor,
    offsets: Tensor,
    *_: Any,
) -> tuple[Tensor, Tensor]:
    products = filters * mask[:, None] * x.index_select(0, senders)
    scalars, along, *of_vectors = products.chunk(2 if mu is None else 3, dim=1)
    vectors = along[:, None] * direction[:, :, None]
    if mu is not None:
        vectors = vectors + of_vectors[0][:, None] * mu.index_select(0, senders)
    return _sums(scalars, receivers, offsets), _sums(vectors, receivers, offsets)


def _gru(x: Tensor, h: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    # Nothing reads the gates but a backward pass, which plain operations do not need.
    return plain_gru(x, h, *weights), h


_FORMS: dict[str, Callable[..., Any]] = {
    "gru": _gru,
    "segment_sum": _segment_sum,
    "gather": _gather,
    "spmm": _spmm,
    "pair_spmm": _spmm,
    "sorted_pairs": _sorted_pairs,
    "shifted_softplus": shifted_softplus,
    "edge_softplus": _edge_softplus,
    "painn_message": _painn_message,
    "painn_invariants": painn_invariants,
    "painn_update": painn_update,
}
