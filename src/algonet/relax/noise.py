"""Noise smooths positions in the plane: how "which pixel?" becomes a probability. Isotropic, with a length `scale`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from algonet.core.checks import check_epsilon, check_tensor, widened

from .base import Relaxation


@dataclass(frozen=True, eq=False)
class Noise(Relaxation):
    """An isotropic distribution of displacements in the plane; `scale -> 0` leaves positions as they are.

    `tail(r)` is the probability of landing farther than r away, `reach(epsilon)` the r at which that is epsilon,
    `density(r)` the density per area.
    """

    scale: float | Tensor = 1.0
    softness_field: ClassVar[str | None] = "scale"

    def tail(self, r: Tensor) -> Tensor:
        r = check_tensor(self, r)
        return self._tail(widened(r) / self.scale).to(r.dtype)

    def density(self, r: Tensor) -> Tensor:
        r = check_tensor(self, r)
        return (self._density(widened(r) / self.scale) / self.scale**2).to(r.dtype)

    def reach(self, epsilon: float) -> float | Tensor:
        check_epsilon(self, epsilon, most=1.0)
        return self._reach(epsilon) * self.scale

    def _tail(self, r: Tensor) -> Tensor:
        raise NotImplementedError

    def _density(self, r: Tensor) -> Tensor:
        raise NotImplementedError

    def _reach(self, epsilon: float) -> float:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class GaussianNoise(Noise):
    """Normal noise of standard deviation `scale` in each direction: tail(r) = exp(-r^2 / (2 scale^2))."""

    def _tail(self, r: Tensor) -> Tensor:
        return torch.exp(-0.5 * r.clamp(-1e3, 1e3) ** 2)

    def _density(self, r: Tensor) -> Tensor:
        return self._tail(r) / (2 * math.pi)

    def _reach(self, epsilon: float) -> float:
        return math.sqrt(-2 * math.log(epsilon))


@dataclass(frozen=True, eq=False)
class StudentT(Noise):
    """Bivariate Student-t noise: tail(r) = (1 + r^2 / (df scale^2))^(-df/2). df -> inf is Gaussian, df = 2 reaches far."""

    df: float = 8
    scale: float | Tensor = field(default=1.0, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.df, bool) or not isinstance(self.df, (int, float)) or not 0 < self.df < math.inf:
            raise ValueError(
                f"StudentT: `df` must be a positive finite number, got {self.df!r}; use GaussianNoise for infinity."
            )

    def _tail(self, r: Tensor) -> Tensor:
        return torch.exp(-self.df / 2 * self._log(r))

    def _density(self, r: Tensor) -> Tensor:
        return torch.exp((-self.df / 2 - 1) * self._log(r)) / (2 * math.pi)

    def _log(self, r: Tensor) -> Tensor:
        # Many degrees of freedom: 1 + r^2 / df has few digits of the quotient left
        return torch.log1p(r.clamp(-1e15, 1e15) ** 2 / self.df)

    def _reach(self, epsilon: float) -> float:
        return math.sqrt(self.df * math.expm1(-2 / self.df * math.log(epsilon)))


#: Every family, for tests.
NOISES: tuple[type[Noise], ...] = (GaussianNoise, StudentT)
