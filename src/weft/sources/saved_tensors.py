"""What torch.save wrote, as arrays: read with `weights_only`, so that nothing in the file runs.

torch_geometric need not be installed: its classes are replaced by holders of what they were saved
with.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from weft.errors import DataError
from weft.graphs import Array
from weft.sources.archive import members
from weft.sources.pickles import ALLOWED, ArrayHolder, array_of, load_pickle

_PICKLE_LIMIT = 2**36


class _Saved:
    """Takes an object of torch_geometric: the attributes that it was saved with."""

    def __setstate__(self, state: Any) -> None:
        self.state = state


_GEOMETRIC = (
    *("data.data.Data", "data.data.DataEdgeAttr", "data.data.DataTensorAttr"),
    *("data.storage.GlobalStorage", "data.storage.BaseStorage"),
)


class _Unused:
    """Stands for a class that is only ever an argument."""


_HOLDERS: list[Any] = [(_Saved, f"torch_geometric.{name}") for name in _GEOMETRIC] + [
    (_Unused if holder is None else holder, name)
    for name, holder in ALLOWED.items()
    if name.startswith("numpy.")
]


def load_tensors(path: Path) -> dict[str, Any]:
    """The arrays, by name, of a `Data`, of a collated (`Data`, slices), or of a dict of tensors.

    Raises:
        DataError: the file is missing or damaged, names a class that is not on the list, or holds
            something else; the message says which.
    """
    try:
        if (content := _newer_pickle(path)) is not None:
            loaded = load_pickle(path, content)
        else:
            with _only_holders():
                loaded = torch.load(path, map_location="cpu", weights_only=True)
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except pickle.UnpicklingError as error:
        reason = _first_sentence(error)
        raise DataError(
            f"{path} was not loaded, and nothing of it has run: {reason}; save a Data of "
            "torch_geometric, or a dict of tensors"
        ) from None
    # A damaged file can fail in any instruction, with that instruction's own error.
    except Exception as error:
        raise DataError(
            f"{path} is not a complete file of torch.save ({_first_sentence(error)}); get it again"
        ) from None
    # A data set in memory is saved as its one big graph and where the graphs in it begin.
    if isinstance(loaded, tuple | list) and 1 <= len(loaded) <= 3:
        slices = loaded[1] if len(loaded) > 1 and isinstance(loaded[1], dict) else {}
        several = [k for k, v in slices.items() if isinstance(v, torch.Tensor) and len(v) > 2]
        if several or (len(loaded) > 1 and isinstance(loaded[1], _Saved)):
            raise DataError(f"{path} holds several graphs; save the one to train on")
        loaded = loaded[0]
    if isinstance(loaded, _Saved):
        loaded = _attributes(loaded)
    if not isinstance(loaded, dict):
        raise DataError(
            f"{path} holds a {type(loaded).__name__}; a Data of torch_geometric, or a dict of "
            "tensors, is needed"
        )
    return plain_arrays(path, loaded)


@contextmanager
def _only_holders() -> Iterator[None]:
    """Nothing but holders may be made; torch_geometric, once imported, allows its own classes."""
    others = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(_HOLDERS)
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(others)


def _newer_pickle(path: Path) -> bytes | None:
    """The pickle in a file whose protocol is none that `weights_only` reads, such as OGB's 4."""
    if zipfile.is_zipfile(path):
        for name, content in members(path, limit=_PICKLE_LIMIT):
            if name.endswith("/data.pkl"):
                start = content.read(2)
                newer = start[:1] == pickle.PROTO and start[1:] > b"\x02"
                return content.getvalue() if newer else None
    return None


def plain_arrays(path: Path, loaded: dict[Any, Any]) -> dict[str, Any]:
    """The same with numpy's arrays, also in the dicts inside it."""
    found: dict[str, Any] = {}
    for name, value in loaded.items():
        if isinstance(value, torch.Tensor):
            value = _array(path, str(name), value)
        elif isinstance(value, ArrayHolder):
            try:
                value = array_of(value)
            except (ValueError, AttributeError, TypeError) as error:
                raise DataError(f"{path}: '{name}' is not an array of numbers ({error})") from None
        elif isinstance(value, dict):
            value = plain_arrays(path, value)
        elif isinstance(value, list) and len(value) == 1 and isinstance(value[0], int):
            value = np.array(value)
        found[str(name)] = value
    return found


def _array(path: Path, name: str, tensor: torch.Tensor) -> Array:
    if tensor.layout != torch.strided:
        raise DataError(f"{path}: '{name}' is {tensor.layout}; save it dense")
    # A few bytes can say that they are a tensor of any size, all rows the same.
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise DataError(f"{path}: '{name}' repeats its numbers; save it with .contiguous()")
    try:
        found: Array = tensor.detach().numpy()
    except (TypeError, RuntimeError):
        raise DataError(
            f"{path}: '{name}' is {tensor.dtype}, which NumPy has not; save it as float32"
        ) from None
    return found


def _attributes(saved: _Saved) -> Any:
    """The mapping inside a Data's store; before version 2 it was the Data's own state."""
    state = getattr(saved, "state", None)
    store = state.get("_store") if isinstance(state, dict) else None
    if isinstance(store, _Saved):
        inner = getattr(store, "state", None)
        return inner.get("_mapping") if isinstance(inner, dict) else None
    return state


def _first_sentence(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    for mark in ("Unsupported", "GLOBAL "):
        if mark in text:
            text = text[text.index(mark) :]
            break
    return text.partition(". ")[0][:160].rstrip(".")
