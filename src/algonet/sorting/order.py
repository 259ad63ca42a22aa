"""A call of soft sorting after its checks: what the public functions of the domain find out once, and the soft order itself.

`SortCall` is what is known about calls that are alike; with the items of one of them it makes an `Order`, which answers: sorted
values and payloads, rows of the permutation, ranks. `SmoothedOrder` does so for `SmoothedCDF`, `PlacedOrder` for all others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from algonet.core import tracing
from algonet.core.backends import check_backend
from algonet.core.cache import constant
from algonet.core.identity import PLANS, interned, signature
from algonet.core.operation import Operation
from algonet.relax import Heaviside, Logistic, Relative, Sigmoid

from .checks import check_items, check_mask, check_options, check_room, signed_steepness, warn_if_blurred
from .counts import CountSettings, reach
from .masks import Placement, crisp_order, occupied, place
from .methods import Method, Pairwise, Permutahedron, SmoothedCDF, SoftmaxMethod, short
from .networks import Network, OddEven
from .operation import COUNTS, QUANTILES, SORT, TRANSPOSED
from .pairwise import pair_counts
from .reference import sort_settings

#: The question that a function asks a method, where it is not its name.
_TASKS = {"expected_swaps": "sort", "topk_cross_entropy": "topk"}
#: How far rows spread, in units of the sigmoid and for each item, before gaps are cut out.
SPREAD = 16.0


class SortCall:
    """Calls that differ in the numbers of their tensors alone, checked: the sorted dimension last, half precision widened.

    Of one that is `kept` for later calls, the operations are looked up once. `warns`: whether the method may
    be too soft for its items.
    """

    lasting = False

    def __init__(
        self,
        name: str,
        x: Tensor,
        dim: int,
        descending: bool,
        relax: Sigmoid,
        method: Method,
        mask: Tensor | None,
        backend: str,
        *,
        steps: int | None = None,
        keep: tuple[int, ...] | None = None,
        payload: Tensor | None = None,
        levels: Sequence[float] = (),
        warns: bool = True,
    ):
        check_options(name, relax, method, steps, _TASKS.get(name, name.removeprefix("soft_")))
        check_backend(name, backend)
        check_room(name, x, x.shape[dim], x.shape[dim] if isinstance(method, SoftmaxMethod) else 1)
        self.name, self.backend, self.descending, self.method, self.steps = name, backend, descending, method, steps
        self.dim, self.dtype, n = None if dim in (-1, x.dim() - 1) else dim, x.dtype, x.shape[dim]
        # A payload in float64 would be rounded on its way
        wide = payload is not None and payload.dtype == torch.float64
        self.wide = torch.float64 if wide else torch.promote_types(x.dtype, torch.float32)
        self.smoothed, self.network = isinstance(method, SmoothedCDF), isinstance(method, Network)
        self.levels, self.warns = levels, warns and isinstance(method, (OddEven, Permutahedron))
        if isinstance(relax, Relative) and not isinstance(method, (SmoothedCDF, Pairwise)):
            raise ValueError(
                f"{name}: a relative steepness is for SmoothedCDF() and Pairwise(), not for {short(method)}."
            )
        #: The places that are wanted: of networks all are returned.
        self.first, self.last = (keep[0], keep[-1] + 1) if keep and self.smoothed else (0, n)
        self.settings: Any = None
        if self.smoothed:
            self.looks = tracing.readable(x) and not x.is_meta
            sigmoid = relax.of if isinstance(relax, Relative) else relax
            self.crisp = isinstance(sigmoid, Heaviside)  # has no reach; only rows with a NaN are not crisp
            precise = self.wide == torch.float64
            self.settings = CountSettings(interned(Logistic() if self.crisp else sigmoid), precise)
            #: The span of a row from which on gaps between items are looked for.
            self.span = torch.inf if n < 2 else SPREAD * n if n >= 64 else 1e6
        elif isinstance(method, Network):
            keep = None if keep is None or len(keep) == n else keep
            self.settings = sort_settings(method, relax, steps, keep, mask is not None)
        elif backend not in ("auto", "reference") and not isinstance(method, Pairwise):
            raise ValueError(f'{name}: {short(method)} is plain torch and has no kernels; use backend="auto".')
        signed_steepness(name, relax, x, 1.0)  # or it is refused
        #: The steepness of the last call, where it was a number, with its sign as a tensor.
        self.steepness: tuple[float, Tensor] | None = None
        self.no_lengths = constant((), torch.int32, x.device)
        self._bound: dict[Any, Any] = {}

    def kept(self, key: object) -> SortCall:
        """Itself, under this signature from now on, if there is one; methods with tensors of their own are not kept."""
        if key is not None and (self.smoothed or self.network):
            self.lasting = True
            PLANS.put(key, self)
        return self

    def run(self, operation: Operation[Any], tensors: Sequence[Tensor], way: object = None) -> Sequence[Tensor]:
        """The outputs of an operation. `way` tells apart tensors that differ in layout though the calls are alike."""
        found = self._bound.get((operation, way))
        if found is None:
            found = operation.bind(tensors, self.settings, self.backend)
            if self.lasting:
                self._bound[operation, way] = found
        return found(tensors)

    def restore(self, found: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """With the sorted dimension where x has it. Positions stay in float32 at least: half precisions cannot count so far."""
        found = found if self.dim is None else found.movedim(-1, self.dim)
        return found if dtype is None else found.to(dtype)


def order_of(
    name: str, x: Tensor, dim: int, descending: bool, relax: Sigmoid, method: Any, mask: Tensor | None, backend: str,
    options: tuple = (), check: Callable[[], dict[str, Any]] = dict, known: bool = True,
) -> SmoothedOrder | PlacedOrder:  # fmt: skip
    """The soft order of the items x, as the user gave them, by a `SortCall` that was made before or is made now.

    `check` looks at all other `options` and gives those of the `SortCall`; `known`: whether they say all.
    """
    steepness = getattr(relax, "steepness", None)
    steepness = steepness if isinstance(steepness, Tensor) else None
    key = signature(name, x, mask, steepness, dim, descending, backend, *options, relax, method) if known else None
    call = None if key is None else PLANS.find(key)
    if call is None:
        check_items(name, x, dim)
        call = SortCall(name, x, dim, descending, relax, method, mask, backend, **check()).kept(key)
    mask = mask if mask is None else check_mask(name, x, mask)
    if call.dim is not None:
        x, mask = x.movedim(call.dim, -1), mask if mask is None else mask.movedim(call.dim, -1)
    if call.warns:
        warn_if_blurred(call.name, x, relax, method, call.steps)
    x = x if x.dtype == call.wide else x.to(call.wide)
    return (SmoothedOrder if call.smoothed else PlacedOrder)(call, x, mask, relax)


class Order:
    """The soft order of the items x (*batch, n): what both kinds share."""

    call: SortCall
    x: Tensor
    mask: Tensor | None

    def crisp_order(self) -> Tensor:
        """The indices of a stable crisp sort, absent items last."""
        return crisp_order(self.x, self.mask, self.call.descending)

    def straight_through(self, crisp: Tensor, soft: Tensor) -> Tensor:
        """The crisp values with the gradient of the soft ones, and their NaN in rows where a NaN leaves no order."""
        spoiled = (self.x.isnan() if self.mask is None else self.x.isnan() & self.mask).any(-1)
        spoiled = spoiled.reshape(*spoiled.shape, *[1] * (soft.dim() - spoiled.dim()))
        change = torch.where(soft.isfinite(), soft - soft.detach(), 0.0)
        return torch.where(spoiled & soft.isnan(), soft, crisp.detach().to(soft.dtype) + change)


class SmoothedOrder(Order):
    """Order by `SmoothedCDF`, from the thresholds of smooth top-k memberships.

    With z = -steepness x and thresholds y_k, sum_j r(y_k - z_j) = k, item j is among the k largest to the degree
    m_k(j) = r(y_k - z_j), and P_p = m_{p+1} - m_p is place p in descending order. README.md has the derivation.

    Items that are present and finite are `soft`, all others crisp; `lengths`: how many are soft in each row, `before`: how
    many come before them. `soft` is `None` where all are.
    """

    soft: Tensor | None = None
    #: The items without gaps, and what each place has lost to them; `None` where there are none worth it.
    cut: tuple[Tensor, Tensor] | None = None

    def __init__(self, call: SortCall, x: Tensor, mask: Tensor | None, relax: Sigmoid):
        self.call, self.x, self.mask, scaled = call, x, mask, x
        if isinstance(relax, Relative):
            relax, scaled = relax.absolute(x, mask)
        steepness: Any = relax.steepness
        if isinstance(steepness, Tensor):
            steepness = steepness.reshape(()).to(x.device, torch.float64)
        if mask is None and call.looks and not call.crisp:
            self.z = scaled.double() * -steepness
            if not x.numel():
                return
            low, high = torch.aminmax(self.z.detach(), dim=-1)
            if float((high - low).max()) < call.span:
                return
            if bool(x.isfinite().all()):
                self._cut_gaps()
                return
        present = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
        first = (torch.inf if call.descending else -torch.inf) == x
        self.before = (first & present).sum(-1, keepdim=True)
        # NaN is soft, and spoils its row
        self.soft = present & (x.isnan() if call.crisp else ~x.isinf())
        self.lengths = self.soft.sum(-1, keepdim=True)
        self.z = torch.where(self.soft, scaled, 0.0).double() * -steepness

    def _cut_gaps(self) -> None:
        """Cuts gaps between neighbours down to what still separates them: a grid would be mostly empty there."""
        z, settings = self.z, self.call.settings
        ordered, order = z.detach().sort(-1)
        gaps = ordered.diff(dim=-1)
        kept = gaps.clamp_max(2 * reach(settings.sigmoid, 1e-16 if settings.precise else 1e-10))
        # The same cut out of x: what lies beyond a gap must not drown what lies before it in sums
        items = self.x.detach().double().gather(-1, order)
        near = items.diff(dim=-1) * torch.where(kept < gaps, kept / gaps, 1.0)
        near, z_near = (torch.nn.functional.pad(t.cumsum(-1), (1, 0)) for t in (near, kept))
        offset = items - near
        self.cut = torch.zeros_like(near).scatter(-1, order, near), offset if self.call.descending else offset.flip(-1)
        # The gradient is z's own
        self.z = torch.zeros_like(ordered).scatter(-1, order, z_near) + (z - z.detach())

    def edges(self, first: int, last: int, counts: Sequence[float] | None = None) -> Tensor:
        """Thresholds (*batch, last - first + 1) of places first ... last - 1: place p lies between edge p and the next.

        y with sum_j r(y - z_j) = k over soft items, k the places before an edge as they count from the largest; or `counts`.
        """
        one = torch.ones((), dtype=torch.float64, device=self.x.device)
        weights = one.expand(self.x.shape) if self.soft is None else self.soft.double()
        if counts is not None:
            k = torch.tensor(counts, dtype=torch.float64, device=self.x.device)
        else:
            k = torch.arange(first, last + 1, dtype=torch.float64, device=self.x.device)
            if self.soft is not None:
                k = k - self.before
                k = k if self.call.descending else self.lengths - k
            elif not self.call.descending:
                k = self.x.shape[-1] - k
        k = k.expand(*self.x.shape[:-1], k.shape[-1])
        return self.call.run(QUANTILES, (self.z, weights, k), (self.soft is None, self.cut is None, k.shape[-1]))[0]

    def log_members(self, edges: Tensor, z: Tensor) -> Tensor:
        """log r(edges - z), (*batch, m, n), without underflow."""
        return self.call.settings.sigmoid.log(edges.clamp(-1e300, 1e300).unsqueeze(-1) - z.unsqueeze(-2))

    def sorted(self, payload: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(values, payload) in sorted order, absent items behind."""
        call, x, first, last = self.call, self.x, self.call.first, self.call.last
        x = x if self.soft is None else torch.where(self.soft, x, 0.0)
        # Measured from their mean, items lose no digits in sums
        wide = x.double() if self.cut is None else self.cut[0] + (x - x.detach()).double()
        centre = wide.detach().mean(-1, keepdim=True) if x.shape[-1] else wide.sum(-1, keepdim=True)
        whole = (wide - centre).unsqueeze(-1)
        whole = whole if payload is None else torch.cat([whole, payload.to(x.dtype).double()], -1)
        if self.soft is not None:
            whole = torch.where(self.soft.unsqueeze(-1), whole, 0.0)
        sums = call.run(COUNTS, (self.edges(first, last), self.z, whole), (self.soft is None, self.cut is None))[0]
        moved = sums.diff(dim=-2) if call.descending else -sums.diff(dim=-2)
        values = moved[..., 0] + (centre if self.cut is None else centre + self.cut[1][..., first:last])
        values, sent = values.to(x.dtype), None if payload is None else moved[..., 1:].to(x.dtype)
        if self.soft is not None:
            inside, order = self._inside(first, last), self.crisp_order()[..., first:last]
            fixed = torch.where(self.mask, self.x, self.x.detach()) if self.mask is not None else self.x
            fixed = torch.where(fixed.isinf(), fixed.detach(), fixed)
            values = torch.where(inside, values, fixed.gather(-1, order))
            if payload is not None and sent is not None:
                payload = payload.to(x.dtype)
                if self.mask is not None:
                    payload = torch.where(self.mask.unsqueeze(-1), payload, payload.detach())
                crisp = payload.gather(-2, order.unsqueeze(-1).expand(*order.shape, payload.shape[-1]))
                sent = torch.where(inside.unsqueeze(-1), sent, crisp)
        return values, sent

    def _inside(self, first: int, last: int) -> Tensor:
        place = torch.arange(first, last, device=self.x.device) - self.before
        return (place >= 0) & (place < self.lengths)

    def rows(self, count: int) -> Tensor:
        """The first rows of P, (*batch, count, n)."""
        # A difference of infinities, of an edge and an item, is decided by the edge
        edges = self.edges(0, count).unsqueeze(-1)
        members = self.call.settings.sigmoid(edges.clamp(-1e300, 1e300) - self.z.unsqueeze(-2))
        p = members.diff(dim=-2) if self.call.descending else -members.diff(dim=-2)
        p = p.to(self.x.dtype)
        if self.soft is None:
            return p
        # Not one_hot, which `vmap` does not take
        crisp = self.crisp_order()[..., :count].unsqueeze(-1) == torch.arange(p.shape[-1], device=p.device)
        p = torch.where(self.soft.unsqueeze(-2), p, 0.0)
        return torch.where(self._inside(0, count).unsqueeze(-1), p, crisp.to(p.dtype))

    def ranks(self) -> Tensor:
        """The expected place of each item: it comes after the k first to the degree 1 - m_k."""
        n, descending = self.x.shape[-1], self.call.descending
        if n < 2:
            return (self.z * 0).to(self.x.dtype) if self.soft is None else self._crisp_ranks(self.z * 0)
        # The k-th thresholds between items; from the other end where descending
        y = -self.edges(1, n - 1) if self.soft is None else -self.edges(0, n)
        there = ~y.isinf() if self.soft is not None else None
        weights = torch.ones_like(y) if there is None else there.double()
        y = y if there is None else torch.where(there, y, 0.0)
        way = self.soft is None, self.cut is None
        found = self.call.run(COUNTS, (-self.z, y, weights.unsqueeze(-1)), way)[0].squeeze(-1)
        if self.soft is None:
            return (n - 1 - found if descending else found).to(self.x.dtype)
        found = self.lengths - 1 - found if descending else found
        return self._crisp_ranks(found + self.before)

    def _crisp_ranks(self, found: Tensor) -> Tensor:
        """Ranks of soft items; infinite ones share their places, and absent ones follow in their order."""
        assert self.soft is not None
        place = self.crisp_order().argsort(-1).double()
        present = torch.ones_like(self.soft) if self.mask is None else self.mask
        for end in (torch.inf, -torch.inf):
            tied = present & (self.x == end)
            count = tied.sum(-1, keepdim=True)
            start = self.before + self.lengths if (end > 0) != self.call.descending else 0
            place = torch.where(tied & ((self.lengths > 0) | (count > 1)), start + (count - 1) / 2.0, place)
        return torch.where(self.soft, found, place).to(self.x.dtype)


class PlacedOrder(Order):
    """Order by a sorting network, a softmax, a projection or by pairs; present items are put side by side first."""

    def __init__(self, call: SortCall, x: Tensor, mask: Tensor | None, relax: Sigmoid):
        self.call, self.x, self.mask, self.relax = call, x, mask, relax
        aligned = mask is not None and isinstance(call.method, Network) and call.method.right_aligned
        self.placement: Placement | None = None if mask is None else place(mask, aligned)
        #: In places, and how many of them hold an item in each row; `None` for all.
        self.items = x if self.placement is None else self.placement.to_places(x)
        self.counts = None if self.placement is None else self.placement.lengths
        self.lengths = call.no_lengths if self.counts is None else self.counts
        value: Any = relax.steepness
        known = call.steepness
        if type(value) is not float or known is None or value != known[0]:
            sign = -1.0 if call.descending and call.network else 1.0
            known = value, signed_steepness(call.name, relax, x, sign)
            if type(value) is float:
                call.steepness = known
        self.steepness: Tensor = known[1]

    def sorted(self, payload: Tensor | None) -> tuple[Tensor, Tensor | None]:
        x, method, placed = self.items, self.call.method, self.placement
        payload = None if payload is None else payload.to(x.dtype)
        sent = payload if payload is None or placed is None else placed.to_places(payload)
        if self.call.network:
            given = x, self.lengths, self.steepness
            found = self.call.run(SORT, given if sent is None else (*given, sent))
        elif isinstance(method, Permutahedron):
            found = [method.sorted(x, self.call.descending, self.counts)]
        else:
            p = self._permutation()
            found = [(p @ x.unsqueeze(-1)).squeeze(-1), *([] if sent is None else [p @ sent])]
        values, moved = found if sent is not None else (found[0], None)
        if placed is not None:
            values = placed.from_places(values, self.x)
            moved = None if moved is None or payload is None else placed.from_places(moved, payload)
        return values, moved

    def rows(self, count: int) -> Tensor:
        eye = torch.eye(self.x.shape[-1], count, dtype=self.x.dtype, device=self.x.device)
        return self.apply_transposed(eye.expand(*self.x.shape, count)).transpose(-1, -2)

    def ranks(self) -> Tensor:
        method = self.call.method
        if isinstance(method, Pairwise):
            return self._pairwise(self._ascending(self.x))
        if isinstance(method, Permutahedron):
            ranks = method.ranks(self._ascending(self.items), self.counts)
            return ranks if self.placement is None else self.placement.items_from_places(ranks)
        positions = torch.arange(self.x.shape[-1], dtype=self.x.dtype, device=self.x.device).expand(self.x.shape)
        return self.apply_transposed(positions.unsqueeze(-1)).squeeze(-1)

    def apply_transposed(self, v: Tensor) -> Tensor:
        """P^T v for v (*batch, n, c) in sorted order."""
        placed = self.placement
        v = v if placed is None else placed.sorted_to_places(v)
        if self.call.network:
            found = self.call.run(TRANSPOSED, (self.items, self.lengths, self.steepness, v), v.shape[-1])[0]
        else:
            found = self._permutation().transpose(-1, -2) @ v
        return found if placed is None else placed.items_from_places(found)

    def _ascending(self, x: Tensor) -> Tensor:
        """Descending order is ascending order of what is negated."""
        return -x if self.call.descending else x

    def _permutation(self) -> Tensor:
        assert isinstance(self.call.method, SoftmaxMethod)
        x = self._ascending(self.items)
        if isinstance(self.relax, Heaviside):
            order = torch.where(occupied(x, self.counts), x, torch.inf).argsort(dim=-1, stable=True)
            return torch.nn.functional.one_hot(order, x.shape[-1]).to(x.dtype)
        return self.call.method.permutation(x, self.steepness, self.counts)

    def _pairwise(self, x: Tensor) -> Tensor:
        relax, x = self.relax.absolute(x, self.mask) if isinstance(self.relax, Relative) else (self.relax, x)
        if self.mask is None:
            return pair_counts(x, torch.ones_like(x), relax, self.steepness, self.call.backend)
        present = torch.where(self.mask, x, 0.0)
        counts = pair_counts(present, self.mask.to(x.dtype), relax, self.steepness, self.call.backend)
        absent = self.mask.sum(-1, keepdim=True) + (~self.mask).long().cumsum(-1) - 1
        return torch.where(self.mask, counts, absent.to(counts.dtype))
