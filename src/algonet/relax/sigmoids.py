"""Sigmoids answer "is x > 0?" with a probability: how a comparison becomes smooth.

Each is r(steepness * x) for one fixed curve r. Half precisions are computed in float32 and returned as they came.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import ClassVar

import torch
from torch import Tensor

from algonet.core.checks import check_epsilon, check_integer, check_tensor, log_floor, widened

from .base import FAR, Relaxation, scaled, smooth_step, smooth_step_scalar


@dataclass(frozen=True, eq=False)
class Sigmoid(Relaxation):
    """P(x > 0), smooth: callable on a tensor of any shape; `steepness -> inf` gives the Heaviside step.

    `log(x)` is log r(x) without underflow (families that reach zero stop at the log of the smallest normal number, float16 at
    its least number, -65504).
    `reach(epsilon)` is the |x| beyond which the sigmoid is within epsilon of 0 or 1: what kernels cull by.
    """

    steepness: float | Tensor = 1.0
    softness_field: ClassVar[str | None] = "steepness"

    def __call__(self, x: Tensor) -> Tensor:
        x = check_tensor(self, x)
        return self._value(self._argument(x)).to(x.dtype)

    def log(self, x: Tensor) -> Tensor:
        x = check_tensor(self, x)
        return self._log(self._argument(x)).clamp_min(torch.finfo(x.dtype).min).to(x.dtype)

    def reach(self, epsilon: float) -> float | Tensor:
        check_epsilon(self, epsilon)
        return self._reach(epsilon) / self.steepness

    def relative(self, by: str = "deviation") -> Relative:
        """The same in units of the data, for functions of order: see `Relative`."""
        return Relative(self.steepness, of=replace(self, steepness=1.0), by=by)

    def _argument(self, x: Tensor) -> Tensor:
        return scaled(self.steepness, widened(x)).clamp(-FAR, FAR)

    def _value(self, z: Tensor) -> Tensor:
        raise NotImplementedError

    def _log(self, z: Tensor) -> Tensor:
        return self._value(z).clamp_min(torch.finfo(z.dtype).tiny).log()

    def _reach(self, epsilon: float) -> float:
        def inside(z: float) -> bool:
            below, above = self._value(torch.tensor([-z, z], dtype=torch.float64)).tolist()
            return below <= epsilon and 1 - above <= max(epsilon, 3e-16)  # 1 - r keeps 16 digits only

        low, high = 0.0, 1e-3
        while not inside(high) and high < FAR:
            low, high = high, 2 * high
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if inside(middle) else (middle, high)
        return high


@dataclass(frozen=True, eq=False)
class Logistic(Sigmoid):
    """P(x > 0) = 1 / (1 + exp(-steepness x)): C-infinity, exponential tails; the paper's s_1.

    >>> Logistic(steepness=2.0)(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0.1192, 0.5000, 0.8808])
    """

    def _value(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z)

    def _log(self, z: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid(z)

    def _reach(self, epsilon: float) -> float:
        return math.log((1 - epsilon) / epsilon)

    scalar = """
        e = exp(-abs(z))
        part = 1.0 / (1.0 + e)
        value = where(z >= 0, 1.0, e) * part
        slope = e * part * part
    """


@dataclass(frozen=True, eq=False)
class Gaussian(Sigmoid):
    """P(x > 0) = Phi(steepness x), the normal distribution function: C-infinity, the lightest tails of the smooth ones."""

    def _value(self, z: Tensor) -> Tensor:
        return torch.special.ndtr(z)

    def _log(self, z: Tensor) -> Tensor:
        # Phi(z) = exp(-z^2/2) erfcx(-z/sqrt 2)/2 on the left; torch's own log_ndtr has no vmap
        left = z < -1
        far = torch.where(left, z.clamp_min(-1e9), -1.0)
        tail = torch.special.erfcx(-far * math.sqrt(0.5)).log() - math.log(2) - far * far / 2
        body = torch.log1p(-torch.special.erfc(torch.where(left, 0.0, z) * math.sqrt(0.5)) / 2)
        return torch.where(left, tail, body)

    def _reach(self, epsilon: float) -> float:
        return -NormalDist().inv_cdf(epsilon)

    scalar = """
        value = 0.5 + 0.5 * erf(z * 0.7071067811865476)
        slope = 0.3989422804014327 * exp(-0.5 * z * z)
    """


@dataclass(frozen=True, eq=False)
class Cauchy(Sigmoid):
    """P(x > 0) = 1/2 + atan(steepness x) / pi: C-infinity, tails like 1/x, so gradients reach far."""

    def _value(self, z: Tensor) -> Tensor:
        return 0.5 + torch.atan(z) / math.pi

    def _log(self, z: Tensor) -> Tensor:
        # r(z) = atan(-1/z)/pi for z < 0, which does not cancel
        left = z < -1
        tail = torch.atan(-1 / torch.where(left, z, -1.0)) / math.pi
        body = 0.5 + torch.atan(torch.where(left, 0.0, z)) / math.pi
        return torch.where(left, tail, body).log()

    def _reach(self, epsilon: float) -> float:
        return math.tan(math.pi * (0.5 - epsilon))

    scalar = """
        near = abs(z) < 1.0
        t = 0.3183098861837907 * atan(where(near, z, 1.0 / where(near, 1.0, z)))
        value = where(near, 0.5 + t, where(z > 0, 1.0 - t, -t))
        slope = 0.3183098861837907 / (1.0 + z * z)
    """


@dataclass(frozen=True, eq=False)
class Gudermannian(Sigmoid):
    """P(x > 0) = 2/pi atan(exp(steepness x)): C-infinity, the distribution function of the hyperbolic secant."""

    def _value(self, z: Tensor) -> Tensor:
        return 0.5 + torch.atan(torch.tanh(z / 2)) * (2 / math.pi)

    def _log(self, z: Tensor) -> Tensor:
        # Left of 0: z + log(atan(u)/u) with u = exp(z), where u underflows harmlessly
        left = z < 0
        u = torch.where(left, z, 0.0).exp()
        series = u < 1e-4  # atan(u)/u = 1 - u^2/3 + ..., exact to float64 here
        quotient = torch.where(series, 1 - u * u / 3, torch.atan(u) / torch.where(series, 1.0, u))
        tail = torch.where(left, z, 0.0) + (quotient * (2 / math.pi)).log()
        body = torch.log1p(-torch.atan(torch.where(left, 0.0, -z).exp()) * (2 / math.pi))
        return torch.where(left, tail, body)

    def _reach(self, epsilon: float) -> float:
        return -math.log(math.tan(math.pi * epsilon / 2))

    scalar = """
        e = exp(-abs(z))
        tail = 0.6366197723675814 * atan(e)
        value = where(z >= 0, 1.0 - tail, tail)
        slope = 0.6366197723675814 * e / (1.0 + e * e)
    """


@dataclass(frozen=True, eq=False)
class Bump(Sigmoid):
    """P(x > 0) = logistic(4 z / (1 - z^2)) for |z| < 1, z = steepness x, and exactly 0 or 1 outside.

    C-infinity with a compact transition: it equals g(t) / (g(t) + g(1 - t)) with g(t) = exp(-1/t), t = (1 + z)/2.
    """

    def _inner(self, z: Tensor) -> tuple[Tensor, Tensor]:
        # Within 1e-2 of the ends the value is below exp(-198): constant in every precision
        inside = z.abs() < 0.99
        safe = torch.where(inside, z, 0.0)
        return inside, 4 * safe / (1 - safe * safe)

    def _value(self, z: Tensor) -> Tensor:
        inside, inner = self._inner(z)
        step = torch.where(z.isnan(), z, (z > 0).to(z.dtype))
        return torch.where(inside, torch.sigmoid(inner), step)

    def _log(self, z: Tensor) -> Tensor:
        inside, inner = self._inner(z)
        step = torch.where(z.isnan(), z, torch.where(z > 0, 0.0, log_floor(z)))
        return torch.where(inside, torch.nn.functional.logsigmoid(inner), step).clamp_min(log_floor(z))

    def _reach(self, epsilon: float) -> float:
        inner = math.log((1 - epsilon) / epsilon)
        return (math.sqrt(4 + inner * inner) - 2) / inner

    scalar = """
        inside = abs(z) < 0.99
        t = where(inside, z, 0.0)
        w = 1.0 / (1.0 - t * t)
        e = exp(-abs(4.0 * t * w))
        value = where(inside, where(t >= 0, 1.0, e) / (1.0 + e), where(z > 0, 1.0, 0.0))
        value = where(z == z, value, z)
        slope = where(inside, e / ((1.0 + e) * (1.0 + e)) * 4.0 * (1.0 + t * t) * w * w, 0.0)
    """


@dataclass(frozen=True, eq=False)
class SmoothStep(Sigmoid):
    """P(x > 0) = S_k((1 + steepness x)/2), the polynomial step that is C^k and constant outside |steepness x| <= 1.

    k = 0 is the uniform distribution function, k = 1 the cubic 3t^2 - 2t^3 (which the paper means by x^2 - 2x^3).
    """

    k: int = 1
    steepness: float | Tensor = field(default=1.0, kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "k", check_integer("SmoothStep", "k", self.k, 0, 20))

    @property
    def smoothness(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.k

    def _value(self, z: Tensor) -> Tensor:
        return smooth_step((1 + z) / 2, self.k)

    @property
    def scalar(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return f"""
            t = minimum(1.0, maximum(0.0, 0.5 + 0.5 * z))
            {smooth_step_scalar(self.k)}
            value = where(z == z, value, z)
            slope = 0.5 * slope
        """


@dataclass(frozen=True, eq=False)
class Laplace(Sigmoid):
    """P(x > 0) = 1 - exp(-z)/2 for z = steepness x > 0, exp(z)/2 else: C^1 with exponential tails."""

    smoothness: ClassVar[float] = 1

    def _value(self, z: Tensor) -> Tensor:
        # Not exp(-|z|): torch's derivative of |z| at 0 is 0, and the slope there is 1/2
        return torch.where(z > 0, 1 - torch.exp(-z.clamp_min(0)) / 2, torch.exp(z.clamp_max(0)) / 2)

    def _log(self, z: Tensor) -> Tensor:
        right = torch.log1p(-torch.exp(-z.clamp_min(0)) / 2)
        return torch.where(z > 0, right, z - math.log(2))

    def _reach(self, epsilon: float) -> float:
        return -math.log(2 * epsilon)

    scalar = """
        tail = 0.5 * exp(-abs(z))
        value = where(z > 0, 1.0 - tail, tail)
        slope = tail
    """


@dataclass(frozen=True, eq=False)
class Reciprocal(Sigmoid):
    """P(x > 0) = 1/2 + z / (2 (2 + |z|)), z = steepness x: C^1, no transcendental function, tails like 1/x."""

    smoothness: ClassVar[float] = 1

    def _value(self, z: Tensor) -> Tensor:
        return 0.5 + 0.5 * z / (2 + z.abs())

    def _log(self, z: Tensor) -> Tensor:
        left = -torch.log(2 + z.clamp_max(0).abs())
        right = torch.log1p(-1 / (2 + z.clamp_min(0)))
        return torch.where(z > 0, right, left)

    def _reach(self, epsilon: float) -> float:
        return 1 / epsilon - 2

    scalar = """
        w = 1.0 / (2.0 + abs(z))
        value = where(z > 0, 1.0 - w, w)
        value = where(z == z, value, z)
        slope = w * w
    """


@dataclass(frozen=True, eq=False)
class Optimal(Sigmoid):
    """z + 1/2 for |z| <= 1/4, else 1 - 1/(16 z) (1/(16 |z|) on the left), z = steepness x: C^1.

    The sigmoid of the sorting-network literature: a soft maximum of two values built from it is wrong by at most
    1/(16 steepness), which no other monotone sigmoid of equal slope improves.
    """

    smoothness: ClassVar[float] = 1

    def _value(self, z: Tensor) -> Tensor:
        near = z.abs() <= 0.25
        tail = 1 / (16 * torch.where(near, 1.0, z.abs()))
        return torch.where(near, z + 0.5, torch.where(z > 0, 1 - tail, tail))

    def _reach(self, epsilon: float) -> float:
        return 1 / (16 * epsilon) if epsilon < 0.25 else 0.5 - epsilon

    scalar = """
        near = abs(z) <= 0.25
        w = 1.0 / where(near, 1.0, abs(z))
        value = where(near, z + 0.5, where(z > 0, 1.0 - 0.0625 * w, 0.0625 * w))
        slope = where(near, 1.0, 0.0625 * w * w)
    """


@dataclass(frozen=True, eq=False)
class GumbelMax(Sigmoid):
    """P(x > 0) = exp(-exp(-steepness x)): C-infinity; leaves 0 abruptly, approaches 1 slowly."""

    def _value(self, z: Tensor) -> Tensor:
        return self._log(z).exp()

    def _log(self, z: Tensor) -> Tensor:
        # Left of -40 the value is zero in every precision; the square of exp(40) still fits into float32
        return -torch.exp(-z.clamp_min(-40.0))

    def _reach(self, epsilon: float) -> float:
        return -math.log(-math.log1p(-epsilon))

    scalar = """
        t = maximum(z, -40.0)
        e = exp(-t)
        value = where(z == z, exp(-e), z)
        slope = where(z > -40.0, e * value, 0.0)
    """


@dataclass(frozen=True, eq=False)
class GumbelMin(Sigmoid):
    """P(x > 0) = 1 - exp(-exp(steepness x)): C-infinity; the mirror image of `GumbelMax`."""

    def _value(self, z: Tensor) -> Tensor:
        return -torch.expm1(-torch.exp(z.clamp_max(40.0)))

    def _log(self, z: Tensor) -> Tensor:
        # For small u = exp(z), log(1 - exp(-u)) = z - u/2, exact to float64 below exp(-18)
        small = z < -18
        series = z - torch.where(small, z, -18.0).exp() / 2
        body = torch.where(small, 0.0, z.clamp_max(40.0)).exp()
        return torch.where(small, series, (-torch.expm1(-body)).log())

    def _reach(self, epsilon: float) -> float:
        return -math.log(-math.log1p(-epsilon))

    scalar = """
        t = minimum(z, 40.0)
        e = exp(t)
        f = exp(-e)
        value = where(e < 0.001, e * (1.0 - e * (0.5 - e * 0.16666666666666666)), 1.0 - f)
        value = where(z == z, value, z)
        slope = where(z < 40.0, e * f, 0.0)
    """


@dataclass(frozen=True, eq=False)
class Heaviside(Sigmoid):
    """The crisp decision itself, the paper's s_2: 0 for x < 0, 1 else. Its derivative is zero wherever it exists."""

    smoothness: ClassVar[float] = -1

    def _value(self, z: Tensor) -> Tensor:
        return torch.where(z.isnan(), z, (z >= 0).to(z.dtype))

    def _log(self, z: Tensor) -> Tensor:
        return torch.where(z.isnan(), z, torch.where(z >= 0, 0.0, log_floor(z)))

    def _reach(self, epsilon: float) -> float:
        return 0.0

    scalar = """
        value = where(z == z, where(z >= 0, 1.0, 0.0), z)
        slope = 0.0 * value
    """


@dataclass(frozen=True, eq=False)
class Relative(Sigmoid):
    """A sigmoid whose steepness is per standard deviation of a row, or per median gap between neighbours (`by="gap"`).

    `Logistic(10.0).relative()` sorts, ranks and selects alike whatever the unit and the spread of the items: x and 1000 x
    have the same soft ranks. The scale is that of the present finite items of each row and is detached, so a loss
    cannot change it. Called directly, it expects numbers in this unit.
    Take it where data come in a unit of their own; where scores are learned, an absolute steepness lets their spread say
    how sure they are.
    """

    of: Sigmoid = field(default_factory=Logistic, kw_only=True)
    by: str = field(default="deviation", kw_only=True)

    def __post_init__(self):
        super().__post_init__()
        if self.by not in ("deviation", "gap"):
            raise ValueError(f'Relative: `by` must be "deviation" or "gap", got {self.by!r}.')

    @property
    def smoothness(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.of.smoothness

    def _value(self, z: Tensor) -> Tensor:
        return self.of._value(z)

    def _log(self, z: Tensor) -> Tensor:
        return self.of._log(z)

    def _reach(self, epsilon: float) -> float:
        return self.of._reach(epsilon)

    def absolute(self, x: Tensor, mask: Tensor | None) -> tuple[Sigmoid, Tensor]:
        """(the sigmoid per unit of the data, x (*batch, n) in that unit)."""
        present = x.detach().isfinite() if mask is None else mask & x.detach().isfinite()
        items = torch.where(present, x.detach(), 0.0).double()
        if self.by == "gap":
            gaps = torch.where(present, items, torch.nan).sort(-1).values.diff(dim=-1)
            scale = gaps.nanmedian(-1, keepdim=True).values if gaps.shape[-1] else items.new_ones(*items.shape[:-1], 1)
        else:
            count = present.sum(-1, keepdim=True).clamp_min(1)
            away = torch.where(present, items - items.sum(-1, keepdim=True) / count, 0.0)
            scale = (away.square().sum(-1, keepdim=True) / count).sqrt()
        scale = torch.where(scale > 0, scale, 1.0).to(x.dtype)
        return replace(self.of, steepness=self.steepness), x / scale


#: What a decision is where nothing is said: hard enough to be near the crisp one on numbers of order 1, soft enough to learn.
DECISION: Sigmoid = Logistic(10.0)

#: Every family, for tests, tables and plots.
SIGMOIDS: tuple[type[Sigmoid], ...] = (
    Logistic,
    Gaussian,
    Cauchy,
    Gudermannian,
    Bump,
    SmoothStep,
    Laplace,
    Reciprocal,
    Optimal,
    GumbelMax,
    GumbelMin,
    Heaviside,
)
