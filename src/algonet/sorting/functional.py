"""Soft sorting and what follows from it: pure functions that check their arguments, dispatch and return.

Convention of every permutation here: `values = P @ x`, so `P[..., i, j]` is the share of item j in sorted position i.
Rows and columns of P sum to 1.
"""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from algonet.core.cache import constant
from algonet.core.checks import check_integer, widened
from algonet.core.hints import hints_at_relax
from algonet.core.identity import interned
from algonet.relax import DECISION, Heaviside, Relative, Sigmoid

from .checks import check_items, check_mask, check_payload, check_room, check_sigmoid, signed_steepness
from .masks import beside, crisp_order
from .methods import Method, SmoothedCDF, names, short, suggestions
from .networks import Network, OddEven
from .operation import THRESHOLD
from .order import PlacedOrder, order_of
from .reference import ThresholdSettings, walk

#: A tensor where a payload is given.
Payload = TypeVar("Payload", bound="Tensor | None")

if TYPE_CHECKING:

    class SortResult(NamedTuple, Generic[Payload]):
        values: Tensor
        payload: Payload
        permutation: Tensor | None

else:
    # torch knows tuples with names by their only base

    class SortResult(NamedTuple):
        """`values` (*x), `payload` (*x, *trailing) or None, `permutation` (*batch, n, n) or None; all differentiable."""

        values: Tensor
        payload: Tensor | None
        permutation: Tensor | None


class TopKResult(NamedTuple):
    """`values` and `indices` with k entries along dim, `permutation` (*batch, k, n) or None. All are differentiable.

    `indices` are expected positions in x, in float32 at least.
    """

    values: Tensor
    indices: Tensor
    permutation: Tensor | None


@hints_at_relax
def soft_sort(
    x: Tensor,
    *,
    dim: int = -1,
    descending: bool = False,
    relax: Sigmoid = DECISION,
    method: Method = SmoothedCDF(),
    steps: int | None = None,
    payload: Payload = None,  # pyright: ignore[reportArgumentType]
    mask: Tensor | None = None,
    return_permutation: bool = False,
    hard: bool = False,
    backend: str = "auto",
) -> SortResult[Payload]:
    """Sort smoothly along `dim`: each item goes to a place as far as it lies between the two thresholds of that place.

    With b_k where sum_j r(steepness (x_j - b_k)) = k, item j is among the k largest to the degree
    m_k(j) = r(steepness (x_j - b_k)), and m_{p+1}(j) - m_p(j) is its share in place p from the top. In a sorting network
    (`OddEven`, `Bitonic`) a pair a, b becomes a' = alpha a + (1 - alpha) b, b' = (1 - alpha) a + alpha b instead, with
    alpha = r(steepness (b - a)), the probability that it is in order; descending (the paper's direction) r(steepness (a - b)).
    steepness -> inf gives `torch.sort`. The mixtures keep sums: `values.sum(dim) == x.sum(dim)`.

    - `payload` of shape (*x.shape, *trailing) is sorted along with x in the same pass.
    - `mask` (boolean, shape of x) is True where an item is present. The others come last, in their order and as they
      are; they get no gradient, and how many there are changes nothing for the rest.
    - `steps` < n layers of a network sort coarsely. All layers are the default.
    - `return_permutation` gives P (*batch, n, n) with values = P x (with the sorted dimension last).
    - `hard` returns the crisp sort with the gradient of the soft one (straight-through).

    Differentiable in x, payload and the steepness as often as the sigmoid is. Infinite items take part crisply, without
    a gradient; a NaN spoils its own row, with `hard` too. O(n^2) exchanges with OddEven, O(n log^2 n) with Bitonic; no
    n x n matrix unless it is asked for.

    >>> from algonet.relax import Logistic
    >>> soft_sort(torch.tensor([3.0, 1.0, 2.0]), relax=Logistic(2.0)).values
    tensor([1.3336, 2.0000, 2.6664])
    """

    def check() -> dict[str, Any]:
        if not (payload is None and not return_permutation) and not getattr(method, "payload", True):
            able = names(suggestions("argsort"))
            raise ValueError(f"soft_sort: {short(method)} sorts neither payloads nor permutations along; {able} do.")
        check_payload("soft_sort", x, payload, dim)
        if return_permutation:
            check_room("soft_sort", x, x.shape[dim], x.shape[dim])
        return {"steps": steps, "payload": payload}

    options = payload, steps, return_permutation
    order = order_of("soft_sort", x, dim, descending, relax, method, mask, backend, options, check)
    n, flat = x.shape[dim], None if payload is None else check_payload("soft_sort", x, payload, dim)
    call, whole, channels = order.call, flat, 0 if flat is None else flat.shape[-1]
    if return_permutation and not call.smoothed:
        eye = torch.eye(n, dtype=order.x.dtype if flat is None else flat.dtype, device=x.device)
        eye = eye.expand(*order.x.shape, n)
        whole = eye if flat is None else torch.cat([flat, eye], -1)
    values, moved = order.sorted(whole)
    permutation = None
    if return_permutation:
        permutation = (order.rows(n) if moved is None or call.smoothed else moved[..., channels:]).to(x.dtype)
    if hard:
        crisp = order.crisp_order()
        values = order.straight_through(torch.gather(order.x, -1, crisp), values)
        if flat is not None and moved is not None:
            moved = order.straight_through(flat.gather(-2, crisp.unsqueeze(-1).expand_as(flat)), moved[..., :channels])
        if permutation is not None:
            permutation = order.straight_through(torch.nn.functional.one_hot(crisp, n), permutation)
    carried = None
    if payload is not None and moved is not None:
        carried = moved[..., :channels]
        carried = carried if call.dim is None else carried.movedim(-2, dim % x.dim())
        carried = carried.reshape(payload.shape).to(payload.dtype)
    found: Any = SortResult(call.restore(values, x.dtype), carried, permutation)
    return found


@hints_at_relax
def soft_argsort(
    x: Tensor,
    *,
    dim: int = -1,
    descending: bool = False,
    relax: Sigmoid = DECISION,
    method: Method = SmoothedCDF(),
    mask: Tensor | None = None,
    hard: bool = False,
    backend: str = "auto",
) -> Tensor:
    """The expected index of the item in each sorted position, P (0, 1, ..., n-1): real numbers of the shape of x.

    In float32 at least: half precisions cannot count so far.

    steepness -> inf gives `torch.argsort`. Differentiable like `soft_sort`, at the cost of one payload channel.

    >>> soft_argsort(torch.tensor([30.0, 10.0, 20.0])).round(decimals=4)
    tensor([1., 2., 0.])
    """
    order = order_of("soft_argsort", x, dim, descending, relax, method, mask, backend)
    index = torch.arange(order.x.shape[-1], dtype=order.x.dtype, device=x.device).expand(order.x.shape)
    _, moved = order.sorted(index.unsqueeze(-1))
    assert moved is not None
    result = moved.squeeze(-1)
    if hard:
        result = order.straight_through(order.crisp_order(), result)
    return order.call.restore(result)


@hints_at_relax
def soft_rank(
    x: Tensor,
    *,
    dim: int = -1,
    descending: bool = False,
    relax: Sigmoid = DECISION,
    method: Method = SmoothedCDF(),
    mask: Tensor | None = None,
    hard: bool = False,
    backend: str = "auto",
) -> Tensor:
    """The expected sorted position (from 0) of each item, P^T (0, 1, ..., n-1): real numbers of the shape of x.

    In float32 at least: half precisions cannot count so far.

    steepness -> inf gives `x.argsort().argsort()`. O(n) memory, no matrix; networks pass it backwards, transposed.
    Differentiable like `soft_sort`.

    >>> soft_rank(torch.tensor([30.0, 10.0, 20.0])).round(decimals=4)
    tensor([2., 0., 1.])
    """
    order = order_of("soft_rank", x, dim, descending, relax, method, mask, backend)
    result = order.ranks()
    if hard:
        result = order.straight_through(order.crisp_order().argsort(-1), result)
    return order.call.restore(result)


@hints_at_relax
def soft_topk(
    x: Tensor,
    k: int,
    *,
    dim: int = -1,
    largest: bool = True,
    relax: Sigmoid = DECISION,
    method: Method = SmoothedCDF(),
    mask: Tensor | None = None,
    return_permutation: bool = False,
    hard: bool = False,
    backend: str = "auto",
) -> TopKResult:
    """The k largest items in descending order (smallest in ascending); networks make the exchanges that can reach them.

    steepness -> inf gives `torch.topk`. `indices` are expected positions in x, among many items that lie close a mean over
    several of them (`hard=True` gives theirs); `permutation` (*batch, k, n), when asked
    for, holds the share of every item in each of the k places. In a row whose mask leaves fewer than k items the
    absent ones follow. Differentiable like `soft_sort`.

    >>> values, indices, _ = soft_topk(torch.tensor([1.0, 7.0, 5.0, 3.0]), 2)
    >>> values, indices
    (tensor([6.9999, 5.0000]), tensor([1.0000, 2.0000]))
    """

    def check() -> dict[str, Any]:
        check_integer("soft_topk", "k", k, 0, x.shape[dim])
        if return_permutation:
            check_room("soft_topk", x, x.shape[dim], k)
        return {"keep": tuple(range(k)) if mask is None else None, "warns": not hard}

    options = k, return_permutation, hard
    order = order_of("soft_topk", x, dim, largest, relax, method, mask, backend, options, check)
    call, n = order.call, order.x.shape[-1]
    index = torch.arange(n, dtype=order.x.dtype, device=x.device).expand(order.x.shape).unsqueeze(-1)
    values, moved = order.sorted(index)
    assert moved is not None
    values, indices = values[..., :k], moved[..., :k, 0]
    permutation = order.rows(k).to(x.dtype) if return_permutation else None
    if hard:
        crisp = order.crisp_order()[..., :k]
        values = order.straight_through(torch.gather(order.x, -1, crisp), values)
        indices = order.straight_through(crisp, indices)
        if permutation is not None:
            permutation = order.straight_through(torch.nn.functional.one_hot(crisp, n), permutation)
    return TopKResult(call.restore(values, x.dtype), call.restore(indices), permutation)


@hints_at_relax
def soft_topk_mask(
    x: Tensor,
    k: int | float | Tensor,
    *,
    dim: int = -1,
    relax: Sigmoid = DECISION,
    mask: Tensor | None = None,
    largest: bool = True,
    hard: bool = False,
    backend: str = "auto",
) -> Tensor:
    """How far each item is among the k largest along `dim`: memberships in [0, 1] of the shape of x that sum to k.

    p_i = r(steepness (x_i - b)) with the threshold b for which they sum to k; for the smallest, x is negated first.
    steepness -> inf gives the indicator of `torch.topk`'s indices; tied items share what is left alike.

    - `k`: a number, or a tensor of numbers that broadcasts to the shape of x without `dim`. It need not be whole.
    - `mask` (boolean, shape of x) is True where an item is present. Others get 0; a row with m < k items sums to m.
    - `hard` returns the indicator (ties by position) with the gradient of the soft memberships (straight-through).

    With w_i = steepness r'(.): dp_i = w_i (dx_i - sum_j w_j dx_j / sum_j w_j), and dp_i / dk = w_i / sum_j w_j: in a gap
    between items the nearest on both sides share k's gradient, until all w_i underflow (a gap wider than some 200 /
    steepness in float32, 1400 / steepness in float64), from where on k gets none.
    Differentiable in x, the steepness and k as often as the sigmoid is. The sum is k to 1e-5 of itself in float32 for a
    million items, ties and any scale; infinite items take part crisply, without a gradient; a NaN spoils its own row.
    O(n) work and memory: some ten passes over x.

    >>> soft_topk_mask(torch.tensor([1.0, 7.0, 5.0, 3.0]), 2)
    tensor([9.3576e-14, 1.0000e+00, 9.9995e-01, 4.5398e-05])
    >>> soft_topk_mask(torch.tensor([2.0, 2.0, 2.0, 9.0]), 2.5)
    tensor([0.5000, 0.5000, 0.5000, 1.0000])
    """
    where = "soft_topk_mask"
    x = check_items(where, x, dim)
    check_sigmoid(where, relax)
    present = check_mask(where, x, mask)
    n, last = x.shape[dim], dim in (-1, x.dim() - 1)
    wide = widened(x if last else x.movedim(dim, -1))
    if present is not None and not last:
        present = present.movedim(dim, -1)
    wanted = _wanted(where, k, n, wide)
    if isinstance(relax, Relative):
        relax, wide = relax.absolute(wide, present)
    wide = wide if largest else -wide
    if isinstance(relax, Heaviside):
        p = _shared_crisply(wide, wanted, present)
    else:
        s = signed_steepness(where, relax, wide, 1.0)
        absent = constant((), torch.bool, x.device) if present is None else present
        settings = ThresholdSettings(interned(relax), present is not None)
        p = THRESHOLD([wide, absent, s, wanted], settings, backend)[0]
    if hard:
        crisp = _indicator(wide, wanted, present)
        p = crisp + (p - p.detach())  # NaN, where there is no order, stays
    return (p if last else p.movedim(-1, dim)).to(x.dtype)


def _wanted(where: str, k: Any, n: int, x: Tensor) -> Tensor:
    """k for each row, in float64."""
    rows = x.shape[:-1]
    if isinstance(k, Tensor):
        if k.dtype == torch.bool or k.is_complex():
            raise TypeError(f"{where}: `k` must be a tensor of numbers, got {k.dtype}.")
        if k.device != x.device:
            raise ValueError(f"{where}: `k` must be on the device of x: x is on {x.device}, k on {k.device}.")
        try:
            return k.double().expand(rows)
        except RuntimeError:
            raise ValueError(
                f"{where}: `k` must be one number or one for each row, {tuple(rows)}; got shape {tuple(k.shape)}."
            ) from None
    if isinstance(k, bool) or not isinstance(k, Real):
        raise TypeError(f"{where}: `k` must be a number or a tensor, got {k!r}.")
    if not 0 <= float(k) <= n:
        raise ValueError(f"{where}: `k` must lie between 0 and the {n} items of a row, got {k}.")
    return constant(float(k), torch.float64, x.device).expand(rows)


def _shared_crisply(x: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """The limit of infinite steepness: 1 above the threshold, and equal shares of what is left at it."""
    x, k = x.detach(), k.detach().unsqueeze(-1)
    spoiled = (x.isnan() if mask is None else x.isnan() & mask).any(-1, keepdim=True)
    present = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
    larger, equal = beside(x, present & ~x.isnan())
    p = ((k - larger) / equal).clamp(0.0, 1.0)
    p = torch.where(present, torch.where(spoiled, torch.nan, p), 0.0)
    return p.to(x.dtype)


def _indicator(x: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
    """1 for the k largest, earlier ones first among equals; a fraction for the last where k is not whole."""
    order = crisp_order(x, mask, True)
    place = torch.arange(x.shape[-1], device=x.device, dtype=torch.float64)
    shares = (k.detach().unsqueeze(-1) - place).clamp(0.0, 1.0).to(x.dtype)
    found = torch.gather(shares, -1, order.argsort(-1))
    return found if mask is None else torch.where(mask, found, 0.0)


def permutation_cross_entropy(permutation: Tensor, target: Tensor) -> Tensor:
    """- mean_i log P[i, target_i]: how surprised a soft permutation is by the right order.

    `permutation` (*batch, n, n) as `soft_sort` returns it; `target` (*batch, n), integers: target[i] is the item that
    belongs in sorted position i, as `torch.argsort` gives it; or (*batch, n, n), the shares themselves. Returns the mean
    over positions and batch; 0 for the right crisp permutation. Shares below the smallest normal number count as that,
    so that the loss stays finite. Differentiable in the permutation.

    >>> permutation_cross_entropy(torch.full((4, 4), 0.25), torch.tensor([3, 1, 0, 2]))  # log 4
    tensor(1.3863)
    """
    where = "permutation_cross_entropy"
    check_items(where, permutation, -1)
    if permutation.dim() < 2 or permutation.shape[-1] != permutation.shape[-2]:
        raise ValueError(f"{where}: `permutation` must be (*batch, n, n), got {tuple(permutation.shape)}.")
    log = widened(permutation)
    # clamp passes no gradient below its bound: an excluded share would never come back
    tiny = torch.finfo(log.dtype).tiny
    log = torch.where(log < tiny, log - log.detach() + tiny, log).log()
    if not target.is_floating_point():
        if target.shape != permutation.shape[:-1]:
            raise ValueError(
                f"{where}: `target` must be (*batch, n) = {tuple(permutation.shape[:-1])}, got {tuple(target.shape)}."
            )
        return -torch.gather(log, -1, target.long().unsqueeze(-1)).mean().to(permutation.dtype)
    if target.shape != permutation.shape:
        raise ValueError(
            f"{where}: shares in `target` must have the shape of `permutation`, {tuple(permutation.shape)}; "
            f"got {tuple(target.shape)}."
        )
    return -(target * log).sum(-1).mean().to(permutation.dtype)


@hints_at_relax
def expected_swaps(
    x: Tensor,
    *,
    dim: int = -1,
    descending: bool = False,
    relax: Sigmoid = DECISION,
    method: Network = OddEven(),
    mask: Tensor | None = None,
) -> Tensor:
    """sum over all comparators of 1 - alpha: the expected number of exchanges that sorting x takes. Shape of x without dim.

    steepness -> inf with `OddEven` gives the number of inversions (pairs in the wrong order): 0 exactly when x is sorted,
    so it penalises disorder. Differentiable in x; of half precisions it is float32, which can count further. Plain torch:
    O(n) memory per layer is kept for backward.

    >>> from algonet.relax import Logistic
    >>> expected_swaps(torch.tensor([3.0, 2.0, 1.0]), relax=Logistic(100.0))
    tensor(3.)
    """
    if not isinstance(method, Network):
        raise TypeError(f"expected_swaps: only networks exchange items: OddEven() or Bitonic(), got {method!r}.")

    order = order_of("expected_swaps", x, dim, descending, relax, method, mask, "reference")
    assert isinstance(order, PlacedOrder)
    count = order.x.new_zeros(order.x.shape[:-1])
    for exchange in walk(order.items, order.call.settings, order.steepness, order.lengths):
        count = count + (1 - exchange.alpha).sum(-1)
    return count
