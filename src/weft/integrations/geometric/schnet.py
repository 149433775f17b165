"""torch_geometric's SchNet: filters once for each pair of atoms, interactions as one operator each.

Filters are functions of a distance alone. An edge and its reverse share one, and in float32 the
filter networks run on the nodes of a Chebyshev series instead of on every pair (see
`weft.kernels.chebyshev`). The rest of the model is torch_geometric's own code.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import aggr
from torch_geometric.nn.models import schnet

from weft.integrations.geometric.edge_cache import ends_range, plain, remembered
from weft.integrations.geometric.running import Seen, has_hooks, reader_of_messages
from weft.kernels.chebyshev import bin_width, in_bins, nodes_of, series_at
from weft.kernels.custom_op import array_of, have_one_loop, is_fusable
from weft.kernels.distance_pairs import PairedEdges
from weft.kernels.edge_pairs import EdgePairs, pair_spmm
from weft.kernels.filter_networks import radial_filters
from weft.kernels.schnet_interaction import SeriesFilter, interaction
from weft.kernels.softplus import shifted_softplus
from weft.models.atomistic import is_only_linear

# From this many pairs a node of the series, it pays.
_PAIRS_A_NODE = 1.5


def takes(model: Any, z: Any, pos: Any, batch: Any = None) -> bool:
    """Whether `forward` supports this call."""
    if type(z) is not Tensor or type(pos) is not Tensor or not len(model.interactions):
        return False
    expansion = model.distance_expansion
    if type(expansion) is not schnet.GaussianSmearing or not expansion.coeff < 0:
        return False
    layers: list[Any] = [pos]
    for block in model.interactions:
        if not _is_block(block):
            return False
        layers += _weights(block)
    return not has_hooks(expansion) and is_fusable(*layers)


def _is_block(block: Any) -> bool:
    """Whether a block is as torch_geometric makes it, and calling it is no more than its code."""
    if type(block) is not schnet.InteractionBlock or type(block.conv) is not schnet.CFConv:
        return False
    conv, network = block.conv, block.conv.nn
    if reader_of_messages(conv) or conv.flow != "source_to_target":
        return False
    if type(network) is not nn.Sequential or len(network) != 3:
        return False
    if type(conv.aggr_module) is not aggr.SumAggregation:
        return False
    first, activation, second = network
    if not _is_plain_softplus(activation) or not _is_plain_softplus(block.act):
        return False
    if any(map(has_hooks, (block, conv, conv.aggr_module, network, activation, block.act))):
        return False
    layers = (first, second, conv.lin2, block.lin)
    return (
        all(map(is_only_linear, (conv.lin1, *layers)))
        and conv.lin1.bias is None
        and all(layer.bias is not None for layer in layers)
    )


def _is_plain_softplus(module: Any) -> bool:
    return type(module) is schnet.ShiftedSoftplus and abs(module.shift - math.log(2)) < 1e-6


def _weights(block: Any) -> list[Tensor]:
    """The parameters of a block's linear layers."""
    first, _, second = block.conv.nn
    layers = (first, second, block.conv.lin2, block.lin)
    return [block.conv.lin1.weight, *(t for layer in layers for t in (layer.weight, layer.bias))]


def forward(model: Any, z: Tensor, pos: Tensor, batch: Tensor | None = None) -> Any:
    """The output of the model."""

    def embedding(numbers: Tensor) -> Tensor:
        groups = torch.zeros_like(numbers) if batch is None else batch
        h = model.embedding(numbers)
        return _features(model, h, *model.interaction_graph(pos, groups))

    # All interactions are behind the embedding; what comes after them is the model's own code.
    seen = Seen(
        model,
        embedding=embedding,
        interaction_graph=lambda *_: (None, None),
        distance_expansion=lambda _: None,
        interactions=(),
    )
    return type(model).forward(seen, z, pos, batch)


def _features(model: Any, h: Tensor, edge_index: Any, lengths: Any) -> Tensor:
    """Features [N, H] of the atoms after all interactions, from those of their elements."""
    if not _has_pairs(h, edge_index, lengths):
        attributes = model.distance_expansion(lengths)
        for block in model.interactions:
            h = h + block(h, edge_index, lengths, attributes)
        return h

    def make() -> PairedEdges:
        senders, receivers = plain(edge_index)
        return PairedEdges.of(senders, receivers, h.shape[0])

    edges: PairedEdges = remembered(edge_index, ("paired", h.shape[0]), make)
    # The Gaussians are as wide as the distance between two of them.
    width = bin_width(-model.distance_expansion.coeff)
    low, high = map(float, lengths.detach().aminmax())
    known = low >= 0 and high < width * edges.count
    bins = math.ceil(high / width) + 1 if known else 1
    # Each edge has a gradient of its own in its length.
    first, pairs = edges.pairs(lengths, width, bins, alone=lengths.requires_grad)
    filters = _filters(model, lengths.index_select(0, first), width, bins)
    for block, weight in zip(model.interactions, filters, strict=True):
        h = _interaction(block, h, weight, pairs)
    return h


def _has_pairs(h: Tensor, edge_index: Any, lengths: Any) -> bool:
    if type(edge_index) is not Tensor or type(lengths) is not Tensor or not edge_index.is_cpu:
        return False
    if edge_index.dtype != torch.int64 or edge_index.ndim != 2 or edge_index.shape[0] != 2:
        return False
    if lengths.shape != edge_index.shape[1:] or not lengths.numel() or h.ndim != 2:
        return False
    if not have_one_loop(h, lengths):
        return False
    low, high, lowest, highest = ends_range(edge_index)
    return min(low, lowest) >= 0 and max(high, highest) < h.shape[0]


def _interaction(block: Any, h: Tensor, weight: Any, pairs: EdgePairs) -> Tensor:
    """New features [N, H], with a filter row for each pair."""
    conv, out = block.conv, block.lin
    if isinstance(weight, SeriesFilter):
        layers = (conv.lin1.weight, conv.lin2.weight, conv.lin2.bias, out.weight, out.bias)
        return interaction(h, weight, *layers, pairs, mean=False)
    sums = pair_spmm(conv.lin1(h), weight, *pairs.tensors)
    changed: Tensor = h + out(block.act(conv.lin2(sums)))
    return changed


def _filters(model: Any, d: Tensor, width: float, bins: int) -> Iterator[Any]:
    """The filters [P, F] of each block at distances d [P], one after another.

    So that each is in a cache when its block reads it.
    """
    blocks = list(model.interactions)
    fade = functools.cache(_fade)
    nodes = None
    # In float64 a series is not exact enough, nor its derivative where d is learned from.
    if bins > 1 and d.dtype == torch.float32 and not d.requires_grad:
        nodes = nodes_of(bins, width)
    if nodes is None or d.shape[0] < _PAIRS_A_NODE * nodes.shape[0]:
        attributes = model.distance_expansion(d)
        for block in blocks:
            yield block.conv.nn(attributes) * fade(d, block.conv.cutoff)
        return
    binned = in_bins(d, width, bins)
    for block, values in zip(blocks, _networks_at(model, nodes), strict=True):
        at_nodes = values * fade(nodes, block.conv.cutoff)
        found = series_at(binned, [array_of(at_nodes)], width)
        if found is None:
            yield block.conv.nn(model.distance_expansion(d)) * fade(d, block.conv.cutoff)
        else:
            yield SeriesFilter(at_nodes, found[0], binned, width)


def _fade(d: Tensor, cutoff: float) -> Tensor:
    """Half a cosine of distances d [P], 0 at the cutoff, [P, 1]."""
    return 0.5 * (torch.cos(d * (math.pi / cutoff)) + 1)[:, None]


def _networks_at(model: Any, d: Tensor) -> list[Tensor]:
    """The filter networks [P, F] of all blocks at distances d [P], float32."""
    expansion = model.distance_expansion
    networks = [block.conv.nn for block in model.interactions]
    spacing = _spacing(expansion.offset)
    layers = [(network[0], network[2]) for network in networks]
    alike = all(
        first.weight.shape == layers[0][0].weight.shape
        and second.weight.shape == first.weight.shape[:1] * 2
        for first, second in layers
    )
    if spacing is None or not alike:
        return [network(expansion(d)) for network in networks]
    return radial_filters(
        d,
        [first.weight for first, _ in layers],
        [first.bias for first, _ in layers],
        [second.weight for _, second in layers],
        [second.bias for _, second in layers],
        spacing=spacing,
        sharpness=-expansion.coeff,
        activate=False,
    )


def _spacing(offset: Tensor) -> float | None:
    """The distance between the centres of Gaussians, Å; None if they are not 0, 1, 2, ... of it."""

    def make() -> float | None:
        centres = offset.detach().double()
        step = float(centres[-1]) / (len(centres) - 1)
        even = step * torch.arange(len(centres), dtype=torch.float64)
        return step if torch.allclose(centres, even, rtol=1e-6, atol=1e-6 * step) else None

    found: float | None = remembered(offset, "spacing", make)
    return found


def softplus_takes(layer: Any, x: Any) -> bool:
    """Whether `softplus` supports this call of ShiftedSoftplus."""
    # In float64 torch's own form differs in the tenth digit, and is as fast.
    return type(x) is Tensor and x.dtype == torch.float32 and _is_plain_softplus(layer)


def softplus(layer: Any, x: Tensor) -> Tensor:
    """torch_geometric's ShiftedSoftplus."""
    out: Tensor = shifted_softplus(x)
    return out
