"""Memberships by threshold on the CPU: blocks of rows on the threads that torch uses."""

from __future__ import annotations

import itertools
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

from ...settings import ThresholdSettings
from ..symmetry import is_symmetric

#: Items below which a second thread costs more than it brings.
WORTH_A_THREAD = 20_000


def soft_topk_mask_forward(tensors: list[Tensor], settings: ThresholdSettings) -> tuple[list[Tensor], list[Tensor]]:
    """The kernel of `threshold_reference`; saves the thresholds."""
    x, mask, steepness, k = tensors
    masked = settings.masked
    n, rows = x.shape[-1], math.prod(x.shape[:-1])
    p = torch.empty_like(x, memory_format=torch.contiguous_format)
    b = torch.empty(x.shape[:-1], dtype=torch.float64)
    module = _kernels(settings.sigmoid, x.dtype)
    items, s, presence = _flat(x, (rows, n)), _real(steepness), _presence(mask, masked, rows, n)
    wanted, step = _counts(k, rows)
    reach = float(settings.sigmoid.reach(1e-9))
    shares, thresholds = p.numpy().reshape(rows, n), b.numpy().reshape(rows)

    def run(begin: int, end: int) -> None:
        module.forward(items, presence, masked, wanted, step, s, reach, shares, thresholds, begin, end)

    _spread(run, rows, n)
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
    module = _kernels(settings.sigmoid, x.dtype)
    items, s, presence = _flat(x, (rows, n)), _real(steepness), _presence(mask, masked, rows, n)
    grad, thresholds = _flat(grads[0], (rows, n)), _flat(saved[0], (rows,))
    found = grad_x.numpy().reshape(rows, n), by_k.numpy().reshape(rows), by_s.numpy()

    def run(begin: int, end: int) -> None:
        module.backward(items, presence, masked, s, thresholds, grad, *found, begin, end)

    _spread(run, rows, n)
    return [grad_x, None, by_s.sum().to(x.dtype) if needs[2] else None, by_k if needs[3] else None]


def _spread(run: Callable[[int, int], None], rows: int, n: int) -> None:
    count = max(1, min(threads.workers(), rows, 1 + rows * n // WORTH_A_THREAD))
    threads.spread(run, list(itertools.pairwise([rows * i // count for i in range(count + 1)])))


def _flat(x: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    return x.detach().contiguous().numpy().reshape(shape)


def _real(steepness: Tensor) -> Any:
    return steepness.detach().numpy()[()]


def _presence(mask: Tensor, masked: bool, rows: int, n: int) -> np.ndarray:
    return _flat(mask, (rows, n)) if masked else np.empty((1, 0), np.bool_)


def _counts(k: Tensor, rows: int) -> tuple[np.ndarray, int]:
    """k as a flat array and the step between its rows: 0 where one number stands for all."""
    if any(k.stride()) or k.numel() != rows:
        return _flat(k, (rows,)), 1
    return _flat(k.as_strided((min(rows, 1),), (1,)), (min(rows, 1),)), 0


@cached(most=64)
def _kernels(sigmoid: Sigmoid, dtype: torch.dtype) -> ModuleType:
    dialect, real = ("numba32", "float32") if dtype == torch.float32 else ("numba64", "float64")
    tolerance, rounding = (1e-4, 2e-7) if dtype == torch.float32 else (3e-8, 2e-16)
    prelude = f"""{PRELUDES[dialect]}import math
import numpy as np
from numba import {real} as REAL

TOLERANCE, ROUNDING, SYMMETRIC = {tolerance!r}, {rounding!r}, {is_symmetric(sigmoid)}


{scalar_function(sigmoid, "gate", dialect)}"""
    return load_template(f"threshold_{dialect}", prelude, Path(__file__).with_name("threshold_device.py"))
