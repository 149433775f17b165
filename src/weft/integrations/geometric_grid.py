"""torch_geometric's layers on a graph that ranks share, and networks of weft as its layers."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import torch
import torch_geometric.nn as geometric
from torch import Tensor, nn

from weft.models import GCN, GCNLayer, GraphSAGE, SAGELayer
from weft.models.config import GraphNetworkConfig
from weft.parallel.distributed_graph import DistributedGraph
from weft.parallel.graph_network import (
    GATLayer,
    GATv2Layer,
    GINLayer,
    GraphNetwork,
    graph_convolution,
)

# What a layer must be set to, beside its widths: anything else is refused by name.
_NEEDED: dict[type, dict[str, tuple[Any, ...]]] = {
    geometric.GCNConv: {
        "improved": (False,),
        "normalize": (True,),
        "add_self_loops": (True,),
        "cached": (False,),
    },
    geometric.SAGEConv: {
        "aggr": ("mean", "max", "sum", "add"),
        "normalize": (False,),
        "project": (False,),
    },
    geometric.GINConv: {},
    geometric.GATConv: {"edge_dim": (None,), "dropout": (0, 0.0), "residual": (False,)},
}


class GridConv(nn.Module):
    """A layer of torch_geometric, its own parameters, on a graph that ranks share.

    It takes a `DistributedGraph`, prepared with normalisation 'none', where the layer takes
    `edge_index`. GCNConv's weights of edges are those of the graph.

    Attributes:
        conv: the layer.
    """

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, graph: DistributedGraph) -> Tensor:
        """What the layer gives for this rank's nodes, x [m, f]."""
        if not isinstance(graph, DistributedGraph):
            raise TypeError(
                f"{type(self.conv).__name__} was taken over for graphs that ranks share: pass a "
                f"DistributedGraph in the place of edge_index, not {type(graph).__name__}"
            )
        conv = cast(Any, self.conv)
        if isinstance(conv, geometric.GCNConv):
            return _with(graph_convolution(graph, x, conv.lin.weight.T, "symmetric"), conv.bias)
        if isinstance(conv, geometric.SAGEConv):
            how: Any = "sum" if conv.aggr == "add" else conv.aggr
            out: Tensor = conv.lin_l(graph.propagate(x, "ones", reduce=how))
            return out + conv.lin_r(x) if conv.root_weight else out
        if isinstance(conv, geometric.GINConv):
            found: Tensor = conv.nn(graph.propagate(x, "ones") + (1 + conv.eps) * x)
            return found
        values = conv.lin(x).view(len(x), conv.heads, conv.out_channels)
        senders, receivers = ((values * v).sum(-1) for v in (conv.att_src, conv.att_dst))
        heads = graph.attend_additively(
            values,
            receivers,
            senders=senders,
            slope=conv.negative_slope,
            self_loops=conv.add_self_loops,
        )
        return _with(heads.flatten(1) if conv.concat else heads.mean(1), conv.bias)


def _with(out: Tensor, bias: Tensor | None) -> Tensor:
    return out if bias is None else out + bias


def from_geometric(model: nn.Module) -> nn.Module:
    """A copy of a model whose GCNConv, SAGEConv, GINConv and GATConv run on a shared graph.

    Weights are copied. The model is called as before, with a `DistributedGraph` (prepared with
    normalisation 'none') where it was given `edge_index`. Whatever else it has must compute node by
    node. `to_geometric` takes it back.

    Raises:
        ValueError: the model has another layer of torch_geometric, or one with an option that is
            not computed over ranks.
    """
    return _replaced(deepcopy(model), _taken_over)


def to_geometric(model: nn.Module | str | Path) -> nn.Module:
    """A model, or the one that a run of `weft train full-graph` has trained, as torch_geometric's.

    A copy: of a model of `from_geometric` with its own layers again, or of a network of weft as a
    module that is called with x [n, f], edge_index [2, e] and, for gcn, appnp and sgc,
    edge_weight [e].
    """
    if isinstance(model, str | Path):
        model = _trained(Path(model))
    if isinstance(model, GCN | GraphSAGE):
        kind = "gcn" if isinstance(model, GCN) else "sage"
        old = model.config
        config = GraphNetworkConfig(
            kind=kind,  # type: ignore[arg-type]
            hidden=old.hidden,
            dropout=old.dropout,
            input_dropout=old.input_dropout,
        )
        return GeometricNetwork(model, config)
    if isinstance(model, GraphNetwork):
        return GeometricNetwork(model, model.config)
    return _replaced(deepcopy(model), lambda m: m.conv if isinstance(m, GridConv) else None)


def _replaced(module: nn.Module, other: Any) -> nn.Module:
    """The module with those inside it replaced that `other` gives something for."""
    found = other(module)
    if found is not None:
        return cast(nn.Module, found)
    for name, child in module.named_children():
        module.add_module(name, _replaced(child, other))
    return module


def _taken_over(module: nn.Module) -> nn.Module | None:
    if not isinstance(module, geometric.MessagePassing):
        return None
    name, needed = type(module).__name__, _NEEDED.get(type(module))
    if needed is None:
        raise ValueError(
            f"{name} is not taken over; GCNConv, SAGEConv, GINConv and GATConv are. Write it with "
            "the methods of DistributedGraph"
        )
    for option, legal in {**needed, "flow": ("source_to_target",)}.items():
        value = getattr(module, option, legal[0])
        if value not in legal:
            raise ValueError(
                f"{name} has {option}={value!r}, which is not computed over ranks; it must be "
                f"{' or '.join(map(repr, legal))}"
            )
    lin = getattr(module, "lin", None)
    if isinstance(module, geometric.GATConv) and lin is None:
        raise ValueError("GATConv has weights for two kinds of nodes; one kind is taken over")
    return GridConv(module)


class GeometricNetwork(nn.Module):
    """A network of weft, in its layers' terms of torch_geometric, with a copy of the weights.

    Attributes:
        convs: the layers.
        norms: of the hidden layers, if any.
    """

    def __init__(self, model: nn.Module, config: GraphNetworkConfig) -> None:
        super().__init__()
        self.config = config
        ours = cast(Any, model)
        self.convs = nn.ModuleList(_exported(layer, config) for layer in ours.layers)
        self.norms = nn.ModuleList(map(_exported_norm, getattr(ours, "norms", ())))
        if config.kind == "appnp":
            self.steps = geometric.APPNP(config.steps, config.teleport)
        self.train(model.training)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Logits [n, c]."""
        config = self.config
        x = nn.functional.dropout(x, config.input_dropout, self.training)
        for number, conv in enumerate(self.convs):
            plain = isinstance(conv, nn.Linear)
            weighted = config.kind in ("gcn", "sgc") and edge_weight is not None
            ends = () if plain else (edge_index, edge_weight) if weighted else (edge_index,)
            out = conv(x, *ends)
            if number + 1 < len(self.convs):
                out = self.norms[number](out) if self.norms else out
                out = nn.functional.dropout(out.relu(), config.dropout, self.training)
                out = out + x if config.residual and x.shape == out.shape else out
            x = out
        return self.steps(x, edge_index, edge_weight) if config.kind == "appnp" else x


def _exported(layer: nn.Module, config: GraphNetworkConfig) -> nn.Module:
    """The layer of torch_geometric with these weights."""
    conv: Any
    if isinstance(layer, nn.Linear):
        if config.kind == "appnp":
            return deepcopy(layer)
        conv = geometric.SGConv(layer.in_features, layer.out_features, config.steps)
    elif isinstance(layer, GCNLayer):
        conv = geometric.GCNConv(*layer.weight.shape)
    elif isinstance(layer, SAGELayer):
        conv = geometric.SAGEConv(*layer.own.shape, aggr=config.aggregate)
    elif isinstance(layer, GINLayer):
        inside = nn.Sequential(deepcopy(layer.first), nn.ReLU(), deepcopy(layer.second))
        conv = geometric.GINConv(inside, train_eps=True)
    elif isinstance(layer, GATLayer):
        sizes = (layer.weight.shape[0], layer.sender_vector.shape[1], layer.heads)
        conv = geometric.GATConv(*sizes, concat=layer.concat)
    else:
        assert isinstance(layer, GATv2Layer)
        sizes = (layer.senders.in_features, layer.vector.shape[1], layer.heads)
        conv = geometric.GATv2Conv(*sizes, concat=layer.concat)
    conv = conv.to(next(layer.parameters()).dtype)
    with torch.no_grad():
        for theirs, ours in _weights(layer, conv):
            theirs.copy_(ours)
    return cast(nn.Module, conv)


def _weights(layer: nn.Module, conv: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Each parameter of torch_geometric's layer, and what weft's has in its place."""
    if isinstance(layer, nn.Linear):
        yield conv.lin.weight, layer.weight
        yield conv.lin.bias, layer.bias
    elif isinstance(layer, GCNLayer):
        yield conv.lin.weight, layer.weight.T
        yield conv.bias, layer.bias
    elif isinstance(layer, SAGELayer):
        yield conv.lin_l.weight, layer.neighbours.T
        yield conv.lin_l.bias, layer.bias
        yield conv.lin_r.weight, layer.own.T
    elif isinstance(layer, GINLayer):
        yield conv.eps, layer.eps
        # Its constructor draws the weights of what it is given again.
        for theirs, ours in ((conv.nn[0], layer.first), (conv.nn[2], layer.second)):
            yield theirs.weight, ours.weight
            yield theirs.bias, ours.bias
    elif isinstance(layer, GATLayer):
        yield conv.lin.weight, layer.weight.T
        yield conv.att_src, layer.sender_vector[None]
        yield conv.att_dst, layer.receiver_vector[None]
        yield conv.bias, layer.bias
    elif isinstance(layer, GATv2Layer):
        yield conv.lin_l.weight, layer.senders.weight
        yield conv.lin_l.bias, layer.senders.bias
        yield conv.lin_r.weight, layer.receivers.weight
        yield conv.lin_r.bias, layer.receivers.bias
        yield conv.att, layer.vector[None]
        yield conv.bias, layer.bias


def _exported_norm(norm: nn.Module) -> nn.Module:
    weight = next(norm.parameters())
    if isinstance(norm, nn.LayerNorm):
        found: nn.Module = nn.LayerNorm(len(weight))
    elif isinstance(norm, nn.BatchNorm1d):
        found = nn.BatchNorm1d(len(weight))
    else:
        found = geometric.GraphNorm(len(weight))
    found.to(weight.dtype).load_state_dict(norm.state_dict())
    return found


def _trained(run: Path) -> nn.Module:
    """The network of a run of `weft train full-graph`, with its best weights."""
    from weft.recipes.full_graph.prediction import load_nodes
    from weft.training.checkpoint import load_weights

    config, about = load_nodes(run)
    model = config.make_model(about["features"], about["classes"])
    load_weights(model, run)
    return model.eval()
