"""What launches the CPU kernels: arrays without copies, threads where there is enough to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from algonet.core.threads import spread, workers

from ...operation import ProgramSettings
from . import device

#: Items times instructions from which on waking further threads pays.
PARALLEL_FROM = 4_000_000


def _kernels(x: Tensor, settings: ProgramSettings) -> ModuleType:
    return device.kernels(settings.formulas, "numba32" if x.dtype == torch.float32 else "numba64")


def _arrays(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    x, *rest = tensors
    x = x.reshape(-1, x.shape[-1])
    return [t.detach().contiguous().numpy() for t in (x, *rest)]


def _over_blocks(kernel: Callable[..., None], arrays: list[np.ndarray], *more: np.ndarray) -> None:
    """The kernel on all blocks, in several threads (it holds no lock) where there is enough to do."""
    blocks = -(-arrays[0].shape[0] // device.WIDTH)
    work = arrays[0].shape[0] * arrays[3].shape[0]
    threads = min(workers(), blocks) if work >= PARALLEL_FROM else 1
    if threads == 1:
        kernel(0, blocks, *arrays, *more)
        return
    edges = [blocks * k // threads for k in range(threads + 1)]
    spread(kernel, [(a, b, *arrays, *more) for a, b in pairwise(edges)])


def smooth_program_forward(tensors: Sequence[Tensor], settings: ProgramSettings) -> tuple[list[Tensor], list[Tensor]]:
    x, wanted = tensors[0], tensors[4]
    y = x.new_empty(*x.shape[:-1], wanted.shape[0])
    _over_blocks(_kernels(x, settings).forward, _arrays(tensors), y.view(-1, wanted.shape[0]).numpy())
    return [y], []


def smooth_program_backward(
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    settings: ProgramSettings,
    needs: Sequence[bool],
) -> list[Tensor | None]:
    x, steepness = tensors[0], tensors[1]
    arrays = _arrays(tensors)
    gx = np.zeros_like(arrays[0])
    gs = np.zeros((-(-arrays[0].shape[0] // device.WIDTH), steepness.shape[0]), dtype=gx.dtype)
    g = grads[0].detach().reshape(-1, grads[0].shape[-1]).contiguous().numpy()
    _over_blocks(_kernels(x, settings).backward, arrays, g, gx, gs)
    constants = torch.zeros_like(tensors[2]) if needs[2] else None
    by_steepness = torch.from_numpy(gs.sum(0)) if needs[1] else None
    return [torch.from_numpy(gx).reshape(x.shape), by_steepness, constants, None, None, None]
