"""torch_geometric's aggregations of messages that are not made: what each needs, and its result."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import aggr

from weft.integrations.geometric import segments
from weft.integrations.geometric.lazy_edges import (
    OUTERMOST,
    Edges,
    EdgeTensor,
    lazy_rows,
    reduced,
)
from weft.kernels.message_code import Reduction

_NEEDS: dict[type, tuple[Reduction, ...]] = {
    aggr.SumAggregation: ("sum",),
    aggr.MeanAggregation: ("sum",),
    aggr.MaxAggregation: ("max",),
    aggr.MinAggregation: ("min",),
    aggr.VarAggregation: ("sum", "squares"),
    aggr.StdAggregation: ("sum", "squares"),
}


def cost_of(module: Any) -> tuple[Reduction, ...]:
    """The reductions that cost torch as much as the module does."""
    return needs_of(module) or ("sum", "squares")


def is_known(module: Any) -> bool:
    """Whether weft has a fast form of this aggregation."""
    return needs_of(module) is not None or _is_softmax(module)


def _is_softmax(module: Any) -> bool:
    return type(module) is aggr.SoftmaxAggregation and not module.semi_grad


def needs_of(module: Any) -> tuple[Reduction, ...] | None:
    """The reductions that an aggregation is made from; None where it is not known."""
    kind = type(module)
    if kind is aggr.MultiAggregation:
        if module.mode not in ("cat", "sum", "mean", "max", "min"):
            return None
        parts = [needs_of(each) for each in module.aggrs]
        if any(part is None for part in parts):
            return None
        wanted = {name for part in parts if part is not None for name in part}
        order: tuple[Reduction, ...] = ("sum", "squares", "max", "min")
        return tuple(name for name in order if name in wanted)
    if kind is aggr.DegreeScalerAggregation:
        return needs_of(module.aggr)
    if kind is aggr.VarAggregation and module.semi_grad:
        return None
    if kind is aggr.StdAggregation and module.var_aggr.semi_grad:
        return None
    return _NEEDS.get(kind)


def aggregated(module: Any, messages: Tensor, edges: Edges) -> Tensor | None:
    """The result of module(messages, receivers, dim=0); None if the module is not known here."""
    if _is_softmax(module):
        return _softmax(module, messages, edges)
    needs = needs_of(module)
    if needs is None:
        return None
    if type(module) is aggr.MeanAggregation and _is_expression(messages):
        # Scaled in the loop, which saves a pass over the sums and one over their gradients.
        inverse = edges.walks().inverse_in_degrees(messages.dtype)
        inverse = inverse.view(-1, *(1,) * (messages.ndim - 1))
        return reduced(messages * lazy_rows(edges, "i", inverse), edges, ("sum",))[0]
    results: dict[str, Tensor] = {}
    results.update(zip(needs, reduced(messages, edges, needs), strict=True))
    return _result(module, results, edges.walks().in_degrees)


def _is_expression(messages: Tensor) -> bool:
    return isinstance(messages, EdgeTensor) and messages.meaning[0] not in OUTERMOST


def _softmax(module: Any, messages: Any, edges: Edges) -> Tensor | None:
    """The messages into each receiver, weighted with their softmax in each feature."""
    if module.channels != 1 and (messages.ndim != 2 or messages.shape[1] != module.channels):
        return None
    if not isinstance(messages, EdgeTensor):
        messages = lazy_rows(edges, "e", messages)
    scores = messages
    if not isinstance(module.t, int | float) or module.t != 1:
        scores = messages * (module.t if module.channels == 1 else module.t.view(1, -1))
    with torch.no_grad():
        (most,) = reduced(scores, edges, ("max",))
    weights = (scores - lazy_rows(edges, "i", most)).exp()
    (total,) = reduced(weights, edges, ("sum",))
    (weighted,) = reduced(weights * messages, edges, ("sum",))
    # As torch_geometric's softmax.
    return weighted / (total + 1e-16)


def alone(
    module: Any,
    x: Any,
    index: Any = None,
    ptr: Any = None,
    dim_size: Any = None,
    dim: int = -2,
    **others: Any,
) -> Tensor | None:
    """The result of an aggregation called by itself; None if weft does not take the call."""
    needs = needs_of(module)
    if others or not is_known(module) or (ptr is not None and index is not None):
        return None
    if ptr is not None:
        # segment's gradient of a maximum is not that of scatter; scalers need an index.
        scaled = any(isinstance(part, aggr.DegreeScalerAggregation) for part in module.modules())
        if scaled or needs is None or "max" in needs or "min" in needs:
            return None
        index = segments.index_of(ptr, x)
    if not isinstance(x, Tensor) or not segments.gains(x, None, cost_of(module)):
        return None
    edges = segments.groups_of(x, index, dim_size, dim)
    if edges is None or not segments.gains(x, edges, cost_of(module)):
        return None
    return aggregated(module, x, edges)


def _result(module: Any, results: dict[str, Tensor], degrees: Tensor) -> Tensor:
    kind = type(module)
    if kind is aggr.DegreeScalerAggregation:
        return _scaled(module, _result(module.aggr, results, degrees), degrees)
    if kind is aggr.MultiAggregation:
        combined: Tensor = module.combine(
            [_result(each, results, degrees) for each in module.aggrs]
        )
        return combined
    if kind in (aggr.SumAggregation, aggr.MaxAggregation, aggr.MinAggregation):
        return results[_NEEDS[kind][0]]
    first = results["sum"]
    counts = degrees.clamp(min=1).to(first.dtype).view(-1, *(1,) * (first.ndim - 1))
    mean = first / counts
    if kind is aggr.MeanAggregation:
        return mean
    variance = results["squares"] / counts - mean * mean
    if kind is aggr.VarAggregation:
        return variance
    # torch_geometric's rule: a standard deviation this small is 0 and has no gradient.
    least = 1e-5
    root = variance.clamp(min=least).sqrt()
    return root.masked_fill(root <= least**0.5, 0.0)


def _scaled(module: Any, out: Tensor, degrees: Tensor) -> Tensor:
    """The scalers of torch_geometric's DegreeScalerAggregation applied to `out`."""
    degree = degrees.to(out.dtype).view(-1, *(1,) * (out.ndim - 1))
    parts = []
    for scaler in module.scaler:
        if scaler == "identity":
            scaled = out
        elif scaler == "amplification":
            scaled = out * (torch.log(degree + 1) / module.avg_deg_log)
        elif scaler == "attenuation":
            scaled = out * (module.avg_deg_log / torch.log(degree.clamp(min=1) + 1))
        elif scaler == "linear":
            scaled = out * (degree / module.avg_deg_lin)
        else:
            assert scaler == "inverse_linear"
            scaled = out * (module.avg_deg_lin / degree.clamp(min=1))
        parts.append(scaled)
    return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]
