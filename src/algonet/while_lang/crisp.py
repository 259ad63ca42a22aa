"""The discrete interpreter: Python integers, bounded steps."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from .code import Code
from .errors import DidNotHaltError


def run_crisp(code: Code, inputs: Mapping[str, int], max_steps: int = 1_000_000) -> dict[str, int]:
    """Every variable's value after the program has halted.

    Integers, not naturals: `x1 := x1 - 1` at 0 gives -1, because that is what the smooth semantics does and both must
    agree. A loop over a negative variable that counts down therefore never halts. `DidNotHaltError` after `max_steps`
    operations, naming the loop that was running. Memory is one integer per variable.
    """
    values = [0] * len(code.names)
    for name, value in inputs.items():
        try:
            values[code.slots[name]] = operator.index(value)
        except TypeError:
            raise TypeError(
                f"crisp: `{name}` must be an integer, got {value!r}; the smooth program takes reals."
            ) from None
    position, steps, loop = 0, 0, 0
    ops = code.ops
    while position < len(ops):
        steps += 1
        if steps > max_steps:
            line = code.lines[loop] if code.lines else "?"
            raise DidNotHaltError(f"crisp: no halt within {max_steps} steps; the loop at line {line} was running.")
        kind, target, argument = ops[position]
        if kind == "add":
            values[target] += argument
        elif kind == "copy":
            values[target] = values[argument]
        elif kind in ("while", "if"):
            if values[target] == 0:
                position = argument
            elif kind == "while":
                loop = position
        elif kind == "else":
            position = argument
        elif kind == "end":
            position = argument
            continue
        position += 1
    return dict(zip(code.names, values, strict=True))
