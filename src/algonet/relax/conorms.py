"""T-conorms answer "does at least one hold?" for probabilities: how `or` and "any" become smooth.

`conorm(a, b)` joins two, `conorm.reduce(p, dim)` any number along a dimension (0 for none), `conorm.both(a, b)` is the
dual t-norm, 1 - conorm(1 - a, 1 - b): how `and` becomes smooth. Arguments are probabilities in [0, 1].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from algonet.core.checks import check_tensor, is_integer, widened
from algonet.core.identity import up_to_date

from .base import Relaxation

#: Parameters lie between these: they and their reciprocals are numbers of float32.
LEAST, MOST = 1e-30, 1e30
#: Kernels raise to a power by exp(k log S), whose error grows with k: in float32 to 1e-4 of S^k, 1e-7 of the sum.
MOST_POWER = 1024


@dataclass(frozen=True, eq=False)
class TConorm(Relaxation):
    """An associative, commutative, monotone "or" with neutral element 0; `smoothness` is that inside (0, 1)."""

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = check_tensor(self, a), check_tensor(self, b)
        return self.reduce(torch.stack(torch.broadcast_tensors(a, b)), dim=0)

    def both(self, a: Tensor, b: Tensor) -> Tensor:
        """The dual t-norm: P(a and b)."""
        a, b = check_tensor(self, a), check_tensor(self, b)
        # In float64: 1 - a has no digits of a small a left
        return (1 - self(1 - a.double(), 1 - b.double())).to(torch.promote_types(a.dtype, b.dtype))

    def reduce(self, p: Tensor, dim: int = -1) -> Tensor:
        """P(at least one of `p` along `dim`)."""
        p = check_tensor(self, p)
        if p.shape[dim] == 0:
            return p.sum(dim)
        return self._reduce(widened(p), dim).to(p.dtype)

    def _reduce(self, p: Tensor, dim: int) -> Tensor:
        raise NotImplementedError

    @property
    def power(self) -> float | None:
        """How kernels stream it: k > 0 for S / (1 + S^k)^(1/k) with S = sum(p), 0 for 1 - exp(sum(log(1 - p))); else `None`."""
        return None

    def why_no_kernel(self) -> str | None:
        """Why kernels that stream events cannot join them so; `None` if they can."""
        if self.power is None or not up_to_date(type(self), "power", "reduce", "_reduce", "bound"):
            return f"kernels stream BoundedSum and Probabilistic silhouettes, not {type(self).__name__}"
        return (
            f"kernels bound the sum smoothly with k up to {MOST_POWER}, got {self.power}"
            if self.power > MOST_POWER
            else None
        )


def _short_of_one(p: Tensor) -> Tensor:
    """p scaled to stay one rounding step below 1, so that 1 - p has a logarithm and a reciprocal with finite slopes."""
    return p * (1 - torch.finfo(p.dtype).eps)


def _one_minus_exp(y: Tensor) -> Tensor:
    """1 - exp(y) for y <= 0. Near 0 expm1 keeps the digits of the value; far from it exp keeps those of the slope."""
    return torch.where(y > -0.7, -torch.expm1(y), 1 - torch.exp(y))


@dataclass(frozen=True, eq=False)
class Probabilistic(TConorm):
    """1 - prod(1 - p): independent events. C-infinity; summed in log space, so thousands of small p are not lost.

    >>> Probabilistic()(torch.tensor(0.5), torch.tensor(0.5))
    tensor(0.7500)
    """

    def _reduce(self, p: Tensor, dim: int) -> Tensor:
        return _one_minus_exp(torch.log1p(-_short_of_one(p)).sum(dim))

    @property
    def power(self) -> float:
        return 0.0


@dataclass(frozen=True, eq=False)
class BoundedSum(TConorm):
    """S / (1 + S^k)^(1/k) with S = sum(p): min(1, S) smoothed, k even; k = math.inf is min(1, S) itself.

    It depends on the sum alone, so splitting one event into exclusive parts changes nothing: what a renderer needs to be
    independent of the tessellation. The price: 0 is neutral only up to a^(k+1)/k, and it is associative only in the limit.
    """

    k: float = 8

    def __post_init__(self):
        if self.k != math.inf and not (is_integer(self.k) and self.k >= 2 and self.k % 2 == 0):
            raise ValueError(f"BoundedSum: `k` must be an even integer from 2 on, or math.inf, got {self.k!r}.")

    @property
    def smoothness(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        return 0 if self.k == math.inf else math.inf

    def _reduce(self, p: Tensor, dim: int) -> Tensor:
        return self.bound(p.sum(dim))

    @property
    def power(self) -> float:
        return float(self.k)

    def bound(self, total: Tensor) -> Tensor:
        """The bounded form of a sum of any size."""
        if self.k == math.inf:
            return total.clamp_max(1.0)
        # The k-th power of the smaller of S and 1/S cannot overflow
        large = total.abs() > 1
        small = torch.where(large, 0.0, total)
        inverse = 1 / torch.where(large, total, 1.0)
        return torch.where(
            large, inverse.sign() * (1 + inverse**self.k) ** (-1 / self.k), small * (1 + small**self.k) ** (-1 / self.k)
        )


@dataclass(frozen=True, eq=False)
class Maximum(TConorm):
    """max(p): the smallest t-conorm. Continuous only."""

    smoothness: ClassVar[float] = 0

    def _reduce(self, p: Tensor, dim: int) -> Tensor:
        return p.amax(dim)


@dataclass(frozen=True, eq=False)
class Einstein(TConorm):
    """(a + b) / (1 + a b): the relativistic sum of velocities, tanh(sum atanh p). C-infinity."""

    def _reduce(self, p: Tensor, dim: int) -> Tensor:
        p = _short_of_one(p)
        return torch.tanh(((torch.log1p(p) - torch.log1p(-p)) / 2).sum(dim))


@dataclass(frozen=True, eq=False)
class Hamacher(TConorm):
    """The dual of a b / (p + (1 - p)(a + b - a b)), p >= 0: p = 1 is `Probabilistic`, p = 2 `Einstein`. C-infinity."""

    p: float = 0.5

    def __post_init__(self):
        if self.p != 0:
            _check_parameter(self, LEAST, MOST, ", or 0")

    def _reduce(self, p: Tensor, dim: int) -> Tensor:
        q = _short_of_one(p)
        odds = q / (1 - q)
        if self.p == 0:
            total = odds.sum(dim)
            return total / (1 + total)
        # Additive generator log((p + (1-p) x)/x) of x = 1 - q; 1 - its inverse at y is (e^y - 1)/(e^y - 1 + p)
        y = torch.log1p(self.p * odds).sum(dim)
        decay = -torch.expm1(-y)
        return decay / (decay + self.p * torch.exp(-y))


@dataclass(frozen=True, eq=False)
class Frank(TConorm):
    """The dual of log_p(1 + (p^a - 1)(p^b - 1)/(p - 1)), p > 0 and not 1 (that limit is `Probabilistic`). C-infinity.

    p -> 0 is `Maximum`, p -> inf the bounded sum.
    """

    p: float = 2.0

    def __post_init__(self):
        _check_parameter(self, LEAST, 1e300, " (the limit at 0 is `Maximum()`)")
        if self.p == 1:
            raise ValueError("Frank: p = 1 is the limit `Probabilistic()`; use that.")

    def _reduce(self, p: Tensor, dim: int) -> Tensor:
        # Generator -log g, g = (p^x - 1)/(p - 1) for x = 1 - q: a ratio in (0, 1], by 1 - g where that is small
        power, rate = math.log(self.p), abs(math.log(self.p))
        whole = -math.expm1(-rate)
        q = _short_of_one(p)
        beside = torch.exp(min(power, 0.0) * (1 - q)) * -torch.expm1(-rate * q) / whole
        small = beside < 0.5
        ratio = torch.log(-torch.expm1(-rate * (1 - q)) / whole) - max(power, 0.0) * q
        logs = torch.where(small, torch.log1p(-torch.where(small, beside, 0.0)), ratio).sum(dim)
        if self.p < 1:
            return torch.log1p(-math.expm1(rate) * torch.expm1(logs)) / rate
        near = logs > -0.7
        far = 1 - torch.nn.functional.softplus(logs + rate + math.log(whole)) / rate
        return torch.where(near, -torch.log1p(whole * torch.expm1(torch.where(near, logs, 0.0))) / rate, far)


@dataclass(frozen=True, eq=False)
class _Norm(TConorm):
    """A p-norm with p >= 1 of what each argument is mapped to, mapped back."""

    p: float = 2.0

    def __post_init__(self):
        _check_parameter(self, 1.0, MOST)


@dataclass(frozen=True, eq=False)
class Yager(_Norm):
    """min(1, (sum a^p)^(1/p)), p >= 1: p = 1 is the bounded sum, p -> inf the maximum. Continuous at the bound."""

    smoothness: ClassVar[float] = 0

    def _reduce(self, p: Tensor, dim: int) -> Tensor:
        return _norm(p, self.p, dim).clamp_max(1.0)


@dataclass(frozen=True, eq=False)
class AczelAlsina(_Norm):
    """1 - exp(-(sum (-log(1 - a))^p)^(1/p)), p >= 1: p = 1 is `Probabilistic`. C-infinity inside (0, 1)."""

    def _reduce(self, p: Tensor, dim: int) -> Tensor:
        return _one_minus_exp(-_norm(-torch.log1p(-_short_of_one(p)), self.p, dim))


@dataclass(frozen=True, eq=False)
class Dombi(_Norm):
    """1 - 1/(1 + (sum (a/(1-a))^p)^(1/p)), p >= 1: p = 1 is `Hamacher(0)`. C-infinity inside (0, 1)."""

    def _reduce(self, p: Tensor, dim: int) -> Tensor:
        q = _short_of_one(p)
        total = _norm(q / (1 - q), self.p, dim)
        return total / (1 + total)


@dataclass(frozen=True, eq=False)
class SchweizerSklar(TConorm):
    """The dual of (a^p + b^p - 1)^(1/p) with p < 0 (C-infinity); p -> 0 is `Probabilistic`, p = -1 `Hamacher(0)`."""

    p: float = -1.0

    def __post_init__(self):
        _check_parameter(self, -MOST, -LEAST, " (from 0 on it is not strict and has kinks)")

    def _reduce(self, p: Tensor, dim: int) -> Tensor:
        # log(1 + sum(x^p - 1)), x = 1 - q, from the logarithms of x^p, which are positive and may be huge. Relative to
        # the largest nothing overflows; small ones keep their digits in expm1
        logs = torch.log1p(-_short_of_one(p)) * self.p
        peak = logs.detach().amax(dim, keepdim=True)
        huge = peak > 20.0
        plain = torch.log1p(torch.expm1(torch.where(huge, 0.0, logs)).sum(dim))
        shift = torch.exp(-peak)
        scaled = torch.where(huge, torch.exp(logs - peak) - shift, 1.0).sum(dim) + shift.squeeze(dim)
        return _one_minus_exp(torch.where(huge.squeeze(dim), scaled.log() + peak.squeeze(dim), plain) / self.p)


def _check_parameter(owner: object, least: float, most: float, note: str = "") -> None:
    p = owner.p  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not least <= p <= most:
        raise ValueError(f"{type(owner).__name__}: `p` must be a number from {least:g} to {most:g}{note}, got {p!r}.")


def _norm(x: Tensor, p: float, dim: int) -> Tensor:
    """(sum x^p)^(1/p) for x >= 0 and p >= 1, with finite derivatives at zeros too (1 at the origin, as along each axis)."""
    if p == 1:
        return x.sum(dim)
    peak = x.detach().amax(dim, keepdim=True)
    ratio = x / torch.where(peak > 0, peak, 1.0)
    counts = ratio > torch.finfo(x.dtype).eps
    powers = torch.where(counts, torch.where(counts, ratio, 1.0) ** p, 0.0).sum(dim)
    empty = powers == 0
    norm = peak.squeeze(dim) * torch.where(empty, 1.0, powers) ** (1 / p)
    return torch.where(empty, x.sum(dim), norm)


#: Every family, for tests and tables.
CONORMS: tuple[type[TConorm], ...] = (
    Probabilistic,
    BoundedSum,
    Maximum,
    Einstein,
    Hamacher,
    Frank,
    Yager,
    AczelAlsina,
    Dombi,
    SchweizerSklar,
)
