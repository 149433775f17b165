"""Reading pickles that are not trusted: plain containers and arrays, by an allow-list."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from weft.errors import DataError
from weft.graphs import Array


# A pickle can build any class that it names with any arguments and any state; with numpy's own
# classes it could make an array of raw pointers. So it gets these holders, and the arrays are made
# from them here.
# Each has a __setstate__: without one, a pickle could set attributes of the class itself.
class _Dtype:
    """Takes a pickled dtype."""

    def __init__(self, code: str, *_: object) -> None:
        self.code = code
        self.order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]


class ArrayHolder:
    """Takes a pickled array: numpy makes an empty one and then sets its state."""

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, self.dtype, self.fortran, self.raw = state


class _BufferArray(ArrayHolder):
    """Takes an array pickled with protocol 5."""

    def __init__(self, raw: Any, dtype: Any, shape: Any, order: Any) -> None:
        self.__setstate__((1, shape, dtype, order == "F", raw))


class _Csr:
    """Takes a pickled csr_matrix."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.state = state


class _Lists(defaultdict[Any, list[Any]]):
    """Takes a pickled defaultdict of lists, whatever its factory is."""

    def __init__(self, *_: object) -> None:
        super().__init__(list)

    def __setstate__(self, state: object) -> None:
        raise ValueError("a defaultdict with a state")


ALLOWED: dict[str, Any] = {
    # numpy renamed its private module in version 2, pickles carry either name.
    "numpy.core.multiarray._reconstruct": ArrayHolder,
    "numpy._core.multiarray._reconstruct": ArrayHolder,
    "numpy.core.numeric._frombuffer": _BufferArray,
    "numpy._core.numeric._frombuffer": _BufferArray,
    "numpy.ndarray": None,  # only ever an argument of _reconstruct
    "numpy.dtype": _Dtype,
    "scipy.sparse.csr.csr_matrix": _Csr,
    "scipy.sparse._csr.csr_matrix": _Csr,
    "collections.defaultdict": _Lists,
    # Only ever arguments of defaultdict: copies of copies would fill the memory.
    "builtins.list": None,
    "__builtin__.list": None,
}
"""What a pickle may name, and what it gets for it."""

_NUMBERS = re.compile(r"b1|[iu][1248]|f[248]")


_OPCODES = {opcode.code: opcode for opcode in pickletools.opcodes}
# Opcodes with a number that the unpickler takes for a size or a place of its memory.
_SIZED = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "FRAME"})


def check_pickle(content: bytes) -> None:
    """Refuse a pickle that would take memory out of proportion to its own size.

    The unpickler makes room for as many objects, and for as many bytes, as an opcode's argument
    says: eleven bytes can ask for gigabytes. No pickle has more objects than bytes.

    Raises:
        ValueError: the pickle is cut or damaged, or an argument is larger than the pickle.
    """
    stream = io.BytesIO(content)
    while code := stream.read(1):
        opcode = _OPCODES.get(code.decode("latin1"))
        if opcode is None:
            raise ValueError(f"no opcode {code!r} at byte {stream.tell() - 1}")
        if opcode.name == "STOP":
            return
        if opcode.name == "STRING":
            # Python 2 wrote the bytes of arrays so, which pickletools takes for ASCII.
            stream.readline()
            continue
        argument: Any = None if opcode.arg is None else opcode.arg.reader(stream)
        if opcode.name in _SIZED and argument > len(content):
            raise ValueError(f"{opcode.name} asks for {argument:,}, more than the pickle has")
    raise ValueError("it ends before its STOP")


class _ForbiddenGlobalError(Exception):
    """Carries the dotted name that the pickle requested."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        asked = f"{module}.{name}"
        if asked not in ALLOWED:
            raise _ForbiddenGlobalError(asked)
        return ALLOWED[asked]


def load_pickle(path: str | Path, content: bytes | None = None) -> Any:
    """What the pickle `path` holds: an array of numbers, a csr_matrix, or plain dicts and lists.

    Python 2 pickles are read too (their strings as latin1). A csr_matrix is checked index by
    index, so that it can be used without fear of reading outside its arrays. Arrays inside dicts
    and lists are left as holders, see `array_of`.

    Args:
        path: the file.
        content: the pickle, where it is a part of the file.

    Raises:
        DataError: the file is missing, cut or damaged, or names any other class or function; the
            message says which. Nothing of it has run.
    """
    path = Path(path)
    try:
        content = path.read_bytes() if content is None else content
        check_pickle(content)
        loaded = _Unpickler(io.BytesIO(content), encoding="latin1").load()
        if isinstance(loaded, _Csr):
            state = loaded.state
            data, indices, indptr = (
                array_of(state[name]) for name in ("data", "indices", "indptr")
            )
            return checked_csr(data, indices, indptr, state["_shape"])
        return array_of(loaded) if isinstance(loaded, ArrayHolder) else loaded
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None
    except _ForbiddenGlobalError as forbidden:
        raise DataError(
            f"{path} is a pickle that needs '{forbidden}', which is not on the list of what may "
            "be loaded; it was not run. Store the data in another form if you trust it"
        ) from None
    # A damaged pickle can fail in any instruction, with that instruction's own error.
    except Exception as error:
        raise DataError(
            f"{path} is not a complete pickle ({type(error).__name__}: {error}); get the file again"
        ) from None


def array_of(held: ArrayHolder) -> Array:
    """The array that a pickle describes.

    Raises:
        ValueError: it is one of something other than numbers, or its parts do not fit.
    """
    if not isinstance(held.dtype, _Dtype) or not _NUMBERS.fullmatch(held.dtype.code):
        raise ValueError("an array of something other than numbers")
    raw = held.raw.encode("latin1") if isinstance(held.raw, str) else held.raw
    if min(held.shape, default=0) < 0:
        raise ValueError(f"an array of shape {held.shape}")
    flat = np.frombuffer(raw, dtype=np.dtype(held.dtype.order + held.dtype.code))
    array: Array = flat.reshape(held.shape, order="F" if held.fortran else "C").copy()
    return array


def checked_csr(data: Array, indices: Array, indptr: Array, shape: Any) -> csr_matrix[Any]:
    """The matrix of these arrays, checked index by index.

    Raises:
        ValueError: they are not those of a csr_matrix.
    """
    matrix = csr_matrix((data, indices, indptr), shape=tuple(shape))
    matrix.check_format(full_check=True)
    return matrix
