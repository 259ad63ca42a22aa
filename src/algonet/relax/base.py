"""What every relaxation shares: its softness, its smoothness and the formula that kernels inline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

#: Scaled arguments are clamped here: far beyond it every relaxation is flat, and its square stays finite in float32.
FAR = 1e18


@dataclass(frozen=True, eq=False)
class Relaxation:
    """A smooth answer to a crisp question. Frozen; its softness may be a float or a (learnable) tensor.

    `smoothness` is how often it is continuously differentiable (`math.inf` or an integer). `softness_field` names the
    field that makes it harder or softer, `None` where there is none.

    `scalar` is the formula for kernels, in the few names that `algonet.core.codegen` knows in each dialect: statements that
    set `value` and `slope` (the derivative by z) from the scaled argument `z`. `None` means that no kernel can inline it.
    """

    smoothness: ClassVar[float] = math.inf
    softness_field: ClassVar[str | None] = None

    @property
    def scalar(self) -> str | None:
        return None

    @property
    def key(self) -> str:
        """Names the formula without its softness: equal keys mean equal formulas."""
        return type(self).__name__
