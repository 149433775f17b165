"""torch_geometric's aggregations of messages that are not made: what each needs, and its result."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import aggr

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
