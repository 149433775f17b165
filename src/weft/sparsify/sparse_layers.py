"""Linear layers that hold only their active weights.

Weights, gradients and the optimizer's state all have one number for each active weight, and only
these are multiplied.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from weft.kernels.backends import loops_allowed
from weft.kernels.online import OnlineChain, can_be_online
from weft.kernels.online_loops import MOST_SAMPLES
from weft.kernels.sparse_input_linear import sparse_input_linear
from weft.kernels.sparse_linear import (
    Link,
    Pattern,
    dense_weight,
    parts_of,
    pattern_of,
    sparse_chain,
    sparse_linear,
)

_any_global_hook: Any = torch_modules._has_any_global_hook


class SparseLinear(nn.Module):
    """y = x Wᵀ + bias for a weight [out_features, in_features] that is mostly zeros.

    Outputs are stored feature by feature (strides (1, batch)), the form that the next such layer
    reads fastest.

    Attributes:
        values: [K], the weights, by rows of W and by columns within each.
        bias: [out_features], or None.
        pattern: int32, where the weights are, see `pattern_of`.
        want_dense_gradient: while True, each backward pass adds the gradient of all
            out_features x in_features weights to what `dense_gradient` gives; it costs as much as a
            dense layer's.
        replaced: the layer whose place it has in a model, if `weft.restore` is to put it back.
        companions: tensors [K] that go with the weights wherever `topology` moves them.
    """

    values: nn.Parameter
    bias: nn.Parameter | None
    pattern: Tensor
    # In a tuple: a module attribute would become a part of this one.
    replaced: tuple[Any, ...] = ()
    companions: Sequence[Tensor] = ()
    # The chain that begins here, ready for a few samples (None: not to be had), and its state then.
    _ready: tuple[OnlineChain | None, Any] = (None, None)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        active: Tensor | int,
        *,
        bias: bool = True,
        relu: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Weights as in a fresh `nn.Linear` of that size, where they are active.

        Args:
            in_features: I.
            out_features: O.
            active: bool [O, I], True where there is a weight; or how many, at random places.
            bias: whether there is one.
            relu: whether the layer returns relu(y), which is faster than a module after it.
            dtype: of the weights; torch's default if None.
            device: where they are.
        """
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.relu = relu
        self.want_dense_gradient = False
        self._dense_gradient: Tensor | None = None
        size = in_features * out_features
        if isinstance(active, int):
            if not 0 <= active <= size:
                raise ValueError(
                    f"{active} weights asked of a layer of {out_features} x {in_features}: give 0 "
                    f"to {size}"
                )
            index = torch.randperm(size, device=device)[:active].sort().values
        else:
            index = self._index_of(active).to(device)
        self.register_buffer("pattern", pattern_of(index, out_features, in_features))
        kind: dict[str, Any] = {"dtype": dtype, "device": device}
        self.values = nn.Parameter(torch.empty(index.shape[0], **kind))
        self.bias = nn.Parameter(torch.empty(out_features, **kind)) if bias else None
        self._dense: tuple[nn.Module, ...] = ()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights, as in a fresh layer of the kind that this one was made from.

        The dense layer is drawn whole, so that the same seed gives the same weights as there.
        """
        if not self._dense:
            bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
            for parameter in self.parameters():
                nn.init.uniform_(parameter, -bound, bound)
            return
        fresh: Any = _with_parameters(self._dense[0], self.values.dtype, self.values.device)
        fresh.reset_parameters()
        self.values.copy_(fresh.weight.flatten()[self.index])
        if self.bias is not None:
            self.bias.copy_(fresh.bias)

    @classmethod
    def from_dense(
        cls, linear: nn.Linear, mask: Tensor | None = None, *, relu: bool = False
    ) -> SparseLinear:
        """The same layer with only the weights where mask [O, I] is True; None: the nonzeros."""
        weight = linear.weight.detach()
        active = weight != 0 if mask is None else mask
        # A fresh layer draws random numbers; what is drawn later must not depend on that.
        with torch.random.fork_rng(devices=[]):
            layer = cls(
                weight.shape[1],
                weight.shape[0],
                active.to(weight.device),
                bias=linear.bias is not None,
                relu=relu,
                dtype=weight.dtype,
                device=weight.device,
            )
        with torch.no_grad():
            layer.values.copy_(weight.flatten()[layer.index])
            if layer.bias is not None:
                layer.bias.copy_(linear.bias)
        # A weight that is no parameter is computed from others, which a reset does not reach.
        if "weight" in linear._parameters:
            layer._dense = (_with_parameters(linear, weight.dtype, torch.device("meta")),)
        # Other code reads attributes of the layer, such as in_channels of torch_geometric's.
        for name, value in vars(linear).items():
            if not name.startswith("_") and not hasattr(layer, name):
                setattr(layer, name, value)
        layer.values.requires_grad_(linear.weight.requires_grad)
        if layer.bias is not None:
            layer.bias.requires_grad_(linear.bias.requires_grad)
        return layer.train(linear.training)

    def to_dense(self) -> nn.Linear:
        """The same layer as an `nn.Linear` with zeros; without the relu."""
        weight = self.weight.detach()
        # On meta nothing is initialised, and no random number is drawn.
        linear = nn.Linear(
            self.in_features, self.out_features, bias=self.bias is not None, device="meta"
        )
        linear.weight = nn.Parameter(weight, requires_grad=self.values.requires_grad)
        if self.bias is not None:
            linear.bias = nn.Parameter(
                self.bias.detach().clone(), requires_grad=self.bias.requires_grad
            )
        return linear.train(self.training)

    @property
    def index(self) -> Tensor:
        """int64 [K], the position of each weight in the flattened [O, I], ascending."""
        return self.parts.positions

    @property
    def parts(self) -> Pattern:
        """Rows and columns of the weights; views of `pattern`."""
        return parts_of(self.pattern, self.out_features, self.in_features)

    @property
    def weight(self) -> Tensor:
        """[O, I], the dense weight, made at each call; gradients go to `values`."""
        return dense_weight(self.values, self.pattern, self.out_features, self.in_features)

    @property
    def sparsity(self) -> float:
        """Share of the weights that are not there."""
        size = self.in_features * self.out_features
        return 1 - self.values.shape[0] / size if size else 0.0

    def forward(self, x: Tensor) -> Tensor:
        """[..., O] for x [..., I]; or [B, O] for x [B, I] of torch's sparse CSR layout."""
        return self._output(x, self.relu)

    def _output(self, x: Tensor, relu: bool) -> Tensor:
        online = _online(((self, relu),), x, by_feature=True)
        if online is not None:
            return online
        parameters = (self.values, self.bias, self.pattern, self.out_features)
        if x.layout == torch.sparse_csr:
            out = sparse_input_linear(x, *parameters)
            out = out.relu() if relu else out
        else:
            self._check_width(x)
            rows = x if x.ndim == 2 else x.reshape(-1, self.in_features)
            out = sparse_linear(rows, *parameters, relu)
        if self.want_dense_gradient and out.requires_grad:
            if self.values.grad is None:
                # zero_grad() has dropped the gradient of the last step; this one goes with it.
                self._dense_gradient = None
            below = out.detach() <= 0 if relu else None
            out.register_hook(  # type: ignore[no-untyped-call]
                lambda grad: self._add_dense_gradient(grad, x.detach(), below)
            )
        return out if x.ndim == 2 else out.reshape(*x.shape[:-1], self.out_features)

    def _check_width(self, x: Tensor) -> None:
        if x.ndim == 0 or x.shape[-1] != self.in_features:
            raise ValueError(f"x [..., {self.in_features}] needed, this one is {list(x.shape)}")

    def _add_dense_gradient(self, grad: Tensor, x: Tensor, below: Tensor | None) -> None:
        grad = grad.detach()
        if below is not None:
            grad = grad.masked_fill(below, 0)
        if x.layout == torch.sparse_csr:
            made = torch.mm(x.t().to_sparse_csr(), grad).t()
        else:
            made = grad.t() @ x.reshape(-1, self.in_features)
        self._dense_gradient = made if self._dense_gradient is None else self._dense_gradient + made

    def __getstate__(self) -> dict[str, Any]:
        # A copy's weights are elsewhere.
        return {**self.__dict__, "_ready": (None, None)}

    def active_mask(self) -> Tensor:
        """Bool [O, I], True where there is a weight."""
        mask = torch.zeros(
            self.out_features * self.in_features, dtype=torch.bool, device=self.pattern.device
        )
        mask[self.index] = True
        return mask.view(self.out_features, self.in_features)

    def dense_gradient(self) -> Tensor:
        """[O, I], the gradient summed since the last call, or since that of `values` was dropped.

        Raises:
            RuntimeError: no backward pass has computed it.
        """
        if self._dense_gradient is None:
            raise RuntimeError(
                "no dense gradient was computed: set want_dense_gradient = True before the forward "
                "pass of the update step"
            )
        gradient, self._dense_gradient = self._dense_gradient, None
        return gradient

    @torch.no_grad()
    def topology(self, mask: Tensor, slots: Iterable[Tensor] = ()) -> None:
        """Have the weights where mask bool [O, I] is True, as many as now; new ones start at 0.

        Nothing is reallocated. `slots` are tensors [K] that go with the weights (momentum, Adam's
        moments, the gradient): they are changed alike, to 0 for new weights.
        """
        old = self.index
        new = self._index_of(mask).to(old.device)
        if new.shape != old.shape:
            raise ValueError(
                f"the mask has {new.numel()} active weights, the layer {old.numel()}: as many "
                "are needed, or make another layer"
            )
        kept = old[torch.isin(old, new)]
        source, target = torch.searchsorted(old, kept), torch.searchsorted(new, kept)
        for tensor in (self.values.data, *self.companions, *slots):
            saved = tensor[source]
            tensor.zero_()
            tensor[target] = saved
        self.pattern.copy_(pattern_of(new, self.out_features, self.in_features))

    def _index_of(self, mask: Tensor) -> Tensor:
        shape = (self.out_features, self.in_features)
        if mask.dtype != torch.bool or mask.shape != shape:
            raise ValueError(
                f"a mask of bool {list(shape)} needed, this one is {mask.dtype} {list(mask.shape)}"
            )
        return mask.flatten().nonzero()[:, 0]

    def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
        dense = state.get(f"{prefix}weight")
        if dense is not None and f"{prefix}values" not in state:
            self._take_dense(state, dense, prefix)
        pattern = state.get(f"{prefix}pattern")
        if pattern is not None and pattern.shape == self.pattern.shape:
            self._require_pattern(pattern, f"{prefix}pattern")
        super()._load_from_state_dict(state, prefix, *others)

    def _take_dense(self, state: Any, weight: Tensor, prefix: str) -> None:
        """Let the state of the dense layer be one of this layer."""
        if weight.shape != (self.out_features, self.in_features):
            return
        here = self.active_mask().to(weight.device)
        if bool(weight[~here].any()):
            raise ValueError(
                f"{prefix}weight is not 0 where this layer has no weight: load it into the dense "
                "model, and convert that"
            )
        del state[f"{prefix}weight"]
        state[f"{prefix}values"], state[f"{prefix}pattern"] = weight[here], self.pattern

    def _require_pattern(self, pattern: Tensor, name: str) -> None:
        # The compiled loops trust the pattern, and a file may hold anything.
        shape = (self.out_features, self.in_features)
        parts = parts_of(pattern.long(), *shape)
        steps = parts.offsets.diff()
        right = bool((steps >= 0).all()) and int(steps.sum()) == parts.columns.numel()
        try:
            right = right and torch.equal(pattern_of(parts.positions, *shape), pattern.int())
        except ValueError:
            right = False
        if not right:
            raise ValueError(
                f"{name} is not that of a matrix {shape[0]} x {shape[1]}: the file is damaged"
            )

    def extra_repr(self) -> str:
        """The settings in the layer's line of a printed model."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"nnz={self.values.shape[0]}, sparsity={self.sparsity:.1%}, "
            f"bias={self.bias is not None}" + (", relu=True" if self.relu else "")
        )


def _with_parameters(layer: nn.Module, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """The same layer with parameters that are not initialised; on meta they take no memory."""
    other = copy.copy(layer)
    other._parameters = {
        name: None if p is None else nn.Parameter(torch.empty_like(p, dtype=dtype, device=device))
        for name, p in layer._parameters.items()
    }
    return other


class FusingSequential(nn.Sequential):
    """An `nn.Sequential` whose neighbouring `SparseLinear` layers and ReLUs are one operator.

    Nobody can tell: layers that are called one by one, taken out in a slice, or have hooks give
    what they give in any other Sequential.
    """

    # All layers as one run without gradients (None: they are none), themselves, and their relus.
    _whole: tuple[list[tuple[SparseLinear, bool]] | None, Any, Any] = (None, None, None)

    def forward(self, input: Any) -> Any:  # noqa: A002
        """The output of the last layer."""
        layers: list[Any] = list(self._modules.values())
        if not torch.is_grad_enabled():
            run = self._whole_run(layers)
            online = _online(run, input, by_feature=False) if run and _is_dense(input) else None
            if online is not None:
                return online
        number = 0
        while number < len(layers):
            run, after = _run_from(layers, number)
            if len(run) > 1 and _is_dense(input):
                input = _chained(run, input)  # noqa: A001
            elif run:
                # One layer, or the first of several, whose input is sparse.
                layer, relu = run[0]
                after = number + (2 if relu and not layer.relu else 1)
                input = layer._output(input, relu)  # noqa: A001
            else:
                input = layers[number](input)  # noqa: A001
                after = number + 1
            number = after
        return input

    def _whole_run(self, layers: list[Any]) -> list[tuple[SparseLinear, bool]] | None:
        """All layers as one run, found once; None where they are none, or somebody watches one."""
        if _any_global_hook():
            return None
        for layer in layers:
            own = layer.__dict__
            if own["_forward_hooks"] or own["_forward_pre_hooks"] or "forward" in own:
                return None
        run, known, relus = self._whole
        if known == layers and (run is None or [layer.relu for layer, _ in run] == relus):
            return run
        found, after = _run_from(layers, 0)
        run = found if found and after == len(layers) else None
        self._whole = run, layers, [layer.relu for layer, _ in found]
        return run

    def __getstate__(self) -> dict[str, Any]:
        # A copy's layers are others.
        return {**self.__dict__, "_whole": (None, None, None)}

    def _get_name(self) -> str:
        return nn.Sequential.__name__


def fuses(layer: nn.Module, after: nn.Module | None) -> bool:
    """Whether a `SparseLinear` may compute the layer after it, unseen: a ReLU, or another one."""
    if _any_global_hook() or not _is_free(layer):
        return False
    return _is_free(after) or (type(after) is nn.ReLU and not has_hooks(after))


ALIKE: set[type] = {SparseLinear}
"""Layers that do without gradients what a `SparseLinear` does."""


def _is_free(layer: nn.Module | None) -> bool:
    """Whether it is a `SparseLinear`, for a pass like this one, whose calls nobody watches."""
    kind = type(layer)
    right = kind is SparseLinear or (kind in ALIKE and not torch.is_grad_enabled())
    return right and layer is not None and not has_hooks(layer)


def _run_from(layers: Sequence[Any], start: int) -> tuple[list[tuple[SparseLinear, bool]], int]:
    """Layers that are one operator, each with whether a relu follows, and the place after them."""
    run: list[tuple[SparseLinear, bool]] = []
    place = start
    if _any_global_hook():
        return run, place
    while place < len(layers) and _is_free(layers[place]):
        layer = layers[place]
        # The gradient of all weights is computed for a layer by itself.
        if layer.want_dense_gradient and run:
            break
        after = layers[place + 1] if place + 1 < len(layers) else None
        relu = type(after) is nn.ReLU and not has_hooks(after)
        place += 2 if relu and not layer.relu else 1
        run.append((layer, relu or layer.relu))
        if layer.want_dense_gradient:
            break
    return run, place


def _is_dense(x: Any) -> bool:
    return isinstance(x, Tensor) and x.layout == torch.strided


def _chained(run: Sequence[tuple[SparseLinear, bool]], x: Tensor) -> Tensor:
    """The output [..., O] of the last layer for x [..., I]."""
    online = _online(run, x, by_feature=False)
    if online is not None:
        return online
    first, last = run[0][0], run[-1][0]
    first._check_width(x)
    links = _links_of(run)
    if x.ndim == 2:
        return sparse_chain(x, links)
    out = sparse_chain(x.reshape(-1, first.in_features), links)
    return out.reshape(*x.shape[:-1], last.out_features)


def _links_of(run: Sequence[tuple[SparseLinear, bool]]) -> list[Link]:
    return [
        Link(layer.values, layer.bias, layer.pattern, layer.out_features, relu)
        for layer, relu in run
    ]


def _online(
    run: Sequence[tuple[SparseLinear, bool]], x: Tensor, *, by_feature: bool
) -> Tensor | None:
    """The output [B, O] of the last layer for few samples, without gradients; None for others."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or not loops_allowed():
        return None
    if x.ndim != 2 or x.shape[0] > MOST_SAMPLES:
        return None
    first = run[0][0]
    chain, known = first._ready
    state = [_state_of(*each) for each in run]
    if None in state:
        return None
    if known != state:
        links, inputs = _links_of(run), first.in_features
        chain = OnlineChain(links, inputs) if can_be_online(links, inputs) else None
        first._ready = chain, state
    return None if chain is None else chain(x, by_feature)


def _state_of(layer: SparseLinear, relu: bool) -> tuple[Any, ...] | None:
    """What tells that a layer is as it was; None where its tensors are computed at each call.

    Not by attribute: a module finds these slowly.
    """
    values, pattern = layer._parameters.get("values"), layer._buffers.get("pattern")
    bias = layer._parameters.get("bias")
    if values is None or pattern is None or (bias is None and layer.bias is not None):
        return None
    place = 0 if bias is None else bias.data_ptr()
    own = (id(layer), relu, values.data_ptr(), values.dtype, place)
    return *own, pattern.data_ptr(), pattern._version


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of it runs other code than its class's."""
    before, after = module._forward_pre_hooks, module._forward_hooks
    hooks = before or after or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks or "forward" in vars(module))


def to_dense(model: nn.Module) -> nn.Module:
    """A copy of the model with an `nn.Linear` with zeros for each `SparseLinear`."""
    if isinstance(model, SparseLinear):
        layer = model.to_dense()
        return nn.Sequential(layer, nn.ReLU()) if model.relu else layer
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        if isinstance(parent, FusingSequential):
            parent.__class__ = nn.Sequential  # type: ignore[assignment]
        for name, child in list(parent._modules.items()):
            if isinstance(child, SparseLinear):
                setattr(parent, name, to_dense(child))
    return model
