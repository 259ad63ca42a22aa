"""Memberships by threshold on the CPU: blocks of rows on the threads that torch uses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algonet.core.autograd import plan_from

from ...settings import ThresholdSettings
from .source import flat, kernels, spread_rows


def soft_topk_mask_forward(tensors: list[Tensor], settings: ThresholdSettings) -> tuple[list[Tensor], list[Tensor]]:
    """The kernel of `threshold_reference`; saves the thresholds."""
    x, mask, steepness, k = tensors
    masked = settings.masked
    n, rows = x.shape[-1], math.prod(x.shape[:-1])
    p = torch.empty_like(x, memory_format=torch.contiguous_format)
    b = torch.empty(x.shape[:-1], dtype=torch.float64)
    module = kernels("threshold", settings.sigmoid, x.dtype)
    items, s, presence = flat(x), steepness.detach().numpy()[()], _presence(mask, masked)
    wanted, step = _counts(k, rows)
    reach = float(settings.sigmoid.reach(1e-9))
    shares, thresholds = p.numpy().reshape(rows, n), b.numpy().reshape(rows)

    def run(begin: int, end: int) -> None:
        module.forward(items, presence, masked, wanted, step, s, reach, shares, thresholds, begin, end)

    spread_rows(run, rows, n)
    return [p], [b]


def soft_topk_mask_saved(tensors: list[Tensor], settings: ThresholdSettings) -> list[Tensor]:
    return [tensors[0].new_empty(tensors[0].shape[:-1], dtype=torch.float64)]


def soft_topk_mask_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: ThresholdSettings, needs: list[bool]
) -> list[Any]:
    """The gradients by items, (mask,) steepness and k."""
    x, mask, steepness, _ = tensors
    masked = settings.masked
    n, rows = x.shape[-1], math.prod(x.shape[:-1])
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
    by_k, by_s = torch.empty(x.shape[:-1], dtype=torch.float64), torch.empty(rows, dtype=torch.float64)
    module = kernels("threshold", settings.sigmoid, x.dtype)
    items, s, presence = flat(x), steepness.detach().numpy()[()], _presence(mask, masked)
    grad, thresholds = flat(grads[0]), _numbers(saved[0])
    found = grad_x.numpy().reshape(rows, n), by_k.numpy().reshape(rows), by_s.numpy()

    def run(begin: int, end: int) -> None:
        module.backward(items, presence, masked, s, thresholds, grad, *found, begin, end)

    spread_rows(run, rows, n)
    return [grad_x, None, by_s.sum().to(x.dtype) if needs[2] else None, by_k if needs[3] else None]


def _presence(mask: Tensor, masked: bool) -> np.ndarray:
    return flat(mask) if masked else np.empty((1, 0), np.bool_)


def _counts(k: Tensor, rows: int) -> tuple[np.ndarray, int]:
    """k as a flat array and the step between its rows: 0 where one number stands for all."""
    if any(k.stride()) or k.numel() != rows:
        return _numbers(k), 1
    return _numbers(k.as_strided((min(rows, 1),), (1,))), 0


def _numbers(x: Tensor) -> np.ndarray:
    return x.detach().contiguous().numpy().reshape(-1)


SoftTopkMaskPlan = plan_from(soft_topk_mask_forward, soft_topk_mask_backward, soft_topk_mask_saved)
