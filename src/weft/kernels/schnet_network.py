"""All of SchNet as one operator, from atomic numbers and positions to the values of the graphs.

On a batch of a few molecules the calls of operators, and the tensors that they hand on, take longer
than what is computed. The loops are those of the operators that it stands for: `filter_networks`,
`schnet_interaction` and `schnet_readout`; arrays pass between them, and autograd has one
node for all. N nodes, P pairs of edges, G graphs, H features, F filters, L interactions, K centres.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.checked_indices import check_segments
from weft.kernels import schnet_interaction, schnet_readout
from weft.kernels.chebyshev import bin_width
from weft.kernels.custom_op import array_of, differentiable_gradients, require
from weft.kernels.edge_pairs import EdgePairs, sort_pairs
from weft.kernels.filter_networks import FilterNetworks
from weft.kernels.schnet_interaction import chunk_of
from weft.runtime import POOL, gemm_address, threads_for


class Settings(NamedTuple):
    """Settings of the network; see SchNetConfig.

    Attributes:
        spacing: between the Gaussians' centres, Å.
        sharpness: of the Gaussians, 1 / Å².
        cutoff: where filters end, Å; 0 without.
        activate: softplus after the filters' second layer too.
        mean: over neighbours, not their sum.
        pool_mean: over the atoms of a graph, not their sum.
    """

    spacing: float
    sharpness: float
    cutoff: float
    activate: bool
    mean: bool
    pool_mean: bool


class Layers(NamedTuple):
    """Weights, out by in: of each interaction, then of the readout's two layers.

    Attributes:
        basis: [F, K] each.
        filter: [F, F] each.
        message: [F, H] each.
        update: [H, F] each.
        out: [H, H] each.
        readout: [M, H] and [1, M].
    """

    basis: tuple[Any, ...]
    filter: tuple[Any, ...]
    message: tuple[Any, ...]
    update: tuple[Any, ...]
    out: tuple[Any, ...]
    readout: tuple[Any, ...]


class Biases(NamedTuple):
    """Biases of the same layers; the message layers have none."""

    basis: tuple[Any, ...]
    filter: tuple[Any, ...]
    update: tuple[Any, ...]
    out: tuple[Any, ...]
    readout: tuple[Any, ...]


class Atoms(NamedTuple):
    """The atoms of a batch.

    Attributes:
        z: int [N], atomic numbers.
        pos: [N, 3], Å.
        shift: [E, 3], Å, of the images, or None.
        offsets: int [G + 1]; nodes offsets[g]:offsets[g + 1] are graph g's.
    """

    z: Tensor
    pos: Tensor
    shift: Tensor | None
    offsets: Tensor


class Fixed(NamedTuple):
    """The inputs of a network other than its weights.

    Attributes:
        atoms: of the batch.
        edges: of the batch, in its own order of pairs.
        rows: int [119], the row of each element in the embedding; -1 without.
        settings: of the network.
        plain: computes the same of the weights, to be differentiated twice.
    """

    atoms: Atoms
    edges: EdgePairs
    rows: Tensor
    settings: Settings
    plain: Callable[..., Tensor]


def network(embedding: Tensor, layers: Layers, biases: Biases | None, fixed: Fixed) -> Tensor:
    """Values [G] of the graphs; those of padding graphs are meaningless.

    Weights are such as `is_fusable` allows, and the positions need no gradient.

    Raises:
        ValueError: shapes or indices do not fit.
        IndexError: an atom is of an element without a row.
    """
    _check(embedding, layers, biases, fixed)
    weights = (embedding, *chain(*layers), *(() if biases is None else chain(*biases)))
    result: Tensor = _Network.apply(fixed, layers, biases, *weights)  # type: ignore[no-untyped-call]
    return result


def _check(embedding: Tensor, layers: Layers, biases: Biases | None, fixed: Fixed) -> None:
    """Refuse what the loops would read or write outside of."""
    atoms, edges = fixed.atoms, fixed.edges
    features, (filters, centres) = embedding.shape[-1], layers.basis[0].shape
    hidden, networks = layers.readout[0].shape[0], len(layers.basis)
    wanted: list[tuple[int, ...]] = [
        *((filters, centres),) * networks,
        *((filters, filters),) * networks,
        *((filters, features),) * networks,
        *((features, filters),) * networks,
        *((features, features),) * networks,
        *((hidden, features), (1, hidden)),
    ]
    given = [*chain(*layers)]
    if biases is not None:
        wanted += [*((filters,),) * (2 * networks), *((features,),) * (2 * networks)]
        wanted += [(hidden,), (1,)]
        given += chain(*biases)
    right = embedding.ndim == 2 and [tuple(t.shape) for t in given] == wanted
    require(right, "weights of one SchNet needed", embedding, *given)
    nodes = atoms.z.shape[0]
    right = atoms.z.ndim == 1 and atoms.pos.shape == (nodes, 3)
    right = right and edges.nodes == nodes
    right = right and (atoms.shift is None or atoms.shift.shape == (len(edges.tensors[0]), 3))
    require(right, "z [N], positions [N, 3] and shifts [E, 3] needed", atoms.z, atoms.pos)
    check_segments(nodes, atoms.offsets, None, None)


class _Network(torch.autograd.Function):
    # One function with ctx: torch would inspect the signature of a separate forward at each call.
    @staticmethod
    def forward(ctx: Any, fixed: Fixed, layers: Layers, biases: Any, *weights: Tensor) -> Tensor:
        evaluation = _Evaluation(fixed, layers, biases, weights[0])
        ctx.given = fixed, evaluation
        ctx.save_for_backward(*weights)
        return evaluation.values

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        fixed, evaluation = ctx.given
        # Read even where it is not needed: torch refuses weights that were changed meanwhile.
        weights: Sequence[Tensor] = ctx.saved_tensors
        if torch.is_grad_enabled():
            found = differentiable_gradients(ctx, fixed.plain, weights, grads, first=3)
            return None, None, None, *found
        return None, None, None, *evaluation.gradients(grads[0])


class _Evaluation:
    """A network on a batch, with what its gradients need.

    Attributes:
        values: [G].
    """

    def __init__(
        self, fixed: Fixed, layers: Layers, biases: Biases | None, embedding: Tensor
    ) -> None:
        self._fixed, self._layers, self._biases = fixed, layers, biases
        self._elements, dtype = embedding.shape[0], embedding.dtype
        self._address = gemm_address(dtype)
        atoms, settings = fixed.atoms, fixed.settings
        rows = array_of(fixed.rows)[array_of(atoms.z)]
        if rows.min() < 0 or rows.max() >= self._elements:
            raise IndexError("an atom is of an element for which the embedding has no row")
        self._rows = rows
        d, self._topology = self._by_distance()
        self._fade = None
        distances = torch.from_numpy(d).to(dtype)
        self._filters = FilterNetworks(
            distances,
            layers.basis,
            () if biases is None else biases.basis,
            layers.filter,
            () if biases is None else biases.filter,
            spacing=settings.spacing,
            sharpness=settings.sharpness,
            activate=settings.activate,
        )
        filters = self._filters.filters
        if settings.cutoff > 0:
            # As `atomistic.envelope`.
            wave = torch.cos(distances * (math.pi / settings.cutoff))
            self._fade = fade = (0.5 * (wave + 1) * (distances < settings.cutoff))[:, None]
            filters = [part * fade for part in filters]
        self._weights = [array_of(part) for part in filters]
        h = array_of(embedding)[rows]
        (count, features), filter_width = h.shape, layers.filter[0].shape[0]
        self._threads = threads_for(h.size * features)
        self._chunk = chunk_of(count)
        self._saved = []
        for k, weight in enumerate(self._weights):
            messages, sums = (np.empty((count, filter_width), h.dtype) for _ in range(2))
            inner, result = (np.empty((count, features), h.dtype) for _ in range(2))
            ends = (
                *(
                    array_of(layers.update[k]),
                    None if biases is None else array_of(biases.update[k]),
                ),
                *(array_of(layers.out[k]), None if biases is None else array_of(biases.out[k])),
            )
            given: Any = (
                *(POOL, self._threads, self._address, h, weight, self._topology, settings.mean),
                *(array_of(layers.message[k]), ends, self._chunk),
                *(messages, (sums, inner, result)),
            )
            schnet_interaction._forward_loop(*given)
            self._saved.append((h, (messages, sums, inner)))
            h = result
        first, second = layers.readout
        self._last, self._inner = h, np.empty((count, first.shape[0]), h.dtype)
        first_bias, second_bias = (None, None) if biases is None else biases.readout
        readout = tuple(map(array_of, (first, first_bias, second, second_bias)))
        self.values = torch.empty(atoms.offsets.shape[0] - 1, dtype=dtype)
        found: Any = (
            *(POOL, threads_for(h.size * first.shape[0]), self._address, h, readout),
            *(array_of(atoms.offsets), settings.pool_mean, self._chunk),
            *(self._inner, self.values.numpy()),
        )
        schnet_readout._forward_loop(*found)

    def _by_distance(self) -> tuple[Any, tuple[Any, ...]]:
        """Distances [P] of the pairs, nearest first in steps of a bin, and the edges so paired."""
        _, pos, shift, _ = self._fixed.atoms
        *matrix, forward, backward, of_edge = self._fixed.edges.arrays
        made: Any = tuple(map(np.empty_like, (forward, backward, of_edge)))
        distances = np.empty(len(forward), array_of(pos).dtype)
        ends = (array_of(pos), array_of(shift), matrix[1], matrix[0])
        width = bin_width(self._fixed.settings.sharpness)
        given: Any = (*ends, (forward, backward, of_edge), width, (distances, *made))
        sort_pairs(*given)
        return distances, (*matrix, *made)

    def gradients(self, grad: Tensor) -> list[Tensor]:
        """Gradients of all weights, in the order of the layers, for grad [G] of the values."""
        layers, biases, settings = self._layers, self._biases, self._fixed.settings
        offsets, h = array_of(self._fixed.atoms.offsets), self._last
        dtype = self.values.dtype
        given = (layers.readout[0], None, layers.readout[1], None)
        if biases is not None:
            given = (layers.readout[0], biases.readout[0], layers.readout[1], biases.readout[1])
        now = np.empty_like(h)
        ends = [None if t is None else torch.empty(t.shape, dtype=dtype) for t in given]
        arguments: Any = (
            *(array_of(grad), h, array_of(given[0]), array_of(given[2]), offsets),
            *(settings.pool_mean, self._inner, self._chunk, now, *map(array_of, ends)),
        )
        threads = threads_for(h.size * layers.readout[0].shape[0])
        schnet_readout._backward_loop(POOL, threads, self._address, *arguments)
        found: list[tuple[Tensor, ...]] = []
        by_pair: list[Tensor] = []
        chunks = -(-len(h) // self._chunk)
        for k in range(len(self._saved) - 1, -1, -1):
            before, states = self._saved[k]
            weights = (layers.message[k], layers.update[k], layers.out[k])
            made = [torch.empty(weight.shape, dtype=dtype) for weight in weights]
            of_biases = None
            if biases is not None:
                of_biases = torch.empty(2, chunks, h.shape[1], dtype=dtype)
            of_filter = torch.empty(self._weights[k].shape, dtype=dtype)
            grad_h = np.empty_like(h)
            arguments = (
                *(now, before, self._weights[k], self._topology, settings.mean),
                *(*map(array_of, weights), states, self._chunk, None, grad_h),
                *map(array_of, (of_filter, *made, of_biases)),
            )
            schnet_interaction._backward_loop(POOL, self._threads, self._address, *arguments)
            found.append((*made, *(() if of_biases is None else of_biases.sum(1))))
            by_pair.append(of_filter if self._fade is None else of_filter.mul_(self._fade))
            now = grad_h
        embedding = torch.zeros(self._elements, h.shape[1], dtype=dtype)
        embedding.index_add_(0, torch.from_numpy(self._rows), torch.from_numpy(now))
        basis, basis_bias, second, second_bias = self._filters.gradients(by_pair[::-1])
        message, update, out, *rest = zip(*reversed(found), strict=True)
        first, first_bias, last, last_bias = ends
        of_layers = (basis, second, message, update, out, (first, last))
        every = [embedding, *chain(*of_layers)]
        if biases is not None:
            every += chain(basis_bias, second_bias, *rest, (first_bias, last_bias))
        return every
