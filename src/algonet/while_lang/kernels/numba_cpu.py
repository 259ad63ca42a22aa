"""The Numba dialect: blocks of elements, each statement a loop over the block that LLVM turns into vector code.

A block runs its loops until all its elements have stopped; statements between two jumps share one loop over the lanes.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from algonet.core.codegen import generate as codegen
from algonet.core.threads import spread, workers

from ..compiler import Close, Line, Open, Plan, Step, Test, activity, lower, seed, state_names, tangent

#: Elements of a block. Measured on the multiplication program, against one element at a time: 8 lanes 5 times, 16 lanes 8
#: times, 32 and 64 lanes 7 and 6 times faster (a block runs until its slowest element has stopped).
LANES = 16

#: Batches up to this size run on one thread: waking others costs more than it saves, far more on a busy machine.
ALONE = 512

_WORD = re.compile(r"[A-Za-z_]\w*")
_LITERAL = re.compile(r"(?<![\w.])\d+\.\d+(?:e-?\d+)?")


def kernel(plan: Plan, double: bool) -> Any:
    """The compiled function of a plan; see `source` for its arguments."""
    return codegen.load("while_numba", source(plan, double)).run


def launch(run: Any, tensors: list[Tensor], epsilon: float, cap: int, n: int) -> None:
    """Run a kernel on contiguous tensors, as `Plan.arguments` lists them, with as many threads as torch uses."""
    arguments = [*(t.detach().numpy().reshape(-1) for t in tensors), epsilon, cap, n]
    threads = workers() if n > ALONE else 1
    spread(run, [(i, threads, *arguments) for i in range(threads)])


def partial_sums(n: int, directions: int, like: Tensor) -> Tensor:
    """Room for the sums of a reducing kernel, one row per block."""
    return torch.zeros((n + LANES - 1) // LANES, directions, dtype=like.dtype)


def _constant(literal: str) -> str:
    return "C" + literal.replace(".", "_")


class _Writer:
    """Collects statements for the running loop over lanes, and writes it out when control flow intervenes."""

    def __init__(self, plan: Plan):
        self.rows = {name: row for row, name in enumerate(state_names(plan))}
        self.constants: set[str] = set()
        self.lines: list[str] = []
        self.pending: list[Line] = []
        self.indent = 2

    def write(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def flush(self, gather: bool = False) -> None:
        """Write the pending statements as one loop; `gather` also finds out whether any lane is live."""
        if gather:
            self.write("alive = int32(0)")
        if not self.pending:
            return
        reads, writes = self._traffic()
        self.write("for lane in range(LANES):")
        self.indent += 1
        for name in reads:
            self.write(f"{name} = state[{self.rows[name]}, lane]")
        for line in self.pending:
            self.write(f"{line.target} = {self._typed(line.expression)}")
        for name in writes:
            self.write(f"state[{self.rows[name]}, lane] = {name}")
        if gather:
            self.write("alive |= int32(live)")
        self.indent -= 1
        self.pending = []

    def _traffic(self) -> tuple[list[str], list[str]]:
        """State read before it is written in the pending statements, and state written."""
        reads: list[str] = []
        written: list[str] = []
        for line in self.pending:
            for name in _WORD.findall(line.expression):
                if name in self.rows and name not in written and name not in reads:
                    reads.append(name)
            for name in _WORD.findall(line.target):
                if name in self.rows and name not in written:
                    written.append(name)
        return reads, written

    def _typed(self, expression: str) -> str:
        """The expression with named constants for its literals, which Numba would take for float64 and compute in that."""

        def name(found: re.Match[str]) -> str:
            self.constants.add(found.group(0))
            return _constant(found.group(0))

        return _LITERAL.sub(name, expression.replace("ZERO", "0.0"))

    def steps(self, steps: list[Step]) -> None:
        for step in steps:
            if isinstance(step, Line):
                self.pending.append(step)
            elif isinstance(step, Test):
                self.pending.extend(step.lines)
                self.flush(gather=True)
            elif isinstance(step, Open):
                self.write(f"count{step.level} = 0")
                self.write(f"while alive != 0 and count{step.level} < cap:")
                self.indent += 1
                self.write(f"count{step.level} += 1")
            elif isinstance(step, Close):
                self.indent -= 1
        self.flush()


def source(plan: Plan, double: bool) -> str:
    """The module: `run(first, step, *plan.arguments)` runs blocks first, first + step, ...

    Neighbours take similarly long, so threads take turns instead of a half each.
    """
    dialect, real = ("numba64", "float64") if double else ("numba32", "float32")
    writer = _Writer(plan)
    _load(writer, plan, real)
    writer.steps(lower(plan))
    _store(writer, plan)
    body = "\n".join(writer.lines)
    constants = "\n".join(f"{_constant(c)} = np.{real}({c})" for c in sorted(writer.constants))
    return f'''"""Generated by algonet from the WHILE-program below; do not edit.

{plan.code.text}
exit {plan.exit.key}, directions {plan.directions}
"""
import numpy as np
from numba import int32, njit
{codegen.PRELUDES[dialect]}
LANES = {LANES}
{constants}
MOST = {"1e300" if double else "1e30"}


{codegen.scalar_function(plan.exit, "phi", dialect)}

@njit
def bounded(slope):
    """A tangent kept in range: a loop that never halts can drive it beyond, and a gradient must stay finite."""
    return min(max(slope, -MOST), MOST) if slope == slope else 0.0


@njit(fastmath={{"contract"}}, error_model="numpy", cache=True, nogil=True)
def run(first, step, {", ".join(plan.arguments)}):
    for block in range(first, (n + LANES - 1) // LANES, step):
        start = block * LANES
        stop = min(start + LANES, n)
{body}
'''


def _load(writer: _Writer, plan: Plan, real: str) -> None:
    names, active = plan.code.names, activity(plan)
    rows = writer.rows
    writer.write(f"state = np.zeros(({len(rows)}, LANES), np.{real})")
    writer.write(f"epsilon = np.{real}(epsilon)")
    if plan.scaled and not plan.per_element:
        writer.write("steepness = steepness_in[0]")
    if plan.scaled and plan.per_element:
        rows["steepness"] = len(rows)
        writer.lines[0] = f"        state = np.zeros(({len(rows)}, LANES), np.{real})"
    if plan.trainable:
        for number in plan.code.assignments.values():
            writer.write(f"w{number}, b{number} = weight[{number}], bias[{number}]")
    for name, place in plan.seeds:
        writer.write(f"{name} = seeds[{place}]")
    writer.write("for lane in range(stop - start):")
    writer.indent += 1
    writer.write("finite = True")
    for slot in plan.inputs:
        writer.write(f"given = in_{names[slot]}[start + lane]")
        writer.write("finite = finite and abs(given) < np.inf")
        writer.write(f"state[{rows[names[slot]]}, lane] = given if abs(given) < np.inf else 0.0")
        for d in sorted(active[names[slot]]):
            if seed(plan, names[slot], d) == "1.0":
                writer.write(f"state[{rows[tangent(names[slot], d)]}, lane] = 1.0")
    if "steepness" in rows:
        writer.write(f"state[{rows['steepness']}, lane] = steepness_in[start + lane]")
    writer.write(f"state[{rows['p0']}, lane] = 1.0 if finite else 0.0")
    writer.indent -= 1


def _store(writer: _Writer, plan: Plan) -> None:
    names, rows, active = plan.code.names, writer.rows, activity(plan)
    width, count = len(plan.outputs), len(plan.directions)
    poison = f" + state[{rows['poison']}, lane]" if plan.trainable else ""
    writer.write("for lane in range(stop - start):")
    writer.indent += 1
    writer.write("item = start + lane")
    writer.write(f"broken = state[{rows['p0']}, lane] == 0.0")
    for column, slot in enumerate(plan.outputs):
        if not plan.reduce:
            value = f"state[{rows[names[slot]]}, lane]{poison}"
            writer.write(f"values[item * {width} + {column}] = np.nan if broken else {value}")
    if plan.watched and not plan.reduce:
        for column, name in enumerate(("mass", "steps", "cut")):
            writer.write(f"diagnostics[item * 3 + {column}] = state[{rows[name]}, lane]")
    for d in range(len(plan.directions)):
        terms = []
        for column, slot in enumerate(plan.outputs):
            name = names[slot]
            slope = f"bounded(state[{rows[tangent(name, d)]}, lane])" if d in active[name] else "0.0"
            if plan.reduce:
                terms.append(f"grads[item * {width} + {column}] * {slope}")
            else:
                writer.write(f"slope_{d}[item * {width} + {column}] = 0.0 if broken else {slope}")
        if plan.reduce:
            writer.write("if not broken:")
            writer.write(f"    slopes[block * {count} + {d}] += {' + '.join(terms)}")
    writer.indent -= 1
