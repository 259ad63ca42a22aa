"""Crisp ranking metrics, equal to scikit-learn's and SciPy's where those have them, for batches of ragged lists; and what
losses share with them: checked lists with their items last, crisp ranks, and reductions.

Each takes `scores` and targets (*batch, n), a `mask` that is True where an item is present, and a `reduction` over lists. Lists
that are empty, or have nothing to rank, give 0.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from algonet.core.cache import TENSORS, constant
from algonet.core.checks import as_tensor, check_integer, check_tensor, widened
from algonet.core.tracing import readable
from algonet.relax import Heaviside

from ..functional import soft_topk_mask
from ..masks import beside

REDUCTIONS = ("mean", "sum", "none")


class Lists(NamedTuple):
    """`scores` and `relevance` (*batch, n), 0 where absent; `present` (*batch, n); the precision to return; `mask`: `present`
    if one was given, for functions that take the shorter way without one.

    Relevances keep their digits, float64 or int64: rounded to the scores' precision, two time stamps would be one.
    """

    scores: Tensor
    relevance: Tensor
    present: Tensor
    dtype: torch.dtype
    mask: Tensor | None = None

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
    return Lists(torch.where(mask, wide, 0.0), torch.where(mask, graded, 0), mask, scores.dtype, mask)


def check_gains(where: str, data: Lists) -> None:
    """Raise at a negative gain, where looking is free: the best order would then have nothing to be measured by."""
    if data.relevance.numel() and readable(data.relevance) and bool((data.relevance < 0).any()):
        raise ValueError(
            f"{where}: `relevance` are gains and must not be negative, got {float(data.relevance.min()):g}; "
            "use 0 for what is irrelevant, or mask it out."
        )


def cutoff(where: str, k: Any, n: int) -> int | None:
    """k, at most n; `None` for no cutoff."""
    return None if k is None else min(check_integer(where, "k", k, 1), n)


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


def ndcg(
    scores: Tensor, relevance: Tensor, *, k: int | None = None, mask: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Normalised discounted cumulative gain: sum of relevance_i / log2(2 + position_i) over its largest possible value.

    Equals `sklearn.metrics.ndcg_score`: gains are the relevances, tied scores share the mean of their discounts, and positions
    from `k` on count nothing. For exponential gains pass 2 ** relevance - 1.

    >>> ndcg(torch.tensor([0.1, 0.9, 0.5]), torch.tensor([3.0, 1.0, 0.0]))
    tensor(0.6885)
    """
    data = lists("ndcg", scores, relevance, mask, reduction)
    check_gains("ndcg", data)
    n = scores.shape[-1]
    k = cutoff("ndcg", k, n)
    larger, equal = beside(data.scores, data.present)
    cumulated = torch.nn.functional.pad(discounts(n, k, data.scores.double()).cumsum(-1), (1, 0))
    shares = (cumulated[larger + equal] - cumulated[larger]) / equal
    found = (torch.where(data.present, shares, 0.0) * data.gains).sum(-1)
    return reduced(quotient(found, ideal_dcg(data.gains, k)), reduction, data)


def ideal_dcg(relevance: Tensor, k: int | None) -> Tensor:
    """The discounted cumulative gain of the best order."""
    best = relevance.sort(-1, descending=True).values
    return (best * discounts(best.shape[-1], k, best)).sum(-1)


def average_precision(
    scores: Tensor, relevance: Tensor, *, k: int | None = None, mask: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """The mean over relevant items of the share of relevant ones among those that score as high or higher.

    Equals `sklearn.metrics.average_precision_score`, ties included. Relevant is what has a positive relevance. With `k`, only
    those among the k highest scores count (ties at the threshold in part), and the sum is divided by the number of relevant
    items or k, whichever is less.

    >>> average_precision(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([1, 0, 1]))
    tensor(0.8333)
    >>> average_precision(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([1, 0, 1]), k=2)
    tensor(0.5000)
    """
    data = lists("average_precision", scores, relevance, mask, reduction)
    larger, equal = beside(data.scores, data.present)
    # Relevant items that score as high or higher have as few larger ones, or fewer
    ordered = torch.where(data.relevant > 0, larger, scores.shape[-1]).sort(-1).values
    higher = torch.searchsorted(ordered, larger, side="right")
    precision = higher.to(data.scores.dtype) / (larger + equal)
    relevant = data.relevant
    count = relevant.sum(-1)
    k = cutoff("average_precision", k, scores.shape[-1])
    if k is not None:
        relevant = relevant * soft_topk_mask(data.scores, k, relax=Heaviside(), mask=data.present)
        count = count.clamp_max(k)
    return reduced(quotient((relevant * precision).sum(-1), count), reduction, data)


def recall_at_k(
    scores: Tensor, relevance: Tensor, k: int, *, mask: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """The share of relevant items among the k highest scores; items tied at the threshold count in part.

    >>> recall_at_k(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([1, 0, 1]), 2)
    tensor(0.5000)
    """
    data = lists("recall_at_k", scores, relevance, mask, reduction)
    k = cutoff("recall_at_k", k, scores.shape[-1]) or 0
    members = soft_topk_mask(data.scores, k, relax=Heaviside(), mask=data.present)
    relevant = data.relevant
    return reduced(quotient((members * relevant).sum(-1), relevant.sum(-1)), reduction, data)


def spearman(scores: Tensor, targets: Tensor, *, mask: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """The correlation of the ranks of `scores` and `targets`; equal items share the mean of their ranks.

    Equals `scipy.stats.spearmanr`; 0 where all scores or all targets are equal.

    >>> spearman(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 3.0, 2.0, 4.0]))
    tensor(0.8000)
    """
    data = lists("spearman", scores, targets, mask, reduction)
    a, b = average_ranks(data.scores, data.present), average_ranks(data.relevance, data.present)
    return reduced(correlation(a, b, data.present)[0], reduction, data)


def kendall(scores: Tensor, targets: Tensor, *, mask: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """Kendall's tau-b: concordant less discordant pairs over sqrt(pairs that differ in scores * pairs that differ in targets).

    Equals `scipy.stats.kendalltau`; 0 where all scores or all targets are equal. O(n log^2 n).

    >>> kendall(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 3.0, 2.0, 4.0]))
    tensor(0.6667)
    """
    data = lists("kendall", scores, targets, mask, reduction)
    n = scores.shape[-1]
    # From the last to the first, absent items behind: whole numbers that order both alike
    x, y = (torch.where(data.present, beside(t, data.present)[0], n) for t in (data.scores, data.relevance))
    joint = x * (n + 1) + y
    pairs_x, pairs_y, pairs = (distinct_pairs(t, data.present) for t in (x, y, joint))
    agreement = pairs_x + pairs_y - pairs - 2 * _inversions(joint.sort(-1).values % (n + 1))
    return reduced(quotient(agreement, (pairs_x * pairs_y).sqrt()), reduction, data)


def _inversions(y: Tensor) -> Tensor:
    """How many pairs of whole numbers from 0 to n stand in the wrong order, by the highest bit that tells a pair apart."""
    found = y.new_zeros(y.shape[:-1])
    for bit in reversed(range(y.shape[-1].bit_length())):
        # Numbers that agree above this bit stand side by side, in their order
        one = y >> bit & 1
        ones = torch.nn.functional.pad(one.cumsum(-1), (1, 0))
        begin = torch.searchsorted((y >> bit + 1).contiguous(), (y >> bit + 1).contiguous())
        found = found + ((ones[..., 1:] - torch.gather(ones, -1, begin)) * (1 - one)).sum(-1)
        y = torch.gather(y, -1, (y >> bit).argsort(dim=-1, stable=True))
    return found


def distinct_pairs(x: Tensor, present: Tensor) -> Tensor:
    """How many pairs of present items differ, in float64."""
    count = present.sum(-1).double()
    equal = torch.where(present, beside(x, present)[1] - 1, 0).double().sum(-1)
    return (count * (count - 1) - equal) / 2


def auc(scores: Tensor, relevance: Tensor, *, mask: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """The probability that a relevant item scores higher than one that is not; ties count half.

    Equals `sklearn.metrics.roc_auc_score`; 0 where there is no such pair. Relevant is what has a positive relevance.

    >>> auc(torch.tensor([0.9, 0.8, 0.1, 0.7]), torch.tensor([1, 0, 0, 1]))
    tensor(0.7500)
    """
    data = lists("auc", scores, relevance, mask, reduction)
    ranks, relevant = average_ranks(data.scores, data.present), data.relevant.double()
    some = relevant.sum(-1)
    others = data.present.sum(-1) - some
    found = (ranks * relevant).sum(-1) - some * (some - 1) / 2
    return reduced(quotient(found, some * others), reduction, data)
