"""Any model as a program for other runtimes, without the hidden units that do nothing."""

from __future__ import annotations

import inspect
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils._pytree import (
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_unflatten,
)

from weft.errors import DataError
from weft.models.exported_program import (
    Case,
    Exported,
    Tensors,
    check_file,
    program_of,
    quiet,
    write_program,
)
from weft.sparsify.compaction import CompactedLayer, called, compact, plain_copy
from weft.sparsify.masks import Masks

_SCALE = 10.0
"""Differences may be so many times what potentials may have: the outputs of any model are not all
sums of numbers of about 1."""
# What a program's file says of its sizes: symbols, numbers and functions of them.
_EXPRESSION = re.compile(
    r"(?:'[a-z]+\d+'|\b[a-z]+\d+\b|\b[a-z_]+=|\b(?:oo|int_oo|[A-Z][A-Za-z]*)\b"
    r"|[\d\s+*/(),<>=&|~-])*"
)


def export_model(
    model: nn.Module | ExportedProgram,
    path: str | Path,
    *,
    example: Any = None,
    masks: Masks | Mapping[str, Tensor] | None = None,
    int8: bool = False,
    metadata: Mapping[str, str] | None = None,
    model_in: str = "torch",
) -> Exported:
    """Write a model as .pt2 (AOTInductor) or .onnx, once the file gives what the model gives.

    The model is exported in evaluation mode and without the hidden units that do nothing, see
    `compact`; where they cannot be removed it is exported as it is, and `notes` say why. The
    program takes tensors by the names that `forward` gives them; it gives `output`, or outputs by
    the names of a dictionary, or `output_0`, `output_1`. Sizes of the example that are at least 2
    may vary wherever the model allows it.

    Args:
        model: any module that `torch.export` takes, or what `torch.export.load` gave.
        path: model.pt2 or model.onnx.
        example: its inputs, a tuple if there are several, a dictionary for inputs by name.
        masks: of its parameters by name; inactive weights count as 0.
        int8: weights of products as 8-bit integers, for .onnx; see `write_program`.
        metadata: kept in the file.
        model_in: what runs the model before, in words.

    Raises:
        DataError: the model cannot be exported, the file cannot be written, or would give
            something else than the model. Nothing is written then.
    """
    path = Path(path)
    check_file(path, int8=int8)
    if isinstance(model, ExportedProgram):
        example = model.example_inputs if example is None else example
        with quiet():
            model = model.module(check_guards=False)
    if example is None:
        raise DataError(
            f"an export of {type(model).__name__} needs an example: give example=(...), inputs as "
            "the model takes them, with sizes of at least 2"
        )
    arguments, keywords = called(example)
    small, layers, whole = _compacted(model, arguments, keywords, masks)
    reference = _Named(whole, arguments, keywords)
    given = reference.inputs
    program = program_of(_Named(small, arguments, keywords), (), given)
    before = None if small is whole else program_of(reference, (), given)
    cases, sizes = _cases(program, reference, given)
    last = cases[-1]
    names = {"inputs": " ".join(given), "outputs": " ".join(last.expected)}
    return write_program(
        program,
        path,
        cases,
        {**(metadata or {}), **names},
        timed=lambda: _called_with(reference, last.inputs),
        inputs=", ".join(f"{name} {list(t.shape)}" for name, t in last.inputs.items()),
        before=before,
        weft_size=sum(_bytes(t) for t in (*whole.parameters(), *whole.buffers())),
        int8=int8,
        notes=(*_notes(layers), sizes),
        model_in=model_in,
    )


def load_program(path: Path) -> ExportedProgram:
    """What `torch.export.save` wrote.

    Files are read with care, as others may have made them: pickled objects other than tensors are
    refused, and so is what is no formula where sizes are given.

    Raises:
        DataError: it is not there, or not such a file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            for name in names:
                if Path(name).name.startswith(("opaque_obj", "custom_obj")):
                    raise DataError(f"{path} holds pickled objects ({name}) and is not read")
            models = [name for name in names if re.fullmatch(r"[^/]*/models/[^/]*\.json", name)]
            for name in models:
                _check_formulas(json.loads(archive.read(name)), path)
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} cannot be read as a program of torch.export: {error}") from error
    if not models:
        what = "a compiled program" if any("aotinductor" in name for name in names) else "a file"
        raise DataError(
            f"{path} is {what} without the model that torch.export.save writes; export what it was "
            "made from"
        )
    try:
        with quiet(), _weights_only():
            return torch.export.load(path)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise DataError(f"{path} cannot be read as a program of torch.export: {text}") from error


def _check_formulas(value: Any, path: Path) -> None:
    """torch evaluates these texts."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "expr_str" and not _EXPRESSION.fullmatch(str(inner)):
                raise DataError(f"{path} has {str(inner)[:80]!r} for a size and is not read")
            _check_formulas(inner, path)
    elif isinstance(value, list):
        for inner in value:
            _check_formulas(inner, path)


@contextmanager
def _weights_only() -> Iterator[None]:
    """torch.load unpickles tensors alone, whatever is requested."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _notes(layers: Sequence[CompactedLayer]) -> tuple[str, ...]:
    """What became of the units."""
    smaller = [
        f"{row.name} {row.before} to {row.after}" for row in layers if row.after < row.before
    ]
    reasons: dict[str, list[str]] = {}
    for row in layers:
        if row.reason:
            reasons.setdefault(row.reason, []).append(row.name)
    stay = [f"Of {', '.join(names)}: {reason}." for reason, names in reasons.items()]
    first = f"Hidden units: {', '.join(smaller)}." if smaller else "No hidden units to remove."
    return (first, *stay)


def _compacted(
    model: nn.Module,
    arguments: tuple[Any, ...],
    keywords: Mapping[str, Any],
    masks: Masks | Mapping[str, Tensor] | None,
) -> tuple[nn.Module, tuple[CompactedLayer, ...], nn.Module]:
    """The model without idle units, what became of them, and the model with all units."""
    _bound(model, arguments, keywords)
    whole = plain_copy(model, masks)
    try:
        small, layers = compact(whole, example=(arguments, dict(keywords)))
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(str(error)) from error
    counts = [sum(p.numel() for p in each.parameters()) for each in (small, whole)]
    return (small if counts[0] < counts[1] else whole), layers, whole


class _Named(nn.Module):
    """A model that takes tensors by name and gives tensors by name."""

    def __init__(
        self, model: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.model = model
        bound = _bound(model, arguments, keywords)
        leaves, self.spec = tree_flatten((arguments, dict(keywords)))
        paths = tree_flatten_with_path(bound)[0]
        names = [_name_of(keystr(path)) for path, _ in paths]
        if len(names) != len(leaves) or any(
            a is not b for (_, a), b in zip(paths, leaves, strict=True)
        ):
            names = [f"input_{number}" for number in range(len(leaves))]
        self.names = names
        self.leaves = [None if isinstance(each, Tensor) else each for each in leaves]
        self.inputs = {
            name: each.detach().contiguous()
            for name, each in zip(names, leaves, strict=True)
            if isinstance(each, Tensor)
        }
        if not self.inputs:
            raise DataError("the example has no tensor")
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD

        def forward(**inputs: Tensor) -> dict[str, Tensor]:
            return self._outputs(inputs)

        # torch.export names the inputs, and their sizes, by the signature.
        parameters = [inspect.Parameter(name, kind) for name in self.inputs]
        forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        self.forward = forward

    def _outputs(self, inputs: Tensors) -> dict[str, Tensor]:
        leaves = [
            inputs.get(name, leaf) for name, leaf in zip(self.names, self.leaves, strict=True)
        ]
        arguments, keywords = tree_unflatten(leaves, self.spec)
        found = self.model(*arguments, **keywords)
        if isinstance(found, Tensor):
            return {"output": found}
        flat = tree_flatten_with_path(found)[0]
        named = isinstance(found, dict)
        outputs = {
            _name_of(keystr(path)) if named else f"output_{number}": each
            for number, (path, each) in enumerate(flat)
            if isinstance(each, Tensor)
        }
        if not outputs:
            raise DataError(f"the model gives {type(found).__name__} without a tensor")
        return outputs


def _bound(
    model: nn.Module, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> dict[str, Any]:
    try:
        return dict(inspect.signature(model.forward).bind(*arguments, **keywords).arguments)
    except TypeError as error:
        raise DataError(
            f"the example does not fit {type(model).__name__}: {error}; "
            "a tuple holds several inputs"
        ) from error


def _name_of(path: str) -> str:
    """`['x']` is x, `['parts'][0]` is parts_0."""
    return "_".join(re.findall(r"\w+", path))


@torch.no_grad()
def _called_with(model: nn.Module, inputs: Tensors) -> dict[str, Tensor]:
    # A model may write into its inputs.
    found: dict[str, Tensor] = model(**{name: tensor.clone() for name, tensor in inputs.items()})
    return {name: tensor.clone() for name, tensor in found.items()}


def _cases(program: ExportedProgram, model: nn.Module, example: Tensors) -> tuple[list[Case], str]:
    """Inputs of several sizes, the example last, and which sizes may vary."""
    given = [n for n in program.graph.nodes if n.op == "placeholder"][-len(example) :]
    symbols = {
        name: [
            None if isinstance(s, int) or s.node.maybe_as_int() is not None else str(s.node.expr)
            for s in node.meta["val"].shape
        ]
        for name, node in zip(example, given, strict=True)
    }
    sizes = {
        symbol: size
        for name, tensor in example.items()
        for symbol, size in zip(symbols[name], tensor.shape, strict=True)
        if symbol is not None
    }
    asked: list[dict[str, int]] = []
    if sizes:
        # Far from each other, so that sizes that the program takes for one are found out.
        asked = [
            {
                symbol: 2 * size + 3 + 4 * place
                for place, (symbol, size) in enumerate(sizes.items())
            },
            {
                symbol: max(2, size // 2 - place)
                for place, (symbol, size) in enumerate(sizes.items())
            },
            dict.fromkeys(sizes, 1),
        ]
    expected = _called_with(model, example)
    cases: list[Case] = []
    for each in asked:
        inputs = {name: _resized(t, symbols[name], each, sizes) for name, t in example.items()}
        try:
            found = _called_with(model, inputs)
        except Exception:  # noqa: S112  (sizes that the model itself does not take)
            continue
        if all(bool(t.double().isfinite().all()) for t in found.values()):
            cases.append(_case(inputs, found))
    if not all(bool(t.double().isfinite().all()) for t in expected.values()):
        raise DataError("the model gives nan or infinity for the example; give another one")
    if sizes and not cases:
        raise DataError(
            "the model itself accepts only the sizes of the example, or gives nan for them: the "
            "program cannot be compared at several sizes"
        )
    vary = ", ".join(
        f"{name} {[symbol or size for symbol, size in zip(symbols[name], t.shape, strict=True)]}"
        for name, t in example.items()
    ).replace("'", "")
    text = f"Compared at {len(cases) + 1} sizes; inputs are {vary}."
    return [*cases, _case(example, expected)], text


def _case(inputs: Tensors, found: Tensors) -> Case:
    scales = {
        name: _SCALE * (float(t.abs().max()) if t.numel() and t.is_floating_point() else 1.0)
        for name, t in found.items()
    }
    return Case(inputs=inputs, expected=found, scales=scales)


def _resized(
    tensor: Tensor,
    symbols: Sequence[str | None],
    asked: Mapping[str, int],
    before: Mapping[str, int],
) -> Tensor:
    """Rows repeated or left out evenly, so that what is sorted stays sorted."""
    for dim, symbol in enumerate(symbols):
        if symbol is not None:
            new, old = asked[symbol], tensor.shape[dim]
            tensor = tensor.index_select(dim, torch.arange(new) * old // new)
    least = min(asked.values())
    if not tensor.is_floating_point() and tensor.dtype != torch.bool and tensor.numel():
        # Numbers of rows: there may be fewer now.
        shrunk = any(asked[symbol] < before[symbol] for symbol in asked)
        if shrunk and int(tensor.max()) >= least:
            tensor = tensor % least
    return tensor.contiguous()
