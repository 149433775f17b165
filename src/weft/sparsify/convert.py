"""Linear layers of anyone's module that hold only their active weights while they are trained."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.sparse import to_sparse_semi_structured

from weft.sparsify.fan_in import FanInLinear, has_constant_fan_in
from weft.sparsify.masks import Masks
from weft.sparsify.replacement import dense_reason, put_sparse
from weft.sparsify.sparse_layers import SparseLinear
from weft.sparsify.structure import structure_of

_TWO_OF_FOUR = structure_of("2:4")


def convert(model: nn.Module, masks: Masks | Mapping[str, Tensor]) -> dict[str, str]:
    """Put sparse layers in the place of masked linear layers, in place, for training or inference.

    Layers of torch and those inside torch_geometric's convolutions become `SparseLinear`, or
    `FanInLinear` where every output has as many inputs. Their names stay; the parameter `weight`
    [O, I] becomes `values` [K], so make the optimizer afterwards: its state has a number for each
    weight that is there. `DropAndGrow` then moves these weights. A state_dict of the dense model
    is taken too, if it is 0 where there is no weight, and `to_dense(model).state_dict()` gives one
    again; `weft.restore(model)` puts the layers back, with the weights of then and zeros.

    Unlike `weft.accelerate` it measures nothing: it converts every masked layer that has a sparse
    form, be it faster or not.

    Args:
        model: any module.
        masks: of its parameters by name, bool, True where a weight is active.

    Returns:
        The masked parameters that stay dense, each with the reason.

    Raises:
        ValueError: an optimizer applies the masks, a mask is of no parameter or of another shape,
            or no masked layer has a sparse form.
    """
    if isinstance(masks, Masks) and masks.optimizer is not None:
        raise ValueError(
            "the masks are attached to an optimizer of the dense weights, which sparse layers do "
            "not have: masks.detach(), and make a new optimizer after convert"
        )
    reasons = {name: dense_reason(model, name) for name in masks}
    left = {name: reason for name, reason in reasons.items() if reason is not None}
    chosen = {name: masks[name] for name in masks if name not in left}
    for name, mask in chosen.items():
        shape = model.get_parameter(name).shape
        if mask.dtype != torch.bool or mask.shape != shape:
            raise ValueError(
                f"the mask of {name} is {mask.dtype} {list(mask.shape)}; it must be torch.bool "
                f"{list(shape)}"
            )
    if not chosen:
        why = "; ".join(f"{name}: {reason}" for name, reason in left.items())
        raise ValueError(
            f"no masked layer of {type(model).__name__} has a sparse form "
            f"({why or 'there are no masks'}); train it with masks.attach(optimizer)"
        )
    put_sparse(model, {name.rpartition(".")[0]: mask for name, mask in chosen.items()})
    for module in model.modules():
        if type(module) is SparseLinear and has_constant_fan_in(module):
            module.__class__ = FanInLinear
    return left


def to_semi_structured(model: nn.Module, masks: Masks) -> None:
    """Give linear layers with 2:4 masks torch's semi-structured weights, in place, for inference.

    Raises:
        ValueError: the masks are not 2:4, or the model is not on a CUDA device.
    """
    if masks.structure != _TWO_OF_FOUR:
        raise ValueError(
            f"the masks are of structure {masks.structure}; semi-structured weights are of 2:4"
        )
    for name in masks:
        weight = masks.weight(name)
        if weight.device.type != "cuda":
            raise ValueError(
                f"{name} is on {weight.device}: only NVIDIA GPUs multiply semi-structured weights; "
                "move the model there, or export it dense with its zeros"
            )
    masks.apply_()
    for name in masks:
        layer = model.get_submodule(name.rpartition(".")[0])
        if isinstance(layer, nn.Linear):
            packed = to_sparse_semi_structured(layer.weight.detach())
            layer.weight = nn.Parameter(packed, requires_grad=False)
