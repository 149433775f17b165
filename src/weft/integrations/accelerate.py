"""`weft.accelerate`: layers of any model in the form that is fastest here, and back.

Layers of torch_geometric run on weft's loops, masked linear layers hold only their weights.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from weft.sparsify import Masks
from weft.sparsify.products import tensors_in
from weft.sparsify.replacement import dense_reason, put_dense, put_sparse
from weft.sparsify.sparse_layers import SparseLinear
from weft.training.numerics import keep_freed_memory
from weft.training.timing import fastest

# Largest rounding error allowed, relative to the largest value of a result.
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
_SLOWER = "left alone: not faster"
# A model with sparse layers must win by this much: noise never makes a model slower than it was.
_MARGIN = 0.05


@dataclass(frozen=True, kw_only=True)
class LayerReport:
    """One row of the table that `accelerate` prints.

    Attributes:
        name: name of the module.
        kind: name of its class.
        done: how the layer is computed now, or why it was left alone.
        before_ms: milliseconds of a pass before acceleration: forward, in training also backward.
        after_ms: milliseconds of a pass after it.
        error: largest difference of outputs and gradients, relative to their largest value.
    """

    name: str
    kind: str
    done: str
    before_ms: float | None = None
    after_ms: float | None = None
    error: float | None = None

    @property
    def left_alone(self) -> bool:
        """Whether the layer was left alone."""
        return self.done.startswith("left alone")

    @property
    def is_faster(self) -> bool:
        """Whether the layer was timed and became faster."""
        if self.before_ms is None or self.after_ms is None:
            return False
        return self.after_ms < self.before_ms


def accelerate(
    model: nn.Module,
    example: Any = None,
    *,
    masks: Masks | Mapping[str, Tensor] | None = None,
    report: Callable[[str], object] | None = print,
) -> nn.Module:
    """Run the layers of `model` in the form that is fastest here, in place; `restore` undoes it.

    Layers of torch_geometric run on weft's loops. The model keeps its parameters, state_dict, hooks
    and code, and gives the same results to rounding. A deep copy is accelerated as well; in a
    shallow copy and in a pickle these layers are not, but sparse ones are sparse. Layers also need
    less memory, because messages are rarely stored. Edges may be an edge_index, an EdgeIndex or a
    torch.sparse adjacency; aggregations, scatter, softmax and pooling that the model calls by
    itself are covered as well. Calls that weft has no
    loops for (other devices, half precision, hooks that read messages, torch.compile), and calls
    with few edges, run as before. An edge_index that is changed through `.data` or numpy is not
    noticed. The process keeps freed memory for the next step from now on
    (`weft.training.numerics.keep_freed_memory`), even after `restore`.

    Linear layers that are masked (torch's, and those in torch_geometric's layers) become
    `weft.sparsify.SparseLinear`, where the whole model is faster with them. Such a layer has
    `values` in place of `weight`: make the optimizer afterwards. `restore` gives the layer its
    `weight` again, the same parameter, with its current values and zeros.

    Args:
        model: any module on the device that it will run on.
        example: arguments of the model: a batch, a tuple, or a dict of named arguments. Each layer
            is then compared and timed on its own inputs, forward and (if the model is in training
            mode) backward, and left alone unless it is faster. Without an example every layer of
            torch_geometric is accelerated.
        masks: of the model's parameters by name, bool, True where a weight is active; the others
            must be 0. None: no layer becomes sparse.
        report: called with the table of layers; None prints nothing.

    Raises:
        ValueError: masks without an example, or for other parameters than the model's, or masks
            that an optimizer still applies, or a model that cannot be copied.
    """
    if masks is not None:
        _check_masks(model, example, masks)
    keep_freed_memory()
    rows = [_planned(name, layer) for name, layer in message_layers(model).items()]
    if example is not None:
        with torch.random.fork_rng(devices=[]):
            rows, sparse = _tried(model, rows, _call(example), masks)
        if masks is not None:
            put_dense(model)
            put_sparse(model, sparse)
    # Where all layers stay as they are, so do the aggregations and gated units between them.
    stays = rows and all(row.left_alone for row in rows)
    _redirect(model, None if stays else rows)
    if report is not None:
        report(_table(model, rows))
    return model


def restore(model: nn.Module) -> nn.Module:
    """Undo `accelerate`, in place."""
    _redirect(model, None)
    put_dense(model)
    return model


def message_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers of torch_geometric in a model, by name.

    Own classes of its MessagePassing are among them, and models of it that run as one.
    """
    geometric = _geometric()
    found: dict[str, nn.Module] = {}
    inside: set[nn.Module] = set()
    for name, module in model.named_modules() if geometric is not None else ():
        if geometric.is_layer(module) and module not in inside:
            found[name] = module
            inside.update(geometric.parts_of(module))
    return found


Call = tuple[tuple[Any, ...], dict[str, Any]]


def _check_masks(model: nn.Module, example: Any, masks: Masks | Mapping[str, Tensor]) -> None:
    if example is None:
        raise ValueError(
            "masks need an example: whether a sparse layer is faster depends on its batch"
        )
    if isinstance(masks, Masks) and masks.optimizer is not None:
        raise ValueError(
            "the masks are attached to an optimizer of the dense weights, which sparse layers do "
            "not have: masks.detach(), and make a new optimizer after weft.accelerate"
        )


def _geometric() -> Any:
    """The module that redirects layers of torch_geometric; None if no model can have any."""
    # A model with such layers has imported them; for any other they need not be installed.
    if "torch_geometric.nn" not in sys.modules:
        return None
    from weft.integrations.geometric import redirect

    return redirect


def _redirect(model: nn.Module, rows: Iterable[LayerReport] | None) -> None:
    """Run modules on weft's loops, except layers whose row says no; None: no module at all."""
    geometric = _geometric()
    if geometric is not None:
        left = [model.get_submodule(row.name) for row in rows or () if row.left_alone]
        stay = {part for layer in left for part in geometric.parts_of(layer)}
        for module in model.modules():
            stays = rows is None or module in stay
            (geometric.undo if stays else geometric.redirect)(module)


def _masked(
    model: nn.Module, masks: Masks | Mapping[str, Tensor]
) -> list[tuple[LayerReport, Tensor]]:
    """The layers with inactive weights and their masks."""
    found = []
    for name in masks:
        reason = dense_reason(model, name)
        mask = masks[name].to(model.get_parameter(name).device)
        if not bool(mask.all()):
            layer, shape = name.rpartition(".")[0], " x ".join(map(str, mask.shape))
            done = f"sparse: {float(mask.sum()) / mask.numel():.1%} of {shape} weights"
            done = done if reason is None else f"left alone: {reason}"
            kind = type(model.get_submodule(layer)).__name__
            found.append((LayerReport(name=layer, kind=kind, done=done), mask))
    return found


def _tried(
    model: nn.Module,
    rows: list[LayerReport],
    call: Call,
    masks: Masks | Mapping[str, Tensor] | None,
) -> tuple[list[LayerReport], dict[str, Tensor]]:
    """All reports after an example, and the masks of the layers that become sparse, by layer."""
    # On a copy, because a pass may change buffers and clears gradients.
    trial = _copy(model)
    _redirect(trial, None)
    if masks is not None:
        put_dense(trial)
    masked = _masked(trial, masks or {})
    inputs = _inputs(trial, {row.name for row in (*rows, *(row for row, _ in masked))}, call)
    rows = [_fused(row, trial.get_submodule(row.name), inputs) for row in rows]
    if masks is None:
        return rows, {}
    _redirect(trial, rows)
    more, sparse = _sparse(trial, masked, inputs, call)
    return rows + more, sparse


def _inputs(model: nn.Module, names: Iterable[str], call: Call) -> dict[str, Call]:
    """The arguments of each layer in a call of the model."""
    found: dict[str, Call] = {}

    def keep(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        found.setdefault(name, _anew((args, kwargs), _detached))

    handles = [
        model.get_submodule(name).register_forward_pre_hook(partial(keep, name), with_kwargs=True)
        for name in names
    ]
    try:
        args, kwargs = _anew(call, _detached)
        model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _call(example: Any) -> Call:
    if isinstance(example, dict):
        return (), example
    return tuple(example) if isinstance(example, tuple | list) else (example,), {}


def _anew(call: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The arguments of a call with their tensors changed.

    Graphs of torch_geometric are copies, because many models assign to their attributes.
    """
    kinds: Any = sys.modules.get("torch_geometric.data.data")

    def one(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value)
        if kinds is not None and isinstance(value, kinds.BaseData):
            value = copy.copy(value)
            for store in value.stores:
                for key in list(store.keys()):
                    store[key] = tree_map(one, store[key])
        return value

    return tree_map(one, call)


def _detached(value: Tensor) -> Tensor:
    if not value.is_floating_point():
        return value
    return value.detach().requires_grad_(value.requires_grad)


# Fewer numbers of nodes are a batch, whose edges are sorted at every step; more are one graph.
_ONE_GRAPH = 2_000_000


def _unseen(value: Tensor) -> Tensor:
    """A detached tensor; edges of a batch are copied, as a loader gives new ones at every step."""
    if not value.is_floating_point() and value.numel() < _ONE_GRAPH:
        return value.clone()
    return _detached(value)


def _planned(name: str, layer: nn.Module) -> LayerReport:
    reason = _geometric().stock_reason(layer)
    done = "on weft's loops" if reason is None else f"left alone: {reason}"
    return LayerReport(name=name, kind=type(layer).__name__, done=done)


def _fused(row: LayerReport, layer: nn.Module, inputs: Mapping[str, Call]) -> LayerReport:
    """The report on a layer of torch_geometric and its redirected copy."""
    if row.left_alone:
        return row
    from weft.integrations.geometric.running import AS_IT_IS, noted

    fast = _copy(layer)
    for part in _geometric().parts_of(fast):
        _geometric().redirect(part)
    with noted() as notes:
        row = _compared(row, layer, fast, inputs.get(row.name))
    if row.before_ms is None:
        return row
    if list(notes) == [AS_IT_IS]:
        return replace(row, done="left alone: too few edges, or weft has no loops for this call")
    return replace(
        row, done="; ".join(notes) or "rewritten as a whole" if row.is_faster else _SLOWER
    )


def _sparse(
    model: nn.Module,
    masked: Sequence[tuple[LayerReport, Tensor]],
    inputs: Mapping[str, Call],
    call: Call,
) -> tuple[list[LayerReport], dict[str, Tensor]]:
    """Reports on masked layers and on the whole model; masks of the layers that become sparse."""
    rows, masks = [], {}
    for row, mask in masked:
        if row.done.startswith("sparse"):
            layer: Any = model.get_submodule(row.name)
            fast = SparseLinear.from_dense(layer, mask)
            row = _compared(row, layer, fast, inputs.get(row.name), mask)
            if row.before_ms is not None:
                masks[row.name] = mask
        rows.append(row)
    faster = [row.name for row in rows if row.is_faster]
    choices: list[tuple[str, ...]] = []
    errors: list[float] = []
    steps: list[Callable[[], None]] = []
    refused: dict[str, str] = {}
    # All of them too: neighbouring sparse layers pass on data in the form that suits them.
    for choice in dict.fromkeys(map(tuple, ((), faster, masks))):
        each = _copy(model)
        put_sparse(each, {name: masks[name] for name in choice})
        step = _step(each, call)
        try:
            with torch.no_grad():
                error = _difference(_copy(model), _copy(each), call)
            step()
        except Exception as problem:
            # The model's own code may ask for a linear layer.
            refused.update(dict.fromkeys(choice or masks, _reason(problem)))
            if not choice:
                return [replace(row, done=refused.get(row.name, row.done)) for row in rows], {}
        else:
            choices.append(choice)
            errors.append(error)
            steps.append(step)
    seconds = fastest(steps)
    best = min(range(len(choices)), key=seconds.__getitem__)
    exact = errors[best] <= _TOLERANCE.get(_dtype(call), 1e-4)
    if not exact or seconds[best] > (1 - _MARGIN) * seconds[0]:
        best = 0
    rows = [
        row
        if row.before_ms is None or row.name in choices[best]
        else replace(row, done=refused.get(row.name, _SLOWER))
        for row in rows
    ]
    whole = LayerReport(
        name="",
        kind=type(model).__name__,
        done=f"whole model: {len(choices[best])} of {len(rows)} masked layers are sparse",
        before_ms=seconds[0] * 1e3,
        after_ms=seconds[best] * 1e3,
        error=errors[best],
    )
    return [*rows, whole], {name: masks[name] for name in choices[best]}


def _compared(
    row: LayerReport,
    layer: nn.Module,
    fast: nn.Module,
    call: Call | None,
    mask: Tensor | None = None,
) -> LayerReport:
    """The report after comparing a layer with its fast form; with times if the results agree."""
    if call is None:
        return replace(row, done="left alone: the example does not reach it")
    try:
        error = _difference(_copy(layer), _copy(fast), call, mask)
        if not error <= _TOLERANCE.get(_dtype(call), 1e-4):
            return replace(row, done="left alone: its result would differ", error=error)
        before, after = fastest([_step(layer, call), _step(fast, call)])
    except Exception as problem:
        return replace(row, done=_reason(problem))
    return replace(row, before_ms=before * 1e3, after_ms=after * 1e3, error=error)


def _reason(problem: Exception) -> str:
    return f"left alone: {type(problem).__name__}: {problem}".splitlines()[0]


def _copy(model: nn.Module) -> nn.Module:
    """A deep copy; what the model keeps of its last call is there without its graph.

    Raises:
        ValueError: the model has something that cannot be copied.
    """
    kept = (t for module in model.modules() for t in tensors_in(dict(vars(module))))
    memo: dict[int, Any] = {id(t): t.detach().clone() for t in kept if not t.is_leaf}
    try:
        return copy.deepcopy(model, memo)
    except Exception as problem:
        raise ValueError(
            f"the model cannot be copied, and only a copy is tried on the example "
            f"({type(problem).__name__}: {problem}); call weft.accelerate without an example, or "
            "before the model stores such a thing"
        ) from problem


def _dtype(call: Call) -> torch.dtype:
    floats = [t for t in tensors_in(call) if t.is_floating_point()]
    return floats[0].dtype if floats else torch.float32


def _results(layer: nn.Module, call: Call, mask: Tensor | None = None) -> list[Tensor]:
    """Outputs and gradients of a call; of `layer.weight` those where the mask is True."""
    args, kwargs = _anew(call, _detached)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        outputs = tensors_in(layer(*args, **kwargs))
    learning = [t for t in outputs if t.requires_grad]
    wanted = [t for t in (*tensors_in((args, kwargs)), *layer.parameters()) if t.requires_grad]
    gradients: list[Any] = []
    if learning and wanted:
        ones = [torch.linspace(0.5, 1.5, t.numel()).to(t).view_as(t) for t in learning]
        gradients = list(torch.autograd.grad(learning, wanted, ones, allow_unused=True))
    if mask is not None:
        of_weight = (t is layer.weight for t in wanted)
        gradients = [g[mask] if w else g for g, w in zip(gradients, of_weight, strict=True)]
    return [torch.zeros(0) if t is None else t.detach() for t in (*outputs, *gradients)]


def _difference(layer: nn.Module, fast: nn.Module, call: Call, mask: Tensor | None = None) -> float:
    worst = 0.0
    for ours, theirs in zip(_results(fast, call), _results(layer, call, mask), strict=True):
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
    """One pass, without an optimizer: forward, and backward in training mode."""

    def step() -> None:
        args, kwargs = _anew(call, _unseen)
        with torch.set_grad_enabled(layer.training):
            outputs = tensors_in(layer(*args, **kwargs))
        learning = [t for t in outputs if t.requires_grad]
        if learning and layer.training:
            torch.autograd.backward(learning, [torch.ones_like(t) for t in learning])
        for parameter in layer.parameters():
            parameter.grad = None

    return step


def _table(model: nn.Module, rows: list[LayerReport]) -> str:
    geometric = _geometric()
    if not rows and geometric and any(map(geometric.is_redirected, model.modules())):
        return (
            f"{type(model).__name__} has no layer of messages; its aggregations and pooling, "
            "and gated units, run on weft's loops where they are large"
        )
    if not rows:
        return (
            f"{type(model).__name__} has no layer of torch_geometric, and there are no masks; "
            "weft.accelerate leaves it as it is"
        )
    names = [f"{row.name or '(model)'}: {row.kind}" for row in rows]
    width = max(len("layer"), *map(len, names))
    if all(row.before_ms is None for row in rows):
        # Without an example nothing was timed.
        return "\n".join(
            f"{name:<{width}}  {row.done}" for name, row in zip(names, rows, strict=True)
        )
    lines = [f"{'layer':<{width}}  {'before ms':>9}  {'after ms':>9}  {'error':>8}  what was done"]
    for name, row in zip(names, rows, strict=True):
        before = "" if row.before_ms is None else f"{row.before_ms:.2f}"
        after = "" if row.after_ms is None else f"{row.after_ms:.2f}"
        error = "" if row.error is None else f"{row.error:.0e}"
        lines.append(f"{name:<{width}}  {before:>9}  {after:>9}  {error:>8}  {row.done}")
    return "\n".join(lines)
