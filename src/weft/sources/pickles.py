"""Reading pickles that strangers made: plain containers and arrays by an allow-list."""

from __future__ import annotations

import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from weft.errors import DataError
from weft.graphs import Array

__all__ = ["load_pickle"]


class _Csr:
    """Takes the state of a pickled csr_matrix.

    A pickle may set attributes of whatever class it names, so it never gets hold of scipy's own.
    """


def _frombuffer(buffer: Any, dtype: Any, shape: Any, order: Any) -> Array:
    array: Array = np.frombuffer(buffer, dtype=dtype).reshape(shape, order=order)
    return array


def _array_functions() -> dict[str, Any]:
    # numpy renamed its private module in version 2, pickles carry either name; numpy itself says
    # which functions it has now.
    reconstruct = np.empty(0).__reduce__()[0]
    scalar = np.float64(0).__reduce__()[0]
    return {
        f"numpy.{core}.{name}": function
        for core in ("core", "_core")
        for name, function in (
            ("multiarray._reconstruct", reconstruct),
            ("multiarray.scalar", scalar),
            ("numeric._frombuffer", _frombuffer),
        )
    }


_ALLOWED: dict[str, Any] = {
    **_array_functions(),
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    "scipy.sparse.csr.csr_matrix": _Csr,
    "scipy.sparse._csr.csr_matrix": _Csr,
    "collections.defaultdict": defaultdict,
    "builtins.list": list,
    "__builtin__.list": list,
}


class _ForbiddenGlobalError(Exception):
    """Carries the dotted name of what the pickle asked for."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        asked = f"{module}.{name}"
        if asked not in _ALLOWED:
            raise _ForbiddenGlobalError(asked)
        return _ALLOWED[asked]


def load_pickle(path: str | Path) -> Any:
    """The object in the pickle `path`: numpy arrays and scalars, csr_matrix, dicts, lists, numbers.

    Python 2 pickles are read too (their strings as latin1). A csr_matrix at the top is checked
    index by index, so that it can be used without fear of reading outside its arrays.

    Raises:
        DataError: the file is missing, cut or damaged, or names any other class or function; the
            message says which. Nothing of it has run.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            loaded = _Unpickler(file, encoding="latin1").load()
        return _checked_csr(loaded) if isinstance(loaded, _Csr) else loaded
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except _ForbiddenGlobalError as forbidden:
        raise DataError(
            f"{path} is a pickle that asks for '{forbidden}', which is not on the list of what may "
            "be loaded; it was not run. Store the data in another form if you trust it"
        ) from None
    # A damaged pickle can fail in any instruction, with that instruction's own error.
    except Exception as error:
        raise DataError(
            f"{path} is not a whole pickle ({type(error).__name__}: {error}); get the file again"
        ) from None


def _checked_csr(parts: _Csr) -> csr_matrix[Any]:
    state = parts.__dict__
    arrays = (state["data"], state["indices"], state["indptr"])
    matrix = csr_matrix(arrays, shape=state["_shape"])
    matrix.check_format(full_check=True)
    return matrix
