"""Masked linear layers replaced by sparse ones in a model, and back."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise, starmap
from typing import Any

from torch import Tensor, nn

from weft.sparsify.sparse_layers import FusingSequential, SparseLinear, fuses, has_hooks


def dense_reason(model: nn.Module, name: str) -> str | None:
    """Why the parameter `name` cannot become that of a `SparseLinear`; None if it can.

    Raises:
        ValueError: the model has no such parameter.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if name not in parameters:
        raise ValueError(
            f"there is a mask for {name!r}, which is no parameter of the model; it has "
            f"{', '.join(parameters) or 'none'}"
        )
    path, _, own = name.rpartition(".")
    layer = model.get_submodule(path)
    if not is_linear(layer):
        return "only linear layers have a sparse form"
    if own != "weight":
        return f"the mask is of its {own}, and only its weight has a sparse form"
    if layer is model:
        return "it is the whole model; put it into an nn.Sequential"
    if sum(p is layer.weight for m in model.modules() for p in m._parameters.values()) > 1:
        return "it shares its weight with another layer"
    return "it has hooks" if has_hooks(layer) else None


def put_sparse(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    """Put a `SparseLinear` in the place of linear layers, in place; `put_dense` undoes it.

    The weights become new parameters, for a new optimizer; biases stay. An `nn.Sequential` lets
    such a layer compute the ReLU after it.

    Args:
        model: any module.
        masks: bool [O, I] by the name of the layer, True where there is a weight.
    """
    new: dict[nn.Module | None, nn.Module] = {}
    for name, mask in masks.items():
        layer: Any = model.get_submodule(name)
        sparse = SparseLinear.from_dense(layer, mask)
        sparse.bias = layer.bias
        sparse.replaced = (layer,)
        # The weights are those of the new layer now; the parameter is kept for the way back.
        layer.weight.grad = None
        layer.weight.data = layer.weight.new_empty(0)
        new[layer] = sparse
    _swap(model, new)
    for module in model.modules():
        if type(module) is nn.Sequential and any(starmap(fuses, pairwise(module))):
            module.__class__ = FusingSequential


def put_dense(model: nn.Module) -> None:
    """Undo `put_sparse`: the same layers and parameters again, with the weights of now."""
    old: dict[nn.Module | None, nn.Module] = {}
    for module in model.modules():
        if isinstance(module, FusingSequential):
            module.__class__ = nn.Sequential  # type: ignore[assignment]
        if isinstance(module, SparseLinear):
            for layer in module.replaced:
                old[module] = layer.train(module.training)
                layer.weight.data = module.weight.detach()
                layer.weight.requires_grad_(module.values.requires_grad)
                layer.bias = module.bias
    _swap(model, old)


def _swap(model: nn.Module, new: Mapping[nn.Module | None, nn.Module]) -> None:
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            parent._modules[name] = new.get(child, child)


def is_linear(module: nn.Module) -> bool:
    """Whether it multiplies and does nothing else, which a subclass might."""
    kind = type(module)
    # Known by its name, as torch_geometric need not be installed.
    geometric = ("torch_geometric.nn.dense.linear", "Linear")
    return kind is nn.Linear or (kind.__module__, kind.__name__) == geometric
