"""Tensors with a row for every edge that are not made until something needs them.

A layer's own `message` runs as it is written, each time, but `x_i` and `x_j` are `EdgeTensor`s:
they record what is done to them. Products with a matrix and functions of one node's features are
computed on nodes, elementwise arithmetic becomes an expression, and the sum over a receiver's edges
runs all of it in one loop (weft.kernels.fused_messages). Whatever is not known here turns an
EdgeTensor into the tensor that it stands for, so that every message has its own result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from weft.integrations.geometric.edge_cache import ends_range, plain, walks_of
from weft.kernels.fused_messages import EdgeWalks, fused_messages
from weft.kernels.message_code import MOST_FEATURES, Leaf, MessageProgram, Reduction

Side = Literal["i", "j", "e", "v"]


class NotLazyError(Exception):
    """A message cannot be computed without its tensors; it must be run as it is."""


@dataclass(frozen=True, eq=False)
class Source:
    """A tensor that edges read: a row a receiver (`i`), a sender (`j`), an edge (`e`), or one."""

    side: Side
    tensor: Tensor


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of one call.

    Attributes:
        edge_index: int [2, E], in range.
        receiver_row: the row of edge_index that holds receivers.
        sizes: numbers of senders and receivers, where they are known.
        learning: whether autograd records the call.
    """

    edge_index: Tensor
    receiver_row: int
    sizes: dict[str, int]
    learning: bool

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

    @staticmethod
    def __new__(cls, edges: Edges, meaning: Meaning, shape: Sequence[int], like: Tensor) -> Any:
        """Of this shape, with dtype and device `like` another."""
        made: Any = Tensor._make_wrapper_subclass(
            cls, tuple(shape), dtype=like.dtype, device=like.device
        )
        made.edges, made.meaning, made.like = edges, meaning, like
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
        if lazy.edges.learning and not torch.is_grad_enabled():
            # As inside of a Function of the user's, which autograd would take for one of nothing.
            raise NotLazyError("gradients were switched off inside of a message")
        rule = _RULES.get(func)
        if rule is not None:
            found = rule(*args, **kwargs)
            if found is not None:
                return found
        return _as_it_is(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Below autograd: the gradient would be lost.
        raise NotLazyError(f"{func} was called past torch functions")

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return repr(values_of(self))


def lazy_rows(edges: Edges, side: Side, rows: Tensor) -> EdgeTensor:
    """rows[ends of the edges], not made yet."""
    return _leaf(edges, side, rows)


def _leaf(edges: Edges, side: Side, rows: Tensor) -> EdgeTensor:
    shape = (edges.count, *rows.shape[1:])
    return EdgeTensor(edges, ("leaf", Source(side, rows)), shape, rows)


def _as_it_is(func: Any, args: Any, kwargs: Any) -> Any:
    """Call the function with the tensors that EdgeTensors stand for."""
    name = getattr(func, "__name__", "")
    real_args, real_kwargs = tree_map(_real, (args, kwargs))
    if name.endswith("_") and not name.endswith("__") and args and isinstance(args[0], EdgeTensor):
        # In place: of a copy, which then is what the EdgeTensor stands for.
        target = args[0]
        made = real_args[0].clone()
        func(made, *real_args[1:], **real_kwargs)
        target.meaning = ("leaf", Source("e", made))
        return target
    return func(*real_args, **real_kwargs)


def _real(value: Any) -> Any:
    return values_of(value) if isinstance(value, EdgeTensor) else value


# -- Evaluation ------------------------------------------------------------------------------------


def values_of(tensor: EdgeTensor) -> Tensor:
    """The tensor that it stands for, [E, ...]; made once."""
    kind = tensor.meaning[0]
    if kind == "leaf" and tensor.meaning[1].side == "e":
        found: Tensor = tensor.meaning[1].tensor
        return found
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
        value = tensor.meaning[1].tensor.index_select(0, ends)
    else:
        (value,) = _run(tensor, (), dot=False)
        value = value.reshape(tensor.shape)
    tensor.meaning = ("leaf", Source("e", value))
    return value


def reduced(tensor: Tensor, edges: Edges, reductions: tuple[Reduction, ...]) -> tuple[Tensor, ...]:
    """Messages reduced over the edges into each receiver, each [N, ...]."""
    if not isinstance(tensor, EdgeTensor):
        tensor = _leaf(edges, "e", tensor)
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
        tensor = _leaf(edges, "e", values_of(tensor))
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
        given = source.tensor
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


def _on_nodes(tensor: EdgeTensor, function: Callable[[Tensor], Tensor]) -> EdgeTensor | None:
    """A function of each row of an EdgeTensor that has the rows of one source."""
    if _side(tensor) is None:
        return None
    source: Source = tensor.meaning[1]
    return _leaf(tensor.edges, source.side, function(source.tensor))


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
    # All dimensions of a row, or none: an operand with fewer would be lined up by torch from the
    # right, over the edges.
    sources = {_source_of(each) for each in operands if isinstance(each, EdgeTensor)}
    nodes = {s.side for s in sources if s is not None}
    extra = [
        each for each in operands if isinstance(each, Tensor) and not isinstance(each, EdgeTensor)
    ]
    if None not in sources and len(nodes) == 1 and "e" not in nodes and not _by_edge(extra, lazy):
        # Of one node's features alone: once for a node.
        values = [
            each.meaning[1].tensor if isinstance(each, EdgeTensor) else each for each in operands
        ]
        return _leaf(lazy.edges, next(iter(nodes)), _PLAIN[name](*values))
    parts = [_part(each, lazy, len(shape)) for each in operands]
    return EdgeTensor(lazy.edges, (name, *parts), shape, lazy.like)


def _is_outermost(value: Any) -> bool:
    return isinstance(value, EdgeTensor) and value.meaning[0] in _OUTERMOST


def _source_of(tensor: EdgeTensor) -> Source | None:
    return tensor.meaning[1] if tensor.meaning[0] == "leaf" else None


def _by_edge(tensors: Sequence[Tensor], lazy: EdgeTensor) -> bool:
    return any(t.ndim == lazy.ndim and t.shape[0] != 1 for t in tensors)


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
    return "leaf", Source(side, whole)


def _replaced(target: Any, found: EdgeTensor) -> Any:
    """An operation in place: the target stands for the result, wherever else it is used."""
    if not isinstance(target, EdgeTensor) or target.shape != found.shape:
        return None
    target.meaning = found.meaning
    return target


def _in_place(name: str) -> Callable[..., Any]:
    def rule(target: Any, *operands: Any, **options: Any) -> Any:
        found = None if options else _combined(name, (target, *operands))
        return None if found is None else _replaced(target, found)

    return rule


def _leaky(x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
    return _elementwise("leaky_relu")(x, negative_slope, inplace=inplace)


def _elu(x: Any, alpha: float = 1.0, inplace: bool = False) -> Any:
    return _elementwise("elu")(x, inplace=inplace) if alpha == 1 else None


def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return _elementwise("softplus")(x) if (beta, threshold) == (1, 20) else None


def _power(x: Any, exponent: Any) -> Any:
    return _elementwise("square")(x) if type(exponent) in (int, float) and exponent == 2 else None


def _divide(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    return _elementwise("div")(x, y) if rounding_mode is None else None


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """A product with a matrix: on nodes, split over the parts of a concatenation, or put off."""
    if not isinstance(x, EdgeTensor) or isinstance(weight, EdgeTensor):
        return None
    if x.meaning[0] == "cat":
        return _linear_of_parts(x, weight, bias)
    if x.meaning[0] in _OUTERMOST:
        return None
    if _side(x) is not None:
        return _on_nodes(x, lambda rows: functional.linear(rows, weight, bias))
    if x.ndim != 2:
        return None
    shape = (*x.shape[:-1], weight.shape[0])
    return EdgeTensor(x.edges, ("linear", x, weight, bias), shape, x.like)


def _linear_of_parts(x: EdgeTensor, weight: Tensor, bias: Tensor | None) -> Any:
    parts = x.meaning[1]
    widths = [part.shape[-1] for part in parts]
    if weight.ndim != 2 or weight.shape[1] != sum(widths):
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
    sides = {_side(part) if isinstance(part, EdgeTensor) else "e" for part in parts}
    if sides in ({"i"}, {"j"}):
        rows = torch.cat([part.meaning[1].tensor for part in parts], dim=-1)
        return _leaf(first.edges, "i" if "i" in sides else "j", rows)
    shape = (*first.shape[:-1], sum(part.shape[-1] for part in parts))
    return EdgeTensor(first.edges, ("cat", tuple(parts)), shape, first.like)


def _stack(tensors: Any, dim: int = 0) -> Any:
    lazy = [each for each in tensors if isinstance(each, EdgeTensor)]
    first = lazy[0]
    if dim != 1 or len(lazy) != len(tensors) or any(each.ndim != 2 for each in lazy):
        return None
    if any(each.edges is not first.edges or each.shape != first.shape for each in lazy):
        return None
    shape = (first.shape[0], len(lazy), *first.shape[1:])
    return EdgeTensor(first.edges, ("stack", tuple(lazy)), shape, first.like)


def _shaped(function: Any) -> Callable[..., Any]:
    """The rule of a function that changes the shape of a row and not the edges."""

    def rule(x: Any, *arguments: Any, **options: Any) -> Any:
        if _side(x) is None or options:
            return None
        source: Source = x.meaning[1]
        with torch._C.DisableTorchFunctionSubclass():
            shape = function(torch.empty(x.shape, device="meta"), *arguments).shape
        if not shape or shape[0] != x.shape[0] or x.shape[0] == 0:
            return None
        return _on_nodes(x, lambda rows: rows.reshape(source.tensor.shape[0], *shape[1:]))

    return rule


def _item(x: Any, index: Any) -> Any:
    """x[:, k], x[..., a:b] and the like of a leaf or of a concatenation."""
    if not isinstance(index, tuple) or not index or index[0] != slice(None):
        return None
    if any(not isinstance(each, int | slice) for each in index[1:]):
        return None
    if _side(x) is not None:
        return _on_nodes(x, lambda rows: rows[index])
    if x.meaning[0] == "cat" and x.ndim == 3 and len(index) == 2 and isinstance(index[1], int):
        return _cat([part[index] for part in x.meaning[1]], dim=-1)
    return None


def _sum(x: Any, dim: Any = None, keepdim: bool = False, **options: Any) -> Any:
    if options or dim not in (-1, x.ndim - 1) or x.ndim not in (2, 3) or _is_outermost(x):
        return None
    if _side(x) is not None:
        return _on_nodes(x, lambda rows: rows.sum(-1, keepdim=keepdim)) if x.ndim == 3 else None
    if x.shape[1:].numel() > MOST_FEATURES:
        return None
    (out,) = _run(x, (), dot=True)
    out = out.reshape(x.shape[:-1])
    return out.unsqueeze(-1) if keepdim else out


def _same(x: Any, *_: Any, **__: Any) -> Any:
    return x


def _swapped(rule: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, y: rule(y, x)


_PLAIN: dict[str, Callable[..., Tensor]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "neg": operator.neg,
    "relu": torch.relu,
    "leaky_relu": functional.leaky_relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "silu": functional.silu,
    "softplus": functional.softplus,
    "elu": functional.elu,
    "abs": torch.abs,
    "square": torch.square,
    "sqrt": torch.sqrt,
}

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
    Tensor.contiguous: _same,
    functional.leaky_relu: _leaky,
    functional.elu: _elu,
    functional.softplus: _softplus,
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
