"""A model as a program for other runtimes: AOTInductor's .pt2 and ONNX, checked before it is kept.

There is one way for all models: `make_fx` records the module with the derivatives that it takes as
operations of torch alone, `torch.export` makes a program of them, and the file is compared with the
model at other sizes than the one that was traced before it takes its place. What goes wrong goes
wrong in silence otherwise: sizes that happen to be equal become one size, results become constants.
"""

from __future__ import annotations

import inspect
import logging
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch._decomp import get_decompositions
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler
from torch._subclasses import FakeTensor
from torch.export import Dim, ExportedProgram
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from weft.errors import DataError
from weft.files import write_atomically
from weft.kernels.portable_ops import portable_ops

# Its settings can be patched, which type checkers do not see.
_tracing: Any = torch.fx.experimental._config
Tensors = Mapping[str, Tensor]
Shape = tuple[str | int, ...]
_Runner = Callable[[Tensors], Tensors]

TOLERANCE = 1e-5
"""Largest difference from the model, as a share of what `Case.scales` says."""
_SUFFIXES = (".pt2", ".onnx")
_OPSET = 18
# Backward operations that ONNX does not know.
_DECOMPOSED = (
    torch.ops.aten.silu_backward,
    torch.ops.aten.softplus_backward,
    torch.ops.aten.select_backward,
    torch.ops.aten.slice_backward,
)
_SETTINGS: Mapping[str, Any] = {
    # As many threads as the host has, not as many as the one that compiled.
    "cpp.dynamic_threads": True,
    # torch assumes sizes of at least 2; the cases show that 0 and 1 are right.
    "aot_inductor.check_lowerbound": False,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """Inputs, and the outputs that the model has for them.

    Attributes:
        inputs: by name.
        expected: by name.
        scales: of each output, the size that differences are measured by.
    """

    inputs: Tensors
    expected: Tensors
    scales: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A file with a model, and how it compares with the model in weft.

    Attributes:
        path: of the file.
        runtime: that the file was run in.
        differences: largest one of each output, over all cases.
        inputs: what was timed, in words.
        seconds: of a call in that runtime.
        weft_seconds: of the same call in weft.
    """

    path: Path
    runtime: str
    differences: Mapping[str, float]
    inputs: str
    seconds: float
    weft_seconds: float


def trace(module: nn.Module, inputs: Mapping[str, tuple[torch.dtype, Shape]]) -> ExportedProgram:
    """The program of a module that is called with tensors by name and gives tensors by name.

    Args:
        module: it may differentiate within its call, and use weft's operators.
        inputs: the dtype and shape of each; a dimension with a name may have any size.
    """
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    weights = {name: tensor.detach() for name, tensor in state.items()}
    names = dict.fromkeys(n for _, shape in inputs.values() for n in shape if isinstance(n, str))
    sizes = dict(zip(names, _unlike(weights.values()), strict=False))
    example = {
        name: torch.zeros([sizes[n] if isinstance(n, str) else n for n in shape], dtype=dtype)
        for name, (dtype, shape) in inputs.items()
    }

    def portable(weights: Tensors, given: Tensors) -> Any:
        with portable_ops():
            return functional_call(module, dict(weights), kwargs=dict(given))

    table: Any = get_decompositions(list(_DECOMPOSED))
    # Or sizes that are equal in the example would be one size.
    with _tracing.patch(use_duck_shape=False), _quiet():
        graph = make_fx(portable, decomposition_table=table, tracing_mode="symbolic")(
            weights, example
        )
    dims = {name: Dim(name, min=0) for name in names}
    shapes = {
        name: {place: dims[n] for place, n in enumerate(shape) if isinstance(n, str)}
        for name, (_, shape) in inputs.items()
    }
    with torch.no_grad(), _quiet():
        program = torch.export.export(
            _with_weights(graph, weights, list(inputs)),
            (),
            example,
            dynamic_shapes=shapes,
            strict=False,
        )
    held = {**program.constants, **program.state_dict}
    fakes = [name for name, value in held.items() if isinstance(value, FakeTensor)]
    assert not fakes, f"constants without values: {fakes}"
    return program


def _unlike(tensors: Iterable[Tensor]) -> Iterator[int]:
    """Sizes that are far from each other and from those of the tensors."""
    taken = {size for tensor in tensors for size in tensor.shape}
    last = 10
    for size in count(last):
        if size > last + 3 and not taken & {size - 1, size, size + 1}:
            yield (last := size)


def _with_weights(graph: nn.Module, weights: Tensors, inputs: Sequence[str]) -> nn.Module:
    """A traced graph with its weights as buffers, called with inputs by name."""
    # A buffer's name has no dots.
    names = {name: name.replace(".", "_") for name in weights}
    assert len(set(names.values())) == len(weights)

    class Program(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.graph = graph
            for name, tensor in weights.items():
                self.register_buffer(names[name], tensor.clone())

        def forward(self, **inputs: Tensor) -> Any:
            held = {name: getattr(self, own) for name, own in names.items()}
            return self.graph(held, inputs)

    # torch.export names the inputs, and their sizes, by the signature.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind) for name in ("self", *inputs)]
    Program.forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return Program()


def check_file(path: Path) -> None:
    """Raise DataError where no program can be written to `path`."""
    if path.suffix not in _SUFFIXES:
        raise DataError(f"models are exported as {' or '.join(_SUFFIXES)}, not as {path.name}")
    if not path.absolute().parent.is_dir():
        raise DataError(f"{path} cannot be written: there is no folder {path.parent}")
    if path.is_dir():
        raise DataError(f"{path} is a folder; name a file in it")
    if path.suffix == ".onnx" and not (find_spec("onnx") and find_spec("onnxscript")):
        raise DataError("ONNX needs onnx and onnxscript: pip install 'weft[export]'")
    if path.suffix == ".pt2":
        try:
            get_cpp_compiler()
        except InvalidCxxCompiler:
            raise DataError(
                "a .pt2 is compiled, and no C++ compiler works here ($CXX, or g++); install one, "
                "or export to .onnx"
            ) from None


def write_program(
    program: ExportedProgram,
    path: Path,
    cases: Sequence[Case],
    metadata: Mapping[str, str],
    *,
    timed: Callable[[], object],
    inputs: str,
) -> Exported:
    """Write the program as the file's suffix says, once it has given what the cases expect.

    Args:
        program: see `trace`.
        path: of the file, which is replaced when the new one is whole.
        cases: of other sizes than those that were traced; the last one is timed.
        metadata: kept in the file.
        timed: the last case in weft.
        inputs: the last case in words.

    Raises:
        DataError: in its runtime the program differs from the model; nothing is written.
    """
    check_file(path)
    with TemporaryDirectory(prefix="weft-export-") as folder:
        draft = Path(folder) / f"model{path.suffix}"
        if path.suffix == ".pt2":
            run, runtime = _write_compiled(program, draft, metadata), "AOTInductor"
        else:
            run, runtime = _write_onnx(program, draft, metadata)
        differences = _compare(run, cases, runtime)
        exported = Exported(
            path=path,
            runtime=runtime,
            differences=differences,
            inputs=inputs,
            seconds=_median_seconds(lambda: run(cases[-1].inputs)),
            weft_seconds=_median_seconds(timed),
        )
        content = draft.read_bytes()
    write_atomically(path, lambda file: file.write(content))
    return exported


def _write_compiled(program: ExportedProgram, path: Path, metadata: Mapping[str, str]) -> _Runner:
    """Compile into a .pt2; gives what calls it."""
    settings = {**_SETTINGS, "aot_inductor.metadata": dict(metadata)}
    with _quiet():
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(path), inductor_configs=settings
        )
    loaded = torch._inductor.aoti_load_package(str(path))
    return lambda inputs: dict(loaded(**inputs))


def _write_onnx(
    program: ExportedProgram, path: Path, metadata: Mapping[str, str]
) -> tuple[_Runner, str]:
    """Write ONNX; gives what calls it, and the name of that runtime."""
    outputs = list(program.call_spec.out_spec.unflatten(program.graph_signature.user_outputs))
    with _quiet():
        # As ONNX it would be ScatterND, which loses sums in onnxruntime: its threads add to the
        # same row at once. ScatterElements does not.
        decomposed = program.run_decompositions({torch.ops.aten.index_add.default: _added})
        made = torch.onnx.export(
            decomposed,
            dynamo=True,
            # It deletes additions of 1e-8 and less, such as those under a square root.
            optimize=False,
            output_names=outputs,
            opset_version=_OPSET,
            verbose=False,
        )
    assert made is not None
    proto = made.model_proto
    # Where in Python each node comes from: four fifths of the file.
    del proto.graph.value_info[:]
    for part in (*proto.graph.node, *proto.graph.input, *proto.graph.output):
        del part.metadata_props[:]
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    path.write_bytes(proto.SerializeToString())
    if find_spec("onnxruntime") is None:
        module = program.module()
        return lambda inputs: dict(module(**inputs)), "torch (onnxruntime is not installed)"
    onnxruntime: Any = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])

    def run(inputs: Tensors) -> Tensors:
        found = session.run(outputs, {name: value.numpy() for name, value in inputs.items()})
        return {name: torch.from_numpy(value) for name, value in zip(outputs, found, strict=True)}

    return run, "onnxruntime"


def _added(into: Tensor, dim: int, index: Tensor, values: Tensor, *, alpha: float = 1) -> Tensor:
    """`index_add` by an index for each number."""
    assert (dim, alpha) == (0, 1)
    each = index.reshape(-1, *[1] * (values.ndim - 1)).expand_as(values)
    return into.scatter_add(0, each, values)


def _compare(run: _Runner, cases: Sequence[Case], runtime: str) -> dict[str, float]:
    """The largest difference of each output; DataError where one is too large."""
    largest: dict[str, float] = {}
    for case in cases:
        found = run(case.inputs)
        for name, expected in case.expected.items():
            same = found[name].shape == expected.shape
            difference = _largest(found[name] - expected) if same else float("nan")
            allowed = TOLERANCE * case.scales[name]
            # Written so that nan is refused.
            if not difference <= allowed:
                shapes = ", ".join(f"{key} {list(t.shape)}" for key, t in case.inputs.items())
                raise DataError(
                    f"in {runtime} {name} differs from the model's by {difference:.3g}, and at "
                    f"most {allowed:.3g} is allowed, for {shapes}; nothing was written"
                )
            largest[name] = max(largest.get(name, 0.0), difference)
    return largest


def _largest(values: Tensor) -> float:
    return float(values.abs().max()) if values.numel() else 0.0


def _median_seconds(call: Callable[[], object], budget: float = 0.5) -> float:
    """The median time of a call, over about `budget` seconds."""
    call()
    times: list[float] = []
    while sum(times) < budget or len(times) < 3:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the notes that torch's exporters and compilers write for their authors."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
