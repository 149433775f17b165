"""torch operators with a short way for eager mode.

A call of a torch custom operator takes 50-80 µs of Python before anything is computed: as long as
a whole loop over a small batch. The tracer needs all that; a plain call does not, so it goes
straight to the implementation through an autograd Function made of the same parts.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast, get_args

import torch
from torch import Tensor, nn

from weft.kernels.backends import loops_allowed
from weft.runtime import gemm_address

_PLAIN = (Tensor, nn.Parameter)
Formula = TypeVar("Formula", bound=Callable[..., Any])


def _tensors(ctx: Any, inputs: tuple[Any, ...], output: Any) -> list[Tensor | None]:
    return [t for t in inputs if t is None or isinstance(t, Tensor)]


class Operator:
    """What `operator` makes.

    Attributes:
        op: the torch operator.
        empty: makes the outputs for some arguments, not filled yet; the tracer calls it too.
    """

    def __init__(
        self, name: str, empty: Callable[..., Any], implementation: Callable[..., Any]
    ) -> None:
        flat = _by_fields(implementation, like=implementation)
        self.op = torch.library.custom_op(name, flat, mutates_args=())
        self.op.register_fake(_by_fields(empty, like=implementation))
        self.empty = empty
        self.__doc__ = implementation.__doc__
        self._implementation = flat
        self._eager = _function(flat, None, None)

    def derivative(
        self, saved: Callable[[Any, tuple[Any, ...], Any], Iterable[Tensor | None]] = _tensors
    ) -> Callable[[Formula], Formula]:
        """Decorator: the function gives the gradients in the inputs; None for the last may go.

        It is called as backward(ctx, *gradients of the outputs), and made of Operators and torch
        functions.

        Args:
            saved: the tensors that ctx.saved_tensors has then, of (ctx, inputs, output); by default
                all that are among the inputs. Inputs that are no tensors are in ctx.others.
        """
        count = len(inspect.signature(self._implementation).parameters)

        def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.save_for_backward(*saved(ctx, inputs, output))
            ctx.others = [t for t in inputs if not (t is None or isinstance(t, Tensor))]

        def register(formula: Formula) -> Formula:
            def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
                found = formula(ctx, *grads)
                return *found, *(None,) * (count - len(found))

            self.op.register_autograd(backward, setup_context=setup)
            self._eager = _function(self._implementation, backward, setup)
            return formula

        return register

    def __call__(self, *arguments: Any) -> Any:
        """Compute it; the first argument is a tensor."""
        if torch.compiler.is_compiling() or not is_plain(arguments[0]):
            return self.op(*arguments)
        if not (torch.is_grad_enabled() or torch._C._autograd._profiler_enabled()):
            # As in nearly every backward pass: there is nothing to record, nor a name to show.
            return self._implementation(*arguments)
        return self._eager(*arguments)


def operator(name: str, empty: Callable[..., Any]) -> Callable[[Callable[..., Any]], Operator]:
    """Decorator that makes a torch operator of a function; its annotations are the schema.

    A parameter that is a NamedTuple, or None, stands for its fields: callers give them one by one.

    Args:
        name: of the operator.
        empty: makes the outputs, not filled, for the same arguments.
    """
    return lambda implementation: Operator(name, empty, implementation)


def _by_fields(function: Callable[..., Any], like: Callable[..., Any]) -> Callable[..., Any]:
    """The function with each NamedTuple among its parameters replaced by that tuple's fields.

    `like` has the annotations. The fields of one that may be None are all None then.
    """
    annotations: dict[str, Any] = {}
    passed, namespace = [], {"function": function}
    for name, parameter in inspect.signature(like).parameters.items():
        optional = get_args(parameter.annotation)
        kind = optional[0] if optional else parameter.annotation
        if not hasattr(kind, "_fields"):
            annotations[name] = parameter.annotation
            passed.append(name)
            continue
        namespace[kind.__name__] = kind
        fields = kind.__annotations__
        packed = f"{kind.__name__}({', '.join(fields)})"
        passed.append(
            f"None if {' is '.join(fields)} is None else {packed}" if optional else packed
        )
        annotations |= {key: t | None for key, t in fields.items()} if optional else fields
    if len(namespace) == 1:
        return function
    # Made from text: a loop over the arguments would take microseconds at each call.
    text = f"lambda {', '.join(annotations)}: function({', '.join(passed)})"
    flat: Any = eval(text, namespace)  # noqa: S307
    flat.__name__ = like.__name__
    flat.__annotations__ = {**annotations, "return": like.__annotations__["return"]}
    return cast(Callable[..., Any], flat)


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
    return loops_allowed() and all(
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


def widest(*tensors: Tensor | None) -> torch.dtype:
    """The dtype of what torch's own operators make of these tensors; the first is one.

    Under autocast products come in a narrow dtype, and what they are added to in a wide one.
    """
    dtypes = [t.dtype for t in tensors if t is not None]
    return functools.reduce(torch.promote_types, dict.fromkeys(dtypes))


def differentiable_gradients(
    ctx: Any,
    function: Callable[..., Any],
    given: Sequence[Tensor | None],
    grads: Sequence[Tensor],
    first: int = 0,
) -> list[Tensor | None]:
    """The gradients of function(*given) as functions of all that they depend on.

    For a backward pass whose inputs from number `first` on are `given`, where its gradient may be
    differentiated itself: loops have no derivatives, but `function`, which computes the same, has.
    """
    higher = torch.is_grad_enabled()
    found: list[Tensor | None] = [None] * len(given)
    with torch.enable_grad():
        # Views, so that a tensor made from another one is no way to that one.
        views: list[Any] = [None if t is None else t.view_as(t) for t in given]
        wanted = [k for k in range(len(views)) if ctx.needs_input_grad[first + k]]
        inputs, outputs = [views[k] for k in wanted], function(*views)
        gradients = torch.autograd.grad(
            outputs, inputs, grads, create_graph=higher, allow_unused=True
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
    if not tensor.is_cpu:
        raise ValueError(
            f"the tensors of an operator are on cpu and {tensor.device}: move them to one device"
        )
    return tensor.contiguous().numpy()


def require(right: bool, message: str, *tensors: Tensor | None) -> None:
    """The compiled loops trust their arguments, so nothing may reach them unchecked."""
    if not right:
        shapes = ", ".join("none" if t is None else str(list(t.shape)) for t in tensors)
        raise ValueError(f"{message}; the shapes are {shapes}")
