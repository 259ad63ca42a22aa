"""Soft counts over all pairs, in plain torch: the truth that the kernels mirror, and a shorter way for `Laplace`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .operation import PairwiseSettings


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


def laplace_counts(x: Tensor, steepness: Tensor, mask: Tensor | None) -> Tensor:
    """sum over present j != i of r(steepness (x_i - x_j)) for the Laplace sigmoid, by sorting: O(n log n), float64 inside.

    With the items sorted, A_i = sum_{j < i} exp(-steepness (x_i - x_j)) obeys A_{i+1} = (A_i + 1) exp(-steepness
    (x_{i+1} - x_i)),
    and B_i, the sum over those behind, the same from the other end; the count is i - A_i / 2 + B_i / 2. Written with
    `logcumsumexp`, which is that recurrence as a scan.
    """
    wide, s = x.double(), steepness.double()
    key = wide.detach() if mask is None else torch.where(mask, wide.detach(), torch.inf)
    ordered, order = key.sort(dim=-1, stable=True)
    sorted_x = torch.gather(wide, -1, order)
    here = None if mask is None else torch.gather(mask, -1, order)
    infinite = ordered.isinf()
    # Infinite items are crisp and absent ones nothing: neither has a share in an exponential
    scaled = s * torch.where(infinite, 0.0, sorted_x)
    floor = torch.finfo(scaled.dtype).min
    # Both directions in one scan: from the first item on, and from the last one on
    logs = torch.stack([torch.where(infinite, floor, scaled), torch.where(infinite, floor, -scaled).flip(-1)])
    before, after = _exclusive(logs)
    lower, upper = (before - scaled).clamp_max(64.0).exp(), (after.flip(-1) + scaled).clamp_max(64.0).exp()
    place = torch.arange(x.shape[-1], device=x.device) if here is None else here.long().cumsum(-1) - 1
    count = place + torch.where(infinite, 0.0, upper - lower) / 2
    count = torch.where(infinite, _tied(ordered, here), count)
    spoiled = ordered.isnan() if here is None else ordered.isnan() & here
    count = torch.where(spoiled.any(-1, keepdim=True), torch.nan, count)
    return torch.zeros_like(count).scatter(-1, order, count).to(x.dtype)


def _tied(ordered: Tensor, here: Tensor | None) -> Tensor:
    """The counts of infinite items: equal ones tie, so each has half of the others. Absent items are +inf."""
    least, most = ordered == -torch.inf, ordered == torch.inf
    most = most if here is None else most & here
    low, high = least.sum(-1, keepdim=True), most.sum(-1, keepdim=True)
    total = ordered.shape[-1] if here is None else here.sum(-1, keepdim=True)
    return torch.where(least, (low - 1) / 2, total - (high + 1) / 2)


def _exclusive(logs: Tensor) -> Tensor:
    """log of the sum of exponentials of everything before each item."""
    found = torch.logcumsumexp(logs, -1)[..., :-1]
    first = torch.full_like(logs[..., :1], torch.finfo(logs.dtype).min)
    return torch.cat([first, found], -1)
