"""Smooth counts, their inverse, memberships by threshold and Laplace sums on the CPU: blocks of rows on torch's threads.

Laplace sums: with sorted items and e_i = exp(-s (x_{i+1} - x_i)), A_{i+1} = (A_i + w_i) e_i sums the exponentials of all
before, and B those of all behind: count_i = sum_{j < i} w_j + (B_i - A_i) / 2. The gradient is made of the same two sums, of
weights and of the incoming gradient: with near = A + B, grad_x_i = s / 2 (g_i near_i(w) - w_i near_i(g)).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algonet.core import threads
from algonet.core.autograd import Plan, plan_from
from algonet.core.cache import cached
from algonet.core.codegen.generate import PRELUDES, load_template, scalar_function
from algonet.core.codegen.jit import njit
from algonet.core.identity import Signature
from algonet.relax import Sigmoid

from ...counts import CountSettings, LaplaceSettings, node_table, nodes_per_unit, reach
from ...reference import ThresholdSettings, empty_like, is_symmetric

#: Items below which a second thread costs more than it brings.
WORTH_A_THREAD = 20_000


@cached
def kernels(name: str, sigmoid: Sigmoid, dtype: torch.dtype, **constants: object) -> ModuleType:
    """The functions of `<name>_device.py` with the sigmoid and constants written into them, in one precision."""
    dialect, real = ("numba32", "float32") if dtype == torch.float32 else ("numba64", "float64")
    lines = "".join(f"{constant} = {value!r}\n" for constant, value in constants.items())
    prelude = f"""{PRELUDES[dialect]}import math
import numpy as np
from numba import {real} as REAL

SYMMETRIC = {is_symmetric(sigmoid)}
{lines}

{scalar_function(sigmoid, "gate", dialect)}"""
    return load_template(f"{name}_{dialect}", prelude, Path(__file__).with_name(f"{name}_device.py"))


def arrays(tensors: Sequence[Tensor], last: Sequence[int] = ()) -> list[np.ndarray]:
    """Each as (rows, n), whatever the batch dimensions, or with the number of its `last` dimensions; an output's own memory."""
    found = []
    for i, x in enumerate(tensors):
        kept = len(x.shape) - (last[i] if last else 1)
        found.append(x.detach().contiguous().numpy().reshape(x.shape[:kept].numel(), *x.shape[kept:]))
    return found


def spread_rows(run: Callable[..., None], size: Sequence[int], given: Sequence[Any]) -> None:
    """run(begin, end, *given) over blocks of rows, on as many threads as so many (rows, items) are worth."""
    rows, n = size
    count = max(1, min(torch.get_num_threads(), rows, 1 + rows * n // WORTH_A_THREAD))
    if count == 1:
        run(0, rows, *given)
        return
    threads.spread(run, [(rows * i // count, rows * (i + 1) // count, *given) for i in range(count)])


#: Items, and points, of a row up to which all pairs are added up, by kernels that know nothing else and compile sooner: the
#: order of 16 items has 17 thresholds.
FEW = 17
#: Nodes of a table for light tails, and of any.
_LONG, _MOST = 4096, 2**22

#: Nodes per unit, and K between them from its end to its beginning; no nodes where all pairs are added up.
_Grid = tuple[float, np.ndarray]
_PAIRS: _Grid = 0.0, np.empty(0)


class _CountsPlan(Plan):
    """The kernels for the sizes of a signature, and the grid where the numbers have no say in it."""

    def __init__(self, signature: Signature):
        super().__init__(signature)
        sizes = [spec.shape[-1] for spec in signature.tensors[:3]]
        n, m = self._sizes(sizes)
        self.work, few = n + m, min(n, m) > 0 and max(n, m) <= FEW
        self.grid = _PAIRS if few else _light_grid(self.settings)
        self.margin = 1.0 + reach(self.settings.sigmoid, 1.0 / max(n, 3))
        self.kernels: ModuleType = kernels(
            "counts", self.settings.sigmoid, torch.float64 if self.settings.precise else torch.float32, GRIDS=not few
        )

    @staticmethod
    def _sizes(last: Sequence[int]) -> tuple[int, int]:
        """(items, points) of a row."""
        return last[1], last[0]

    def grid_for(self, tensors: Sequence[Tensor], margin: float = 0.0) -> _Grid:
        """Long tails need K as far as numbers lie apart; beyond `_MOST` nodes all pairs are added up."""
        per = nodes_per_unit(self.settings.sigmoid, self.settings.precise)
        finite = [t[t.isfinite()] for t in tensors]
        ends = [float(end) for t in finite if t.numel() for end in (t.min(), t.max())] or [0.0]
        span = (max(ends) - min(ends) + 2 * margin) * per + 64
        return _PAIRS if span > _MOST else _grid_of(self.settings.sigmoid, per, math.ceil(span))


class SoftCountsPlan(_CountsPlan):
    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        y, x, w = tensors
        out = y.new_empty(*y.shape, w.shape[-1])
        given = [*arrays((y, x, w, out), (1, 1, 2, 2)), *(self.grid or self.grid_for((y, x)))]
        spread_rows(self.kernels.counts, (len(given[0]), self.work), given)
        return [out], []

    def backward(
        self, grads: Sequence[Any], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        found = [empty_like(t) for t in tensors]
        given = [
            *arrays((*tensors, grads[0], *found), (1, 1, 2, 2, 1, 1, 2)),
            *(self.grid or self.grid_for(tensors[:2])),
        ]
        spread_rows(self.kernels.count_slopes, (len(given[0]), self.work), given)
        return [gradient if need else None for gradient, need in zip(found, needs, strict=True)]


class SoftQuantilesPlan(_CountsPlan):
    @staticmethod
    def _sizes(last: Sequence[int]) -> tuple[int, int]:
        return last[0], last[2]

    @classmethod
    def saves(cls, signature: Signature) -> list[tuple[torch.Size, torch.dtype]]:
        k = signature.tensors[2]
        return [(k.shape, k.dtype)] * 2

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        k = tensors[2]
        y, slopes = k.new_empty(k.shape), k.new_empty(k.shape)
        given = [*arrays((*tensors, y, slopes)), *(self.grid or self.grid_for(tensors[:1], self.margin)), self.margin]
        spread_rows(self.kernels.inverse, (len(given[0]), self.work), given)
        return [y], [y.clone(), slopes]

    def backward(
        self, grads: Sequence[Any], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Tensor | None]:
        x, w, k = tensors
        grad_x, grad_k = (empty_like(t) for t in (x, k))
        given = [*arrays((x, w, *saved, grads[0], grad_x, grad_k)), *(self.grid or self.grid_for((x, saved[0])))]
        spread_rows(self.kernels.inverse_slopes, (len(given[0]), self.work), given)
        return [grad_x if needs[0] else None, None, grad_k if needs[2] else None]


@cached
def _light_grid(settings: CountSettings) -> _Grid | None:
    """The grid of a sigmoid with light tails, beyond whose reach K is 0 or 1; `None` where tails are long."""
    per = nodes_per_unit(settings.sigmoid, settings.precise)
    if not per:
        return _PAIRS
    half = math.ceil(reach(settings.sigmoid, 1e-16 if settings.precise else 1e-10) * per)
    half += 40 if settings.precise else 16
    return _grid_of(settings.sigmoid, per, half) if half <= _LONG else None


def _grid_of(sigmoid: Sigmoid, per: int, half: int) -> _Grid:
    return float(per), np.ascontiguousarray(node_table(sigmoid, per, half).numpy()[::-1])


def soft_topk_mask_forward(tensors: list[Tensor], settings: ThresholdSettings) -> tuple[list[Tensor], list[Tensor]]:
    """The kernel of `threshold_reference`; saves the thresholds."""
    x, k = tensors[0], tensors[3]
    p = empty_like(x)
    b = torch.empty(x.shape[:-1], dtype=torch.float64)
    module, (items, presence, masked, s) = _read(tensors, settings)
    step = int(any(k.stride()) or k.numel() != len(items))  # 0 where one number stands for all
    wanted = _numbers(k if step else k.as_strided((min(len(items), 1),), (1,)))
    given = items, presence, masked, wanted, step, s, float(settings.sigmoid.reach(1e-9)), *arrays([p]), _numbers(b)
    spread_rows(module.forward, items.shape, given)
    return [p], [b]


def soft_topk_mask_saved(tensors: list[Tensor], settings: ThresholdSettings) -> list[Tensor]:
    return [tensors[0].new_empty(tensors[0].shape[:-1], dtype=torch.float64)]


def soft_topk_mask_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: ThresholdSettings, needs: list[bool]
) -> list[Any]:
    """The gradients by items, (mask,) steepness and k."""
    x = tensors[0]
    grad_x = empty_like(x)
    module, read = _read(tensors, settings)
    by_k, by_s = torch.empty(x.shape[:-1], dtype=torch.float64), np.empty(len(read[0]))
    given = *read, _numbers(saved[0]), *arrays((grads[0], grad_x)), _numbers(by_k), by_s
    spread_rows(module.backward, read[0].shape, given)
    grad_s = torch.as_tensor(by_s.sum(), dtype=x.dtype) if needs[2] else None
    return [grad_x, None, grad_s, by_k if needs[3] else None]


def _read(tensors: list[Tensor], settings: ThresholdSettings) -> tuple[ModuleType, tuple[Any, ...]]:
    """The kernels, and what both read: items, whether they are present, whether that is asked, the steepness."""
    x, mask, steepness, _ = tensors
    presence = arrays([mask])[0] if settings.masked else np.empty((1, 0), np.bool_)
    given = *arrays([x]), presence, settings.masked, steepness.detach().numpy()[()]
    return kernels("threshold", settings.sigmoid, x.dtype), given


def _numbers(x: Tensor) -> np.ndarray:
    return x.detach().contiguous().numpy().reshape(-1)


def soft_laplace_count_forward(
    tensors: Sequence[Tensor], settings: LaplaceSettings
) -> tuple[list[Tensor], list[Tensor]]:
    x, weights, steepness = tensors
    found = empty_like(x)
    items, w, out = arrays((x, weights, found))
    order = np.argsort(items, -1)
    falls, near = np.empty(items.shape), np.empty(items.shape)
    spread_rows(laplace_sums, items.shape, (items, w, order, float(steepness), falls, near, out))
    return [found], [torch.from_numpy(part).reshape(x.shape) for part in (order, falls, near)]


def soft_laplace_count_backward(
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    settings: LaplaceSettings,
    needs: Sequence[bool],
) -> list[Any]:
    x, weights, steepness = tensors
    by_x = empty_like(x)
    items, w, g, out = arrays((x, weights, grads[0], by_x))
    # Compiled graphs save nothing
    order, falls, near = arrays(saved or soft_laplace_count_forward(tensors, settings)[1])
    by_s = np.zeros(items.shape[0])
    given = items, w, g, order, falls, near, float(steepness), bool(needs[2]), out, by_s
    spread_rows(laplace_slopes, items.shape, given)
    grad_s = torch.as_tensor(by_s.sum(), dtype=steepness.dtype) if needs[2] else None
    return [by_x, torch.zeros_like(weights) if needs[1] else None, grad_s]


@njit(error_model="numpy", nogil=True, cache=True)
def laplace_sums(begin, end, x, w, order, s, falls, near, out):
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


@njit(error_model="numpy", nogil=True, cache=True)
def laplace_slopes(begin, end, x, w, g, order, falls, near, s, of_steepness, grad_x, grad_s):
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


SoftTopkMaskPlan = plan_from(soft_topk_mask_forward, soft_topk_mask_backward, soft_topk_mask_saved)

SoftLaplaceCountPlan = plan_from(soft_laplace_count_forward, soft_laplace_count_backward)
