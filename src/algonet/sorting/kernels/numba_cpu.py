"""Soft sorting on the CPU: rows side by side in vector registers, blocks of rows on the threads that torch uses."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algonet import codegen

from ..plan import Plan, decode
from . import numba_weigh

#: Rows that are sorted side by side, at most; and what one thread may keep of their layers, in bytes.
LANES, SCRATCH = 64, 16 * 2**20
#: Exchanges below which a second thread costs more than it brings.
WORTH_A_THREAD = 200_000


def sort_forward(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    """The kernel of `sort_reference`; nothing is saved."""
    x, payload = tensors[0], tensors[3] if len(tensors) > 3 else None
    plan = decode(settings)
    table = plan.table(x.shape[-1])
    if x.numel() == 0 or table.depth == 0:
        return [t.clone() for t in (x, payload) if t is not None], []
    rows, channels, lengths, steepness = _arrays(tensors)
    values, moved = np.empty_like(rows), np.empty_like(channels)
    module, sigmoid = _kernels(x.dtype), _sigmoid(plan.form, x.dtype)
    n, width = channels.shape[1:]
    lanes = _lanes(len(rows), n * (1 + width) * x.element_size())

    def run(begin: int, end: int) -> None:
        module.forward(
            rows, channels, lengths, plan.masked, sigmoid, steepness, _table(plan, n), values, moved, begin, end, lanes
        )

    _spread(run, len(rows), lanes, table.count * (1 + width))
    found = [torch.from_numpy(values).view(x.shape)]
    return found if payload is None else [*found, torch.from_numpy(moved).view(payload.shape)], []


def sort_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: str, needs: list[bool]
) -> list[Any]:
    """The gradients of `sort_forward` by items, steepness and payload."""
    x, payload = tensors[0], tensors[3] if len(tensors) > 3 else None
    plan = decode(settings)
    table = plan.table(x.shape[-1])
    if x.numel() == 0 or table.depth == 0:
        return [grads[0].clone(), None, torch.zeros_like(tensors[2]), *(g.clone() for g in grads[1:])]
    rows, channels, lengths, steepness = _arrays(tensors)
    grad = _flat(grads[0], rows.shape)
    grad_moved = channels if payload is None else _flat(grads[1], channels.shape)
    grad_rows, grad_payload = np.empty_like(rows), np.empty_like(channels)
    module, sigmoid = _kernels(x.dtype), _sigmoid(plan.form, x.dtype)
    n, width = channels.shape[1:]
    lanes, segment = _segment(len(rows), n, width, table.depth, x.element_size())
    share = np.zeros(-(-len(rows) // lanes), rows.dtype)

    def run(begin: int, end: int) -> None:
        module.backward(
            rows, channels, lengths, plan.masked, sigmoid, steepness, _table(plan, n), grad, grad_moved,
            grad_rows, grad_payload, share, begin, end, lanes, segment, needs[0] or needs[2],
        )  # fmt: skip

    _spread(run, len(rows), lanes, 3 * table.count * (1 + width))
    by_steepness = torch.as_tensor(share.sum(), dtype=x.dtype) if needs[2] else None
    found = [torch.from_numpy(grad_rows).view(x.shape), None, by_steepness]
    return found if payload is None else [*found, torch.from_numpy(grad_payload).view(payload.shape)]


def _arrays(tensors: list[Tensor]) -> tuple[np.ndarray, np.ndarray, np.ndarray, Any]:
    """(rows, payload, lengths, steepness); a missing payload has no channels."""
    x, lengths, steepness = tensors[:3]
    n = x.shape[-1]
    rows = _flat(x, (x.numel() // n, n))
    if len(tensors) > 3:
        channels = _flat(tensors[3], (len(rows), n, tensors[3].shape[-1]))
    else:
        channels = np.empty((len(rows), n, 0), rows.dtype)
    return rows, channels, lengths.numpy().reshape(-1), rows.dtype.type(steepness.item())


def _flat(x: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    return x.detach().contiguous().numpy().reshape(shape)


@functools.lru_cache(maxsize=256)
def _table(plan: Plan, n: int) -> tuple[np.ndarray, ...]:
    return plan.table(n).arrays()


def _lanes(rows: int, row_bytes: int) -> int:
    """One lane for few rows, else a multiple of 16 that the second-level cache holds."""
    if rows < 6:
        return 1
    lanes = LANES
    while lanes > 16 and (lanes // 2 >= rows or lanes * row_bytes > 2**19):
        lanes //= 2
    return lanes


def _segment(rows: int, n: int, width: int, depth: int, item: int) -> tuple[int, int]:
    """(lanes, layers per segment): all layers at once where they fit, else what keeps the least."""
    kept = (5 if width else 3) * (n // 2 + 1) * item  # of one layer
    state = n * (1 + width) * item
    lanes = _lanes(rows, state + kept * min(depth, 16))
    if depth * kept * lanes <= SCRATCH:
        return lanes, depth
    segment = max(1, min(depth, round((depth * state / kept) ** 0.5)))
    while lanes > 1 and lanes * (segment * kept + -(-depth // segment) * state) > 4 * SCRATCH:
        lanes = lanes // 2 if lanes > 16 else 1
    return lanes, depth if depth * kept * lanes <= SCRATCH else segment


def _spread(run: Callable[[int, int], None], rows: int, lanes: int, exchanges: int) -> None:
    """run(begin, end) over blocks of rows, on several threads where that pays."""
    blocks = -(-rows // lanes)
    threads = min(torch.get_num_threads(), blocks, 1 + rows * exchanges // WORTH_A_THREAD)
    if threads <= 1:
        run(0, rows)
        return
    bounds = [min(rows, lanes * (blocks * i // threads)) for i in range(threads + 1)]
    rest = [_pool().submit(run, bounds[i], bounds[i + 1]) for i in range(1, threads)]
    run(bounds[0], bounds[1])
    for future in rest:
        future.result()


@functools.lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="algonet-sort")


# Threads do not survive a fork: the child makes its own pool
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


@functools.lru_cache(maxsize=2)
def _kernels(dtype: torch.dtype) -> ModuleType:
    template = Path(__file__).with_name("numba_layers.py").read_text(encoding="utf-8")
    _, kernels = template.split("# --- template ---\n")
    real = "float32" if dtype == torch.float32 else "float64"
    names = f"import numpy as np\nfrom numba import {real} as REAL, njit\nfrom algonet.numba_math import where\n"
    names += f"from {numba_weigh.__name__} import call_at\n\n"
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
    source = "\n\n".join([codegen.PRELUDES[dialect] + names, gate, numba_weigh.SOURCE])
    return codegen.load(f"sort_{dialect}_{form}", source).weigh.address
