"""The plain-torch truth of soft sorting: layer by layer, differentiable to any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .networks import Comparators
from .settings import SortSettings


def sort_reference(tensors: Sequence[Tensor], settings: SortSettings) -> tuple[Tensor, ...]:
    """(values,) of [x (*batch, n), lengths (*batch,), steepness ()]; (values, payload) with a payload (*batch, n, c) more."""
    x, lengths, steepness = _without_infinite(tensors[0]), *tensors[1:3]
    payload = tensors[3] if len(tensors) > 3 else None
    for exchange in walk(x, settings, steepness, lengths):
        x = exchange.after
        payload = None if payload is None else exchange.mix(payload)
    found = (x,) if payload is None else (x, payload)
    return tuple(_connected(t, tensors[0], steepness) for t in found)


def transposed_reference(tensors: Sequence[Tensor], settings: SortSettings) -> tuple[Tensor]:
    """(P^T v,) of [x (*batch, n), lengths (*batch,), steepness (), v (*batch, n, c)].

    Every exchange is a symmetric matrix, so P^T is the same exchanges in reverse order.
    """
    x, lengths, steepness, v = _without_infinite(tensors[0]), *tensors[1:]
    for exchange in reversed(list(walk(x, settings, steepness, lengths))):
        v = exchange.mix(v)
    return (_connected(v, tensors[0], steepness),)


def _connected(found: Tensor, x: Tensor, steepness: Tensor) -> Tensor:
    """A copy that has a gradient by x and the steepness, 0, where a single item meets no other."""
    beside = x if found.dim() == x.dim() else x.unsqueeze(-1)
    return torch.where(torch.zeros((), dtype=torch.bool, device=x.device), beside + steepness, found)


class Exchange:
    """One layer of exchanges: `alpha` (*batch, pairs), the items `after` it, and `mix`, which does the same to others."""

    def __init__(self, x: Tensor, pairs: tuple[Tensor, Tensor], alpha: Tensor, crisp: Tensor):
        self.alpha = alpha
        self._pairs = pairs
        a, b = (x.index_select(-1, items) for items in pairs)
        stay, rest = (alpha == 1) | (a == b), 1 - alpha
        # Where the decision is crisp the items move as they are: 0 times infinity is not 0
        p, q = torch.where(crisp, 0.0, a), torch.where(crisp, 0.0, b)
        low = torch.where(crisp, torch.where(stay, a, b), alpha * p + rest * q)
        high = torch.where(crisp, torch.where(stay, b, a), rest * p + alpha * q)
        self.after = _put(x, low, high, pairs, -1)

    def mix(self, payload: Tensor) -> Tensor:
        p, q = (payload.index_select(-2, items) for items in self._pairs)
        alpha = self.alpha.unsqueeze(-1)
        return _put(payload, alpha * p + (1 - alpha) * q, (1 - alpha) * p + alpha * q, self._pairs, -2)


def walk(x: Tensor, settings: SortSettings, steepness: Tensor, lengths: Tensor) -> Iterator[Exchange]:
    """The layers of the network, run on x (*batch, n). `lengths` is read only with `settings.masked`."""
    table = settings.table(x.shape[-1], x.device)
    for index in range(table.depth):
        pairs = table.layer(index)
        alpha, crisp = _decide(settings, x, pairs, steepness, _active(settings, table, index, lengths))
        exchange = Exchange(x, pairs, alpha, crisp)
        x = exchange.after
        yield exchange


def _without_infinite(x: Tensor) -> Tensor:
    """x, whose infinite items get no gradient: they take part crisply, and no step moves them."""
    return torch.where(x.isinf(), x.detach(), x)


def _decide(settings: SortSettings, x: Tensor, pairs: tuple[Tensor, Tensor], steepness: Tensor, active: Tensor | None):
    """(alpha, crisp): the probability r(steepness (b - a)) that a, b are in order, and where that is decided crisply.

    A difference that is not finite (an infinite item, or finite ones too far apart for the precision) decides crisply,
    as does a comparator that a short row does not have; equal infinities are a tie; NaN stays NaN.
    """
    a, b = (x.index_select(-1, items) for items in pairs)
    crisp = ~(b - a).isfinite() & ~(a.isnan() | b.isnan())
    # The steepness of a descending sort is negative
    decided, order = crisp & (a != b), (b > a) == (steepness >= 0)
    if active is not None:
        crisp, decided, order = crisp | ~active, decided | ~active, order | ~active
    # The branch of a `where` that is not taken must be finite too, or its gradient is NaN
    d = torch.where(crisp, 0.0, b) - torch.where(crisp, 0.0, a)
    alpha = replace(settings.sigmoid, steepness=steepness)(d)
    return torch.where(decided, order.to(x.dtype), alpha), crisp


def _active(settings: SortSettings, table: Comparators, index: int, lengths: Tensor) -> Tensor | None:
    if not settings.masked:
        return None
    span = table.spans[index]
    return lengths.unsqueeze(-1) >= torch.maximum(table.need[span], table.layer_need[index])


def _put(x: Tensor, low: Tensor, high: Tensor, pairs: tuple[Tensor, Tensor], dim: int) -> Tensor:
    """x with `low` at the first and `high` at the second items of the pairs, out of place."""
    first, second = pairs
    count = len(first)
    source = torch.arange(x.shape[dim], device=x.device) + 2 * count
    source[first] = torch.arange(count, device=x.device)
    source[second] = torch.arange(count, device=x.device) + count
    return torch.cat([low, high, x], dim).index_select(dim, source)


def transposed(sort_forward: Callable, sort_backward: Callable, partial: bool) -> tuple[Callable, Callable]:
    """Forward and backward of P^T v from the kernels of sorting: with <g, P^T v> = <P g, v>, their roles are exchanged.

    `partial` says that the gradient of sorted values may be missing.
    """

    def gradients(v: Tensor, sorting: list[Tensor], settings: SortSettings, needs: list[bool]) -> list[Any]:
        """The gradients of sorting, v being that of the payload; of the values there is none."""
        none: Any = None if partial else torch.zeros_like(sorting[0])
        return sort_backward([none, v], sorting, [], settings, needs)

    def forward(tensors: Sequence[Tensor], settings: SortSettings) -> tuple[list[Tensor], list[Tensor]]:
        # The payload's own numbers play no part in its gradient
        return [gradients(tensors[3], list(tensors), settings, [False, False, False, True])[3]], []

    def backward(
        grads: Sequence[Tensor],
        tensors: Sequence[Tensor],
        saved: Sequence[Tensor],
        settings: SortSettings,
        needs: Sequence[bool],
    ) -> list[Tensor | None]:
        x, lengths, steepness, v = tensors
        found: list[Any] = [None] * 4
        sorting = [x, lengths, steepness, grads[0]]
        if needs[0] or needs[2]:
            found = gradients(v, sorting, settings, [needs[0], False, needs[2], False])
        if needs[3]:
            found[3] = sort_forward(sorting, settings)[0][1]
        return found

    return forward, backward
