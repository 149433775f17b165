"""Boolean masks on the weight matrices of any module, kept by an optimizer's hooks."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from weft.sparsify.layer_masks import optimizer_slots, parameter_ids
from weft.sparsify.matrices import Selection, makes_outputs, output_axis, select_weights
from weft.sparsify.structure import Groups, Structure, structure_of


class Masks:
    """Which weights of a model are active; all of them at first.

    Weight matrices are the parameters that multiply features in a product: those of linear,
    convolution and recurrent layers, of torch_geometric's layers and of weft's own. Attention
    vectors, relation coefficients, biases, norms and embeddings are not. A parameter of any other
    layer is left dense unless an `example` shows that it multiplies features, or `include` names
    it. Printed masks show what was left dense and why. A shared weight appears once, by its first
    name. Frozen parameters are left out.

    Args:
        model: any module.
        include: names, or patterns in the form of `fnmatch`, of the parameters to mask; None: all
            weight matrices. An exact name may be any parameter of two or more dimensions.
        exclude: names or patterns of weight matrices to leave as they are.
        example: a batch as the model takes it, a tuple holds several arguments; the model runs
            once, in evaluation mode. None: only the kinds of layers decide.
        required: refuse a model with nothing to mask.
        structure: which weights are kept or removed together, see `weft.sparsify.structure.FORMS`.
            A weight whose sizes do not allow it is left dense; so are weights that make the
            outputs of the model, by their place at its end, where units are removed.

    Attributes:
        selection: the weights that were chosen, and why others were left.
        structure: the structure of all masks.

    Raises:
        ValueError: a name or pattern matches nothing in this model; a parameter that was named is
            frozen; a weight is computed from other parameters at each call, as by weight_norm;
            there is nothing to mask.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        example: Any = None,
        required: bool = True,
        structure: str | Structure = "weights",
    ) -> None:
        self.model, self.structure = model, structure_of(structure)
        selection = select_weights(
            model, include=include, exclude=exclude, example=example, required=required
        )
        self.selection = _fitting(model, selection, self.structure, include or (), required)
        self._weights = self.selection.chosen
        self._groups = {
            name: Groups(
                structure=self.structure,
                shape=tuple(weight.shape),
                axis=0 if self.structure.is_single else output_axis(model, name) or 0,
            )
            for name, weight in self._weights.items()
        }
        self._active = {
            name: torch.ones_like(weight, dtype=torch.bool)
            for name, weight in self._weights.items()
        }
        self._inactive = {name: ~mask for name, mask in self._active.items()}
        self._start_unattached()

    def _start_unattached(self) -> None:
        self.optimizer: Optimizer | None = None
        self.keep_dense = False
        self._before: Callable[[], None] | None = None
        self._after: Callable[[], None] | None = None
        self._gradients_come_later = False
        self._handles: list[Any] = []

    @property
    def names(self) -> list[str]:
        """Names of the masked parameters, as `model.named_parameters()` gives them."""
        return list(self._weights)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the masked parameters."""
        return {name: tuple(weight.shape) for name, weight in self._weights.items()}

    def weight(self, name: str) -> nn.Parameter:
        """The masked parameter itself."""
        return self._weights[self._known(name)]

    def groups(self, name: str) -> Groups:
        """The weights of a parameter that are kept or removed together."""
        return self._groups[self._known(name)]

    def kept(self, name: str) -> Tensor:
        """The groups of a parameter that are active, bool [P, G]."""
        return self.groups(name).kept(self[name], name)

    def gradient(self, name: str) -> Tensor | None:
        """The gradient of the masked parameter, if there is one."""
        return self.weight(name).grad

    def __getitem__(self, name: str) -> Tensor:
        """The mask of a parameter, bool in its shape: True is active. Change it by `set` only."""
        self._known(name)
        self._follow(name)
        return self._active[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def set(self, name: str, mask: Tensor) -> None:
        """Take a copy of `mask` (bool, in the weight's shape); `apply_` makes the weights follow.

        Where weights become active or inactive, the state of the attached optimizer (momenta and
        moments) becomes 0.
        """
        old = self[name]
        if mask.dtype != torch.bool or mask.shape != old.shape:
            raise ValueError(
                f"the mask of {name} is {mask.dtype} {list(mask.shape)}; "
                f"it must be torch.bool {list(old.shape)}"
            )
        self._groups[name].kept(mask, name)
        mask = mask.detach().to(old.device, copy=True)
        if self.optimizer is not None:
            changed = mask ^ old
            for slot in optimizer_slots(self.optimizer, self._weights[name]):
                slot.masked_fill_(changed, 0)
        self._active[name], self._inactive[name] = mask, ~mask

    @torch.no_grad()
    def apply_(self) -> None:
        """Make inactive weights exactly 0, in place."""
        for name, weight in self._weights.items():
            self._follow(name)
            weight.masked_fill_(self._inactive[name], 0)

    def nnz(self, name: str | None = None) -> int:
        """Active weights of one parameter, or of all."""
        return sum(int(self[each].sum()) for each in ([name] if name else self.names))

    def size(self, name: str | None = None) -> int:
        """Weights of one parameter, or of all, active or not."""
        return sum(self.weight(each).numel() for each in ([name] if name else self.names))

    @property
    def sparsity(self) -> float:
        """Share of the masked parameters' weights that is inactive."""
        return 1 - self.nnz() / self.size() if len(self) else 0.0

    def attach(
        self,
        optimizer: Optimizer,
        *,
        before: Callable[[], None] | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        """Let the optimizer's steps leave inactive weights at exactly 0, and apply the masks now.

        Gradients of inactive weights become 0 as soon as they are computed, so that a clipped norm
        is that of the sparse model. While `keep_dense` is true they are kept until the step.

        Args:
            optimizer: of the model; any torch optimizer that takes gradients from `p.grad`.
            before: called when a step's gradients are complete and not masked yet.
            after: called after each step, when inactive weights are 0 again.

        Raises:
            ValueError: the optimizer does not have one of the weights; the masks are attached
                already.
        """
        if self.optimizer is not None:
            raise ValueError("these masks are attached to an optimizer already; detach() them")
        known = parameter_ids(optimizer)
        missing = [name for name, weight in self._weights.items() if id(weight) not in known]
        if missing:
            raise ValueError(
                f"the optimizer does not have {', '.join(missing)}; give it these parameters, or "
                "exclude them"
            )
        self.optimizer, self._before, self._after = optimizer, before, after
        self._register()
        self.apply_()

    def detach(self) -> None:
        """Take the hooks off the optimizer and the weights; masks and weights stay."""
        for handle in self._handles:
            handle.remove()
        self._start_unattached()

    def to_model(self, model: nn.Module) -> Masks:
        """The same masks, as a copy, on another model of the same shape; not attached.

        Raises:
            ValueError: the model has no such parameter, or one of another shape.
        """
        theirs = dict(model.named_parameters(remove_duplicate=False))
        for name, shape in self.shapes.items():
            if name not in theirs or tuple(theirs[name].shape) != shape:
                found = list(theirs[name].shape) if name in theirs else "nothing"
                raise ValueError(
                    f"the other model has {found} as {name} where these masks have {list(shape)}"
                )
        other = copy.copy(self)
        other._start_unattached()
        other.model = model
        other._weights = {name: theirs[name] for name in self.names}
        other.selection = replace(self.selection, chosen=other._weights)
        other._active = {name: mask.clone() for name, mask in self._active.items()}
        other._inactive = {name: mask.clone() for name, mask in self._inactive.items()}
        return other

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the masks by name."""
        return {name: self[name].clone() for name in self.names}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take masks that `state_dict` returned; weights and the optimizer are left as they are.

        Raises:
            ValueError: names or shapes are not those of this model.
        """
        if set(state) != set(self.names):
            odd = sorted(set(state) ^ set(self.names))
            raise ValueError(
                f"the state and the model do not mask the same parameters: {', '.join(odd)} is in "
                "one of them only; choose the same include and exclude"
            )
        optimizer, self.optimizer = self.optimizer, None
        try:
            for name, mask in state.items():
                self.set(name, mask)
        finally:
            self.optimizer = optimizer

    def summary(self) -> str:
        """All parameters in one line."""
        return f"{self.nnz():,} of {self.size():,} weights active, sparsity {self.sparsity:.4f}"

    def __repr__(self) -> str:
        heads = ("weight", "shape", "active", "sparsity")
        rows = [table_row(name, self[name]) for name in self.names]
        lines = [f"Masks: {self.summary()}", table(heads, rows)]
        return "\n".join([*lines, *self.selection.left_lines()])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # The optimizer and the weights of a copy have no hooks.
        self.__dict__.update(state)
        if self.optimizer is not None:
            self._register()

    def _register(self) -> None:
        assert self.optimizer is not None
        self._handles = [
            self.optimizer.register_step_pre_hook(self._before_step),
            self.optimizer.register_step_post_hook(self._after_step),
        ]
        weights: dict[str, Any] = dict(self._weights)
        for name, weight in weights.items():
            hook = partial(self._after_backward, name)
            self._handles.append(weight.register_post_accumulate_grad_hook(hook))

    def _after_backward(self, name: str, _: Tensor) -> None:
        if not self.keep_dense:
            self._mask_gradient(name)

    @torch.no_grad()
    def _mask_gradient(self, name: str) -> None:
        gradient = self._weights[name].grad
        if gradient is not None:
            self._follow(name)
            gradient.masked_fill_(self._inactive[name], 0)

    def _before_step(self, _: Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        # The first argument is the optimizer. A closure computes the gradients within the step.
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        self._gradients_come_later = closure is not None
        if not self._gradients_come_later:
            self._take_gradients()

    def _after_step(self, *_: object) -> None:
        if self._gradients_come_later:
            self._take_gradients()
        self.apply_()
        if self._after is not None:
            self._after()

    def _take_gradients(self) -> None:
        if self._before is not None:
            self._before()
        for name in self._weights:
            self._mask_gradient(name)

    def _follow(self, name: str) -> None:
        """Move a mask to the device that `model.to(device)` has moved the weight to."""
        device = self._weights[name].device
        if self._active[name].device != device:
            self._active[name] = self._active[name].to(device)
            self._inactive[name] = self._inactive[name].to(device)

    def _known(self, name: str) -> str:
        if name not in self._weights:
            raise ValueError(f"{name!r} is not masked; there are {', '.join(self._weights)}")
        return name


def table_row(name: str, mask: Tensor) -> tuple[str, str, str, str]:
    """Name, shape, active weights and sparsity of a mask, as text."""
    active = int(mask.sum())
    shape = " × ".join(map(str, mask.shape))
    return name, shape, f"{active:,}", f"{1 - active / mask.numel():.4f}"


def check_same_model(model: nn.Module, masks: Masks) -> None:
    """Raise ValueError where the masks are those of another model, be it the original of a copy."""
    ours = {id(parameter) for parameter in model.parameters()}
    if not all(id(masks.weight(name)) in ours for name in masks):
        raise ValueError(
            "the masks are of another model's weights; make them with Masks(model) or "
            "masks.to_model(model)"
        )


def top(scores: Tensor, count: int) -> Tensor:
    """Ascending int64 indices of the `count` largest scores [n]; the first index wins among equals.

    NaN is smaller than anything.
    """
    return best(scores[None], count)[0].nonzero().flatten()


def best(scores: Tensor, counts: Tensor | int) -> Tensor:
    """Bool [P, G], True for the largest scores [P, G] of each row; the first wins among equals.

    NaN is smaller than anything.

    Args:
        scores: of any dtype.
        counts: how many of a row, at most G; int64 [P], or one number for all.
    """
    if isinstance(counts, int):
        most = counts
        assert 0 <= most <= scores.shape[1], (counts, scores.shape)
    else:
        most = int(counts.max()) if counts.numel() else 0
    if most == 0 or (isinstance(counts, int) and most == scores.shape[1]):
        return torch.full_like(scores, most > 0, dtype=torch.bool)
    scores = torch.where(scores.isnan(), -math.inf, scores.detach().to(_comparable(scores.dtype)))
    largest = torch.topk(scores, most, dim=1, sorted=isinstance(counts, Tensor)).values
    if isinstance(counts, int):
        wanted = scores.new_full((1, 1), counts, dtype=torch.int64)
        least = largest.min(1, keepdim=True).values
    else:
        wanted = counts.to(scores.device)[:, None]
        least = largest.gather(1, (wanted - 1).clamp(min=0))
    above, equal = scores > least, scores == least
    # Only as many of the equal ones as are missing, from the first on.
    chosen = above | (equal & (equal.cumsum(1) <= wanted - above.sum(1, keepdim=True)))
    return chosen & (wanted > 0)


def random_order(size: int, *key: int) -> Tensor:
    """The numbers below `size` in an order that depends on the key alone, int64 [size]."""
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed))


def _fitting(
    model: nn.Module,
    selection: Selection,
    structure: Structure,
    named: Sequence[str],
    required: bool,
) -> Selection:
    """The weights that may have the structure, and why the others are left dense.

    Raises:
        ValueError: one that was named may not, or none may and one is `required`.
    """
    chosen, left = selection.chosen, {}
    if structure.is_single:
        return selection
    if structure.columns == 0:
        last = makes_outputs(model, list(chosen))
        left = dict.fromkeys(last, "its units are the outputs of the model")
    for name, weight in chosen.items():
        misfit = structure.misfit(weight.shape, output_axis(model, name))
        if misfit is not None:
            left[name] = misfit
        elif name in named:
            left.pop(name, None)
    for name in left:
        if name in named:
            raise ValueError(
                f"structure {structure} does not fit {name} {list(chosen[name].shape)}: "
                f"{left[name]}; leave it out of include, or choose another structure"
            )
    fitting = {name: weight for name, weight in chosen.items() if name not in left}
    if required and not fitting:
        reasons = "; ".join(f"{name}: {why}" for name, why in left.items())
        raise ValueError(
            f"structure {structure} fits no weight of {type(model).__name__} ({reasons}): choose "
            "another structure"
        )
    return replace(selection, chosen=fitting, left={**selection.left, **left})


def mask_of(indices: Tensor, like: Tensor) -> Tensor:
    """Bool in the shape of `like`, True at these flat indices."""
    mask = torch.zeros(like.numel(), dtype=torch.bool, device=like.device)
    mask[indices.to(like.device)] = True
    return mask.view(like.shape)


def _comparable(dtype: torch.dtype) -> torch.dtype:
    # float32 has no room for large whole numbers.
    exact = dtype.is_floating_point and dtype != torch.float64
    return torch.float32 if exact else torch.float64


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side: the first aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = []
    for row in (heads, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  " + "  ".join(cells))
    return "\n".join(lines)
