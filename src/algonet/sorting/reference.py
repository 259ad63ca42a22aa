"""The plain-torch truth of soft sorting, layer by layer, and of memberships by threshold: differentiable to any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.autograd import Plan
from algonet.core.identity import Signature, canonical, interned
from algonet.relax import SIGMOIDS, GumbelMax, GumbelMin, Sigmoid

from .networks import Comparators, Network

#: Of a threshold's bracket: halvings, each by an arithmetic and a geometric middle: 11 find the exponent, 53 the digits.
ROUNDS = 66
#: Chord steps from the root: each makes one more derivative exact.
CHORDS = 3


@dataclass(frozen=True, eq=False)
class SortSettings:
    """Network, sigmoid (interned), number of layers, wanted positions; `masked` says that rows have their own lengths.

    `sort_settings` gives one object for all that are alike, so caches may go by it.
    """

    network: Network
    sigmoid: Sigmoid
    steps: int | None = None
    keep: tuple[int, ...] | None = None
    masked: bool = False

    def table(self, n: int, device: torch.device | str = "cpu") -> Comparators:
        return self.network.table(n, self.steps, self.keep, device)


def sort_settings(
    network: Network,
    relax: Sigmoid,
    steps: int | None = None,
    keep: tuple[int, ...] | None = None,
    masked: bool = False,
) -> SortSettings:
    """The settings of a call: the same object for every call that is like it."""
    settings = SortSettings(interned(network), interned(relax), steps, keep, masked)
    return settings if tracing.compiling() else canonical(settings)


@dataclass(frozen=True)
class ThresholdSettings:
    """The sigmoid (interned), and whether there is a mask."""

    sigmoid: Sigmoid
    masked: bool


def empty_like(x: Tensor) -> Tensor:
    """Of the shape of x, whatever its strides."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def is_symmetric(sigmoid: Sigmoid) -> bool:
    """Whether r(-z) = 1 - r(z): kernels then evaluate one side, or that with more digits. Of a user's own nothing is known."""
    return type(sigmoid) in SIGMOIDS and not isinstance(sigmoid, GumbelMax | GumbelMin)


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


def transposed(sort: type[Plan]) -> type[Plan]:
    """The plan of P^T v from that of sorting: with <g, P^T v> = <P g, v>, the roles of its passes are exchanged."""

    class TransposedPlan(sort):
        partial = False

        @classmethod
        def saves(cls, signature: Signature) -> Sequence[tuple[Sequence[int], torch.dtype]]:
            return ()

        def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            # The payload's own numbers play no part in its gradient
            return [self.gradients(tensors[3], tensors, [False, False, False, True])[3]], []

        def backward(
            self, grads: Sequence[Any], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
        ) -> Sequence[Tensor | None]:
            found: list[Any] = [None] * 4
            sorting = [*tensors[:3], grads[0]]
            if needs[0] or needs[2]:
                found = [*self.gradients(tensors[3], sorting, [needs[0], False, needs[2], False])]
            if needs[3]:
                found[3] = super().forward(sorting)[0][1]
            return found

        def gradients(self, v: Tensor, sorting: Sequence[Tensor], needs: Sequence[bool]) -> Sequence[Any]:
            """The gradients of sorting, v being that of the payload; of the values there is none."""
            return super().backward([None if sort.partial else torch.zeros_like(sorting[0]), v], sorting, [], needs)

    return TransposedPlan


def threshold_reference(tensors: Sequence[Tensor], settings: ThresholdSettings) -> tuple[Tensor]:
    """(p,) of [x, mask, steepness, k], see `operation.THRESHOLD`. In float64 throughout, rounded at the end.

    The root is found by bisection without derivatives; a few chord steps from there carry them: each step of
    t <- t + (S(t) - k) / W with the slope W held fixed makes one more derivative of t exact.
    """
    x, mask, steepness, k = tensors
    if not x.shape[-1]:
        return (x.clone(),)
    wide, sigmoid = x.double(), settings.sigmoid
    present = mask if settings.masked else torch.ones_like(x, dtype=torch.bool)
    finite = present & wide.isfinite()
    above, below, missing = present & (wide == torch.inf), present & (wide == -torch.inf), present & wide.isnan()
    count, above_count, below_count = (t.sum(-1).double() for t in (finite, above, below))
    wanted = k - above_count
    inner = wanted.clamp(torch.zeros_like(count), count)
    interior = (inner > 0) & (inner < count)
    # In units of the sigmoid, from the k-th item on: differences to it are exact, however large the items are
    order = torch.where(finite, wide.detach(), -torch.inf).sort(-1, descending=True).values
    place = (inner.detach().ceil().long() - 1).clamp(0, x.shape[-1] - 1)
    anchor = torch.where(interior.unsqueeze(-1), order.gather(-1, place.unsqueeze(-1)), 0.0)
    z = steepness.double() * torch.where(finite, wide - anchor, 0.0)

    def tails(z: Tensor) -> Tensor:
        """r(z) for z < 0, else r(z) - 1: what is left of a membership to the nearer of 0 and 1, with all its digits."""
        # Of asymmetric sigmoids, the complement has the digits that a difference to 1 leaves
        lack = sigmoid(-z) if is_symmetric(sigmoid) else 1 - sigmoid(z)
        return torch.where(finite, torch.where(z < 0, sigmoid(z), -lack), 0.0)

    def excess(z: Tensor, k: Tensor) -> Tensor:
        """The sum of memberships less k: tails far below 1e-16 balance too."""
        return tails(z).sum(-1) + ((finite & (z >= 0)).sum(-1) - k)

    with torch.no_grad():
        low, high = (torch.where(finite, z, end) for end in (torch.inf, -torch.inf))
        low, high = low.amin(-1) - float(sigmoid.reach(1e-12)), high.amax(-1) + float(sigmoid.reach(1e-12))
        low, high = (torch.where(interior, end, 0.0).clamp(-1e300, 1e300) for end in (low, high))
        for _ in range(ROUNDS):
            for middle in (low / 2 + high / 2, _geometric(low, high)):
                over = excess(z - middle.unsqueeze(-1), inner)
                inside = (middle > low) & (middle < high)
                low = torch.where(inside & (over >= 0), middle, low)
                high = torch.where(inside & (over <= 0), middle, high)
        t = low / 2 + high / 2
    slope = torch.func.vjp(tails, (z - t.unsqueeze(-1)).detach())[1](torch.ones_like(z))[0].sum(-1)
    steep = interior & (slope > 0)
    for _ in range(CHORDS):
        t = t + torch.where(steep, excess(z - t.unsqueeze(-1), inner) / torch.where(steep, slope, 1.0), 0.0)
    z = z - t.unsqueeze(-1)
    p = torch.where(interior.unsqueeze(-1), tails(z) + (z >= 0).double(), (inner > 0).unsqueeze(-1).double())
    p = torch.where(finite, p, 0.0)
    # Infinite items take part crisply, equal ones alike
    constant = k.detach()
    share_above = (constant / above_count.clamp_min(1)).clamp(0, 1)
    share_below = ((constant - above_count - count) / below_count.clamp_min(1)).clamp(0, 1)
    p = torch.where(above, share_above.unsqueeze(-1), torch.where(below, share_below.unsqueeze(-1), p))
    nan = present & missing.any(-1, keepdim=True)
    return (torch.where(nan, torch.nan, p).to(x.dtype),)


def _geometric(low: Tensor, high: Tensor) -> Tensor:
    """The middle by exponents: 0 between numbers of different sign, the geometric mean of others."""
    tiny = 1e-300
    mean = low.abs().clamp_min(tiny).sqrt() * high.abs().clamp_min(tiny).sqrt()
    return torch.where((low < 0) & (high > 0), 0.0, torch.where(high > 0, mean, -mean))
