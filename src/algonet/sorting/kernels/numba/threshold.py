"""Memberships by threshold on the CPU: blocks of rows on the threads that torch uses."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algonet.core.autograd import plan_from

from ...settings import ThresholdSettings
from .source import arrays, kernels, spread_rows


def soft_topk_mask_forward(tensors: list[Tensor], settings: ThresholdSettings) -> tuple[list[Tensor], list[Tensor]]:
    """The kernel of `threshold_reference`; saves the thresholds."""
    x, k = tensors[0], tensors[3]
    p = torch.empty_like(x, memory_format=torch.contiguous_format)
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
    grad_x = torch.empty_like(x, memory_format=torch.contiguous_format)
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


SoftTopkMaskPlan = plan_from(soft_topk_mask_forward, soft_topk_mask_backward, soft_topk_mask_saved)
