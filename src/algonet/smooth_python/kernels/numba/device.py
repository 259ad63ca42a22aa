"""Source of the CPU kernels, generated from the table of instructions: blocks of items side by side, one instruction at a
time, each a loop that LLVM vectorises.

What a block does is listed by `schedule.py`; operands are slots, addresses of a block's numbers. Nothing is kept between
forward and backward: backward runs the program again, block by block, as far as gradients need its values. Where a gradient
is 0 so are those before it: 0 times infinity is nobody's business.
"""

from __future__ import annotations

import re
import textwrap
from types import ModuleType

import numpy as np

from algonet.core.codegen import generate as codegen
from algonet.core.identity import PLANS
from algonet.relax import Relaxation

from ...machine import instructions
from ...machine.instructions import COLUMN, CONSTANT, COUNTER, ROW, STEEPNESS, Instruction
from . import schedule

#: Items side by side: more of them take fewer steps, until what backward keeps of them leaves the second cache.
WIDTH = 128

_SOURCE = '''
import numpy as np
from numba import @FLOAT@ as REAL, int32, uint32
from numpy import cos, exp as exact_exp, floor, log as exact_log, sin

from algonet.core.codegen.numba_pointers import offset, pointer_at

W = @WIDTH@


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


@FUNCTIONS@


@njit(fastmath={"contract"}, error_model="numpy")
def run_block(steps, count, rows, x, columns, steepness, constants, mixed_items, high, start, items):
    """All steps on the items start ... start + W - 1."""
    for k in range(count):
        step = offset(steps, @STEP@ * k)
        code, first, second, third = step[0], step[2], step[3], step[4]
        y = offset(rows, step[1] * W)
@FORWARD@


@njit(fastmath={"contract"}, error_model="numpy")
def pull_block(pulls, count, rows, slopes, gx, columns, gs, steepness, start, items):
    """Gradients of one block, from the last instruction to the first; `slopes` comes in with those of the results."""
    for k in range(count):
        step = offset(pulls, @PULL@ * k)
        code, place, first, second, third, own = step[0], step[2], step[3], step[4], step[5], step[6]
        s, started = offset(slopes, step[1] * W), step[7] != 0
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
#: Each operand of one item, by where it comes from; `{name}` is a, b or c, `{place}` its number in the step.
_LOADS = {
    ROW: "{name} = {name}_row[i]",
    COLUMN: "{name} = x[(start + i) * columns + {place}] if i < items else REAL(0.0)",
    CONSTANT: "{name} = constants[{place}]",
    STEEPNESS: "{name} = steepness[{place}]",
    COUNTER: "",
}
_PLACES = {"a": "first", "b": "second", "c": "third"}
_BITS = {
    "a": schedule.READS_A,
    "b": schedule.READS_B,
    "c": schedule.READS_C,
    "y": schedule.READS_Y,
    "slope": schedule.READS_SLOPE,
}
_DECORATOR = '@njit(fastmath={"contract"}, error_model="numpy")'
_PLAIN = ("s", "-s")


def kernels(formulas: tuple[Relaxation, ...], dialect: str) -> ModuleType:
    """The compiled module for programs with these relaxations; one for each state of the table."""
    key = (formulas, dialect, *instructions.TABLE.values())
    return PLANS.get(("smooth programs on the CPU", *key), lambda: _module(formulas, dialect))


def _module(formulas: tuple[Relaxation, ...], dialect: str) -> ModuleType:
    table = instructions.with_relaxations(len(formulas))
    functions = [codegen.scalar_function(relax, f"formula{k}", dialect) for k, relax in enumerate(formulas)]
    runs, pulls, run_cases, pull_cases = [], [], [], []
    for code, instruction in enumerate(table):
        run_cases += [
            f"{'elif' if code else 'if'} code == {code}:  # {instruction.name}",
            *_run_case(code, instruction),
        ]
        runs += _runs(code, instruction, dialect)
        for operand, slope in enumerate(instruction.slopes):
            if slope:
                name = f"# {instruction.name}, operand {operand}"
                word = "elif" if pull_cases else "if"
                pull_cases += [f"{word} code == {3 * code + operand}:  {name}", _pull_case(code, operand, instruction)]
                pulls.append(_pull(code, operand, instruction, dialect))
    body = (
        _SOURCE.replace("@WIDTH@", str(WIDTH))
        .replace("@FLOAT@", "float32" if dialect == "numba32" else "float64")
        .replace("@STEP@", str(schedule.STEP))
        .replace("@PULL@", str(schedule.PULL))
        .replace("@FUNCTIONS@", "\n\n".join(runs + pulls))
        .replace("@FORWARD@", textwrap.indent("\n".join(run_cases), " " * 8))
        .replace("@BACKWARD@", textwrap.indent("\n".join(pull_cases), " " * 8))
    )
    source = codegen.PRELUDES[dialect] + "\n\n" + "\n\n".join(functions) + "\n" + body
    module = codegen.load("smooth_program_" + dialect, source)
    module.__dict__["table"] = np.array([_table_row(i) for i in table], dtype=np.int32)
    return module


def _table_row(instruction: Instruction) -> list[int]:
    """What `schedule.py` knows of an instruction."""
    gradients = [-1, -1, -1]
    for operand, slope in enumerate(instruction.slopes):
        if slope:
            gradients[operand] = sum(_BITS[name] for name in _read(instruction, slope) if _kept(instruction, name))
    kinds = instruction.operands
    return [instruction.rows, int(COLUMN in kinds), int(STEEPNESS in kinds), int(_keeps_slope(instruction)), *gradients]


def _read(instruction: Instruction, slope: str) -> list[str]:
    """The operands, the own value and the slope, as far as a formula reads them."""
    names = [*"abc"[: len(instruction.operands)], "y", "slope"]
    return [name for name in names if re.search(rf"\b{name}\b", slope)]


def _kept(instruction: Instruction, name: str) -> bool:
    """Whether a name is that of a row (or of a slope), and not of a number that is at hand."""
    return name in ("y", "slope") or instruction.operands["abc".index(name)] == ROW


def _keeps_slope(instruction: Instruction) -> bool:
    """Whether value and slope come from one formula, which is then computed once for both."""
    return "slope" in instruction.before


#: What a function needs besides rows to load an operand.
_NEEDS = {
    COLUMN: "x, columns, start, items, first",
    CONSTANT: "constants, {place}",
    STEEPNESS: "steepness, {place}",
    COUNTER: "mixed_items, high, {place}",
    ROW: "{name}_row",
}


def _run_arguments(instruction: Instruction) -> list[str]:
    kinds = zip("abc", instruction.operands, strict=False)
    return [_NEEDS[kind].format(name=name, place=_PLACES[name]) for name, kind in kinds]


def _runs(code: int, instruction: Instruction, dialect: str) -> list[str]:
    """The function of an instruction: a row from its operands. With a slope to keep there are two of them."""
    lines = []
    for name, kind in zip("abc", instruction.operands, strict=False):
        lines.append(_LOADS[kind].format(name=name, place=_PLACES[name]))
    lines.append(codegen.translated(instruction.before, dialect))
    lines.append(f"y[i] = {_formula(instruction.value, instruction, dialect)}")
    body = [line for line in lines if line]
    arguments = ", ".join(["y", *_run_arguments(instruction)])
    found = [_function(f"run{code}", arguments, "W", body)]
    if _keeps_slope(instruction):
        found.append(_function(f"run{code}_slope", "slopes, " + arguments, "W", [*body, "slopes[i] = slope"]))
    return found


def _function(name: str, arguments: str, count: str, lines: list[str]) -> str:
    body = textwrap.indent("\n".join(lines), " " * 8)
    return f"{_DECORATOR}\ndef {name}({arguments}):\n    for i in range({count}):\n{body}\n"


def _passed(arguments: list[str]) -> str:
    """Arguments as the block has them: rows by their slots."""
    rows = {f"{name}_row": f"offset(rows, {place} * W)" for name, place in _PLACES.items()}
    return ", ".join(rows.get(argument, argument) for argument in arguments)


def _run_case(code: int, instruction: Instruction) -> list[str]:
    arguments = _passed(["y", *_run_arguments(instruction)])
    if not _keeps_slope(instruction):
        return [f"    run{code}({arguments})"]
    with_slope = f"        run{code}_slope(offset(rows, third * W), {arguments})"
    return ["    if third < 0:", f"        run{code}({arguments})", "    else:", with_slope]


def _formula(text: str, instruction: Instruction, dialect: str) -> str:
    found = codegen.translated(text, dialect)
    for name, kind in zip("abc", instruction.operands, strict=False):
        if kind == COUNTER:
            found = found.replace(f"uniform({name})", f"drawn(mixed_items[i], high, {_PLACES[name]})")
    return found


def _pull_arguments(operand: int, instruction: Instruction) -> list[str]:
    kind, slope = instruction.operands[operand], instruction.slopes[operand]
    target = {ROW: "g, started", COLUMN: "gx, columns, start, items, place", STEEPNESS: "gs, items, place"}[kind]
    found = [target, "s_row"]
    for name in _read(instruction, slope):
        if name in ("y", "slope"):
            found.append("own_row")
        else:
            of = instruction.operands["abc".index(name)]
            found.append(_NEEDS[of].format(name=name, place=_PLACES[name]))
    return found


def _pull_case(code: int, operand: int, instruction: Instruction) -> str:
    arguments = _passed(_pull_arguments(operand, instruction))
    arguments = arguments.replace("own_row", "offset(rows, own * W)").replace("s_row", "s")
    return f"    pull{code}_{operand}({re.sub(r'^g,', 'offset(slopes, place * W),', arguments)})"


def _pull(code: int, operand: int, instruction: Instruction, dialect: str) -> str:
    """The function that adds to the gradient of one operand, or begins it: two operands may be the same row."""
    kind, slope = instruction.operands[operand], instruction.slopes[operand]
    lines = ["s = s_row[i]"]
    for name in _read(instruction, slope):
        if name in ("y", "slope"):
            lines.append(f"{name} = own_row[i]")
        else:
            of = instruction.operands["abc".index(name)]
            lines.append(_LOADS[of].format(name=name, place=_PLACES[name]))
    amount = _formula(slope, instruction, dialect)
    if slope not in _PLAIN and not slope.startswith("where("):
        # No gradient stays none, whatever the numbers of a row that nobody's result depends on
        amount = f"where(s == REAL(0.0), s, {amount})"
    arguments = ", ".join(_pull_arguments(operand, instruction))
    if kind == ROW:
        return _function(
            f"pull{code}_{operand}", arguments, "W", [*lines, f"g[i] = where(started, g[i], REAL(0.0)) + {amount}"]
        )
    if kind == COLUMN:
        lines.append(f"gx[(start + i) * columns + place] += {amount}")
        return _function(f"pull{code}_{operand}", arguments, "items", lines)
    # Summed up by itself: the products run in vector registers. The row's own gradient is of no further use, as steepness
    # comes after rows
    return (
        _function(f"pull{code}_{operand}", arguments, "W", [*lines, f"s_row[i] = {amount}"])
        + "    for i in range(items):\n        gs[place] += s_row[i]\n"
    )
