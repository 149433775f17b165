"""Which weights a method makes sparse, and how many each layer keeps: one description for all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, TypedDict

import torch.distributed as dist
from rich.console import Console
from torch import nn
from typing_extensions import Unpack

from weft.sparsify.masks import Masks
from weft.sparsify.matrices import matching
from weft.sparsify.structure import Structure

Shapes = Mapping[str, Sequence[int]]
Densities = Literal["uniform", "erk"]


class Choice(TypedDict, total=False):
    """Which weights a method masks: all but `quiet` are arguments of `Masks`.

    Attributes:
        quiet: do not print which weights were chosen and which are left dense.
    """

    include: Sequence[str] | None
    exclude: Sequence[str]
    example: Any
    structure: str | Structure
    quiet: bool


class LayerChoice(Choice, total=False):
    """Which weights a method masks, and how sparse single layers become.

    Attributes:
        overrides: sparsities of single layers, by name or pattern; `sparsity` is that of the
            others.
        keep_one: keep one weight of a layer that would have none, rather than refuse.
    """

    overrides: Mapping[str, float] | None
    keep_one: bool


def choose_weights(
    model: nn.Module,
    *,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    example: Any = None,
    structure: str | Structure = "weights",
    quiet: bool = False,
    required: bool = True,
) -> Masks:
    """Masks of the weights of a `Choice`; arguments and errors are those of `Masks`.

    Unless `quiet`, rank 0 prints on stderr which weights are masked and which are left dense.
    """
    masks = Masks(
        model,
        include=include,
        exclude=exclude,
        example=example,
        required=required,
        structure=structure,
    )
    first = not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0
    if first and not quiet and masks.names:
        # Names may hold brackets, which are no markup.
        text = str(masks.selection)
        Console(stderr=True).print(text, highlight=False, markup=False, soft_wrap=True)
    return masks


def choose_target(
    model: nn.Module,
    sparsity: float,
    densities: Densities = "uniform",
    *,
    overrides: Mapping[str, float] | None = None,
    keep_one: bool = False,
    required: bool = True,
    **choice: Unpack[Choice],
) -> tuple[Masks, dict[str, float], dict[str, int]]:
    """The weights of a `LayerChoice` and how many of them each layer keeps.

    Args:
        model: any module.
        sparsity: share of the weights that is not kept, of all layers together.
        densities: how the weights that are kept are spread over the layers; evenly where the
            structure has a density of its own (N:M).
        overrides: see `LayerChoice`.
        keep_one: see `LayerChoice`.
        required: refuse a model with nothing to mask.
        **choice: see `Choice`.

    Returns:
        Masks of the chosen weights, all active and not attached; of each layer, by name, the share
        of its groups of weights that it keeps; and their number, in each pool of them.

    Raises:
        ValueError: a setting is out of its range, a layer would be empty, or a name or pattern
            matches nothing.
    """
    masks = choose_weights(model, required=required, **choice)
    shares = layer_shares(masks, densities, *_kept_shares(sparsity, overrides))
    return masks, shares, kept_groups(masks, shares, keep_one=keep_one)


def layer_shares(
    masks: Masks,
    densities: Densities,
    density: float,
    overrides: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """The share of its groups of weights that each layer keeps; see `choose_target`.

    Raises:
        ValueError: the structure of the masks does not have such a density.
    """
    known = {"uniform": uniform, "erk": erk}
    if densities not in known:
        raise ValueError(f"densities {densities!r} is not one of {', '.join(known)}")
    rule = uniform if masks.structure.density is not None else known[densities]
    shares = rule(masks.shapes, density, overrides)
    check_density(masks.structure, shares)
    return shares


def check_density(structure: Structure, densities: Mapping[str, float]) -> None:
    """Raise ValueError for a density that the structure does not have; the name of all is empty."""
    fixed = structure.density
    for name, value in densities.items():
        if fixed is not None and value != 1 and not math.isclose(value, fixed, rel_tol=0.01):
            raise ValueError(
                f"the sparsity{f' of {name}' if name else ''} is {1 - value:g}, and structure "
                f"{structure} has a sparsity of {1 - fixed:g}: give that one"
            )


def nnz_of(density: float, size: int) -> int:
    """Weights that a layer of `size` keeps at a density from 0 to 1."""
    return round(density * size)


def uniform(
    shapes: Shapes, density: float, overrides: Mapping[str, float] | None = None
) -> dict[str, float]:
    """The same density for every layer.

    Args:
        shapes: of the layers' weights, by name.
        density: share of weights to keep, of the layers without an override.
        overrides: densities by name or pattern; an exact name takes precedence over a pattern, an
            earlier pattern over a later one.

    Raises:
        ValueError: a density is not from 0 to 1, or an override matches nothing.
    """
    fixed = _fixed(shapes, density, overrides)
    return {name: fixed.get(name, float(density)) for name in shapes}


def erk(
    shapes: Shapes, density: float, overrides: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Erdős-Rényi-kernel densities (Evci et al. 2020): ε · (sum of dimensions) / (their product).

    Narrow layers keep a larger share. Layers whose density would be above 1 are dense, and ε is
    solved again for the others, so that `density` is that of all layers together. Arguments and
    errors are those of `uniform`.
    """
    fixed = _fixed(shapes, density, overrides)
    sizes = {name: math.prod(shape) for name, shape in shapes.items() if name not in fixed}
    raw = {name: sum(shapes[name]) / sizes[name] for name in sizes}
    wanted, dense = density * sum(sizes.values()), set[str]()
    while True:
        free = [name for name in sizes if name not in dense]
        left = wanted - sum(sizes[name] for name in dense)
        epsilon = left / sum(raw[name] * sizes[name] for name in free) if free else 0.0
        full = {name for name in free if epsilon * raw[name] > 1}
        if not full:
            break
        dense |= full
    found = {name: 1.0 if name in dense else epsilon * raw[name] for name in sizes}
    return {name: fixed[name] if name in fixed else found[name] for name in shapes}


def _kept_shares(
    sparsity: float, overrides: Mapping[str, float] | None
) -> tuple[float, dict[str, float]]:
    """The densities that belong to sparsities."""
    overrides = overrides or {}
    check_shares("sparsity", {"": sparsity, **overrides}, "from 0 (dense) to below 1")
    return 1 - sparsity, {name: 1 - value for name, value in overrides.items()}


def check_shares(what: str, shares: Mapping[str, float], allowed: str = "from 0 to 1") -> None:
    """Raise ValueError for a share that is not from 0 to 1; the name of that of all is empty."""
    for name, value in shares.items():
        if not 0 <= value <= 1:
            whose = f"the {what} of {name}" if name else what
            raise ValueError(f"{whose} is {value}; it must be {allowed}")


class EmptyLayer(ValueError):
    """A layer would keep no weight.

    Attributes:
        what: the message without the remedy, which differs on a command line.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what


def layer_nnz(
    shapes: Shapes, densities: Mapping[str, float], *, keep_one: bool = False
) -> dict[str, int]:
    """Weights that each layer keeps.

    Args:
        shapes: of the layers' weights, by name.
        densities: shares to keep, by name.
        keep_one: keep one weight of a layer that would have none.

    Raises:
        ValueError: a layer would keep none and `keep_one` is false.
    """
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    return _kept(sizes, densities, "weights", keep_one)


def kept_groups(
    masks: Masks, densities: Mapping[str, float], *, keep_one: bool = False
) -> dict[str, int]:
    """Groups of weights that each pool of a layer keeps; see `layer_nnz`."""
    sizes = {name: masks.groups(name).count for name in masks}
    return _kept(sizes, densities, masks.structure.noun, keep_one)


def _kept(
    sizes: Mapping[str, int], densities: Mapping[str, float], noun: str, keep_one: bool
) -> dict[str, int]:
    counts = {}
    for name, size in sizes.items():
        count = nnz_of(densities[name], size)
        if count == 0 and not keep_one:
            raise EmptyLayer(
                f"sparsity {1 - densities[name]:.6g} leaves none of the {size:,} {noun} of {name}:"
                " the network would be cut there",
                "lower it (overrides), or keep one with keep_one=True",
            )
        counts[name] = max(count, 1)
    return counts


def _fixed(
    shapes: Shapes, density: float, overrides: Mapping[str, float] | None
) -> dict[str, float]:
    """Densities of the layers that have an override, by name."""
    overrides = overrides or {}
    matching(list(overrides), list(shapes), "override")
    check_shares("density", {"": density, **overrides})
    fixed = {}
    for name in shapes:
        patterns = [pattern for pattern in overrides if fnmatchcase(name, pattern)]
        if name in overrides or patterns:
            fixed[name] = float(overrides[name if name in overrides else patterns[0]])
    return fixed
