"""What compiled loops call: functions of a number, and passes over a block of rows in the cache.

Functions of a number are inlined: the compiler then works on whole vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from weft.runtime import Loop, compiled, float_of_bits, kernel

_HALF, _ONE, _TWO = np.float32(0.5), np.float32(1), np.float32(2)
_LOG2_E = np.float32(1 / math.log(2))
# ln 2 in two parts: a whole number below 2^8 times the first is exact in float32.
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(math.log(2) - 0.693359375)
# exp(r) = Σ r^k / k! for |r| ≤ ln(2) / 2, to the last bit or two of a float32.
_C2, _C3, _C4, _C5, _C6 = (np.float32(1 / math.factorial(k)) for k in range(2, 7))
# 2^-126 is the smallest normal float32: less than that is 0.
_LOWEST = np.float32(-126)


def _in_float32(exact: Callable[[Any], Any]) -> Callable[[Loop], Loop]:
    """Decorator: what compiled loops compute for exact(x) where x is a float32, in vectors."""

    def decorate(fast: Loop) -> Loop:
        @overload(exact, inline="always")
        def choose(x: Any) -> Any:
            return fast if x == types.float32 else exact

        return fast

    return decorate


def exp_negative(x: Any) -> Any:
    """exp(-x) for x ≥ -80; 0 where that would be a denormal float32."""
    return math.exp(-x)


@_in_float32(exp_negative)
def _exp_negative(x: Any) -> Any:
    power = -x * _LOG2_E
    whole = np.floor(max(power, _LOWEST) + _HALF)
    r = (-x - whole * _LN2_HIGH) - whole * _LN2_LOW
    # By powers of two, not from the inside out: the sums do not wait for each other.
    r2 = r * r
    rest = ((_ONE + r) + (_C2 + _C3 * r) * r2) + ((_C4 + _C5 * r) + _C6 * r2) * (r2 * r2)
    scale = float_of_bits(np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)))
    # In this order, so that nan stays nan.
    return np.float32(0) if power <= _LOWEST else rest * scale


def exp_of(x: Any) -> Any:
    """exp(x); 0 where that would be a denormal float32."""
    return math.exp(x)


# exp of half of it can be computed, and the square of that is infinite.
_OVERFLOWS = np.float32(150)


@_in_float32(exp_of)
def _exp_of(x: Any) -> Any:
    root = exp_negative(-_HALF * min(x, _OVERFLOWS))
    return root * root


_LN2 = np.float32(math.log(2))
# ln(1 + t) / t for 0 ≤ t ≤ 1, a Chebyshev fit that is right to 3e-8.
_L0, _L1, _L2, _L3, _L4, _L5, _L6, _L7, _L8 = map(
    np.float32,
    (
        0.9999999705406566,
        -0.49999501516788114,
        0.333192713425127,
        -0.24844369892524257,
        0.19111431080716235,
        -0.1367476970569406,
        0.0783616680195272,
        -0.029588507392826723,
        0.0052534577968937355,
    ),
)


def softplus_of(x: Any) -> Any:
    """ln(1 + e^x) - ln 2."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x))) - math.log(2)


@_in_float32(softplus_of)
def _softplus_of(x: Any) -> Any:
    t = exp_negative(abs(x))
    t2 = t * t
    t4 = t2 * t2
    low = (_L0 + _L1 * t) + (_L2 + _L3 * t) * t2
    high = ((_L4 + _L5 * t) + (_L6 + _L7 * t) * t2) + _L8 * t4
    return max(x, np.float32(0)) + (t * (low + high * t4) - _LN2)


def softplus_derivative_of(x: Any) -> Any:
    """The derivative of x = ln(1 + e^u) - ln 2 in u, from x: 1 - e^-x / 2."""
    return 1.0 - 0.5 * math.exp(-x)


@_in_float32(softplus_derivative_of)
def _softplus_derivative_of(x: Any) -> Any:
    return _ONE - _HALF * exp_negative(x)


# What exp_negative still takes; the constant is second, so that nan stays nan.
_FAR = np.float32(-80)


def sigmoid_of(x: Any) -> Any:
    """1 / (1 + e^-x)."""
    # Beyond -700 it is 0 to the last bit, and the exponential infinite.
    return 1.0 / (1.0 + math.exp(-max(x, -700.0)))


@_in_float32(sigmoid_of)
def _sigmoid_of(x: Any) -> Any:
    return _ONE / (_ONE + exp_negative(max(x, _FAR)))


def tanh_of(x: Any) -> Any:
    """tanh x."""
    return math.tanh(x)


@_in_float32(tanh_of)
def _tanh_of(x: Any) -> Any:
    # Where x is small bits are lost, but no more than a unit in the last place of 1.
    t = exp_negative(max(_TWO * x, _FAR))
    return (_ONE - t) / (_ONE + t)


@kernel
def add_and_activate(x: Any, bias: Any, activate: bool) -> None:
    """x[i, j] becomes softplus(x[i, j] + bias[j]) - ln 2, the softplus if `activate`."""
    for i in range(x.shape[0]):
        if bias is not None:
            for j in range(x.shape[1]):
                x[i, j] += bias[j]
        if activate:
            for j in range(x.shape[1]):
                x[i, j] = softplus_of(x[i, j])


@kernel
def times_derivative(y: Any, grad: Any, out: Any) -> None:
    """out = grad · dy/dx of y = softplus(x) - ln 2."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = grad[i, j] * softplus_derivative_of(y[i, j])


@kernel
def multiply_by_derivative(y: Any, x: Any) -> None:
    """x · dy/dx of y = softplus - ln 2, in place.

    Only two arrays: of a third, the compiler would have to ask whether it overlaps them.
    """
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] *= softplus_derivative_of(y[i, j])


@compiled()
def add_rows(x: Any, out: Any) -> None:
    """out[j] += Σ x[i, j]."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[j] += x[i, j]


@kernel
def sum_chunks(parts: Any, sums: Any) -> None:
    """sums = Σ parts[c], in the order of the chunks."""
    sums[:] = 0
    for number in range(parts.shape[0]):
        part = parts[number]
        for i in range(sums.shape[0]):
            for j in range(sums.shape[1]):
                sums[i, j] += part[i, j]
