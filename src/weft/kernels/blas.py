"""Matrix products inside compiled loops: torch's own BLAS, called by its address.

A product of some hundred rows is too small to be shared between threads, but a loop that is shared
can do many of them, each in its own thread and cache.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from weft.compiled import compiled


def _find(name: str) -> int:
    if sys.byteorder != "little":
        return 0
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        function = getattr(ctypes.CDLL(str(library)), name)
    except (AttributeError, OSError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


# Found once, here: what asks for them may be traced by torch.compile.
_ADDRESSES = {torch.float32: _find("sgemm_"), torch.float64: _find("dgemm_")}


def gemm_address(dtype: torch.dtype) -> int:
    """Address of BLAS's product of this dtype (Fortran) in torch's library, or 0.

    Its integers may have 32 bits or 64: `gemm` gives 64, whose lower half comes first here.
    """
    return _ADDRESSES.get(dtype, 0)


@intrinsic
def gemm(
    typing_context: Any,
    address: Any,
    transpose_a: Any,
    transpose_b: Any,
    m: Any,
    n: Any,
    k: Any,
    a: Any,
    b: Any,
    c: Any,
    add: Any,
) -> Any:
    """C [m, n] = A [m, k] @ B [k, n], plus C itself if `add`.

    The matrices are row-major arrays with unit column stride. `transpose_a` says that `a` is
    [k, m], `transpose_b` that `b` is [n, k].
    """
    number = c.dtype
    if not a.dtype == b.dtype == number or number not in (types.float32, types.float64):
        # It would read one as the other.
        raise TypingError(f"a product of {a.dtype} and {b.dtype} into {number}")
    signature = types.void(
        types.int64,
        types.boolean,
        types.boolean,
        types.int64,
        types.int64,
        types.int64,
        a,
        b,
        c,
        types.boolean,
    )

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        # BLAS has integers of 32 or 64 bits; a little-endian machine reads these as either.
        byte = ir.IntType(8)
        real = ir.FloatType() if number == types.float32 else ir.DoubleType()
        size = 4 if number == types.float32 else 8

        def place(value: Any) -> Any:
            return builder.bitcast(cgutils.alloca_once_value(builder, value), byte.as_pointer())

        def letter(flag: Any) -> Any:
            return place(builder.select(flag, byte(ord("T")), byte(ord("N"))))

        def matrix(index: int) -> tuple[Any, Any]:
            view = context.make_array(signature.args[index])(context, builder, values[index])
            rows = cgutils.unpack_tuple(builder, view.strides)[0]
            leading = builder.sdiv(rows, rows.type(size))
            # The stride of a single row may be anything, but BLAS wants a possible one.
            columns = cgutils.unpack_tuple(builder, view.shape)[1]
            short = builder.icmp_signed("<", leading, columns)
            leading = builder.select(short, columns, leading)
            data = builder.bitcast(view.data, byte.as_pointer())
            return data, place(leading)

        (a_data, a_lead), (b_data, b_lead), (c_data, c_lead) = matrix(6), matrix(7), matrix(8)
        m, n, k = (place(values[i]) for i in (3, 4, 5))
        one = place(real(1.0))
        beta = place(builder.select(values[9], real(1.0), real(0.0)))
        # Fortran is column-major, so it is told of Cᵀ = Bᵀ Aᵀ.
        arguments = [
            letter(values[2]), letter(values[1]), n, m, k, one,
            b_data, b_lead, a_data, a_lead, beta, c_data, c_lead,
        ]  # fmt: skip
        kind = ir.FunctionType(ir.VoidType(), [byte.as_pointer()] * len(arguments))
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), arguments)
        return context.get_dummy_value()

    return signature, generate


@compiled()
def add_rows(x: Any, out: Any) -> None:
    """out[j] += Σ x[i, j]."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[j] += x[i, j]
