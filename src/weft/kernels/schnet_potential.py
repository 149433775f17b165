"""SchNet's values of the atoms, their derivatives in distances, and what is learned from both.

Forces take one pass through the layers and one back. A loss of forces gives a direction in which
all distances move, and its gradient in the weights is that of the values and of their change along
that direction. The change needs a pass of its own, but of tangents alone: values, activations and
the gradients of the first way back are there already, and what goes back is how those change.

N nodes, E edges, P pairs, H features, F filters, M features of the readout, L layers, C chunks of
nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.kernels.custom_op import array_of, require
from weft.kernels.edge_pairs import EdgePairs
from weft.kernels.schnet_interaction import chunk_of, message_chunks
from weft.kernels.schnet_potential_loops import (
    back_changes,
    back_chunks,
    distance_rows,
    filter_rows,
    layer_chunks,
    tangent_chunks,
    top_changes,
    top_chunks,
)
from weft.runtime import gemm_address


class Layer(NamedTuple):
    """Weights of an interaction, out by in.

    Attributes:
        message: [F, H].
        update: [H, F].
        update_bias: [H] or None.
        out: [H, H].
        out_bias: [H] or None.
    """

    message: Tensor
    update: Tensor
    update_bias: Tensor | None
    out: Tensor
    out_bias: Tensor | None


class Readout(NamedTuple):
    """Weights of the two layers that give an atom's value: [M, H], [M], [1, M] and [1]."""

    first: Tensor
    first_bias: Tensor | None
    second: Tensor
    second_bias: Tensor | None


class Learned(NamedTuple):
    """Gradients in what the values depend on; of biases None where there are none.

    Attributes:
        h: [N, H].
        layers: of each.
        readout: of it.
        filters: [P, F] of each layer.
        slopes: [P, F] of each layer.
    """

    h: Tensor
    layers: list[Layer]
    readout: Readout
    filters: list[Tensor]
    slopes: list[Tensor]


class _Kept(NamedTuple):
    """Arrays of one layer: what it was given, and what it made on both ways."""

    h: Any
    messages: Any
    sums: Any
    inner: Any
    # Gradients in the result, before the activation, in the sums and in the messages.
    grad: Any
    before: Any
    to_sums: Any
    sent: Any


class _Tangents(NamedTuple):
    """How the values of a layer change: sums, before and after the activation, result, messages."""

    sums: Any
    before: Any
    active: Any
    result: Any
    sent: Any


class Potential:
    """The values of the atoms on a batch, and how they change with distances.

    Attributes:
        atomic: [N], the values.
        by_distance: [P], derivatives of Σ seeds · values in the distances of the pairs.
    """

    def __init__(
        self,
        h: Tensor,
        layers: Sequence[Layer],
        readout: Readout,
        filters: Sequence[Tensor],
        slopes: Sequence[Tensor],
        seeds: Tensor,
        pairs: EdgePairs,
        *,
        mean: bool,
    ) -> None:
        """Compute both. Tensors are such as `is_fusable` allows.

        Args:
            h: [N, H], features of the atoms before the first layer.
            layers: at least one.
            readout: after the last.
            filters: of each layer [P, F].
            slopes: their derivatives in the distance.
            seeds: [N].
            pairs: the edges.
            mean: of the messages that reach a node, instead of their sum.
        """
        _check(h, layers, readout, filters, slopes, seeds, pairs)
        (nodes, width), count = h.shape, layers[0].message.shape[0]
        hidden = readout.first.shape[0]
        self._pairs, self._mean = pairs, mean
        self._layers = [Layer(*map(array_of, layer)) for layer in layers]
        self._readout = Readout(*map(array_of, readout))
        self._filters, self._slopes = (list(map(array_of, part)) for part in (filters, slopes))
        self._seeds = array_of(seeds)
        self._address, self._chunk = gemm_address(h.dtype), chunk_of(nodes)
        self._chunks = -(-nodes // self._chunk)
        self._dtype, start = h.dtype, array_of(h)
        self._dense = nodes * width * max(width, count)
        rows, columns, offsets, order, offsets_t, order_t, *ends, of_edge = pairs.arrays
        self._into = (of_edge, columns, offsets, order)
        self._out_of = (of_edge, rows, offsets_t, order_t)
        self._ends = (*ends, rows, columns)
        self._work = len(rows) * count

        self._kept: list[_Kept] = []
        self._last = self._through_layers(start)
        atomic = torch.empty(nodes, 1, dtype=h.dtype)
        self._active, self._back = (self._empty(nodes, hidden) for _ in range(2))
        self._back_through_layers(atomic.numpy())
        self.atomic = atomic[:, 0]
        self.by_distance = torch.empty(pairs.count, dtype=h.dtype)
        used = tuple(
            (slope, kept.to_sums, kept.messages)
            for slope, kept in zip(self._slopes, self._kept, strict=True)
        )
        arguments = (used, self._ends, self.by_distance.numpy())
        distance_rows.share(arguments, pairs.count, 2 * len(layers) * self._work)

    def _through_layers(self, h: Any) -> Any:
        """Features of the atoms after the last layer, [N, H]; what the layers make is kept."""
        nodes, (count, width) = len(h), self._layers[0].message.shape
        messages = self._empty(nodes, count)
        first = (self._address, h, self._layers[0].message, self._chunk, messages)
        message_chunks.share(first, self._chunks, self._dense)
        for k, (layer, weight) in enumerate(zip(self._layers, self._filters, strict=True)):
            made: Any = tuple(self._empty(nodes, size) for size in (count, width, width))
            last = k + 1 == len(self._layers)
            sent = None if last else self._empty(nodes, count)
            after = None if last else self._layers[k + 1].message
            given = ((h, messages), weight, self._into, (*layer[1:], self._mean), after)
            self._share(layer_chunks, *given, self._chunk, (*made, sent))
            sums, inner, result = made
            grad, before, to_sums = (self._empty(nodes, size) for size in (width, width, count))
            to_messages = self._empty(nodes, count) if k else None
            ways = (grad, before, to_sums, to_messages)
            self._kept.append(_Kept._make((h, messages, sums, inner, *ways)))
            h, messages = result, sent
        return h

    def _back_through_layers(self, atomic: Any) -> None:
        """The values of the atoms, and the gradients in the sums of all layers."""
        top, depth, offsets = self._kept[-1], len(self._layers), self._into[2]
        self._share(
            top_chunks,
            self._last,
            tuple(self._readout),
            self._seeds,
            self._dense_part(depth - 1),
            offsets,
            self._chunk,
            (atomic, self._active, self._back, top.grad),
            (top.before, top.to_sums),
            edges=False,
        )
        for k in range(depth - 1, 0, -1):
            kept, below = self._kept[k], self._kept[k - 1]
            self._share(
                back_chunks,
                (kept.grad, kept.to_sums),
                self._filters[k],
                self._out_of,
                self._layers[k].message,
                self._dense_part(k - 1),
                offsets,
                self._chunk,
                (kept.sent, below.grad),
                (below.before, below.to_sums),
            )

    def learned(self, push: Tensor, to_atoms: Tensor) -> Learned:
        """Gradients of Σ to_atoms · values, and of the change of Σ seeds · values.

        Args:
            push: [P], how the distances change; nothing learns from it.
            to_atoms: [N].
        """
        nodes = len(self._seeds)
        right = push.shape == (self._pairs.count,) and to_atoms.shape == (nodes,)
        require(right, "push [P] and gradients [N] needed", push, to_atoms)
        moves, seeds = array_of(push), array_of(to_atoms)
        tangents = self._tangents(moves)
        count, width = self._layers[0].message.shape
        hidden, depth = len(self._readout.first), len(self._layers)
        biased = self._layers[0].out_bias is not None
        offsets = self._into[2]
        of_layers = [
            (
                self._by_chunk(count, width),
                self._by_chunk(width, count),
                self._by_chunk(width, width),
                self._empty(2, self._chunks, width) if biased else None,
            )
            for _ in self._layers
        ]
        changes = [self._empty(nodes, count) for _ in self._layers]
        change = self._empty(nodes, width)
        of_one, of_two = self._by_chunk(hidden, width), self._by_chunk(1, hidden)
        of_bias = (
            self._empty(self._chunks, hidden) if self._readout.first_bias is not None else None
        )
        top = self._kept[-1]
        self._share(
            top_changes,
            (self._last, tangents[-1].result),
            (self._readout.first, self._readout.second),
            (self._seeds, seeds),
            (self._active, self._back, top.grad),
            self._dense_part(depth - 1)[:3],
            offsets,
            self._values(depth - 1, tangents),
            self._chunk,
            (change, of_one, of_two),
            (changes[-1], *of_layers[-1][1:3]),
            of_bias,
            of_layers[-1][3],
            edges=False,
        )
        for k in range(depth - 1, -1, -1):
            kept, result = self._kept[k], self._empty(nodes, width)
            moved = (kept.to_sums, self._slopes[k], moves)
            # Below the first layer there is nothing more: its loop stops at the messages.
            under = max(k - 1, 0)
            self._share(
                back_changes,
                (change, changes[k]),
                self._filters[k],
                moved,
                self._out_of,
                self._layers[k].message,
                kept.h,
                tangents[under].result if k else None,
                (kept.sent, self._kept[under].grad) if k else (kept.h, kept.h),
                self._dense_part(under)[:3],
                offsets,
                self._values(under, tangents),
                self._chunk,
                (result, of_layers[k][0]),
                (changes[under], *of_layers[under][1:3]),
                of_layers[under][3],
            )
            change = result
        of_pairs = []
        for k, kept in enumerate(self._kept):
            made = tuple(self._empty(self._pairs.count, count) for _ in range(2))
            sent = tangents[k - 1].sent if k else None
            given = ((kept.to_sums, changes[k], kept.messages), sent, moves, self._ends, made)
            filter_rows.share(given, self._pairs.count, 3 * self._work)
            of_pairs.append([torch.from_numpy(part) for part in made])
        filters, slopes = map(list, zip(*of_pairs, strict=True))
        readout = Readout(
            _summed(of_one),
            None if of_bias is None else _summed(of_bias),
            _summed(of_two),
            None if of_bias is None else to_atoms.sum().reshape(1),
        )
        layers = [_layer_of(*parts) for parts in of_layers]
        return Learned(torch.from_numpy(change), layers, readout, filters, slopes)

    def _tangents(self, moves: Any) -> list[_Tangents]:
        """How each layer's values change where distances change by `moves` [P]."""
        nodes, (count, width) = len(self._seeds), self._layers[0].message.shape
        found: list[_Tangents] = []
        h = messages = None
        for k, (layer, kept) in enumerate(zip(self._layers, self._kept, strict=True)):
            made: Any = tuple(self._empty(nodes, size) for size in (count, width, width, width))
            last = k + 1 == len(self._layers)
            after = None if last else self._layers[k + 1].message
            sent = None if last else self._empty(nodes, count)
            moved = (kept.messages, self._slopes[k], moves)
            self._share(
                tangent_chunks,
                *(h, messages, moved, kept.inner),
                self._filters[k],
                self._into,
                (layer.update, layer.out, self._mean),
                after,
                self._chunk,
                (*made, sent),
            )
            found.append(_Tangents._make((*made, sent)))
            h, messages = made[3], sent
        return found

    def _values(self, k: int, tangents: Sequence[_Tangents]) -> tuple[Any, ...]:
        """What `_receive_change` reads of a layer."""
        kept, moved = self._kept[k], tangents[k]
        return kept.inner, moved.active, moved.before, kept.before, kept.sums, moved.sums

    def _dense_part(self, k: int) -> tuple[Any, ...]:
        layer = self._layers[k]
        return layer.update, layer.out, self._mean, self._kept[k].inner

    def _share(self, loop: Any, *arguments: Any, edges: bool = True) -> None:
        work = 4 * self._dense + (self._work if edges else 0)
        loop.share((self._address, *arguments), self._chunks, work)

    def _empty(self, *shape: int) -> Any:
        # As tensors: they come from memory that is kept from step to step.
        return torch.empty(shape, dtype=self._dtype).numpy()

    def _by_chunk(self, *shape: int) -> Any:
        return self._empty(self._chunks, *shape)


def _summed(parts: Any) -> Tensor:
    return torch.from_numpy(parts).sum(0)


def _layer_of(message: Any, update: Any, out: Any, biases: Any) -> Layer:
    of_update, of_out = (None, None) if biases is None else map(_summed, biases)
    return Layer(_summed(message), _summed(update), of_update, _summed(out), of_out)


def _check(
    h: Tensor,
    layers: Sequence[Layer],
    readout: Readout,
    filters: Sequence[Tensor],
    slopes: Sequence[Tensor],
    seeds: Tensor,
    pairs: EdgePairs,
) -> None:
    """Refuse what the loops would read or write outside of."""
    require(h.ndim == 2 and len(layers) > 0, "h [N, H] and a layer needed", h)
    (nodes, width), count = h.shape, layers[0].message.shape[0]
    hidden = readout.first.shape[0]
    right = nodes == pairs.nodes and seeds.shape == (nodes,)
    require(right, "a row for each node needed", h, seeds)
    rows = [(pairs.count, count)] * len(layers)
    right = [t.shape for t in filters] == rows and [t.shape for t in slopes] == rows
    require(right, "filters and slopes [P, F] of each layer needed", *filters, *slopes)
    biased = layers[0].out_bias is not None
    for layer in layers:
        wanted: list[Any] = [(count, width), (width, count), None, (width, width), None]
        if biased:
            wanted[2] = wanted[4] = (width,)
        _fit(layer, wanted)
    has_bias = readout.first_bias is not None
    _fit(
        readout,
        [
            (hidden, width),
            (hidden,) if has_bias else None,
            (1, hidden),
            *[(1,) if has_bias else None],
        ],
    )


def _fit(given: Sequence[Tensor | None], wanted: Sequence[Any]) -> None:
    right = [None if t is None else tuple(t.shape) for t in given] == list(wanted)
    require(right, f"weights {wanted} needed", *given)
