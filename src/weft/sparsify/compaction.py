"""Hidden units that do nothing are removed, exactly.

A unit whose outgoing weights are all zero is not read; one whose incoming weights are all zero is
a constant, which goes into the bias of the layer that reads it. Each removal may free others.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from weft.sparsify.masks import Masks
from weft.sparsify.sparse_layers import to_dense

_MODULES = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh,
    nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Identity, nn.Dropout,
)  # fmt: skip
_FUNCTIONS = (
    torch.relu, torch.tanh, torch.sigmoid, functional.relu, functional.leaky_relu, functional.elu,
    functional.selu, functional.gelu, functional.silu, functional.mish, functional.tanh,
    functional.sigmoid, functional.softplus, functional.hardswish, functional.dropout,
)  # fmt: skip
_METHODS = ("relu", "tanh", "sigmoid", "contiguous")


@dataclass(frozen=True, kw_only=True)
class CompactedLayer:
    """Hidden units of one layer.

    Attributes:
        name: of the linear layer that makes them.
        before: how many there were.
        after: how many are left.
    """

    name: str
    before: int
    after: int


def compact(
    model: nn.Module, masks: Masks | Mapping[str, Tensor] | None = None
) -> tuple[nn.Module, tuple[CompactedLayer, ...]]:
    """A dense copy in evaluation mode without the hidden units that do nothing; outputs are equal.

    Units lie between two linear layers with nothing but elementwise functions between them, as
    found by tracing the model; all others stay. At least one unit of a layer is left.

    Args:
        model: a module that `torch.fx` can trace.
        masks: of the model's parameters by name; inactive weights count as 0.

    Raises:
        ValueError: the model cannot be traced.
    """
    model = copy.deepcopy(model)
    if masks is not None:
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name in masks:
                parameters[name].mul_(masks[name])
    model = to_dense(model).eval()
    links = _links(model)
    before = {first: _linear(model, first).out_features for first, _, _ in links}
    with torch.no_grad():
        # A removed unit may free the unit before it or the one behind it.
        while sum(_shrink(model, *link) for link in links):
            pass
    return model, tuple(
        CompactedLayer(name=name, before=count, after=_linear(model, name).out_features)
        for name, count in before.items()
    )


def _linear(model: nn.Module, name: str) -> nn.Linear:
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    return layer


def _links(model: nn.Module) -> list[tuple[str, str, Callable[[Tensor], Tensor]]]:
    """Pairs of linear layers, by name, and the elementwise function between them."""
    try:
        graph = fx.Tracer().trace(model)
    except Exception as error:
        raise ValueError(
            f"{type(model).__name__} cannot be traced ({error}): its units cannot be removed, "
            "compact the part of it that is a plain feed-forward network"
        ) from error
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}

    def is_linear(node: fx.Node) -> bool:
        if node.op != "call_module" or calls[str(node.target)] > 1 or str(node.target) in read:
            return False
        layer = model.get_submodule(str(node.target))
        if type(layer) is not nn.Linear:
            return False
        return sum(p is layer.weight for m in model.modules() for p in m._parameters.values()) == 1

    links = []
    for start in graph.nodes:
        if not is_linear(start):
            continue
        between: list[fx.Node] = []
        node = start
        while len(node.users) == 1:
            node = next(iter(node.users))
            if is_linear(node):
                links.append((str(start.target), str(node.target), _function(model, between)))
                break
            if not _is_elementwise(model, node):
                break
            between.append(node)
    return links


def _is_elementwise(model: nn.Module, node: fx.Node) -> bool:
    others = [*node.args[1:], *node.kwargs.values()]
    if not node.args or any(isinstance(other, fx.Node) for other in others):
        return False
    if node.op == "call_module":
        return isinstance(model.get_submodule(str(node.target)), _MODULES)
    if node.target is functional.dropout:
        # By default it drops in evaluation mode too: then no unit is constant.
        return not node.kwargs.get("training", node.args[2] if len(node.args) > 2 else True)
    if node.op == "call_function":
        return node.target in _FUNCTIONS
    return node.op == "call_method" and node.target in _METHODS


def _function(model: nn.Module, nodes: list[fx.Node]) -> Callable[[Tensor], Tensor]:
    def apply(x: Tensor) -> Tensor:
        for node in nodes:
            target: Any = node.target
            if node.op == "call_module":
                target = model.get_submodule(target)
            elif node.op == "call_method":
                target = getattr(Tensor, target)
            x = target(x, *node.args[1:], **node.kwargs)
        return x

    return apply


def _shrink(
    model: nn.Module, first: str, second: str, function: Callable[[Tensor], Tensor]
) -> bool:
    """Remove units between two layers; whether there were any to remove."""
    made, reads = _linear(model, first), _linear(model, second)
    constant = (made.weight == 0).all(1)
    unread = (reads.weight == 0).all(0)
    keep = (~(constant | unread)).nonzero()[:, 0]
    if keep.numel() == 0:
        keep = torch.zeros(min(1, made.out_features), dtype=torch.int64, device=keep.device)
    if keep.numel() == made.out_features:
        return False
    gone = torch.ones_like(constant)
    gone[keep] = False
    # A copy: the function may work in place.
    start = made.weight.new_zeros(made.out_features) if made.bias is None else made.bias.clone()
    # Only the folded units: the product of an infinite constant with 0 would be nan.
    folded = (gone & ~unread).nonzero()[:, 0]
    bias = reads.weight[:, folded] @ function(start)[folded]
    if folded.numel() and bool((bias != 0).any()):
        old = reads.bias
        reads.bias = nn.Parameter(bias if old is None else old + bias)
    made.weight = nn.Parameter(made.weight[keep])
    if made.bias is not None:
        made.bias = nn.Parameter(made.bias[keep])
    reads.weight = nn.Parameter(reads.weight[:, keep])
    made.out_features = reads.in_features = keep.numel()
    return True
