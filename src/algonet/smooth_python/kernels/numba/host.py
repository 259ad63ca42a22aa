"""What launches the CPU kernels: arrays without copies, threads where there is enough to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from algonet.core.autograd import plan_from
from algonet.core.cache import Cache
from algonet.core.threads import spread, workers

from ...operation import ProgramSettings
from . import device
from .schedule import backward_schedule, forward_schedule

#: Items times instructions from which on waking further threads pays.
PARALLEL_FROM = 4_000_000


class _Schedule(NamedTuple):
    """What `schedule.py` made of a program, with the tensors it was made of: while it is kept, no others have their ids."""

    arrays: tuple[np.ndarray, ...]
    addresses: tuple[int, ...]
    sizes: tuple[int, ...]
    program: Tensor
    wanted: Tensor


_SCHEDULES: Cache[_Schedule] = Cache(
    "schedules of smooth programs", 1024, budget=2**24, weigh=lambda s: sum(array.nbytes for array in s.arrays)
)


def _scheduled(make: Callable[..., Any], tensors: Sequence[Tensor], kernels: ModuleType, *needs: bool) -> _Schedule:
    """A program's schedule by `make`; one that runs again is the same tensor, which nobody changes."""
    program, wanted = tensors[3], tensors[4]
    key = make, kernels, id(program), id(wanted), *needs
    found = _SCHEDULES.find(key)
    if found is None:
        arrays, addresses, sizes = make(program.numpy(), wanted.numpy(), kernels.table, *needs)
        found = _SCHEDULES.put(key, _Schedule(arrays, addresses, sizes, program, wanted))
    return found


def _kernels(x: Tensor, settings: ProgramSettings) -> ModuleType:
    return device.kernels(settings.formulas, "numba32" if x.dtype == torch.float32 else "numba64")


def _numbers(tensors: Sequence[Tensor]) -> tuple[list[Tensor], tuple[int, ...]]:
    """x, steepness and constants as kernels can read them, and what they get of these: sizes and addresses."""
    x, *rest = tensors[:3]
    found = [t.detach().contiguous() for t in (x.reshape(-1, x.shape[-1]), *rest)]
    return found, (*found[0].shape, *(t.data_ptr() for t in found))


def _over_blocks(kernel: Callable[..., None], x: Tensor, work: int, arguments: tuple, slots: tuple[int, ...]) -> None:
    """The kernel on all blocks, in several threads (it holds no lock) where there is enough to do; each has its own slots."""
    blocks = -(-x.shape[0] // device.WIDTH)
    threads = min(workers(), blocks) if work >= PARALLEL_FROM else 1
    # Rows, the items' part of draws (integers, which take no more than numbers do), and gradients
    row = device.WIDTH * x.element_size()
    starts = [0, *accumulate((slots[0], 1, *slots[1:]))]
    memory = x.new_empty(threads * starts[-1] * device.WIDTH)
    calls = []
    for k in range(threads):
        own = memory.data_ptr() + k * starts[-1] * row
        calls.append(
            (blocks * k // threads, blocks * (k + 1) // threads, *arguments, tuple(own + row * s for s in starts[:-1]))
        )
    spread(kernel, calls)


def _seed(tensors: Sequence[Tensor]) -> tuple[int, int]:
    low, high = tensors[5].tolist()
    return low & 0xFFFFFFFF, high & 0xFFFFFFFF


def smooth_program_forward(tensors: Sequence[Tensor], settings: ProgramSettings) -> tuple[list[Tensor], list[Tensor]]:
    x, count = tensors[0], tensors[4].shape[0]
    y = x.new_empty(*x.shape[:-1], count)
    kernels, (read, numbers) = _kernels(x, settings), _numbers(tensors)
    schedule = _scheduled(forward_schedule, tensors, kernels)
    (steps, slots), addresses = schedule.sizes, schedule.addresses
    arguments = (numbers, _seed(tensors), (addresses[0], steps), (y.data_ptr(), addresses[1], count))
    _over_blocks(kernels.forward, read[0], read[0].shape[0] * steps, arguments, (slots,))
    return [y], []


def smooth_program_backward(
    grads: Sequence[Tensor],
    tensors: Sequence[Tensor],
    saved: Sequence[Tensor],
    settings: ProgramSettings,
    needs: Sequence[bool],
) -> list[Tensor | None]:
    x, kernels, (read, numbers) = tensors[0], _kernels(tensors[0], settings), _numbers(tensors)
    schedule = _scheduled(backward_schedule, tensors, kernels, bool(needs[0]), bool(needs[1]))
    (steps, slots, pulls, seeded, slopes), addresses = schedule.sizes, schedule.addresses
    items, scales = read[0].shape[0], read[1].shape[0]
    gx, gs = torch.zeros_like(read[0]), read[0].new_zeros(-(-items // device.WIDTH), scales)
    g = grads[0].detach().reshape(-1, grads[0].shape[-1]).contiguous()
    results = (g.data_ptr(), addresses[2], g.shape[1], seeded)
    run, pull, found = (addresses[0], steps), (addresses[1], pulls), (gx.data_ptr(), gs.data_ptr(), scales)
    arguments = (numbers, _seed(tensors), run, pull, results, found)
    _over_blocks(kernels.backward, read[0], items * (steps + pulls), arguments, (slots, slopes))
    constants = torch.zeros_like(tensors[2]) if needs[2] else None
    return [gx.reshape(x.shape), gs.sum(0) if needs[1] else None, constants, None, None, None]


SmoothProgramPlan = plan_from(smooth_program_forward, smooth_program_backward)
