"""What losses and metrics share: checked lists with their items last, crisp ranks, and reductions."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.core.cache import TENSORS, constant
from algonet.core.checks import as_tensor, check_tensor, is_integer, widened
from algonet.core.tracing import readable

from ..masks import beside

REDUCTIONS = ("mean", "sum", "none")


class Lists(NamedTuple):
    """`scores` and `relevance` (*batch, n), 0 where absent; `present` (*batch, n); the precision to return.

    Relevances keep their digits, float64 or int64: rounded to the scores' precision, two time stamps would be one.
    """

    scores: Tensor
    relevance: Tensor
    present: Tensor
    dtype: torch.dtype

    @property
    def spoiled(self) -> Tensor:
        """Whether a present score or target of the list is NaN."""
        # The larger of two numbers is NaN where one of them is
        return torch.maximum(self.scores.detach(), self.relevance).isnan().any(-1)

    @property
    def relevant(self) -> Tensor:
        """1 for present items of positive relevance."""
        return (self.relevance > 0).to(self.scores.dtype)

    @property
    def gains(self) -> Tensor:
        """Relevances as floating numbers."""
        return self.relevance.to(torch.promote_types(self.scores.dtype, self.relevance.dtype))


def lists(where: str, scores: Any, relevance: Any, mask: Any, reduction: str) -> Lists:
    scores, relevance, mask = check_tensor(where, scores), as_tensor(relevance), as_tensor(mask)
    if scores.dim() == 0:
        raise ValueError(f"{where}: `scores` must be (*batch, n), got a scalar.")
    if not isinstance(relevance, Tensor) or relevance.is_complex():
        raise TypeError(f"{where}: the targets must be a tensor of numbers, got {type(relevance).__name__}.")
    if relevance.shape != scores.shape:
        raise ValueError(
            f"{where}: targets must have the shape of `scores`, {tuple(scores.shape)}; got {tuple(relevance.shape)}."
        )
    if relevance.device != scores.device:
        raise ValueError(f"{where}: scores are on {scores.device}, targets on {relevance.device}.")
    if reduction not in REDUCTIONS:
        raise ValueError(f"{where}: unknown reduction {reduction!r}; choose one of {', '.join(REDUCTIONS)}.")
    wide = widened(scores)
    graded = widened(relevance.detach()) if relevance.is_floating_point() else relevance.long()
    if mask is None:
        return Lists(wide, graded, constant(True, torch.bool, wide.device).expand(wide.shape), scores.dtype)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != scores.shape:
        found = (mask.dtype, tuple(mask.shape)) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(
            f"{where}: `mask` must be a boolean tensor of the shape of `scores`, {tuple(scores.shape)}, "
            f"True where an item is present; got {found}."
        )
    return Lists(torch.where(mask, wide, 0.0), torch.where(mask, graded, 0), mask, scores.dtype)


def check_gains(where: str, data: Lists) -> None:
    """Raise at a negative gain, where looking is free: the best order would then have nothing to be measured by."""
    if data.relevance.numel() and readable(data.relevance) and bool((data.relevance < 0).any()):
        raise ValueError(
            f"{where}: `relevance` are gains and must not be negative, got {float(data.relevance.min()):g}; "
            "use 0 for what is irrelevant, or mask it out."
        )


def cutoff(where: str, k: Any, n: int) -> int | None:
    """k, at most n; `None` for no cutoff."""
    if k is None:
        return None
    if not is_integer(k):
        raise TypeError(f"{where}: `k` must be an integer or None, got {k!r}.")
    if k < 1:
        raise ValueError(f"{where}: `k` must be positive, got {k}.")
    return min(int(k), n)


def reduced(values: Tensor, reduction: str, data: Lists) -> Tensor:
    """One number for all lists, or one for each: NaN for a list with a NaN in it. The mean of no list is 0."""
    # Comparisons with NaN are false, so such a list would count as one that has nothing to rank
    values = torch.where(data.spoiled, constant(math.nan, values.dtype, values.device), values)
    if reduction == "sum" or not values.numel():
        values = values if reduction == "none" else values.sum()
    elif reduction == "mean":
        values = values.mean()
    return values.to(data.dtype)


def quotient(above: Tensor, below: Tensor) -> Tensor:
    """above / below, and 0 (with no gradient) where there is nothing below."""
    some = below > 0
    return torch.where(some, above, 0.0) / torch.where(some, below, 1.0)


def average_ranks(x: Tensor, present: Tensor) -> Tensor:
    """Positions from 0 in ascending order, in float64; equal items share the mean of theirs."""
    larger, equal = beside(x, present)
    count = present.sum(-1, keepdim=True)
    return torch.where(present, (count - larger).double() - (equal + 1) / 2, 0.0)


def discounts(n: int, k: int | None, x: Tensor) -> Tensor:
    """1 / log2(2 + position), 0 from position k on."""

    def make() -> Tensor:
        place = torch.arange(n, dtype=x.dtype, device=x.device)
        found = 1 / torch.log2(place + 2)
        return found if k is None else torch.where(place < k, found, 0.0)

    return TENSORS.get(("discounts", n, k, x.dtype, x.device), make)


def correlation(a: Tensor, b: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """(Pearson's correlation of present items, whether there is one: two different values in each).

    In float64, where squares of 10^7 ranks do not overflow.
    """
    count = present.sum(-1, keepdim=True).clamp_min(1)

    def centred(x: Tensor) -> Tensor:
        x = x.double()
        return torch.where(present, x - torch.where(present, x, 0.0).sum(-1, keepdim=True) / count, 0.0)

    a, b = centred(a), centred(b)
    squares = (a * a).sum(-1) * (b * b).sum(-1)
    some = squares > 0
    return torch.where(some, (a * b).sum(-1), 0.0) / torch.where(some, squares, 1.0).sqrt(), some
