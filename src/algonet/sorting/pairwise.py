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
    order = torch.argsort(key, dim=-1, stable=True)
    sorted_x = torch.gather(wide, -1, order)
    infinite = sorted_x.isinf()
    present = ~infinite if mask is None else torch.gather(mask, -1, order) & ~infinite
    # Infinite items are crisp and absent ones nothing: neither has a share in an exponential
    scaled = s * torch.where(present, sorted_x, 0.0)
    floor = torch.finfo(scaled.dtype).min
    before = _exclusive(torch.where(present, scaled, floor))
    after = _exclusive(torch.where(present, -scaled, floor).flip(-1)).flip(-1)
    lower, upper = (before - scaled).clamp_max(64.0).exp(), (after + scaled).clamp_max(64.0).exp()
    here = torch.ones_like(present) if mask is None else torch.gather(mask, -1, order)
    place = here.long().cumsum(-1) - 1
    count = place + torch.where(present, upper - lower, 0.0) / 2
    # Equal infinities tie: each has half of the others
    for sign in (1.0, -1.0):
        equal = here & (sorted_x == sign * torch.inf)
        ties = equal.sum(-1, keepdim=True)
        start = (here.sum(-1, keepdim=True) - ties) if sign > 0 else torch.zeros_like(ties)
        count = torch.where(equal, start + (ties - 1) / 2, count)
    count = torch.where((sorted_x.isnan() & here).any(-1, keepdim=True), torch.nan, count)
    return torch.gather(count, -1, order.argsort(-1)).to(x.dtype)


def _exclusive(logs: Tensor) -> Tensor:
    """log of the sum of exponentials of everything before each item."""
    found = torch.logcumsumexp(logs, -1)[..., :-1]
    first = torch.full_like(logs[..., :1], torch.finfo(logs.dtype).min)
    return torch.cat([first, found], -1)
