"""What an epoch of a GCN, or a step of a typed gated network, computes and moves, pass by pass.

A pass reads its inputs from memory once and writes its outputs once. What a loop keeps in the cache
does not count; the rows that a sparse product gathers are read once for every edge. Numbers have
four bytes, a multiply-add is two operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from weft.kernels.hidden_layer import WORTH_BLOCKS
from weft.parallel.cost_model import product_bytes

_ITEM = 4
# Adam reads a parameter, its gradient and two moments, and writes all but the gradient.
_OPTIMIZER_NUMBERS = 7


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One loop over the nodes, edges or weights.

    Attributes:
        what: it computes.
        flops: operations of products; those of elementwise work are not counted.
        bytes: read and written.
        dense: the operations are those of dense matrix products.
    """

    what: str
    flops: int = 0
    bytes: int = 0
    dense: bool = False


@dataclass(frozen=True, kw_only=True)
class EpochCost:
    """All passes of an epoch or a step, and what they amount to on a machine."""

    passes: tuple[Pass, ...]

    @property
    def flops(self) -> int:
        """Operations of an epoch."""
        return sum(each.flops for each in self.passes)

    @property
    def bytes(self) -> int:
        """Bytes that an epoch reads and writes."""
        return sum(each.bytes for each in self.passes)

    def limit_seconds(self, flops: float, bandwidth: float) -> float:
        """Seconds of the passes one after another, each as fast as products or memory allow.

        Args:
            flops: operations of dense products a second; sparse ones are bound by memory.
            bandwidth: bytes a second.
        """
        return sum(
            max(each.flops / flops if each.dense else 0.0, each.bytes / bandwidth)
            for each in self.passes
        )

    def figures(self, seconds: float, flops: float, bandwidth: float) -> dict[str, float]:
        """What an epoch of so many seconds reaches of the machine's speeds, for a table."""
        limit = self.limit_seconds(flops, bandwidth)
        return {
            "flops": self.flops,
            "bytes": self.bytes,
            "gemm_share": self.flops / seconds / flops,
            "bandwidth_share": self.bytes / seconds / bandwidth,
            "limit_seconds": limit,
            "limit_share": limit / seconds,
        }


def gcn_epoch(
    nodes: int, entries: int, training: int, widths: Sequence[int], *, kept: bool
) -> EpochCost:
    """The cost of forward, backward and Adam of `weft.models.GCN` with dropout between layers.

    Args:
        nodes: N.
        entries: nonzeros of the adjacency, self-loops among them.
        training: nodes whose loss counts.
        widths: features, hidden layers and classes.
        kept: A x of the first layer is kept between epochs, and a wide enough hidden layer is then
            taken together with the product after it (see `weft.kernels.hidden_product`).
    """
    return EpochCost(passes=tuple(_passes(nodes, entries, training, tuple(widths), kept)))


def gated_step(nodes: int, rows: int, hidden: int, rounds: int) -> EpochCost:
    """The products of a training step of `weft.models.GatedGraph`, whose first states are given.

    Args:
        nodes: N.
        rows: R of `TypedEdges`, pairs of a type and a node whose row is multiplied.
        hidden: H.
        rounds: of messages.
    """
    passes: list[Pass] = []
    for number in range(rounds):
        for what, count, width in (
            ("typed products", rows, hidden),
            ("gates of the messages", nodes, 3 * hidden),
            ("gates of the states", nodes, 3 * hidden),
        ):
            # Forward, the gradient of the weights, and that of what is multiplied; nothing learns
            # from the gradient of the first states.
            first = number == 0 and what != "gates of the messages"
            for _ in range(2 if first else 3):
                passes.append(
                    Pass(
                        what=what,
                        flops=2 * count * hidden * width,
                        bytes=count * _ITEM * (hidden + width),
                        dense=True,
                    )
                )
    return EpochCost(passes=tuple(passes))


def _passes(
    nodes: int, entries: int, training: int, widths: tuple[int, ...], kept: bool
) -> Iterator[Pass]:
    column = nodes * _ITEM
    layers = list(pairwise(widths))
    # As weft.models.GCN and hidden_product choose.
    blocks = kept and len(layers) > 1 and widths[1] > widths[2]
    blocks = blocks and nodes * widths[1] >= WORTH_BLOCKS
    if blocks:
        yield from _hidden_layer(nodes, *widths[:3])
    for number, (width, out) in enumerate(layers):
        learns = number > 0
        if learns and not (blocks and number == 1):
            # Two tensors forward, three backward, where the output is its own mask.
            yield Pass(what="ReLU and dropout", bytes=(2 + 3) * column * width)
        if not (blocks and number < 2):
            yield from _dense(nodes, width, out, learns)
        if kept and not learns:
            products, narrow = 0, width
        elif width * (1 + learns) <= 2 * out:
            products, narrow = 1 + learns, width
        else:
            products, narrow = 2, out
            yield Pass(what="bias", bytes=2 * column * out)
        for _ in range(products):
            moved = product_bytes(nodes, entries, narrow, _ITEM)
            yield Pass(what="sparse product", flops=2 * entries * narrow, bytes=moved)
        if not (blocks and number == 0):
            yield Pass(what="gradient of the bias", bytes=column * out)
    # Probabilities of the training nodes and their classes, and a gradient for every node.
    yield Pass(what="loss", bytes=training * (_ITEM * widths[-1] + 8) + column * widths[-1])
    weights = sum((width + 1) * out for width, out in layers)
    yield Pass(what="Adam", bytes=_OPTIMIZER_NUMBERS * _ITEM * weights)


def _dense(nodes: int, width: int, out: int, learns: bool) -> Iterator[Pass]:
    """The product with the weights, their gradient, and that of the inputs where these learn."""
    names = ["product", "gradient of the weights", *(["gradient of the inputs"] if learns else [])]
    for name in names:
        moved = nodes * _ITEM * (width + out)
        yield Pass(what=name, flops=2 * nodes * width * out, bytes=moved, dense=True)


def _hidden_layer(nodes: int, width: int, hidden: int, out: int) -> Iterator[Pass]:
    """Two layers in blocks: hidden activations are written once and read once."""
    moved = nodes * _ITEM * (width + hidden + out)
    forward, backward = width + out, width + 2 * out
    for name, of_row in (("hidden layer", forward), ("gradients of the hidden layer", backward)):
        yield Pass(what=name, flops=2 * nodes * hidden * of_row, bytes=moved, dense=True)
