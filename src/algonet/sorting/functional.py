"""Soft sorting and what follows from it: pure functions that check their arguments, dispatch and return.

Convention of every permutation here: `values = P @ x`, so `P[..., i, j]` is the share of item j in sorted position i.
Rows and columns of P sum to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from algonet.core.hints import hints_at_relax
from algonet.core.identity import PLANS, signature
from algonet.relax import DECISION, Sigmoid

from .call import SortCall
from .checks import check_count, check_items, check_payload, check_room, warn_if_blurred
from .methods import Method, SmoothedCDF, chosen, names, short, suggestions
from .networks import Network
from .operation import SORT

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
    network: Network | None = None,
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
    method = chosen("soft_sort", method, network)
    key = steepness = None
    if not (return_permutation or hard or mask is not None):
        steepness = getattr(relax, "steepness", None)
        key = signature("soft_sort", x, payload, steepness, dim, descending, steps, backend, relax, method)
        ready = None if key is None else PLANS.find(key)
        if ready is not None:
            return ready(x, payload, steepness)
    x = check_items("soft_sort", x, dim)
    if not (payload is None and not return_permutation) and not getattr(method, "payload", True):
        able = names(suggestions("argsort"))
        raise ValueError(f"soft_sort: {short(method)} sorts neither payloads nor permutations along; {able} do.")
    flat = check_payload("soft_sort", x, payload, dim)
    n = x.shape[dim]
    extra = [] if flat is None else [flat]
    smoothed = isinstance(method, SmoothedCDF)
    if return_permutation:
        check_room("soft_sort", x, n, n)
    if return_permutation and not smoothed:
        eye = torch.eye(n, dtype=x.dtype if flat is None else flat.dtype, device=x.device)
        extra.append(eye.expand(*x.movedim(dim, -1).shape, n))
    whole = torch.cat(extra, -1) if len(extra) > 1 else extra[0] if extra else None
    user_channels = 0 if flat is None else flat.shape[-1]
    call = SortCall("soft_sort", x, dim, descending, relax, method, steps, mask, None, backend, flat)
    if key is not None and isinstance(method, Network) and call.x is x and flat is payload:
        ready = _ready(call, payload, steepness)
        if ready is not None:
            PLANS.put(key, ready)
    values, moved = call.sort(whole, user_channels)
    if hard:
        order = call.crisp_order()
        values = _straight_through(call, torch.gather(call.x, -1, order), values)
        if whole is not None and moved is not None:
            moved = _straight_through(call, torch.gather(whole, -2, order.unsqueeze(-1).expand_as(whole)), moved)
    permutation = None
    if return_permutation and moved is not None and not smoothed:
        permutation = moved[..., user_channels:]
    if return_permutation and smoothed:
        permutation = call.rows(n)
        if hard:
            crisp = torch.nn.functional.one_hot(call.crisp_order(), n).to(permutation.dtype)
            permutation = _straight_through(call, crisp, permutation)
    carried = None
    if payload is not None and moved is not None:
        carried = moved[..., :user_channels] if moved.shape[-1] > user_channels else moved
        carried = carried if call.dim is None else carried.movedim(-2, dim % x.dim())
        carried = carried.reshape(payload.shape).to(payload.dtype)
    found: Any = SortResult(call.restore(values), carried, None if permutation is None else permutation.to(x.dtype))
    return found


def _ready(call: SortCall, payload: Tensor | None, given: Any) -> Callable[..., SortResult[Any]] | None:
    """What runs further calls like this one; `None` where their tensors need more than the kernel."""
    learned = isinstance(given, Tensor)
    if learned and (given.dim() or given.dtype != call.x.dtype or given.device != call.x.device):
        return None
    if payload is not None and payload.dtype != call.x.dtype:
        return None
    lengths, fixed, descending, settings = call.lengths, call.steepness, call.descending, call.settings
    run = SORT.bind(call.tensors(call.x, payload), settings, call.backend)

    def ready(x: Tensor, payload: Tensor | None, given: Any) -> SortResult:
        steepness = fixed if not learned else -given if descending else given
        if payload is None:
            return SortResult(run((x, lengths, steepness))[0], None, None)
        values, moved = run((x, lengths, steepness, payload))
        return SortResult(values, moved, None)

    return ready


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
    network: Network | None = None,
) -> Tensor:
    """The expected index of the item in each sorted position, P (0, 1, ..., n-1): real numbers of the shape of x.

    In float32 at least: half precisions cannot count so far.

    steepness -> inf gives `torch.argsort`. Differentiable like `soft_sort`, at the cost of one payload channel.

    >>> soft_argsort(torch.tensor([30.0, 10.0, 20.0])).round(decimals=4)
    tensor([1., 2., 0.])
    """
    method = chosen("soft_argsort", method, network)
    x = check_items("soft_argsort", x, dim)
    call = SortCall("soft_argsort", x, dim, descending, relax, method, None, mask, None, backend)
    index = torch.arange(call.x.shape[-1], dtype=call.x.dtype, device=x.device).expand(call.x.shape)
    _, moved = call.sort(index.unsqueeze(-1), 0)
    assert moved is not None
    result = moved.squeeze(-1)
    if hard:
        result = _straight_through(call, call.crisp_order().to(result.dtype), result)
    return call.restore_positions(result)


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
    network: Network | None = None,
) -> Tensor:
    """The expected sorted position (from 0) of each item, P^T (0, 1, ..., n-1): real numbers of the shape of x.

    In float32 at least: half precisions cannot count so far.

    steepness -> inf gives `x.argsort().argsort()`. O(n) memory, no matrix; networks pass it backwards, transposed.
    Differentiable like `soft_sort`.

    >>> soft_rank(torch.tensor([30.0, 10.0, 20.0])).round(decimals=4)
    tensor([2., 0., 1.])
    """
    method = chosen("soft_rank", method, network)
    x = check_items("soft_rank", x, dim)
    call = SortCall("soft_rank", x, dim, descending, relax, method, None, mask, None, backend)
    warn_if_blurred("soft_rank", x, dim, relax, method)
    result = call.ranks()
    if hard:
        result = _straight_through(call, call.crisp_order().argsort(-1).to(result.dtype), result)
    return call.restore_positions(result)


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
    network: Network | None = None,
) -> TopKResult:
    """The k largest items in descending order (smallest in ascending); networks make the exchanges that can reach them.

    steepness -> inf gives `torch.topk`. `indices` are expected positions in x; `permutation` (*batch, k, n), when asked
    for, holds the share of every item in each of the k places. In a row whose mask leaves fewer than k items the
    absent ones follow. Differentiable like `soft_sort`.

    >>> values, indices, _ = soft_topk(torch.tensor([1.0, 7.0, 5.0, 3.0]), 2)
    >>> values, indices
    (tensor([6.9999, 5.0000]), tensor([1.0000, 2.0000]))
    """
    method = chosen("soft_topk", method, network)
    x = check_items("soft_topk", x, dim)
    check_count("soft_topk", k, x.shape[dim], dim)
    wanted = tuple(range(k)) if mask is None else None
    call = SortCall("soft_topk", x, dim, largest, relax, method, None, mask, wanted, backend)
    if not hard:
        warn_if_blurred("soft_topk", x, dim, relax, method)
    n = call.x.shape[-1]
    index = torch.arange(n, dtype=call.x.dtype, device=x.device).expand(call.x.shape).unsqueeze(-1)
    values, moved = call.sort(index, 0)
    assert moved is not None
    values, indices, permutation = values[..., :k], moved[..., :k, 0], None
    if return_permutation:
        check_room("soft_topk", x, n, k)
        permutation = call.rows(k)
    if hard:
        order = call.crisp_order()[..., :k]
        values = _straight_through(call, torch.gather(call.x, -1, order), values)
        indices = _straight_through(call, order.to(indices.dtype), indices)
        if permutation is not None:
            crisp = torch.nn.functional.one_hot(order, n).to(permutation.dtype)
            permutation = _straight_through(call, crisp, permutation)
    permutation = None if permutation is None else permutation.to(x.dtype)
    return TopKResult(call.restore(values), call.restore_positions(indices), permutation)


def _straight_through(call: SortCall, crisp: Tensor, soft: Tensor) -> Tensor:
    """The crisp values with the gradient of the soft ones, and their NaN in rows where a NaN leaves no order."""
    spoiled = (call.x.isnan() if call.mask is None else call.x.isnan() & call.mask).any(-1)
    spoiled = spoiled.reshape(*spoiled.shape, *[1] * (soft.dim() - spoiled.dim()))
    change = torch.where(soft.isfinite(), soft - soft.detach(), 0.0)
    return torch.where(spoiled & soft.isnan(), soft, crisp.detach() + change)
