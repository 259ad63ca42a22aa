"""Crisp ranking metrics, equal to scikit-learn's and SciPy's where those have them, for batches of ragged lists.

Each takes `scores` and targets (*batch, n), a `mask` that is True where an item is present, and a `reduction` over lists. Lists
that are empty, or have nothing to rank, give 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from algonet.relax import Heaviside

from ..masks import beside
from ..topk_mask import soft_topk_mask
from .lists import average_ranks, check_gains, correlation, cutoff, discounts, lists, quotient, reduced


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
