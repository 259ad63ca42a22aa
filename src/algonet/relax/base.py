"""What every relaxation shares: checked softness, computing in a safe precision, and formulas that kernels can inline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

#: Scaled arguments are clamped here: far beyond it every relaxation is flat, and its square stays finite in float32.
FAR = 1e18


@dataclass(frozen=True, eq=False)
class Relaxation:
    """A smooth answer to a crisp question. Frozen; its softness may be a float or a (learnable) tensor.

    `smoothness` is how often it is continuously differentiable (`math.inf` or an integer). `softness_field` names the
    field that makes it harder or softer, `None` where there is none.

    `scalar` is the formula for kernels, in the few names that `algonet.codegen` knows in each dialect: statements that
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


def check_softness(owner: object, name: str, value: Any) -> None:
    """Raise unless `value` is a positive number or a floating tensor (whose values are not read: no synchronisation)."""
    where = type(owner).__name__
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            raise TypeError(f"{where}: `{name}` must be a floating tensor or a number, got a tensor of {value.dtype}.")
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{where}: `{name}` must be a positive number or a floating tensor, got {value!r}.")
    elif not value > 0 or math.isinf(value):
        raise ValueError(f"{where}: `{name}` must be positive and finite, got {value!r}.")


def check_tensor(owner: object, x: Any) -> Tensor:
    """`x` itself if it is a floating tensor; an error that says what to do otherwise."""
    where = owner if isinstance(owner, str) else type(owner).__name__
    if not isinstance(x, Tensor):
        raise TypeError(f"{where}: expected a tensor, got {type(x).__name__}; wrap it in torch.tensor(...).")
    if not x.is_floating_point():
        raise TypeError(f"{where}: expected a floating tensor, got {x.dtype}; call .float() first.")
    return x


def check_epsilon(owner: object, epsilon: float, most: float = 0.5) -> None:
    if not 0 < epsilon < most:
        raise ValueError(f"{type(owner).__name__}.reach: `epsilon` must lie in (0, {most}), got {epsilon!r}.")


def widened(x: Tensor) -> Tensor:
    """`x` in at least float32: half precisions are for storage, exponentials and quotients need more digits."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def log_floor(x: Tensor) -> float:
    """The logarithm of the smallest normal number of x's precision: where `log` forms of compact families stop."""
    return math.log(torch.finfo(x.dtype).tiny)
