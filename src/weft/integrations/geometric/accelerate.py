"""`weft.accelerate`: torch_geometric's layers in any model, on weft's loops if that is faster."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch_geometric.nn.conv import MessagePassing

from weft.integrations.geometric import redirect
from weft.sparsify.accelerate import fastest
from weft.training.numerics import keep_freed_memory

# Largest rounding error allowed, relative to the largest value of a result.
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
_FUSED = "fused messages"


@dataclass(frozen=True, kw_only=True)
class LayerReport:
    """One row of the table that `accelerate` prints.

    Attributes:
        name: name of the module.
        kind: name of its class.
        done: what was done, or why nothing was.
        before_ms: milliseconds of a forward and backward pass before acceleration.
        after_ms: milliseconds of a forward and backward pass after it.
        error: largest difference of outputs and gradients, relative to their largest value.
    """

    name: str
    kind: str
    done: str
    before_ms: float | None = None
    after_ms: float | None = None
    error: float | None = None


def accelerate(
    model: nn.Module,
    example: Any = None,
    *,
    report: Callable[[str], object] | None = print,
) -> nn.Module:
    """Run torch_geometric's layers in `model` on weft's loops, in place; `restore` undoes it.

    The model keeps its parameters, state_dict, hooks and code, and gives the same results to
    rounding. A deep copy is accelerated as well; a model loaded from a pickle is not. Layers also
    need less memory, because messages are rarely stored. Calls that weft has no loops for (other
    devices, half precision, hooks that read messages, torch.compile) run as before. An edge_index
    that is changed through `.data` or numpy is not noticed. The process keeps freed memory for the
    next step from now on (`weft.training.numerics.keep_freed_memory`), even after `restore`.

    Args:
        model: any module with layers of torch_geometric, or with own classes of MessagePassing.
        example: arguments of the model: a batch, a tuple, or a dict of named arguments. Each layer
            is then compared and timed on its own inputs, forward and backward, and left alone
            unless it is faster. Without an example every layer is accelerated.
        report: called with the table of layers; None prints nothing.
    """
    keep_freed_memory()
    layers = {name: m for name, m in model.named_modules() if isinstance(m, MessagePassing)}
    others = [m for m in model.modules() if not isinstance(m, MessagePassing)]
    rows = [_planned(name, layer) for name, layer in layers.items()]
    if example is not None:
        # On a copy, because a pass may change buffers and clears gradients.
        trial = restore(copy.deepcopy(model))
        calls = _calls(trial, {name: trial.get_submodule(name) for name in layers}, example)
        rows = [_compared(row, trial.get_submodule(row.name), calls) for row in rows]
    for row in rows:
        change = redirect.redirect if row.done == _FUSED else redirect.undo
        change(layers[row.name])
    for module in others:
        redirect.redirect(module)
    if report is not None:
        report(_table(model, rows))
    return model


def restore(model: nn.Module) -> nn.Module:
    """Undo `accelerate`, in place."""
    for module in model.modules():
        redirect.undo(module)
    return model


Call = tuple[tuple[Any, ...], dict[str, Any]]


def _calls(model: nn.Module, layers: dict[str, Any], example: Any) -> dict[nn.Module, Call]:
    """The arguments of each layer when the model runs on the example."""
    found: dict[nn.Module, Call] = {}

    def keep(module: nn.Module, args: Any, kwargs: Any) -> None:
        found.setdefault(module, tree_map(_detached, (args, kwargs)))

    handles = [m.register_forward_pre_hook(keep, with_kwargs=True) for m in layers.values()]
    arguments = example if isinstance(example, tuple | list) else (example,)
    named: dict[str, Any] = {}
    if isinstance(example, dict):
        arguments, named = (), example
    try:
        with torch.random.fork_rng(devices=[]):
            model(*arguments, **named)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _detached(value: Any) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.detach().requires_grad_(value.requires_grad)


def _planned(name: str, layer: Any) -> LayerReport:
    reason = redirect.stock_reason(layer)
    done = _FUSED if reason is None else f"left alone: {reason}"
    return LayerReport(name=name, kind=type(layer).__name__, done=done)


def _compared(row: LayerReport, layer: nn.Module, calls: dict[nn.Module, Call]) -> LayerReport:
    """The report after comparing and timing a stock layer and its redirected copy."""
    call = calls.get(layer)
    if row.done != _FUSED:
        return row
    if call is None:
        return replace(row, done="left alone: the example does not reach it")
    fast = copy.deepcopy(layer)
    redirect.redirect(fast)
    try:
        error = _difference(copy.deepcopy(layer), copy.deepcopy(fast), call)
    except Exception as problem:
        said = f"left alone: {type(problem).__name__}: {problem}"
        return replace(row, done=said.splitlines()[0])
    if not error <= _TOLERANCE.get(_dtype(call), 1e-4):
        return replace(row, done="left alone: its result would differ", error=error)
    before, after = fastest([_step(layer, call), _step(fast, call)])
    done = row.done if after < before else "left alone: not faster"
    return replace(row, done=done, before_ms=before * 1e3, after_ms=after * 1e3, error=error)


def _dtype(call: Call) -> torch.dtype:
    floats = [t for t in tree_leaves(call) if isinstance(t, Tensor) and t.is_floating_point()]
    return floats[0].dtype if floats else torch.float32


def _results(layer: nn.Module, call: Call) -> list[Tensor]:
    """Outputs and gradients of a call."""
    args, kwargs = tree_map(_detached, call)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        outputs = [t for t in tree_leaves(layer(*args, **kwargs)) if isinstance(t, Tensor)]
    learning = [t for t in outputs if t.requires_grad]
    wanted = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.requires_grad]
    wanted += [p for p in layer.parameters() if p.requires_grad]
    gradients: list[Any] = []
    if learning and wanted:
        ones = [torch.linspace(0.5, 1.5, t.numel(), dtype=t.dtype).view_as(t) for t in learning]
        gradients = list(torch.autograd.grad(learning, wanted, ones, allow_unused=True))
    return [torch.zeros(0) if t is None else t.detach() for t in (*outputs, *gradients)]


def _difference(layer: nn.Module, fast: nn.Module, call: Call) -> float:
    worst = 0.0
    for ours, theirs in zip(_results(fast, call), _results(layer, call), strict=True):
        if ours.shape != theirs.shape:
            return float("inf")
        finite = theirs.isfinite()
        if not torch.isclose(ours[~finite], theirs[~finite], equal_nan=True).all():
            return float("inf")
        if not ours[finite].isfinite().all():
            return float("inf")
        if finite.any():
            scale = float(theirs[finite].abs().max()) or 1.0
            worst = max(worst, float((ours[finite] - theirs[finite]).abs().max()) / scale)
    return worst


def _step(layer: nn.Module, call: Call) -> Callable[[], None]:
    def step() -> None:
        args, kwargs = tree_map(_detached, call)
        outputs = [t for t in tree_leaves(layer(*args, **kwargs)) if isinstance(t, Tensor)]
        learning = [t for t in outputs if t.requires_grad]
        if learning:
            torch.autograd.backward(learning, [torch.ones_like(t) for t in learning])
        for parameter in layer.parameters():
            parameter.grad = None

    return step


def _table(model: nn.Module, rows: list[LayerReport]) -> str:
    if not rows:
        return (
            f"{type(model).__name__} has no layer of torch_geometric; weft.accelerate leaves it as "
            "it is"
        )
    names = [f"{row.name or '(model)'}: {row.kind}" for row in rows]
    width = max(len("layer"), *map(len, names))
    lines = [f"{'layer':<{width}}  {'before ms':>9}  {'after ms':>9}  {'error':>8}  what was done"]
    for name, row in zip(names, rows, strict=True):
        before = "" if row.before_ms is None else f"{row.before_ms:.2f}"
        after = "" if row.after_ms is None else f"{row.after_ms:.2f}"
        error = "" if row.error is None else f"{row.error:.0e}"
        lines.append(f"{name:<{width}}  {before:>9}  {after:>9}  {error:>8}  {row.done}")
    return "\n".join(lines)
