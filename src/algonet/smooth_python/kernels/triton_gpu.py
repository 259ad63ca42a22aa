"""Recorded programs on the GPU: a warp walks through the instructions for 32 items, its rows in global memory.

Every lane reads only what it wrote itself, so no barrier is needed. Nothing is kept between forward and backward:
backward runs the program again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType

import torch
from torch import Tensor

from algonet.core.codegen import generate as codegen

from ..operation import NEGLIGIBLE, RELAX, formula

#: Bytes of rows at a time; longer programs or larger batches run in several launches.
SCRATCH = 256 * 2**20
#: Items per program: one per lane of its single warp, so that rows never change hands between threads.
BLOCK = 32

_SOURCE = '''

@triton.jit
def run_rows(x, steepness, constants, program, rows, item, inside, lane, columns, length, BLOCK: tl.constexpr):
    """All rows of this block's items."""
    for k in tl.range(0, length, num_stages=1):
        code = tl.load(program + 4 * k)
        a = tl.load(program + 4 * k + 1)
        b = tl.load(program + 4 * k + 2)
        c = tl.load(program + 4 * k + 3)
        if code == 0:
            value = tl.load(x + item * columns + a, mask=inside, other=0.0)
            tl.store(rows + k * BLOCK + lane, value)
        elif code == 1:
            number = tl.load(constants + a)
            tl.store(rows + k * BLOCK + lane, tl.zeros((BLOCK,), dtype=number.dtype) + number)
        else:
            ra = tl.load(rows + a * BLOCK + lane)
            if code >= @RELAX@:
@FORWARD@
            elif code == 6:
                tl.store(rows + k * BLOCK + lane, -ra)
            elif code == 7:
                tl.store(rows + k * BLOCK + lane, tl.where(tl.abs(ra) > 1.0, 1.0, tl.abs(ra)))
            elif code == 15:
                tl.store(rows + k * BLOCK + lane, tl.exp(ra))
            elif code == 16:
                tl.store(rows + k * BLOCK + lane, tl.log(ra))
            elif code == 17:
                tl.store(rows + k * BLOCK + lane, tl.sqrt(ra))
            else:
                rb = tl.load(rows + b * BLOCK + lane)
                rc = tl.load(rows + c * BLOCK + lane)
                if code == 8:
                    tl.store(rows + k * BLOCK + lane, ra * rb + (1.0 - ra) * rc)
                elif code == 2:
                    tl.store(rows + k * BLOCK + lane, ra + rb)
                elif code == 3:
                    tl.store(rows + k * BLOCK + lane, ra - rb)
                elif code == 4:
                    tl.store(rows + k * BLOCK + lane, ra * rb)
                elif code == 5:
                    tl.store(rows + k * BLOCK + lane, ra / rb)
                elif code == 9:
                    tl.store(rows + k * BLOCK + lane, tl.where(ra > rb, ra, 0.0))
                elif code == 10:
                    tl.store(rows + k * BLOCK + lane, tl.where(ra > 0, rb, rc))
                elif code == 12:
                    inverse = 1.0 / tl.where(ra > @NEGLIGIBLE@, ra, 1.0)
                    tl.store(rows + k * BLOCK + lane, tl.where(ra > @NEGLIGIBLE@, inverse, 0.0))
                elif code == 13:
                    tl.store(rows + k * BLOCK + lane, tl.where(ra <= rb, 0.0, tl.where(ra >= rc, 1.0, ra)))
                elif code == 14:
                    tl.store(rows + k * BLOCK + lane, tl.where(ra < rb, rb, tl.where(ra > rc, rc, ra)))
                else:
                    tl.store(rows + k * BLOCK + lane, ra + rb * rc)


@triton.jit
def add_to(row, lane, amount):
    tl.store(row + lane, tl.load(row + lane) + amount)


@triton.jit
def forward_kernel(
    x, steepness, constants, program, wanted, y, scratch, start, count, columns, length, results, BLOCK: tl.constexpr
):
    block = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    item = (start + block) * BLOCK + lane
    inside = item < count
    rows = scratch + block * length * BLOCK
    run_rows(x, steepness, constants, program, rows, item, inside, lane, columns, length, BLOCK)
    for j in tl.range(0, results, num_stages=1):
        row = tl.load(wanted + j)
        tl.store(y + item * results + j, tl.load(rows + row * BLOCK + lane), mask=inside)


@triton.jit
def backward_kernel(
    x, steepness, constants, program, wanted, g, gx, gs, scratch, sums, start, count, columns, length, results, scales,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    item = (start + block) * BLOCK + lane
    inside = item < count
    rows = scratch + block * length * BLOCK
    slopes = sums + block * length * BLOCK
    gs = gs + (start + block) * scales * BLOCK
    run_rows(x, steepness, constants, program, rows, item, inside, lane, columns, length, BLOCK)
    for j in tl.range(0, results, num_stages=1):
        row = tl.load(wanted + j)
        add_to(slopes + row * BLOCK, lane, tl.load(g + item * results + j, mask=inside, other=0.0))
    for back in tl.range(0, length, num_stages=1):
        k = length - 1 - back
        code = tl.load(program + 4 * k)
        a = tl.load(program + 4 * k + 1)
        b = tl.load(program + 4 * k + 2)
        c = tl.load(program + 4 * k + 3)
        s = tl.load(slopes + k * BLOCK + lane)
        if code == 0:
            place = gx + item * columns + a
            tl.store(place, tl.load(place, mask=inside, other=0.0) + s, mask=inside)
        elif code > 1:
            ra = tl.load(rows + a * BLOCK + lane)
            if code >= @RELAX@:
@BACKWARD@
            elif code == 6:
                add_to(slopes + a * BLOCK, lane, -s)
            elif code == 7:
                away = tl.where(ra > 0, s, tl.where(ra < 0, -s, 0.0))
                add_to(slopes + a * BLOCK, lane, tl.where(tl.abs(ra) > 1.0, 0.0, away))
            elif code == 15:
                add_to(slopes + a * BLOCK, lane, s * tl.load(rows + k * BLOCK + lane))
            elif code == 16:
                add_to(slopes + a * BLOCK, lane, s / tl.where(inside, ra, 1.0))
            elif code == 17:
                root = tl.where(inside, tl.load(rows + k * BLOCK + lane), 1.0)
                add_to(slopes + a * BLOCK, lane, s / (root + root))
            else:
                rb = tl.load(rows + b * BLOCK + lane)
                rc = tl.load(rows + c * BLOCK + lane)
                if code == 8:
                    add_to(slopes + a * BLOCK, lane, s * (rb - rc))
                    add_to(slopes + b * BLOCK, lane, s * ra)
                    add_to(slopes + c * BLOCK, lane, s * (1.0 - ra))
                elif code == 2:
                    add_to(slopes + a * BLOCK, lane, s)
                    add_to(slopes + b * BLOCK, lane, s)
                elif code == 3:
                    add_to(slopes + a * BLOCK, lane, s)
                    add_to(slopes + b * BLOCK, lane, -s)
                elif code == 4:
                    add_to(slopes + a * BLOCK, lane, s * rb)
                    add_to(slopes + b * BLOCK, lane, s * ra)
                elif code == 5:
                    safe = tl.where(inside, rb, 1.0)
                    add_to(slopes + a * BLOCK, lane, s / safe)
                    add_to(slopes + b * BLOCK, lane, -s * ra / (safe * safe))
                elif code == 9:
                    add_to(slopes + a * BLOCK, lane, tl.where(ra > rb, s, 0.0))
                elif code == 10:
                    add_to(slopes + b * BLOCK, lane, tl.where(ra > 0, s, 0.0))
                    add_to(slopes + c * BLOCK, lane, tl.where(ra > 0, 0.0, s))
                elif code == 12:
                    inverse = 1.0 / tl.where(ra > @NEGLIGIBLE@, ra, 1.0)
                    add_to(slopes + a * BLOCK, lane, tl.where(ra > @NEGLIGIBLE@, -s * inverse * inverse, 0.0))
                elif code == 13:
                    add_to(slopes + a * BLOCK, lane, tl.where((ra <= rb) | (ra >= rc), 0.0, s))
                elif code == 14:
                    add_to(slopes + a * BLOCK, lane, tl.where((ra >= rb) & (ra <= rc), s, 0.0))
                    add_to(slopes + b * BLOCK, lane, tl.where(ra < rb, s, 0.0))
                    add_to(slopes + c * BLOCK, lane, tl.where(ra > rc, s, 0.0))
                else:
                    add_to(slopes + a * BLOCK, lane, s)
                    add_to(slopes + b * BLOCK, lane, s * rc)
                    add_to(slopes + c * BLOCK, lane, s * rb)
'''
_FORWARD = """
                if code == @CODE@:
                    value, slope = formula@K@(tl.load(steepness + b) * ra)
                    tl.store(rows + k * BLOCK + lane, tl.where(ra == ra, value, ra))
"""
_BACKWARD = """
                if code == @CODE@:
                    scale = tl.load(steepness + b)
                    value, slope = formula@K@(scale * ra)
                    add_to(slopes + a * BLOCK, lane, s * slope * scale)
                    add_to(gs + b * BLOCK, lane, tl.where(inside, s * slope * ra, 0.0))
"""


@functools.cache
def _module(settings: str) -> ModuleType:
    keys = settings.split()
    functions = [codegen.scalar_function(formula(key), f"formula{k}", "triton") for k, key in enumerate(keys)]

    def cases(text: str) -> str:
        found = "".join(text.replace("@CODE@", str(RELAX + k)).replace("@K@", str(k)) for k in range(len(keys)))
        return found.strip("\n") or "                pass"

    body = _SOURCE.replace("@FORWARD@", cases(_FORWARD)).replace("@BACKWARD@", cases(_BACKWARD))
    body = body.replace("@NEGLIGIBLE@", str(NEGLIGIBLE)).replace("@RELAX@", str(RELAX))
    return codegen.load("smooth_program_triton", codegen.PRELUDES["triton"] + "\n\n" + "\n\n".join(functions) + body)


class _Ready:
    """The tensors of a call as the kernels want them."""

    def __init__(self, tensors: list[Tensor]):
        x, steepness, constants, program, wanted = tensors
        self.x = x.reshape(-1, x.shape[-1]).contiguous()
        self.steepness = steepness.contiguous()
        self.constants = constants.contiguous()
        self.program = program.to(x.device, non_blocking=True).contiguous()
        self.wanted = wanted.to(x.device, non_blocking=True)
        self.count, self.columns = self.x.shape
        self.length, self.results = program.shape[0], wanted.shape[0]
        self.blocks = -(-self.count // BLOCK)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self.x, self.steepness, self.constants, self.program, self.wanted

    def launches(self, copies: int) -> Iterator[tuple[int, int]]:
        """(first block, blocks) of each launch, such that `copies` sets of rows fit into the scratch."""
        each = copies * self.length * BLOCK * self.x.element_size()
        size = max(1, min(self.blocks, SCRATCH // max(each, 1)))
        for start in range(0, self.blocks, size):
            yield start, min(size, self.blocks - start)


def program_forward(tensors: list[Tensor], settings: str) -> tuple[list[Tensor], list[Tensor]]:
    x = tensors[0]
    ready = _Ready(tensors)
    y = x.new_empty(ready.count, ready.results)
    sizes = (ready.count, ready.columns, ready.length, ready.results)
    for start, blocks in ready.launches(1):
        rows = x.new_empty(blocks, ready.length, BLOCK)
        _module(settings).forward_kernel[(blocks,)](
            *ready.inputs, y, rows, start, *sizes, BLOCK=BLOCK, num_warps=1, num_stages=1
        )
    return [y.reshape(*x.shape[:-1], ready.results)], []


def program_backward(
    grads: list[Tensor], tensors: list[Tensor], saved: list[Tensor], settings: str, needs: list[bool]
) -> list[Tensor]:
    x = tensors[0]
    ready = _Ready(tensors)
    gx = torch.zeros_like(ready.x)
    scales = ready.steepness.shape[0]
    gs = x.new_zeros(ready.blocks, scales, BLOCK)
    g = grads[0].reshape(ready.count, ready.results).contiguous()
    sizes = (ready.count, ready.columns, ready.length, ready.results, scales)
    for start, blocks in ready.launches(2):
        rows = x.new_empty(blocks, ready.length, BLOCK)
        slopes = x.new_zeros(blocks, ready.length, BLOCK)
        _module(settings).backward_kernel[(blocks,)](
            *ready.inputs, g, gx, gs, rows, slopes, start, *sizes, BLOCK=BLOCK, num_warps=1, num_stages=1
        )
    nothing = x.new_empty(0)
    by_steepness = gs.sum((0, 2)) if needs[1] else nothing
    return [gx.reshape(x.shape), by_steepness, torch.zeros_like(tensors[2]), nothing, nothing]
