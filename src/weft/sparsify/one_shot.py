"""Masks chosen once, before training or after it: random, magnitude, SNIP, GraSP, SynFlow.

All of them set the given masks in place, exactly, and zero the weights that are not kept. Where
`density` is a number it is the share of all weights that is kept, ranked across layers; where it
is a mapping (as `erk` and `uniform` give) it is that of each layer, ranked within it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import torch
from torch import Tensor, nn

from weft.sparsify.densities import EmptyLayer, layer_nnz, nnz_of
from weft.sparsify.masks import Masks, check_same_model, mask_of, random_order, top
from weft.sparsify.snapshots import in_evaluation

Density: TypeAlias = float | Mapping[str, float]


def random_masks(
    model: nn.Module, masks: Masks, density: Density, *, seed: int = 0, keep_one: bool = False
) -> None:
    """Keep random weights.

    Args:
        model: whose masks they are.
        masks: to set.
        density: share of the weights to keep, of all or by layer.
        seed: the same masks for the same seed, on any rank.
        keep_one: keep one weight of a layer that would have none, rather than refuse.

    Raises:
        ValueError: a density is not from 0 to 1, or a layer would be empty.
    """
    check_same_model(model, masks)
    order = random_order(masks.size(), seed)
    parts = torch.split(order, [masks.size(name) for name in masks])
    keep_top(masks, dict(zip(masks, parts, strict=True)), density, keep_one=keep_one)


def magnitude_masks(
    model: nn.Module, masks: Masks, density: Density, *, keep_one: bool = False
) -> None:
    """Keep the largest |w|; arguments and errors as of `random_masks`."""
    check_same_model(model, masks)
    scores = {name: masks.weight(name).detach().abs() for name in masks}
    keep_top(masks, scores, density, keep_one=keep_one)


def snip_masks(
    model: nn.Module,
    masks: Masks,
    density: Density,
    loss: Callable[[], Tensor],
    *,
    keep_one: bool = False,
) -> None:
    """Keep the largest |g · w| (SNIP, Lee et al. 2019): what the loss feels most.

    Other arguments and errors are those of `random_masks`.

    Args:
        model: whose masks they are.
        masks: to set.
        density: share of the weights to keep, of all or by layer.
        loss: computes it from the model, on one batch or more.
        keep_one: keep one weight of a layer that would have none, rather than refuse.
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
    """Keep the largest w · (H g) (GraSP, Wang et al. 2020): what gradients need to flow.

    Removing w changes the squared norm of the gradient g by -2 w (H g) to first order, H being the
    Hessian of the loss: the weights that are kept are those without which it would fall most.
    Arguments and errors are those of `snip_masks`; the loss must have a second derivative too.
    """
    check_same_model(model, masks)
    gradients = _gradients(masks, loss(), create_graph=True)
    # H g by one more backward pass: the slope of (g held constant) · g.
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
    flows out of it, and no layer is emptied before the others. Weights go in `rounds`, as many in
    proportion each time, the flow being computed anew. The model is in evaluation mode meanwhile;
    then everything is as it was, to the bit, but for the masks.
    Other arguments and errors are those of `random_masks`.

    Args:
        model: whose masks they are.
        masks: to set.
        density: share of the weights to keep, of all or by layer.
        forward: calls the model on inputs that are all ones, and gives its outputs.
        rounds: how often the flow is computed.
        keep_one: keep one weight of a layer that would have none, rather than refuse.
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
                flows = {
                    # What is gone stays so, even beside others of no flow.
                    name: flow.masked_fill(~masks[name], -1)
                    for name, flow in _synaptic_flow(masks, forward).items()
                }
                share = number / rounds
                now = {name: value**share for name, value in densities.items()}
                _choose(masks, flows, now, keep_one=keep_one)
                masks.apply_()
    except BaseException:
        masks.load_state_dict(before)
        raise
    masks.apply_()


def keep_top(
    masks: Masks, scores: Mapping[str, Tensor], density: Density, *, keep_one: bool = False
) -> None:
    """Keep the weights of the largest scores and zero the others.

    Args:
        masks: to set.
        scores: by name, in the weights' shapes; the first index goes first among equals.
        density: share of the weights to keep, of all (ranked across layers) or by layer.
        keep_one: keep one weight of a layer that would have none, rather than refuse.

    Raises:
        ValueError: a density is not from 0 to 1, or a layer would be empty.
    """
    _choose(masks, scores, _checked(masks, density), keep_one=keep_one)
    masks.apply_()


# The name under which `_checked` has the density of all layers together.
_ALL = ""


def _checked(masks: Masks, density: Density) -> dict[str, float]:
    densities = dict(density) if isinstance(density, Mapping) else {_ALL: float(density)}
    for name, value in densities.items():
        if not 0 <= value <= 1:
            whose = f"the density of {name}" if name else "density"
            raise ValueError(f"{whose} is {value}; it must be above 0 and at most 1")
    if _ALL not in densities and set(densities) != set(masks):
        raise ValueError(
            f"densities are of {', '.join(densities)}; they must be of {', '.join(masks)}"
        )
    return densities


def _choose(
    masks: Masks, scores: Mapping[str, Tensor], densities: Mapping[str, float], *, keep_one: bool
) -> None:
    if _ALL not in densities:
        for name, count in layer_nnz(masks.shapes, densities, keep_one=keep_one).items():
            masks.set(name, mask_of(top(scores[name].flatten(), count), masks[name]))
        return
    sizes = [masks.size(name) for name in masks]
    every = torch.cat([scores[name].flatten().double() for name in masks])
    count = nnz_of(densities[_ALL], masks.size())
    if keep_one:
        for part in torch.split(every, sizes):
            part[top(part, 1)] = math.inf
        count = max(count, len(sizes))
    kept = torch.split(mask_of(top(every, count), every), sizes)
    for name, part in zip(masks, kept, strict=True):
        if not part.any():
            raise EmptyLayer(
                f"density {densities[_ALL]:.6g} of all layers leaves none of the "
                f"{masks.size(name):,} weights of {name}: the network would be cut there",
                "raise it, give densities by layer, or keep one weight with keep_one=True",
            )
    for name, part in zip(masks, kept, strict=True):
        masks.set(name, part.view(masks.shapes[name]))


def _gradients(masks: Masks, value: Tensor, *, create_graph: bool = False) -> dict[str, Tensor]:
    """Slopes of a value in the masked weights, 0 where it does not depend on one."""
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
    slopes = _gradients(masks, total)
    return {name: (masks.weight(name).detach() * slopes[name]).abs() for name in masks}


@contextmanager
def _absolute(model: nn.Module) -> Iterator[None]:
    """Parameters by their absolute values, biases 0, evaluation mode; then as it was."""
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
