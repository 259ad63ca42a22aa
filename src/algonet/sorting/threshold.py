"""Memberships by threshold, in plain torch: the truth that the kernels of `soft_topk_mask` mirror.

p_i = r(steepness (x_i - b)) with b such that the p_i sum to k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from algonet.relax import Sigmoid

if TYPE_CHECKING:
    from .operation import ThresholdSettings

#: Halvings of the bracket, each by an arithmetic and a geometric middle: 11 find the exponent, 53 the digits.
ROUNDS = 66
#: Chord steps from the root: each makes one more derivative exact.
CHORDS = 3


def threshold_reference(tensors: Sequence[Tensor], settings: ThresholdSettings) -> tuple[Tensor]:
    """(p,) of [x, mask, steepness, k], see `operation.THRESHOLD`. In float64 throughout, rounded at the end.

    The root is found by bisection without derivatives; a few chord steps from there carry them: each step of
    b <- b + (S(b) - k) / W with the slope W held fixed makes one more derivative of b exact.
    """
    x, mask, steepness, k = tensors
    wide, s = x.double(), steepness.double()
    present = mask if settings.masked else torch.ones_like(x, dtype=torch.bool)
    finite = present & wide.isfinite()
    above, below, spoiled = present & (wide == torch.inf), present & (wide == -torch.inf), present & wide.isnan()
    count, above_count, below_count = (t.sum(-1).double() for t in (finite, above, below))
    wanted = k - above_count
    inner = wanted.clamp(torch.zeros_like(count), count)
    interior = (inner > 0) & (inner < count)
    safe = torch.where(finite, wide, 0.0)
    unit = settings.sigmoid

    def members(b: Tensor) -> Tensor:
        return torch.where(finite, unit(s * (safe - b.unsqueeze(-1))), 0.0)

    b, between, exact = _root(members, safe.detach(), finite, s.detach(), inner.detach(), interior, unit)
    _, pull = torch.func.vjp(lambda z: unit(z), s.detach() * (safe.detach() - b.unsqueeze(-1)))
    slope = (torch.where(finite, pull(torch.ones_like(wide))[0], 0.0) * s.detach()).sum(-1)
    steep = interior & exact & (slope > 0)
    for _ in range(CHORDS):
        error = members(b).sum(-1) - inner
        b = b + torch.where(steep, error / torch.where(steep, slope, 1.0), 0.0)
    soft = torch.where(steep.unsqueeze(-1), members(b), between)
    p = torch.where(interior.unsqueeze(-1), soft, (finite & (inner > 0).unsqueeze(-1)).double())
    # Infinite items take part crisply, equal ones alike
    constant = k.detach()
    share_above = (constant / above_count.clamp_min(1)).clamp(0, 1)
    share_below = ((constant - above_count - count) / below_count.clamp_min(1)).clamp(0, 1)
    p = torch.where(above, share_above.unsqueeze(-1), torch.where(below, share_below.unsqueeze(-1), p))
    nan = present & spoiled.any(-1, keepdim=True)
    return (torch.where(nan, torch.nan, p).to(x.dtype),)


def _root(
    members: Callable[[Tensor], Tensor],
    x: Tensor,
    finite: Tensor,
    s: Tensor,
    k: Tensor,
    interior: Tensor,
    sigmoid: Sigmoid,
) -> tuple[Tensor, Tensor, Tensor]:
    """b with sum members(b) = k by bisection, memberships that sum to k, and whether b gives them.

    Where neighbouring numbers b lie too far apart (tied items of a huge scale, or very steep), no b does; what lies between
    the memberships at two neighbours then does, and tied items share alike.
    """
    with torch.no_grad():
        margin = float(sigmoid.reach(1e-12)) / s.abs().clamp_min(1e-30)
        least = torch.where(finite, x, torch.inf).amin(-1) if x.shape[-1] else k
        most = torch.where(finite, x, -torch.inf).amax(-1) if x.shape[-1] else k
        # Beyond the extremes even where the margin is too small to be seen beside them
        low, high = least - margin - 1e-12 * least.abs(), most + margin + 1e-12 * most.abs()
        low, high = (torch.where(interior, t, 0.0).clamp(-1e300, 1e300) for t in (low, high))
        for _ in range(ROUNDS):
            for middle in (low / 2 + high / 2, _geometric(low, high)):
                more = members(middle).sum(-1) > k
                inside = (middle > low) & (middle < high)
                low, high = torch.where(inside & more, middle, low), torch.where(inside & ~more, middle, high)
        at_low, at_high = members(low), members(high)
        over, under = at_low.sum(-1) - k, k - at_high.sum(-1)
        share = torch.where(over + under > 0, under / (over + under).clamp_min(1e-300), 0.0).clamp(0, 1).unsqueeze(-1)
        b = torch.where(over.abs() < under.abs(), low, high)
        exact = torch.minimum(over.abs(), under.abs()) <= 1e-9 * k
        return b.detach(), (share * at_low + (1 - share) * at_high).detach(), exact


def _geometric(low: Tensor, high: Tensor) -> Tensor:
    """The middle by exponents: 0 between numbers of different sign, the geometric mean of others."""
    tiny = 1e-300
    mean = low.abs().clamp_min(tiny).sqrt() * high.abs().clamp_min(tiny).sqrt()
    return torch.where((low < 0) & (high > 0), 0.0, torch.where(high > 0, mean, -mean))
