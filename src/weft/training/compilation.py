"""torch.compile for training: counted, explained, bounded, and never given up in silence."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from weft.graphs import GraphBatch
from weft.training.config import CompileMode
from weft.training.step_hooks import note_compilation

Backend = Callable[[torch.fx.GraphModule, list[Tensor]], Callable[..., Any]]

_SETTINGS = {
    # torch stops compiling at 8 variants of a function, with nothing but a line in its log. The
    # limit that counts here is Compilation's own, which speaks.
    "recompile_limit": 2**31 - 1,
    "accumulated_recompile_limit": 2**31 - 1,
    # Forces, the gradient of an energy, become part of the code and can be trained.
    "trace_autograd_ops": True,
}


@dataclass(frozen=True, kw_only=True)
class CompileEvent:
    """One compilation: a call of the model for which there was no code yet.

    Attributes:
        seconds: of tracing and code generation, forward and backward.
        graph_breaks: where torch could not trace the model and left a piece of it uncompiled.
        recompile: whether the same model had been compiled before.
        cause: in words, what was new about the call.
    """

    seconds: float
    graph_breaks: tuple[str, ...]
    recompile: bool
    cause: str


class Compilation:
    """How a model is compiled, and the account of it.

    `eager` does not compile. `static` makes code for each shape it meets, the fastest code where
    batches have one shape or a few (dynamic, packed or rounded batching). `dynamic` makes one
    code for all shapes, as unpadded batches need.

    Attributes:
        mode: the one in force: `eager` also where a compiler turned out to be missing.
        limit: compilations at most; a shape that is new after them runs uncompiled.
        events: the compilations so far.
        eager_calls: calls that ran uncompiled because of the limit.
    """

    def __init__(
        self,
        mode: CompileMode,
        *,
        backend: str | Backend = "inductor",
        limit: int = 256,
    ) -> None:
        """Nothing is compiled yet: that happens when a wrapped model is called.

        `backend` is that of torch.compile: a name or a function.
        """
        if mode not in get_args(CompileMode):
            raise ValueError(
                f"mode is {mode!r}; it must be one of {', '.join(get_args(CompileMode))}"
            )
        if limit < 1:
            raise ValueError(f"limit is {limit}; at least 1 compilation is needed to compile")
        self.mode, self.limit = mode, limit
        self.events: list[CompileEvent] = []
        self.eager_calls = 0
        self._backend = backend
        note_compilation(self)

    @property
    def compilations(self) -> int:
        """Compilations so far: in mode `static`, distinct shapes, with gradients or without."""
        return len(self.events)

    @property
    def recompiles(self) -> int:
        """Compilations after a model's first."""
        return sum(event.recompile for event in self.events)

    @property
    def seconds(self) -> float:
        """Compile time so far; what else a step took is its run time."""
        return sum(event.seconds for event in self.events)

    def wrap(self, model: nn.Module) -> nn.Module:
        """The compiled model, to be called and trained in place of `model`; it shares its weights.

        It is `model` itself in mode `eager`, and where inductor lacks a compiler (with a warning).
        """
        if self.mode == "eager":
            return model
        if self._backend == "inductor" and all(p.device.type == "cpu" for p in model.parameters()):
            missing = why_not_inductor()
            if missing is not None:
                warnings.warn(f"{missing}; training continues without compilation", stacklevel=2)
                self.mode = "eager"
                return model
        return _CompiledModel(model, self, self._backend)

    def report(self) -> dict[str, Any]:
        """The account, as JSON values."""
        return {
            "mode": self.mode,
            "compilations": self.compilations,
            "recompiles": self.recompiles,
            "compile_seconds": self.seconds,
            "graph_breaks": sorted({words for e in self.events for words in e.graph_breaks}),
            "eager_calls": self.eager_calls,
            "causes": [event.cause for event in self.events],
        }

    @contextmanager
    def assert_at_most(self, count: int) -> Iterator[None]:
        """AssertionError, naming what changed, if the block compiles more than `count` times."""
        before = self.compilations
        yield
        new = self.events[before:]
        if len(new) > count:
            lines = "".join(f"\n  {number}. {e.cause}" for number, e in enumerate(new, start=1))
            raise AssertionError(f"compiled {len(new)} times, at most {count} expected:{lines}")


class _Values(NamedTuple):
    """What torch makes code for, of a tensor; None stands for a batch's own number of rows."""

    shape: tuple[int | None, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    def __str__(self) -> str:
        shape = ", ".join("rows" if size is None else str(size) for size in self.shape)
        words = f"{str(self.dtype).removeprefix('torch.')} [{shape}]"
        if self.device.type != "cpu":
            words += f" on {self.device}"
        return words + " with gradient" * self.requires_grad


_Shape = dict[str, Any]


class _CompiledModel(nn.Module):
    """A model and the code made for it. `_orig_mod` is torch's own name for the model inside."""

    def __init__(self, model: nn.Module, account: Compilation, backend: str | Backend) -> None:
        super().__init__()
        self._orig_mod = model
        self._account = account
        self._given_backend = backend
        self._backend = self._watched(torch._dynamo.lookup_backend(backend))
        self._signature = inspect.signature(model.forward)
        self._codes: dict[Any, Callable[..., Any]] = {}
        self._shapes: list[_Shape] = []
        self._compile_ids: list[str] = []
        self._runs = 0
        self._warned = False

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_orig_mod"), name)

    def __deepcopy__(self, memo: dict[int, Any]) -> _CompiledModel:
        # The code holds the weights it was made for: a copy needs its own.
        model = copy.deepcopy(self._orig_mod, memo)
        return _CompiledModel(model, self._account, self._given_backend)

    # The model's own, so that it does not matter on which of the two eval() is called.
    @property
    def training(self) -> bool:
        return self._orig_mod.training

    @training.setter
    def training(self, mode: bool) -> None:
        if "_modules" in self.__dict__:
            self._orig_mod.training = mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        account = self._account
        full = account.compilations >= account.limit
        # A code object for each shape: of one for all, torch would try variant after variant.
        shape = self._shape(args, kwargs) if account.mode == "static" else {}
        key = tuple(shape.items())
        code = self._codes.get(key)
        if code is None and full:
            self._count_eager()
            return self._orig_mod(*args, **kwargs)
        if code is None:
            code = self._codes[key] = self._new_code()
        compiled, runs = len(self._compile_ids), self._runs
        breaks = torch._dynamo.utils.counters["graph_break"].copy()
        with ExitStack() as stack:
            if full:
                stack.enter_context(torch.compiler.set_stance("eager_on_recompile"))
            if account.mode == "dynamic":
                # Two sizes that are equal in the first batch by chance are not equal for ever.
                stack.enter_context(_set(torch.fx.experimental._config, use_duck_shape=False))
            stack.enter_context(_set(torch._dynamo.config, **_SETTINGS))
            seconds = stack.enter_context(_compile_clock())
            out = code(*args, **kwargs)
        if full and self._runs == runs:
            self._count_eager()
        if len(self._compile_ids) > compiled:
            self._record(
                shape or self._shape(args, kwargs),
                sum(seconds),
                torch._dynamo.utils.counters["graph_break"] - breaks,
                self._compile_ids[compiled:],
            )
        return out

    def _watched(self, backend: Backend) -> Backend:
        def make(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
            self._compile_ids.append(str(torch._guards.CompileContext.current_compile_id()))
            # The backward pass at once, not within the first backward(): one clock sees both.
            with _set(torch._functorch.config, force_non_lazy_backward_lowering=True):
                code = backend(graph, inputs)

            def run(*args: Any) -> Any:
                self._runs += 1
                return code(*args)

            return run

        return make

    def _new_code(self) -> Callable[..., Any]:
        model = self._orig_mod

        def call(*args: Any, **kwargs: Any) -> Any:
            return model(*args, **kwargs)

        # torch keeps what it compiles with the code object, which closures otherwise share.
        fresh = FunctionType(
            call.__code__.replace(), call.__globals__, "call", None, call.__closure__
        )
        return torch.compile(fresh, backend=self._backend, dynamic=self._account.mode == "dynamic")

    def _shape(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Shape:
        shape: _Shape = {
            "training": self._orig_mod.training,
            "gradients": torch.is_grad_enabled(),
        }
        for name, value in self._signature.bind(*args, **kwargs).arguments.items():
            shape.update(_parts(name, value))
        return shape

    def _record(
        self, shape: _Shape, seconds: float, breaks: Mapping[str, int], ids: list[str]
    ) -> None:
        changes = _changes(shape, self._shapes) if self._shapes else ["the first call"]
        # The last of each: after torch._dynamo.reset() the numbers begin again.
        metrics = {m.compile_id: m for m in torch._dynamo.utils.get_compilation_metrics()}
        found = [metrics[number] for number in ids if number in metrics]
        reasons = [m.recompile_reason for m in found if m.recompile_reason]
        if reasons:
            changes.append(f"torch says: {' '.join(reasons[0].split())}")
        pieces = tuple(words.strip().split("\n")[0] for words in breaks)
        if pieces and not self._shapes:
            warnings.warn(
                f"torch cannot compile the model whole ({'; '.join(pieces)}): the code there, or "
                'more, runs uncompiled; TORCH_LOGS="graph_breaks" shows the lines',
                stacklevel=4,
            )
        self._account.events.append(
            CompileEvent(
                seconds=seconds,
                graph_breaks=pieces,
                recompile=bool(self._shapes),
                cause=", ".join(changes) or "not the shapes, and torch does not say what",
            )
        )
        self._shapes.append(shape)

    def _count_eager(self) -> None:
        account = self._account
        account.eager_calls += 1
        if self._warned:
            return
        self._warned = True
        what, remedy = f"{account.compilations} times", "look at what changes"
        if account.mode == "static":
            what = f"for {account.compilations} shapes"
            remedy = (
                "use dynamic or packed batching, whose batches share one shape, or compile in mode "
                "dynamic"
            )
        warnings.warn(
            f"the model has been compiled {what} (the last: {account.events[-1].cause}), which is "
            f"the limit; new shapes run uncompiled from here on: {remedy}, or raise the limit",
            stacklevel=3,
        )


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Name and size of everything in an argument that makes torch compile again."""
    if isinstance(value, Tensor):
        yield name, _Values(tuple(value.shape), value.dtype, value.device, value.requires_grad)
    elif isinstance(value, GraphBatch):
        # Three numbers settle the shapes of all fields but for the rows of the columns.
        yield f"{name}.num_nodes", value.num_nodes
        yield f"{name}.num_edges", value.num_edges
        yield f"{name}.num_graphs", value.num_graphs
        yield f"{name}.pairs", tuple(value.pairs)
        yield f"{name}.senders", _row(value.senders)
        for level in ("nodes", "edges", "graphs"):
            for column, tensor in getattr(value, level).items():
                yield f"{name}.{level}[{column!r}]", _row(tensor)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _parts(f"{name}[{key!r}]", part)
    elif isinstance(value, (list, tuple)):
        for position, part in enumerate(value):
            yield from _parts(f"{name}[{position}]", part)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _parts(f"{name}.{field.name}", getattr(value, field.name))
    else:
        plain = value is None or isinstance(value, (bool, int, float, str))
        yield name, value if plain else type(value).__qualname__


def _row(column: Tensor) -> _Values:
    shape = (None, *column.shape[1:])
    return _Values(shape, column.dtype, column.device, column.requires_grad)


def _changes(shape: _Shape, earlier: list[_Shape]) -> list[str]:
    """What is different from the most similar of the earlier shapes, the latest of several."""

    def different(other: _Shape) -> list[str]:
        names = {**other, **shape}
        return [name for name in names if other.get(name) != shape.get(name)]

    nearest = min(reversed(earlier), key=lambda other: len(different(other)))
    return [
        f"{name} {nearest.get(name, 'absent')} -> {shape.get(name, 'absent')}"
        for name in different(nearest)
    ]


@contextmanager
def _compile_clock() -> Iterator[list[float]]:
    """Seconds of each compilation in the block."""
    seconds: list[float] = []
    began = 0.0

    def start(*_: Any) -> None:
        nonlocal began
        began = time.perf_counter()

    def stop(*_: Any) -> None:
        seconds.append(time.perf_counter() - began)

    handler = torch._dynamo.callback.callback_handler
    handler.register_start_callback(start)
    handler.register_end_callback(stop)
    try:
        yield seconds
    finally:
        handler.remove_start_callback(start)
        handler.remove_end_callback(stop)


@contextmanager
def _set(config: Any, **values: Any) -> Iterator[None]:
    """Settings of torch for the block, those it has: `patch` does it at many times the cost."""
    before = {name: getattr(config, name) for name in values if hasattr(config, name)}
    try:
        for name in before:
            setattr(config, name, values[name])
        yield
    finally:
        for name, value in before.items():
            setattr(config, name, value)


def why_not_inductor() -> str | None:
    """What torch's default backend lacks to make code for the CPU here, in words, or None."""
    from torch._inductor import cpp_builder

    remedy = "install g++, or name another compiler in the environment variable CXX"
    try:
        compiler = cpp_builder.get_cpp_compiler()
    except (RuntimeError, OSError):
        return f"torch.compile needs a C++ compiler and found none ({remedy})"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        return (
            f"torch.compile needs Python's header files for {compiler}, and {header} does not "
            "exist (install python3-dev)"
        )
    return None


@dataclass(frozen=True, kw_only=True)
class Payoff:
    """Whether compiling pays.

    Attributes:
        pays: it does.
        steps_needed: from how many steps on it does; infinite where compiled steps are not faster.
        words: the same in a sentence.
    """

    pays: bool
    steps_needed: float
    words: str


def worth_compiling(
    steps: int, *, compile_seconds: float, eager_step: float, compiled_step: float
) -> Payoff:
    """Whether a run of `steps` steps wins back the time of compiling; times in seconds."""
    saved = eager_step - compiled_step
    needed = math.ceil(round(compile_seconds / saved, 6)) if saved > 0 else math.inf
    if saved > 0:
        account = (
            f"it takes {compile_seconds:.3g} s and saves {steps * saved:.3g} s over {steps:,} "
            f"steps (it pays from {needed:,} steps on)"
        )
    else:
        account = (
            f"a compiled step takes {compiled_step * 1e3:.3g} ms, an eager one "
            f"{eager_step * 1e3:.3g} ms"
        )
    pays = steps >= needed
    words = f"{'compile' if pays else 'do not compile'}: {account}"
    return Payoff(pays=pays, steps_needed=needed, words=words)
