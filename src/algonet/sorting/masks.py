"""Rows of different lengths: where their present items go before sorting, and where everything goes after it.

Present items are put side by side without any effect on gradients, to the end of the row where the network is right
aligned, else to its beginning. What is absent enters the kernels as zero and leaves as it came.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Placement(NamedTuple):
    """`order`: the item in each place; `rank`: the place that each sorted position comes from; `lengths`: items present."""

    order: Tensor
    rank: Tensor
    lengths: Tensor
    present: Tensor
    absent_order: Tensor

    def forth(self, x: Tensor) -> Tensor:
        placed = torch.gather(x, -1, self.order)
        return torch.where(self._here(), placed, 0.0)

    def forth_payload(self, payload: Tensor, spared: int) -> Tensor:
        placed = _gather(payload, self.order)
        user = torch.where(self._here().unsqueeze(-1), placed[..., :spared], 0.0)
        return torch.cat([user, placed[..., spared:]], -1)

    def forth_sorted(self, v: Tensor) -> Tensor:
        """v, given by sorted position, to places."""
        return _gather(v, self.rank.argsort(-1))

    def back(self, values: Tensor, x: Tensor) -> Tensor:
        absent = torch.gather(x.detach(), -1, self.absent_order)
        return torch.where(self._sorted_here(), torch.gather(values, -1, self.rank), absent)

    def back_payload(self, sent: Tensor, payload: Tensor, spared: int) -> Tensor:
        moved = _gather(sent, self.rank)
        absent = _gather(payload[..., :spared].detach(), self.absent_order)
        user = torch.where(self._sorted_here().unsqueeze(-1), moved[..., :spared], absent)
        return torch.cat([user, moved[..., spared:]], -1)

    def back_items(self, v: Tensor) -> Tensor:
        """v, given by place, to items."""
        return _gather(v, self.order.argsort(-1))

    def _here(self) -> Tensor:
        return torch.gather(self.present, -1, self.order)

    def _sorted_here(self) -> Tensor:
        n = self.present.shape[-1]
        return torch.arange(n, device=self.present.device) < self.lengths.unsqueeze(-1)


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
