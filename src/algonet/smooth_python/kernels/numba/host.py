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
from .schedule import backward_schedule, forward_schedule

#: Items times instructions from which on waking further threads pays.
PARALLEL_FROM = 4_000_000


def _kernels(x: Tensor, settings: ProgramSettings) -> ModuleType:
    return device.kernels(settings.formulas, "numba32" if x.dtype == torch.float32 else "numba64")


def _numbers(tensors: Sequence[Tensor]) -> tuple[list[np.ndarray], tuple[int, ...]]:
    """x, steepness, constants, program and wanted rows as arrays, and what kernels get of the first three."""
    x, *rest = tensors[:5]
    found = [t.detach().contiguous().numpy() for t in (x.reshape(-1, x.shape[-1]), *rest)]
    return found, (*found[0].shape, *(_address(array) for array in found[:3]))


def _address(array: np.ndarray) -> int:
    return array.ctypes.data


def _over_blocks(
    kernel: Callable[..., None], items: int, work: int, arguments: tuple, slots: tuple[int, ...], like
) -> None:
    """The kernel on all blocks, in several threads (it holds no lock) where there is enough to do; each has its own slots."""
    blocks = -(-items // device.WIDTH)
    threads = min(workers(), blocks) if work >= PARALLEL_FROM else 1
    # The items' part of draws needs a slot of integers
    memory = [
        [np.empty((max(1, n), device.WIDTH), dtype=like) for n in (slots[0], 1, *slots[1:])] for _ in range(threads)
    ]
    edges = [blocks * k // threads for k in range(threads + 1)]
    calls = [(a, b, *arguments, tuple(map(_address, m))) for (a, b), m in zip(pairwise(edges), memory, strict=True)]
    spread(kernel, calls)


def _seed(tensors: Sequence[Tensor]) -> tuple[int, int]:
    low, high = tensors[5].tolist()
    return low & 0xFFFFFFFF, high & 0xFFFFFFFF


def smooth_program_forward(tensors: Sequence[Tensor], settings: ProgramSettings) -> tuple[list[Tensor], list[Tensor]]:
    x, wanted = tensors[0], tensors[4]
    y = x.new_empty(*x.shape[:-1], wanted.shape[0])
    kernels, (arrays, numbers) = _kernels(x, settings), _numbers(tensors)
    steps, slots, count = forward_schedule(arrays[3], arrays[4], kernels.table)
    run, results = (_address(steps), len(steps)), (y.data_ptr(), _address(slots), len(slots))
    items = arrays[0].shape[0]
    arguments = (numbers, _seed(tensors), run, results)
    _over_blocks(kernels.forward, items, items * len(steps), arguments, (count,), arrays[0].dtype)
    return [y], []


def smooth_program_backward(
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    settings: ProgramSettings,
    needs: Sequence[bool],
) -> list[Tensor | None]:
    x, steepness = tensors[0], tensors[1]
    kernels, (arrays, numbers) = _kernels(x, settings), _numbers(tensors)
    steps, count, pulls, made, slots, seeded, slopes = backward_schedule(
        arrays[3], arrays[4], kernels.table, bool(needs[0]), bool(needs[1])
    )
    items = arrays[0].shape[0]
    gx = np.zeros_like(arrays[0])
    gs = np.zeros((-(-items // device.WIDTH), steepness.shape[0]), dtype=gx.dtype)
    g = grads[0].detach().reshape(-1, grads[0].shape[-1]).contiguous()
    run, pull = (_address(steps), len(steps)), (_address(pulls), made)
    results = (g.data_ptr(), _address(slots), len(slots), seeded)
    arguments = (numbers, _seed(tensors), run, pull, results, (_address(gx), _address(gs), gs.shape[1]))
    work = items * (len(steps) + made)
    _over_blocks(kernels.backward, items, work, arguments, (count, slopes), gx.dtype)
    constants = torch.zeros_like(tensors[2]) if needs[2] else None
    by_steepness = torch.from_numpy(gs.sum(0)) if needs[1] else None
    return [torch.from_numpy(gx).reshape(x.shape), by_steepness, constants, None, None, None]
