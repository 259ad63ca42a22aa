"""Projections onto the permutahedron by isotonic regression: which items are pooled, found once, and what follows from it.

The pools are found by the pool-adjacent-violators algorithm, one pass over each row on the CPU (rows on other devices make the
trip: a sequential scan is faster there and back than on a GPU). Given the pools, the projection is a formula in plain torch, so
derivatives of every order are right wherever the pools do not change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algonet.core import threads
from algonet.core.cache import cached

#: Stands for z - w where there is no item: below all that is, so that it is pooled with nothing present.
_ABSENT = -1e200


def project(z: Tensor, w: Tensor, entropic: bool, here: Tensor | None = None) -> Tensor:
    """The point of the permutahedron of w nearest to z, both sorted in descending order along the last dimension.

    Where `here` is given, only its first items of each row take part; the others must be finite and mean nothing. A NaN
    spoils its row.

    l2: the Euclidean projection. Entropic: z - (LSE(z) - LSE(w)) over each pool, the logarithm of the Kullback-Leibler
    projection of exp(z) onto the permutahedron of exp(w).
    """
    if here is None:
        pools = _pools(z.detach(), w.detach(), entropic)
    else:
        wide, zero = z.detach().double(), torch.zeros((), dtype=torch.float64, device=z.device)
        pools = _pools(torch.where(here, wide, _ABSENT), torch.where(here, w.detach().double(), zero), entropic)
    pooled = _pooled_logsumexp if entropic else _pooled_mean
    # z may be far larger than w: by itself, it cancels exactly where an item is alone
    found = (z - pooled(z, pools)) + pooled(w, pools)
    return torch.where((z.isnan() | w.isnan()).any(-1, keepdim=True), torch.nan, found)


def _pooled_mean(y: Tensor, pools: Tensor) -> Tensor:
    total = torch.zeros_like(y).scatter_add(-1, pools, y)
    count = torch.zeros_like(y).scatter_add(-1, pools, torch.ones_like(y))
    return torch.gather(total / count.clamp_min(1), -1, pools)


def _pooled_logsumexp(y: Tensor, pools: Tensor) -> Tensor:
    # Rows are in descending order, so a pool's largest is its first
    first = torch.full_like(y, -torch.inf).scatter_reduce(-1, pools, y.detach(), "amax")
    top = torch.gather(first, -1, pools)
    total = torch.zeros_like(y).scatter_add(-1, pools, (y - top).exp())
    return top + torch.gather(total, -1, pools).log()


@torch.library.custom_op("algonet::isotonic_pools", mutates_args=())
def _pools(z: Tensor, w: Tensor, entropic: bool) -> Tensor:
    """The number of the pool that each item is in, int64 of the shape of z."""
    rows, n = z[..., 0].numel() if z.shape[-1] else 0, z.shape[-1]
    first, second = (t.double().cpu().contiguous().numpy().reshape(rows, n) for t in (z, w))
    found = np.zeros((rows, n), np.int64)
    kernel = _compiled()
    count = max(1, min(threads.workers(), rows, rows * n // 50_000))
    bounds = [rows * i // count for i in range(count + 1)]
    threads.spread(kernel, [(first, second, entropic, found, bounds[i], bounds[i + 1]) for i in range(count)])
    return torch.from_numpy(found).reshape(z.shape).to(z.device)


@_pools.register_fake
def _(z: Tensor, w: Tensor, entropic: bool) -> Tensor:
    return torch.empty_like(z, dtype=torch.int64)


def _map_pools(info: Any, in_dims: tuple, z: Tensor, w: Tensor, entropic: bool):
    z, w = (
        t.movedim(d, 0) if d is not None else t.expand(info.batch_size, *t.shape)
        for t, d in zip((z, w), in_dims, strict=False)
    )
    return _pools(z, w, entropic), 0


_pools.register_vmap(_map_pools)


def _pool_rows(z, w, entropic, found, begin, end):
    """Pool adjacent violators: v must descend, and neighbours that ascend share one value."""
    n = z.shape[1]
    starts = np.empty(n + 1, np.int64)
    values = np.empty(n + 1)
    sums, others = np.empty(n + 1), np.empty(n + 1)  # l2: sum of z - w and count; entropic: LSE of z and of w
    for row in range(begin, end):
        top = -1
        for i in range(n):
            top += 1
            starts[top] = i
            values[top] = z[row, i] - w[row, i]
            sums[top], others[top] = (z[row, i], w[row, i]) if entropic else (values[top], 1.0)
            while top > 0 and values[top - 1] <= values[top]:
                if entropic:
                    sums[top - 1] = np.logaddexp(sums[top - 1], sums[top])
                    others[top - 1] = np.logaddexp(others[top - 1], others[top])
                    values[top - 1] = sums[top - 1] - others[top - 1]
                else:
                    sums[top - 1] += sums[top]
                    others[top - 1] += others[top]
                    values[top - 1] = sums[top - 1] / others[top - 1]
                top -= 1
        starts[top + 1] = n
        for pool in range(top + 1):
            for i in range(starts[pool], starts[pool + 1]):
                found[row, i] = pool


@cached
def _compiled() -> Callable[..., None]:
    """Compiled where Numba is installed; the same function in Python else."""
    try:
        from algonet.core.codegen.jit import njit
    except ImportError:
        return _pool_rows
    return njit(nogil=True, cache=True)(_pool_rows)
