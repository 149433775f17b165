"""Tensors with a row for every edge that are not made until something needs them.

A layer's own `message` runs as it is written, each time, but `x_i` and `x_j` are `EdgeTensor`s:
they record what is done to them. Products with a matrix and functions of one node's features are
computed on nodes, elementwise arithmetic becomes an expression, and the sum over a receiver's edges
runs all of it in one loop (weft.kernels.fused_messages). Whatever is not known here turns an
EdgeTensor into the tensor that it stands for, so that every message has its own result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from weft.integrations.geometric.edge_cache import ends_range, plain, walks_of
from weft.kernels.fused_messages import EdgeWalks, fused_messages
from weft.kernels.message_code import MOST_FEATURES, OPERATIONS, Leaf, MessageProgram, Reduction

Side = Literal["i", "j", "e", "v"]


class NotLazyError(Exception):
    """A message cannot be computed without its tensors; it must be run as it is."""


@dataclass(frozen=True, eq=False)
class Source:
    """A tensor that edges read: a row a receiver (`i`), a sender (`j`), an edge (`e`), or one."""

    side: Side
    tensor: Tensor
    version: int

    @classmethod
    def of(cls, side: Side, tensor: Tensor) -> Source:
        """The tensor as it is now."""
        return cls(side, tensor, 0 if tensor.is_inference() else tensor._version)

    def value(self) -> Tensor:
        """The tensor, which nobody may have changed since."""
        if not self.tensor.is_inference() and self.tensor._version != self.version:
            raise NotLazyError("a tensor that a message reads was changed in place")
        return self.tensor


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of one call.

    Attributes:
        edge_index: int [2, E], in range.
        receiver_row: the row of edge_index that holds receivers.
        sizes: numbers of senders and receivers, where they are known.
        learning: whether autograd records the call.
        made: the EdgeTensors of the call that somebody holds.
        state: what has become of it.
    """

    edge_index: Tensor
    receiver_row: int
    sizes: dict[str, int]
    learning: bool
    made: Any = field(default_factory=WeakIdKeyDictionary)
    state: dict[str, bool] = field(default_factory=dict)

    @property
    def refused(self) -> bool:
        """Whether something was asked that only tensors can answer."""
        return "refused" in self.state

    @property
    def closed(self) -> bool:
        """Whether the call is over: nothing is put off any more."""
        return "closed" in self.state

    def close(self) -> None:
        """Make the tensors that somebody still holds."""
        self.state["closed"] = True
        for tensor in list(self.made):
            values_of(tensor)

    def row_of(self, index: Tensor) -> int | None:
        """The row of edge_index that an index is a view of."""
        whole = self.edge_index
        if index.ndim != 1 or index.shape[0] != self.count or index.dtype != whole.dtype:
            return None
        if self.count > 1 and index.stride(0) != whole.stride(1):
            return None
        first = whole.data_ptr()
        second = first + whole.stride(0) * whole.element_size()
        places = {first: 0, second: 1} if first and first != second else {}
        return places.get(index.data_ptr())

    @property
    def count(self) -> int:
        """E."""
        return self.edge_index.shape[1]

    def walks(self) -> EdgeWalks:
        """How loops walk them."""
        row = self.receiver_row
        limits = ends_range(self.edge_index)
        counts = {}
        for side, (low, high) in (("i", limits[2 * row :][:2]), ("j", limits[2 - 2 * row :][:2])):
            # Without rows of its own, a side has as many nodes as the other, if that is enough.
            known = self.sizes.get(side, max(high + 1, *self.sizes.values(), 0))
            if low < 0 or high >= known:
                raise NotLazyError("an edge joins a node that is not there")
            counts[side] = known
        return walks_of(self.edge_index, row, counts["j"], counts["i"])


# What an EdgeTensor stands for: ("leaf", Source), ("const", number), (operation, part, ...) as in
# message_code; and, only outermost, ("cat", parts), ("stack", parts) and ("linear", part, weight,
# bias), where parts are EdgeTensors or tensors.
Meaning = tuple[Any, ...]
_OUTERMOST = ("cat", "stack", "linear")


class EdgeTensor(Tensor):
    """See the module; `edges` are those that it has a row for, `meaning` what it stands for."""

    edges: Edges
    meaning: Meaning
    like: Tensor
    # Whether it is a view of another, or another of it: both change with one.
    shared: bool

    @staticmethod
    def __new__(cls, edges: Edges, meaning: Meaning, shape: Sequence[int], like: Tensor) -> Any:
        """Of this shape, with dtype and device `like` another."""
        made: Any = Tensor._make_wrapper_subclass(
            cls, tuple(shape), dtype=like.dtype, device=like.device
        )
        made.edges, made.meaning, made.like, made.shared = edges, meaning, like, False
        edges.made[made] = True
        return made

    def __init__(self, *arguments: Any) -> None:
        pass

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _ASKS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        lazy = next(each for each in tree_leaves((args, kwargs)) if isinstance(each, EdgeTensor))
        edges = lazy.edges
        if edges.closed:
            return _as_it_is(func, args, kwargs)
        if func in _OF_AUTOGRAD or (edges.learning and not torch.is_grad_enabled()):
            # As inside of a Function of the user's, which autograd would take for one of nothing.
            edges.state["refused"] = True
            raise NotLazyError(f"{func} needs the tensors of a message themselves")
        rule = None if torch.is_autocast_enabled("cpu") else _RULES.get(func)
        if rule is not None:
            # Arguments that a rule does not name are torch's affair.
            with suppress(TypeError):
                found = rule(*args, **kwargs)
                if found is not None:
                    return found
        return _as_it_is(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Below autograd: the gradient would be lost.
        for each in tree_leaves((args, kwargs)):
            if isinstance(each, EdgeTensor):
                each.edges.state["refused"] = True
        raise NotLazyError(f"{func} was called past torch functions")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return repr(values_of(self))


def lazy_rows(edges: Edges, side: Side, rows: Tensor) -> EdgeTensor:
    """rows[ends of the edges], not made yet."""
    shape = (edges.count, *rows.shape[1:])
    return EdgeTensor(edges, ("leaf", Source.of(side, rows)), shape, rows)


def _as_it_is(func: Any, args: Any, kwargs: Any) -> Any:
    """Call the function with the tensors that EdgeTensors stand for."""
    name = getattr(func, "__name__", "")
    target = args[0] if args else None
    changes = name == "__setitem__" or name.startswith("__i") or name.endswith("_")
    if name.endswith("__") and name not in ("__setitem__",) and not name.startswith("__i"):
        changes = False
    if isinstance(target, EdgeTensor) and not target.edges.closed and changes:
        _check_alone(target)
        # Of a copy, which then is what the EdgeTensor stands for: others read what it was.
        made = values_of(target).clone()
        real_args, real_kwargs = tree_map(_real, (args[1:], kwargs))
        func(made, *real_args, **real_kwargs)
        target.meaning = ("leaf", Source.of("e", made))
        return target
    real_args, real_kwargs = tree_map(_real, (args, kwargs))
    return func(*real_args, **real_kwargs)


def _check_alone(target: EdgeTensor) -> None:
    if target.shared:
        target.edges.state["refused"] = True
        raise NotLazyError("a view of a message is changed in place")


def _real(value: Any) -> Any:
    return values_of(value) if isinstance(value, EdgeTensor) else value


# -- Evaluation ------------------------------------------------------------------------------------


def values_of(tensor: EdgeTensor) -> Tensor:
    """The tensor that it stands for, [E, ...]; made once."""
    kind = tensor.meaning[0]
    if kind == "leaf" and tensor.meaning[1].side == "e":
        found: Tensor = tensor.meaning[1].tensor
        return found
    if tensor.edges.learning and not torch.is_grad_enabled():
        with torch.enable_grad():
            return values_of(tensor)
    if kind == "cat":
        value = torch.cat([_real(part) for part in tensor.meaning[1]], dim=-1)
    elif kind == "stack":
        value = torch.stack([_real(part) for part in tensor.meaning[1]], dim=1)
    elif kind == "linear":
        _, part, weight, bias = tensor.meaning
        value = functional.linear(values_of(part), weight, bias)
    elif kind == "leaf" and tensor.shape[1:].numel() > MOST_FEATURES:
        row = tensor.edges.receiver_row
        ends = plain(tensor.edges.edge_index)[row if _side(tensor) == "i" else 1 - row]
        value = tensor.meaning[1].value().index_select(0, ends)
    else:
        (value,) = _run(tensor, (), dot=False)
        value = value.reshape(tensor.shape)
    tensor.meaning = ("leaf", Source.of("e", value))
    return value


def reduced(tensor: Tensor, edges: Edges, reductions: tuple[Reduction, ...]) -> tuple[Tensor, ...]:
    """Messages reduced over the edges into each receiver, each [N, ...]."""
    if isinstance(tensor, EdgeTensor) and tensor.edges is not edges:
        tensor = values_of(tensor)
    if not isinstance(tensor, EdgeTensor):
        tensor = lazy_rows(edges, "e", tensor)
    kind = tensor.meaning[0]
    if kind == "stack":
        parts = [reduced(part, edges, reductions) for part in tensor.meaning[1]]
        return tuple(torch.stack(each, dim=1) for each in zip(*parts, strict=True))
    if kind == "linear" and reductions == ("sum",):
        _, part, weight, bias = tensor.meaning
        (total,) = reduced(part, edges, reductions)
        out = functional.linear(total, weight)
        if bias is not None:
            out = torch.addcmul(out, edges.walks().in_degrees.to(out)[:, None], bias)
        return (out,)
    if kind in _OUTERMOST:
        tensor = lazy_rows(edges, "e", values_of(tensor))
    shape = (edges.walks().num_receivers, *tensor.shape[1:])
    return tuple(out.reshape(shape) for out in _run(tensor, reductions, dot=False))


def _run(tensor: EdgeTensor, reductions: tuple[Reduction, ...], *, dot: bool) -> tuple[Tensor, ...]:
    """Run a tensor's expression."""
    tail = tensor.shape[1:]
    heads, channels = (1, tail.numel()) if len(tail) < 2 else (tail[:-1].numel(), tail[-1])
    sources: dict[Source, int] = {}
    consts: dict[float, int] = {}

    def numbered(meaning: Meaning) -> Meaning:
        if meaning[0] == "leaf":
            return "leaf", sources.setdefault(meaning[1], len(sources))
        if meaning[0] == "const":
            return "const", consts.setdefault(meaning[1], len(consts))
        return meaning[0], *map(numbered, meaning[1:])

    expression = numbered(tensor.meaning)
    leaves, places = [], []
    for source in sources:
        given = source.value()
        rows = given.shape[0]
        by_head = given.ndim > 1 and given.shape[-1] == 1 and channels > 1
        width = 1 if by_head else channels
        own = given.reshape(rows, 1, 1) if given.ndim == 1 else given
        if len(tail) > 1 and own.shape[1:-1] != tail[:-1]:
            own = own.expand(rows, *tail[:-1], own.shape[-1])
        elif not by_head and own.shape[-1] != channels:
            own = own.expand(*own.shape[:-1], channels)
        leaves.append(own.reshape(rows, heads, width))
        places.append(Leaf(source.side, by_head))
    program = MessageProgram(expression, tuple(places), reductions, dot)
    return fused_messages(program, tensor.edges.walks(), leaves, tuple(consts))


# -- Rules -----------------------------------------------------------------------------------------


def _side(tensor: EdgeTensor) -> Side | None:
    """Whose rows it has if it is no more than one source's."""
    return tensor.meaning[1].side if tensor.meaning[0] == "leaf" else None


def _on_rows(tensor: EdgeTensor, function: Callable[[Tensor], Tensor]) -> EdgeTensor | None:
    """A function of each row of an EdgeTensor that has the rows of one source."""
    if _side(tensor) is None:
        return None
    source: Source = tensor.meaning[1]
    return lazy_rows(tensor.edges, source.side, function(source.value()))


# Finite, with finite derivatives, wherever their arguments are.
_ON_NODES = {"add", "sub", "mul", "neg", "relu", "leaky_relu", "sigmoid", "tanh", "silu", "square"}


def _node_rows(tensor: EdgeTensor) -> tuple[Side, Tensor] | None:
    """What a tensor that depends on one end of the edges is for each node there.

    Not where that is more work, and not where a node without edges has values that are not finite:
    its gradient is 0, and 0 times those would reach the parameters.
    """
    sources: list[Source] = []

    def can(meaning: Meaning) -> bool:
        if meaning[0] == "leaf":
            sources.append(meaning[1])
            return True
        return meaning[0] == "const" or (meaning[0] in _ON_NODES and all(map(can, meaning[1:])))

    if not can(tensor.meaning):
        return None
    sides = {source.side for source in sources} - {"v"}
    if sides not in ({"i"}, {"j"}):
        return None
    side: Side = "i" if "i" in sides else "j"
    rows = max(source.tensor.shape[0] for source in sources)
    if rows > tensor.edges.count:
        return None

    def value(meaning: Meaning) -> Any:
        if meaning[0] == "leaf":
            return meaning[1].value()
        if meaning[0] == "const":
            return meaning[1]
        return OPERATIONS[meaning[0]].plain(*map(value, meaning[1:]))

    found: Tensor = value(tensor.meaning)
    # A sum is finite where all its terms are, but for an overflow, which only costs time.
    return (side, found) if bool(found.detach().sum().isfinite()) else None


def _elementwise(name: str) -> Callable[..., Any]:
    """The rule of an operation of message_code on one or two tensors or numbers."""

    def rule(*operands: Any, **options: Any) -> Any:
        if set(options) - {"inplace"}:
            return None
        found = _combined(name, operands)
        if found is not None and options.get("inplace"):
            return _replaced(operands[0], found)
        return found

    return rule


def _combined(name: str, operands: Sequence[Any]) -> Any:
    lazy = next((each for each in operands if isinstance(each, EdgeTensor)), None)
    if lazy is None or any(_is_outermost(each) for each in operands):
        return None
    if not all(_is_operand(each, lazy) for each in operands):
        return None
    try:
        shapes = [each.shape for each in operands if isinstance(each, Tensor)]
        shape: torch.Size = torch.functional.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    except RuntimeError:
        # torch says it better, of the tensors themselves.
        return None
    if shape[0] != lazy.edges.count or shape[1:].numel() > MOST_FEATURES or len(shape) > 3:
        return None
    parts = [_part(each, lazy, len(shape)) for each in operands]
    if sum(map(_size, parts)) > _MOST_OPERATIONS:
        return None
    return EdgeTensor(lazy.edges, (name, *parts), shape, lazy.like)


# An expression that uses a part again and again would grow without end.
_MOST_OPERATIONS = 64


def _size(meaning: Meaning) -> int:
    return 1 if meaning[0] in ("leaf", "const") else 1 + sum(map(_size, meaning[1:]))


def _is_outermost(value: Any) -> bool:
    return isinstance(value, EdgeTensor) and value.meaning[0] in _OUTERMOST


def _is_operand(value: Any, lazy: EdgeTensor) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
        return False
    if not isinstance(value, Tensor):
        return True
    if value.dtype != lazy.dtype or value.device != lazy.device:
        return False
    if isinstance(value, EdgeTensor):
        return value.edges is lazy.edges and value.ndim == lazy.ndim
    if type(value) not in (Tensor, torch.nn.Parameter):
        return False
    return value.ndim <= lazy.ndim


def _part(value: Any, lazy: EdgeTensor, ndim: int) -> Meaning:
    if isinstance(value, EdgeTensor):
        return value.meaning
    if not isinstance(value, Tensor):
        return "const", float(value)
    whole = value.reshape(*(1,) * (ndim - value.ndim), *value.shape)
    side: Side = "e" if value.ndim == ndim and value.shape[0] == lazy.edges.count else "v"
    return "leaf", Source.of(side, whole)


def _replaced(target: Any, found: EdgeTensor) -> Any:
    """An operation in place: the target stands for the result, wherever else it is used."""
    if not isinstance(target, EdgeTensor) or target.shape != found.shape:
        return None
    _check_alone(target)
    target.meaning = found.meaning
    return target


def _in_place(name: str) -> Callable[..., Any]:
    def rule(target: Any, *operands: Any, **options: Any) -> Any:
        found = None if options else _combined(name, (target, *operands))
        return None if found is None else _replaced(target, found)

    return rule


def _leaky(x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    return _elementwise("leaky_relu")(x, negative_slope, inplace=inplace)


def _power(x: Any, exponent: Any) -> Any:
    return _elementwise("square")(x) if type(exponent) in (int, float) and exponent == 2 else None


def _divide(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    return _elementwise("div")(x, y) if rounding_mode is None else None


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """A product with a matrix: on nodes, split over the parts of a concatenation, or put off."""
    if not isinstance(x, EdgeTensor) or isinstance(weight, EdgeTensor):
        return None
    if weight.ndim != 2 or x.ndim < 2:
        return None
    if x.meaning[0] == "cat":
        return _linear_of_parts(x, weight, bias)
    if x.meaning[0] in _OUTERMOST:
        return None
    if (on_nodes := _node_rows(x)) is not None:
        side, rows = on_nodes
        return lazy_rows(x.edges, side, functional.linear(rows, weight, bias))
    if _side(x) == "e" or x.ndim != 2:
        return None
    shape = (*x.shape[:-1], weight.shape[0])
    return EdgeTensor(x.edges, ("linear", _snapshot(x), weight, bias), shape, x.like)


def _snapshot(part: Any) -> Any:
    """The same now, and unchanged when the part is changed in place."""
    if not isinstance(part, EdgeTensor):
        return part
    return EdgeTensor(part.edges, part.meaning, part.shape, part.like)


def _linear_of_parts(x: EdgeTensor, weight: Tensor, bias: Tensor | None) -> Any:
    parts = x.meaning[1]
    widths = [part.shape[-1] for part in parts]
    if weight.shape[1] != sum(widths):
        return None
    pieces = torch.split(weight, widths, dim=1)
    found: Any = None
    # The bias goes to a product on nodes, where it costs least.
    order = sorted(range(len(parts)), key=lambda k: _cost(parts[k]))
    for k in order:
        product = functional.linear(parts[k], pieces[k], bias if k == order[0] else None)
        found = product if found is None else found + product
    return found


def _cost(part: Tensor) -> int:
    side = _side(part) if isinstance(part, EdgeTensor) else "e"
    return {"i": 0, "j": 1, "v": 2, "e": 3, None: 4}[side]


def _matmul(x: Any, weight: Any) -> Any:
    if not isinstance(weight, Tensor) or isinstance(weight, EdgeTensor) or weight.ndim != 2:
        return None
    return _linear(x, weight.t())


def _cat(tensors: Any, dim: int = 0) -> Any:
    lazy = [each for each in tensors if isinstance(each, EdgeTensor)]
    if not lazy:
        return None
    first = lazy[0]
    if dim not in (-1, first.ndim - 1) or first.ndim < 2:
        return None
    alike = all(
        each.shape[:-1] == first.shape[:-1] and each.dtype == first.dtype for each in tensors
    )
    if not alike or any(each.edges is not first.edges for each in lazy):
        return None
    parts = [
        inner
        for each in tensors
        for inner in (
            each.meaning[1]
            if isinstance(each, EdgeTensor) and each.meaning[0] == "cat"
            else (each,)
        )
    ]
    shape = (*first.shape[:-1], sum(part.shape[-1] for part in parts))
    return EdgeTensor(first.edges, ("cat", tuple(map(_snapshot, parts))), shape, first.like)


def _stack(tensors: Any, dim: int = 0) -> Any:
    lazy = [each for each in tensors if isinstance(each, EdgeTensor)]
    first = lazy[0]
    if dim != 1 or len(lazy) != len(tensors) or any(each.ndim != 2 for each in lazy):
        return None
    if any(each.edges is not first.edges or each.shape != first.shape for each in lazy):
        return None
    shape = (first.shape[0], len(lazy), *first.shape[1:])
    return EdgeTensor(first.edges, ("stack", tuple(map(_snapshot, lazy))), shape, first.like)


def _shaped(function: Any) -> Callable[..., Any]:
    """The rule of a function that changes the shape of a row and not the edges."""

    def rule(x: Any, *arguments: Any, **options: Any) -> Any:
        if _side(x) is None or options or not all(isinstance(a, int) for a in arguments):
            return None
        source: Source = x.meaning[1]
        with torch._C.DisableTorchFunctionSubclass():
            shape = function(torch.empty(x.shape, device="meta"), *arguments).shape
        if not shape or shape[0] != x.shape[0] or x.shape[0] == 0:
            return None
        return _view(x, lambda rows: rows.reshape(source.tensor.shape[0], *shape[1:]))

    return rule


def _view(x: EdgeTensor, function: Callable[[Tensor], Tensor]) -> EdgeTensor | None:
    """Another shape of the same rows: in torch, both change with one."""
    found = _on_rows(x, function)
    if found is not None:
        found.shared = x.shared = True
    return found


def _item(x: Any, index: Any) -> Any:
    """x[:, k], x[..., a:b] and the like of a leaf or of a concatenation."""
    if not isinstance(index, tuple) or not all(type(each) in (int, slice) for each in index):
        return None
    if not index or index[0] != slice(None):
        return None
    if _side(x) is not None:
        return _view(x, lambda rows: rows[index])
    if x.meaning[0] == "cat" and x.ndim == 3 and len(index) == 2 and isinstance(index[1], int):
        return _cat([part[index] for part in x.meaning[1]], dim=-1)
    return None


def _sum(x: Any, dim: Any = None, keepdim: bool = False, **options: Any) -> Any:
    if options or dim not in (-1, x.ndim - 1) or x.ndim not in (2, 3) or _is_outermost(x):
        return None
    if _side(x) is not None:
        return _on_rows(x, lambda rows: rows.sum(-1, keepdim=keepdim)) if x.ndim == 3 else None
    if x.shape[1:].numel() > MOST_FEATURES:
        return None
    (out,) = _run(x, (), dot=True)
    out = out.reshape(x.shape[:-1])
    return out.unsqueeze(-1) if keepdim else out


def _swapped(rule: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: rule(y, x)


_RULES: dict[Any, Callable[..., Any]] = {
    functional.linear: _linear,
    torch.matmul: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
    torch.mm: _matmul,
    Tensor.mm: _matmul,
    torch.cat: _cat,
    torch.concat: _cat,
    torch.stack: _stack,
    Tensor.__getitem__: _item,
    Tensor.sum: _sum,
    torch.sum: _sum,
    functional.leaky_relu: _leaky,
    torch.pow: _power,
    Tensor.pow: _power,
    Tensor.__pow__: _power,
    torch.div: _divide,
    Tensor.div: _divide,
    Tensor.__truediv__: _divide,
    Tensor.__rtruediv__: _swapped(_divide),
    Tensor.__rsub__: _swapped(_elementwise("sub")),
}
for _name in ("view", "reshape", "unsqueeze", "squeeze", "flatten"):
    _RULES[getattr(Tensor, _name)] = _shaped(getattr(Tensor, _name))
    if hasattr(torch, _name):
        _RULES[getattr(torch, _name)] = _shaped(getattr(torch, _name))
for _name in ("add", "sub", "mul"):
    _rule = _elementwise(_name)
    _RULES |= {getattr(owner, _name): _rule for owner in (torch, Tensor)}
    _RULES[getattr(Tensor, f"__{_name}__")] = _rule
    _RULES[getattr(Tensor, f"__i{_name}__")] = _in_place(_name)
    _RULES[getattr(Tensor, f"{_name}_")] = _in_place(_name)
_RULES[Tensor.__radd__] = _swapped(_elementwise("add"))
_RULES[Tensor.__rmul__] = _swapped(_elementwise("mul"))
for _name in ("neg", "relu", "sigmoid", "tanh", "exp", "abs", "square", "sqrt"):
    _RULES |= {getattr(owner, _name): _elementwise(_name) for owner in (torch, Tensor)}
for _name in ("relu", "sigmoid", "tanh", "exp"):
    _RULES[getattr(Tensor, f"{_name}_")] = _in_place(_name)
_RULES |= {
    Tensor.__neg__: _elementwise("neg"),
    functional.relu: _elementwise("relu"),
    functional.sigmoid: _elementwise("sigmoid"),
    functional.tanh: _elementwise("tanh"),
    functional.silu: _elementwise("silu"),
}

_ASKS = {
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
    Tensor.__len__,
    Tensor.is_floating_point,
    torch.is_floating_point,
    torch.numel,
}
_ASKS |= {
    getattr(Tensor, name).__get__
    for name in ("shape", "dtype", "device", "ndim", "layout", "is_sparse", "is_cuda")
}
# What autograd is asked of a tensor that is not there.
_OF_AUTOGRAD = {
    Tensor.register_hook,
    Tensor.retain_grad,
    Tensor.requires_grad_,
    Tensor.backward,
    torch.autograd.grad,
    torch.autograd.backward,
}
