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
    """`order`: the item in each place; `rank`: the place that each sorted position comes from; `lengths`: items present."""

    order: Tensor
    rank: Tensor
    lengths: Tensor
    present: Tensor
    absent_order: Tensor

    def to_places(self, x: Tensor) -> Tensor:
        placed = torch.gather(x, -1, self.order)
        return torch.where(self._present_by_place(), placed, 0.0)

    def payload_to_places(self, payload: Tensor, user_channels: int) -> Tensor:
        placed = _gather(payload, self.order)
        user = torch.where(self._present_by_place().unsqueeze(-1), placed[..., :user_channels], 0.0)
        return torch.cat([user, placed[..., user_channels:]], -1)

    def sorted_to_places(self, v: Tensor) -> Tensor:
        """v, given by sorted position, to places."""
        return _gather(v, self.rank.argsort(-1))

    def values_from_places(self, values: Tensor, x: Tensor) -> Tensor:
        absent = torch.gather(x.detach(), -1, self.absent_order)
        return torch.where(occupied(self.present, self.lengths), torch.gather(values, -1, self.rank), absent)

    def payload_from_places(self, sent: Tensor, payload: Tensor, user_channels: int) -> Tensor:
        moved = _gather(sent, self.rank)
        absent = _gather(payload[..., :user_channels].detach(), self.absent_order)
        user = torch.where(occupied(self.present, self.lengths).unsqueeze(-1), moved[..., :user_channels], absent)
        return torch.cat([user, moved[..., user_channels:]], -1)

    def items_from_places(self, v: Tensor) -> Tensor:
        """v, given by place, to items."""
        return _gather(v, self.order.argsort(-1))

    def _present_by_place(self) -> Tensor:
        return torch.gather(self.present, -1, self.order)


def occupied(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Which places of a row hold an item: the first ones."""
    if lengths is None:
        return torch.ones_like(x, dtype=torch.bool)
    return torch.arange(x.shape[-1], device=x.device) < lengths.unsqueeze(-1)


def place(mask: Tensor, right_aligned: bool) -> Placement:
    n = mask.shape[-1]
    lengths = mask.sum(-1)
    first = torch.argsort((~mask).to(torch.int8), dim=-1, stable=True)
    place = torch.arange(n, device=mask.device).expand(mask.shape)
    if not right_aligned:
        return Placement(first, place, lengths.to(torch.int32), mask, first)
    shift = (n - lengths).unsqueeze(-1)
    # Sorted position i < m comes from place n - m + i, the absent ones from the places before
    rank = torch.where(place < lengths.unsqueeze(-1), place + shift, place - lengths.unsqueeze(-1))
    order = torch.gather(first, -1, rank.argsort(-1))
    return Placement(order, rank, lengths.to(torch.int32), mask, first)


def _gather(payload: Tensor, index: Tensor) -> Tensor:
    return torch.gather(payload, -2, index.unsqueeze(-1).expand(*index.shape, payload.shape[-1]))


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
