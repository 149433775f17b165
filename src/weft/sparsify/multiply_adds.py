"""Which weight is multiplied how often: floating-point operations, seen as a model runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.flop_counter import flop_registry

from weft.sparsify.layers import SparseLinear
from weft.sparsify.masks import Masks, check_same_model, table
from weft.sparsify.snapshots import in_evaluation

__all__ = ["FlopCount", "WeightFlops", "count_flops"]

aten = torch.ops.aten


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

    The model runs once, in evaluation mode and without a change to itself; each product with a
    parameter is counted: linear and recurrent layers, convolutions, matrix products of any
    module, weft's own operators, `SparseLinear`. A weight of r rows of input is r · nnz
    multiply-adds. Elementwise operations are not counted.

    Args:
        model: any module.
        masks: of the model; None, and for what is not masked: all weights are active.
        *inputs: what the model is called with.
        training: with gradients, as some layers multiply in another order then; only the pass
            forward is counted all the same.
        **named: what it is called with, by name.

    Warns:
        UserWarning: a masked weight was used in no product that is known.
    """
    if masks is not None:
        check_same_model(model, masks)
    counter = _Counter(model, masks)
    inputs, named = tree_map(_watched, (inputs, named))
    watched = {name: _watched(parameter) for name, parameter in model.named_parameters()}
    # Fused attention would multiply out of sight.
    attention = sdpa_kernel(SDPBackend.MATH)
    with (
        counter.hooks(),
        in_evaluation(model),
        attention,
        torch.set_grad_enabled(training),
        counter,
    ):
        functional_call(model, watched, inputs, named)
    unseen = [name for name in masks or () if name not in counter.dense]
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


class _Watched(Tensor):
    """A tensor that weft's operators do not take a short way with: torch's dispatcher sees them."""


def _watched(value: Any) -> Any:
    plain = type(value) in (Tensor, nn.Parameter) and value.layout == torch.strided
    return value.as_subclass(_Watched) if plain else value


# Rows that each weight among the arguments of an operator multiplies.
_ROWS: dict[str, Callable[..., float]] = {
    "weft::gru": lambda x, *_: x.shape[0],
    "weft::radial_filters": lambda d, *_: d.shape[0],
    "weft::gaussian_product": lambda d, *_: d.shape[0],
    "aten::mkldnn_rnn_layer": lambda x, *_: x.shape[0] * x.shape[1],
    # Each row is multiplied with the matrix of its own type.
    "weft::typed_messages": lambda h, weight, *rest: rest[9].shape[0] / weight.shape[0],
}

# What makes a weight's copy that stands for it.
_COPIES = {
    aten.cat,
    aten.stack,
    aten.clone,
    aten._to_copy,
    aten.mul,
    aten.masked_fill,
    aten.where,
}

_SUMS_OVER_EDGES: dict[Any, int] = {
    aten.index_add: 3,
    aten.index_add_: 3,
    aten.scatter_add: 3,
    aten.scatter_add_: 3,
    aten.scatter_reduce: 3,
    aten.scatter_reduce_: 3,
}


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums up products by the parameter that is a factor.

    A parameter is known by the memory that it and its views share.
    """

    def __init__(self, model: nn.Module, masks: Masks | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: dict[str, int] = {}
        self.nnz: dict[str, int] = {}
        self.dense: dict[str, float] = {}
        self.sparse: dict[str, float] = {}
        self.other = 0.0
        self._names: dict[int, frozenset[str]] = {}
        self._alive: list[Tensor] = []
        self._inside = False
        self._layers: dict[int, str] = {}
        self._model = model
        for name, parameter in model.named_parameters():
            self.sizes[name] = parameter.numel()
            masked = masks is not None and name in masks.names
            self.nnz[name] = masks.nnz(name) if masks and masked else parameter.numel()
            self._stand_for(parameter, self._names_of(parameter) | {name})

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self._inside:
            return out
        packet, tensors = func._overloadpacket, _tensors((args, kwargs))
        factors = frozenset[str]().union(*(self._names_of(t) for t in tensors if t.dim() >= 2))
        operator = func.name().split(".")[0]
        if packet in flop_registry:
            self._add(factors, flop_registry[packet](*args, **kwargs, out_val=out))
        elif operator in _ROWS:
            rows = _ROWS[operator](*args)
            for name in factors:
                self._add(frozenset([name]), 2 * rows * self.sizes[name])
        elif operator in ("weft::spmm", "weft::pair_spmm"):
            self.other += 2 * args[2].shape[0] * args[0].shape[1]
        elif packet in _SUMS_OVER_EDGES or operator == "weft::segment_sum":
            self.other += 2 * args[_SUMS_OVER_EDGES.get(packet, 0)].numel()
        elif packet in _COPIES and out.numel() == sum(self.sizes[name] for name in factors):
            self._stand_for(out, factors)
        return out

    def _add(self, factors: frozenset[str], flops: float) -> None:
        if not factors:
            self.other += flops
            return
        total = sum(self.sizes[name] for name in factors)
        for name in factors:
            dense = flops * self.sizes[name] / total
            self.dense[name] = self.dense.get(name, 0.0) + dense
            share = self.nnz[name] / max(self.sizes[name], 1)
            self.sparse[name] = self.sparse.get(name, 0.0) + dense * share

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Be told of the calls of layers that hold active weights alone."""
        handles: list[Any] = []
        for path, module in self._model.named_modules():
            if isinstance(module, SparseLinear):
                self._layers[id(module)] = f"{path}.values".lstrip(".")
                handles.append(module.register_forward_pre_hook(self._enter))
                handles.append(module.register_forward_hook(self._leave))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, layer: Any, arguments: tuple[Any, ...]) -> None:
        """Count a `SparseLinear` as it is called, whichever way it then takes."""
        x = arguments[0]
        size = layer.in_features * layer.out_features
        rows = x.numel() // max(layer.in_features, 1)
        if x.layout == torch.sparse_csr:
            # A weight is multiplied where its input is there.
            inputs = torch.bincount(x.col_indices().long(), minlength=layer.in_features)
            products = int((inputs * layer.active_mask().sum(0)).sum())
        else:
            products = rows * layer.values.numel()
        name = self._layers[id(layer)]
        self.sizes[name] = size
        self.dense[name] = self.dense.get(name, 0.0) + 2 * rows * size
        self.sparse[name] = self.sparse.get(name, 0.0) + 2 * products
        self._inside = True

    def _leave(self, *_: object) -> None:
        self._inside = False

    def _names_of(self, tensor: Tensor) -> frozenset[str]:
        if tensor.layout != torch.strided:
            return frozenset()
        return self._names.get(tensor.untyped_storage().data_ptr(), frozenset())

    def _stand_for(self, tensor: Tensor, names: frozenset[str]) -> None:
        if names and tensor.numel():
            self._names[tensor.untyped_storage().data_ptr()] = names
            # Freed memory would be given to another tensor.
            self._alive.append(tensor)


def _tensors(arguments: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(arguments)[0] if isinstance(leaf, Tensor)]
