"""Soft counts over all pairs, in plain torch: the truth that the kernels mirror, and a shorter way for `Laplace`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .settings import LaplaceSettings, PairwiseSettings


def pairwise_reference(tensors: Sequence[Tensor], settings: PairwiseSettings) -> tuple[Tensor]:
    """(counts,) of [x, weights, steepness], see `operation.PAIRWISE`. Dense: n^2 numbers."""
    x, weights, steepness = tensors
    a, b = x.unsqueeze(-1), x.unsqueeze(-2)
    # A difference that is not finite decides crisply; equal infinities are a tie
    crisp = ~(a - b).isfinite() & ~(a.isnan() | b.isnan())
    d = torch.where(crisp, 0.0, a) - torch.where(crisp, 0.0, b)
    r = torch.where(crisp & (a != b), (a > b).to(x.dtype), settings.sigmoid(steepness * d))
    if settings.ordered:
        v = (weights.unsqueeze(-1) > weights.unsqueeze(-2)).to(x.dtype)
    else:
        v = weights.unsqueeze(-2).expand_as(r)
    others = ~torch.eye(x.shape[-1], dtype=torch.bool, device=x.device)
    used = others & (v.detach() != 0) if not settings.differentiable_weights else others
    return ((torch.where(used, v, 0.0) * torch.where(used, r, 0.0)).sum(-1),)


def laplace_reference(tensors: Sequence[Tensor], settings: LaplaceSettings) -> tuple[Tensor]:
    """(counts,) of [x, weights, steepness], see `operation.LAPLACE`."""
    x, weights, steepness = tensors
    return (laplace_counts(x, steepness, weights),)


def laplace_counts(x: Tensor, steepness: Tensor, weights: Tensor | None = None) -> Tensor:
    """sum over j != i of weights_j r(steepness (x_i - x_j)) for the Laplace sigmoid, by sorting: O(n log n), float64 inside.

    With the items sorted, A_i = sum_{j < i} w_j exp(-steepness (x_i - x_j)) obeys A_{i+1} = (A_i + w_i) exp(-steepness
    (x_{i+1} - x_i)), and B_i, the sum over those behind, the same from the other end; the count is sum_{j < i} w_j - A_i / 2
    + B_i / 2. Weights are not negative, 1 by default, and
    get no gradient; equal infinities tie, and a NaN spoils its row.
    """
    wide, s = x.double(), steepness.double()
    ordered, order = wide.detach().sort(dim=-1, stable=True)
    w = torch.ones_like(ordered) if weights is None else torch.gather(weights.detach().double(), -1, order)
    infinite = ordered.isinf()
    # Infinite items are crisp: they have no share in an exponential
    scaled, w_finite = s * torch.where(infinite, 0.0, torch.gather(wide, -1, order)), torch.where(infinite, 0.0, w)
    lower, upper = _sums_by_doubling(scaled, w_finite, infinite)
    count = torch.where(infinite, _tied(ordered, w), w.cumsum(-1) - w + (upper - lower) / 2)
    count = torch.where(ordered.isnan().any(-1, keepdim=True), torch.nan, count)
    return torch.zeros_like(count).scatter(-1, order, count).to(x.dtype)


def _tied(ordered: Tensor, w: Tensor) -> Tensor:
    """The counts of infinite items: equal ones tie, so each has half of the others."""
    least = ordered == -torch.inf
    low, high = (torch.where(where, w, 0.0).sum(-1, keepdim=True) for where in (least, ordered == torch.inf))
    return torch.where(least, (low - w) / 2, w.sum(-1, keepdim=True) - (high + w) / 2)


def _sums_by_doubling(scaled: Tensor, w: Tensor, infinite: Tensor) -> tuple[Tensor, Tensor]:
    """A and B by a scan in log2 n steps: each item adds what it knows of those a power of two away. Any derivative."""
    apart = infinite[..., 1:] | infinite[..., :-1]
    falls = torch.where(apart, 0.0, torch.exp(-torch.where(apart, 0.0, scaled.diff(dim=-1))))
    # Both directions in one scan: from the first item on, and from the last one on
    falls = torch.nn.functional.pad(torch.stack([falls, falls.flip(-1)]), (1, 0))[..., : w.shape[-1]]
    sums = falls * torch.nn.functional.pad(torch.stack([w, w.flip(-1)]), (1, 0))[..., :-1]
    step = 1
    while step < w.shape[-1]:
        near = torch.nn.functional.pad(torch.stack([sums, falls]), (step, 0))[..., :-step]
        sums, falls, step = sums + falls * near[0], falls * near[1], 2 * step
    return sums[0], sums[1].flip(-1)
