"""Each masked layer in the form that was timed fastest here: dense, or only its weights."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from weft.sparsify.masks import Masks
from weft.sparsify.products import tensors_in
from weft.sparsify.sparse_layers import FusedReLU, SparseLinear

# A form must win by this much, so that noise never makes a model slower than it was.
_MARGIN = 0.05
# Runs of a form, at least and at most, and seconds after which the least suffice.
_LEAST_RUNS, _MOST_RUNS, _SECONDS = 7, 200, 0.5


@dataclass(frozen=True, kw_only=True)
class LayerTiming:
    """One linear layer.

    Attributes:
        name: of the module.
        shape: outputs, inputs.
        sparsity: share of its weights that are zero.
        dense_ms: milliseconds of the dense layer, forward and in training backward.
        sparse_ms: of a `SparseLinear`.
        form: "dense" or "sparse", what was chosen.
    """

    name: str
    shape: tuple[int, int]
    sparsity: float
    dense_ms: float
    sparse_ms: float
    form: str


@dataclass(frozen=True, kw_only=True)
class Acceleration:
    """What `accelerate` found; printed, a table.

    Attributes:
        layers: the layers that have zeros.
        training: whether backward passes were timed too.
        dense_ms: milliseconds of a pass of the whole model as it was given.
        chosen_ms: of the model that was chosen.
    """

    layers: tuple[LayerTiming, ...]
    training: bool
    dense_ms: float
    chosen_ms: float

    @property
    def speedup(self) -> float:
        """How often the chosen model runs in the time of the dense one."""
        return self.dense_ms / self.chosen_ms

    def __str__(self) -> str:
        width = max([len("whole model"), *(len(layer.name) for layer in self.layers)])
        head = f"{'layer':<{width}}  {'shape':>11}  sparsity  dense ms  sparse ms  form"
        lines = [
            f"{layer.name:<{width}}  {'{} x {}'.format(*layer.shape):>11}  {layer.sparsity:>8.1%}  "
            f"{layer.dense_ms:>8.3f}  {layer.sparse_ms:>9.3f}  {layer.form}"
            for layer in self.layers
        ]
        passes = "forward and backward" if self.training else "forward"
        whole = (
            f"{'whole model':<{width}}  {passes}: {self.dense_ms:.3f} ms dense, "
            f"{self.chosen_ms:.3f} ms chosen, {self.speedup:.2f}x"
        )
        return "\n".join([head, *lines, whole])


def accelerate(
    model: nn.Module,
    example: Any,
    *,
    training: bool,
    masks: Masks | Mapping[str, Tensor] | None = None,
) -> tuple[nn.Module, Acceleration]:
    """A copy of the model whose masked linear layers are replaced where that is faster.

    Linear layers are `nn.Linear` and torch_geometric's own, of which its convolutions are made.
    In an `nn.Sequential` a ReLU after such a layer becomes part of it. All layers are timed alone
    and the whole model with them: a copy that is not faster is as dense as the model itself. Its
    parameters are new: give them to a new optimizer.

    Args:
        model: any module on the device it will run on.
        example: a batch as the model takes it; a tuple holds several arguments.
        training: whether the backward pass counts; else only the forward pass.
        masks: of the model's parameters by name; None: the weights that are not 0 are active.
    """
    arguments = example if isinstance(example, tuple) else (example,)
    with torch.random.fork_rng(devices=[]):
        trial = copy.deepcopy(model).train(training)
        found = _masked_layers(trial, masks)
        timings = _time_layers(trial, found, arguments, training)
        faster = {name for name, (dense, sparse) in timings.items() if sparse < dense}
        # All of them too: neighbouring sparse layers pass on data in the form that suits them.
        choices = list(dict.fromkeys(map(frozenset[str], ((), faster, found))))
        models = [_with_sparse(trial, found, choice) for choice in choices]
        seconds = fastest([_step(each, arguments, training) for each in models])
    best = min(range(len(choices)), key=seconds.__getitem__)
    if seconds[best] > (1 - _MARGIN) * seconds[0]:
        best = 0
    layers = tuple(
        LayerTiming(
            name=name,
            shape=(mask.shape[0], mask.shape[1]),
            sparsity=1 - float(mask.sum()) / max(1, mask.numel()),
            dense_ms=timings[name][0] * 1e3,
            sparse_ms=timings[name][1] * 1e3,
            form="sparse" if name in choices[best] else "dense",
        )
        for name, mask in found.items()
        if name in timings
    )
    table = Acceleration(
        layers=layers,
        training=training,
        dense_ms=seconds[0] * 1e3,
        chosen_ms=seconds[best] * 1e3,
    )
    return _with_sparse(model, found, choices[best]), table


def _masked_layers(
    model: nn.Module, masks: Masks | Mapping[str, Tensor] | None
) -> dict[str, Tensor]:
    """Masks of the linear layers that have zeros and share their weight with no other."""
    uses = Counter(id(p) for m in model.modules() for p in m.parameters(recurse=False))
    known = {} if masks is None else {name: masks[name] for name in masks}
    found = {}
    for name, module in model.named_modules():
        # A weight that is no parameter is computed from others at each call.
        if _is_linear(module) and uses[id(module.weight)] == 1:
            weight = _linear(model, name).weight.detach()
            mask = known.get(f"{name}.weight" if name else "weight", weight != 0)
            if not bool(mask.all()):
                found[name] = mask.to(weight.device)
    return found


def _is_linear(module: nn.Module) -> bool:
    """Whether it multiplies and does nothing else, which a subclass might."""
    kind = type(module)
    # Known by its name, as torch_geometric need not be installed.
    geometric = ("torch_geometric.nn.dense.linear", "Linear")
    return kind is nn.Linear or (kind.__module__, kind.__name__) == geometric


def _linear(model: nn.Module, name: str) -> nn.Linear:
    layer = model.get_submodule(name)
    assert _is_linear(layer)
    return cast(nn.Linear, layer)


def _with_sparse(
    model: nn.Module, masks: Mapping[str, Tensor], chosen: frozenset[str]
) -> nn.Module:
    """A copy of the model whose chosen layers are sparse."""
    if "" in chosen:
        return SparseLinear.from_dense(_linear(model, ""), masks[""])
    model = copy.deepcopy(model)
    for name in chosen:
        parent = model.get_submodule(name.rpartition(".")[0])
        own = name.rpartition(".")[2]
        layer = _linear(model, name)
        relu = False
        if isinstance(parent, nn.Sequential):
            place = list(parent._modules).index(own) + 1
            relu = place < len(parent) and type(parent[place]) is nn.ReLU
            # One ReLU may stand in many places.
            relu = relu and sum(m is parent[place] for m in model.modules()) == 1
            if relu:
                parent[place] = FusedReLU()
        setattr(parent, own, SparseLinear.from_dense(layer, masks[name], relu=relu))
    return model


def _time_layers(
    model: nn.Module, masks: Mapping[str, Tensor], arguments: tuple[Any, ...], training: bool
) -> dict[str, tuple[float, float]]:
    """Seconds of each layer, dense and sparse, on the input it has in the model."""
    inputs: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module, given: tuple[Any, ...]) -> None:
        inputs[name] = given[0].detach().requires_grad_(given[0].requires_grad)

    handles = [
        model.get_submodule(name).register_forward_pre_hook(partial(keep, name)) for name in masks
    ]
    with torch.set_grad_enabled(training):
        model(*arguments)
    for handle in handles:
        handle.remove()
    timings = {}
    for name, x in inputs.items():
        layer = _linear(model, name)
        forms = (layer, SparseLinear.from_dense(layer, masks[name]))
        dense, sparse = fastest([_step(form, (x,), training) for form in forms])
        timings[name] = dense, sparse
    return timings


def _step(model: nn.Module, arguments: tuple[Any, ...], training: bool) -> Callable[[], None]:
    """One pass of the model, without an optimizer."""
    parameters = [p for p in model.parameters() if p.requires_grad]

    def step() -> None:
        if not training:
            with torch.inference_mode():
                model(*arguments)
            return
        outputs = [t for t in tensors_in(model(*arguments)) if t.requires_grad]
        if outputs:
            torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
        for parameter in parameters:
            parameter.grad = None

    return step


def fastest(runs: list[Callable[[], None]]) -> list[float]:
    """The least seconds of each run, timed in turns so that disturbances hit all of them alike."""
    for run in runs:
        run()
    best = [float("inf")] * len(runs)
    begin = time.perf_counter()
    for turn in range(_MOST_RUNS):
        for number, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[number] = min(best[number], time.perf_counter() - start)
        if turn >= _LEAST_RUNS and time.perf_counter() - begin > _SECONDS:
            break
    return best
