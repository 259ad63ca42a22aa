"""Kernels in Triton's language, and functions that it lacks, written in it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from algonet.core.backends import interpreting

#: Whether code is for NVIDIA's assembler. Neither the interpreter nor AMD's knows its instructions: there Triton's own serve.
PTX = tl.constexpr(not interpreting() and torch.version.hip is None)


def kernel(function: Callable[..., Any]) -> Any:
    """`triton.jit` for kernels that `core.launch` starts: compiled for the types of their arguments and their constants alone.

    Triton would compile anew for numbers that are 1 or multiples of 16, and for memory that is aligned. One compilation serves
    all instead, also of memory that is not aligned, and starting it again asks nothing.
    """
    plain = [name for name, p in inspect.signature(function).parameters.items() if "constexpr" not in str(p.annotation)]
    return triton.jit(function, do_not_specialize=plain)


@triton.jit
def reciprocal(x):
    """1/x, 0 for infinity; in float32 the processor's own, to one unit in the last place and a half, for x >= 1e-38."""
    if x.dtype == tl.float64 or not PTX:
        r = 1.0 / x
    else:
        r = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return r


@triton.jit
def quick_exp(x):
    """exp; in float32 the processor's own, as `tl.exp`, but 0 below 1e-38, which spares what would scale such numbers."""
    return quick_exp2(x * 1.4426950408889634)


@triton.jit
def quick_exp2(x):
    """2^x; in float32 the processor's own, 0 below 1e-38, which spares what would scale such numbers."""
    if x.dtype == tl.float64 or not PTX:
        y = tl.exp2(x)
    else:
        y = tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return y


@triton.jit
def log_complement(c):
    """log(1 - c) for c in [0, 1 - 1e-7], to full relative precision."""
    if c.dtype == tl.float64:
        u = 1.0 - c
        found = tl.where(u == 1.0, -c, tl.log(u) * (c / tl.where(u == 1.0, 1.0, 1.0 - u)))
    else:
        low = tl.minimum(c, 0.5)
        s = low / (2.0 - low)
        z = s * s
        r = z * (1.0 / 13.0) + 1.0 / 11.0
        r = r * z + 1.0 / 9.0
        r = r * z + 1.0 / 7.0
        r = r * z + 1.0 / 5.0
        r = r * z + 1.0 / 3.0
        found = tl.where(c < 0.5, -2.0 * (s + s * z * r), tl.log(1.0 - c))
    return found


@triton.jit
def short_of_one(c):
    """c up to 1, scaled to stay one rounding step below 1."""
    c = tl.minimum(c, 1.0)
    if c.dtype == tl.float64:
        found = c * (1.0 - 2.220446049250313e-16)
    else:
        found = c * (1.0 - 1.1920928955078125e-07)
    return found


@triton.jit
def atan(x):
    """atan: absolute error below 2e-7 in float32, 1e-15 in float64. A polynomial after two range reductions."""
    a = tl.abs(x)
    invert = a > 1.0
    t = tl.where(invert, 1.0 / tl.where(invert, a, 1.0), a)
    shift = t > 0.41421356237
    u = tl.where(shift, (t - 1.0) / (t + 1.0), t)
    if u.dtype == tl.float64:
        y = _series(u)
    else:
        z = u * u
        p = z * 8.05374449538e-2 - 1.38776856032e-1
        p = p * z + 1.99777106478e-1
        p = p * z - 3.33329491539e-1
        y = p * z * u + u
    y = tl.where(shift, y + 0.7853981633974483, y)  # a `where` of two literals would be float32
    y = tl.where(invert, 1.5707963267948966 - y, y)
    return tl.where(x < 0, -y, y)


@triton.jit
def _series(u):
    """atan for |u| <= tan(pi/8) in float64: the half angle, then twelve terms of the odd series."""
    half = u / (1.0 + tl.sqrt(1.0 + u * u))
    z = half * half
    p = z * 0.0 - 1.0 / 23.0
    p = p * z + 1.0 / 21.0
    p = p * z - 1.0 / 19.0
    p = p * z + 1.0 / 17.0
    p = p * z - 1.0 / 15.0
    p = p * z + 1.0 / 13.0
    p = p * z - 1.0 / 11.0
    p = p * z + 1.0 / 9.0
    p = p * z - 1.0 / 7.0
    p = p * z + 0.2
    p = p * z - 1.0 / 3.0
    return 2.0 * (half + half * z * p)
