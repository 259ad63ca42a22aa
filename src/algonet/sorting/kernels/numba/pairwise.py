"""Soft counts over pairs on the CPU: blocks of items on the threads that torch uses, n^2 pairs and O(n) memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algonet.core import threads
from algonet.core.autograd import plan_from

from ...settings import PairwiseSettings
from .source import flat, kernels

#: Pairs below which a second thread costs more than it brings.
WORTH_A_THREAD = 100_000


def soft_pairwise_count_forward(tensors: list[Tensor], settings: PairwiseSettings) -> tuple[list[Tensor], list[Tensor]]:
    x, weights, steepness = tensors
    n, rows = x.shape[-1], math.prod(x.shape[:-1])
    found = torch.empty_like(x, memory_format=torch.contiguous_format)
    items, w, out, s = flat(x), flat(weights), flat(found), steepness.detach().numpy()[()]
    kernel = kernels("pairwise", settings.sigmoid, x.dtype).counts

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
    items, w, g, s = flat(x), flat(weights), flat(grads[0]), steepness.detach().numpy()[()]
    found = flat(by_x), flat(by_w)
    kernel = kernels("pairwise", settings.sigmoid, x.dtype).slopes

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


SoftPairwiseCountPlan = plan_from(soft_pairwise_count_forward, soft_pairwise_count_backward)
