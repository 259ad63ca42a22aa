"""Soft counts over pairs on the GPU: every pair is computed where it is needed, and nothing of size n^2 exists."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from algonet.core.autograd import plan_from
from algonet.core.cache import cached
from algonet.core.launch import Launch

from ...settings import PairwiseSettings
from .source import kernels


def soft_pairwise_count_forward(tensors: list[Tensor], settings: PairwiseSettings) -> tuple[list[Tensor], list[Tensor]]:
    x, weights, steepness = (t.contiguous() for t in tensors)
    counts = torch.empty_like(x)
    if x.numel():
        launch = _launch(settings, x.shape, x.dtype, x.device)
        launch.start(x_ptr=x, w_ptr=weights, steepness_ptr=steepness, out_ptr=counts)
    return [counts], []


def soft_pairwise_count_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: PairwiseSettings, needs: list[bool]
) -> list[Any]:
    x, weights, steepness = (t.contiguous() for t in tensors)
    grad_x = torch.empty_like(x)
    weighted = needs[1] and not settings.ordered
    grad_w = torch.empty_like(x) if weighted else grad_x
    if not x.numel():
        return [grad_x, torch.zeros_like(weights), torch.zeros_like(steepness)]
    launch = _launch(settings, x.shape, x.dtype, x.device, WEIGHTS=weighted, STEEP=needs[2])
    by_s = torch.empty(launch.grid[0] if needs[2] else 0, dtype=torch.float64, device=x.device)
    launch.start(
        x_ptr=x, w_ptr=weights, steepness_ptr=steepness, grad_ptr=grads[0].contiguous(),
        grad_x_ptr=grad_x, grad_w_ptr=grad_w, grad_s_ptr=by_s,
    )  # fmt: skip
    if needs[1] and settings.ordered:
        grad_w = torch.zeros_like(weights)
    return [grad_x, grad_w if needs[1] else None, by_s.sum().to(x.dtype) if needs[2] else None]


def _tile(n: int) -> tuple[int, int]:
    """(items of a program, others at a time): small programs, so that few rows fill the device too."""
    small = max(16, 1 << (n - 1).bit_length())
    return min(32, small), min(128, small)


@cached
def _launch(
    settings: PairwiseSettings, shape: torch.Size, dtype: torch.dtype, device: torch.device, **backward: bool
) -> Launch:
    n, (i, j) = shape[-1], _tile(shape[-1])
    module, blocks = kernels("pairwise", settings.sigmoid), -(-n // i)
    kernel = module.pairwise_backward_kernel if backward else module.pairwise_forward_kernel
    grid = math.prod(shape[:-1]) * blocks
    return Launch(kernel, grid, warps=4, n=n, blocks=blocks, ORDERED=settings.ordered, ITEMS=i, OTHERS=j, **backward)


SoftPairwiseCountPlan = plan_from(soft_pairwise_count_forward, soft_pairwise_count_backward)
