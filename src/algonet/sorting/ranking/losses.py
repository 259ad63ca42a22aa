"""Losses for learning to rank: 1 less a metric whose ranks and memberships are soft.

Each takes `scores` and targets (*batch, n), a `mask` that is True where an item is present, and a `reduction` over lists.
Higher scores rank first. `relax` says how soft comparisons are.
steepness -> inf gives 1 less the metric of the same name (its value, where no two scores are equal). Lists that are empty or
have nothing to rank give 0 and no gradient; a mean counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from algonet.core.cache import constant
from algonet.relax import Logistic, Relative, Sigmoid

from ..checks import signed_steepness
from ..functional import soft_rank, soft_topk_mask
from ..masks import crisp_order
from ..methods import Method, SmoothedCDF
from ..order import SmoothedOrder, order_of
from ..pairwise import ordered_pairs, pair_counts
from .metrics import (
    Lists,
    average_ranks,
    check_gains,
    correlation,
    cutoff,
    distinct_pairs,
    ideal_dcg,
    lists,
    quotient,
    reduced,
)

#: How soft comparisons are by default.
COMPARISON = Logistic(10.0)


def ndcg_loss(
    scores: Tensor,
    relevance: Tensor,
    *,
    k: int | None = None,
    relax: Sigmoid = COMPARISON,
    method: Method = SmoothedCDF(),
    mask: Tensor | None = None,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """1 - DCG / ideal DCG with DCG = sum_i p_i relevance_i / log2(2 + rank_i), rank_i soft (ApproxNDCG of Qin et al., 2010).

    p_i is 1, or with `k` the soft membership in the k highest scores (`soft_topk_mask`). `relevance` are gains, of any grade;
    for exponential ones pass 2 ** relevance - 1. Costs what `method` costs: O(n) by default.

    >>> from algonet.relax import Logistic
    >>> ndcg_loss(torch.tensor([0.1, 0.9, 0.5]), torch.tensor([3.0, 1.0, 0.0]), relax=Logistic(100.0))
    tensor(0.3115)
    """
    data = lists("ndcg_loss", scores, relevance, mask, reduction)
    check_gains("ndcg_loss", data)
    k = cutoff("ndcg_loss", k, scores.shape[-1])
    ranks = soft_rank(data.scores, descending=True, relax=relax, method=method, mask=data.mask, backend=backend)
    # The logarithm in base 2 of something above 1/2: a rank is -1 at worst, if a column of P sums to less than 1
    shares = data.gains / torch.log2((ranks + 2).clamp_min(1.5))
    if k is not None and k < scores.shape[-1]:
        shares = shares * soft_topk_mask(data.scores, k, relax=relax, mask=data.mask, backend=backend)
    ideal = ideal_dcg(data.gains, k)
    some = ideal > 0
    loss = some.to(ideal.dtype) - shares.sum(-1) / torch.where(some, ideal, constant(1.0, ideal.dtype, ideal.device))
    return reduced(loss, reduction, data)


def average_precision_loss(
    scores: Tensor,
    relevance: Tensor,
    *,
    k: int | None = None,
    relax: Sigmoid = COMPARISON,
    mask: Tensor | None = None,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """1 - the mean over relevant i of (1 + R_i) / (1 + N_i): soft counts of relevant and of all items above i.

    R_i = sum over relevant j != i of r(steepness (x_j - x_i)), N_i the same over all j. Relevant is what has a positive
    relevance. With `k`, shares of i count by its soft membership in the k highest scores, and their sum is divided by the
    number of relevant items or k, whichever is less. O(n) with sigmoids without kinks, O(n^2) pairs, streamed, with others.

    >>> from algonet.relax import Logistic
    >>> average_precision_loss(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([1, 0, 1]), relax=Logistic(100.0))
    tensor(0.1667)
    """
    data = lists("average_precision_loss", scores, relevance, mask, reduction)
    relevant = data.relevant
    above = _counted(pair_counts, "average_precision_loss", data, -1, data.present.to(relevant.dtype), relax, backend)
    relevant_above = _counted(pair_counts, "average_precision_loss", data, -1, relevant, relax, backend)
    shares, count = relevant * (1 + relevant_above) / (1 + above), relevant.sum(-1)
    k = cutoff("average_precision_loss", k, scores.shape[-1])
    if k is not None and k < scores.shape[-1]:
        shares = shares * soft_topk_mask(data.scores, k, relax=relax, mask=data.mask, backend=backend)
        count = count.clamp_max(k)
    found = shares.sum(-1)
    return reduced(torch.where(count > 0, 1 - quotient(found, count), 0.0), reduction, data)


def recall_at_k_loss(
    scores: Tensor,
    relevance: Tensor,
    k: int,
    *,
    relax: Sigmoid = COMPARISON,
    mask: Tensor | None = None,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """1 - the share of relevant items in the k highest scores, memberships soft (`soft_topk_mask`). O(n).

    >>> from algonet.relax import Logistic
    >>> recall_at_k_loss(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([1, 0, 1]), 2, relax=Logistic(100.0))
    tensor(0.5000)
    """
    data = lists("recall_at_k_loss", scores, relevance, mask, reduction)
    k = cutoff("recall_at_k_loss", k, scores.shape[-1]) or 0
    members = soft_topk_mask(data.scores, k, relax=relax, mask=data.mask, backend=backend)
    relevant = data.relevant
    count = relevant.sum(-1)
    loss = torch.where(count > 0, 1 - quotient((members * relevant).sum(-1), count), 0.0)
    return reduced(loss, reduction, data)


def spearman_loss(
    scores: Tensor,
    targets: Tensor,
    *,
    relax: Sigmoid = COMPARISON,
    method: Method = SmoothedCDF(),
    mask: Tensor | None = None,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """1 - the correlation of the soft ranks of `scores` with the ranks of `targets` (equal targets share their mean rank).

    Costs what `method` costs: O(n) by default.

    >>> from algonet.relax import Logistic
    >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    >>> spearman_loss(x, torch.tensor([1.0, 3.0, 2.0, 4.0]), relax=Logistic(100.0))
    tensor(0.2000)
    """
    data = lists("spearman_loss", scores, targets, mask, reduction)
    ranks = soft_rank(data.scores, relax=relax, method=method, mask=data.mask, backend=backend)
    found, some = correlation(ranks, average_ranks(data.relevance, data.present), data.present)
    return reduced(torch.where(some, 1 - found, 0.0), reduction, data)


def kendall_loss(
    scores: Tensor,
    targets: Tensor,
    *,
    relax: Sigmoid = COMPARISON,
    mask: Tensor | None = None,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """1 - tau-b with soft pairs: sum over y_i > y_j of 2 r(steepness (x_i - x_j)) - 1, over sqrt(pairs pairs_y).

    `pairs` counts all pairs, pairs_y those that differ in targets. tau-b leaves pairs of equal scores out of the first, and
    so jumps where two scores pass each other; this does not, and where no two are equal it is the same.
    O(n log^2 n) with sigmoids without kinks, O(n^2) pairs, streamed, with others; O(n) memory.

    >>> from algonet.relax import Logistic
    >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    >>> kendall_loss(x, torch.tensor([1.0, 3.0, 2.0, 4.0]), relax=Logistic(100.0))
    tensor(0.3333)
    """
    data = lists("kendall_loss", scores, targets, mask, reduction)
    order = torch.where(data.present, average_ranks(data.relevance, data.present), torch.nan).to(data.scores.dtype)
    total = _counted(ordered_pairs, "kendall_loss", data, 1, order, relax, backend)
    count, pairs_y = data.present.sum(-1).double(), distinct_pairs(data.relevance, data.present)
    found = quotient(2 * total - pairs_y, (count * (count - 1) / 2 * pairs_y).sqrt())
    return reduced(torch.where(pairs_y > 0, 1 - found, 0.0), reduction, data)


def auc_loss(
    scores: Tensor,
    relevance: Tensor,
    *,
    relax: Sigmoid = COMPARISON,
    mask: Tensor | None = None,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """1 - the mean of r(steepness (x_i - x_j)) over pairs of a relevant i and an irrelevant j.

    Relevant is what has a positive relevance. O(n) with sigmoids without kinks, O(n^2) pairs, streamed, with others.

    >>> from algonet.relax import Logistic
    >>> auc_loss(torch.tensor([0.9, 0.8, 0.1, 0.7]), torch.tensor([1, 0, 0, 1]), relax=Logistic(100.0))
    tensor(0.2500)
    """
    data = lists("auc_loss", scores, relevance, mask, reduction)
    relevant = data.relevant
    others = data.present.to(relevant.dtype) - relevant
    above = _counted(pair_counts, "auc_loss", data, 1, others, relax, backend)
    pairs = relevant.sum(-1) * others.sum(-1)
    loss = torch.where(pairs > 0, 1 - quotient((relevant * above).sum(-1), pairs), 0.0)
    return reduced(loss, reduction, data)


def pairwise_hinge_loss(
    scores: Tensor, targets: Tensor, *, margin: float = 1.0, mask: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """The mean of max(0, margin - (x_i - x_j)) over pairs with y_i > y_j: the classic baseline. Dense: O(n^2) memory.

    >>> pairwise_hinge_loss(torch.tensor([0.0, 0.5]), torch.tensor([0.0, 1.0]))
    tensor(0.5000)
    """
    data = lists("pairwise_hinge_loss", scores, targets, mask, reduction)
    both = data.present.unsqueeze(-1) & data.present.unsqueeze(-2)
    pairs = both & (data.relevance.unsqueeze(-1) > data.relevance.unsqueeze(-2))
    short = (margin - (data.scores.unsqueeze(-1) - data.scores.unsqueeze(-2))).clamp_min(0)
    total = torch.where(pairs, short, 0.0).sum((-1, -2))
    return reduced(quotient(total, pairs.sum((-1, -2)).to(total.dtype)), reduction, data)


def list_mle_loss(
    scores: Tensor,
    relevance: Tensor,
    *,
    k: int | None = None,
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """ListMLE (Xia et al., 2008): - log of the probability, by Plackett and Luce, of drawing items in order of relevance.

    sum over places i (the first `k`) of log sum_{j >= i} exp(x_j) - x_i, items in descending order of relevance; of equal ones
    the earlier first, so shuffle lists with ties. C-infinity, O(n log n).

    >>> list_mle_loss(torch.tensor([0.0, 0.0, 0.0]), torch.tensor([1.0, 3.0, 2.0]))  # log 3!
    tensor(1.7918)
    """
    data = lists("list_mle_loss", scores, relevance, mask, reduction)
    order = crisp_order(data.relevance, data.present, True)
    there = data.present.gather(-1, order)
    x = torch.where(there, data.scores.gather(-1, order), torch.finfo(data.scores.dtype).min / 2)
    surprise = torch.where(there, x.flip(-1).logcumsumexp(-1).flip(-1) - x, 0.0)
    return reduced(surprise[..., : cutoff("list_mle_loss", k, scores.shape[-1])].sum(-1), reduction, data)


def topk_cross_entropy(
    scores: Tensor,
    labels: Tensor,
    k: int | Sequence[int] = 1,
    *,
    weights: Sequence[float] | None = None,
    relax: Sigmoid = COMPARISON,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """- log sum_k weights_k m_k(label), m_k the soft membership in the k highest scores: for several k at once.

    `labels`: class indices (*batch,), or booleans (*batch, n) for several labels per row, whose losses are averaged (a row
    without any gives 0). `weights` (equal by default) are the probabilities of the k in `k`, the p_k of Petersen et al., 2022:
    k = (1, 5), weights = (0.5, 0.5) trains top-1 and top-5 together. Memberships are taken in logarithms, with
    log m_k(j) = log r(steepness (x_j - b_k)), so that a label far below the threshold still gets its gradient.

    >>> topk_cross_entropy(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([0]), (1, 2))
    tensor(0.0034)
    """
    where = "topk_cross_entropy"
    several = labels.dtype == torch.bool
    data = lists(where, scores, labels if several else torch.zeros_like(scores), None, reduction)
    wanted = [cutoff(where, count, scores.shape[-1]) or 0 for count in ((k,) if isinstance(k, int) else k)]
    shares = torch.as_tensor(weights if weights is not None else [1.0] * len(wanted), dtype=torch.float64)
    if shares.shape != (len(wanted),) or not bool((shares >= 0).all()) or not float(shares.sum()) > 0:
        raise ValueError(
            f"{where}: `weights` must be {len(wanted)} numbers, none negative and not all 0; got {weights!r}."
        )
    order = order_of(where, data.scores, -1, True, relax, SmoothedCDF(), None, backend)
    assert isinstance(order, SmoothedOrder)
    edges = order.edges(0, 0, wanted)
    logs = order.log_members(edges, order.z if several else order.z.gather(-1, labels.long().unsqueeze(-1)))
    shares = (shares / shares.sum()).log().to(scores.device)
    surprise = -torch.logsumexp(logs + shares.unsqueeze(-1), -2).to(data.scores.dtype)
    if several:
        surprise = quotient((surprise * data.relevant).sum(-1), data.relevant.sum(-1))
    return reduced(surprise if several else surprise.squeeze(-1), reduction, data)


class NewtonLoss(nn.Module):
    """The value of `loss(scores, *targets)`, and at the scores (H + tikhonov I)^-1 g in the place of its gradient g.

    Losses of order have slopes that vanish here and explode there; a network is better told where Newton's method would move
    its outputs (Petersen et al., "Newton Losses", NeurIPS 2024). `scores` are (batch, n), each row one sample. g is the
    gradient of a row's own loss and H

    - with `fisher=False` the Hessian of that row's loss, exact because second derivatives are; n further passes;
    - with `fisher=True` the mean of g g^T over the batch: one matrix, one solve, no second derivative.

    `loss` returns one number for each row, or their mean. `tikhonov` is in units of the curvature: large ones leave the
    gradient's direction (the limit is g / tikhonov), small ones trust H. Where a loss is not convex, H is indefinite, and
    `tikhonov` belongs above its most negative eigenvalue: 0.1 to 10 are usual. Gradients by anything but the scores, such as
    a learned steepness, are the plain
    ones. Not twice differentiable.

    >>> loss = NewtonLoss(lambda x, y: (2 * (x - y) ** 2).sum(-1), tikhonov=0.0)
    >>> x = torch.tensor([[1.0, 5.0]], requires_grad=True)
    >>> loss(x, torch.zeros(1, 2)).backward()
    >>> x.grad  # a step of 1 against it reaches the minimum
    tensor([[1., 5.]])
    """

    def __init__(self, loss: Callable[..., Tensor], *, fisher: bool = False, tikhonov: float = 1.0):
        super().__init__()
        if tikhonov < 0:
            raise ValueError(f"NewtonLoss: `tikhonov` must not be negative, got {tikhonov}.")
        self.loss, self.fisher, self.tikhonov = loss, fisher, float(tikhonov)

    def forward(self, scores: Tensor, *targets: Any, **options: Any) -> Tensor:
        if scores.dim() != 2:
            raise ValueError(f"NewtonLoss: `scores` must be (batch, n), got shape {tuple(scores.shape)}.")
        rows = max(scores.shape[0], 1)
        with torch.enable_grad():
            leaf = scores.detach().requires_grad_()
            value = self.loss(leaf, *targets, **options)
        if value.shape not in (torch.Size(), scores.shape[:1]):
            raise ValueError(
                f"NewtonLoss: `loss` must return their mean or one number for each of {rows} rows, "
                f"got shape {tuple(value.shape)}."
            )
        mean = value if value.dim() == 0 else value.mean()
        if not scores.requires_grad:
            return mean
        total = mean * rows
        gradient = torch.autograd.grad(total, leaf, retain_graph=True, create_graph=not self.fisher)[0]
        # Rows of the batch do not meet, so one pass gives a row of every Hessian
        curvature = (
            gradient.T @ gradient / rows
            if self.fisher
            else torch.stack(
                [torch.autograd.grad(g.sum(), leaf, retain_graph=True)[0] for g in gradient.unbind(-1)], -2
            )
        )
        eye = torch.eye(scores.shape[1], dtype=scores.dtype, device=scores.device)
        step = torch.linalg.solve(curvature + self.tikhonov * eye, gradient.detach().unsqueeze(-1)).squeeze(-1)
        return mean + (step * (scores - leaf.detach())).sum() / rows

    def extra_repr(self) -> str:
        return f"fisher={self.fisher}, tikhonov={self.tikhonov:g}"


def _counted(
    count: Callable[..., Tensor], where: str, data: Lists, sign: int, weights: Tensor, relax: Sigmoid, backend: str
) -> Tensor:
    x = sign * data.scores
    if isinstance(relax, Relative):
        relax, x = relax.absolute(x, data.present)
    return count(x, weights, relax, signed_steepness(where, relax, x, 1.0), backend)
