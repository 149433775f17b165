"""Masks chosen once, before training or after it: random, magnitude, SNIP, GraSP, SynFlow.

Each function sets the given masks in place, to the exact counts, and zeroes the weights that are
not kept. A `density` that is a number is the share of all weights to keep, ranked across layers; a
mapping (as `erk` and `uniform` return) holds the share of each layer, ranked within it.

Masks of a structure keep so many of its groups, of the largest mean scores; a number is then the
share of the groups of all layers, or, where the structure ranks within parts of a layer (a constant
fan-in, N:M), of each layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn

from weft.sparsify.densities import (
    EmptyLayer,
    check_density,
    check_shares,
    kept_groups,
    nnz_of,
)
from weft.sparsify.masks import Masks, best, check_same_model, random_order
from weft.sparsify.snapshots import in_evaluation

Density: TypeAlias = float | Mapping[str, float]


def random_masks(
    model: nn.Module, masks: Masks, density: Density, *, seed: int = 0, keep_one: bool = False
) -> None:
    """Keep random weights.

    Args:
        model: the masked model.
        masks: the masks to set.
        density: share of the weights to keep, of all or by layer.
        seed: the same seed gives the same masks, on any rank.
        keep_one: keep one weight of a layer that would have none, rather than refuse.

    Raises:
        ValueError: a density is not from 0 to 1, or a layer would be empty.
    """
    check_same_model(model, masks)
    sizes = {name: masks.groups(name).pools * masks.groups(name).count for name in masks}
    parts = torch.split(random_order(sum(sizes.values()), seed), list(sizes.values()))
    scores = {
        name: part.view(masks.groups(name).pools, -1).to(masks.weight(name).device)
        for name, part in zip(masks, parts, strict=True)
    }
    keep_groups(masks, scores, _checked(masks, density), keep_one=keep_one)


def magnitude_masks(
    model: nn.Module, masks: Masks, density: Density, *, keep_one: bool = False
) -> None:
    """Keep the largest |w|; arguments and errors are those of `random_masks`."""
    check_same_model(model, masks)
    scores = {name: masks.groups(name).magnitudes(masks.weight(name).detach()) for name in masks}
    keep_groups(masks, scores, _checked(masks, density), keep_one=keep_one)


def snip_masks(
    model: nn.Module,
    masks: Masks,
    density: Density,
    loss: Callable[[], Tensor],
    *,
    keep_one: bool = False,
) -> None:
    """Keep the largest |g · w| (SNIP, Lee et al. 2019), the weights that affect the loss most.

    `loss` computes the loss of the model, on one batch or more. The other arguments and the errors
    are those of `random_masks`.
    """
    check_same_model(model, masks)
    gradients = _gradients(masks, loss())
    scores = {name: (masks.weight(name) * gradients[name]).detach().abs() for name in masks}
    keep_top(masks, scores, density, keep_one=keep_one)


def grasp_masks(
    model: nn.Module,
    masks: Masks,
    density: Density,
    loss: Callable[[], Tensor],
    *,
    keep_one: bool = False,
) -> None:
    """Keep the largest w · (H g) (GraSP, Wang et al. 2020), the weights that gradients flow by.

    Removing w changes the squared norm of the gradient g by -2 w (H g) to first order, where H is
    the Hessian of the loss: the weights that are kept are those without which it would fall most.
    Arguments and errors are those of `snip_masks`; the loss must also have a second derivative.
    """
    check_same_model(model, masks)
    gradients = _gradients(masks, loss(), create_graph=True)
    # H g by one more backward pass: the gradient of (g held constant) · g.
    flow = torch.stack([(g.detach() * g).sum() for g in gradients.values()]).sum()
    try:
        products = _gradients(masks, flow)
    except RuntimeError as error:
        raise ValueError(
            f"the loss has no second derivative ({error}), which GraSP needs; choose another score"
        ) from error
    scores = {name: (masks.weight(name) * products[name]).detach() for name in masks}
    keep_top(masks, scores, density, keep_one=keep_one)


def synflow_masks(
    model: nn.Module,
    masks: Masks,
    density: Density,
    forward: Callable[[], Tensor],
    *,
    rounds: int = 100,
    keep_one: bool = False,
) -> None:
    """Keep the largest synaptic flow |w · dR/dw| (SynFlow, Tanaka et al. 2020); needs no data.

    R is the sum of the outputs with absolute weights and no biases: what flows into a layer then
    flows out of it, and no layer is emptied before the others. Weights are removed in `rounds`, the
    same proportion in each, and the flow is computed again in each. Meanwhile the model is in
    evaluation mode; afterwards everything but the masks is as it was, to the bit.

    `forward` calls the model on inputs that are all ones and returns its outputs. The other
    arguments and the errors are those of `random_masks`.
    """
    check_same_model(model, masks)
    if rounds < 1:
        raise ValueError(f"rounds is {rounds}; it must be at least 1")
    densities = _checked(masks, density)
    before = masks.state_dict()
    try:
        with _absolute(model):
            for name in masks:
                masks.set(name, torch.ones_like(masks[name]))
            for number in range(1, rounds + 1):
                flows = _synaptic_flow(masks, forward)
                now = {name: value ** (number / rounds) for name, value in densities.items()}
                scores = {name: masks.groups(name).scores(flow) for name, flow in flows.items()}
                keep_groups(masks, scores, now, keep_one=keep_one, active_only=True)
    except BaseException:
        masks.load_state_dict(before)
        raise
    masks.apply_()


def keep_top(
    masks: Masks,
    scores: Mapping[str, Tensor],
    density: Density,
    *,
    keep_one: bool = False,
    active_only: bool = False,
) -> None:
    """Keep the weights of the largest scores and zero the others.

    Args:
        masks: to set.
        scores: by name, in the weights' shapes; among equals the first index wins.
        density: share of the weights to keep, of all (ranked across layers) or by layer.
        keep_one: keep one weight of a layer that would have none, rather than refuse.
        active_only: a weight that is pruned stays pruned, even beside others of the same score.

    Raises:
        ValueError: a density is not from 0 to 1, or a layer would be empty.
    """
    means = {name: masks.groups(name).scores(scores[name]) for name in masks}
    keep_groups(masks, means, _checked(masks, density), keep_one=keep_one, active_only=active_only)


def keep_groups(
    masks: Masks,
    scores: Mapping[str, Tensor],
    densities: Mapping[str, float],
    *,
    keep_one: bool = False,
    active_only: bool = False,
) -> None:
    """Keep the groups of weights of the largest scores, [P, G] by name; see `keep_top`.

    `densities` are checked, and by layer, or one of all layers under the empty name.
    """
    if _ALL in densities and masks.structure.among is not None:
        densities = dict.fromkeys(masks, densities[_ALL])
    if active_only:
        scores = {name: scores[name].masked_fill(~masks.kept(name), -math.inf) for name in masks}
    if _ALL not in densities:
        for name, count in kept_groups(masks, densities, keep_one=keep_one).items():
            if active_only:
                count = min(count, int(masks.kept(name)[0].sum()))
            masks.set(name, masks.groups(name).mask(best(scores[name], count)))
        masks.apply_()
        return
    sizes = [scores[name].shape[1] for name in masks]
    every = torch.cat([scores[name].double() for name in masks], dim=1)
    count = nnz_of(densities[_ALL], sum(sizes))
    if keep_one:
        for part in torch.split(every, sizes, dim=1):
            part[best(part, 1)] = math.inf
        count = max(count, len(sizes))
    kept = torch.split(best(every, count), sizes, dim=1)
    for name, part in zip(masks, kept, strict=True):
        if not part.any():
            raise EmptyLayer(
                f"density {densities[_ALL]:.6g} of all layers leaves none of the "
                f"{part.shape[1]:,} {masks.structure.noun} of {name}: the network would be cut "
                "there",
                "raise it, give densities by layer, or keep one with keep_one=True",
            )
    for name, part in zip(masks, kept, strict=True):
        masks.set(name, masks.groups(name).mask(part))
    masks.apply_()


# The name under which `_checked` returns the density of all layers together.
_ALL = ""


def _checked(masks: Masks, density: Density) -> dict[str, float]:
    densities = dict(density) if isinstance(density, Mapping) else {_ALL: float(density)}
    check_shares("density", densities, "above 0 and at most 1")
    if _ALL not in densities and set(densities) != set(masks):
        raise ValueError(
            f"densities are of {', '.join(densities)}; they must be of {', '.join(masks)}"
        )
    check_density(masks.structure, densities)
    return densities


def _gradients(masks: Masks, value: Tensor, *, create_graph: bool = False) -> dict[str, Tensor]:
    """Gradients of a value in the masked weights, 0 where it does not depend on one."""
    found = torch.autograd.grad(
        value,
        [masks.weight(name) for name in masks],
        create_graph=create_graph,
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(masks, found, strict=True))


def _synaptic_flow(masks: Masks, forward: Callable[[], Tensor]) -> dict[str, Tensor]:
    total = forward().sum()
    if not total.isfinite():
        raise ValueError(
            f"the synaptic flow is {total.item()}: with absolute weights values grow from layer to "
            "layer; use the model in float64 (model.double())"
        )
    gradients = _gradients(masks, total)
    return {name: (masks.weight(name).detach() * gradients[name]).abs() for name in masks}


@contextmanager
def _absolute(model: nn.Module) -> Iterator[None]:
    """A model with absolute parameters and no biases, in evaluation mode; restored afterwards."""
    values = [parameter.detach().clone() for parameter in model.parameters()]
    try:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.zero_() if "bias" in name.rsplit(".")[-1] else parameter.abs_()
        with in_evaluation(model):
            yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), values, strict=True):
                parameter.copy_(value)
