"""Fast forms of torch_geometric's functions on edges, which accelerated layers call in their place.

Self-loops and normalisations are computed once and cached with the edge_index, so that every call
returns the same tensor and its sorted edges are found in the cache as well. Each function falls
back on torch_geometric's own unless its arguments are plain tensors on the CPU.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric import EdgeIndex, utils
from torch_geometric.nn import pool
from torch_geometric.nn.conv import gcn_conv

from weft.integrations.geometric import segments
from weft.integrations.geometric.edge_cache import remembered
from weft.integrations.geometric.other_inputs import spmm
from weft.integrations.geometric.running import note


def _is_kept(edge_index: Any) -> bool:
    """Whether results are cached with this edge_index or sparse adjacency."""
    if type(edge_index) not in (Tensor, EdgeIndex) or not edge_index.is_cpu:
        return False
    return not edge_index.is_inference() and not edge_index.requires_grad


def _remembered_result(
    key: tuple[Any, ...], edge_index: Tensor, attribute: Any, make: Callable[[], tuple[Any, ...]]
) -> tuple[Any, ...]:
    """The cached result of a function of an edge_index and, optionally, an edge attribute.

    If the attribute requires gradients, only the resulting edge_index is cached.
    """
    if not isinstance(attribute, Tensor | types.NoneType):
        return make()
    if isinstance(edge_index, EdgeIndex):
        # Which has more to it than the edges.
        facts = (edge_index.sparse_size(), edge_index.sort_order, edge_index.is_undirected)
        key = (*key, edge_index.as_tensor()._version, *facts)
    learning = attribute is not None and attribute.requires_grad
    result = make() if learning else None

    def keep() -> _Kept:
        # Changes of inference tensors are not counted, so make ordinary ones.
        with torch.inference_mode(mode=False):
            found = make() if result is None else result[:1]
        return _Kept.of(found, edge_index)

    beside = None if learning else attribute
    whole = (*key, "index") if learning else key
    note(f"{key[0]} kept")
    kept: _Kept = remembered(edge_index, whole, keep, beside=beside)
    same = kept.given(edge_index)
    if same is None:
        return make()
    if result is None:
        return same
    return result if same[0].shape != result[0].shape else (*same, *result[1:])


@dataclass(frozen=True)
class _Kept:
    """A result that is kept with an edge_index, and counts that tell whether it was changed.

    Attributes:
        found: the result; None in place of the edge_index itself, which would keep itself alive.
        versions: of its tensors.
        itself: for each part, whether it is the edge_index.
    """

    found: tuple[Any, ...]
    versions: list[int]
    itself: tuple[bool, ...]

    @classmethod
    def of(cls, found: tuple[Any, ...], edge_index: Tensor) -> _Kept:
        itself = tuple(each is edge_index for each in found)
        parts = tuple(None if own else each for each, own in zip(found, itself, strict=True))
        return cls(parts, _versions(parts), itself)

    def given(self, edge_index: Tensor) -> tuple[Any, ...] | None:
        """The result, unless somebody has changed it since."""
        if _versions(self.found) != self.versions:
            return None
        parts = zip(self.found, self.itself, strict=True)
        return tuple(edge_index if own else each for each, own in parts)


def _versions(found: tuple[Any, ...]) -> list[int]:
    return [t._version for t in found if isinstance(t, Tensor) and not t.is_inference()]


def remove_self_loops(edge_index: Any, edge_attr: Any = None) -> Any:
    """As torch_geometric's."""
    if not _is_kept(edge_index):
        return utils.remove_self_loops(edge_index, edge_attr)
    return _remembered_result(
        ("remove_self_loops",),
        edge_index,
        edge_attr,
        lambda: utils.remove_self_loops(edge_index, edge_attr),
    )


def add_self_loops(
    edge_index: Any, edge_attr: Any = None, fill_value: Any = None, num_nodes: Any = None
) -> Any:
    """As torch_geometric's."""
    known = isinstance(num_nodes, int | types.NoneType)
    if not _is_kept(edge_index) or not known:
        return utils.add_self_loops(edge_index, edge_attr, fill_value, num_nodes)
    fill = fill_value if isinstance(fill_value, str | float | int | types.NoneType) else "tensor"

    def make() -> tuple[Any, ...]:
        found: tuple[Any, ...] = utils.add_self_loops(edge_index, edge_attr, fill_value, num_nodes)
        return found

    if fill == "tensor":
        # Which may be changed without a change of the edges.
        return make()
    return _remembered_result(("add_self_loops", num_nodes, fill), edge_index, edge_attr, make)


def gcn_norm(
    edge_index: Any,
    edge_weight: Any = None,
    num_nodes: Any = None,
    improved: bool = False,
    add_self_loops: bool = True,
    flow: str = "source_to_target",
    dtype: Any = None,
) -> Any:
    """As torch_geometric's."""
    options = (num_nodes, improved, add_self_loops, flow, dtype)
    if not _is_kept(edge_index):
        return gcn_conv.gcn_norm(edge_index, edge_weight, *options)
    return _remembered_result(
        ("gcn_norm", *options),
        edge_index,
        edge_weight,
        lambda: gcn_conv.gcn_norm(edge_index, edge_weight, *options),
    )


FAST: dict[Any, Callable[..., Any]] = {
    utils.remove_self_loops: remove_self_loops,
    utils.add_self_loops: add_self_loops,
    gcn_conv.gcn_norm: gcn_norm,
    utils.spmm: spmm,
    **segments.FAST,
}
"""Functions of torch_geometric, and what accelerated code calls in their place."""


class _Globals(dict[str, Any]):
    """The names of a function's module, some of which mean something else."""

    def __init__(self, names: dict[str, Any], others: dict[str, Any]) -> None:
        super().__init__(others)
        self._names = names

    def __missing__(self, name: str) -> Any:
        return self._names[name]


def with_fast_helpers(function: Any) -> Any:
    """The function, calling fast forms; None where it calls nothing that has one."""
    if not isinstance(function, types.FunctionType):
        return None
    used = {each.opname for each in dis.get_instructions(function)}
    if used & {"STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME"}:
        # These need the function's real module.
        return None
    names = function.__globals__
    others = {}
    for name in function.__code__.co_names:
        value = names.get(name)
        if isinstance(value, types.FunctionType) and value in FAST:
            others[name] = FAST[value]
    if not others:
        return None
    made = types.FunctionType(
        function.__code__,
        _Globals(names, {"__builtins__": names["__builtins__"], **others}),
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__ = function.__qualname__
    return made


FAST |= {
    function: with_fast_helpers(function)
    for function in (pool.global_add_pool, pool.global_mean_pool, pool.global_max_pool)
}
