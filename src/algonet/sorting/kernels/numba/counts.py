"""Smooth counts and their inverse on the CPU: blocks of rows on the threads that torch uses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from algonet.core.autograd import plan_from
from algonet.core.cache import cached
from algonet.relax import Sigmoid

from ...counts import margin_of, node_table, nodes_per_unit, reach
from ...settings import CountSettings
from .source import flat, kernels, spread_rows


def soft_counts_forward(tensors: Sequence[Tensor], settings: CountSettings) -> tuple[list[Tensor], list[Tensor]]:
    y, x, w = tensors
    out = y.new_empty(*y.shape, w.shape[-1])
    grid = _grid(settings, [y, x])
    run = kernels("counts", settings.sigmoid, _precision(settings)).counts
    given = _rows(y), _rows(x), _rows(w, 2), grid.per, grid.table, _rows(out, 2)
    spread_rows(lambda begin, end: run(begin, end, *given), given[0].shape[0], y.shape[-1] + x.shape[-1])
    return [out], []


def soft_counts_backward(
    grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], settings: CountSettings, needs: Any
) -> list[Tensor | None]:
    y, x, w = tensors
    found = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]
    grid = _grid(settings, [y, x])
    run = kernels("counts", settings.sigmoid, _precision(settings)).count_slopes
    given = (
        _rows(y), _rows(x), _rows(w, 2), _rows(grads[0], 2), grid.per, grid.table,
        _rows(found[0]), _rows(found[1]), _rows(found[2], 2),
    )  # fmt: skip
    spread_rows(lambda begin, end: run(begin, end, *given), given[0].shape[0], y.shape[-1] + x.shape[-1])
    return [gradient if need else None for gradient, need in zip(found, needs, strict=True)]


def soft_quantiles_forward(tensors: Sequence[Tensor], settings: CountSettings) -> tuple[list[Tensor], list[Tensor]]:
    x, w, k = tensors
    y, slopes = k.new_empty(k.shape), k.new_empty(k.shape)
    if k.numel():
        margin = margin_of(settings.sigmoid, w, k)
        grid = _grid(settings, [x], margin)
        run = kernels("counts", settings.sigmoid, _precision(settings)).inverse
        given = _rows(x), _rows(w), _rows(k), grid.per, margin, grid.table, _rows(y), _rows(slopes)
        spread_rows(lambda begin, end: run(begin, end, *given), given[0].shape[0], k.shape[-1] + x.shape[-1])
    return [y], [y.clone(), slopes]


def soft_quantiles_saved(tensors: Sequence[Tensor], settings: CountSettings) -> list[Tensor]:
    return [tensors[2].new_empty(tensors[2].shape) for _ in range(2)]


def soft_quantiles_backward(
    grads: Sequence[Tensor], tensors: Sequence[Tensor], saved: Sequence[Tensor], settings: CountSettings, needs: Any
) -> list[Tensor | None]:
    x, w, k = tensors
    grad_x, grad_k = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, k))
    grid = _grid(settings, [x, saved[0]])
    run = kernels("counts", settings.sigmoid, _precision(settings)).inverse_slopes
    given = (
        _rows(x), _rows(w), _rows(saved[0]), _rows(saved[1]), _rows(grads[0]), grid.per, grid.table,
        _rows(grad_x), _rows(grad_k),
    )  # fmt: skip
    spread_rows(lambda begin, end: run(begin, end, *given), given[0].shape[0], k.shape[-1] + x.shape[-1])
    return [grad_x if needs[0] else None, None, grad_k if needs[2] else None]


class _Grid(NamedTuple):
    """Nodes per unit, and K between them from its end to its beginning; no nodes where the sigmoid has kinks."""

    per: float
    table: np.ndarray


def _grid(settings: CountSettings, tensors: Sequence[Tensor], margin: float = 0.0) -> _Grid:
    light = _light_grid(settings)
    if light is not None:
        return light
    # Long tails need K as far as numbers lie apart; beyond `_MOST` nodes all pairs are added up
    per = nodes_per_unit(settings.sigmoid, settings.precise)
    finite = [t[t.isfinite()] for t in tensors]
    ends = [float(end) for t in finite if t.numel() for end in (t.min(), t.max())] or [0.0]
    span = (max(ends) - min(ends) + 2 * margin) * per + 64
    return _Grid(0.0, np.empty(0)) if span > _MOST else _grid_of(settings.sigmoid, per, math.ceil(span))


@cached
def _light_grid(settings: CountSettings) -> _Grid | None:
    """The grid of a sigmoid with light tails, beyond whose reach K is 0 or 1; `None` where tails are long."""
    sigmoid, precise = settings.sigmoid, settings.precise
    per = nodes_per_unit(sigmoid, precise)
    if not per:
        return _Grid(0.0, np.empty(0))
    half = math.ceil(reach(sigmoid, 1e-16 if precise else 1e-10) * per) + (40 if precise else 16)
    return _grid_of(sigmoid, per, half) if half <= _LONG else None


def _grid_of(sigmoid: Sigmoid, per: int, half: int) -> _Grid:
    return _Grid(float(per), np.ascontiguousarray(node_table(sigmoid, per, half).numpy()[::-1]))


#: Nodes of a table for light tails, and of any.
_LONG, _MOST = 4096, 2**22


def _precision(settings: CountSettings) -> torch.dtype:
    return torch.float64 if settings.precise else torch.float32


def _rows(x: Tensor, last: int = 1) -> np.ndarray:
    """(rows, n) or, with `last` 2, (rows, n, channels), whatever the batch dimensions; of an output, its own memory."""
    array = flat(x)
    return array if last == 1 else array.reshape(-1 if x.numel() else x.shape[:-2].numel(), *x.shape[-2:])


SoftCountsPlan = plan_from(soft_counts_forward, soft_counts_backward)

SoftQuantilesPlan = plan_from(soft_quantiles_forward, soft_quantiles_backward, soft_quantiles_saved)
