"""Soft sorting on the CPU: rows side by side in vector registers, blocks of rows on the threads that torch uses."""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algonet.core import threads
from algonet.core.codegen import generate as codegen

from ...plan import Plan, decode
from . import weigh

#: Rows that are sorted side by side, at most.
LANES = 64
#: Bytes that a thread keeps of the layers in backward: what stays in cache, and what leads to fewer rows at a time.
SCRATCH, MOST = 3 * 2**19, 64 * 2**20
#: Exchanges below which a second thread costs more than it brings.
WORTH_A_THREAD = 200_000


def sort_forward(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    """The kernel of `sort_reference`; nothing is saved."""
    x = tensors[0]
    job = _job(settings, tuple(x.shape), tensors[3].shape[-1] if len(tensors) > 3 else 0, x.dtype)
    if job.idle:
        return [t.clone(memory_format=torch.contiguous_format) for t in (x, *tensors[3:])], []
    outputs = [_like(t) for t in (x, *tensors[3:])]
    inputs, results, table = job.arrays(tensors), job.outputs(outputs), job.table

    def run(begin: int, end: int) -> None:
        job.module.forward(*inputs, table, *results, begin, end, job.lanes, _workspace(job.space, job.real))

    job.spread(run, job.lanes, 1)
    return outputs, []


def sort_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: str, needs: list[bool]
) -> list[Any]:
    """The gradients of `sort_forward` by items, steepness and payload."""
    x = tensors[0]
    job = _job(settings, tuple(x.shape), tensors[3].shape[-1] if len(tensors) > 3 else 0, x.dtype)
    if job.idle:
        return [grads[0].clone(), None, torch.zeros_like(tensors[2]), *(g.clone() for g in grads[1:])]
    found = [_like(t) for t in (x, *tensors[3:])]
    inputs, slopes, results = job.arrays(tensors), job.outputs(grads), job.outputs(found)
    (lanes, segment, space), table = job.back, job.table
    share = np.zeros(-(-job.rows // lanes), job.real)
    wanted = needs[0] or needs[2], needs[2]

    def run(begin: int, end: int) -> None:
        job.module.backward(
            *inputs, table, *slopes, *results, share, begin, end, lanes, segment, *wanted,
            _workspace(space, job.real),
        )  # fmt: skip

    job.spread(run, lanes, 3)
    by_steepness = torch.as_tensor(share.sum(), dtype=x.dtype) if needs[2] else None
    return [found[0], None, by_steepness, *found[1:]]


class _Job:
    """Everything about a call that does not depend on its numbers, computed once."""

    def __init__(self, settings: str, shape: tuple[int, ...], width: int, dtype: torch.dtype):
        plan = decode(settings)
        self.n, self.rows, self.width = shape[-1], math.prod(shape[:-1]), width
        table = plan.table(self.n)
        self.depth, self.count = table.depth, table.count
        self.idle = self.rows == 0 or self.depth == 0
        self.masked = plan.masked
        self.real = np.dtype(np.float32 if dtype == torch.float32 else np.float64)
        if self.idle:
            return
        self.plan = plan
        self.module, self.sigmoid = _kernels(dtype), _sigmoid(plan.sigmoid_token, dtype)
        item, half = self.real.itemsize, self.n // 2 + 1
        state = self.n * (1 + width)
        self.lanes = _lanes(self.rows, state * item)
        self.space = (state + 3 * half) * self.lanes + self.n + 2
        kept = (5 if width else 3) * half  # of one layer
        lanes, segment = _segment(self.rows, state * item, kept * item, self.depth)
        self.back = lanes, segment, ((-(-self.depth // segment) + 2) * state + kept * segment + 2) * lanes + self.n + 2
        self.nothing = np.empty((self.rows, self.n, 0), self.real)

    @property
    def table(self) -> tuple[np.ndarray, ...]:
        """The comparators, looked up each time: tables are large, and their own cache bounds them."""
        first, second, *rest = self.plan.table(self.n).arrays
        # Unsigned: Numba then knows that no index counts from the end
        return first.view(np.uint32), second.view(np.uint32), *rest

    def arrays(self, tensors: list[Tensor]) -> tuple[Any, ...]:
        """(rows, payload, lengths, masked, sigmoid, steepness) as the kernels take them."""
        rows, payload = self.outputs([tensors[0], *tensors[3:]])
        lengths = tensors[1].numpy().reshape(-1)
        return rows, payload, lengths, self.masked, self.sigmoid, self.real.type(tensors[2].item())

    def outputs(self, tensors: list[Tensor]) -> tuple[np.ndarray, np.ndarray]:
        """(rows, payload); a missing payload has no channels."""
        rows = _flat(tensors[0], (self.rows, self.n))
        return rows, _flat(tensors[1], (self.rows, self.n, self.width)) if len(tensors) > 1 else self.nothing

    def spread(self, run: Callable[[int, int], None], lanes: int, passes: int) -> None:
        """run(begin, end) over blocks of rows, on several threads where that pays."""
        work = self.rows * self.count * (1 + self.width) * passes
        blocks = -(-self.rows // lanes)
        count = max(1, min(threads.workers(), blocks, 1 + work // WORTH_A_THREAD))
        bounds = [min(self.rows, lanes * (blocks * i // count)) for i in range(count + 1)]
        threads.spread(run, list(itertools.pairwise(bounds)))


@functools.lru_cache(maxsize=1024)
def _job(settings: str, shape: tuple[int, ...], width: int, dtype: torch.dtype) -> _Job:
    return _Job(settings, shape, width, dtype)


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _flat(x: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    return x.detach().contiguous().numpy().reshape(shape)


def _lanes(rows: int, row_bytes: int) -> int:
    """One lane for few rows, else a multiple of 16 that the second-level cache holds."""
    if rows < 12:
        return 1
    lanes = LANES
    while lanes > 16 and (lanes // 2 >= rows or lanes * row_bytes > 2**19):
        lanes //= 2
    return lanes


def _segment(rows: int, state: int, kept: int, depth: int) -> tuple[int, int]:
    """(lanes, layers per segment): what the second-level cache holds, or more where checkpoints would outweigh it."""
    lanes = _lanes(rows, state)
    balanced = max(1, round((depth * state / kept) ** 0.5))
    while lanes > 1 and lanes * (balanced * kept + -(-depth // balanced) * state) > MOST:
        lanes = lanes // 2 if lanes > 16 else 1
    return lanes, min(depth, max(balanced, SCRATCH // (kept * lanes)))


_LOCAL = threading.local()


def _workspace(size: int, dtype: np.dtype) -> np.ndarray:
    """This thread's scratch. A moderate one is kept: fresh memory costs a page fault per 4 KiB, more than sorting in it."""
    if size * dtype.itemsize > 4 * SCRATCH:
        return np.empty(size, dtype)
    kept = _LOCAL.__dict__.get(dtype.char)
    if kept is None or len(kept) < size:
        kept = _LOCAL.__dict__[dtype.char] = np.empty(size, dtype)
    return kept


@functools.lru_cache(maxsize=2)
def _kernels(dtype: torch.dtype) -> ModuleType:
    template = Path(__file__).with_name("layers_device.py").read_text(encoding="utf-8")
    _, kernels = template.split("# --- template ---\n")
    real = "float32" if dtype == torch.float32 else "float64"
    names = f"import numpy as np\nfrom numba import {real} as REAL, njit\nfrom algonet.core.codegen.numba_math import where\n"
    names += f"from {weigh.__name__} import call_at\n\n"
    return codegen.load(f"sort_layers_{real}", names + kernels)


@functools.lru_cache(maxsize=64)
def _sigmoid(form: str, dtype: torch.dtype) -> int:
    """The address of `weigh` for this sigmoid."""
    dialect, real = ("numba32", "float32") if dtype == torch.float32 else ("numba64", "float64")
    names = f"""import numpy as np
from numba import carray, cfunc, {real} as REAL, types

POINTER = types.CPointer(REAL)
"""
    gate = codegen.scalar_function(Plan("odd_even", form).sigmoid, "gate", dialect)
    source = "\n\n".join([codegen.PRELUDES[dialect] + names, gate, weigh.SOURCE])
    return codegen.load(f"sort_{dialect}_{form}", source).weigh.address
