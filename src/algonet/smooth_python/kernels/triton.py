"""Recorded programs on the GPU: a warp walks through the program for 32 items, its rows in global memory of bounded size.

The kernels' source is generated from the table of instructions. Every lane reads only what it wrote itself, so no barrier is
needed. Nothing is kept between forward and backward: backward runs the program again. Zero output gradients are skipped, so
0 * inf never arises.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from algonet.core.codegen import generate as codegen
from algonet.core.identity import PLANS
from algonet.core.launch import Launch

from ..operation import COLUMN, CONSTANT, COUNTER, ROW, STEEPNESS, Instruction
from . import ProgramPlan, generated

#: Bytes of rows at a time; longer programs or larger batches run in several launches.
SCRATCH = 256 * 2**20
#: Items per program: one per lane of its single warp, so that rows never change hands between threads.
BLOCK = 32

_SOURCE = '''
@triton.jit
def fma(a, b, c):
    return a * b + c


@triton.jit
def still(x):
    return tl.zeros_like(x)


@triton.jit
def mixed(h):
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def drawn(seed, item, counter):
    """A number in [0, 1) with 24 bits."""
    low = tl.load(seed).to(tl.uint32)
    high = tl.load(seed + 1).to(tl.uint32)
    zero = item.to(tl.uint32) * 0
    h = mixed(item.to(tl.uint32) ^ (zero + low))
    h = mixed((h + (zero + counter.to(tl.uint32)) * 0x9E3779B9) ^ (zero + high))
    return (h >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def add_to(row, lane, amount):
    tl.store(row + lane, tl.load(row + lane) + amount)


@triton.jit
def run_rows(
    x, steepness, constants, program, seed, rows, item, inside, lane, columns, length, BLOCK: tl.constexpr
):
    """All rows of this block's items."""
    for k in tl.range(0, length, num_stages=1):
        code = tl.load(program + 4 * k)
        first = tl.load(program + 4 * k + 1)
        second = tl.load(program + 4 * k + 2)
        third = tl.load(program + 4 * k + 3)
@FORWARD@


@kernel
def forward_kernel(
    x, steepness, constants, program, wanted, seed, y, scratch, start, count, columns, length, results,
    BLOCK: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    item = (start + block) * BLOCK + lane
    inside = item < count
    rows = scratch + block * length * BLOCK
    run_rows(x, steepness, constants, program, seed, rows, item, inside, lane, columns, length, BLOCK)
    for j in tl.range(0, results, num_stages=1):
        row = tl.load(wanted + j)
        tl.store(y + item * results + j, tl.load(rows + row * BLOCK + lane), mask=inside)


@kernel
def backward_kernel(
    x, steepness, constants, program, wanted, seed, g, gx, gs, scratch, sums, start, count, columns, length, results,
    scales, BLOCK: tl.constexpr,
):
    block = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    item = (start + block) * BLOCK + lane
    inside = item < count
    rows = scratch + block * length * BLOCK
    slopes = sums + block * length * BLOCK
    gs = gs + (start + block) * scales * BLOCK
    run_rows(x, steepness, constants, program, seed, rows, item, inside, lane, columns, length, BLOCK)
    for j in tl.range(0, results, num_stages=1):
        row = tl.load(wanted + j)
        add_to(slopes + row * BLOCK, lane, tl.load(g + item * results + j, mask=inside, other=0.0))
    for back in tl.range(0, length, num_stages=1):
        k = length - 1 - back
        code = tl.load(program + 4 * k)
        first = tl.load(program + 4 * k + 1)
        second = tl.load(program + 4 * k + 2)
        third = tl.load(program + 4 * k + 3)
        s = tl.load(slopes + k * BLOCK + lane)
        asked = inside & (s != 0.0)
@BACKWARD@
'''
#: What instructions call: a slope that is constant is a float32 to Triton, whatever the argument is.
_FORMULA = """
@triton.jit
def formula{k}(z):
    value, slope = curve{k}(z)
    return tl.zeros_like(z) + value, tl.zeros_like(z) + slope
"""
#: Each operand, by where it comes from; `{name}` is a, b or c, `{place}` its number in the instruction.
_LOADS = {
    ROW: "{name} = tl.load(rows + {place} * BLOCK + lane)",
    COLUMN: "{name} = tl.load(x + item * columns + {place}, mask=inside, other=0.0)",
    # The same for all items, but as many: a name must have one type in all branches
    CONSTANT: "{name} = tl.zeros((BLOCK,), dtype=constants.dtype.element_ty) + tl.load(constants + {place})",
    STEEPNESS: "{name} = tl.zeros((BLOCK,), dtype=steepness.dtype.element_ty) + tl.load(steepness + {place})",
    COUNTER: "",
}
#: Names that formulas use beside those of codegen's dialect.
_NAMES = {"exact_exp(": "tl.exp(", "exact_log(": "tl.log(", "cos(": "tl.cos(", "sin(": "tl.sin(", "floor(": "tl.floor("}


def _source(table: list[Instruction], dialect: str) -> str:
    formulas = (_FORMULA.format(k=k) for k in range(sum(bool(i.before) for i in table)))
    body = _SOURCE.replace("@FORWARD@", _tree(table, _forward)).replace("@BACKWARD@", _tree(table, _backward))
    return "\n\n".join([*formulas, body])


def _tree(table: list[Instruction], case: Callable[[Instruction], str]) -> str:
    """What each instruction does, found by halving the range of codes: Triton has no jump table."""

    def halves(first: int, last: int) -> str:
        if last - first == 1:
            return f"# {table[first].name}\n{case(table[first])}"
        middle = (first + last) // 2
        low, high = (textwrap.indent(halves(*part), "    ") for part in ((first, middle), (middle, last)))
        return f"if code < {middle}:\n{low}\nelse:\n{high}"

    return textwrap.indent(halves(0, len(table)), "        ")


def _formula(text: str, instruction: Instruction) -> str:
    found = codegen.translated(text, "triton")
    for name, theirs in _NAMES.items():
        found = found.replace(name, theirs)
    return instruction.drawn(found, "drawn(seed, item, {place})")


def _loads(instruction: Instruction) -> list[str]:
    lines = [_LOADS[kind].format(name=name, place=place) for name, kind, place in instruction.sources]
    return [line for line in (*lines, instruction.before) if line]


def _forward(instruction: Instruction) -> str:
    return "\n".join(
        [*_loads(instruction), f"tl.store(rows + k * BLOCK + lane, {_formula(instruction.value, instruction)})"]
    )


def _backward(instruction: Instruction) -> str:
    if not any(instruction.slopes):
        return "pass"
    lines = [] if COLUMN in instruction.operands else [*_loads(instruction), "y = tl.load(rows + k * BLOCK + lane)"]
    for (_, kind, place), slope in zip(instruction.sources, instruction.slopes, strict=False):
        if not slope:
            continue
        amount = f"tl.where(asked, {_formula(slope, instruction)}, 0.0)"
        if kind == ROW:
            lines.append(f"add_to(slopes + {place} * BLOCK, lane, {amount})")
        elif kind == COLUMN:
            lines.append(f"place = gx + item * columns + {place}")
            lines.append(f"tl.store(place, tl.load(place, mask=inside, other=0.0) + {amount}, mask=inside)")
        else:
            lines.append(f"add_to(gs + {place} * BLOCK, lane, {amount})")
    return "\n".join(lines)


def _launch(kernel: Any, x: Tensor, tensors: Sequence[Tensor], scales: dict[str, int], **results: Tensor) -> None:
    """The kernel on all blocks, as many at a time as rows (and, where there are scales, gradients of rows) fit for. A launch is
    made once for each size of batch and program."""
    _, steepness, constants, program, wanted, seed = tensors
    length, blocks = program.shape[0], -(-x.shape[0] // BLOCK)
    inputs = {"x": x, "steepness": steepness.contiguous(), "constants": constants.contiguous(), **results}
    inputs["program"] = program.to(x.device, non_blocking=True).contiguous()
    inputs |= {name: t.to(x.device, non_blocking=True) for name, t in (("wanted", wanted), ("seed", seed))}
    each = (2 if scales else 1) * length * BLOCK * x.element_size()
    most = max(1, min(blocks, SCRATCH // max(each, 1)))
    for start in range(0, blocks, most):
        some = min(most, blocks - start)
        sizes: dict[str, Any] = {"start": start, "count": x.shape[0], "columns": x.shape[1], "length": length}
        sizes |= {"results": wanted.shape[0], **scales}
        key = (kernel, x.dtype, x.get_device(), some, *sizes.values())
        launch = PLANS.find(key) or PLANS.put(key, Launch(kernel, some, warps=1, BLOCK=BLOCK, **sizes))
        inputs["scratch"] = x.new_empty(some, length, BLOCK)
        if scales:
            inputs["sums"] = x.new_zeros(some, length, BLOCK)
        launch.start(**inputs)


class SmoothProgramPlan(ProgramPlan):
    """On a GPU."""

    def start(self, tensors: Sequence[Tensor], x: Tensor, y: Tensor) -> None:
        _launch(generated(_source, self.settings, "triton").forward_kernel, x, tensors, {}, y=y)

    def pull(self, tensors: Sequence[Tensor], x: Tensor, g: Tensor, gx: Tensor, needs: Sequence[bool]) -> Tensor:
        scales = tensors[1].shape[0]
        gs = x.new_zeros(-(-x.shape[0] // BLOCK), scales, BLOCK)
        kernel = generated(_source, self.settings, "triton").backward_kernel
        _launch(kernel, x, tensors, {"scales": scales}, g=g, gx=gx, gs=gs)
        return gs.sum((0, 2))
