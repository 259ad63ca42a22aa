"""Soft sorting on the CPU: rows side by side in vector registers, blocks of rows on the threads that torch uses."""

from __future__ import annotations

import functools
import itertools
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from algonet.core import threads
from algonet.core.autograd import Plan
from algonet.core.cache import cached
from algonet.core.codegen import generate as codegen
from algonet.core.identity import Signature
from algonet.relax import Sigmoid

from ...networks import Comparators
from ...reference import empty_like, transposed

#: Rows that are sorted side by side, at most.
LANES = 64
#: Bytes that a thread keeps of the layers in backward: what stays in cache, and what leads to fewer rows at a time.
SCRATCH, MOST = 3 * 2**19, 64 * 2**20
#: Exchanges below which a second thread costs more than it brings.
WORTH_A_THREAD = 200_000


class SoftSortPlan(Plan):
    """Sizes, lanes and kernels of a call. Comparators can be large: a cache holds them as long as there is room."""

    def __init__(self, signature: Signature):
        super().__init__(signature)
        x, channels = signature.tensors[0], signature.tensors[3].shape[-1] if len(signature.tensors) > 3 else 0
        n, self.rows = x.shape[-1], math.prod(x.shape[:-1])
        comparators = self.settings.table(n)
        self.comparators = weakref.ref(comparators)
        depth, self.exchanges = comparators.depth, comparators.count * (1 + channels)
        self.idle = self.rows == 0 or depth == 0
        if self.idle:
            return
        self.sizes, self.masked = (self.rows, n, channels), int(self.settings.masked)
        self.real = np.dtype(np.float32 if x.dtype == torch.float32 else np.float64)
        self.module, self.sigmoid = _kernels(x.dtype), _sigmoid(self.settings.sigmoid, x.dtype)
        self.layers = self.module.run_layers.address
        item, half = self.real.itemsize, n // 2 + 1
        state = n * (1 + channels)
        self.lanes = _lanes(self.rows, state * item)
        self.space = (state + 3 * half) * self.lanes + 2 * half + self.lanes
        saved = (5 if channels else 3) * half  # of one layer
        lanes, segment = _segment(self.rows, state * item, saved * item, depth)
        size = ((-(-depth // segment) + 2) * state + saved * segment) * lanes + 2 * half + lanes
        self.back = lanes, segment, size

    # Compiled when the first gradient is asked for
    @functools.cached_property
    def layers_back(self) -> tuple[int, int]:
        return self.module.run_layers_back.address, self.module.run_payload_back.address if self.sizes[2] else 0

    def table(self) -> Comparators:
        found = self.comparators()
        if found is None:
            found = self.settings.table(self.sizes[1])
            self.comparators = weakref.ref(found)
        return found

    def forward(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        given = tensors[0], *tensors[3:]
        if self.idle:
            return [t.clone(memory_format=torch.contiguous_format) for t in given], []
        outputs, inputs, lengths = [empty_like(t) for t in given], _contiguous(given), tensors[1].contiguous()
        memory = *_addresses(inputs), lengths.data_ptr(), *_addresses(outputs)
        table, steepness = self.table(), tensors[2].item()

        def run(begin: int, end: int) -> None:
            work = _workspace(self.space, self.real)
            self.module.forward(
                *memory, table.addresses[1], self.layers, self.sigmoid, steepness, *self.sizes, self.lanes, self.masked,
                begin, end, work.address,
            )  # fmt: skip

        self._spread(run, self.lanes, 1)
        return outputs, []

    def backward(
        self, grads: Sequence[Any], tensors: Sequence[Tensor], saved: Sequence[Tensor], needs: Sequence[bool]
    ) -> list[Any]:
        """The gradients by items, steepness and payload."""
        if self.idle:
            slopes = torch.where(tensors[0].isinf(), 0.0, grads[0])
            return [slopes, None, torch.zeros_like(tensors[2]), *(g.clone() for g in grads[1:])]
        found = [empty_like(t) for t in (tensors[0], *tensors[3:])]
        inputs, given, lengths = _contiguous((tensors[0], *tensors[3:])), _contiguous(grads), tensors[1].contiguous()
        lanes, segment, space = self.back
        by_steepness = torch.zeros(-(-self.rows // lanes), dtype=tensors[0].dtype)
        memory = (
            *_addresses(inputs),
            lengths.data_ptr(),
            *_addresses(given),
            *_addresses(found),
            by_steepness.data_ptr(),
        )
        table, kernels = self.table(), (self.layers, *self.layers_back, self.sigmoid)
        steepness, values_too, steepness_too = tensors[2].item(), int(needs[0] or needs[2]), int(needs[2])

        def run(begin: int, end: int) -> None:
            work = _workspace(space, self.real)
            self.module.backward(
                *memory, table.addresses[1], *kernels, steepness, *self.sizes, lanes, self.masked,
                segment, values_too, steepness_too, begin, end, work.address,
            )  # fmt: skip

        self._spread(run, lanes, 3)
        return [found[0], None, by_steepness.sum() if needs[2] else None, *found[1:]]

    def _spread(self, run: Callable[[int, int], None], lanes: int, passes: int) -> None:
        """run(begin, end) over blocks of rows, on several threads where that pays."""
        work = self.rows * self.exchanges * passes
        if work < WORTH_A_THREAD:
            run(0, self.rows)
            return
        blocks = -(-self.rows // lanes)
        count = max(1, min(threads.workers(), blocks, 1 + work // WORTH_A_THREAD))
        bounds = [min(self.rows, lanes * (blocks * i // count)) for i in range(count + 1)]
        threads.spread(run, list(itertools.pairwise(bounds)))


SoftSortTransposedPlan = transposed(SoftSortPlan)


def _contiguous(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [t if t.is_contiguous() else t.contiguous() for t in tensors]


def _addresses(tensors: list[Tensor]) -> tuple[int, int]:
    """Where items and payload are; a missing payload is nowhere."""
    return tensors[0].data_ptr(), tensors[1].data_ptr() if len(tensors) > 1 else 0


def _lanes(rows: int, row_bytes: int) -> int:
    """One lane for few rows, else a multiple of 16 that the second-level cache holds."""
    if rows < 12:
        return 1
    lanes = LANES
    while lanes > 16 and (lanes // 2 >= rows or lanes * row_bytes > 2**19):
        lanes //= 2
    return lanes


def _segment(rows: int, state: int, saved: int, depth: int) -> tuple[int, int]:
    """(lanes, layers per segment): what the second-level cache holds, or more where checkpoints would outweigh it."""
    lanes = _lanes(rows, state)
    balanced = max(1, round((depth * state / saved) ** 0.5))
    while lanes > 1 and lanes * (balanced * saved + -(-depth // balanced) * state) > MOST:
        lanes = lanes // 2 if lanes > 16 else 1
    return lanes, min(depth, max(balanced, SCRATCH // (saved * lanes)))


class _Workspace(NamedTuple):
    array: np.ndarray
    address: int


_LOCAL = threading.local()


def _workspace(size: int, dtype: np.dtype) -> _Workspace:
    """This thread's scratch. A moderate one is kept: fresh memory costs a page fault per 4 KiB, more than sorting in it."""
    workspace = _LOCAL.__dict__.get(dtype.char)
    if workspace is None or len(workspace.array) < size:
        fresh = np.empty(size, dtype)
        workspace = _Workspace(fresh, fresh.ctypes.data)
        if size * dtype.itemsize <= 4 * SCRATCH:
            _LOCAL.__dict__[dtype.char] = workspace
    return workspace


@cached
def _kernels(dtype: torch.dtype) -> ModuleType:
    real = "float32" if dtype == torch.float32 else "float64"
    prelude = f"""import numpy as np
from numba import {real} as REAL, int32, types, uint32

from algonet.core.codegen.jit import cfunc, njit
from algonet.core.codegen.numba_math import where
from algonet.core.codegen.numba_pointers import call_at, offset, pointer_at
"""
    return codegen.load_template(f"sort_layers_{real}", prelude, Path(__file__).with_name("layers_device.py"))


#: The one step of sorting that knows the sigmoid, as a C function that kernels call by its address.
#: Template of the module for one sigmoid: its `gate` stands before it. An infinite difference is a crisp decision.
_WEIGH = """
OPTIONS = {"fastmath": {"contract"}, "error_model": "numpy"}
INF = REAL(np.inf)


@cfunc(types.void(POINTER, POINTER, POINTER, types.intp, REAL), cache=True, **OPTIONS)
def weigh(d, alpha, slope, count, steepness):
    # By the sign of the steepness, which is negative for a descending sort; 0 times infinity would be NaN
    larger = where(steepness >= REAL(0.0), REAL(1.0), REAL(0.0))
    smaller = REAL(1.0) - larger
    for j in range(count):
        x = d[j]
        crisp = abs(x) == INF
        z = steepness * x
        far = abs(z) > REAL(1e18)
        z = where(far, where(z > REAL(0.0), REAL(1e18), REAL(-1e18)), z)
        value, rise = gate(z)
        value = where(z == z, value, z)
        alpha[j] = where(crisp, where(x > REAL(0.0), larger, smaller), value)
        slope[j] = where(crisp | far, REAL(0.0), rise)
        d[j] = where(crisp, REAL(0.0), x)
"""


@cached
def _sigmoid(sigmoid: Sigmoid, dtype: torch.dtype) -> int:
    """The address of `weigh` for this sigmoid."""
    dialect, real = ("numba32", "float32") if dtype == torch.float32 else ("numba64", "float64")
    names = f"""import numpy as np
from numba import {real} as REAL, types

from algonet.core.codegen.jit import cfunc

POINTER = types.CPointer(REAL)
"""
    gate = codegen.scalar_function(sigmoid, "gate", dialect)
    source = "\n\n".join([codegen.PRELUDES[dialect] + names, gate, _WEIGH])
    return codegen.load(f"sort_{dialect}_{type(sigmoid).__name__ or 'nameless'}", source).weigh.address
