"""torch operators with a short way for eager mode.

A call of a torch custom operator takes 50-80 µs of Python before anything is computed: as long as
a whole loop over a small batch. The tracer needs all that; a plain call does not, so it goes
straight to the implementation through an autograd Function made of the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from weft.runtime import gemm_address

_PLAIN = (Tensor, nn.Parameter)


class Operator:
    """What `operator` makes.

    Attributes:
        op: the torch operator.
    """

    def __init__(self, name: str, implementation: Callable[..., Any]) -> None:
        self.op = torch.library.custom_op(name, implementation, mutates_args=())
        self.register_fake = self.op.register_fake
        self.__doc__ = implementation.__doc__
        self._implementation = implementation
        self._eager = _function(implementation, None, None)

    def register_autograd(
        self, backward: Callable[..., Any], *, setup_context: Callable[..., Any]
    ) -> None:
        """As torch's; `backward` is made of Operators and torch functions."""
        self.op.register_autograd(backward, setup_context=setup_context)
        self._eager = _function(self._implementation, backward, setup_context)

    def __call__(self, *arguments: Any) -> Any:
        """Compute it; the first argument is a tensor."""
        if torch.compiler.is_compiling() or not is_plain(arguments[0]):
            return self.op(*arguments)
        if not (torch.is_grad_enabled() or torch._C._autograd._profiler_enabled()):
            # As in nearly every backward pass: there is nothing to record, nor a name to show.
            return self._implementation(*arguments)
        return self._eager(*arguments)


def operator(name: str) -> Callable[[Callable[..., Any]], Operator]:
    """Decorator that makes a torch operator of a function; its annotations are the schema."""
    return lambda implementation: Operator(name, implementation)


def save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """A setup_context that saves all tensors among the inputs, and keeps the others in ctx.others.

    The backward pass then has ctx.saved_tensors in the order of the inputs.
    """
    ctx.save_for_backward(*(t for t in inputs if t is None or isinstance(t, Tensor)))
    ctx.others = [t for t in inputs if not (t is None or isinstance(t, Tensor))]


def _function(
    implementation: Callable[..., Any],
    backward: Callable[..., Any] | None,
    setup: Callable[..., Any] | None,
) -> Callable[..., Any]:
    gives_list = implementation.__annotations__["return"] == list[Tensor]

    class Eager(torch.autograd.Function):
        # One function with ctx: torch would inspect the signature of a separate forward at each
        # call.
        @staticmethod
        def forward(ctx: Any, *arguments: Any) -> Any:
            out = implementation(*arguments)
            if setup is not None:
                setup(ctx, arguments, out)
            # Only tuples of tensors are part of the graph.
            return tuple(out) if gives_list else out

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            if backward is None:
                raise RuntimeError(f"{implementation.__name__} has no derivative")
            return backward(ctx, list(grads)) if gives_list else backward(ctx, *grads)

    # The name that a profile shows.
    Eager.__name__ = implementation.__name__.strip("_")
    apply: Callable[..., Any] = Eager.apply
    return apply


def is_plain(tensor: Tensor) -> bool:
    """Whether it is a tensor or parameter of torch's own, not one that stands for something."""
    return type(tensor) in _PLAIN


def has_loop(*tensors: Tensor | None) -> bool:
    """Whether the compiled loops take these tensors: float32 or float64 on the CPU."""
    return all(
        t is None or (t.device.type == "cpu" and t.dtype in (torch.float32, torch.float64))
        for t in tensors
    )


def have_one_loop(*tensors: Tensor | None) -> bool:
    """Whether a loop that reads one dtype takes all these tensors."""
    given = [t for t in tensors if t is not None]
    return has_loop(*given) and all(t.dtype == given[0].dtype for t in given)


def is_fusable(*tensors: Tensor | None) -> bool:
    """Whether operators of several layers, such as `interaction`, take these tensors here and now.

    They are of one dtype that has a loop, and nothing records what is computed but autograd.
    """
    first = tensors[0]
    assert first is not None
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    dtype = first.dtype
    if not (has_loop(first) and gemm_address(dtype)):
        return False
    return all(t is None or (is_plain(t) and t.dtype == dtype and t.is_cpu) for t in tensors)


def differentiable_gradients(
    ctx: Any, function: Callable[..., Tensor], given: Sequence[Tensor | None], grad: Tensor
) -> list[Tensor | None]:
    """The gradients of function(*given) as functions of all that they depend on.

    For the backward of an autograd Function whose first arguments are `given`, when its gradient is
    itself to be differentiated: its loops have no derivatives, but `function`, which computes the
    same, has.
    """
    # Views, so that a tensor made from another one is no way to that one.
    views: list[Any] = [None if t is None else t.view_as(t) for t in given]
    wanted = [k for k in range(len(views)) if ctx.needs_input_grad[k]]
    found: list[Tensor | None] = [None] * len(views)
    gradients = torch.autograd.grad(
        function(*views), [views[k] for k in wanted], grad, create_graph=True
    )
    for k, gradient in zip(wanted, gradients, strict=True):
        found[k] = gradient
    return found


def array_of(tensor: Tensor | None) -> Any:
    """The tensor as a loop takes it, a contiguous numpy array."""
    if tensor is None:
        return None
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.contiguous().numpy()


def require(right: bool, message: str, *tensors: Tensor | None) -> None:
    """The compiled loops trust their arguments, so nothing may reach them unchecked."""
    if not right:
        shapes = ", ".join("none" if t is None else str(list(t.shape)) for t in tensors)
        raise ValueError(f"{message}; the shapes are {shapes}")
