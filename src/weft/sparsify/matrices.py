"""Which parameters of a module are weight matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.parameter import UninitializedParameter

from weft.sparsify.layers import SparseLinear

__all__ = ["matching", "weight_matrices"]

# Modules whose weights multiply, whatever their shape: 128 -> 1 is a matrix with one row.
_MULTIPLY = (nn.Linear, nn.Bilinear, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
_NOT_MATRICES = ("Norm", "Embedding")


def weight_matrices(
    model: nn.Module, include: Sequence[str] | None, exclude: Sequence[str], required: bool
) -> dict[str, nn.Parameter]:
    """The parameters to mask, by name; see `Masks`, whose arguments and errors these are."""
    first_name = {id(p): name for name, p in model.named_parameters()}
    # A shared weight may be called by any of its names.
    called = {name: first_name[id(p)] for name, p in model.named_parameters(remove_duplicate=False)}
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if isinstance(parameter, UninitializedParameter):
            raise ValueError(f"{name} has no shape before the first batch; call the model once")
    wide = [name for name, p in parameters.items() if p.dim() >= 2]
    matrices = _matrices(model, first_name)
    if include is not None:
        exact = {called[each] for each in include if called.get(each) in wide}
        frozen = [name for name in wide if name in exact and not parameters[name].requires_grad]
        if frozen:
            raise ValueError(
                f"{', '.join(frozen)} is frozen (requires_grad is False) and would never change; "
                "leave it out of include, or let it learn"
            )
        patterns = [each for each in include if called.get(each) not in exact]
        matched = matching(patterns, matrices, "include")
        matrices = [name for name in wide if name in exact or name in matched]
    sparse = [f"{path}.weight" for path, m in model.named_modules() if isinstance(m, SparseLinear)]
    unwanted = matching([called.get(each, each) for each in exclude], wide + sparse, "exclude")
    chosen = {
        name: parameters[name]
        for name in matrices
        if name not in unwanted and parameters[name].requires_grad
    }
    if required and not chosen:
        raise ValueError(
            f"there is no weight to mask in {type(model).__name__}: weight matrices are "
            f"{', '.join(matrices) or 'none'}, without those that are excluded or frozen"
        )
    return chosen


def _matrices(model: nn.Module, first_name: Mapping[int, str]) -> list[str]:
    """Names of what multiplies."""
    yes, no = set(), set()
    for module in model.modules():
        kinds = [kind.__name__ for kind in type(module).__mro__]
        for name, parameter in module.named_parameters(recurse=False):
            if any(word in kind for word in _NOT_MATRICES for kind in kinds):
                no.add(id(parameter))
            elif parameter.dim() >= 2 and "bias" not in name:
                multiplies = isinstance(module, _MULTIPLY) or any(k == "_ConvNd" for k in kinds)
                if multiplies or parameter.dim() == 2 or 1 not in parameter.shape:
                    yes.add(id(parameter))
    return [name for key, name in first_name.items() if key in yes - no]


def matching(patterns: Sequence[str], names: Sequence[str], what: str) -> list[str]:
    """The names that are one of `patterns`, or match one, in their own order.

    Raises:
        ValueError: a pattern matches none of the names; `what` says whose pattern it is.
    """
    for pattern in patterns:
        if not any(name == pattern or fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f"{what} {pattern!r} matches no weight; there are {', '.join(names) or 'none'}"
            )
    return [
        name for name in names if any(name == each or fnmatchcase(name, each) for each in patterns)
    ]
