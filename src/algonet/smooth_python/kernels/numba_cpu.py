"""Recorded programs on the CPU: blocks of items side by side, one instruction at a time, each a loop LLVM vectorises.

Nothing is kept between forward and backward: backward runs the program again, block by block.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from algonet.core.codegen import generate as codegen
from algonet.core.threads import spread, workers

from ..operation import NEGLIGIBLE, RELAX, formula

#: Items side by side.
WIDTH = 64
#: Items times instructions from which on waking further threads pays.
PARALLEL_FROM = 4_000_000

_SOURCE = '''
import numpy as np

W = @WIDTH@


@njit(fastmath={"contract"}, error_model="numpy", cache=True)
def run_block(x, start, steepness, constants, program, rows):
    """All rows of the items start ... start + W - 1."""
    items = min(W, x.shape[0] - start)
    one = rows.dtype.type(1.0)
    zero = rows.dtype.type(0.0)
    small = rows.dtype.type(@NEGLIGIBLE@)
    for k in range(program.shape[0]):
        code, a, b, c = program[k, 0], program[k, 1], program[k, 2], program[k, 3]
        row, ra, rb, rc = rows[k], rows[a], rows[b], rows[c]
        if code == 8:
            for i in range(W):
                row[i] = ra[i] * rb[i] + (one - ra[i]) * rc[i]
        elif code == 2:
            for i in range(W):
                row[i] = ra[i] + rb[i]
        elif code == 3:
            for i in range(W):
                row[i] = ra[i] - rb[i]
        elif code == 4:
            for i in range(W):
                row[i] = ra[i] * rb[i]
        elif code == 5:
            for i in range(W):
                row[i] = ra[i] / rb[i]
        elif code == 6:
            for i in range(W):
                row[i] = -ra[i]
        elif code == 7:
            for i in range(W):
                row[i] = min(one, abs(ra[i])) if ra[i] == ra[i] else ra[i]
        elif code == 11:
            for i in range(W):
                row[i] = ra[i] + rb[i] * rc[i]
        elif code == 10:
            for i in range(W):
                row[i] = rb[i] if ra[i] > zero else rc[i]
        elif code == 9:
            for i in range(W):
                row[i] = ra[i] if ra[i] > rb[i] else zero
        elif code == 12:
            for i in range(W):
                row[i] = one / (ra[i] if ra[i] > small else one) if ra[i] > small else zero
        elif code == 13:
            for i in range(W):
                row[i] = zero if ra[i] <= rb[i] else (one if ra[i] >= rc[i] else ra[i])
        elif code == 14:
            for i in range(W):
                row[i] = rb[i] if ra[i] < rb[i] else (rc[i] if ra[i] > rc[i] else ra[i])
        elif code == 15:
            for i in range(W):
                row[i] = np.exp(ra[i])
        elif code == 16:
            for i in range(W):
                row[i] = np.log(ra[i])
        elif code == 17:
            for i in range(W):
                row[i] = np.sqrt(ra[i])
        elif code == 0:
            for i in range(items):
                row[i] = x[start + i, a]
            for i in range(items, W):
                row[i] = 0.0
        elif code == 1:
            for i in range(W):
                row[i] = constants[a]
@FORWARD@


@njit(fastmath={"contract"}, error_model="numpy", cache=True)
def pull_block(g, start, steepness, program, rows, slopes, gx, gs):
    """Gradients of one block, from the last instruction to the first; `slopes` comes in with those of the results."""
    items = min(W, gx.shape[0] - start)
    one = rows.dtype.type(1.0)
    zero = rows.dtype.type(0.0)
    small = rows.dtype.type(@NEGLIGIBLE@)
    for back in range(program.shape[0]):
        k = program.shape[0] - 1 - back
        code, a, b, c = program[k, 0], program[k, 1], program[k, 2], program[k, 3]
        s, sa, sb, sc = slopes[k], slopes[a], slopes[b], slopes[c]
        ra, rb, rc = rows[a], rows[b], rows[c]
        if code == 8:
            for i in range(W):
                sa[i] += s[i] * (rb[i] - rc[i])
            for i in range(W):
                sb[i] += s[i] * ra[i]
            for i in range(W):
                sc[i] += s[i] * (one - ra[i])
        elif code == 2:
            for i in range(W):
                sa[i] += s[i]
            for i in range(W):
                sb[i] += s[i]
        elif code == 3:
            for i in range(W):
                sa[i] += s[i]
            for i in range(W):
                sb[i] -= s[i]
        elif code == 4:
            for i in range(W):
                sa[i] += s[i] * rb[i]
            for i in range(W):
                sb[i] += s[i] * ra[i]
        elif code == 5:
            for i in range(items):
                sa[i] += s[i] / rb[i]
            for i in range(items):
                sb[i] -= s[i] * ra[i] / (rb[i] * rb[i])
        elif code == 6:
            for i in range(W):
                sa[i] -= s[i]
        elif code == 7:
            for i in range(W):
                away = one if ra[i] > zero else (-one if ra[i] < zero else zero)
                sa[i] += s[i] * away if abs(ra[i]) <= one else zero
        elif code == 11:
            for i in range(W):
                sa[i] += s[i]
            for i in range(W):
                sb[i] += s[i] * rc[i]
            for i in range(W):
                sc[i] += s[i] * rb[i]
        elif code == 10:
            for i in range(W):
                sb[i] += s[i] if ra[i] > zero else zero
            for i in range(W):
                sc[i] += zero if ra[i] > zero else s[i]
        elif code == 9:
            for i in range(W):
                sa[i] += s[i] if ra[i] > rb[i] else zero
        elif code == 12:
            for i in range(W):
                inverse = one / (ra[i] if ra[i] > small else one)
                sa[i] -= s[i] * inverse * inverse if ra[i] > small else zero
        elif code == 13:
            for i in range(W):
                sa[i] += zero if ra[i] <= rb[i] or ra[i] >= rc[i] else s[i]
        elif code == 14:
            for i in range(W):
                sa[i] += s[i] if ra[i] >= rb[i] and ra[i] <= rc[i] else zero
            for i in range(W):
                sb[i] += s[i] if ra[i] < rb[i] else zero
            for i in range(W):
                sc[i] += s[i] if ra[i] > rc[i] else zero
        elif code == 15:
            for i in range(W):
                sa[i] += s[i] * rows[k, i]
        elif code == 16:
            for i in range(items):
                sa[i] += s[i] / ra[i]
        elif code == 17:
            for i in range(items):
                sa[i] += s[i] / (rows[k, i] + rows[k, i])
        elif code == 0:
            for i in range(items):
                gx[start + i, a] += s[i]
@BACKWARD@


@njit(fastmath={"contract"}, error_model="numpy", nogil=True, cache=True)
def forward(first, last, x, steepness, constants, program, wanted, y):
    """Blocks first ... last - 1; threads take different ones."""
    rows = np.empty((program.shape[0], W), dtype=x.dtype)
    for block in range(first, last):
        run_block(x, block * W, steepness, constants, program, rows)
        for i in range(min(W, x.shape[0] - block * W)):
            for j in range(wanted.shape[0]):
                y[block * W + i, j] = rows[wanted[j], i]


@njit(fastmath={"contract"}, error_model="numpy", nogil=True, cache=True)
def backward(first, last, x, steepness, constants, program, wanted, g, gx, gs):
    rows = np.empty((program.shape[0], W), dtype=x.dtype)
    slopes = np.empty((program.shape[0], W), dtype=x.dtype)
    for block in range(first, last):
        run_block(x, block * W, steepness, constants, program, rows)
        slopes[:] = 0.0
        for i in range(min(W, x.shape[0] - block * W)):
            for j in range(wanted.shape[0]):
                slopes[wanted[j], i] += g[block * W + i, j]
        pull_block(g, block * W, steepness, program, rows, slopes, gx, gs[block])
'''
_FORWARD = """
        elif code == @CODE@:
            for i in range(W):
                value, slope = formula@K@(steepness[b] * ra[i])
                row[i] = value if ra[i] == ra[i] else ra[i]
"""
_BACKWARD = """
        elif code == @CODE@:
            for i in range(W):
                value, slope = formula@K@(steepness[b] * ra[i])
                sa[i] += s[i] * slope * steepness[b]
                s[i] = s[i] * slope * ra[i]
            for i in range(items):
                gs[b] += s[i]
"""


@functools.cache
def _module(settings: str, dialect: str) -> ModuleType:
    keys = settings.split()
    functions = [codegen.scalar_function(formula(key), f"formula{k}", dialect) for k, key in enumerate(keys)]

    def cases(text: str) -> str:
        return "".join(text.replace("@CODE@", str(RELAX + k)).replace("@K@", str(k)) for k in range(len(keys)))

    body = (
        _SOURCE.replace("@WIDTH@", str(WIDTH))
        .replace("@NEGLIGIBLE@", str(NEGLIGIBLE))
        .replace("@FORWARD@", cases(_FORWARD))
        .replace("@BACKWARD@", cases(_BACKWARD))
    )
    source = codegen.PRELUDES[dialect] + "\n\n" + "\n\n".join(functions) + "\n" + body
    return codegen.load("smooth_program_" + dialect, source)


def _kernels(x: Tensor, settings: str) -> ModuleType:
    return _module(settings, "numba32" if x.dtype == torch.float32 else "numba64")


def _arrays(tensors: list[Tensor]) -> list[np.ndarray]:
    x, *rest = tensors
    x = x.reshape(-1, x.shape[-1])
    return [t.detach().contiguous().numpy() for t in (x, *rest)]


def _over_blocks(kernel: Callable[..., None], arrays: list[np.ndarray], *more: np.ndarray) -> None:
    """The kernel on all blocks, in several threads (it holds no lock) where there is enough to do."""
    blocks = -(-arrays[0].shape[0] // WIDTH)
    work = arrays[0].shape[0] * arrays[3].shape[0]
    threads = min(workers(), blocks) if work >= PARALLEL_FROM else 1
    if threads == 1:
        kernel(0, blocks, *arrays, *more)
        return
    edges = [blocks * k // threads for k in range(threads + 1)]
    spread(kernel, [(a, b, *arrays, *more) for a, b in pairwise(edges)])


def program_forward(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    x, wanted = tensors[0], tensors[4]
    y = x.new_empty(*x.shape[:-1], wanted.shape[0])
    _over_blocks(_kernels(x, settings).forward, _arrays(tensors), y.view(-1, wanted.shape[0]).numpy())
    return [y], []


def program_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: str, needs: list[bool]
) -> list[Tensor]:
    x, steepness = tensors[0], tensors[1]
    arrays = _arrays(tensors)
    gx = np.zeros_like(arrays[0])
    gs = np.zeros((-(-arrays[0].shape[0] // WIDTH), steepness.shape[0]), dtype=gx.dtype)
    g = grads[0].detach().reshape(-1, grads[0].shape[-1]).contiguous().numpy()
    _over_blocks(_kernels(x, settings).backward, arrays, g, gx, gs)
    nothing = x.new_empty(0)
    by_steepness = torch.from_numpy(gs.sum(0)) if needs[1] else nothing
    return [torch.from_numpy(gx).reshape(x.shape), by_steepness, torch.zeros_like(tensors[2]), nothing, nothing]
