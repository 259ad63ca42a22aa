"""Rows of different lengths: where their present items go before sorting, and where everything goes after it; their crisp
order, and how many items stand beside each.

Present items are put side by side without any effect on gradients, to the end of the row where the network is right
aligned, else to its beginning. What is absent enters the kernels as zero and leaves as it came.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from algonet.core.tracing import readable


class Placement(NamedTuple):
    """`order`: the item in each place; `rank`: the place that each sorted position comes from; `lengths`: items present;
    `present`: which places hold one. Tensors are (*batch, n) or have channels behind, (*batch, n, c)."""

    order: Tensor
    rank: Tensor
    lengths: Tensor
    present: Tensor

    def to_places(self, x: Tensor) -> Tensor:
        return torch.where(_beside(self.present, x), _gather(x, self.order), 0.0)

    def from_places(self, found: Tensor, x: Tensor) -> Tensor:
        """What was sorted, by position, and behind it the absent ones of x."""
        whole = torch.where(_beside(self.present, x), found, _gather(x.detach(), self.order))
        return _gather(whole, self.rank)

    def sorted_to_places(self, v: Tensor) -> Tensor:
        """v, given by sorted position, to places."""
        return _gather(v, self.rank.argsort(-1))

    def items_from_places(self, v: Tensor) -> Tensor:
        """v, given by place, to items."""
        return _gather(v, self.order.argsort(-1))


def occupied(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Which places of a row hold an item: the first ones."""
    if lengths is None:
        return torch.ones_like(x, dtype=torch.bool)
    return torch.arange(x.shape[-1], device=x.device) < lengths.unsqueeze(-1)


def place(mask: Tensor, right_aligned: bool) -> Placement:
    order = torch.argsort((mask if right_aligned else ~mask).to(torch.int8), dim=-1, stable=True)
    rank, lengths = torch.arange(mask.shape[-1], device=mask.device).expand(mask.shape), mask.sum(-1, keepdim=True)
    if right_aligned:  # the absent ones from the places before
        rank = torch.where(rank < lengths, rank + mask.shape[-1] - lengths, rank - lengths)
    return Placement(order, rank, lengths.squeeze(-1).to(torch.int32), mask.gather(-1, order))


def _beside(rows: Tensor, x: Tensor) -> Tensor:
    """`rows` (*batch, n), for the channels of x too."""
    return rows if x.dim() == rows.dim() else rows.unsqueeze(-1)


def _gather(x: Tensor, index: Tensor) -> Tensor:
    return torch.gather(x, index.dim() - 1, _beside(index, x).expand_as(x))


def crisp_order(x: Tensor, mask: Tensor | None, descending: bool) -> Tensor:
    """The indices of a stable crisp sort of each row, absent items last."""
    if mask is None:
        return torch.argsort(x.detach(), dim=-1, descending=descending, stable=True)
    # Equal among themselves, so that they keep their order
    order = torch.argsort(torch.where(mask, x.detach(), 0), dim=-1, descending=descending, stable=True)
    late = torch.gather(~mask, -1, order).to(torch.int8)
    return torch.gather(order, -1, torch.argsort(late, dim=-1, stable=True))


def beside(x: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """(how many present items are larger, how many are equal, itself among them) for each item."""
    least = -torch.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    low = torch.where(present, x.detach(), least).contiguous()
    if low.device.type == "cpu" and readable(low):
        lower, upper = map(torch.from_numpy, _bounds(low.numpy()))
    else:
        ordered = low.sort(-1).values
        lower, upper = (torch.searchsorted(ordered, low, side=side) for side in ("left", "right"))
    absent = torch.where(low == least, (~present).sum(-1, keepdim=True), 0)
    return x.shape[-1] - upper, (upper - lower - absent).clamp_min(1)


def _bounds(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many items of its row are less than each item, and how many are not more: as `searchsorted` has it, which takes
    several times as long as NumPy's sort."""
    n, order = x.shape[-1], np.argsort(x, -1)
    ordered = np.take_along_axis(x, order, -1)
    place, lower = np.arange(n), np.empty(x.shape, dtype=np.int64)
    differ = ordered[..., 1:] != ordered[..., :-1]
    if differ.all():
        np.put_along_axis(lower, order, np.broadcast_to(place, x.shape), -1)
        return lower, lower + 1
    # Where equal items begin, and where they end
    first, last = np.ones(x.shape, dtype=bool), np.ones(x.shape, dtype=bool)
    first[..., 1:] = last[..., :-1] = differ
    begin = np.maximum.accumulate(np.where(first, place, 0), -1)
    end = np.minimum.accumulate(np.where(last, place + 1, n)[..., ::-1], -1)[..., ::-1]
    upper = np.empty(x.shape, dtype=np.int64)
    np.put_along_axis(lower, order, begin, -1)
    np.put_along_axis(upper, order, end, -1)
    return lower, upper
