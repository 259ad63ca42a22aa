"""The vectorisable float32 functions, against float64 of the C library."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numba import njit

from algonet.core.codegen import numba_math

WIDE = np.concatenate([np.linspace(-87, 87, 40001), np.linspace(-3, 3, 20001)]).astype(np.float32)


def _over(function):
    @njit
    def run(x, out):
        for i in range(x.size):
            out[i] = function(x[i])

    def apply(x):
        out = np.full_like(x, np.nan)
        run(x, out)
        return out, run

    return apply


@pytest.mark.parametrize(
    ("function", "exact", "relative", "absolute"),
    [
        (numba_math.exp32, math.exp, 2e-7, 0),
        (numba_math.atan32, math.atan, 0, 2e-7),
        (numba_math.erf32, math.erf, 0, 4e-7),
        (numba_math.log32, math.log, 2e-7, 2e-7),
    ],
    ids=["exp", "atan", "erf", "log"],
)
def test_error_is_as_stated_and_loops_are_vectorised(function, exact, relative, absolute):
    x = np.exp(WIDE) if exact is math.log else WIDE
    got, run = _over(function)(x)
    want = np.array([exact(float(v)) for v in x])
    assert (np.abs(got - want) <= relative * np.abs(want) + absolute).all()
    code = next(iter(run.inspect_llvm().values()))
    assert " x float>" in code, "LLVM did not vectorise the loop"


def test_special_values():
    x = np.array([np.nan, np.inf, -np.inf, -88.0], np.float32)
    exp, _ = _over(numba_math.exp32)(x)
    assert np.isnan(exp[0])
    assert exp[1] > 1e38
    assert exp[2] == exp[3] == 0
    atan, _ = _over(numba_math.atan32)(x)
    assert np.isnan(atan[0])
    np.testing.assert_allclose(atan[1:3], [np.pi / 2, -np.pi / 2], rtol=1e-6)
    erf, _ = _over(numba_math.erf32)(x)
    assert np.isnan(erf[0])
    np.testing.assert_allclose(erf[1:3], [1, -1])
    log, _ = _over(numba_math.log32)(np.array([0.0, -1.0, 1.0], np.float32))
    assert log[0] == -np.inf
    assert np.isnan(log[1])
    assert log[2] == 0
