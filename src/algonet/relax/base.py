"""What every relaxation shares: its softness, its smoothness and the formula that kernels inline."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import ClassVar

from torch import Tensor

from algonet.core.checks import check_softness

#: Scaled arguments are clamped here: far beyond it every relaxation is flat, and its square stays finite in float32.
FAR = 1e18


def scaled(steepness: float | Tensor, x: Tensor) -> Tensor:
    """steepness * x; interned relaxations have steepness 1, and a product less in every call."""
    return x if type(steepness) is float and steepness == 1.0 else steepness * x


@dataclass(frozen=True, eq=False)
class Relaxation:
    """A smooth answer to a crisp question. Frozen; its softness may be a float or a (learnable) tensor.

    `smoothness` is how often it is continuously differentiable (`math.inf` or an integer). `softness_field` names the
    field that makes it harder or softer, `None` where there is none.

    `scalar` is the formula for kernels, in the few names that `algonet.core.codegen` knows in each dialect: statements that
    set `value` and `slope` (the derivative in z) from the scaled argument `z`. `None` means that no kernel can inline it.
    """

    smoothness: ClassVar[float] = math.inf
    softness_field: ClassVar[str | None] = None
    scalar: ClassVar[str | None] = None

    def __post_init__(self):
        if self.softness_field is not None:
            check_softness(self, self.softness_field, getattr(self, self.softness_field))

    @property
    def key(self) -> str:
        """A short name: the class and the fields that choose the formula, so not the softness."""
        choices = (getattr(self, field.name) for field in fields(self) if field.name != self.softness_field)
        return type(self).__name__ + "-".join(f"{c:g}" if isinstance(c, float) else str(c) for c in choices)


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
