"""Tensors with a row for every edge that are not made until something needs them.

A layer's own `message` runs as it is written, each time, but `x_i` and `x_j` are `EdgeTensor`s:
they record what is done to them. Products of one node's features with a matrix are computed on
nodes, elementwise arithmetic becomes an expression, and the reduction over a receiver's edges
evaluates it in one loop (weft.kernels.fused_messages). Any other function evaluates the EdgeTensor
first, so that a message may do anything.
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

from weft.integrations.geometric.edge_cache import ends_range, plain, remembered, walks_of
from weft.integrations.geometric.kept_results import kept, sorted_rows
from weft.integrations.geometric.running import note
from weft.kernels.fused_messages import EdgeWalks, fused_messages
from weft.kernels.message_code import MOST_FEATURES, Leaf, MessageProgram, Reduction

Side = Literal["i", "j", "e", "v"]


class NotLazyError(Exception):
    """The message needs the tensors of its edges; the layer must run unaccelerated."""


class EdgeRangeError(NotLazyError):
    """An edge names a node that does not exist; torch_geometric says so in its own words."""


@dataclass(frozen=True, eq=False)
class Source:
    """A tensor with one row per receiver (`i`), sender (`j`) or edge (`e`), or one row (`v`)."""

    side: Side
    tensor: Tensor
    version: int

    @classmethod
    def of(cls, side: Side, tensor: Tensor) -> Source:
        """The tensor as it is now."""
        return cls(side, tensor, 0 if tensor.is_inference() else tensor._version)

    def value(self) -> Tensor:
        """The tensor; raises NotLazyError if it was changed in place since."""
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
        by_value: the layer may read copies of the rows of edge_index.
        made: all EdgeTensors of the call that are still referenced.
        state: flags, see `refused` and `closed`.
    """

    edge_index: Tensor
    receiver_row: int
    sizes: dict[str, int]
    learning: bool
    by_value: bool = False
    made: Any = field(default_factory=WeakIdKeyDictionary)
    state: dict[str, bool] = field(default_factory=dict)

    @property
    def refused(self) -> bool:
        """Whether the message did something that needs real tensors."""
        return "refused" in self.state

    @property
    def closed(self) -> bool:
        """Whether the call is over, so that everything is evaluated at once."""
        return "closed" in self.state

    def close(self) -> None:
        """End the call: evaluate the EdgeTensors that are still referenced."""
        self.state["closed"] = True
        for tensor in list(self.made):
            values_of(tensor)

    def row_of(self, index: Tensor) -> int | None:
        """The row of edge_index that an index is a view of, or equal to if `by_value`."""
        whole = self.edge_index
        if index.ndim != 1 or index.shape[0] != self.count or index.dtype != whole.dtype:
            return None
        if self.by_value:
            rows = (self.receiver_row, 1 - self.receiver_row)
            return next((row for row in rows if torch.equal(index, whole[row])), None)
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

    @property
    def is_sorted(self) -> bool:
        """Whether receivers ascend from edge to edge."""

        def make() -> bool:
            receivers = plain(self.edge_index)[self.receiver_row]
            return bool((receivers[1:] >= receivers[:-1]).all())

        found: bool = remembered(self.edge_index, ("sorted", self.receiver_row), make)
        return found

    def walks(self) -> EdgeWalks:
        """The edges sorted by receiver and by sender."""
        row = self.receiver_row
        limits = ends_range(self.edge_index)
        counts = {}
        for side, (low, high) in (("i", limits[2 * row :][:2]), ("j", limits[2 - 2 * row :][:2])):
            # A side without features has as many nodes as the other, or as its edges need.
            known = self.sizes.get(side, max(high + 1, *self.sizes.values(), 0))
            if low < 0 or high >= known:
                raise EdgeRangeError(f"edges name nodes {low} to {high}; there are {known}")
            counts[side] = known
        return walks_of(self.edge_index, row, counts["j"], counts["i"])


# The expression of an EdgeTensor: ("leaf", Source), ("const", number), (operation, part, ...) as in
# message_code; and, only outermost, ("cat", parts), ("stack", parts) and ("linear", part, weight,
# bias), where parts are EdgeTensors or tensors.
Meaning = tuple[Any, ...]
OUTERMOST = ("cat", "stack", "linear")
"""Operations that are never part of another expression."""

RULES: dict[Any, Callable[..., Any]] = {}
"""The rule of each torch function, registered by edge_rules."""


class EdgeTensor(Tensor):
    """A tensor with a row for each of `edges`, not computed yet; `meaning` is its expression."""

    edges: Edges
    meaning: Meaning
    like: Tensor
    # Whether it is a view of another EdgeTensor, or has one.
    shared: bool

    @staticmethod
    def __new__(cls, edges: Edges, meaning: Meaning, shape: Sequence[int], like: Tensor) -> Any:
        """Make one of this shape, with the dtype and device of `like`."""
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
            # A user's autograd.Function looks like this; its gradient would be lost.
            edges.state["refused"] = True
            raise NotLazyError(f"{func} needs the tensors of a message themselves")
        rule = None if torch.is_autocast_enabled("cpu") else RULES.get(func)
        if rule is not None:
            # A rule does not take all of torch's keywords.
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
    """Call the function on evaluated EdgeTensors."""
    name = getattr(func, "__name__", "")
    target = args[0] if args else None
    in_place = func in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
    if isinstance(target, EdgeTensor) and not target.edges.closed and in_place:
        check_alone(target)
        # On a copy: expressions that were made before keep the old values.
        made = values_of(target).clone()
        real_args, real_kwargs = tree_map(_real, (args[1:], kwargs))
        func(made, *real_args, **real_kwargs)
        target.meaning = ("leaf", Source.of("e", made))
        return target
    real_args, real_kwargs = tree_map(_real, (args, kwargs))
    return func(*real_args, **real_kwargs)


def check_alone(target: EdgeTensor) -> None:
    """Raise NotLazyError for an in-place change of a view, or of a tensor that has one."""
    if target.shared:
        target.edges.state["refused"] = True
        raise NotLazyError("a view of a message is changed in place")


def _real(value: Any) -> Any:
    return values_of(value) if isinstance(value, EdgeTensor) else value


# -- Evaluation ------------------------------------------------------------------------------------


def values_of(tensor: EdgeTensor) -> Tensor:
    """The evaluated tensor, [E, ...]; evaluated once."""
    kind = tensor.meaning[0]
    if kind == "leaf" and tensor.meaning[1].side == "e":
        found: Tensor = tensor.meaning[1].tensor
        return found
    if tensor.edges.learning and not torch.is_grad_enabled():
        with torch.enable_grad():
            return values_of(tensor)
    note(f"makes {['E', *tensor.shape[1:]]}".replace("'", ""))
    if kind == "cat":
        value = torch.cat([_real(part) for part in tensor.meaning[1]], dim=-1)
    elif kind == "stack":
        value = torch.stack([_real(part) for part in tensor.meaning[1]], dim=1)
    elif kind == "linear":
        _, part, weight, bias = tensor.meaning
        value = functional.linear(values_of(part), weight, bias)
    elif kind == "leaf" and tensor.shape[1:].numel() > MOST_FEATURES:
        row = tensor.edges.receiver_row
        ends = plain(tensor.edges.edge_index)[row if side_of(tensor) == "i" else 1 - row]
        value = tensor.meaning[1].value().index_select(0, ends)
    else:
        (value,) = run(tensor, (), dot=False)
        value = value.reshape(tensor.shape)
    tensor.meaning = ("leaf", Source.of("e", value))
    return value


def reduced(tensor: Tensor, edges: Edges, reductions: tuple[Reduction, ...]) -> tuple[Tensor, ...]:
    """Messages reduced over the edges into each receiver, each [N, ...]."""
    if isinstance(tensor, EdgeTensor) and tensor.edges is not edges:
        tensor = values_of(tensor)
    if not isinstance(tensor, EdgeTensor):
        note("sorted reduction")
        program = MessageProgram(("leaf", 0), (Leaf("e", False),), reductions)
        rows = tensor.reshape(edges.count, 1, tensor.shape[1:].numel())
        walks = edges.walks()
        outs = fused_messages(program, walks, [rows], ())
        return tuple(out.reshape(walks.num_receivers, *tensor.shape[1:]) for out in outs)
    kind = tensor.meaning[0]
    if kind == "stack":
        parts = [reduced(part, edges, reductions) for part in tensor.meaning[1]]
        return tuple(torch.stack(each, dim=1) for each in zip(*parts, strict=True))
    if kind == "linear" and reductions == ("sum",):
        note("product after the sum")
        _, part, weight, bias = tensor.meaning
        (total,) = reduced(part, edges, reductions)
        out = functional.linear(total, weight)
        if bias is not None:
            out = torch.addcmul(out, edges.walks().in_degrees.to(out)[:, None], bias)
        return (out,)
    if kind in OUTERMOST:
        return reduced(values_of(tensor), edges, reductions)
    note("sorted reduction" if side_of(tensor) == "e" else "messages reduced in one loop")
    shape = (edges.walks().num_receivers, *tensor.shape[1:])
    return tuple(out.reshape(shape) for out in run(tensor, reductions, dot=False))


def run(tensor: EdgeTensor, reductions: tuple[Reduction, ...], *, dot: bool) -> tuple[Tensor, ...]:
    """Run a tensor's expression."""
    tail = tensor.shape[1:]
    heads, channels = (1, tail.numel()) if len(tail) < 2 else (tail[:-1].numel(), tail[-1])
    sources: dict[Source, int] = {}
    consts: dict[float, int] = {}
    expression = _numbered(tensor.meaning, sources, consts)
    walks = tensor.edges.walks()
    leaves, places, in_order = [], [], {}
    for number, source in enumerate(sources):
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
        if source.side == "e" and width == 1:
            found = sorted_rows(leaves[-1], walks, tensor.edges.edge_index)
            if found is not None:
                in_order[number] = found
        places.append(Leaf(source.side, by_head, number in in_order))
    program = MessageProgram(expression, tuple(places), reductions, dot)

    def make() -> tuple[Tensor, ...]:
        return fused_messages(program, walks, leaves, tuple(consts), in_order)

    if not reductions:
        return make()
    # The result is freed with the largest tensor, which is that of features.
    given_by_size = sorted(enumerate(sources), key=lambda each: -each[1].tensor.numel())
    order = tuple(number for number, _ in given_by_size)
    ends = tensor.edges.receiver_row, walks.num_senders, walks.num_receivers
    kinds = tuple((leaf.place, leaf.by_head) for leaf in places)
    key = (expression, reductions, tuple(consts), heads, channels, kinds, order, ends)
    tensors = [source.tensor for _, source in given_by_size]
    return kept(tensors, tensor.edges.edge_index, key, make)


def _numbered(meaning: Meaning, sources: dict[Source, int], consts: dict[float, int]) -> Meaning:
    """The expression with numbers in place of its sources and constants, which are collected."""
    # A recursive closure would be a reference cycle and keep the sources until the next collection.
    if meaning[0] == "leaf":
        return "leaf", sources.setdefault(meaning[1], len(sources))
    if meaning[0] == "const":
        return "const", consts.setdefault(meaning[1], len(consts))
    return meaning[0], *(_numbered(part, sources, consts) for part in meaning[1:])


def side_of(tensor: EdgeTensor) -> Side | None:
    """The side of a tensor that is a single source; None for an expression."""
    return tensor.meaning[1].side if tensor.meaning[0] == "leaf" else None


_IN_PLACE = {
    Tensor.__setitem__,
    *(getattr(Tensor, f"__i{name}__") for name in ("add", "sub", "mul", "truediv", "floordiv")),
    *(getattr(Tensor, f"__i{name}__") for name in ("mod", "pow", "and", "or", "xor")),
}
# Functions of a tensor's shape and kind, which an EdgeTensor has.
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
# Requests to autograd that need a real tensor.
_OF_AUTOGRAD = {
    Tensor.register_hook,
    Tensor.retain_grad,
    Tensor.requires_grad_,
    Tensor.backward,
    torch.autograd.grad,
    torch.autograd.backward,
}
