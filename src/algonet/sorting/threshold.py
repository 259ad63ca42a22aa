"""Memberships by threshold, in plain torch: the truth that the kernels of `soft_topk_mask` mirror.

p_i = r(steepness (x_i - b)) with b such that the p_i sum to k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from algonet.relax import Sigmoid

from .settings import ThresholdSettings, is_symmetric

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
    if not x.shape[-1]:
        return (x.clone(),)
    wide, s = x.double(), steepness.double()
    present = mask if settings.masked else torch.ones_like(x, dtype=torch.bool)
    finite = present & wide.isfinite()
    above, below, missing = present & (wide == torch.inf), present & (wide == -torch.inf), present & wide.isnan()
    count, above_count, below_count = (t.sum(-1).double() for t in (finite, above, below))
    wanted = k - above_count
    inner = wanted.clamp(torch.zeros_like(count), count)
    interior = (inner > 0) & (inner < count)
    # From the k-th item on: differences to it are exact, however large the items are
    order = torch.where(finite, wide.detach(), -torch.inf).sort(-1, descending=True).values
    place = (inner.detach().ceil().long() - 1).clamp(0, x.shape[-1] - 1)
    anchor = torch.where(interior.unsqueeze(-1), order.gather(-1, place.unsqueeze(-1)), 0.0)
    row = _Row(torch.where(finite, wide - anchor, 0.0), finite, s, settings.sigmoid)
    fixed = _Row(row.x.detach(), finite, s.detach(), settings.sigmoid)
    low, high = fixed.bisect(*fixed.bracket(interior), inner.detach())
    b, between, exact = fixed.solution(low, high, inner.detach())
    pull = torch.func.vjp(lambda z: fixed.tails(z), fixed.scaled(b))[1]
    slope = (torch.where(finite, pull(torch.ones_like(wide))[0], 0.0) * s.detach()).sum(-1)
    steep = interior & exact & (slope > 0)
    for _ in range(CHORDS):
        b = b + torch.where(steep, row.excess(b, inner) / torch.where(steep, slope, 1.0), 0.0)
    soft = torch.where(steep.unsqueeze(-1), row.members(b), between)
    p = torch.where(interior.unsqueeze(-1), soft, (finite & (inner > 0).unsqueeze(-1)).double())
    # Infinite items take part crisply, equal ones alike
    constant = k.detach()
    share_above = (constant / above_count.clamp_min(1)).clamp(0, 1)
    share_below = ((constant - above_count - count) / below_count.clamp_min(1)).clamp(0, 1)
    p = torch.where(above, share_above.unsqueeze(-1), torch.where(below, share_below.unsqueeze(-1), p))
    nan = present & missing.any(-1, keepdim=True)
    return (torch.where(nan, torch.nan, p).to(x.dtype),)


@dataclass(frozen=True)
class _Row:
    """Items x (*batch, n) of which the `finite` ones count, and the sigmoid that a threshold b (*batch,) sees them by."""

    x: Tensor
    finite: Tensor
    steepness: Tensor
    sigmoid: Sigmoid

    def scaled(self, b: Tensor) -> Tensor:
        return self.steepness * (self.x - b.unsqueeze(-1))

    def tails(self, z: Tensor) -> Tensor:
        """r(z) for z < 0, else r(z) - 1: what is left of a membership to the nearer of 0 and 1, with all its digits."""
        # Of asymmetric sigmoids, the complement has the digits that a difference to 1 leaves
        lack = self.sigmoid(-z) if is_symmetric(self.sigmoid) else 1 - self.sigmoid(z)
        return torch.where(z < 0, self.sigmoid(z), -lack)

    def members(self, b: Tensor) -> Tensor:
        z = self.scaled(b)
        return torch.where(self.finite, self.tails(z) + (z >= 0).to(z.dtype), 0.0)

    def excess(self, b: Tensor, k: Tensor) -> Tensor:
        """The sum of memberships less k: tails far below 1e-16 balance too."""
        z = self.scaled(b)
        count = (self.finite & (z >= 0)).sum(-1)
        return torch.where(self.finite, self.tails(z), 0.0).sum(-1) + (count - k)

    def bracket(self, interior: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers between which the threshold lies."""
        with torch.no_grad():
            margin = float(self.sigmoid.reach(1e-12)) / self.steepness.abs().clamp_min(1e-30)
            least = torch.where(self.finite, self.x, torch.inf).amin(-1)
            most = torch.where(self.finite, self.x, -torch.inf).amax(-1)
            # Beyond the extremes even where the margin is too small to be seen beside them
            low, high = least - margin - 1e-12 * least.abs(), most + margin + 1e-12 * most.abs()
            low, high = (torch.where(interior, t, 0.0).clamp(-1e300, 1e300) for t in (low, high))
            return low, high

    def bisect(self, low: Tensor, high: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Neighbouring numbers between which the sum of memberships passes k, or twice one where it is k."""
        with torch.no_grad():
            for _ in range(ROUNDS):
                for middle in (low / 2 + high / 2, _geometric(low, high)):
                    excess = self.excess(middle, k)
                    inside = (middle > low) & (middle < high)
                    low, high = (
                        torch.where(inside & (excess >= 0), middle, low),
                        torch.where(inside & (excess <= 0), middle, high),
                    )
            return low, high

    def solution(self, low: Tensor, high: Tensor, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """b with sum members(b) = k between `low` and `high`, memberships that sum to k, and whether b gives them.

        Where neighbouring numbers lie too far apart (very steep), no b does; what lies between the memberships at two
        neighbours then does, and tied items share alike.
        """
        with torch.no_grad():
            over, under = self.excess(low, k), -self.excess(high, k)
            share = torch.where(over + under > 0, under / (over + under).clamp_min(1e-300), 0.0).clamp(0, 1)
            share = share.unsqueeze(-1)
            b = torch.where(over.abs() < under.abs(), low, high)
            exact = torch.minimum(over.abs(), under.abs()) <= 1e-9 * k
            return b, share * self.members(low) + (1 - share) * self.members(high), exact


def _geometric(low: Tensor, high: Tensor) -> Tensor:
    """The middle by exponents: 0 between numbers of different sign, the geometric mean of others."""
    tiny = 1e-300
    mean = low.abs().clamp_min(tiny).sqrt() * high.abs().clamp_min(tiny).sqrt()
    return torch.where((low < 0) & (high > 0), 0.0, torch.where(high > 0, mean, -mean))
