"""A model as a program for other runtimes: AOTInductor's .pt2 and ONNX, checked before it is kept.

There is one way for all models: `make_fx` records the module with the derivatives that it takes as
operations of torch alone, `torch.export` makes a program of them, and the file is compared with the
model at other sizes than the one that was traced before it takes its place. What goes wrong goes
wrong in silence otherwise: sizes that happen to be equal become one size, results become constants.
"""

from __future__ import annotations

import inspect
import logging
import re
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
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
from torch.utils._pytree import tree_map

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
INT8_TOLERANCE = 0.1
"""Largest difference with 8-bit weights, as a share of the largest absolute value of an output."""
_SUFFIXES = (".pt2", ".onnx")
_STABLEHLO = (".mlir", ".stablehlo")
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
class Timed:
    """A form of the model that the file was compared with.

    Attributes:
        form: in words.
        seconds: of a call.
        size: bytes of its file, or of its weights.
    """

    form: str
    seconds: float
    size: int


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A file with a model, and how it compares with the model before.

    Attributes:
        path: of the file.
        runtime: that the file was run in.
        differences: largest one of each output, over all cases.
        largest: absolute value of each output, over all cases.
        inputs: what was timed, in words.
        seconds: of a call in that runtime.
        weft_seconds: of the same call before the export.
        model_in: what ran the model before, in words.
        weft_size: bytes of its weights there, where they were counted.
        others: forms between: the program with all hidden units, and with float weights.
        notes: what else is worth knowing, in sentences.
    """

    path: Path
    runtime: str
    differences: Mapping[str, float]
    inputs: str
    seconds: float
    weft_seconds: float
    largest: Mapping[str, float] = field(default_factory=dict)
    model_in: str = "weft"
    weft_size: int | None = None
    others: tuple[Timed, ...] = ()
    notes: tuple[str, ...] = ()


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
    with _tracing.patch(use_duck_shape=False), quiet():
        graph = make_fx(portable, decomposition_table=table, tracing_mode="symbolic")(
            weights, example
        )
    dims = {name: Dim(name, min=0) for name in names}
    shapes = {
        name: {place: dims[n] for place, n in enumerate(shape) if isinstance(n, str)}
        for name, (_, shape) in inputs.items()
    }
    with torch.no_grad(), quiet():
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


def program_of(
    model: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any] | None = None
) -> ExportedProgram:
    """The program of any module, for other sizes of its inputs than those given.

    A dimension may have any size where the model allows it, and where the example has at least 2.

    Args:
        model: in evaluation mode.
        arguments: an example of its inputs.
        keywords: and of those given by name.

    Raises:
        DataError: `torch.export` cannot follow the model.
    """
    keywords = dict(keywords or {})

    def sizes(value: Any) -> Any:
        return [Dim.AUTO] * value.ndim if isinstance(value, Tensor) else None

    # By name, as torch.export takes those of arguments and keywords alike.
    bound = inspect.signature(model.forward).bind(*arguments, **keywords)
    shapes = {name: tree_map(sizes, value) for name, value in bound.arguments.items()}
    try:
        # The graph so far, which torch prints when it stops, says nothing to a user.
        with torch.no_grad(), quiet(), redirect_stderr(StringIO()), portable_ops():
            return torch.export.export(
                model, arguments, keywords, dynamic_shapes=shapes, strict=False
            )
    except Exception as error:
        text = re.split(r" \(unhinted| consider using| Caused by", " ".join(str(error).split()))[0]
        raise DataError(
            f"{type(model).__name__} cannot be exported: torch.export stops with "
            f"{type(error).__name__}, {text[:300]}; the control flow of a model must not depend "
            "on the values of its inputs"
        ) from error


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


def check_file(path: Path, *, int8: bool = False) -> None:
    """Raise DataError where no program can be written to `path`."""
    if path.suffix in _STABLEHLO:
        raise DataError(
            f"torch {torch.__version__} writes no StableHLO by itself: torch_xla does, from a "
            "program of torch.export (torch_xla.stablehlo); export to .onnx, or see docs/export.md"
        )
    if path.suffix not in _SUFFIXES:
        raise DataError(f"models are exported as {' or '.join(_SUFFIXES)}, not as {path.name}")
    if int8 and path.suffix != ".onnx":
        raise DataError(f"8-bit weights are for .onnx files, which {path.name} is not")
    if int8 and find_spec("onnxruntime") is None:
        raise DataError("8-bit weights need onnxruntime: pip install 'weft[export]'")
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
    before: ExportedProgram | None = None,
    int8: bool = False,
    **facts: Any,
) -> Exported:
    """Write the program as the file's suffix says, once it has given what the cases expect.

    Args:
        program: see `trace` and `program_of`.
        path: of the file, which is replaced when the new one is whole.
        cases: of other sizes than those that were traced; the last one is timed.
        metadata: kept in the file.
        timed: the last case in the model before.
        inputs: the last case in words.
        before: the program with all its hidden units, to be timed in the same runtime.
        int8: weights of products as 8-bit integers, and activations as they come (onnxruntime's
            dynamic quantisation), of the program that has given what the cases expect.
        facts: what else the result says, see `Exported`.

    Raises:
        DataError: in its runtime the program differs from the model; nothing is written.
    """
    check_file(path, int8=int8)
    last = cases[-1].inputs
    with TemporaryDirectory(prefix="weft-export-") as folder:
        draft = Path(folder) / f"model{path.suffix}"
        others = []

        def note(form: str, run: _Runner) -> None:
            seconds = _median_seconds(lambda: run(last))
            others.append(Timed(form=form, seconds=seconds, size=draft.stat().st_size))

        if before is not None:
            run, runtime = _written(before, draft, metadata)
            note(f"{runtime} with all hidden units", run)
        run, runtime = _written(program, draft, metadata)
        differences = _compare(run, cases, runtime)
        if int8:
            note(f"{runtime} with float weights", run)
            run = _quantised(draft, list(cases[0].expected))
            runtime += " with 8-bit weights"
            differences = _compare(run, _by_largest(cases), runtime, INT8_TOLERANCE)
        exported = Exported(
            path=path,
            runtime=runtime,
            differences=differences,
            largest={name: _largest_of(cases, name) for name in differences},
            inputs=inputs,
            seconds=_median_seconds(lambda: run(last)),
            weft_seconds=_median_seconds(timed),
            others=tuple(others),
            **facts,
        )
        content = draft.read_bytes()
    write_atomically(path, lambda file: file.write(content))
    return exported


def _written(
    program: ExportedProgram, draft: Path, metadata: Mapping[str, str]
) -> tuple[_Runner, str]:
    """Write a file; gives what calls it, and the name of that runtime."""
    try:
        if draft.suffix == ".pt2":
            return _write_compiled(program, draft, metadata), "AOTInductor"
        return _write_onnx(program, draft, metadata)
    except DataError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise DataError(
            f"the model cannot be written as {draft.suffix}: {type(error).__name__}, {text}"
        ) from error


def _largest_of(cases: Sequence[Case], name: str) -> float:
    return max(_largest(case.expected[name]) for case in cases)


def _by_largest(cases: Sequence[Case]) -> list[Case]:
    """The cases with differences measured by the largest value of an output, over all of them."""
    scales = {name: _largest_of(cases, name) for name in cases[0].expected}
    return [replace(case, scales=scales) for case in cases]


def _quantised(path: Path, outputs: Sequence[str]) -> _Runner:
    """Bring the weights of an ONNX file to 8 bits; gives what calls it."""
    onnx: Any = import_module("onnx")
    quantization: Any = import_module("onnxruntime.quantization")
    with quiet():
        quantization.quantize_dynamic(
            path, path, per_channel=True, weight_type=quantization.QuantType.QInt8
        )
    if not any(node.op_type == "MatMulInteger" for node in onnx.load(path).graph.node):
        raise DataError(
            "there are no 8-bit weights to make: onnxruntime has them for products of features and "
            "a weight, and the model has none"
        )
    return _session(path, outputs)


def _write_compiled(program: ExportedProgram, path: Path, metadata: Mapping[str, str]) -> _Runner:
    """Compile into a .pt2; gives what calls it."""
    settings = {**_SETTINGS, "aot_inductor.metadata": dict(metadata)}
    with quiet():
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
    with quiet():
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
    return _session(path, outputs), "onnxruntime"


def _session(path: Path, outputs: Sequence[str]) -> _Runner:
    """What calls an ONNX file in onnxruntime."""
    onnxruntime: Any = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    except Exception as error:
        raise DataError(
            f"onnxruntime {onnxruntime.__version__} does not take the file, of operator set "
            f"{_OPSET}: {' '.join(str(error).split())[:300]}"
        ) from error
    taken = {each.name for each in session.get_inputs()}

    def run(inputs: Tensors) -> Tensors:
        given = {name: value.numpy() for name, value in inputs.items() if name in taken}
        found = session.run(outputs, given)
        return {name: torch.from_numpy(value) for name, value in zip(outputs, found, strict=True)}

    return run


def _added(into: Tensor, dim: int, index: Tensor, values: Tensor, *, alpha: float = 1) -> Tensor:
    """`index_add` by an index for each number."""
    assert (dim, alpha) == (0, 1)
    each = index.reshape(-1, *[1] * (values.ndim - 1)).expand_as(values)
    return into.scatter_add(0, each, values)


def _compare(
    run: _Runner, cases: Sequence[Case], runtime: str, tolerance: float = TOLERANCE
) -> dict[str, float]:
    """The largest difference of each output; DataError where one is too large."""
    largest: dict[str, float] = {}
    for case in cases:
        try:
            found = run(case.inputs)
        except Exception as error:
            raise DataError(
                f"{runtime} stops for {_shapes(case)}: {' '.join(str(error).split())[:300]}; "
                "nothing was written"
            ) from error
        for name, expected in case.expected.items():
            same = found[name].shape == expected.shape
            difference = float("nan")
            if same:
                difference = _largest(found[name].double() - expected.double())
            allowed = tolerance * case.scales[name]
            # Written so that nan is refused.
            if not difference <= allowed:
                raise DataError(
                    f"in {runtime} {name} differs from the model's by {difference:.3g}, and at "
                    f"most {allowed:.3g} is allowed, for {_shapes(case)}; nothing was written"
                )
            largest[name] = max(largest.get(name, 0.0), difference)
    return largest


def _shapes(case: Case) -> str:
    return ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in case.inputs.items())


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
def quiet() -> Iterator[None]:
    """Without the notes that torch's exporters and compilers write for their authors."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
