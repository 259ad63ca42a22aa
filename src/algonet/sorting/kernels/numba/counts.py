"""Smooth counts and their inverse on the CPU: blocks of rows on the threads that torch uses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algonet.core.autograd import Plan
from algonet.core.cache import cached
from algonet.core.identity import Signature
from algonet.relax import Sigmoid

from ...counts import node_table, nodes_per_unit, reach
from ...settings import CountSettings
from .source import arrays, kernels, spread_rows

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
        found = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]
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
        grad_x, grad_k = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, k))
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
