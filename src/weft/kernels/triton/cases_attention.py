"""What the certificate runs of attention, softmax by receiver and sparse linear layers."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from weft.kernels import sparse_linear as layers
from weft.kernels.attention import Dropout, attention, attention_part
from weft.kernels.edge_softmax import edge_softmax
from weft.kernels.fan_in_linear import fan_in_linear
from weft.kernels.fused_messages import EdgeWalks
from weft.kernels.sparse_input_linear import sparse_input_linear
from weft.kernels.triton.cases import Case, Random, SampleEdges

_SLOPE, _SCALE = 0.2, 0.3


def _walks(edges: SampleEdges) -> EdgeWalks:
    return EdgeWalks(edges.senders, edges.receivers, edges.num_nodes, edges.num_nodes)


def _heads(width: int) -> tuple[int, int]:
    """Heads, and channels of each, that make up a width."""
    heads = next(count for count in (2, 3, 1) if width % count == 0)
    return heads, width // heads


def _additive(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    heads, channels = _heads(width)
    nodes = edges.num_nodes
    return normal(nodes, heads, channels), normal(nodes, heads), normal(nodes, heads)


def _of_senders(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    return _additive(edges, width, normal)[:2]


def _dots(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    values, keys, queries = (normal(edges.num_nodes, *_heads(width)) for _ in range(3))
    return values, keys, queries


def _joint(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    heads, channels = _heads(width)
    nodes = edges.num_nodes
    values, queries = (normal(nodes, heads, channels) for _ in range(2))
    # Scores near 1, as a layer's first ones are: far apart, they would hide all weights but one.
    return values, queries, normal(heads, channels) / channels**0.5


def _scores(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    # As many heads as scores have of each edge, not as a row has numbers.
    return (normal(edges.num_edges, max(1, width // 16)),)


def _dropped(edges: SampleEdges, heads: int) -> Dropout:
    numbers = torch.arange(edges.num_edges * heads, device=edges.senders.device)
    return Dropout(kept=(numbers * 7 % 10 > 3).view(-1, heads), p=0.4)


def _run_additive(edges: SampleEdges, values: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return attention(_walks(edges), values, sender_scores=a, receiver_scores=b, slope=_SLOPE)


def _run_dropped(edges: SampleEdges, values: Tensor, a: Tensor, b: Tensor) -> Tensor:
    dropout = _dropped(edges, values.shape[1])
    scores = {"sender_scores": a, "receiver_scores": b}
    given: dict[str, Any] = {**scores, "slope": _SLOPE, "dropout": dropout}
    return attention(_walks(edges), values, **given)


def _run_dots(edges: SampleEdges, values: Tensor, keys: Tensor, queries: Tensor) -> Tensor:
    scale = _SCALE / values.shape[2] ** 0.5
    return attention(_walks(edges), values, keys=keys, queries=queries, scale=scale)


def _run_joint(edges: SampleEdges, values: Tensor, queries: Tensor, vector: Tensor) -> Tensor:
    return attention(_walks(edges), values, queries=queries, vector=vector, slope=_SLOPE)


def _run_part(edges: SampleEdges, values: Tensor, a: Tensor) -> Any:
    out, sums = attention_part(_walks(edges), values, sender_scores=a, slope=_SLOPE)
    # Receivers without edges have -inf, which compares with nothing.
    return out, sums.where(sums.isfinite(), 0)


# Inputs and outputs of a layer are the nodes, its weights the edges, each once; samples the width.


def _index(edges: SampleEdges) -> Tensor:
    index = (edges.receivers.long() * edges.num_nodes + edges.senders).sort().values
    return index[index.diff(prepend=index.new_full((1,), -1)) > 0]


def _layer(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    count = _index(edges).shape[0]
    return normal(width, edges.num_nodes), normal(count), normal(edges.num_nodes)


def _run_layer(relu: bool) -> Any:
    def run(edges: SampleEdges, x: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        outputs = edges.num_nodes
        pattern = layers.pattern_of(_index(edges), outputs, outputs)
        return layers.sparse_linear(x, values, bias, pattern, outputs, relu)

    return run


_FAN_IN = 5


def _even_layer(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    # One output at least, as the layer asks.
    outputs = max(1, edges.num_nodes)
    return normal(width, outputs + _FAN_IN), normal(outputs * _FAN_IN), normal(outputs)


def _run_even_layer(edges: SampleEdges, x: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    outputs = bias.shape[0]
    rows = torch.arange(outputs, device=x.device)[:, None]
    columns = (rows + torch.arange(_FAN_IN, device=x.device)).int().flatten()
    return fan_in_linear(x, values, bias, columns, outputs)


def _few_inputs(edges: SampleEdges, width: int, normal: Random) -> tuple[Tensor, ...]:
    return normal(edges.num_nodes * width), normal(width)


def _run_few_inputs(edges: SampleEdges, values: Tensor, bias: Tensor) -> Tensor:
    # Samples are the receivers, inputs the senders, and every weight is there.
    index = torch.arange(values.shape[0], device=values.device)
    pattern = layers.pattern_of(index, bias.shape[0], edges.num_nodes)
    # Numbers that every dtype has.
    numbers = (torch.arange(edges.num_edges, device=values.device) % 7 - 3) / 4
    csr = (edges.in_offsets, edges.senders, numbers.to(values.dtype))
    size = (edges.num_nodes, edges.num_nodes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        # Edges of one receiver may have one sender, which torch would refuse.
        x = torch.sparse_csr_tensor(*csr, size=size, check_invariants=False)
    return sparse_input_linear(x, values, bias, pattern, bias.shape[0])


ATTENTION_CASES = (
    Case(name="attention, additive scores with dropout", make=_additive, run=_run_dropped),
    Case(name="attention, additive scores", make=_additive, run=_run_additive),
    Case(name="attention, products of keys and queries", make=_dots, run=_run_dots),
    Case(name="attention, joint scores", make=_joint, run=_run_joint),
    Case(name="attention of a part of the edges", make=_of_senders, run=_run_part),
    Case(
        name="softmax by receiver",
        make=_scores,
        run=lambda edges, scores: edge_softmax(scores, _walks(edges)),
    ),
    Case(name="sparse linear", make=_layer, run=_run_layer(False)),
    Case(name="sparse linear with relu", make=_layer, run=_run_layer(True)),
    Case(name="sparse linear, constant fan-in", make=_even_layer, run=_run_even_layer),
    Case(name="sparse linear of sparse inputs", make=_few_inputs, run=_run_few_inputs),
)
