"""Soft quantiles and medians: only the exchanges that can reach the wanted positions are computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from algonet.core.checks import check_integer, widened
from algonet.core.hints import hints_at_relax
from algonet.relax import DECISION, Sigmoid, weighted_softmax, weighted_softmin

from .checks import (
    check_items,
    check_mask,
    check_quantiles,
    check_sigmoid,
    signed_steepness,
)
from .methods import Method, SmoothedCDF, suggestions
from .order import order_of

METHODS = ("exact", "fast", "paper")


def check_median(where: str, method: Any) -> None:
    if method not in METHODS:
        known = ", ".join(map(repr, (*suggestions("quantile"), *METHODS)))
        raise ValueError(f"{where}: unknown method {method!r}; choose one of {known}.")


@hints_at_relax
def soft_quantile(
    x: Tensor,
    q: float | Sequence[float] | Tensor,
    *,
    dim: int = -1,
    relax: Sigmoid = DECISION,
    method: Method = SmoothedCDF(),
    mask: Tensor | None = None,
    keepdim: bool = False,
    backend: str = "auto",
) -> Tensor:
    """The q-quantile along `dim`: position q (n - 1) of the soft sort, interpolated linearly as `torch.quantile` does.

    steepness -> inf gives `torch.quantile`. A number q (also as a tensor without dimensions) removes `dim` or keeps it with
    size 1; a sequence of them puts the quantiles in its place. With a mask, n is the number of items present; a row without
    any gives NaN.
    Differentiable in x like `soft_sort`, not in q, which is read as numbers. Only exchanges that reach the wanted positions
    are computed (without a mask).

    Every layer of a network blurs a little, the default does not: medians of 1,000 standard normal items are off by 0.006 on
    average with the default, by 0.16 with `OddEven()` and by 0.03 with `Bitonic()`.

    >>> from algonet.relax import Logistic
    >>> soft_quantile(torch.tensor([4.0, 1.0, 3.0, 2.0]), 0.5, relax=Logistic(20.0))
    tensor(2.5000)
    """
    return _quantiles("soft_quantile", x, q, dim, relax, method, mask, keepdim, backend)


def _quantiles(
    where: str,
    x: Tensor,
    q: Any,
    dim: int,
    relax: Sigmoid,
    method: Method,
    mask: Tensor | None,
    keepdim: bool,
    backend: str,
) -> Tensor:
    def check() -> dict[str, Any]:
        wanted, n = check_quantiles(where, q), x.shape[dim]
        if n == 0:
            raise ValueError(f"{where}: x has no items along dim {dim} (shape {tuple(x.shape)}).")
        places = [level * (n - 1) for level in wanted]
        keep = tuple(sorted({math.floor(p) for p in places} | {math.ceil(p) for p in places})) if mask is None else None
        return {"keep": keep, "levels": wanted}

    options = (tuple(q) if isinstance(q, list) else q,)
    # A tensor of levels would be known by its shape alone
    known = not isinstance(q, Tensor)
    order = order_of("soft_quantile", x, dim, False, relax, method, mask, backend, options, check, known)
    call, values, n = order.call, order.sorted(None)[0], order.x.shape[-1]
    lengths = None if order.mask is None else order.mask.sum(-1)
    if isinstance(q, Real) or getattr(q, "ndim", 1) == 0:
        found = interpolated(values, call.levels[0], lengths, n, call.first)
        return call.restore(found.unsqueeze(-1), x.dtype) if keepdim else found.to(x.dtype)
    return call.restore(
        torch.stack([interpolated(values, level, lengths, n, call.first) for level in call.levels], -1), x.dtype
    )


@hints_at_relax
def soft_median(
    x: Tensor,
    *,
    dim: int = -1,
    method: Method | str = SmoothedCDF(),
    degree: int = 1,
    relax: Sigmoid = DECISION,
    mask: Tensor | None = None,
    keepdim: bool = False,
    backend: str = "auto",
) -> Tensor:
    """The paper's SoftMedian along `dim`, exact (the middle of a soft sort) or fast (outliers weighed away).

    - A method that sorts (`SmoothedCDF()`, `OddEven()`, ...; "exact" is the first): the middle value of
      `soft_sort`, the mean of both if n is even; steepness -> inf gives the median.
    - `method="fast"`: sum_i w_i x_i with w^(0) = 1 and w^(j) = wSoftMin(n/2 (wSoftMin(z, w^(j-1)) + wSoftMax(z, w^(j-1))),
      w^(j-1)) up to j = `degree`, z = u / sqrt(1 + u^2) of the standardised u = (x - m) / d, m and d the mean and standard
      deviation under w^(j-1). Extremes lose weight; measured by their spread and bounded, what has lost its weight
      no longer hides the next ones. With an odd n a higher degree comes closer to the median on average, whatever the scale
      of x; with an even n it ends anywhere between the two middle items, often on one of them instead of their mean.
    - `method="paper"`: the paper's recursion, on x itself and without n/2; its steepness is 1, `relax=Logistic(1.0)`. At
      a high steepness an item far out stays the extreme after it has lost its weight, and a higher degree makes it worse.

    Both recursions take the steepness of `relax`, are O(n degree), and leave `backend` unread.

    Differentiable to any order (exact: as often as the sigmoid is).

    >>> from algonet.relax import Logistic
    >>> x = torch.tensor([1.0, 2.0, 3.0, 4.0, 100.0])
    >>> soft_median(x, relax=Logistic(20.0)), soft_median(x, method="fast", degree=8)
    (tensor(3.), tensor(3.0044))
    """
    if isinstance(method, Method) or method == "exact":
        sorting = method if isinstance(method, Method) else SmoothedCDF()
        return _quantiles("soft_median", x, 0.5, dim, relax, sorting, mask, keepdim, backend)
    check_items("soft_median", x, dim)
    if x.shape[dim] == 0:
        raise ValueError(f"soft_median: x has no items along dim {dim} (shape {tuple(x.shape)}).")
    check_median("soft_median", method)
    check_sigmoid("soft_median", relax)
    check_integer("soft_median", "degree", degree, 0)
    return by_weights(x, dim, method, degree, relax, check_mask("soft_median", x, mask), keepdim)


def by_weights(
    x: Tensor,
    dim: int,
    method: str,
    degree: int,
    relax: Sigmoid,
    mask: Tensor | None,
    keepdim: bool,
    gates: Tensor | float = 1.0,
) -> Tensor:
    """`soft_median(method="fast")` or "paper" of points that count to the extent of their gates."""
    wide = widened(x)
    steepness = signed_steepness("soft_median", relax, wide, 1.0)
    weights = torch.ones_like(wide) if mask is None else mask.to(wide.dtype)
    if mask is not None:
        wide = torch.where(mask, wide, 0.0)
    # A share of 1/n is an average item's: n/2 makes the loss of weight the same for few and many
    push = steepness if method == "paper" else weights.detach().sum(dim, keepdim=True) / 2
    for _ in range(degree):
        z = wide if method == "paper" else _standardised(wide, weights, dim)
        extreme = weighted_softmin(z, weights, dim=dim, steepness=steepness)
        extreme = extreme + weighted_softmax(z, weights, dim=dim, steepness=steepness)
        weights = weighted_softmin(extreme, weights, dim=dim, steepness=push)
    if degree == 0:
        total = weights.sum(dim, keepdim=True)
        weights = weights / torch.where(total > 0, total, 1.0)
    found = (weights * (gates * wide)).sum(dim, keepdim=True)
    if mask is not None:
        found = torch.where(mask.any(dim, keepdim=True), found, torch.nan)
    return (found if keepdim else found.squeeze(dim)).to(x.dtype)


def _standardised(x: Tensor, weights: Tensor, dim: int) -> Tensor:
    """u / sqrt(1 + u^2), u = (x - mean) / standard deviation under the weights; 0 where all items are equal."""
    total = weights.sum(dim, keepdim=True)
    shares = weights / torch.where(total > 0, total, 1.0)
    centred = x - (shares * x).sum(dim, keepdim=True)
    # In units of the largest, squares neither overflow nor vanish; the quotient does not depend on the unit
    largest = torch.where(shares > 0, centred, 0.0).detach().abs().amax(dim, keepdim=True)
    centred = centred / torch.where(largest > 0, largest, 1.0)
    variance = (shares * centred.square()).sum(dim, keepdim=True)
    alike = variance == 0
    u = torch.where(alike, 0.0, centred / torch.where(alike, 1.0, variance).sqrt())
    # Below -1 or above 1 by the reciprocal: squares of items far out overflow
    far = u.abs() > 1
    near, inverse = torch.where(far, 0.0, u), 1 / torch.where(far, u, 1.0)
    return torch.where(far, inverse.sign() / (1 + inverse.square()).sqrt(), near / (1 + near.square()).sqrt())


def interpolated(values: Tensor, level: float, lengths: Tensor | None, n: int, first: int) -> Tensor:
    """The sorted values, the first of which is in place `first`, at place level (n - 1), between two neighbours if need be."""
    share: float | Tensor
    if lengths is None:
        place = level * (n - 1) - first
        below, above = math.floor(place), math.ceil(place)
        low, high, share = values[..., below], values[..., above], place - below
        if below == above:
            return low
    else:
        place = level * (lengths - 1).clamp_min(0).to(torch.float64)
        low, high = (
            torch.gather(values, -1, i.long().unsqueeze(-1)).squeeze(-1) for i in (place.floor(), place.ceil())
        )
        share = (place - place.floor()).to(values.dtype)
    # Equal infinities only: at a tie of finite values the gradient goes to both
    same = low.isinf() & (low == high)
    mean = (1 - share) * torch.where(same, 0.0, low) + share * torch.where(same, 0.0, high)
    found = torch.where(same, low, mean)
    return found if lengths is None else torch.where(lengths > 0, found, torch.nan)
