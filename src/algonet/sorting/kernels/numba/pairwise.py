"""Soft counts over pairs on the CPU: blocks of items on the threads that torch uses, n^2 pairs and O(n) memory."""

from __future__ import annotations

import itertools
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
    found = torch.empty_like(x, memory_format=torch.contiguous_format)
    items, w, out, s = flat(x), flat(weights), flat(found), steepness.detach().numpy()[()]
    kernel = kernels("pairwise", settings.sigmoid, x.dtype).counts
    _spread(lambda *part: kernel(items, w, settings.ordered, s, *part, out), *items.shape)
    return [found], []


def soft_pairwise_count_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: PairwiseSettings, needs: list[bool]
) -> list[Any]:
    x, weights, steepness = tensors
    by_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    weighted = needs[1] and not settings.ordered
    by_w = torch.empty_like(by_x) if weighted else by_x
    items, w, g, s = flat(x), flat(weights), flat(grads[0]), steepness.detach().numpy()[()]
    found = flat(by_x), flat(by_w), np.empty(items.shape)
    kernel = kernels("pairwise", settings.sigmoid, x.dtype).slopes
    _spread(lambda *part: kernel(items, w, g, settings.ordered, weighted, s, *part, *found), *items.shape)
    grad_w = by_w if weighted else torch.zeros_like(weights)
    return [by_x, grad_w if needs[1] else None, torch.as_tensor(found[2].sum(), dtype=x.dtype) if needs[2] else None]


def _spread(run: Callable[[int, int, int, int], None], rows: int, n: int) -> None:
    """run(first row, last row, begin, end): whole rows where there are many, parts of all rows where there are few."""
    count = max(1, min(threads.workers(), 1 + rows * n * n // WORTH_A_THREAD))
    size = rows if rows >= 4 * count else n
    bounds = [size * i // count for i in range(count + 1)]
    parts = [(a, b, 0, n) if rows >= 4 * count else (0, rows, a, b) for a, b in itertools.pairwise(bounds)]
    threads.spread(run, parts)


SoftPairwiseCountPlan = plan_from(soft_pairwise_count_forward, soft_pairwise_count_backward)
