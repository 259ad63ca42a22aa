"""Weighted softmax, and the soft minimum, maximum and their positions built on it (the paper's section on wSoftMax)."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.checks import broadcast_shapes, check_softness, check_tensor, is_integer, widened
from algonet.core.hints import warn_too_soft

from .base import Relaxation

#: From so many items on, the default steepness may be too soft for an extremum.
MANY = 128


@dataclass(frozen=True, eq=False)
class Choice(Relaxation):
    """The crisp question "which is largest?", answered by a softmax of the given steepness."""

    steepness: float | Tensor = 1.0
    softness_field: ClassVar[str | None] = "steepness"


def weighted_softmax(
    x: Tensor, weights: Tensor | None = None, *, dim: int = -1, steepness: float | Tensor = 1.0
) -> Tensor:
    """softmax(steepness x + log w) along `dim`: a softmax over the elements that the weights say are in the list.

    A weight of 0 (or less) excludes its element exactly, with zero gradient, whatever its value; if all weights are 0
    they count as equal. `steepness -> inf` puts everything on the largest included element. NaN stays in its row; infinite
    elements take part crisply, without a gradient.
    Differentiable to any order in x, weights and steepness. O(n), any shape; weights broadcast against x.

    >>> weighted_softmax(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([1.0, 1.0, 0.0]))
    tensor([0.2689, 0.7311, 0.0000])
    """
    x, weights = _check("weighted_softmax", x, dim, weights, steepness)
    return _shares(widened(x), weights, dim, steepness).to(x.dtype)


def weighted_softmin(
    x: Tensor, weights: Tensor | None = None, *, dim: int = -1, steepness: float | Tensor = 1.0
) -> Tensor:
    """softmax(-steepness x + log w) along `dim`: `weighted_softmax(-x, weights)`."""
    x, weights = _check("weighted_softmin", x, dim, weights, steepness)
    return weighted_softmax(-x, weights, dim=dim, steepness=steepness)


def soft_max(
    x: Tensor,
    *,
    dim: int = -1,
    weights: Tensor | None = None,
    steepness: float | Tensor = 1.0,
    keepdim: bool = False,
) -> Tensor:
    """sum_i x_i weighted_softmax(x, weights)_i along `dim`; steepness -> inf gives `torch.amax`.

    >>> soft_max(torch.tensor([1.0, 2.0, 3.0]), steepness=10.0)
    tensor(3.0000)
    """
    return _extremum("soft_max", x, dim, weights, steepness, keepdim)


def _extremum(
    where: str,
    x: Tensor,
    dim: int,
    weights: Tensor | None,
    steepness: float | Tensor,
    keepdim: bool,
    *,
    least: bool = False,
    position: bool = False,
) -> Tensor:
    x, weights = _check(where, x, dim, weights, steepness, extremum=True)
    x = -x if least else x
    included = _included(x, weights, dim)
    # Around the peak: the sum of huge values times shares would overflow where their spread does not
    below, peak = _below_peak(widened(x), included, dim)
    shares = _softmax(below, peak, weights, included, dim, steepness)
    _warn_if_even(where, shares, dim, steepness)
    if position:
        shape = [1] * x.dim()
        shape[dim] = -1
        positions = torch.arange(x.shape[dim], dtype=shares.dtype, device=x.device).reshape(shape)
        return (shares * positions).sum(dim, keepdim=keepdim)
    mean = (shares * below.masked_fill(shares == 0, 0.0)).sum(dim, keepdim=True) + peak
    found = (mean if keepdim else mean.squeeze(dim)).to(x.dtype)
    return -found if least else found


def soft_min(
    x: Tensor,
    *,
    dim: int = -1,
    weights: Tensor | None = None,
    steepness: float | Tensor = 1.0,
    keepdim: bool = False,
) -> Tensor:
    """sum_i x_i weighted_softmin(x, weights)_i along `dim`; steepness -> inf gives `torch.amin`."""
    return _extremum("soft_min", x, dim, weights, steepness, keepdim, least=True)


def soft_argmax(
    x: Tensor,
    *,
    dim: int = -1,
    weights: Tensor | None = None,
    steepness: float | Tensor = 1.0,
    keepdim: bool = False,
) -> Tensor:
    """sum_i i weighted_softmax(x, weights)_i along `dim`: the expected position; steepness -> inf gives `torch.argmax`.

    Positions of half precisions are float32, which can count further.

    >>> soft_argmax(torch.tensor([1.0, 5.0, 2.0]), steepness=10.0)
    tensor(1.)
    """
    return _extremum("soft_argmax", x, dim, weights, steepness, keepdim, position=True)


def soft_argmin(
    x: Tensor,
    *,
    dim: int = -1,
    weights: Tensor | None = None,
    steepness: float | Tensor = 1.0,
    keepdim: bool = False,
) -> Tensor:
    """sum_i i weighted_softmin(x, weights)_i along `dim`; steepness -> inf gives `torch.argmin`."""
    return _extremum("soft_argmin", x, dim, weights, steepness, keepdim, least=True, position=True)


def _shares(x: Tensor, weights: Tensor | None, dim: int, steepness: float | Tensor) -> Tensor:
    if x.shape[dim] == 0:
        return x
    included = _included(x, weights, dim)
    return _softmax(*_below_peak(x, included, dim), weights, included, dim, steepness)


def _below_peak(x: Tensor, included: Tensor | None, dim: int) -> tuple[Tensor, Tensor]:
    """x less its peak, bounded, and the peak, detached. Infinities are the largest numbers there, without a gradient."""
    if included is not None:
        x = torch.where(included, x, -torch.inf)
    peak, limits = x.detach().amax(dim, keepdim=True), torch.finfo(x.dtype)
    return (x - peak.clamp(limits.min, limits.max)).clamp(limits.min / 4, 0.0), peak


def _softmax(
    below: Tensor, peak: Tensor, weights: Tensor | None, included: Tensor | None, dim: int, steepness: float | Tensor
) -> Tensor:
    least, along = torch.finfo(below.dtype).min / 4, dim % below.dim() - below.dim()
    # Scaled after the shift: steepness * x may overflow where the differences do not
    z = (steepness * below).clamp_min(least)
    if not isinstance(steepness, (int, float)) and steepness.dim() >= -along and steepness.shape[along] > 1:
        # Items of different steepness differ at the peak too
        apart = steepness - steepness.detach().amax(along, keepdim=True)
        z = z + (apart * torch.where(peak.isinf(), 0.0, peak)).clamp(least, -least)
    if weights is not None and included is not None:
        wide = widened(weights)
        z = torch.where(included, z + torch.where(wide <= 0, 1.0, wide).log(), -torch.inf)
    return torch.softmax(z, dim)


def _included(x: Tensor, weights: Tensor | None, dim: int) -> Tensor | None:
    """Which elements are in the list: those of positive weight, or all where there is none; `None` without weights."""
    if weights is None:
        return None
    excluded = (weights <= 0).expand_as(x)
    return ~excluded | excluded.all(dim, keepdim=True)


def _check(
    where: str, x: Tensor, dim: int, weights: Tensor | None, steepness: float | Tensor, *, extremum: bool = False
) -> tuple[Tensor, Tensor | None]:
    x = check_tensor(where, x)
    if not is_integer(dim):
        raise TypeError(f"{where}: `dim` must be one integer, got {dim!r}; flatten x first to take several at once.")
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"{where}: `dim` {dim} is out of range for x of shape {tuple(x.shape)}.")
    if extremum and x.shape[dim] == 0:
        raise ValueError(f"{where}: x has no items along dim {dim} (shape {tuple(x.shape)}); there is no extremum.")
    if not isinstance(steepness, (float, Tensor, Real, torch.SymInt, torch.SymFloat)):
        raise TypeError(f"{where}: `steepness` must be a number or a floating tensor, got {steepness!r}.")
    check_softness(where, "steepness", steepness if isinstance(steepness, Tensor) else float(steepness))
    if weights is not None:
        weights = check_tensor(where, weights)
        try:
            fits = broadcast_shapes(x.shape, weights.shape) == x.shape
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(
                f"{where}: `weights` must broadcast to x: x is {tuple(x.shape)}, weights {tuple(weights.shape)}."
            )
    return x, weights


def _warn_if_even(where: str, shares: Tensor, dim: int, steepness: float | Tensor) -> None:
    """Warn where the default steepness leaves the extremum a small share. On a GPU, reading it would wait."""
    if isinstance(steepness, Tensor) or steepness != 1.0 or not tracing.plain() or shares.device.type != "cpu":
        return
    n = shares.shape[dim]
    if n >= MANY and float(shares.detach().amax(dim).median()) < 0.25:
        warn_too_soft(
            f"{where}: the default steepness of 1 is too soft for {n:,} items so close: the extremum has a small share of the "
            "result. Give steepness=10.0, or more, for items that spread by 1."
        )
