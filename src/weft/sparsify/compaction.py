"""Hidden units that do nothing are removed, exactly.

A unit whose outgoing weights are all zero is not read; one whose incoming weights are all zero is
a constant, which goes into the bias of the layer that reads it. Each removal may free others.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves

from weft.models.exported_program import program_of
from weft.sparsify.masks import Masks
from weft.sparsify.replacement import is_linear
from weft.sparsify.sparse_layers import to_dense
from weft.sparsify.unit_groups import OUTPUT, Linear, Units, follow


@dataclass(frozen=True, kw_only=True)
class CompactedLayer:
    """Hidden units of one layer.

    Attributes:
        name: of the linear layer that makes them.
        before: how many there were.
        after: how many are left.
        reason: why units stay that might seem to do nothing; empty if none do.
    """

    name: str
    before: int
    after: int
    reason: str = ""


def compact(
    model: nn.Module,
    masks: Masks | Mapping[str, Tensor] | None = None,
    *,
    example: Any = None,
) -> tuple[nn.Module, tuple[CompactedLayer, ...]]:
    """A dense copy in evaluation mode without the hidden units that do nothing; outputs are equal.

    Units are followed through the graph that `torch.export` makes of the model: through
    activations, norms in evaluation mode, sums over neighbours, additions and concatenations, from
    the linear layers that make them to those that read them. Those that another operation needs
    all of stay, and the table says why. At least one unit of a layer is left. A weight that is
    computed at each call, by a parametrization or `weight_norm`, becomes a plain one.

    Args:
        model: any module that `torch.export` takes.
        masks: of the model's parameters by name; inactive weights count as 0.
        example: inputs of the model, a tuple if there are several, a dictionary for inputs by
            name; without one, a model that begins with a linear layer is called with some numbers.

    Raises:
        ValueError: the model cannot be exported, or needs an example.
    """
    model = plain_copy(model, masks)
    arguments, keywords = _arguments(model, example)
    program = program_of(model, arguments, keywords)
    tensors = {
        name: tensor.detach().cpu().clone()
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    }
    removal = _Removal(model, tensors)
    units = removal.run(lambda: follow(program, tensors, removal.biases))
    kept = removal.kept(units)
    table = _table(units, kept, removal)
    if not removal.removed.any():
        return model, table
    small = copy.deepcopy(model)
    _resize(small, tensors, removal, units, kept)
    if why := _difference(model, small, arguments, keywords):
        return model, tuple(
            CompactedLayer(name=row.name, before=row.before, after=row.before, reason=why)
            for row in table
        )
    return small, table


def plain_copy(model: nn.Module, masks: Masks | Mapping[str, Tensor] | None = None) -> nn.Module:
    """A dense copy in evaluation mode whose weights are plain parameters, with masks applied."""
    with torch.no_grad():
        for module in model.modules():
            for hook in module._forward_pre_hooks.values():
                if _computes_weight(hook):
                    # Or the copy would be one of a tensor with a history, which cannot be copied.
                    hook(module, None)
    model = copy.deepcopy(model)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name in masks or ():
            assert masks is not None
            parameters[name].mul_(masks[name])
    for module in list(model.modules()):
        if parametrize.is_parametrized(module):
            computed = {name: getattr(module, name) for name in module.parametrizations}  # type: ignore[union-attr]
            # torch's own way back takes them off the class, which is the original's too.
            module.__class__ = parametrize.type_before_parametrizations(module)
            del module._modules["parametrizations"]
            for name, weight in computed.items():
                module.register_parameter(name, nn.Parameter(weight.detach().clone()))
        computing: dict[int, Any] = {
            key: each for key, each in module._forward_pre_hooks.items() if _computes_weight(each)
        }
        for key, each in computing.items():
            each.remove(module)
            del module._forward_pre_hooks[key]
    return to_dense(model).eval()


def _computes_weight(hook: Any) -> bool:
    """Whether it is one of torch's that set a weight before each call: norms and pruning."""
    return type(hook).__module__.startswith("torch.nn.utils.") and hasattr(hook, "remove")


def called(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and keywords of a call."""
    if isinstance(example, dict):
        return (), example
    if not isinstance(example, tuple):
        return (example,), {}
    # As torch.export keeps the inputs of a program.
    if len(example) == 2 and isinstance(example[0], tuple) and isinstance(example[1], dict):
        return example
    return example, {}


def _arguments(model: nn.Module, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if example is not None:
        return called(example)
    needed = [
        each
        for each in inspect.signature(model.forward).parameters.values()
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    first = next((module for module in model.modules() if is_linear(module)), None)
    if len(needed) != 1 or first is None:
        raise ValueError(
            f"{type(model).__name__} takes {', '.join(each.name for each in needed) or 'nothing'}: "
            "give `example`, inputs to follow its units with"
        )
    weight: Any = first.weight
    # Numbers that differ, for what is compared at the end.
    return (torch.linspace(-1, 1, 2 * weight.shape[1]).to(weight).view(2, -1),), {}


class _Removal:
    """What is done to the weights, in place, while there are units that do nothing."""

    def __init__(self, model: nn.Module, tensors: dict[str, Tensor]) -> None:
        self.model, self.tensors = model, tensors
        self.biases: dict[str, Tensor] = {}
        self.removed = torch.zeros(0, dtype=torch.bool)
        self.unfolded: set[str] = set()
        owners = [p for m in model.modules() for p in m._parameters.values() if p is not None]
        shared = {name for name, p in model.named_parameters() if sum(q is p for q in owners) > 1}
        self.shared = shared
        self.empty: dict[str, Tensor] = {}

    def run(self, follow_units: Callable[[], Units]) -> Units:
        units = follow_units()
        for linear in units.linears:
            self.empty[linear.node] = (linear.matrix == 0).all(1)
        while self._remove(units):
            units = follow_units()
        return units

    def _remove(self, units: Units) -> bool:
        """Whether there were units to remove."""
        labels = units.labels
        count = int(labels.max()) + 1 if labels.numel() else 0
        if not self.removed.numel():
            self.removed = torch.zeros(count, dtype=torch.bool)
        fixed, read, needed = (torch.zeros(count, dtype=torch.bool) for _ in range(3))
        for those, _ in units.fixed:
            fixed[labels[those]] = True
        self.unfolded.clear()
        for linear in units.linears:
            groups = labels[linear.inputs]
            used = (linear.matrix != 0).any(0)
            steady = linear.known & linear.value.isfinite()
            if not self._takes_more(linear, units):
                if bool((used & steady & (linear.value != 0)).any()):
                    self.unfolded.add(linear.node)
                steady &= linear.value == 0
            read[groups] = True
            needed[groups[used & ~steady]] = True
        gone = read & ~needed & ~fixed & ~self.removed
        if not gone.any():
            return False
        for linear in units.linears:
            self._fold(linear, gone[labels[linear.inputs]])
        for name, axes in units.axes.items():
            for axis, own in enumerate(axes):
                if own is not None and len(axes) > 1:
                    lost = gone[labels[own]].nonzero()[:, 0]
                    self.tensors[name].index_fill_(axis, lost, 0)
        self.removed |= gone
        return True

    def _takes_more(self, linear: Linear, units: Units) -> bool:
        """Whether constants can go into its bias, or into a new one."""
        if sum(other.weight == linear.weight for other in units.linears) > 1:
            # Its calls may read different constants.
            return False
        if linear.bias is not None:
            return linear.bias not in self.shared
        if linear.weight is None or linear.weight in self.shared:
            return False
        owner = self.model.get_submodule(linear.weight.rpartition(".")[0])
        return is_linear(owner) and owner.bias is None

    def _fold(self, linear: Linear, gone: Tensor) -> None:
        value = torch.where(linear.value.isfinite(), linear.value, 0).to(linear.matrix)
        extra = linear.matrix[:, gone] @ value[gone]
        if not bool((extra != 0).any()):
            return
        if linear.bias is not None:
            self.tensors[linear.bias] += extra
        else:
            self.biases[linear.node] = self.biases.get(linear.node, 0) + extra

    def kept(self, units: Units) -> Tensor:
        """Which groups stay; at least one of every axis."""
        kept = ~self.removed
        for axes in units.axes.values():
            for own in axes:
                if own is not None and own.numel() and not kept[units.labels[own]].any():
                    kept[units.labels[own[0]]] = True
        return kept


def _table(units: Units, kept: Tensor, removal: _Removal) -> tuple[CompactedLayer, ...]:
    rows: dict[str, CompactedLayer] = {}
    for linear in units.linears:
        reason = units.reason(linear.outputs)
        # The last layer makes outputs, if by another operation.
        last = reason and linear is units.linears[-1]
        if reason == OUTPUT or last or linear.name in rows:
            continue
        stays = kept[units.labels[linear.outputs]]
        if not reason:
            reason = _why_kept(linear, units, stays, removal)
        before, after = len(stays), int(stays.sum())
        rows[linear.name] = CompactedLayer(
            name=linear.name, before=before, after=after, reason=reason
        )
    return tuple(rows.values())


def _why_kept(linear: Linear, units: Units, stays: Tensor, removal: _Removal) -> str:
    """Of units without incoming weights that stay."""
    left = stays & removal.empty[linear.node]
    if not left.any() or int(stays.sum()) == 1:
        return ""
    groups = units.labels[linear.outputs[left]]
    sharing = [
        other.name
        for other in units.linears
        if other.name != linear.name and torch.isin(units.labels[other.outputs], groups).any()
    ]
    count = int(left.sum())
    if sharing:
        return f"{count} without inputs are added to those of {', '.join(dict.fromkeys(sharing))}"
    if removal.unfolded:
        return f"{count} are constants, and the layer that reads them has no bias of its own"
    return f"{count} are constants that differ from row to row later, as after a sum of neighbours"


@torch.no_grad()
def _resize(
    model: nn.Module, tensors: Mapping[str, Tensor], removal: _Removal, units: Units, kept: Tensor
) -> None:
    """Give the model what is left of its weights."""
    places: list[tuple[Any, str, Tensor | None]] = [
        (held, name, tensor)
        for module in model.modules()
        for held in (module._parameters, module._buffers)
        for name, tensor in held.items()
    ]
    old = dict((*model.named_parameters(), *model.named_buffers()))
    for name, axes in units.axes.items():
        small = tensors[name]
        for axis, own in enumerate(axes):
            if own is not None:
                small = small.index_select(axis, kept[units.labels[own]].nonzero()[:, 0])
        before: Any = old[name]
        new: Tensor = small.to(before.device)
        if isinstance(before, nn.Parameter):
            new = nn.Parameter(new, requires_grad=before.requires_grad)
        for held, key, tensor in places:
            if tensor is before:
                held[key] = new
    for linear in units.linears:
        if linear.node in removal.biases:
            assert linear.weight is not None
            owner: Any = model.get_submodule(linear.weight.rpartition(".")[0])
            stays = kept[units.labels[linear.outputs]]
            owner.bias = nn.Parameter(removal.biases[linear.node][stays].to(owner.weight))
    for module in model.modules():
        _say_size(module)


def _say_size(module: Any) -> None:
    """Bring the sizes that a layer says that it has up to date."""
    if is_linear(module):
        out, into = module.weight.shape
        names = {"out_features": out, "in_features": into, "out_channels": out, "in_channels": into}
    elif isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
        names = {"num_features": len(module.running_mean)}
    elif isinstance(module, nn.Embedding):
        names = {"embedding_dim": module.weight.shape[1]}
    else:
        return
    for name, size in names.items():
        if hasattr(module, name):
            setattr(module, name, size)


@torch.no_grad()
def _difference(
    model: nn.Module, small: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> str:
    """Why the small model is not taken; empty if it gives what the model gives."""

    def outputs(of: nn.Module) -> list[Any]:
        # A model may write into its inputs.
        given, named = copy.deepcopy((arguments, keywords))
        return tree_leaves(of(*given, **named))

    expected = outputs(model)
    try:
        found = outputs(small)
    except Exception as error:
        return f"the code of the model counts on their number ({str(error).splitlines()[0]})"
    for a, b in zip(expected, found, strict=True):
        if isinstance(a, Tensor) and a.is_floating_point():
            allowed = 1e3 * torch.finfo(a.dtype).eps * max(1.0, float(a.abs().amax()))
            if a.shape != b.shape or not torch.allclose(a, b, 0, allowed, equal_nan=True):
                return "without some of them the model gives something else"
    return ""
