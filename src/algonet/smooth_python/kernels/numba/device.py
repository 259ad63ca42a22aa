"""Source of the CPU kernels, generated from the table of instructions: blocks of items side by side, one instruction at a
time, each a loop that LLVM vectorises.

Nothing is kept between forward and backward: backward runs the program again, block by block, but for rows whose values no
gradient depends on. Rows that no wanted row depends on run in neither, and where a gradient is 0 so are those before it: 0
times infinity is nobody's business.
"""

from __future__ import annotations

import re
import textwrap
from types import ModuleType

from algonet.core.cache import Cache
from algonet.core.codegen import generate as codegen
from algonet.relax import Relaxation

from ...machine import instructions
from ...machine.instructions import COLUMN, CONSTANT, COUNTER, ROW, STEEPNESS, Instruction

#: Items side by side.
WIDTH = 64

_SOURCE = '''
import numpy as np
from numpy import cos, exp as exact_exp, floor, log as exact_log, sin

W = @WIDTH@
#: How many rows each instruction reads.
READS = np.array(@READS@, dtype=np.int32)
#: Whether its gradient needs the values of these, and its own.
PULLS = np.array(@PULLS@, dtype=np.uint8)


@njit(fastmath={"contract"}, error_model="numpy")
def fma(a, b, c):
    return a * b + c


@njit(error_model="numpy")
def mixed(h):
    h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(h ^ np.uint32(h >> np.uint32(16)))


@njit(error_model="numpy")
def drawn(low, high, item, counter):
    """A number in [0, 1) with 24 bits."""
    h = mixed(np.uint32(np.uint32(item) ^ low))
    h = mixed(np.uint32(np.uint32(h + np.uint32(np.uint32(counter) * np.uint32(0x9E3779B9))) ^ high))
    return np.@FLOAT@(np.int32(h >> np.uint32(8))) * np.@FLOAT@(5.9604644775390625e-08)


@njit(error_model="numpy", cache=True)
def used_rows(program, wanted):
    """Which rows the wanted ones depend on."""
    used = np.zeros(program.shape[0], dtype=np.uint8)
    for j in range(wanted.shape[0]):
        used[wanted[j]] = 1
    for back in range(program.shape[0]):
        k = program.shape[0] - 1 - back
        if used[k]:
            for j in range(READS[program[k, 0]]):
                used[program[k, 1 + j]] = 1
    return used


@njit(error_model="numpy", cache=True)
def needed_rows(program, used):
    """Which rows the gradients of the used ones need the values of, and what these depend on."""
    needed = np.zeros(program.shape[0], dtype=np.uint8)
    for back in range(program.shape[0]):
        k = program.shape[0] - 1 - back
        if used[k]:
            code = program[k, 0]
            needed[k] |= PULLS[code, 3]
            for j in range(READS[code]):
                needed[program[k, 1 + j]] |= PULLS[code, j] | needed[k]
    return needed


@FUNCTIONS@


@njit(fastmath={"contract"}, error_model="numpy", cache=True)
def run_block(x, start, steepness, constants, program, low, high, used, rows):
    """All used rows of the items start ... start + W - 1."""
    items = min(W, x.shape[0] - start)
    for k in range(program.shape[0]):
        if not used[k]:
            continue
        code, first, second, third = program[k, 0], program[k, 1], program[k, 2], program[k, 3]
@FORWARD@


@njit(fastmath={"contract"}, error_model="numpy", cache=True)
def pull_block(start, steepness, constants, program, low, high, used, rows, slopes, gx, gs):
    """Gradients of one block, from the last instruction to the first; `slopes` comes in with those of the results."""
    items = min(W, gx.shape[0] - start)
    for back in range(program.shape[0]):
        k = program.shape[0] - 1 - back
        if not used[k]:
            continue
        code, first, second, third = program[k, 0], program[k, 1], program[k, 2], program[k, 3]
@BACKWARD@


@njit(fastmath={"contract"}, error_model="numpy", nogil=True, cache=True)
def forward(first, last, x, steepness, constants, program, wanted, seed, y):
    """Blocks first ... last - 1; threads take different ones."""
    rows = np.empty((program.shape[0], W), dtype=x.dtype)
    used = used_rows(program, wanted)
    low, high = np.uint32(seed[0]), np.uint32(seed[1])
    for block in range(first, last):
        run_block(x, block * W, steepness, constants, program, low, high, used, rows)
        for i in range(min(W, x.shape[0] - block * W)):
            for j in range(wanted.shape[0]):
                y[block * W + i, j] = rows[wanted[j], i]


@njit(fastmath={"contract"}, error_model="numpy", nogil=True, cache=True)
def backward(first, last, x, steepness, constants, program, wanted, seed, g, gx, gs):
    rows = np.empty((program.shape[0], W), dtype=x.dtype)
    slopes = np.empty((program.shape[0], W), dtype=x.dtype)
    used = used_rows(program, wanted)
    needed = needed_rows(program, used)
    low, high = np.uint32(seed[0]), np.uint32(seed[1])
    for block in range(first, last):
        run_block(x, block * W, steepness, constants, program, low, high, needed, rows)
        slopes[:] = 0.0
        for i in range(min(W, x.shape[0] - block * W)):
            for j in range(wanted.shape[0]):
                slopes[wanted[j], i] += g[block * W + i, j]
        pull_block(block * W, steepness, constants, program, low, high, used, rows, slopes, gx, gs[block])
'''
#: Each operand of one item, by where it comes from; `{name}` is a, b or c, `{place}` its number in the instruction.
_LOADS = {
    ROW: "{name} = rows[{place}, i]",
    COLUMN: "{name} = x[start + i, {place}] if i < items else @ZERO@",
    CONSTANT: "{name} = constants[{place}]",
    STEEPNESS: "{name} = steepness[{place}]",
    COUNTER: "",
}
_PLACES = {"a": "first", "b": "second", "c": "third"}


def kernels(formulas: tuple[Relaxation, ...], dialect: str) -> ModuleType:
    """The compiled module for programs with these relaxations; one for each state of the table."""
    table = tuple(instructions.with_relaxations(len(formulas)))
    return _MODULES.get((formulas, dialect, table), lambda: _module(formulas, dialect, table))


_MODULES: Cache[ModuleType] = Cache("kernels of smooth programs on the CPU", 256)


def _module(formulas: tuple[Relaxation, ...], dialect: str, table: tuple[Instruction, ...]) -> ModuleType:
    functions = [codegen.scalar_function(relax, f"formula{k}", dialect) for k, relax in enumerate(formulas)]
    number = "float32" if dialect == "numba32" else "float64"
    body = (
        _SOURCE.replace("@WIDTH@", str(WIDTH))
        .replace("@FLOAT@", number)
        .replace("@READS@", str([i.rows for i in table]))
        .replace("@PULLS@", str([_pulls(i) for i in table]))
        .replace("@FUNCTIONS@", _functions(table, dialect, "run") + "\n\n" + _functions(table, dialect, "pull"))
        .replace("@FORWARD@", _cases(table, dialect, "run"))
        .replace("@BACKWARD@", _cases(table, dialect, "pull"))
    )
    body = body.replace("@ZERO@", f"np.{number}(0.0)")
    source = codegen.PRELUDES[dialect] + "\n\n" + "\n\n".join(functions) + "\n" + body
    return codegen.load("smooth_program_" + dialect, source)


def _pulls(instruction: Instruction) -> list[int]:
    """Of which of a, b, c and its own value y the gradient of an instruction depends."""
    text = " ".join((instruction.before, *instruction.slopes)) if any(instruction.slopes) else ""
    return [int(re.search(rf"\b{name}\b", text) is not None) for name in "abcy"]


def _long(instruction: Instruction, name: str) -> bool:
    """Whether its loops have more than some arithmetic: a call costs less than they do, and saves their vectorisation."""
    if name == "pull":
        return any(slope not in ("", *_PLAIN) for slope in instruction.slopes)
    return bool(instruction.before or re.search(r"\b(exp|log|uniform)\(", instruction.value))


def _functions(table: tuple[Instruction, ...], dialect: str, name: str) -> str:
    """Longer instructions as functions of their own: in one large function LLVM gives up on vectorising their loops."""
    found = []
    for code, instruction in enumerate(table):
        if _long(instruction, name):
            body = textwrap.indent(_BODIES[name](instruction, dialect), "    ")
            found.append(f"{_DECORATOR}\ndef {name}{code}({_ARGUMENTS[name]}):  # {instruction.name}\n{body}\n")
    return "\n\n".join(found)


def _cases(table: tuple[Instruction, ...], dialect: str, name: str) -> str:
    """What each instruction does, chosen by its code; LLVM makes a jump table of it."""
    lines: list[str] = []
    for code, instruction in enumerate(table):
        lines.append(f"{'elif' if code else 'if'} code == {code}:  # {instruction.name}")
        call = f"{name}{code}({_ARGUMENTS[name]})"
        lines.append(textwrap.indent(call if _long(instruction, name) else _BODIES[name](instruction, dialect), "    "))
    return textwrap.indent("\n".join(lines), "        ")


_DECORATOR = '@njit(fastmath={"contract"}, error_model="numpy")'
_COMMON = "start, items, steepness, constants, low, high, first, second, third"
# Whole tables and numbers of rows: a row as an array of its own would be counted, at a higher price than most loops
_ARGUMENTS = {"run": f"k, rows, x, {_COMMON}", "pull": f"k, rows, slopes, gx, gs, {_COMMON}"}


def _loaded(instruction: Instruction, dialect: str) -> str:
    """Statements that load the operands of one item, and what the formulas have in common."""
    lines = []
    for name, kind in zip("abc", instruction.operands, strict=False):
        lines.append(_LOADS[kind].format(name=name, place=_PLACES[name]))
    if instruction.before:
        lines.append(codegen.translated(instruction.before, dialect))
    return "\n".join(line for line in lines if line)


def _formula(text: str, instruction: Instruction, dialect: str) -> str:
    found = codegen.translated(text, dialect)
    for name, kind in zip("abc", instruction.operands, strict=False):
        if kind == COUNTER:
            found = found.replace(f"uniform({name})", f"drawn(low, high, start + i, {_PLACES[name]})")
    return found


def _forward(instruction: Instruction, dialect: str) -> str:
    loads = _loaded(instruction, dialect)
    value = _formula(instruction.value, instruction, dialect)
    return "for i in range(W):\n" + textwrap.indent(f"{loads}\nrows[k, i] = {value}".strip("\n"), "    ")


_PLAIN = ("s", "-s")


def _backward(instruction: Instruction, dialect: str) -> str:
    """One loop for each operand: two operands may be the same row."""
    # The input's own numbers are not at hand here, nor needed
    loads = ["s = slopes[k, i]"]
    loads += [] if COLUMN in instruction.operands else ["y = rows[k, i]", _loaded(instruction, dialect)]
    loops: list[tuple[str, list[str]]] = []
    for name, kind, slope in zip("abc", instruction.operands, instruction.slopes, strict=False):
        if not slope:
            continue
        amount, place = _formula(slope, instruction, dialect), _PLACES[name]
        if "s" in slope and slope not in _PLAIN and not slope.startswith("where("):
            # No gradient stays none, whatever the numbers of a row that nobody's result depends on
            amount = (
                f"where(s == 0.0, s, {amount})" if dialect == "numba64" else f"where(s == float32(0.0), s, {amount})"
            )
        if kind == ROW:
            loops.append(("W", [*loads, f"slopes[{place}, i] += {amount}"]))
        elif kind == COLUMN:
            loops.append(("items", [*loads, f"gx[start + i, {place}] += {amount}"]))
        elif kind == STEEPNESS:
            # With the row before it: the curve is computed once. The row's own slope is of no further use
            loops[-1][1].append(f"slopes[k, i] = {amount}")
            loops.append(("items", [f"gs[{place}] += slopes[k, i]"]))
    return (
        "\n".join(f"for i in range({n}):\n" + textwrap.indent("\n".join(lines), "    ") for n, lines in loops) or "pass"
    )


_BODIES = {"run": _forward, "pull": _backward}
