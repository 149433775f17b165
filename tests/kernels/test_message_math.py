"""Functions of generated loops, against exact values and torch's own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numba import njit
from torch.nn import functional

from weft.kernels import message_math

FUNCTIONS = {
    "expm1_negative": (np.expm1, -20.0, 0.0),
    "exp_not_positive": (np.exp, -80.0, 0.0),
    "softplus": (lambda x: np.logaddexp(0, x), -80.0, 80.0),
    "normal_density": (lambda x: np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi), -3.0, 3.0),
    "normal_share": (lambda x: 0.5 * np.vectorize(math.erfc)(-x * math.sqrt(0.5)), -3.0, 8.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("dtype", "allowed"), [(np.float32, 8e-7), (np.float64, 1e-14)])
def test_relative_errors(name, dtype, allowed):
    exact, low, high = FUNCTIONS[name]
    function = getattr(message_math, name)

    @njit
    def run(x, out):
        for k in range(len(x)):
            out[k] = function(x[k])

    near = np.logspace(-8, 0, 1000)
    x = np.concatenate([np.linspace(low, high, 20_001), near if high > 0 else -near, -near])
    x = x[(x >= low) & (x <= high)].astype(dtype)
    out = np.empty_like(x)
    run(x, out)
    expected = exact(x.astype(np.float64))
    error = np.abs(out - expected) / np.where(expected == 0, 1, np.abs(expected))
    assert error.max() < allowed
    strange = np.array([np.nan, low * 1e10], dtype=dtype)
    run(strange, out)
    assert np.isnan(out[0])
    assert np.isfinite(out[1])


@pytest.mark.parametrize("name", ["softplus", "gelu", "elu"])
def test_no_less_exact_than_torch(name):
    x = torch.cat([torch.linspace(-9, 9, 40_001), torch.logspace(-6, 0, 2000)])
    share, softplus = message_math.normal_share, message_math.softplus
    expm1 = message_math.expm1_negative

    @njit
    def run(x, out):
        for k in range(len(x)):
            if name == "gelu":
                out[k] = x[k] * share(x[k])
            elif name == "softplus":
                out[k] = softplus(x[k])
            else:
                out[k] = x[k] if x[k] > 0 else expm1(x[k])

    out = torch.empty_like(x)
    run(x.numpy(), out.numpy())
    exact = getattr(functional, name)(x.double())
    torchs = getattr(functional, name)(x)
    scale = exact.abs() if name != "gelu" else x.abs()
    errors = [((each - exact).abs() / scale.clamp(min=1e-30)).max() for each in (out, torchs)]
    assert errors[0] < max(2e-7, float(errors[1]))
