"""exp and softplus as compiled loops inline them: the compiler then works on whole vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

__all__ = ["exp_negative", "softplus_of"]

_HALF, _ONE = np.float32(0.5), np.float32(1)
_LOG2_E = np.float32(1 / math.log(2))
# ln 2 in two parts: a whole number below 2^8 times the first is exact in float32.
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(math.log(2) - 0.693359375)
# exp(r) = Σ r^k / k! for |r| ≤ ln(2) / 2, to the last bit or two of a float32.
_C2, _C3, _C4, _C5, _C6 = (np.float32(1 / math.factorial(k)) for k in range(2, 7))
# 2^-126 is the smallest normal float32: less than that is 0.
_LOWEST = np.float32(-126)


@intrinsic
def _float_of_bits(typing_context: Any, bits: Any) -> Any:
    """The float32 with these 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


def exp_negative(a: Any) -> Any:
    """exp(-a) for a ≥ -80; 0 where that would be a denormal float32."""
    return math.exp(-a)


@overload(exp_negative, inline="always")
def _exp_negative(a: Any) -> Any:
    if a != types.float32:

        def exact(a: Any) -> Any:
            return math.exp(-a)

        return exact

    def vector_friendly(a: Any) -> Any:
        power = -a * _LOG2_E
        whole = np.floor(max(power, _LOWEST) + _HALF)
        r = (-a - whole * _LN2_HIGH) - whole * _LN2_LOW
        rest = _ONE + r * (_ONE + r * (_C2 + r * (_C3 + r * (_C4 + r * (_C5 + r * _C6)))))
        scale = _float_of_bits(np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)))
        return rest * scale if power > _LOWEST else np.float32(0)

    return vector_friendly


_LN2 = np.float32(math.log(2))
_TWO = np.float32(2)
# artanh(s) / s = 1 + s² / 3 + s⁴ / 5 + ...
_A3, _A5, _A7, _A9, _A11 = (np.float32(1 / k) for k in (3, 5, 7, 9, 11))


def softplus_of(x: Any) -> Any:
    """ln(1 + e^x) - ln 2."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x))) - math.log(2)


@overload(softplus_of, inline="always")
def _softplus_of(x: Any) -> Any:
    if x != types.float32:

        def exact(x: Any) -> Any:
            return max(x, 0.0) + math.log1p(math.exp(-abs(x))) - math.log(2)

        return exact

    def vector_friendly(x: Any) -> Any:
        t = exp_negative(abs(x))
        # ln(1 + t) = 2 artanh(t / (2 + t)), a short series for t ≤ 1.
        s = t / (_TWO + t)
        q = s * s
        series = _ONE + q * (_A3 + q * (_A5 + q * (_A7 + q * (_A9 + q * _A11))))
        return max(x, np.float32(0)) + (_TWO * s * series - _LN2)

    return vector_friendly
