"""Soft counts over pairs of items: how many lie below each, and how many pairs stand in the order of other numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from algonet.core.identity import interned
from algonet.core.tracing import readable
from algonet.relax import Sigmoid

from .counts import CountSettings, LaplaceSettings
from .methods import Pairwise
from .operation import COUNTS, LAPLACE

#: Items of a block in which all pairs are formed at once.
BLOCK = 32


def pair_counts(x: Tensor, weights: Tensor, relax: Sigmoid, steepness: Tensor, backend: str) -> Tensor:
    """sum over j != i of weights_j r(steepness (x_i - x_j)), by a scan where that is the faster way; (*batch, n)."""
    if backend == "auto" and Pairwise.scans(relax, x):
        return LAPLACE([x, weights.to(x.dtype), steepness], LaplaceSettings())[0]
    own = weights.double() * interned(relax)(torch.zeros((), dtype=torch.float64, device=x.device))
    return (_steps(x, x, weights.unsqueeze(-1), relax, steepness, backend).squeeze(-1) - own).to(x.dtype)


def ordered_pairs(x: Tensor, y: Tensor, relax: Sigmoid, steepness: Tensor, backend: str) -> Tensor:
    """sum over all pairs with y_i > y_j of r(steepness (x_i - x_j)), (*batch,) in float64; where y is NaN there is no item.

    Sorted by y, they are the pairs inside blocks and those between neighbouring blocks of 32, 64, 128, ... items, which are
    soft counts: O(n log^2 n) for sigmoids without kinks, O(n) memory.
    """
    n = x.shape[-1]
    block = min(max(n, 1), BLOCK)
    levels = max(-(-n // block) - 1, 0).bit_length()
    order = y.argsort(-1)
    x, y = x.gather(-1, order), y.detach().gather(-1, order)
    missing = (block << levels) - n
    x, y = torch.nn.functional.pad(x, (0, missing)), torch.nn.functional.pad(y, (0, missing), value=torch.nan)
    a, label = x.unflatten(-1, (-1, block)), y.unflatten(-1, (-1, block))
    ordered = label.unsqueeze(-1) > label.unsqueeze(-2)
    decided = _decided(a.unsqueeze(-1), a.unsqueeze(-2), relax, steepness)
    total = torch.where(ordered, decided, 0.0).double().sum((-1, -2, -3))
    ties = not readable(y) or bool((y[..., 1:] == y[..., :-1]).any())
    present = (~y.isnan()).double()
    for level in range(levels):
        (low, high), (w, wanted), (y_low, y_high) = (
            t.unflatten(-1, (-1, 2, block << level)).unbind(-2) for t in (x, present, y)
        )
        w, wanted = w.unsqueeze(-1), wanted.unsqueeze(-1)
        if ties:  # equal labels on both sides are those that the lower block ends with: their pairs do not count
            end = y_low[..., -1:]
            w = torch.cat([w, w * (y_low == end).unsqueeze(-1)], -1)
            wanted = torch.cat([wanted, -wanted * (y_high == end).unsqueeze(-1)], -1)
        total = total + (_steps(high, low, w, relax, steepness, backend) * wanted).sum((-1, -2, -3))
    return total


def _decided(a: Tensor, b: Tensor, relax: Sigmoid, steepness: Tensor) -> Tensor:
    """r(steepness (a - b)); a difference that is not finite decides crisply, and equal infinities are a tie."""
    crisp = ~(a - b).isfinite() & ~(a.isnan() | b.isnan())
    d = torch.where(crisp, 0.0, a) - torch.where(crisp, 0.0, b)
    return torch.where(crisp & (a != b), (a > b).to(d.dtype), interned(relax)(steepness * d))


def _steps(y: Tensor, x: Tensor, w: Tensor, relax: Sigmoid, steepness: Tensor, backend: str) -> Tensor:
    """sum_j w_jc r(steepness (y_i - x_j)), (*batch, m, c) in float64. Infinite items decide crisply; a NaN spoils its row."""
    settings = CountSettings(interned(relax), x.dtype == torch.float64)
    s, w = steepness.double(), w.double()
    if readable(x, y) and bool(x.isfinite().all()) and (y is x or bool(y.isfinite().all())):
        z = x.double() * s
        return COUNTS([z if y is x else y.double() * s, z, w], settings, backend)[0]
    far, soft = y.isinf(), x.isfinite()
    points = torch.where(far, y.detach().double(), torch.where(far, 0.0, y).double() * s)
    finite = torch.where(soft.unsqueeze(-1), w, 0.0)
    found = COUNTS([points, torch.where(soft, x, 0.0).double() * s, finite], settings, backend)[0]
    tie = settings.sigmoid(torch.zeros((), dtype=torch.float64, device=x.device))
    for end in (-torch.inf, torch.inf):
        share = torch.where(y == end, tie, 1.0 if end < 0 else 0.0).unsqueeze(-1)
        found = found + share * torch.where((x == end).unsqueeze(-1), w, 0.0).sum(-2, keepdim=True)
    spoiled = (x.isnan() & (w != 0).any(-1)).any(-1)[..., None, None]
    return torch.where(spoiled, torch.nan, found)
