"""The products of a model's parameters, seen as the model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.flop_counter import flop_registry

from weft.sparsify.snapshots import in_evaluation
from weft.sparsify.sparse_layers import SparseLinear

aten = torch.ops.aten


def watch_products(
    model: nn.Module,
    inputs: tuple[Any, ...],
    named: Mapping[str, Any],
    *,
    nnz: Mapping[str, int],
    training: bool = False,
) -> Products:
    """Run the model once, in evaluation mode and without changing it, and watch its products.

    Args:
        model: any module.
        inputs: what it is called with.
        named: what it is called with, by name.
        nnz: active weights of the parameters that have masks, by name.
        training: with gradients, as some layers multiply in another order then.
    """
    products = Products(model, nnz)
    inputs, named = tree_map(_watched, (inputs, dict(named)))
    watched = {name: _watched(parameter) for name, parameter in model.named_parameters()}
    # Fused attention would multiply out of sight.
    attention = sdpa_kernel(SDPBackend.MATH)
    with (
        products.hooks(),
        in_evaluation(model),
        attention,
        torch.set_grad_enabled(training),
        products,
    ):
        functional_call(model, watched, inputs, dict(named))
    return products


class _Watched(Tensor):
    """A tensor for which weft's operators take no short cut: torch's dispatcher sees them."""


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

# Operators whose result is a copy of a weight and counts as that weight.
_COPIES = {
    aten.cat,
    aten.stack,
    aten.clone,
    aten._to_copy,
    aten.mul,
    aten.masked_fill,
    aten.where,
}

_SUMS_OVER_EDGES = {
    *(aten.index_add, aten.index_add_, aten.scatter_add, aten.scatter_add_),
    *(aten.scatter_reduce, aten.scatter_reduce_),
}

# Operators that take single matrices out of a stack of them.
_GATHERS = {aten.index, aten.index_select}

# Operators whose first argument is only added to the product.
_ADDS = {aten.addmm, aten.baddbmm}


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums up products by the parameter that is a factor.

    A parameter is known by the memory that it and its views share.

    Attributes:
        sizes: weights of each parameter, by name.
        nnz: those that are active.
        dense: floating-point operations of the products with a parameter, by name.
        sparse: those with active weights alone.
        other: of products without a parameter.
        multiplied: parameters that features were multiplied with as with a matrix. This excludes
            a vector, which makes one number of a row; a table whose rows are features themselves;
            a factor of other parameters alone, or of a sparse adjacency.
    """

    def __init__(self, model: nn.Module, nnz: Mapping[str, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: dict[str, int] = {}
        self.nnz: dict[str, int] = {}
        self.dense: dict[str, float] = {}
        self.sparse: dict[str, float] = {}
        self.other = 0.0
        self.multiplied: set[str] = set()
        self._names: dict[int, frozenset[str]] = {}
        self._alive: list[Tensor] = []
        self._inside = False
        self._layers: dict[int, str] = {}
        self._model = model
        # Rows of an embedding are features, also where a layer multiplies all of them at once.
        self._tables = frozenset(
            f"{path}.weight".lstrip(".")
            for path, module in model.named_modules()
            if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        )
        for name, parameter in model.named_parameters():
            self.sizes[name] = parameter.numel()
            self.nnz[name] = nnz.get(name, parameter.numel())
            self._stand_for(parameter, self._names_of(parameter) | {name})

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self._inside:
            return out
        packet = func._overloadpacket
        tensors = tensors_in((args[packet in _ADDS :], kwargs))
        tensors = [tensor for tensor in tensors if tensor.dim() >= 2]
        factors = frozenset[str]().union(*map(self._names_of, tensors))
        operator = func.name().split(".")[0]
        if packet in flop_registry:
            self._note_features(packet, tensors)
            self._add(factors, flop_registry[packet](*args, **kwargs, out_val=out))
        elif operator in _ROWS:
            rows = _ROWS[operator](*args)
            if operator == "weft::typed_messages":
                factors = self._names_of(args[1])  # Not its bias, which has two dimensions.
            self.multiplied |= factors
            for name in factors:
                self._add(frozenset([name]), 2 * rows * self.sizes[name])
        elif operator in ("weft::spmm", "weft::pair_spmm"):
            self.other += 2 * args[2].shape[0] * args[0].shape[1]
        elif packet in _SUMS_OVER_EDGES or operator == "weft::segment_sum":
            self.other += 2 * args[3 if packet in _SUMS_OVER_EDGES else 0].numel()
        elif packet in _COPIES and out.numel() == sum(self.sizes[name] for name in factors):
            self._stand_for(out, factors)
        elif packet in _GATHERS and args[0].dim() >= 3:
            self._stand_for(out, self._names_of(args[0]))
        return out

    def _note_features(self, packet: Any, tensors: list[Tensor]) -> None:
        """Note which parameters a product multiplies features with."""
        if all(self._names_of(t) - self._tables or t.layout != torch.strided for t in tensors):
            return
        for tensor in tensors:
            if packet is aten.convolution or min(tensor.shape[-2:]) > 1:
                self.multiplied |= self._names_of(tensor) - self._tables

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
        """Watch the calls of layers that hold active weights alone."""
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
        """Count a `SparseLinear` when it is called, whichever operator it then uses."""
        x = arguments[0]
        size = layer.in_features * layer.out_features
        rows = x.numel() // max(layer.in_features, 1)
        if x.layout == torch.sparse_csr:
            # A weight is multiplied once for each stored value of its input.
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


def tensors_in(arguments: Any) -> list[Tensor]:
    """All tensors of nested tuples, lists and dictionaries."""
    return [leaf for leaf in tree_flatten(arguments)[0] if isinstance(leaf, Tensor)]
