"""Redirects the methods of a torch_geometric layer to weft's loops, and back.

The layer keeps its class, parameters, hooks and code. Some of its methods get an instance attribute
of the same name, a bound method, which a deep copy binds again; each falls back on the class's own
where the call is not one for weft. torch.jit, torch.compile and everything that reads messages see
the layer as it was. Pickles and shallow copies of it, and replicas of DataParallel, are as they
would be without weft.
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.utils._pytree import tree_leaves, tree_map
from torch_geometric import EdgeIndex
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.nn.conv import GatedGraphConv, GCNConv, MessagePassing, NNConv
from torch_geometric.nn.models import schnet as stock_schnet
from torch_geometric.utils import is_torch_sparse_tensor

import weft.integrations.geometric.edge_rules  # noqa: F401 - registers the rules
from weft.integrations.geometric import (
    attention_layers,
    edge_networks,
    relations,
    schnet,
    segments,
    whole_layers,
)
from weft.integrations.geometric.aggregations import aggregated, alone, cost_of, is_known
from weft.integrations.geometric.edge_cache import ends_range
from weft.integrations.geometric.helpers import with_fast_helpers
from weft.integrations.geometric.lazy_edges import (
    EdgeRangeError,
    Edges,
    EdgeTensor,
    NotLazyError,
    lazy_rows,
    values_of,
)
from weft.integrations.geometric.other_inputs import plain_call, sparse_index
from weft.integrations.geometric.running import (
    AS_IT_IS,
    has_hooks,
    note,
    number_of_notes,
    reader_of_messages,
    running,
    running_edges,
)
from weft.kernels.custom_op import has_loop

_stock_call: Any = nn.Module._call_impl
_any_global_hook: Any = torch_modules._has_any_global_hook

WHOLE: dict[type, tuple[Any, Any]] = {
    **dict.fromkeys(relations.KINDS, (relations.takes, relations.forward)),
    **dict.fromkeys(attention_layers.KINDS, (attention_layers.takes, attention_layers.forward)),
    GCNConv: (whole_layers.takes_gcn, whole_layers.gcn),
    NNConv: (edge_networks.takes, edge_networks.forward),
    GatedGraphConv: (whole_layers.takes_gated, whole_layers.gated),
    nn.GRUCell: (whole_layers.takes_cell, whole_layers.cell),
    stock_schnet.SchNet: (schnet.takes, schnet.forward),
    stock_schnet.ShiftedSoftplus: (schnet.softplus_takes, schnet.softplus),
}
"""Modules that have a form of their own: whether it supports a call, and its forward."""


# Layers whose own form gains on small graphs too.
_GAIN_WHEN_SMALL = {*relations.KINDS, NNConv, GatedGraphConv}


def stock_reason(layer: Any) -> str | None:
    """Why a call of this layer runs, here and now, as torch_geometric has it; None if weft may."""
    reader = reader_of_messages(layer) if isinstance(layer, MessagePassing) else None
    return reader or _is_traced()


def _is_traced() -> str | None:
    jit: Any = torch.jit
    if jit.is_scripting() or jit.is_tracing() or torch.compiler.is_compiling():
        return "it is being compiled"
    if torch.is_autocast_enabled("cpu") or torch._C._functorch.peek_interpreter_stack() is not None:
        return "autocast or torch.func is in use"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode derivatives are in use"
    return None


LEAST_NUMBERS = 800_000
"""Messages with fewer numbers are computed faster by torch than it takes to rewrite them."""


def _too_small(edges: int, features: Iterable[Tensor]) -> bool:
    jit: Any = torch.jit
    if torch.compiler.is_compiling() or jit.is_tracing():
        # A shape that is compared becomes a condition of the compiled code.
        return True
    width = max((each.shape[1:].numel() for each in features), default=1)
    return edges * width < LEAST_NUMBERS


def _edges_of(layer: Any, edge_index: Any, given: dict[str, Any]) -> Edges | None:
    """The edges of a call that weft takes; None for any other."""
    if type(layer) in _stock_classes:
        return None
    sparse = isinstance(edge_index, Tensor) and edge_index.layout != torch.strided
    if sparse and (layer.fuse or layer.flow != "source_to_target" or edge_index.requires_grad):
        return None
    if sparse and edge_index.layout != torch.sparse_csc and stock_reason(layer) is None:
        edge_index = sparse_index(edge_index)
    if type(edge_index) is not Tensor or not edge_index.is_cpu:
        return None
    if edge_index.layout != torch.strided or edge_index.ndim != 2 or edge_index.shape[0] != 2:
        return None
    if edge_index.dtype not in (torch.int64, torch.int32) or not edge_index.shape[1]:
        return None
    tensors = [
        tensor
        for value in given.values()
        for tensor in (value if isinstance(value, tuple | list) else (value,))
        if isinstance(tensor, Tensor) and tensor.is_floating_point()
    ]
    if _too_small(edge_index.shape[1], tensors) or not all(map(has_loop, tensors)):
        return None
    if stock_reason(layer) is not None:
        return None
    row = 1 if layer.flow == "source_to_target" else 0
    return Edges(edge_index, row, {}, torch.is_grad_enabled(), by_value=sparse)


def propagate(self: Any, edge_index: Any, *arguments: Any, **given: Any) -> Any:
    """In place of a layer's `propagate`."""
    return _computed(self, type(self).propagate, edge_index, arguments, given)


def edge_updater(self: Any, edge_index: Any, *arguments: Any, **given: Any) -> Any:
    """In place of a layer's `edge_updater`."""
    return _computed(self, type(self).edge_updater, edge_index, arguments, given)


# Classes whose messages need real tensors.
_stock_classes: set[type] = set()


def _computed(layer: Any, method: Any, edge_index: Any, arguments: Any, given: Any) -> Any:
    """Call a method of the layer's class, with EdgeTensors if this call allows it."""
    taken = (edge_index, given)
    if isinstance(edge_index, EdgeIndex) and not arguments:
        taken = plain_call(layer, edge_index, given) or taken
    edges = _edges_of(layer, *taken)
    if edges is None:
        return _as_it_is(layer, method, edge_index, arguments, given)
    state, notes = torch.get_rng_state(), number_of_notes()
    try:
        with running(layer, edges):
            out = method(layer, taken[0], *arguments, **taken[1])
            out = tree_map(_values, out)
        # The message may have stored EdgeTensors somewhere.
        edges.close()
        if number_of_notes() == notes:
            note(AS_IT_IS)
        return out
    except EdgeRangeError:
        pass
    except Exception as error:
        # TorchScript turns a NotLazyError into an error of its own.
        if not isinstance(error, NotLazyError) and not edges.refused:
            raise
        _stock_classes.add(type(layer))
    torch.set_rng_state(state)
    return _as_it_is(layer, method, edge_index, arguments, given)


def _as_it_is(layer: Any, method: Any, edge_index: Any, arguments: Any, given: Any) -> Any:
    kind: Any = type(layer)
    fused = layer.fuse and is_torch_sparse_tensor(edge_index)
    if not (fused and _fast_form(kind, "message_and_aggregate")):
        note(AS_IT_IS)
    with running(layer, None):
        return method(layer, edge_index, *arguments, **given)


def _values(value: Any) -> Any:
    return values_of(value) if isinstance(value, EdgeTensor) else value


def _index_select(self: Any, src: Any, index: Any) -> Any:
    """In place of a layer's `_index_select`: the rows of each edge's end, not made yet."""
    edges = running_edges(self)
    row = None if edges is None else edges.row_of(index)
    dim = self.node_dim if self.node_dim >= 0 else src.dim() + self.node_dim
    if edges is None or row is None or dim != 0 or not has_loop(src):
        return type(self)._index_select(self, src, index)
    low, high = ends_range(edges.edge_index)[2 * row : 2 * row + 2]
    side = "i" if row == edges.receiver_row else "j"
    if low < 0 or high >= src.shape[0] or edges.sizes.get(side, src.shape[0]) != src.shape[0]:
        return type(self)._index_select(self, src, index)
    edges.sizes[side] = src.shape[0]
    return lazy_rows(edges, side, src)  # type: ignore[arg-type]


def aggregate(self: Any, *arguments: Any, **named: Any) -> Any:
    """In place of a layer's `aggregate`."""
    if type(self).aggregate is MessagePassing.aggregate:
        return _aggregate(self, *arguments, **named)
    return _helped(self, "aggregate")(self, *arguments, **named)


def _aggregate(self: Any, inputs: Any, index: Any, ptr: Any = None, dim_size: Any = None) -> Any:
    edges = running_edges(self)
    if (
        edges is not None
        and _can_reduce(self, inputs, edges, dim_size)
        and segments.gains(inputs, edges, cost_of(self.aggr_module))
    ):
        edges.sizes["i"] = dim_size
        out = aggregated(self.aggr_module, inputs, edges)
        if out is not None:
            return out
    if isinstance(inputs, EdgeTensor):
        inputs = values_of(inputs)
    return type(self).aggregate(self, inputs, index, ptr, dim_size)


def _can_reduce(layer: Any, inputs: Any, edges: Edges, dim_size: Any) -> bool:
    if not isinstance(inputs, Tensor) or not isinstance(dim_size, int) or not has_loop(inputs):
        return False
    if inputs.ndim < 2 or inputs.shape[0] != edges.count:
        return False
    if layer.node_dim not in (0, -inputs.ndim):
        return False
    if any(map(has_hooks, layer.aggr_module.modules())):
        return False
    low, high = ends_range(edges.edge_index)[2 * edges.receiver_row :][:2]
    if low < 0 or high >= dim_size or edges.sizes.get("i", dim_size) != dim_size:
        return False
    # The loops keep a row of features on the stack.
    return inputs.shape[1:].numel() <= 1024


def _call_impl(self: Any, *arguments: Any, **named: Any) -> Any:
    """In place of a module's `_call_impl`: its forward, calling fast forms of helpers."""
    kind: Any = type(self)
    if (
        isinstance(self, MessagePassing)
        and kind not in _GAIN_WHEN_SMALL
        and _is_small_call(arguments)
    ):
        return _stock_call(self, *arguments, **named)
    if stock_reason(self) or has_hooks(self) or _any_global_hook():
        return _stock_call(self, *arguments, **named)
    if kind in WHOLE:
        takes, forward = WHOLE[kind]
        given = _positional(kind, self, arguments, named)
        if given is not None and takes(self, *given):
            return forward(self, *given)
    if isinstance(self, Aggregation) and not any(map(has_hooks, self.modules())):
        out = alone(self, *arguments, **named)
        if out is not None:
            return out
    fast = _fast_form(kind, "forward")
    if fast is None:
        return _stock_call(self, *arguments, **named)
    return fast(self, *arguments, **named)


def _is_small_call(arguments: tuple[Any, ...]) -> bool:
    """Whether a layer is called with few edges and narrow features, by position."""
    features = [each for each in arguments if isinstance(each, Tensor)]
    indices = [each for each in features if not each.is_floating_point() and each.ndim == 2]
    return bool(indices) and _too_small(indices[0].shape[1], features[:1])


def _positional(kind: Any, module: Any, arguments: Any, named: Any) -> Any:
    """The arguments of a call by position; None where they do not fit."""
    try:
        found = _signature(kind).bind(module, *arguments, **named)
    except TypeError:
        return None
    # Without them, what is named after an argument that is not given would be missing.
    found.apply_defaults()
    return found.args[1:]


@functools.cache
def _signature(kind: Any) -> inspect.Signature:
    return inspect.signature(kind.forward)


def message_and_aggregate(self: Any, adjacency: Any, *arguments: Any, **named: Any) -> Any:
    """In place of a layer's `message_and_aggregate`, where that calls helpers."""
    kind: Any = type(self)
    fast = None if stock_reason(self) else _fast_form(kind, "message_and_aggregate")
    if fast is not None and is_torch_sparse_tensor(adjacency):
        features = [each for each in tree_leaves(arguments) if isinstance(each, Tensor)]
        fast = None if _too_small(adjacency._nnz(), features) else fast
    return (fast or kind.message_and_aggregate)(self, adjacency, *arguments, **named)


def _helped(module: Any, name: str) -> Any:
    """The method of a module's class, calling helpers if this is the moment for it."""
    kind: Any = type(module)
    if isinstance(module, MessagePassing):
        fast = running_edges(module) is not None
    else:
        fast = _is_traced() is None
    stock = getattr(kind, name)
    return (_fast_form(kind, name) if fast else None) or stock


@functools.cache
def _own_methods(kind: Any) -> tuple[Any, ...]:
    """Replacements of a class's methods that call helpers, such as `message`."""
    names: dict[str, None] = {}
    for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        if base is MessagePassing:
            break
        names.update(dict.fromkeys(vars(base)))
    found = []
    for name in names:
        special = name in _RUN_OTHERWISE or name.startswith("__")
        if not special and _fast_form(kind, name) is not None:
            found.append(_calling_helpers(name))
    return tuple(found)


_RUN_OTHERWISE = {"forward", "propagate", "edge_updater", "aggregate", "message_and_aggregate"}


@functools.cache
def _calling_helpers(name: str) -> Any:
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        return _helped(self, name)(self, *arguments, **named)

    method.__name__ = name
    return method


@functools.cache
def _fast_form(kind: Any, name: str) -> Any:
    return with_fast_helpers(getattr(kind, name, None))


def __getstate__(self: Any) -> Any:  # noqa: N807 - the name of the method that it replaces
    """In place of a module's `__getstate__`: its state without the methods that are bound to it."""
    own = getattr(type(self), "__getstate__", None)
    state = self.__dict__ if own is None else own(self)
    if type(state) is not dict:
        return state
    methods = {m.__name__: state[m.__name__] for m in _methods(self) if _is_ours(self, m)}
    return _State({name: each for name, each in state.items() if name not in methods}, methods)


class _State(dict[str, Any]):
    """The state of a redirected module; only a deep copy of it has the redirected methods."""

    def __init__(self, state: dict[str, Any], methods: dict[str, Any]) -> None:
        super().__init__(state)
        self.methods = methods

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy({**self, **self.methods}, memo)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def _replicate_for_data_parallel(self: Any) -> Any:
    """In place of a module's method: a replica has parameters of its own."""
    replica = type(self)._replicate_for_data_parallel(self)
    for method in _methods(self):
        replica.__dict__.pop(method.__name__, None)
    return replica


_METHODS: tuple[Any, ...] = (
    *(propagate, edge_updater, _index_select, aggregate, message_and_aggregate, _call_impl),
    # Last: every module that has one of the others has these.
    *(__getstate__, _replicate_for_data_parallel),
)


def _methods(module: nn.Module) -> tuple[Any, ...]:
    kind: Any = type(module)
    return *_own_methods(kind), *_METHODS


def is_layer(module: nn.Module) -> bool:
    """Whether a module is accelerated, or left alone, as one: a layer, or a model in WHOLE."""
    return isinstance(module, MessagePassing) or type(module) is stock_schnet.SchNet


def parts_of(layer: nn.Module) -> list[nn.Module]:
    """The modules that are redirected with a layer."""
    if not isinstance(layer, MessagePassing):
        return list(layer.modules())
    aggregation = layer.aggr_module
    return [layer] if aggregation is None else [layer, *aggregation.modules()]


def redirect(module: nn.Module) -> None:
    """Let a module run on weft's loops wherever a call allows it."""
    for method in _methods(module):
        if method.__name__ not in module.__dict__ and _applies(method.__name__, module):
            setattr(module, method.__name__, types.MethodType(method, module))


def _applies(name: str, module: nn.Module) -> bool:
    kind: Any = type(module)
    if any(method.__name__ == name for method in _own_methods(kind)):
        return True
    if name in ("__getstate__", "_replicate_for_data_parallel"):
        return is_redirected(module)
    if name == "_call_impl":
        own = kind in WHOLE or is_known(module)
        return own or _fast_form(kind, "forward") is not None
    if not isinstance(module, MessagePassing):
        return False
    if name == "message_and_aggregate":
        return _fast_form(kind, name) is not None
    if name == "edge_updater":
        return hasattr(kind, "edge_updater") and hasattr(kind, "edge_update")
    if name == "aggregate" and kind.aggregate is not MessagePassing.aggregate:
        return _fast_form(kind, name) is not None
    return True


def is_redirected(module: nn.Module) -> bool:
    """Whether `redirect` was called for this module, or for the one that it is a copy of."""
    return any(_is_ours(module, method) for method in _methods(module))


def _is_ours(module: nn.Module, method: Any) -> bool:
    return getattr(module.__dict__.get(method.__name__), "__func__", None) is method


def undo(module: nn.Module) -> None:
    """Take back what `redirect` did."""
    for method in _methods(module):
        if _is_ours(module, method):
            delattr(module, method.__name__)
