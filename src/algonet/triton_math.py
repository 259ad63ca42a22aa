"""Functions that Triton's language lacks, written in it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def atan(x):
    """atan, absolute error below 2e-7 in float32: a polynomial after two range reductions."""
    a = tl.abs(x)
    invert = a > 1.0
    t = tl.where(invert, 1.0 / tl.where(invert, a, 1.0), a)
    shift = t > 0.41421356237
    u = tl.where(shift, (t - 1.0) / (t + 1.0), t)
    z = u * u
    p = 8.05374449538e-2
    p = p * z - 1.38776856032e-1
    p = p * z + 1.99777106478e-1
    p = p * z - 3.33329491539e-1
    y = p * z * u + u + tl.where(shift, 0.7853981633974483, 0.0)
    y = tl.where(invert, 1.5707963267948966 - y, y)
    return tl.where(x < 0, -y, y)
