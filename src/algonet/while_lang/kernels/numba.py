"""On the CPU: blocks of elements, each statement a loop over the block that LLVM turns into vector code.

A block runs its loops until all its elements have stopped; statements between two jumps share one loop over the lanes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from algonet.core.cache import cached
from algonet.core.codegen import generate as codegen
from algonet.core.threads import spread, workers

from ..compiler import HEAD, Emitter, KernelSpec, Line, lower
from . import WhilePlan

#: Elements of a block. Measured on the multiplication program, against one element at a time: 8 lanes 5 times, 16 lanes 8
#: times, 32 and 64 lanes 7 and 6 times faster (a block runs until its slowest element has stopped).
LANES = 16
#: Batches up to this size run on one thread: waking others costs more than it saves, far more on a busy machine.
ALONE = 512

_WORD = re.compile(r"[A-Za-z_]\w*")


class RunWhilePlan(WhilePlan):
    """On the CPU's cores."""

    block = LANES

    def starter(self, spec: KernelSpec) -> Callable[[list[Tensor]], None]:
        kernel = _kernel(spec, self.dtype == torch.float64)
        numbers = self.settings.epsilon, self.settings.max_iterations, self.n

        def start(tensors: list[Tensor]) -> None:
            arguments = *[t.detach().numpy().reshape(-1) for t in tensors], *numbers
            if self.n <= ALONE:
                kernel(0, 1, *arguments)
            else:
                # As many threads as torch uses
                threads = workers()
                spread(kernel, [(i, threads, *arguments) for i in range(threads)])

        return start


class _Writer(Emitter):
    """Collects statements for the running loop over lanes, and writes it out when control flow intervenes."""

    def __init__(self, state: Iterable[str], dialect: str):
        super().__init__(2)
        self.rows, self.dialect = {name: row for row, name in enumerate(state)}, dialect
        self.pending: list[Line] = []

    def line(self, line: Line) -> None:
        self.pending.append(line)

    def ask(self, level: int) -> None:
        self.write(f"alive{level} = int32(0)")
        self.flush(f"alive{level} |= int32(live)")

    def flush(self, last: str = "", lanes: str = "LANES") -> None:
        """Write the pending statements as one loop, and `last` behind them."""
        if not self.pending:
            return
        reads, writes = self._traffic()
        self.write(f"for lane in range({lanes}):")
        self.indent += 1
        if lanes != "LANES":
            self.write("item = start + lane")
        for name in reads:
            self.write(f"{name} = state[{self.rows[name]}, lane]")
        for line in self.pending:
            start, sign = ("if good: ", "+=") if line.target.startswith("slopes[") else ("", "=")
            value = line.expression.replace("ZERO", "0.0").replace("INSIDE", "True")
            self.write(f"{start}{line.target} {sign} {codegen.translated(value, self.dialect)}")
        for name in writes:
            self.write(f"state[{self.rows[name]}, lane] = {name}")
        if last:
            self.write(last)
        self.indent -= 1
        self.pending = []

    def _traffic(self) -> tuple[Iterable[str], Iterable[str]]:
        """State read before it is written in the pending statements, and state written."""
        reads: dict[str, None] = {}
        written: dict[str, None] = {}
        for line in self.pending:
            reads |= dict.fromkeys(n for n in _WORD.findall(line.expression) if n in self.rows and n not in written)
            written |= dict.fromkeys(n for n in _WORD.findall(line.target) if n in self.rows)
        return reads, written


@cached
def _kernel(spec: KernelSpec, double: bool) -> Any:
    return codegen.load("while_numba", source(spec, double)).run


def source(spec: KernelSpec, double: bool) -> str:
    """The module: `run(first, step, *spec.arguments)` runs blocks first, first + step, ...

    Neighbours take similarly long, so threads take turns instead of a half each.
    """
    dialect, real = ("numba64", "float64") if double else ("numba32", "float32")
    body = lower(spec)
    writer = _Writer(body.state, dialect)
    for line in body.shared:
        writer.write(f"{line.target} = {line.expression}")
    writer.pending = body.own
    writer.flush(lanes="stop - start")
    writer.steps(body.steps)
    writer.flush()
    writer.pending = body.last
    writer.flush(lanes="stop - start")
    return f'''{HEAD.format(spec=spec)}
import numpy as np
from numba import int32
{codegen.PRELUDES[dialect]}
LANES = {LANES}
MOST, NAN, INF = {"1e300" if double else "1e30"}, np.{real}(np.nan), np.{real}(np.inf)


{codegen.scalar_function(spec.settings.exit, "phi", dialect)}

@njit()
def bounded(slope):
    """A tangent kept in range: a loop that never halts can drive it beyond, and a gradient must stay finite."""
    return min(max(slope, -MOST), MOST) if slope == slope else 0.0


@njit(fastmath={{"contract"}}, error_model="numpy", cache=True, nogil=True)
def run(first, step, {", ".join(spec.arguments)}):
    for block in range(first, (n + LANES - 1) // LANES, step):
        start = block * LANES
        stop = min(start + LANES, n)
        state = np.zeros(({len(writer.rows)}, LANES), np.{real})
        epsilon = np.{real}(epsilon)
{chr(10).join(writer.lines)}
'''
