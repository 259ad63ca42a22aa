"""Soft sorts, ranks and thresholds as their formulas say, row by row, dense, in float64: what the fuzzer compares with.

Nothing of the library's own computation is used but the sigmoids and the list of pairs that meet in a network.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from algonet.relax import Heaviside
from algonet.sorting import Bitonic, NeuralSort, OddEven, Pairwise, Permutahedron, Transport, Unimodal


def sort_row(x: Tensor, relax: Any, method: Any, descending: bool, steps: int | None) -> tuple[Tensor, Tensor]:
    """(values, P) of the items of one row, P[i, j] being the share of item j in position i."""
    if isinstance(method, Permutahedron):
        values = _permutahedron_sorted(x, method)
        return (values.flip(0) if descending else values), x.new_zeros(len(x), len(x))
    if isinstance(method, (OddEven, Bitonic)):
        return _network(x, relax, method, descending, steps)
    signed = -x if descending else x
    if isinstance(relax, Heaviside):
        order = signed.argsort(stable=True)
        p = torch.eye(len(x), dtype=x.dtype)[order]
        return x[order], p
    p = {NeuralSort: _neural, Unimodal: _unimodal, Transport: _transport}[type(method)](signed, relax, method)
    return p @ x, p


def rank_row(x: Tensor, relax: Any, method: Any, descending: bool) -> Tensor:
    """Expected positions of the items of one row."""
    signed = -x if descending else x
    if isinstance(method, Permutahedron):
        return _permutahedron_ranks(signed, method)
    if isinstance(method, Pairwise):
        above = _decided(signed.unsqueeze(1), signed.unsqueeze(0), relax)
        return (above * (1 - torch.eye(len(x), dtype=x.dtype))).sum(1)
    _, p = sort_row(x, relax, method, descending, None)
    return p.T @ torch.arange(len(x), dtype=x.dtype)


def threshold_row(x: Tensor, k: Tensor, relax: Any) -> Tensor:
    """Memberships that sum to k, from the threshold found by bisection; one Newton step carries its derivatives."""
    above, below = x == math.inf, x == -math.inf
    finite = ~(above | below)
    p = torch.where(above, (k / above.sum().clamp_min(1)).clamp(0, 1), 0.0)
    rest = k - above.sum()
    items = x[finite]
    if rest > len(items):
        p = torch.where(below, ((rest - len(items)) / below.sum().clamp_min(1)).clamp(0, 1), p)
    if rest <= 0 or rest >= len(items):
        return torch.where(finite, float(rest > 0), p.detach())
    middle = _threshold(items.detach(), float(rest), relax)
    b = torch.tensor(middle, dtype=x.dtype, requires_grad=True)
    slope = torch.autograd.grad(relax(items.detach() - b).sum(), b)[0]
    b = b.detach()
    b = b - (relax(items - b).sum() - rest) / slope.detach()
    return p.detach().index_copy(0, finite.nonzero().squeeze(1), relax(items - b))


def median_row(x: Tensor, relax: Any, method: str, degree: int) -> Tensor:
    """The recursion of `soft_median(method="fast" or "paper")` on the items of one row."""
    s, n = relax.steepness, len(x)
    weights = torch.ones_like(x)
    for _ in range(degree):
        z = x
        if method == "fast":
            shares = weights / weights.sum()
            centred = x - (shares * x).sum()
            variance = (shares * centred.square()).sum()
            u = centred / variance.sqrt() if variance > 0 else 0 * x
            z = u / (1 + u.square()).sqrt()
        extreme = _softmax(-s * z, weights) + _softmax(s * z, weights)
        weights = _softmax(-(s if method == "paper" else n / 2) * extreme, weights)
    return (weights / weights.sum() * x).sum()


def _softmax(logits: Tensor, weights: Tensor) -> Tensor:
    e = weights * (logits - logits.detach().max()).exp()
    return e / e.sum()


def _network(x: Tensor, relax: Any, method: Any, descending: bool, steps: int | None) -> tuple[Tensor, Tensor]:
    n = len(x)
    values, p = x, torch.eye(n, dtype=x.dtype)
    for layer in range(method.layers(n, steps) if n > 1 else 0):
        first, second = (torch.from_numpy(side.copy()).long() for side in method.pairs(n, layer)[:2])
        a, b = values[first], values[second]
        alpha = _decided(a, b, relax) if descending else _decided(b, a, relax)
        low, high = _mix(alpha, a, b), _mix(alpha, b, a)
        values = values.index_copy(0, first, low).index_copy(0, second, high)
        share = alpha.unsqueeze(1)
        low, high = share * p[first] + (1 - share) * p[second], (1 - share) * p[first] + share * p[second]
        p = p.index_copy(0, first, low).index_copy(0, second, high)
    return values, p


def _decided(a: Tensor, b: Tensor, relax: Any) -> Tensor:
    """P(a > b): crisp where a difference is not finite, a tie between equal infinities."""
    a, b = torch.broadcast_tensors(a, b)
    crisp = a.isinf() | b.isinf()
    d = torch.where(crisp, 0.0, a) - torch.where(crisp, 0.0, b)
    return torch.where(crisp & (a != b), (a > b).to(a.dtype), relax(d))


def _mix(alpha: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """alpha a + (1 - alpha) b, where an infinite item with no share counts nothing."""
    infinite = a.isinf() | b.isinf()
    mean = alpha * torch.where(infinite, 0.0, a) + (1 - alpha) * torch.where(infinite, 0.0, b)
    crisp = torch.where(alpha == 1, a, torch.where(alpha == 0, b, a))
    return torch.where(infinite, crisp, mean)


def _neural(x: Tensor, relax: Any, method: Any) -> Tensor:
    n = len(x)
    spread = (x.unsqueeze(0) - x.unsqueeze(1)).abs().sum(0)
    place = 2 * torch.arange(1, n + 1, dtype=x.dtype) - n - 1
    return torch.softmax(relax.steepness * (place.unsqueeze(1) * x - spread), 1)


def _unimodal(x: Tensor, relax: Any, method: Any) -> Tensor:
    return torch.softmax(-relax.steepness * (x.sort(stable=True).values.unsqueeze(1) - x).abs(), 1)


def _transport(x: Tensor, relax: Any, method: Any) -> Tensor:
    n = len(x)
    place = torch.arange(n, dtype=x.dtype)
    logits = 2 * relax.steepness * place.unsqueeze(1) * x
    order = x.detach().argsort(stable=True)
    gaps = torch.diff(x[order]) * (place[:-1] + 0.5)
    ladder = torch.cat([x.new_zeros(min(n, 1)), gaps.cumsum(0)])
    prices = 2 * relax.steepness * x.new_zeros(n).index_copy(0, order, ladder)
    for _ in range(method.iterations):
        rows = torch.logsumexp(logits - prices, 1, keepdim=True)
        prices = torch.logsumexp(logits - rows, 0)
    return torch.softmax(logits - prices, 1)


def _permutahedron_sorted(x: Tensor, method: Any) -> Tensor:
    """The point of the permutahedron of x nearest to the positions over the strength, ascending."""
    places = torch.arange(len(x), 0, -1, dtype=x.dtype) / method.strength
    ordered = x.sort(descending=True, stable=True).values
    return (places - _isotonic(places, ordered, method.entropic)).flip(0)


def _permutahedron_ranks(x: Tensor, method: Any) -> Tensor:
    order = x.detach().argsort(descending=True, stable=True)
    z = (x / method.strength)[order]
    places = torch.arange(len(x), 0, -1, dtype=x.dtype)
    if method.entropic:
        found = (z - _isotonic(z, places.log(), True)).exp()
    else:
        found = z - _isotonic(z, places, False)
    return found[order.argsort()] - 1


def _isotonic(s: Tensor, w: Tensor, entropic: bool) -> Tensor:
    """The descending v nearest to s - w (in the KL sense if `entropic`), by pooling neighbours that are out of order."""

    def level(block: list[int]) -> Tensor:
        a, b = s[block], w[block]
        return a.logsumexp(0) - b.logsumexp(0) if entropic else (a - b).mean()

    blocks: list[list[int]] = []
    for i in range(len(s)):
        blocks.append([i])
        # Equal neighbours are pooled: at this kink both sides have a derivative, and it takes one
        while len(blocks) > 1 and level(blocks[-2]) <= level(blocks[-1]):
            last = blocks.pop()
            blocks[-1] = blocks[-1] + last
    return torch.cat([level(block).expand(len(block)) for block in blocks]) if blocks else s


def _threshold(x: Tensor, k: float, relax: Any) -> float:
    s = float(relax.steepness)
    margin = 2 * float(dataclasses.replace(relax, steepness=1.0).reach(1e-13)) / s
    low, high = float(x.min()) - margin, float(x.max()) + margin
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if float(relax(x - middle).sum()) > k else (low, middle)
    return (low + high) / 2
