"""The polynomial step S_k: [0, 1] -> [0, 1], C^k when continued by 0 and 1. Sigmoids and exits share it."""

from __future__ import annotations

import math

from torch import Tensor


def smooth_step(t: Tensor, k: int) -> Tensor:
    """S_k(t) = t^(k+1) sum_{j<=k} C(k+j, j) (1-t)^j, with t clamped to [0, 1].

    This Bernstein form has positive terms only, so nothing cancels near either end.
    """
    t = t.clamp(0, 1)
    rest = 1 - t
    total = t * 0 + math.comb(2 * k, k)
    for j in range(k - 1, -1, -1):
        total = total * rest + math.comb(k + j, j)
    return t ** (k + 1) * total


def smooth_step_scalar(k: int) -> str:
    """Statements that set `value` = S_k(t) and `slope` = S_k'(t) = (2k+1)!/k!^2 (t (1-t))^k for kernels; t in [0, 1]."""
    total = f"{math.comb(2 * k, k)}.0"
    for j in range(k - 1, -1, -1):
        total = f"({total} * (1.0 - t) + {math.comb(k + j, j)}.0)"
    power = " * ".join(["t"] * (k + 1))
    peak = math.factorial(2 * k + 1) // math.factorial(k) ** 2
    bell = " * ".join(["t * (1.0 - t)"] * k + [f"{peak}.0"])
    return f"value = {power} * {total}\n            slope = where(t <= 0.0, 0.0, where(t >= 1.0, 0.0, {bell}))"
