"""Losses for ordering supervision: what to minimise when only the right order is known."""

from __future__ import annotations

import torch
from torch import Tensor

from algonet.core.checks import widened
from algonet.core.hints import hints_at_relax
from algonet.relax import DECISION, Sigmoid

from .checks import check_items
from .networks import Network, OddEven
from .order import PlacedOrder, order_of
from .reference import walk


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
    placed = order.x if order.placement is None else order.placement.to_places(order.x)
    count = placed.new_zeros(placed.shape[:-1])
    for exchange in walk(placed, order.call.settings, order.steepness, order.lengths):
        count = count + (1 - exchange.alpha).sum(-1)
    return count
