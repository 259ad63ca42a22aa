"""`SmoothedCDF` at work: sorted values, payloads, permutations and ranks from the thresholds of smooth top-k memberships.

With z = -steepness x and thresholds y_k, sum_j r(y_k - z_j) = k, item j is among the k largest to the degree
m_k(j) = r(y_k - z_j), and P_p = m_{p+1} - m_p is place p in descending order. README.md has the derivation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from algonet.core.identity import interned
from algonet.core.tracing import readable
from algonet.relax import Heaviside, Logistic, Relative, Sigmoid

from .checks import signed_steepness
from .counts import reach
from .operation import COUNTS, QUANTILES
from .settings import CountSettings

#: How far rows spread, in units of the sigmoid and for each item, before gaps are cut out.
SPREAD = 16.0


class Order:
    """The soft order of the items x (*batch, n) that are present and finite; all others are crisp.

    `lengths`: how many items are soft in each row, `before`: how many come before them; `None` where all are soft.
    """

    def __init__(self, x: Tensor, relax: Sigmoid, mask: Tensor | None, descending: bool, backend: str, crisp: Any):
        relax, scaled = relax.absolute(x, mask) if isinstance(relax, Relative) else (relax, x)
        self.x, self.mask, self.descending, self.backend, self.crisp_order = x, mask, descending, backend, crisp
        self.settings = CountSettings(interned(relax), x.dtype == torch.float64)
        self.soft: Tensor | None = None
        #: The items without gaps, and what each place has lost to them; `None` where there are none worth it.
        self.cut: tuple[Tensor, Tensor] | None = None
        if mask is not None or x.is_meta or not readable(x) or not bool(x.isfinite().all()):
            present = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
            first = (torch.inf if descending else -torch.inf) == x
            self.before = (first & present).sum(-1, keepdim=True)
            # NaN is soft, and spoils its row
            soft = present & (x.isnan() if isinstance(relax, Heaviside) else ~x.isinf())
            self.soft, self.lengths = soft, soft.sum(-1, keepdim=True)
        elif isinstance(relax, Heaviside):
            soft = torch.zeros_like(x, dtype=torch.bool)
            self.soft, self.before = soft, soft.sum(-1, keepdim=True)
            self.lengths = self.before
        wide = scaled.double() if self.soft is None else torch.where(self.soft, scaled, 0.0).double()
        self.z = self._without_gaps(wide * signed_steepness("soft order", relax, wide, -1.0))
        if isinstance(relax, Heaviside):  # has no reach; only rows with a NaN are not crisp
            self.settings = CountSettings(interned(Logistic()), x.dtype == torch.float64)

    def _without_gaps(self, z: Tensor) -> Tensor:
        """z with gaps between neighbours cut down to what still separates them: a grid would be mostly empty there."""
        fixed, n = z.detach(), z.shape[-1]
        if n < 2 or self.soft is not None or z.is_meta or not readable(z) or not z.numel():
            return z
        if float((fixed.amax(-1) - fixed.amin(-1)).max()) < (SPREAD * n if n >= 64 else 1e6):
            return z
        ordered, order = fixed.sort(-1)
        gaps = ordered.diff(dim=-1)
        kept = gaps.clamp_max(2 * reach(self.settings.sigmoid, 1e-16 if self.settings.precise else 1e-10))
        # The same cut out of x: what lies beyond a gap must not drown what lies before it in sums
        items = self.x.detach().double().gather(-1, order)
        near = items.diff(dim=-1) * torch.where(kept < gaps, kept / gaps, 1.0)
        near, z_near = (torch.nn.functional.pad(t.cumsum(-1), (1, 0)) for t in (near, kept))
        offset = items - near
        self.cut = torch.zeros_like(near).scatter(-1, order, near), offset if self.descending else offset.flip(-1)
        # The gradient is z's own
        return torch.zeros_like(fixed).scatter(-1, order, z_near) + (z - fixed)

    def edges(self, first: int, last: int) -> Tensor:
        """Thresholds (*batch, last - first + 1) of places first ... last - 1: place p lies between edge p and the next."""
        k = torch.arange(first, last + 1, dtype=torch.float64, device=self.x.device)
        if self.soft is not None:
            k = k - self.before
            k = k if self.descending else self.lengths - k
        elif not self.descending:
            k = self.x.shape[-1] - k
        return self.thresholds(k.expand(*self.x.shape[:-1], -1))

    def thresholds(self, k: Tensor) -> Tensor:
        """y (*batch, m) with sum_j r(y - z_j) = k (*batch, m) over soft items."""
        one = torch.ones((), dtype=torch.float64, device=k.device)
        weights = one.expand(self.x.shape) if self.soft is None else self.soft.double()
        return QUANTILES([self.z, weights, k], self.settings, self.backend)[0]

    def log_members(self, edges: Tensor, z: Tensor) -> Tensor:
        """log r(edges - z), (*batch, m, n), without underflow."""
        return self.settings.sigmoid.log(edges.clamp(-1e300, 1e300).unsqueeze(-1) - z.unsqueeze(-2))

    def sorted(self, payload: Tensor | None, first: int, last: int) -> tuple[Tensor, Tensor | None]:
        """(values, payload) in places first ... last - 1."""
        x = self.x if self.soft is None else torch.where(self.soft, self.x, 0.0)
        # Measured from their mean, items lose no digits in sums
        wide = x.double() if self.cut is None else self.cut[0] + (x - x.detach()).double()
        centre = wide.detach().mean(-1, keepdim=True) if x.shape[-1] else wide.sum(-1, keepdim=True)
        whole = (wide - centre).unsqueeze(-1)
        whole = whole if payload is None else torch.cat([whole, payload.double()], -1)
        if self.soft is not None:
            whole = torch.where(self.soft.unsqueeze(-1), whole, 0.0)
        sums = COUNTS([self.edges(first, last), self.z, whole], self.settings, self.backend)[0]
        moved = sums.diff(dim=-2) if self.descending else -sums.diff(dim=-2)
        values, sent = (
            (moved[..., 0] + (centre if self.cut is None else centre + self.cut[1][..., first:last])).to(x.dtype),
            None if payload is None else moved[..., 1:].to(payload.dtype),
        )
        if self.soft is not None:
            inside, order = self._inside(first, last), self.crisp_order()[..., first:last]
            fixed = torch.where(self.mask, self.x, self.x.detach()) if self.mask is not None else self.x
            fixed = torch.where(fixed.isinf(), fixed.detach(), fixed)
            values = torch.where(inside, values, fixed.gather(-1, order))
            if payload is not None and sent is not None:
                inside = inside.unsqueeze(-1)
                sent = torch.where(inside, sent, self._crisp_payload(payload, order))
        return values, sent

    def _inside(self, first: int, last: int) -> Tensor:
        place = torch.arange(first, last, device=self.x.device) - self.before
        return (place >= 0) & (place < self.lengths)

    def _crisp_payload(self, payload: Tensor, order: Tensor) -> Tensor:
        if self.mask is not None:
            payload = torch.where(self.mask.unsqueeze(-1), payload, payload.detach())
        return payload.gather(-2, order.unsqueeze(-1).expand(*order.shape, payload.shape[-1]))

    def rows(self, first: int, last: int) -> Tensor:
        """Rows first ... last - 1 of P, (*batch, last - first, n)."""
        # A difference of infinities, of an edge and an item, is decided by the edge
        edges = self.edges(first, last).unsqueeze(-1)
        members = self.settings.sigmoid(edges.clamp(-1e300, 1e300) - self.z.unsqueeze(-2))
        p = members.diff(dim=-2) if self.descending else -members.diff(dim=-2)
        p = p.to(self.x.dtype)
        if self.soft is None:
            return p
        # Not one_hot, which `vmap` does not take
        crisp = self.crisp_order()[..., first:last].unsqueeze(-1) == torch.arange(p.shape[-1], device=p.device)
        p = torch.where(self.soft.unsqueeze(-2), p, 0.0)
        return torch.where(self._inside(first, last).unsqueeze(-1), p, crisp.to(p.dtype))

    def ranks(self) -> Tensor:
        """The expected place of each item: it comes after the k first to the degree 1 - m_k."""
        n = self.x.shape[-1]
        if n < 2:
            return self.z * 0 if self.soft is None else self._crisp_ranks(self.z * 0)
        # The k-th thresholds between items; from the other end where descending
        y = -self.edges(1, n - 1) if self.soft is None else -self.edges(0, n)
        there = y.isfinite() if self.soft is not None else None
        weights = torch.ones_like(y) if there is None else (there | y.isnan()).double()
        y = y if there is None else torch.where(there | y.isnan(), y, 0.0)
        found = COUNTS([-self.z, y, weights.unsqueeze(-1)], self.settings, self.backend)[0].squeeze(-1)
        if self.soft is None:
            return (n - 1 - found if self.descending else found).to(self.x.dtype)
        found = self.lengths - 1 - found if self.descending else found
        return self._crisp_ranks(found + self.before)

    def _crisp_ranks(self, found: Tensor) -> Tensor:
        """Ranks of soft items; infinite ones share their places, and absent ones follow in their order."""
        assert self.soft is not None
        place = self.crisp_order().argsort(-1).double()
        present = torch.ones_like(self.soft) if self.mask is None else self.mask
        for end in (torch.inf, -torch.inf):
            tied = present & (self.x == end)
            count = tied.sum(-1, keepdim=True)
            start = self.before + self.lengths if (end > 0) != self.descending else 0
            place = torch.where(tied & ((self.lengths > 0) | (count > 1)), start + (count - 1) / 2.0, place)
        return torch.where(self.soft, found, place).to(self.x.dtype)
