"""Recorded programs on the CPU: blocks of items side by side, one instruction at a time, each a loop that LLVM vectorises.

The kernels' source is generated from the table of instructions. What a block does is listed by `schedule.py`; operands are
slots, addresses of a block's numbers. Nothing is kept between forward and backward: backward runs the program again, block by
block, as far as gradients need its values. Zero output gradients are skipped, so 0 * inf never arises.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from itertools import accumulate
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algonet.core.cache import Cache
from algonet.core.codegen import generate as codegen
from algonet.core.threads import spread, workers

from ..operation import COLUMN, CONSTANT, COUNTER, ROW, STEEPNESS, Instruction, ProgramSettings
from . import ProgramPlan, generated, schedule

#: Items times instructions from which on waking further threads pays.
PARALLEL_FROM = 4_000_000
#: Items side by side: more of them take fewer steps, until what backward keeps of them leaves the second cache.
WIDTH = 128

_SOURCE = '''
import numpy as np
from numba import @FLOAT@ as REAL, int32, uint32
from numpy import cos, exp as exact_exp, floor, log as exact_log, sin

from algonet.core.codegen.numba_pointers import offset, pointer_at

W = @WIDTH@
#: What `schedule.py` knows of each instruction.
table = np.array(@TABLE@, dtype=np.int32)
@FORMULAS@


@njit(fastmath={"contract"}, error_model="numpy")
def fma(a, b, c):
    return a * b + c


@njit(error_model="numpy")
def mixed(h):
    h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(h ^ np.uint32(h >> np.uint32(16)))


@njit(error_model="numpy")
def drawn(mixed_item, high, counter):
    """A number in [0, 1) with 24 bits, from an item mixed with one half of the seed, the other half, and a counter."""
    h = mixed(np.uint32(np.uint32(mixed_item + np.uint32(np.uint32(counter) * np.uint32(0x9E3779B9))) ^ high))
    return REAL(np.int32(h >> np.uint32(8))) * REAL(5.9604644775390625e-08)


@njit(error_model="numpy")
def mix_items(mixed_items, low, start):
    for i in range(W):
        mixed_items[i] = mixed(np.uint32(np.uint32(start + i) ^ low))


@njit(error_model="numpy")
def still(x):
    return REAL(0.0)


@njit(fastmath={"contract"}, error_model="numpy")
def run_block(steps, count, rows, x, columns, steepness, constants, mixed_items, high, start, items):
    """All steps on the items start ... start + W - 1."""
    for k in range(count):
        step = offset(steps, @STEP@ * k)
        code, own, first, second, third = step[0], step[1], step[2], step[3], step[4]
@FORWARD@


@njit(fastmath={"contract"}, error_model="numpy")
def pull_block(pulls, count, rows, slopes, gx, columns, gs, steepness, start, items):
    """Gradients of one block, from the last instruction to the first; `slopes` comes in with those of the results."""
    for k in range(count):
        step = offset(pulls, @PULL@ * k)
        code, place, first, second, third, own = step[0], step[2], step[3], step[4], step[5], step[6]
        result, started = step[1], step[7] != 0
@BACKWARD@


@njit(error_model="numpy", nogil=True, cache=True)
def forward(first, last, numbers, seed, run, results, memory):
    """Blocks first ... last - 1; threads take different ones, each with memory of its own. Arrays come by address:
    numbers (total, columns, x, steepness, constants), run (steps, count), results (y, slots, count), memory (rows, items)."""
    total, columns = numbers[0], numbers[1]
    x, steepness, constants = pointer_at(numbers[2], REAL), pointer_at(numbers[3], REAL), pointer_at(numbers[4], REAL)
    y, slots, wanted = pointer_at(results[0], REAL), pointer_at(results[1], int32), results[2]
    rows, mixed_items = pointer_at(memory[0], REAL), pointer_at(memory[1], uint32)
    steps, low, high = pointer_at(run[0], int32), np.uint32(seed[0]), np.uint32(seed[1])
    for block in range(first, last):
        start = block * W
        items = min(W, total - start)
        mix_items(mixed_items, low, start)
        run_block(steps, run[1], rows, x, columns, steepness, constants, mixed_items, high, start, items)
        for i in range(items):
            for j in range(wanted):
                y[(start + i) * wanted + j] = rows[slots[j] * W + i]


@njit(error_model="numpy", nogil=True, cache=True)
def backward(first, last, numbers, seed, run, pull, results, grads, memory):
    """As `forward`; pull (steps, count), results (gradients of the wanted rows, their slots or -1, count, slots to clear),
    grads (of x, of each block's steepness, number of those), memory (rows, items, slopes)."""
    total, columns = numbers[0], numbers[1]
    x, steepness, constants = pointer_at(numbers[2], REAL), pointer_at(numbers[3], REAL), pointer_at(numbers[4], REAL)
    g, slots, wanted = pointer_at(results[0], REAL), pointer_at(results[1], int32), results[2]
    gx, gs = pointer_at(grads[0], REAL), pointer_at(grads[1], REAL)
    rows, mixed_items, slopes = pointer_at(memory[0], REAL), pointer_at(memory[1], uint32), pointer_at(memory[2], REAL)
    steps, low, high = pointer_at(run[0], int32), np.uint32(seed[0]), np.uint32(seed[1])
    pulls = pointer_at(pull[0], int32)
    for block in range(first, last):
        start = block * W
        items = min(W, total - start)
        mix_items(mixed_items, low, start)
        run_block(steps, run[1], rows, x, columns, steepness, constants, mixed_items, high, start, items)
        for k in range(results[3] * W):
            slopes[k] = REAL(0.0)
        for i in range(items):
            for j in range(wanted):
                if slots[j] >= 0:
                    slopes[slots[j] * W + i] += g[(start + i) * wanted + j]
        of_block = offset(gs, block * grads[2])
        pull_block(pulls, pull[1], rows, slopes, gx, columns, of_block, steepness, start, items)
'''
#: Each operand of one item, by where it comes from; `{name}` is a, b or c, `{place}` its number in the step. An instruction's
#: own value, or its slope, is one of them for gradients.
OWN = ("y", ROW, "own"), ("slope", ROW, "own")
_LOADS = {
    ROW: "{name} = rows[{place} * W + i]",
    COLUMN: "{name} = x[(start + i) * columns + {place}] if i < items else REAL(0.0)",
    CONSTANT: "{name} = constants[{place}]",
    STEEPNESS: "{name} = steepness[{place}]",
    COUNTER: "",
    "slopes": "{name} = slopes[{place} * W + i]",
}
_BITS = {"a": 1, "b": 2, "c": 4, "y": schedule.READS_Y, "slope": schedule.READS_SLOPE}


def kernels(settings: ProgramSettings, dialect: str) -> ModuleType:
    """The compiled module for programs with these relaxations."""
    return generated(_source, settings, dialect)


def _source(table: list[Instruction], dialect: str) -> str:
    parts = {
        "WIDTH": WIDTH,
        "FLOAT": "float32" if dialect == "numba32" else "float64",
        "STEP": schedule.STEP,
        "PULL": schedule.PULL,
        "TABLE": [*map(_table_row, table)],
        "FORMULAS": "\n".join(f"formula{k} = curve{k}" for k in range(sum(bool(i.before) for i in table))),
        "FORWARD": _cases({code: _run(instruction, dialect) for code, instruction in enumerate(table)}),
        "BACKWARD": _cases(
            {
                3 * code + operand: _pull(instruction, operand, dialect)
                for code, instruction in enumerate(table)
                for operand, slope in enumerate(instruction.slopes)
                if slope
            }
        ),
    }
    return re.sub(r"@(\w+)@", lambda found: str(parts[found[1]]), _SOURCE)


def _table_row(instruction: Instruction) -> list[int]:
    """What `schedule.py` knows of an instruction."""
    gradients = [-1, -1, -1]
    for operand, slope in enumerate(instruction.slopes):
        if slope:
            gradients[operand] = sum(_BITS[name] for name, kind, _ in _read(instruction, slope) if kind == ROW)
    kinds = instruction.operands
    keeps_slope = "slope" in instruction.before
    return [instruction.rows, int(COLUMN in kinds), int(STEEPNESS in kinds), int(keeps_slope), *gradients]


def _read(instruction: Instruction, slope: str) -> list[tuple[str, str, str]]:
    """The operands, the own value and the slope, as far as a formula reads them."""
    return [source for source in (*instruction.sources, *OWN) if re.search(rf"\b{source[0]}\b", slope)]


def _cases(cases: dict[int, str]) -> str:
    return "\n".join(
        f"        {'elif' if k else 'if'} code == {code}:\n{textwrap.indent(case, ' ' * 12)}"
        for k, (code, case) in enumerate(cases.items())
    )


def _loop(count: str, sources: list[tuple[str, str, str]], *lines: str) -> str:
    loads = [_LOADS[kind].format(name=name, place=place) for name, kind, place in sources]
    return f"for i in range({count}):\n" + textwrap.indent("\n".join(filter(None, (*loads, *lines))), "    ")


def _run(instruction: Instruction, dialect: str) -> str:
    """A row from its operands. Where value and slope come from one formula, the slope is kept if somebody will read it."""
    value = _formula(instruction.value, instruction, dialect)
    lines = codegen.translated(instruction.before, dialect), f"rows[own * W + i] = {value}"
    found = _loop("W", instruction.sources, *lines)
    if not instruction.before:
        return found
    kept = _loop("W", instruction.sources, *lines, "rows[third * W + i] = slope")
    return f"if third < 0:\n{textwrap.indent(found, '    ')}\nelse:\n{textwrap.indent(kept, '    ')}"


def _formula(text: str, instruction: Instruction, dialect: str) -> str:
    return instruction.drawn(codegen.translated(text, dialect), "drawn(mixed_items[i], high, {place})")


def _pull(instruction: Instruction, operand: int, dialect: str) -> str:
    """Adds to the gradient of one operand, or begins it: two operands may be one row."""
    kind, slope = instruction.operands[operand], instruction.slopes[operand]
    sources = [("s", "slopes", "result"), *_read(instruction, slope)]
    amount = _formula(slope, instruction, dialect)
    if slope not in ("s", "-s") and not slope.startswith("where("):
        # No gradient stays none, whatever the numbers of a row that no result depends on
        amount = f"where(s == REAL(0.0), s, {amount})"
    if kind == ROW:
        place = "slopes[place * W + i]"
        return _loop("W", sources, f"{place} = where(started, {place}, REAL(0.0)) + {amount}")
    if kind == COLUMN:
        return _loop("items", sources, f"gx[(start + i) * columns + place] += {amount}")
    # Summed up by itself: the products run in vector registers. The row's own gradient is of no further use, as steepness
    # comes after rows
    products = _loop("W", sources, f"slopes[result * W + i] = {amount}")
    return products + "\nfor i in range(items):\n    gs[place] += slopes[result * W + i]"


#: Addresses of arrays and sizes, as `schedule.py` made them of a program; with the arrays, and with the tensors they were made
#: of: while these are kept, no others have their ids.
_SCHEDULES: Cache[tuple[tuple[int, ...], tuple[int, ...], tuple[np.ndarray, ...], Tensor, Tensor]] = Cache(
    "schedules of smooth programs", 1024, budget=2**24, weigh=lambda found: sum(array.nbytes for array in found[2])
)


def _scheduled(make: Callable[..., Any], tensors: Sequence[Tensor], module: ModuleType, *needs: bool) -> tuple:
    """A program's schedule by `make`; one that runs again is the same tensor, which nobody changes."""
    program, wanted = tensors[3], tensors[4]
    key = make, module, id(program), id(wanted), *needs
    found = _SCHEDULES.find(key)
    if found is None:
        arrays, sizes = make(program.numpy(), wanted.numpy(), module.table, *needs)
        found = _SCHEDULES.put(key, (tuple(a.ctypes.data for a in arrays), sizes, arrays, program, wanted))
    return found[:2]


def _over_blocks(kernel: Callable[..., None], x: Tensor, work: int, arguments: tuple, slots: tuple[int, ...]) -> None:
    """The kernel on all blocks, in several threads (it holds no lock) where there is enough to do; each has its own slots."""
    blocks = -(-x.shape[0] // WIDTH)
    threads = min(workers(), blocks) if work >= PARALLEL_FROM else 1
    # Rows, the items' part of draws (integers, which take no more than numbers do), and gradients
    row = WIDTH * x.element_size()
    starts = [0, *accumulate((slots[0], 1, *slots[1:]))]
    memory = x.new_empty(threads * starts[-1] * WIDTH)
    calls = []
    for k in range(threads):
        own = memory.data_ptr() + k * starts[-1] * row
        calls.append(
            (blocks * k // threads, blocks * (k + 1) // threads, *arguments, tuple(own + row * s for s in starts[:-1]))
        )
    spread(kernel, calls)


class SmoothProgramPlan(ProgramPlan):
    """On the CPU; kernels get addresses and sizes."""

    def _prepared(
        self, tensors: Sequence[Tensor], x: Tensor
    ) -> tuple[ModuleType, list[Tensor], tuple, tuple[int, int]]:
        """The kernels, steepness and constants as these can read them, sizes and addresses of all numbers, and the seed."""
        module = kernels(self.settings, "numba32" if x.dtype == torch.float32 else "numba64")
        read = [t.detach().contiguous() for t in tensors[1:3]]
        low, high = tensors[5].tolist()
        numbers = (*x.shape, *(t.data_ptr() for t in (x, *read)))
        return module, read, numbers, (low & 0xFFFFFFFF, high & 0xFFFFFFFF)

    def start(self, tensors: Sequence[Tensor], x: Tensor, y: Tensor) -> None:
        module, _held, numbers, seed = self._prepared(tensors, x)
        addresses, (steps, slots) = _scheduled(schedule.forward_schedule, tensors, module)
        arguments = (numbers, seed, (addresses[0], steps), (y.data_ptr(), addresses[1], y.shape[-1]))
        _over_blocks(module.forward, x, x.shape[0] * steps, arguments, (slots,))

    def pull(self, tensors: Sequence[Tensor], x: Tensor, g: Tensor, gx: Tensor, needs: Sequence[bool]) -> Tensor:
        module, (steepness, _), numbers, seed = self._prepared(tensors, x)
        asked = bool(needs[0]), bool(needs[1])
        addresses, (steps, slots, pulls, seeded, slopes) = _scheduled(
            schedule.backward_schedule, tensors, module, *asked
        )
        gs = x.new_zeros(-(-x.shape[0] // WIDTH), steepness.shape[0])
        results = (g.data_ptr(), addresses[2], g.shape[1], seeded)
        run, pull, out = (addresses[0], steps), (addresses[1], pulls), (gx.data_ptr(), gs.data_ptr(), gs.shape[1])
        arguments = (numbers, seed, run, pull, results, out)
        _over_blocks(module.backward, x, x.shape[0] * (steps + pulls), arguments, (slots, slopes))
        return gs.sum(0)
