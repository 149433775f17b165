"""FLOPs of training and inference with sparse weights: counted as a model runs, and by formulas.

FLOPs say what must be computed, not how long it takes: see `accelerate` for time.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import nn

from weft.sparsify.masks import Masks, check_same_model, table
from weft.sparsify.products import watch_products


@dataclass(frozen=True, kw_only=True)
class WeightFlops:
    """The products of one weight.

    Attributes:
        name: of the parameter.
        size: its weights.
        nnz: those that are active.
        dense: floating-point operations of its products if all of them were.
        sparse: those with active weights alone.
    """

    name: str
    size: int
    nnz: int
    dense: float
    sparse: float


@dataclass(frozen=True, kw_only=True, repr=False)
class FlopCount:
    """Floating-point operations of one pass forward; a multiply-add is two.

    Attributes:
        weights: of each weight that was multiplied, in the order of the model's parameters.
        other: of products without weights: sums over edges (two for each number of a message),
            attention.
    """

    weights: tuple[WeightFlops, ...]
    other: float

    @property
    def dense(self) -> float:
        """Of the model without masks."""
        return sum(each.dense for each in self.weights) + self.other

    @property
    def sparse(self) -> float:
        """Of the model with masks."""
        return sum(each.sparse for each in self.weights) + self.other

    def __repr__(self) -> str:
        rows = [
            (w.name, *(f"{count:,.0f}" for count in (w.size, w.nnz, w.dense, w.sparse)))
            for w in self.weights
        ]
        rows.append(("(other)", "", "", f"{self.other:,.0f}", f"{self.other:,.0f}"))
        heads = ("weight", "size", "active", "FLOPs dense", "FLOPs sparse")
        share = self.sparse / self.dense if self.dense else 1.0
        return (
            f"FlopCount: {self.sparse:,.0f} of {self.dense:,.0f} FLOPs a pass ({share:.4f})\n"
            f"{table(heads, rows)}"
        )


def count_flops(
    model: nn.Module,
    masks: Masks | None,
    *inputs: Any,
    training: bool = False,
    **named: Any,
) -> FlopCount:
    """Floating-point operations of the model's pass forward on an example.

    The model runs once, in evaluation mode and without being changed; each product with a
    parameter is counted: linear and recurrent layers, convolutions, matrix products of any
    module, weft's own operators, `SparseLinear`. A weight of r rows of input is r · nnz
    multiply-adds. Elementwise operations are not counted.

    Args:
        model: any module.
        masks: of the model; with None, and in what is not masked, all weights are active.
        *inputs: what the model is called with.
        training: with gradients, as some layers multiply in another order then; only the pass
            forward is counted all the same.
        **named: what it is called with, by name.

    Warns:
        UserWarning: a masked weight was used in no product that is known.
    """
    if masks is not None:
        check_same_model(model, masks)
    nnz = {name: masks.nnz(name) for name in masks} if masks is not None else {}
    counter = watch_products(model, inputs, named, nnz=nnz, training=training)
    unseen = [name for name in nnz if name not in counter.dense]
    if unseen:
        warnings.warn(
            f"no product with {', '.join(unseen)} was seen: the example does not use it, or an "
            "operator does that is not known here; its FLOPs are not counted",
            UserWarning,
            stacklevel=2,
        )
    weights = tuple(
        WeightFlops(
            name=name,
            size=counter.sizes[name],
            nnz=counter.nnz[name],
            dense=counter.dense[name],
            sparse=counter.sparse[name],
        )
        for name in counter.sizes
        if name in counter.dense
    )
    return FlopCount(weights=weights, other=counter.other)


def inference_flops(model: nn.Module, masks: Masks | None, *inputs: Any, **named: Any) -> float:
    """FLOPs of a model on an example, with active weights alone; arguments as in `count_flops`."""
    return count_flops(model, masks, *inputs, **named).sparse


def training_flops(
    model: nn.Module,
    masks: Masks | None,
    *inputs: Any,
    dense_gradient_every: int | None = None,
    **named: Any,
) -> float:
    """FLOPs of a training step on an example: three times those of the pass forward.

    `dense_gradient_every` is ΔT where one step in ΔT + 1 needs the gradient of all weights, as with
    RigL: the result is then the mean over all steps. Other arguments are those of `count_flops`.
    """
    count = count_flops(model, masks, *inputs, training=True, **named)
    if dense_gradient_every is None:
        return 3 * count.sparse
    return rigl_step_flops(count.sparse, count.dense, dense_gradient_every)


# -- The papers' formulas --------------------------------------------------------------------------


def rigl_step_flops(sparse: float, dense: float, every: int) -> float:
    """Mean FLOPs of RigL's steps, (3 f_S ΔT + 2 f_S + f_D) / (ΔT + 1) (Evci et al. 2020).

    Args:
        sparse: f_S, of a pass forward with active weights alone.
        dense: f_D, of a pass forward with all.
        every: ΔT.
    """
    if every < 1:
        raise ValueError(f"every is {every}; it must be at least 1")
    return (3 * sparse * every + 2 * sparse + dense) / (every + 1)


def first_layer_share(widths: Sequence[int]) -> float:
    """c₁, the first layer's share of the multiply-adds of a feed-forward network."""
    products = _products(widths)
    return products[0] / sum(products)


def input_share(widths: Sequence[int], input_sparsity: float) -> float:
    """φ = c₁ (1 - p_e) + (1 - c₁), what a sparse input leaves of a network's multiply-adds."""
    _check_share("input_sparsity", input_sparsity)
    first = first_layer_share(widths)
    return first * (1 - input_sparsity) + (1 - first)


def sparse_training_share(
    widths: Sequence[int], sparsity: float, *, input_sparsity: float = 0.0
) -> float:
    """FLOPs of sparse training over those of dense training, (1 - p) φ (Peng et al. 2022).

    Args:
        widths: of the layers of a feed-forward network, from input to output.
        sparsity: p, of the weights.
        input_sparsity: p_e, of the input.
    """
    _check_share("sparsity", sparsity)
    return (1 - sparsity) * input_share(widths, input_sparsity)


def slr_training_share(
    widths: Sequence[int],
    sparsity: float,
    *,
    phases: Sequence[int] = (20, 10, 10),
    input_sparsity: float = 0.0,
) -> float:
    """FLOPs of SLR over those of dense training, [T₁ + T₂ + T₃ (1 - p)] / (T₁ + T₂ + T₃) · φ.

    The phases T₁, T₂, T₃ are epochs of dense training, re-weighting and retraining; the other
    arguments are those of `sparse_training_share`.
    """
    _check_share("sparsity", sparsity)
    dense, reweight, retrain = phases
    if min(phases) < 0 or sum(phases) == 0:
        raise ValueError(f"phases is {tuple(phases)}; epochs must be 0 or more, not all of them 0")
    epochs = dense + reweight + retrain * (1 - sparsity)
    return epochs / sum(phases) * input_share(widths, input_sparsity)


def propagated_share(
    widths: Sequence[int], sparsity: float, *, input_sparsity: float = 0.0
) -> float:
    """Another estimate for sparse training: zeros that layers pass on (Peng et al. 2022, III-C).

    Weights and inputs are taken as zero at random. A layer with an input of sparsity q needs the
    share (1 - q)(1 - p) of its multiply-adds, and gives an output of sparsity
    (1 - (1 - q)(1 - p))^d where d is the width of its input. (The paper prints p_e in place of q
    for the second layer, against its own derivation.) Biases and activations are left out, so
    this is at most `sparse_training_share` of a dense input; it does not give Table II.
    """
    _check_share("sparsity", sparsity)
    _check_share("input_sparsity", input_sparsity)
    products, empty, total = _products(widths), input_sparsity, 0.0
    for width, product in zip(widths, products, strict=False):
        match = (1 - empty) * (1 - sparsity)
        total += product * match
        empty = (1 - match) ** width
    return total / sum(products)


@dataclass(frozen=True, kw_only=True)
class TableIIRow:
    """A row of Table II: training FLOPs over those of dense training.

    Attributes:
        dataset: its name.
        widths: of the network's layers.
        kept: share of the embeddings' values that are kept where they are sparse.
        slr_dense: SLR with dense embeddings.
        slr_sparse: SLR with sparse embeddings.
        training_dense: sparse training with dense embeddings.
        training_sparse: sparse training with sparse embeddings.
    """

    dataset: str
    widths: tuple[int, ...]
    kept: float
    slr_dense: float
    slr_sparse: float
    training_dense: float
    training_sparse: float


_LINKS, _NODES = (16, 128, 1), (64, 256, 128, 10)
_SETS = (
    ("ia-email", _LINKS, 0.0138),
    ("wiki-talk", _LINKS, 0.0328),
    ("stackoverflow", _LINKS, 0.262),
    ("brain", _NODES, 0.469),
)


def table_ii(
    sparsity: float = 29 / 32, phases: Sequence[int] = (20, 10, 10)
) -> tuple[TableIIRow, ...]:
    """Table II of Peng et al. 2022, "Towards Sparsification of Graph Neural Networks"."""
    return tuple(
        TableIIRow(
            dataset=dataset,
            widths=widths,
            kept=kept,
            slr_dense=slr_training_share(widths, sparsity, phases=phases),
            slr_sparse=slr_training_share(widths, sparsity, phases=phases, input_sparsity=1 - kept),
            training_dense=sparse_training_share(widths, sparsity),
            training_sparse=sparse_training_share(widths, sparsity, input_sparsity=1 - kept),
        )
        for dataset, widths, kept in _SETS
    )


def _products(widths: Sequence[int]) -> list[int]:
    """Multiply-adds of each layer for one row."""
    if len(widths) < 2 or min(widths) < 1:
        raise ValueError(
            f"widths is {tuple(widths)}; a network has at least two widths, each at least 1"
        )
    return [wide * narrow for wide, narrow in pairwise(widths)]


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}; it must be from 0 to 1")
