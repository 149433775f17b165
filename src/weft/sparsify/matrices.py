"""Which parameters of a module are weight matrices: those that multiply features in a product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from weft.sparsify.products import watch_products
from weft.sparsify.sparse_layers import SparseLinear

# Layers of torch in which every parameter whose name contains "weight" multiplies features.
_TORCH = (
    nn.Linear,
    nn.Bilinear,
    nn.RNNBase,
    nn.RNNCellBase,
    nn.MultiheadAttention,
    nn.modules.conv._ConvNd,
)
_NOT_MATRICES = ("Norm", "Embedding")
# Other layers, each with those of its parameters that transform features. They are known by their
# names because torch_geometric need not be installed.
_KNOWN = {
    "torch_geometric.nn.dense.linear.Linear": ("weight",),
    "torch_geometric.nn.dense.linear.HeteroLinear": ("weight",),
    "torch_geometric.nn.conv.arma_conv.ARMAConv": ("weight", "init_weight", "root_weight"),
    "torch_geometric.nn.conv.dna_conv.Linear": ("weight",),
    "torch_geometric.nn.conv.gated_graph_conv.GatedGraphConv": ("weight",),
    "torch_geometric.nn.conv.gcn2_conv.GCN2Conv": ("weight1", "weight2"),
    "torch_geometric.nn.conv.gmm_conv.GMMConv": ("g",),
    "torch_geometric.nn.conv.gat_conv.GATConv": (),
    "torch_geometric.nn.conv.gatv2_conv.GATv2Conv": (),
    "torch_geometric.nn.conv.hgt_conv.HGTConv": (),
    "torch_geometric.nn.conv.rgat_conv.RGATConv": ("weight", "basis"),
    "torch_geometric.nn.conv.rgcn_conv.RGCNConv": ("weight", "root"),
    "weft.models.gcn.GCNLayer": ("weight",),
    "weft.models.ggnn.GatedGraph": ("weight",),
    "weft.models.gcn.SAGELayer": ("neighbours", "own"),
}
# The layers among these whose weights have their outputs last, as in x @ W; elsewhere, first.
_OUTPUTS_FIRST = ("torch_geometric.nn.dense.linear.Linear",)
_UNKNOWN = (
    "not known to multiply features; give an example, which is a batch as the model takes it, or "
    "name them in include"
)
_UNSEEN = "no product with features as with a matrix in the example"
# The number of names that a sentence lists before it only counts the rest.
_LISTED = 8


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The weights of a model that a method makes sparse.

    Attributes:
        chosen: the parameters, by name.
        left: why each other parameter of two and more dimensions stays dense, by name.
    """

    chosen: dict[str, nn.Parameter]
    left: dict[str, str]

    def left_lines(self) -> list[str]:
        """A line for each reason why parameters stay dense."""
        lines = []
        for reason in dict.fromkeys(self.left.values()):
            names = [name for name, why in self.left.items() if why == reason]
            lines.append(f"left dense: {_listed(names)} ({reason})")
        return lines

    def __str__(self) -> str:
        size = sum(parameter.numel() for parameter in self.chosen.values())
        chosen = f"{_listed(list(self.chosen))} ({size:,} weights) may become sparse"
        return "\n".join([chosen, *self.left_lines()])


def select_weights(
    model: nn.Module,
    *,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    example: Any = None,
    required: bool = True,
) -> Selection:
    """The parameters to mask; see `Masks`, whose arguments and errors these are."""
    first_name = {id(p): name for name, p in model.named_parameters()}
    # A shared weight may be called by any of its names.
    called = {name: first_name[id(p)] for name, p in model.named_parameters(remove_duplicate=False)}
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if isinstance(parameter, UninitializedParameter):
            raise ValueError(f"{name} has no shape before the first batch; call the model once")
    wide = [name for name, p in parameters.items() if p.dim() >= 2]
    computed = {name: how for name, how in _computed(model).items() if name in wide}
    left = _without_product(model, wide, called, computed, example)
    wanted = [name for name in wide if name not in left]
    if include is not None:
        exact = {called[each] for each in include if called.get(each) in wide}
        frozen = [name for name in wide if name in exact and not parameters[name].requires_grad]
        if frozen:
            raise ValueError(
                f"{', '.join(frozen)} is frozen (requires_grad is False) and would never change; "
                "leave it out of include, or let it learn"
            )
        patterns = [each for each in include if called.get(each) not in exact]
        known = [name for name in wide if left.get(name, _UNKNOWN) in (_UNKNOWN, _UNSEEN)]
        matched = matching(patterns, [*known, *computed.values()], "include")
        wanted = [n for n in wide if n in exact or n in matched or computed.get(n) in matched]
        left |= {name: "not in include" for name in known if name not in wanted}
    sparse = [f"{path}.weight" for path, m in model.named_modules() if isinstance(m, SparseLinear)]
    candidates = [*wide, *sparse, *computed.values()]
    unwanted = matching([called.get(each, each) for each in exclude], candidates, "exclude")
    chosen = {}
    for name in wanted:
        if name in unwanted or computed.get(name) in unwanted:
            left[name] = "excluded"
        elif parameters[name].requires_grad:
            chosen[name] = parameters[name]
    selection = Selection(
        chosen=chosen,
        left={
            name: left[name] if parameters[name].requires_grad else "frozen"
            for name in wide
            if name not in chosen
        },
    )
    refused = {computed[name] for name in chosen if name in computed}
    if refused:
        raise ValueError(
            f"{', '.join(sorted(refused))} is computed from other parameters at each call "
            "(weight_norm, spectral_norm or another parametrization), so a mask on these does not "
            "mask it; take the parametrization off first (remove_parametrizations of "
            "torch.nn.utils.parametrize, or remove_weight_norm and remove_spectral_norm for the "
            "older ones), or leave the weight dense with exclude"
        )
    if required and not chosen:
        raise ValueError(
            f"there is no weight to mask in {type(model).__name__}: of its matrices "
            f"({', '.join(wanted) or 'it has none'}) none is left that multiplies features and is "
            "neither excluded nor frozen; include takes others by name"
            + "".join(f"; {line}" for line in selection.left_lines())
        )
    return selection


def _without_product(
    model: nn.Module,
    wide: Sequence[str],
    called: Mapping[str, str],
    computed: Mapping[str, str],
    example: Any,
) -> dict[str, str]:
    """Why a parameter multiplies no features, by name, as far as that is known."""
    left: dict[str, str] = {}
    unsure: dict[str, str] = {}
    for full, name in called.items():
        layer, own = _owner(model, full)
        kinds = [kind.__name__ for kind in type(layer).__mro__]
        factor = _is_factor(layer, own)
        if "bias" in own:
            left[name] = "bias"
        elif factor:
            continue
        elif any(word in kind for word in _NOT_MATRICES for kind in kinds):
            left[name] = "norm or embedding"
        elif name in computed:
            continue
        elif factor is False:
            left[name] = f"no factor of features in {type(layer).__name__}"
        else:
            unsure[name] = _UNKNOWN
    unsure = {name: why for name, why in unsure.items() if name not in left}
    if unsure and example is not None:
        inputs = example if isinstance(example, tuple) else (example,)
        products = watch_products(model, inputs, {}, nnz={})
        unsure = {name: _UNSEEN for name in unsure if name not in products.multiplied}
    left |= unsure
    return {name: left[name] for name in wide if name in left}


def _is_factor(layer: nn.Module, own: str) -> bool | None:
    """Whether a layer multiplies features with one of its parameters; None: not known."""
    for kind in type(layer).__mro__:
        library = kind.__module__.partition(".")[0]
        known = _KNOWN.get(f"{kind.__module__}.{kind.__qualname__}")
        if kind in _TORCH or known is not None:
            if "weight" in own if known is None else own in known:
                return True
            # Nothing is known of parameters that a subclass from elsewhere has added.
            return False if type(layer).__module__.partition(".")[0] == library else None
    return None


def output_axis(model: nn.Module, name: str) -> int | None:
    """The axis of a parameter that its outputs are along; None where that is not known."""
    layer, own = _owner(model, name)
    if not _is_factor(layer, own):
        return None
    for kind in type(layer).__mro__:
        if kind in _TORCH:
            return 1 if isinstance(layer, nn.modules.conv._ConvTransposeNd) else 0
        known = f"{kind.__module__}.{kind.__qualname__}"
        if known in _KNOWN:
            return 0 if known in _OUTPUTS_FIRST else model.get_parameter(name).dim() - 1
    return None


def makes_outputs(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Of weights in the order of the model, those that make its outputs, as far as names tell.

    They are the last one, and others of the same layer with as many outputs, as in a SAGEConv.
    """
    if not names:
        return []
    last = names[-1]
    path = last.rpartition(".")[0].rpartition(".")[0]
    inside = model.get_submodule(path) if path else model
    if not path or isinstance(inside, nn.Sequential | nn.ModuleList | nn.ModuleDict):
        return [last]

    def outputs(name: str) -> int | None:
        axis = output_axis(model, name)
        return None if axis is None else model.get_parameter(name).shape[axis]

    same = [name for name in names if name.rpartition(".")[0].rpartition(".")[0] == path]
    return [name for name in same if outputs(name) == outputs(last)]


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The layer that a parameter belongs to, and what the layer calls it."""
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    inside = (nn.ParameterDict, nn.ParameterList, parametrize.ParametrizationList)
    while path and isinstance(module, inside):
        path, _, own = path.rpartition(".")
        path = path.removesuffix("parametrizations").removesuffix(".")
        module = model.get_submodule(path)
    return module, own


def _computed(model: nn.Module) -> dict[str, str]:
    """Parameters that a weight is computed from at each call: the name of the weight, by theirs."""
    found = {}
    for path, module in model.named_modules():
        dot = f"{path}." if path else ""
        if parametrize.is_parametrized(module):
            assert isinstance(module.parametrizations, nn.ModuleDict)
            for weight, made in module.parametrizations.items():
                for name, _ in made.named_parameters():
                    found[f"{dot}parametrizations.{weight}.{name}"] = f"{dot}{weight}"
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm | SpectralNorm):
                for ending in ("_g", "_v", "_orig"):
                    found[f"{dot}{hook.name}{ending}"] = f"{dot}{hook.name}"
    return found


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "") or "nothing"


def matching(patterns: Sequence[str], names: Sequence[str], what: str) -> list[str]:
    """The names that are one of `patterns`, or match one, in their own order.

    Raises:
        ValueError: a pattern matches none of the names; `what` says whose pattern it is.
    """
    found: set[str] = set()
    for pattern in patterns:
        own = {name for name in names if name == pattern or fnmatchcase(name, pattern)}
        if not own:
            raise ValueError(
                f"{what} {pattern!r} matches no weight; there are {', '.join(names) or 'none'}"
            )
        found |= own
    return [name for name in names if name in found]
