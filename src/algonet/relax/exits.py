"""Exits answer "is x != 0?" with a probability: how a loop's condition becomes smooth. 0 at zero, 1 far from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from algonet.core.checks import check_integer, check_tensor, widened

from .base import FAR, Relaxation, scaled, smooth_step, smooth_step_scalar


@dataclass(frozen=True, eq=False)
class Exit(Relaxation):
    """P(x != 0), smooth and even. `exact_on_integers` says that it is exactly 0 at 0 and 1 at every other integer."""

    exact_on_integers: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        x = check_tensor(self, x)
        return self._value(self._argument(x)).to(x.dtype)

    def _argument(self, x: Tensor) -> Tensor:
        return widened(x).clamp(-FAR, FAR)

    def _value(self, z: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Sech(Exit):
    """phi(x) = 1 - sech(steepness x): the paper's phi_infinity, C-infinity.

    Up to steepness 2.6 phi(x) <= |x|, which the paper's proof that loops halt needs; the default is its figure's 2.
    It is never exactly 1, so programs run with a small factor and offset even on integers.

    >>> Sech(2.0)(torch.tensor([0.0, 1.0, 1e4]))
    tensor([0.0000, 0.7342, 1.0000])
    """

    steepness: float | Tensor = 2.0
    softness_field: ClassVar[str | None] = "steepness"
    exact_on_integers: ClassVar[bool] = False

    def _argument(self, x: Tensor) -> Tensor:
        # Beyond these, sech is below half a unit in the last place; cosh and its square stay finite
        far = 40.0 if x.dtype == torch.float64 else 20.0
        return scaled(self.steepness, widened(x)).clamp(-far, far)

    def _value(self, z: Tensor) -> Tensor:
        # (cosh z - 1)/cosh z = 2 sinh^2(z/2)/cosh z keeps its digits near 0, where 1 - 1/cosh z loses them
        half = torch.sinh(z / 2)
        return 2 * half * half / torch.cosh(z)

    scalar = """
        e = exp(-abs(z))
        w = 1.0 / (1.0 + e * e)
        value = (1.0 - e) * (1.0 - e) * w
        tangent = (1.0 - e * e) * w
        slope = 2.0 * e * w * where(z >= 0, tangent, -tangent)
    """


@dataclass(frozen=True, eq=False)
class Tent(Exit):
    """phi(x) = min(1, |x|): the paper's phi_0. Continuous, exact on integers."""

    smoothness: ClassVar[float] = 0

    def _value(self, z: Tensor) -> Tensor:
        return z.abs().clamp_max(1.0)

    scalar = """
        value = where(z == z, minimum(1.0, abs(z)), z)
        slope = where(abs(z) > 1.0, 0.0, where(z > 0, 1.0, where(z < 0, -1.0, 0.0)))
    """


@dataclass(frozen=True, eq=False)
class SmoothTent(Exit):
    """phi(x) = S_k(min(1, |x|)), S_k the polynomial step: C^k and exact on integers, for every k; `Tent` is k = 0."""

    k: int = 1

    def __post_init__(self):
        object.__setattr__(self, "k", check_integer("SmoothTent", "k", self.k, 0, 20))

    @property
    def smoothness(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.k

    def _value(self, z: Tensor) -> Tensor:
        return smooth_step(z.abs(), self.k)

    @property
    def scalar(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return f"""
            t = minimum(1.0, abs(z))
            {smooth_step_scalar(self.k)}
            value = where(z == z, value, z)
            slope = where(z >= 0, slope, -slope)
        """


@dataclass(frozen=True, eq=False)
class BumpExit(Exit):
    """phi(x) = g(|x|) / (g(|x|) + g(1 - |x|)), g(t) = exp(-1/t): C-infinity *and* exact on integers."""

    smoothness: ClassVar[float] = math.inf

    def _value(self, z: Tensor) -> Tensor:
        # Equal to logistic(1/(1-t) - 1/t); within 5e-3 of the ends it is constant in every precision
        t = z.abs()
        inside = (t > 0.005) & (t < 0.995)
        safe = torch.where(inside, t, 0.5)
        step = torch.where(z.isnan(), z, (t > 0.5).to(z.dtype))
        return torch.where(inside, torch.sigmoid(1 / (1 - safe) - 1 / safe), step)

    scalar = """
        a = abs(z)
        inside = where(a > 0.005, a, 1.0) < 0.995
        t = where(inside, a, 0.5)
        u = 1.0 / t
        v = 1.0 / (1.0 - t)
        e = exp(-abs(v - u))
        value = where(inside, where(v >= u, 1.0, e) / (1.0 + e), where(a > 0.5, 1.0, 0.0))
        value = where(z == z, value, z)
        slope = where(inside, e / ((1.0 + e) * (1.0 + e)) * (u * u + v * v), 0.0)
        slope = where(z >= 0, slope, -slope)
    """


#: Every family, for tests, tables and plots.
EXITS: tuple[type[Exit], ...] = (Sech, Tent, SmoothTent, BumpExit)
