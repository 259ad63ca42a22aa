"""Soft sorting and what follows from it: pure functions that check their arguments, dispatch and return.

Convention of every permutation here: `values = P @ x`, so `P[..., i, j]` is the share of item j in sorted position i.
Rows and columns of P sum to 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from algonet.core.hints import hints_at_relax
from algonet.relax import DECISION, Sigmoid

from .checks import check_count, check_payload, check_room
from .methods import Method, SmoothedCDF, names, short, suggestions
from .order import order_of

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
    call, whole, user_channels = order.call, flat, 0 if flat is None else flat.shape[-1]
    if return_permutation and not call.smoothed:
        eye = torch.eye(n, dtype=order.x.dtype if flat is None else flat.dtype, device=x.device)
        eye = eye.expand(*order.x.shape, n)
        whole = eye if flat is None else torch.cat([flat, eye], -1)
    values, moved = order.sorted(whole, user_channels)
    permutation = None
    if return_permutation:
        permutation = order.rows(n) if moved is None or call.smoothed else moved[..., user_channels:]
    if hard:
        crisp = order.crisp_order()
        values = order.straight_through(torch.gather(order.x, -1, crisp), values)
        if flat is not None and moved is not None:
            moved = order.straight_through(
                flat.gather(-2, crisp.unsqueeze(-1).expand_as(flat)), moved[..., :user_channels]
            )
        if permutation is not None:
            permutation = order.straight_through(torch.nn.functional.one_hot(crisp, n), permutation)
    carried = None
    if payload is not None and moved is not None:
        carried = moved[..., :user_channels] if moved.shape[-1] > user_channels else moved
        carried = carried if call.dim is None else carried.movedim(-2, dim % x.dim())
        carried = carried.reshape(payload.shape).to(payload.dtype)
    permutation = permutation if permutation is None else permutation.to(x.dtype)
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
    _, moved = order.sorted(index.unsqueeze(-1), 0)
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
        check_count("soft_topk", k, x.shape[dim], dim)
        if return_permutation:
            check_room("soft_topk", x, x.shape[dim], k)
        return {"keep": tuple(range(k)) if mask is None else None, "warns": not hard}

    options = k, return_permutation, hard
    order = order_of("soft_topk", x, dim, largest, relax, method, mask, backend, options, check)
    call, n = order.call, order.x.shape[-1]
    index = torch.arange(n, dtype=order.x.dtype, device=x.device).expand(order.x.shape).unsqueeze(-1)
    values, moved = order.sorted(index, 0)
    assert moved is not None
    values, indices = values[..., :k], moved[..., :k, 0]
    permutation = order.rows(k) if return_permutation else None
    if hard:
        crisp = order.crisp_order()[..., :k]
        values = order.straight_through(torch.gather(order.x, -1, crisp), values)
        indices = order.straight_through(crisp, indices)
        if permutation is not None:
            permutation = order.straight_through(torch.nn.functional.one_hot(crisp, n), permutation)
    permutation = None if permutation is None else permutation.to(x.dtype)
    return TopKResult(call.restore(values, x.dtype), call.restore(indices), permutation)
