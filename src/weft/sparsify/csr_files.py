"""Sparse models in few bytes on disk: safetensors with CSR parts, for other programs too."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from weft.errors import DataError
from weft.files import parse_json, write_atomically
from weft.sparsify.sparse_layers import to_dense

# Entries of the file's header: the shapes of the weights stored as CSR, and the names of shared
# weights, each with the name that it is stored by.
_SHAPES, _SHARED = "weft_csr_shapes", "weft_shared"
_PARTS = ("values", "columns", "offsets")
# A weight that is stored as CSR has fewer numbers than this, so that int32 can count them.
_MOST = 2**31


def save_csr(model: nn.Module, path: Path | str) -> None:
    """Write the model's parameters and buffers as safetensors, weights of many zeros as CSR.

    A matrix `name` becomes `name.values` [K], `name.columns` int32 [K] and `name.offsets`
    int32 [rows + 1], if these are smaller; the header's "weft_csr_shapes" gives its shape. A
    weight of more dimensions is stored as the matrix of its first one and all others. One that
    several layers share is stored by its first name; the header's "weft_shared" gives that name
    for each other one. A `SparseLinear` is stored as the weight of a linear layer.
    """
    tensors: dict[str, Tensor] = {}
    shapes: dict[str, list[int]] = {}
    shared: dict[str, str] = {}
    first: dict[int, str] = {}
    # The parameters themselves: copies would not be recognised as shared.
    for name, tensor in to_dense(model).state_dict(keep_vars=True).items():
        if first.setdefault(id(tensor), name) != name:
            shared[name] = first[id(tensor)]
            continue
        tensor = tensor.detach().cpu()
        stored = _csr_of(tensor)
        if stored is None:
            # Two tensors may be views of the same memory.
            tensors[name] = tensor.clone().contiguous()
        else:
            shapes[name] = list(tensor.shape)
            tensors |= {f"{name}.{part}": value for part, value in stored.items()}
    content = save(tensors, {_SHAPES: json.dumps(shapes), _SHARED: json.dumps(shared)})
    write_atomically(Path(path), lambda file: file.write(content))


def _csr_of(tensor: Tensor) -> dict[str, Tensor] | None:
    """The CSR parts of a weight; None if it is no matrix, or if they would be larger."""
    if tensor.ndim < 2 or not tensor.is_floating_point() or not 0 < tensor.numel() < _MOST:
        return None
    tensor = tensor.flatten(1)
    rows, columns = tensor.nonzero(as_tuple=True)
    size = columns.numel() * (4 + tensor.element_size()) + 4 * (tensor.shape[0] + 1)
    if size >= tensor.numel() * tensor.element_size():
        return None
    edges = torch.arange(tensor.shape[0] + 1)
    return {
        "values": tensor[rows, columns],
        "columns": columns.int(),
        "offsets": torch.searchsorted(rows, edges).int(),
    }


def load_csr(path: Path | str) -> dict[str, Tensor]:
    """The dense state of what `save_csr` wrote, for `load_state_dict` of the dense model.

    The names of a shared weight have the same tensor.

    Raises:
        DataError: the file is not there, or not such a file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            # Older files have no shared weights.
            shapes, shared = (
                dict(parse_json(header.get(key, "{}"), str(path))) for key in (_SHAPES, _SHARED)
            )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise DataError(f"{path} cannot be read as safetensors: {error}") from error
    for name, shape in shapes.items():
        try:
            parts = {part: tensors.pop(f"{name}.{part}") for part in _PARTS}
            tensors[name] = _dense_of(**parts, shape=shape)
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise DataError(f"{path}: the matrix {name} is damaged: {error}") from error
    for name, other in shared.items():
        if not isinstance(other, str) or other not in tensors:
            raise DataError(f"{path}: {name} is stored as {other!r}, which is not in the file")
        tensors[name] = tensors[other]
    return tensors


def _dense_of(values: Tensor, columns: Tensor, offsets: Tensor, shape: Any) -> Tensor:
    right = isinstance(shape, list) and len(shape) >= 2
    if not right or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"its shape is {shape!r}")
    if math.prod(shape) >= _MOST:
        raise ValueError(f"its shape is {shape!r}, of {_MOST:,} numbers and more")
    rows, width = shape[0], math.prod(shape[1:])
    counts = offsets.diff().long()
    right = offsets.shape == (rows + 1,) and values.shape == columns.shape and values.ndim == 1
    right = right and bool((counts >= 0).all()) and int(counts.sum()) == columns.numel()
    if not (right and bool(((columns >= 0) & (columns < width)).all())):
        raise ValueError(f"its parts are not those of a matrix {rows} x {width}")
    out = values.new_zeros(rows, width)
    out[torch.repeat_interleave(counts), columns.long()] = values
    return out.view(shape)
