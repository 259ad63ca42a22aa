"""Scalar functions for Numba kernels that LLVM can vectorise.

Numba calls the C library for `exp`, `atan` and `erf`, one number at a time. Written as polynomials (with the exponent
put in by a bit cast) they are straight-line arithmetic, and a loop over them runs in vector registers. Float32 only;
measured errors are beside each function and tested. Float64 kernels use the C library.
"""

from __future__ import annotations

import math

import numpy as np
from numba import float32, int32, types
from numba.extending import intrinsic

from algonet.core.codegen.jit import njit

#: Contraction to fused multiply-adds is the only liberty taken: NaN and infinities keep their meaning.
_OPTIONS = {"fastmath": {"contract"}, "error_model": "numpy"}
#: Of long functions: a loop that calls them runs in vector registers only where they are compiled into it.
_INLINED = {**_OPTIONS, "forceinline": True}


@intrinsic
def _bits_to_float(typing_context, bits):
    """Reinterpret an int32 as float32."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.int32), generate


@intrinsic
def _float_to_bits(typing_context, value):
    """Reinterpret a float32 as int32."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.int32))

    return types.int32(types.float32), generate


@njit(**_OPTIONS)
def where(condition, a, b):
    return a if condition else b


@njit(**_OPTIONS)
def minimum(a, b):
    return a if a < b else b


@njit(**_OPTIONS)
def maximum(a, b):
    return a if a > b else b


@njit(**_OPTIONS)
def abs32(x):
    return abs(float32(x))


@njit(**_OPTIONS)
def sqrt32(x):
    return np.sqrt(float32(x))


@njit(**_OPTIONS)
def exp32(x):
    """exp in float32, relative error below 2e-7; 0 below -87.3, clamped at exp(88)."""
    x = float32(x)
    clamped = min(max(x, float32(-87.3)), float32(88.0))
    n = np.floor(clamped * float32(1.4426950408889634) + float32(0.5))
    # ln 2 in two parts, so that n * ln 2 is subtracted without rounding
    r = clamped - n * float32(0.693359375) - n * float32(-2.12194440e-4)
    p = float32(1.9875691500e-4)
    p = p * r + float32(1.3981999507e-3)
    p = p * r + float32(8.3334519073e-3)
    p = p * r + float32(4.1665795894e-2)
    p = p * r + float32(1.6666665459e-1)
    p = p * r + float32(5.0000001201e-1)
    p = p * r * r + r + float32(1.0)
    scaled = p * _bits_to_float(int32((int32(n) + int32(127)) << int32(23)))  # pyright: ignore[reportCallIssue]
    finite = scaled if x > float32(-87.3) else float32(0.0)
    return finite if x == x else x


@njit(**_OPTIONS)
def log32(x):
    """Natural logarithm in float32 for positive normal x, relative error below 2e-7; -inf at 0."""
    x = float32(x)
    bits = _float_to_bits(max(x, float32(1.17549435e-38)))  # pyright: ignore[reportCallIssue]
    exponent = float32((bits >> int32(23)) - int32(126))
    m = _bits_to_float(int32((bits & int32(0x007FFFFF)) | int32(0x3F000000)))  # pyright: ignore[reportCallIssue]
    low = m < float32(0.70710678)
    exponent = exponent - (float32(1.0) if low else float32(0.0))
    m = (m + m if low else m) - float32(1.0)
    z = m * m
    p = float32(7.0376836292e-2)
    p = p * m - float32(1.1514610310e-1)
    p = p * m + float32(1.1676998740e-1)
    p = p * m - float32(1.2420140846e-1)
    p = p * m + float32(1.4249322787e-1)
    p = p * m - float32(1.6668057665e-1)
    p = p * m + float32(2.0000714765e-1)
    p = p * m - float32(2.4999993993e-1)
    p = p * m + float32(3.3333331174e-1)
    y = p * m * z + exponent * float32(-2.12194440e-4) - float32(0.5) * z
    result = m + y + exponent * float32(0.693359375)
    return result if x > float32(0.0) else (float32(-np.inf) if x == float32(0.0) else float32(np.nan))


@njit(**_INLINED)
def atan32(x):
    """atan in float32, absolute error below 2e-7."""
    x = float32(x)
    a = abs(x)
    invert = a > float32(1.0)
    t = float32(1.0) / a if invert else a
    # Halve the range once more: atan t = pi/4 + atan((t-1)/(t+1)) beyond tan(pi/8)
    shift = t > float32(0.41421356)
    u = (t - float32(1.0)) / (t + float32(1.0)) if shift else t
    z = u * u
    p = float32(8.05374449538e-2)
    p = p * z - float32(1.38776856032e-1)
    p = p * z + float32(1.99777106478e-1)
    p = p * z - float32(3.33329491539e-1)
    y = p * z * u + u + (float32(0.7853981633974483) if shift else float32(0.0))
    y = float32(1.5707963267948966) - y if invert else y
    return -y if x < float32(0.0) else y


@njit(**_INLINED)
def erf32(x):
    """erf in float32, absolute error below 4e-7."""
    x = float32(x)
    a = abs(x)
    t = float32(1.0) / (float32(1.0) + float32(0.3275911) * a)
    z = x * x
    # Near 0 the odd series, elsewhere 1 - exp(-x^2) P(t)
    p = float32(-1.0 / 1320.0) * z + float32(1.0 / 216.0)
    p = p * z - float32(1.0 / 42.0)
    p = p * z + float32(0.1)
    p = p * z - float32(1.0 / 3.0)
    near = float32(2.0 / math.sqrt(math.pi)) * (x + x * z * p)
    q = float32(1.061405429)
    q = q * t - float32(1.453152027)
    q = q * t + float32(1.421413741)
    q = q * t - float32(0.284496736)
    q = q * t + float32(0.254829592)
    tail = float32(1.0) - q * t * exp32(-z)
    far = -tail if x < float32(0.0) else tail
    return near if a < float32(0.5) else far


__all__ = ["abs32", "atan32", "erf32", "exp32", "log32", "maximum", "minimum", "sqrt32", "where"]
