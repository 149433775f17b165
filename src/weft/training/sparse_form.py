"""A network whose masked linear layers hold only the active weights, and its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from weft.errors import DataError
from weft.models import FNN
from weft.sparsify import Masks
from weft.sparsify.sparse_layers import SparseLinear
from weft.sparsify.structure import Groups, Structure
from weft.training.checkpoint import put_weights, read_weights


def to_sparse_form(model: nn.Module, masks: Masks) -> None:
    """Put a `SparseLinear` in the place of each masked linear layer, with its active weights.

    Its parameters are new: make the optimizer afterwards. An FNN's ReLU becomes part of it.

    Raises:
        ValueError: a masked weight is of another kind of layer.
    """
    _replace(model, {name.removesuffix(".weight"): masks[name] for name in masks})


def to_sparse_form_of(
    model: nn.Module, weights: Mapping[str, Tensor], structure: Structure
) -> None:
    """Let the model have the sparse layers of a checkpoint, whose weights are loaded later."""
    masks = {}
    for path, layer in _linears(model).items():
        values = weights.get(f"{path}.values")
        if values is not None:
            # Anywhere that the structure allows: the places come with the weights.
            groups = Groups(structure=structure, shape=tuple(layer.weight.shape))
            kept = torch.arange(groups.count) < values.numel() // (groups.pools * groups.size)
            masks[path] = groups.mask(kept.expand(groups.pools, -1))
    _replace(model, masks)


def sparse_layers(model: nn.Module) -> list[SparseLinear]:
    """The layers that hold only the active weights."""
    return [module for module in model.modules() if isinstance(module, SparseLinear)]


def load_dense(model: nn.Module, path: str | Path) -> None:
    """Take the weights of a run into a dense model, of whichever form the run's were.

    Args:
        model: with linear layers, as it is before any are replaced.
        path: a run's folder, its checkpoint, or a safetensors file.

    Raises:
        DataError: the file is damaged or of another model.
    """
    weights = read_weights(Path(path))
    for name, layer in _linears(model).items():
        parts = {part: weights.get(f"{name}.{part}") for part in ("values", "pattern")}
        values, pattern = parts["values"], parts["pattern"]
        if values is None or pattern is None:
            continue
        with torch.random.fork_rng(devices=[]):
            size = layer.weight.numel()
            sparse = SparseLinear(
                layer.in_features, layer.out_features, min(values.numel(), size), bias=False
            )
        try:
            sparse.load_state_dict({"values": values, "pattern": pattern})
        except (RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[-1].strip()
            raise DataError(f"{path} is of another model, or damaged ({reason})") from None
        del weights[f"{name}.values"], weights[f"{name}.pattern"]
        weights[f"{name}.weight"] = sparse.weight.detach()
    put_weights(model, weights, str(path))


def _linears(model: nn.Module) -> dict[str, nn.Linear]:
    return {path: each for path, each in model.named_modules() if isinstance(each, nn.Linear)}


def _replace(model: nn.Module, masks: Mapping[str, Tensor]) -> None:
    for path, mask in masks.items():
        parent, _, own = path.rpartition(".")
        layer = model.get_submodule(path)
        if not isinstance(layer, nn.Linear):
            raise ValueError(
                f"'{path}' is a {type(layer).__name__}, which has no sparse form; only linear "
                "layers have: train with form = dense"
            )
        hidden = model.layers[:-1] if isinstance(model, FNN) else ()
        relu = isinstance(model, FNN) and model.config.activation == "relu" and layer in hidden
        sparse = SparseLinear.from_dense(layer, mask, relu=relu)
        setattr(model.get_submodule(parent), own, sparse)
