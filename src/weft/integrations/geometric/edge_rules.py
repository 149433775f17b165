"""Rules that apply torch functions to EdgeTensors without computing a row for every edge.

A rule returns None for arguments that it does not handle; the function then runs on real tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from weft.integrations.geometric.lazy_edges import (
    OUTERMOST,
    RULES,
    EdgeTensor,
    Meaning,
    Side,
    Source,
    check_alone,
    lazy_rows,
    run,
    side_of,
)
from weft.integrations.geometric.running import note
from weft.kernels.message_code import MOST_FEATURES, OPERATIONS


def _on_rows(tensor: EdgeTensor, function: Callable[[Tensor], Tensor]) -> EdgeTensor | None:
    """Apply a function of single rows to the source of a leaf; None for anything else."""
    if side_of(tensor) is None:
        return None
    source: Source = tensor.meaning[1]
    return lazy_rows(tensor.edges, source.side, function(source.value()))


# Operations whose value and derivative are finite for every finite argument.
_ON_NODES = {"add", "sub", "mul", "neg", "relu", "leaky_relu", "sigmoid", "tanh", "silu", "square"}
_ON_NODES |= {"elu", "softplus", "gelu"}


def _node_rows(tensor: EdgeTensor) -> tuple[Side, Tensor] | None:
    """The rows of a tensor that depends on one end of the edges only, computed once per node.

    None if there are more nodes than edges, or if the values of some node are not finite: a node
    without edges has gradient 0, and 0 times infinity would reach the parameters.
    """
    sources = _sources(tensor.meaning)
    if sources is None:
        return None
    sides = {source.side for source in sources} - {"v"}
    if sides not in ({"i"}, {"j"}):
        return None
    side: Side = "i" if "i" in sides else "j"
    rows = max(source.tensor.shape[0] for source in sources)
    if rows > tensor.edges.count:
        return None
    found = _row_values(tensor.meaning)
    # If the sum overflows although all values are finite, only time is lost.
    return (side, found) if bool(found.detach().sum().isfinite()) else None


def _sources(meaning: Meaning) -> list[Source] | None:
    """The sources of an expression; None if an operation in it is not one of _ON_NODES."""
    if meaning[0] == "leaf":
        return [meaning[1]]
    if meaning[0] == "const":
        return []
    if meaning[0] not in _ON_NODES:
        return None
    found: list[Source] = []
    for part in meaning[1:]:
        inner = _sources(part)
        if inner is None:
            return None
        found += inner
    return found


def _row_values(meaning: Meaning) -> Any:
    """The value of an expression over rows of its sources."""
    if meaning[0] == "leaf":
        return meaning[1].value()
    if meaning[0] == "const":
        return meaning[1]
    return OPERATIONS[meaning[0]].plain(*map(_row_values, meaning[1:]))


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
        # Let torch report the mismatch.
        return None
    if shape[0] != lazy.edges.count or shape[1:].numel() > MOST_FEATURES or len(shape) > 3:
        return None
    parts = [_part(each, lazy, len(shape)) for each in operands]
    if sum(map(_size, parts)) > _MOST_OPERATIONS:
        return None
    return EdgeTensor(lazy.edges, (name, *parts), shape, lazy.like)


# Longer expressions are evaluated: repeated parts would otherwise grow exponentially.
_MOST_OPERATIONS = 64


def _size(meaning: Meaning) -> int:
    return 1 if meaning[0] in ("leaf", "const") else 1 + sum(map(_size, meaning[1:]))


def _is_outermost(value: Any) -> bool:
    return isinstance(value, EdgeTensor) and value.meaning[0] in OUTERMOST


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
    check_alone(target)
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
    return _elementwise("elu")(x, alpha, inplace=inplace)


def _softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    return _elementwise("softplus")(x, beta, threshold) if beta > 0 else None


def _gelu(x: Any, *, approximate: str = "none") -> Any:
    if approximate == "none":
        return _elementwise("gelu")(x)
    if approximate != "tanh":
        return None
    inner = (2 / math.pi) ** 0.5 * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (1 + torch.tanh(inner))


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
    if x.meaning[0] in OUTERMOST:
        return None
    if (on_nodes := _node_rows(x)) is not None:
        side, rows = on_nodes
        note("products on nodes")
        return lazy_rows(x.edges, side, functional.linear(rows, weight, bias))
    if (found := _linear_of_terms(x, weight)) is not None:
        return found if bias is None else found + bias
    if side_of(x) == "e" or x.ndim != 2:
        return None
    shape = (*x.shape[:-1], weight.shape[0])
    return EdgeTensor(x.edges, ("linear", _snapshot(x), weight, bias), shape, x.like)


def _linear_of_terms(x: EdgeTensor, weight: Tensor) -> Any:
    """The product of a sum or difference of terms that each depend on one end of the edges."""
    if not _rows_have(x.meaning, x.shape[1:]):
        return None
    if (on_nodes := _node_rows(x)) is not None:
        note("products on nodes")
        return lazy_rows(x.edges, on_nodes[0], functional.linear(on_nodes[1], weight))
    if x.meaning[0] not in ("add", "sub"):
        return None
    terms = (EdgeTensor(x.edges, part, x.shape, x.like) for part in x.meaning[1:])
    products = [_linear_of_terms(term, weight) for term in terms]
    if any(product is None for product in products):
        return None
    return _elementwise(x.meaning[0])(*products)


def _rows_have(meaning: Meaning, tail: Sequence[int]) -> bool:
    """Whether some source of an expression has rows of this shape, so that it has them too."""
    if meaning[0] == "leaf":
        return tuple(meaning[1].tensor.shape[1:]) == tuple(tail)
    return meaning[0] != "const" and any(_rows_have(part, tail) for part in meaning[1:])


def _snapshot(part: Any) -> Any:
    """A copy that does not follow later in-place changes of the part."""
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
    side = side_of(part) if isinstance(part, EdgeTensor) else "e"
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
        if _is_outermost(x) or options or not all(isinstance(a, int) for a in arguments):
            return None
        with torch._C.DisableTorchFunctionSubclass():
            shape = function(torch.empty(x.shape, device="meta"), *arguments).shape
        if not shape or shape[0] != x.shape[0] or x.shape[0] == 0:
            return None
        if side_of(x) is not None:
            return _view(x, lambda rows: rows.reshape(rows.shape[0], *shape[1:]))
        rows = (x.shape[1:], shape[1:])
        meaning = _reshaped(x.meaning, *rows, {}) if 2 <= len(shape) <= 3 else None
        if meaning is None:
            return None
        found = EdgeTensor(x.edges, meaning, shape, x.like)
        found.shared = x.shared = True
        return found

    return rule


def _reshaped(
    meaning: Meaning, old: Sequence[int], new: Sequence[int], done: dict[Source, Source]
) -> Meaning | None:
    """The expression with rows of shape `new`; None if a source has other rows than `old` or 1."""
    if meaning[0] == "const":
        return meaning
    if meaning[0] == "leaf":
        source: Source = meaning[1]
        tail = tuple(source.tensor.shape[1:])
        if tail != tuple(old) and any(size != 1 for size in tail):
            return None
        if source not in done:
            rows = source.value()
            shape = tuple(new) if tail == tuple(old) else (1,) * len(new)
            done[source] = Source.of(source.side, rows.reshape(rows.shape[0], *shape))
        return "leaf", done[source]
    parts = [_reshaped(part, old, new, done) for part in meaning[1:]]
    return None if any(part is None for part in parts) else (meaning[0], *parts)


def _view(x: EdgeTensor, function: Callable[[Tensor], Tensor]) -> EdgeTensor | None:
    """A view of the same rows; in torch, an in-place change of one changes both."""
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
    if side_of(x) is not None:
        return _view(x, lambda rows: rows[index])
    if x.meaning[0] == "cat" and x.ndim == 3 and len(index) == 2 and isinstance(index[1], int):
        return _cat([part[index] for part in x.meaning[1]], dim=-1)
    return None


def _sum(x: Any, dim: Any = None, keepdim: bool = False, **options: Any) -> Any:
    if options or dim not in (-1, x.ndim - 1) or x.ndim not in (2, 3) or _is_outermost(x):
        return None
    if side_of(x) is not None:
        return _on_rows(x, lambda rows: rows.sum(-1, keepdim=keepdim)) if x.ndim == 3 else None
    if x.shape[1:].numel() > MOST_FEATURES:
        return None
    note(f"makes {['E', *x.shape[1:-1]]}".replace("'", ""))
    (out,) = run(x, (), dot=True)
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
    functional.elu: _elu,
    functional.softplus: _softplus,
    functional.gelu: _gelu,
}

RULES.update(_RULES)
