"""Soft counts over pairs on the CPU: blocks of items on the threads that torch uses, n^2 pairs and O(n) memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algonet.core import threads
from algonet.core.cache import cached
from algonet.core.codegen.generate import PRELUDES, load_template, scalar_function
from algonet.relax import Sigmoid

from ...settings import PairwiseSettings
from ..symmetry import is_symmetric

#: Pairs below which a second thread costs more than it brings.
WORTH_A_THREAD = 100_000


def soft_pairwise_count_forward(tensors: list[Tensor], settings: PairwiseSettings) -> tuple[list[Tensor], list[Tensor]]:
    x, weights, steepness = tensors
    n, rows = x.shape[-1], math.prod(x.shape[:-1])
    found = torch.empty_like(x, memory_format=torch.contiguous_format)
    items, w, out, s = _flat(x, rows), _flat(weights, rows), _flat(found, rows), steepness.detach().numpy()[()]
    kernel = _kernels(settings.sigmoid, x.dtype).counts

    def run(row: int, begin: int, end: int) -> None:
        kernel(items[row], w[row], settings.ordered, s, begin, end, out[row])

    _spread(run, rows, n)
    return [found], []


def soft_pairwise_count_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: PairwiseSettings, needs: list[bool]
) -> list[Any]:
    x, weights, steepness = tensors
    n, rows = x.shape[-1], math.prod(x.shape[:-1])
    by_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    weighted = needs[1] and not settings.ordered
    by_w = torch.empty_like(by_x) if weighted else by_x
    by_s = np.empty((rows, n))
    items, w, g, s = _flat(x, rows), _flat(weights, rows), _flat(grads[0], rows), steepness.detach().numpy()[()]
    found = _flat(by_x, rows), _flat(by_w, rows)
    kernel = _kernels(settings.sigmoid, x.dtype).slopes

    def run(row: int, begin: int, end: int) -> None:
        kernel(
            items[row], w[row], g[row], settings.ordered, weighted, s, begin, end,
            found[0][row], found[1][row], by_s[row],
        )  # fmt: skip

    _spread(run, rows, n)
    grad_w = by_w if weighted else torch.zeros_like(weights)
    return [by_x, grad_w if needs[1] else None, torch.as_tensor(by_s.sum(), dtype=x.dtype) if needs[2] else None]


def _spread(run: Callable[[int, int, int], None], rows: int, n: int) -> None:
    """run(row, begin, end): whole rows where there are many, parts of rows where there are few."""
    count = max(1, min(threads.workers(), 1 + rows * n * n // WORTH_A_THREAD))

    def part(index: int) -> None:
        if rows >= 4 * count:
            for row in range(rows * index // count, rows * (index + 1) // count):
                run(row, 0, n)
        else:
            for row in range(rows):
                run(row, n * index // count, n * (index + 1) // count)

    threads.spread(part, [(index,) for index in range(count)])


def _flat(x: Tensor, rows: int) -> np.ndarray:
    return x.detach().contiguous().numpy().reshape(rows, x.shape[-1])


@cached(most=64)
def _kernels(sigmoid: Sigmoid, dtype: torch.dtype) -> ModuleType:
    dialect, real = ("numba32", "float32") if dtype == torch.float32 else ("numba64", "float64")
    prelude = f"""{PRELUDES[dialect]}import numpy as np
from numba import {real} as REAL

SYMMETRIC = {is_symmetric(sigmoid)}


{scalar_function(sigmoid, "gate", dialect)}"""
    return load_template(f"pairwise_{dialect}", prelude, Path(__file__).with_name("pairwise_device.py"))
