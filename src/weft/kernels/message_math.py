"""Functions of a number in generated loops that are as exact as torch's own, in float32 too.

`vector_math` has cheaper ones, right to some 1e-7 of 1; those here are right to 2e-7 of the value,
so that they can stand for torch's elu, softplus and gelu in a stranger's message.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba.extending import register_jitable

from weft.kernels.vector_math import _in_float32
from weft.runtime import float_of_bits

_HALF, _ONE = np.float32(0.5), np.float32(1)
_LOG2_E = np.float32(1 / math.log(2))
# ln 2 in two parts: a whole number below 2^8 times the first is exact in float32.
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(math.log(2) - 0.693359375)
_C2, _C3, _C4, _C5, _C6, _C7 = (np.float32(1 / math.factorial(k)) for k in range(2, 8))
# The logarithm of 2^-126, the smallest normal float32. It is second in max: nan stays nan.
_LOG_LEAST = np.float32(-126 * math.log(2))


def expm1_negative(x: Any) -> Any:
    """e^x - 1 for x ≤ 0."""
    return math.expm1(x)


@register_jitable  # type: ignore[untyped-decorator]
def _scaled(x: Any) -> tuple[Any, Any]:
    """A power of two and what it multiplies, less 1: e^x = scale + scale · rest, for x ≤ 0."""
    x = max(x, _LOG_LEAST)
    whole = np.floor(x * _LOG2_E + _HALF)
    r = (x - whole * _LN2_HIGH) - whole * _LN2_LOW
    r2 = r * r
    rest = (_C2 + _C3 * r) + ((_C4 + _C5 * r) + (_C6 + _C7 * r) * r2) * r2
    scale = float_of_bits(np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)))
    # The sum with r last: nothing of a small x is lost.
    return scale, r2 * rest + r


@_in_float32(expm1_negative)
def _expm1_negative(x: Any) -> Any:
    scale, rest = _scaled(x)
    return rest * scale + (scale - _ONE)


def exp_clamped(x: Any) -> Any:
    """e^x for x ≤ 0; at least 1e-38 in float32."""
    return math.exp(x)


@_in_float32(exp_clamped)
def _exp_clamped(x: Any) -> Any:
    scale, rest = _scaled(x)
    return rest * scale + scale


def exp_not_positive(x: Any) -> Any:
    """e^x for x ≤ 0; 0 where that would be a denormal float32."""
    return math.exp(x)


@_in_float32(exp_not_positive)
def _exp_not_positive(x: Any) -> Any:
    # In this order, so that nan stays nan.
    return np.float32(0) if x <= _LOG_LEAST else exp_clamped(x)


# (ln(1 + t) - t) / t² for 0 ≤ t ≤ 1, a Chebyshev fit that is right to 1e-8.
_L = np.polynomial.Chebyshev.interpolate(
    lambda t: (np.log1p(t) - t) / (t * t), 9, domain=[0.0, 1.0]
).convert(kind=np.polynomial.Polynomial)
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8, _L9 = map(np.float32, _L.coef)


def softplus(x: Any) -> Any:
    """ln(1 + e^x)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@_in_float32(softplus)
def _softplus(x: Any) -> Any:
    t = exp_not_positive(-abs(x))
    t2 = t * t
    t4 = t2 * t2
    low = (_L0 + _L1 * t) + (_L2 + _L3 * t) * t2
    high = ((_L4 + _L5 * t) + (_L6 + _L7 * t) * t2) + (_L8 + _L9 * t) * t4
    return max(x, np.float32(0)) + (t2 * (low + high * t4) + t)


_ROOT_HALF = math.sqrt(0.5)
_DENSITY = 1 / math.sqrt(2 * math.pi)


def normal_density(x: Any) -> Any:
    """e^(-x²/2) / √(2π)."""
    return math.exp(-0.5 * x * x) * _DENSITY


@_in_float32(normal_density)
def _normal_density(x: Any) -> Any:
    return exp_clamped(-_HALF * x * x) * np.float32(_DENSITY)


# Φ(x) = 1/2 + x · series(x²) near 0.
_S0, _S1, _S2, _S3, _S4, _S5, _S6, _S7 = (
    np.float32(_DENSITY * (-0.5) ** n / (math.factorial(n) * (2 * n + 1))) for n in range(8)
)
# Φ(-t) = e^(-t²/2) · Σ Qn k^n with k = 1 / (1 + 0.21 t) for t ≥ 0, a fit that is right to 2e-8.
_SHARE = np.float32(0.21)
_Q1, _Q2, _Q3, _Q4, _Q5, _Q6, _Q7, _Q8, _Q9 = map(
    np.float32,
    (
        0.08371158079979883,
        0.08506877770260798,
        0.06919270319353617,
        0.12487075664241001,
        -0.09392077024990954,
        0.349394776248965,
        -0.3302480416206986,
        0.2835860088381707,
        -0.07165578473754888,
    ),
)


def normal_share(x: Any) -> Any:
    """The share Φ(x) of a normal distribution that is below x."""
    return 0.5 * math.erfc(-x * _ROOT_HALF)


@_in_float32(normal_share)
def _normal_share(x: Any) -> Any:
    # Without a condition: numba warns where a function with one is used twice.
    inner = min(max(x, -_ONE), _ONE)
    y = inner * inner
    y2 = y * y
    low = (_S0 + _S1 * y) + (_S2 + _S3 * y) * y2
    high = (_S4 + _S5 * y) + (_S6 + _S7 * y) * y2
    near = _HALF + inner * (low + high * (y2 * y2))
    k = _ONE / (_ONE + _SHARE * abs(x))
    k2 = k * k
    k4 = k2 * k2
    low = (_Q1 + _Q2 * k) + (_Q3 + _Q4 * k) * k2
    high = ((_Q5 + _Q6 * k) + (_Q7 + _Q8 * k) * k2) + _Q9 * k4
    tail = k * (low + high * k4) * exp_clamped(-_HALF * x * x)
    above = np.float32(x > np.float32(0))
    far = above + (_ONE - (above + above)) * tail
    return far + np.float32(abs(x) < _ONE) * (near - far)
