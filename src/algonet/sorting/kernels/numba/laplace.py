"""Soft counts of the Laplace sigmoid on the CPU: sort, then a recurrence from either end; O(n log n), float64 inside.

With sorted items and e_i = exp(-s (x_{i+1} - x_i)), A_{i+1} = (A_i + w_i) e_i sums the exponentials of all before, and B those
of all behind: count_i = sum_{j < i} w_j + (B_i - A_i) / 2. Its gradient is made of the same two sums, of weights and of the
incoming gradient: with near = A + B, grad_x_i = s / 2 (g_i near_i(w) - w_i near_i(g)).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algonet.core.autograd import plan_from
from algonet.core.codegen.jit import njit

from .source import arrays, spread_rows

_OPTIONS = {"error_model": "numpy", "nogil": True, "cache": True}


def soft_laplace_count_forward(tensors: Sequence[Tensor], settings: object) -> tuple[list[Tensor], list[Tensor]]:
    x, weights, steepness = tensors
    found = torch.empty_like(x, memory_format=torch.contiguous_format)
    items, w, out = arrays((x, weights, found))
    order = np.argsort(items, -1)
    falls, near = np.empty(items.shape), np.empty(items.shape)
    spread_rows(counts, items.shape, (items, w, order, float(steepness), falls, near, out))
    return [found], [torch.from_numpy(part).reshape(x.shape) for part in (order, falls, near)]


def soft_laplace_count_backward(
    grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], settings: object, needs: Sequence[bool]
) -> list[Any]:
    x, weights, steepness = tensors
    by_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    items, w, g, out = arrays((x, weights, grads[0], by_x))
    # Compiled graphs save nothing
    order, falls, near = arrays(saved or soft_laplace_count_forward(tensors, settings)[1])
    by_s = np.zeros(items.shape[0])
    given = items, w, g, order, falls, near, float(steepness), bool(needs[2]), out, by_s
    spread_rows(slopes, items.shape, given)
    grad_s = torch.as_tensor(by_s.sum(), dtype=steepness.dtype) if needs[2] else None
    return [by_x, torch.zeros_like(weights) if needs[1] else None, grad_s]


@njit(**_OPTIONS)
def counts(begin, end, x, w, order, s, falls, near, out):
    """Rows begin..end; `falls` are the e_i and `near` the A_i + B_i, in sorted order, 0 at infinite items."""
    n = x.shape[1]
    for row in range(begin, end):
        if n and np.isnan(x[row, order[row, n - 1]]):
            # It comes last, and spoils its row
            near[row], falls[row], out[row] = np.nan, np.nan, np.nan
            continue
        first, last = 0, n
        low, high, total = 0.0, 0.0, 0.0
        while first < n and x[row, order[row, first]] == -np.inf:
            low += w[row, order[row, first]]
            first += 1
        while last > first and x[row, order[row, last - 1]] == np.inf:
            last -= 1
            high += w[row, order[row, last]]
        # Infinite items are crisp: equal ones tie, so that each has half of the others
        for i in range(first):
            k = order[row, i]
            out[row, k], near[row, i], falls[row, i] = (low - w[row, k]) / 2, 0.0, 0.0
        for i in range(first, last - 1):
            gap = np.float64(x[row, order[row, i + 1]]) - np.float64(x[row, order[row, i]])
            falls[row, i] = np.exp(-s * gap)
        if last > first:
            falls[row, last - 1] = 0.0
        total, before = low, 0.0
        for i in range(first, last):
            k = order[row, i]
            near[row, i] = before
            out[row, k] = total - 0.5 * before
            total += w[row, k]
            before = (before + w[row, k]) * falls[row, i]
        behind = 0.0
        for back in range(last - first):
            i = last - 1 - back
            k = order[row, i]
            behind = behind * falls[row, i]
            near[row, i] += behind
            out[row, k] += 0.5 * behind
            behind += w[row, k]
        for i in range(last, n):
            k = order[row, i]
            out[row, k], near[row, i], falls[row, i] = total + (high - w[row, k]) / 2, 0.0, 0.0


@njit(**_OPTIONS)
def slopes(begin, end, x, w, g, order, falls, near, s, of_steepness, grad_x, grad_s):
    """Gradients by items, and of each row by steepness."""
    n = x.shape[1]
    pull = np.empty(n)
    for row in range(begin, end):
        if n and np.isnan(x[row, order[row, n - 1]]):
            grad_x[row] = 0.0
            continue
        # A chain ends where the next item is infinite, or there is none: its e is 0
        before = 0.0
        for i in range(n):
            k = order[row, i]
            here = np.float64(g[row, k])
            pull[k] = 0.5 * (here * near[row, i] - w[row, k] * before) if abs(x[row, k]) < np.inf else 0.0
            before = (before + here) * falls[row, i] if abs(x[row, k]) < np.inf else 0.0
        behind = 0.0
        for back in range(n):
            i = n - 1 - back
            k = order[row, i]
            behind = behind * falls[row, i]
            pull[k] -= 0.5 * w[row, k] * behind
            behind = behind + g[row, k] if abs(x[row, k]) < np.inf else 0.0
        # The gradients of a row sum to 0: seen from its middle, items lose no digits
        middle = np.float64(x[row, order[row, n // 2]]) if n else 0.0
        middle = middle if abs(middle) < np.inf else 0.0
        for i in range(n):
            grad_x[row, i] = s * pull[i]
            if of_steepness and pull[i] != 0.0:
                grad_s[row] += pull[i] * (x[row, i] - middle)


SoftLaplaceCountPlan = plan_from(soft_laplace_count_forward, soft_laplace_count_backward)
