"""The instructions of recorded programs: one table, from which the reference and all kernels are generated.

An instruction makes a row of numbers, one per item, out of up to three operands a, b and c: y = value. `slopes` says what a
gradient s of y adds to the gradient of each operand. Formulas are written in codegen's dialect (`abs, exp, log, sqrt, where,
minimum, maximum`) with a few names more: `fma(a, b, c)` = a b + c; `exact_exp`, `exact_log`, `cos`, `sin`, `floor`;
`uniform(a)`, the number in [0, 1) that the call's seed, the item and the counter a give; `still(a)`, 0 with the slope of a.

A new instruction is a new row here. Nothing else knows what any of them computes, and none is known by a number:
a program refers to them by their place in this table, and kernels are generated with the same places.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

#: Below this share of the mass a state is of no consequence; the square of its reciprocal is finite in float32.
NEGLIGIBLE = 1e-18

ROW, COLUMN, CONSTANT, STEEPNESS, COUNTER = "row", "column", "constant", "steepness", "counter"
#: The operands, and what kernels call their numbers.
PLACES = {"a": "first", "b": "second", "c": "third"}
#: Where the reference finds each operand; a counter is the number itself.
_LOADS = {ROW: "rows[{}]", COLUMN: "columns[{}]", CONSTANT: "constants[{}]", COUNTER: "{}"}


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.addcmul(c, a, b) if a.dtype == b.dtype == c.dtype else a * b + c


def _still(x: Tensor) -> Tensor:
    return x - x.detach()


#: The names of the formulas, in torch's terms.
TORCH_NAMES = {
    name: getattr(torch, name) for name in ("abs", "sqrt", "where", "cos", "sin", "floor", "minimum", "maximum")
}
TORCH_NAMES |= {"exp": torch.exp, "log": torch.log, "exact_exp": torch.exp, "exact_log": torch.log}
TORCH_NAMES |= {"fma": _fma, "still": _still}


# eq=False: the table is part of a key in every call, and an instruction is no other one with the same formulas
@dataclass(frozen=True, eq=False)
class Instruction:
    """y = value(a, b, c). `operands` says where each comes from: an earlier row of the program, a column of its input, one of
    its constants, one of its steepnesses, or the number itself. Rows come first."""

    name: str
    value: str
    slopes: tuple[str, ...] = ()
    operands: tuple[str, ...] = ()
    #: What both formulas need first.
    before: str = ""
    #: The value in plain torch: step(uniform, rows, columns, constants, a, b, c), by the numbers of its operands.
    step: Callable[..., Tensor] = field(init=False, repr=False)

    def __post_init__(self):
        if self.before:
            return
        loads = [f"{name} = {_LOADS[kind].format(name)}; " for name, kind, _ in self.sources]
        scope: dict[str, Any] = dict(TORCH_NAMES)
        exec(f"def step(uniform, rows, columns, constants, a, b, c): {''.join(loads)}return {self.value}", scope)
        object.__setattr__(self, "step", scope["step"])

    @property
    def sources(self) -> list[tuple[str, str, str]]:
        """Of each operand its name, where it comes from, and what kernels call its number in the instruction."""
        return [(name, kind, place) for (name, place), kind in zip(PLACES.items(), self.operands, strict=False)]

    def drawn(self, formula: str, draw: str) -> str:
        """The formula with a kernel's own words for its random numbers."""
        for name, kind, place in self.sources:
            if kind == COUNTER:
                formula = formula.replace(f"uniform({name})", draw.format(place=place))
        return formula

    @property
    def rows(self) -> int:
        return sum(kind == ROW for kind in self.operands)


def _rows(name: str, value: str, *slopes: str) -> Instruction:
    """An instruction on rows, as many as it has slopes."""
    return Instruction(name, value, slopes, (ROW,) * len(slopes))


#: No gradient: `slopes` has one entry for each operand.
NONE = ""
_INSTRUCTIONS = (
    Instruction("input", "a", ("s",), (COLUMN,)),
    Instruction("const", "a", (NONE,), (CONSTANT,)),
    _rows("add", "a + b", "s", "s"),
    _rows("sub", "a - b", "s", "-s"),
    _rows("mul", "a * b", "s * b", "s * a"),
    _rows("truediv", "a / b", "s / b", "-(s / b) * y"),
    _rows("neg", "-a", "-s"),
    _rows("mix", "fma(a, b, (1.0 - a) * c)", "s * (b - c)", "s * a", "s * (1.0 - a)"),
    _rows("select", "where(a > 0.0, b, c)", NONE, "where(a > 0.0, s, 0.0)", "where(a > 0.0, 0.0, s)"),
    # The mean over a coin that shows b with probability a: who is certain does not look at the other way, whatever is there
    _rows(
        "expect",
        "where(a <= 0.0, c, where(a >= 1.0, b, fma(a, b, (1.0 - a) * c)))",
        "where((a <= 0.0) | (a >= 1.0), 0.0, s * (b - c))",
        "where(a <= 0.0, 0.0, where(a >= 1.0, s, s * a))",
        "where(a >= 1.0, 0.0, where(a <= 0.0, s, s * (1.0 - a)))",
    ),
    _rows("accumulate", "fma(b, c, a)", "s", "s * c", "s * b"),
    _rows(
        "truth",
        "where(abs(a) > 1.0, 1.0, abs(a))",
        "where(abs(a) > 1.0, 0.0, where(a > 0.0, s, where(a < 0.0, -s, 0.0)))",
    ),
    _rows("cut", "where(a > b, a, 0.0)", "where(a > b, s, 0.0)", NONE),
    _rows(
        "snap",
        "where(a <= b, 0.0, where(a >= c, 1.0, a))",
        "where((a <= b) | (a >= c), 0.0, s)",
        NONE,
        NONE,
    ),
    _rows(
        "clamp",
        # As torch has it where the bounds cross: the upper one
        "where((a > c) | ((b > c) & (a == a)), c, where(a < b, b, a))",
        "where((a >= b) & (a <= c), s, 0.0)",
        "where((a < b) & (b <= c), s, 0.0)",
        "where((a > c) | (b > c), s, 0.0)",
    ),
    _rows(
        "reciprocal",
        f"where(a > {NEGLIGIBLE:.1e}, 1.0 / where(a > {NEGLIGIBLE:.1e}, a, 1.0), 0.0)",
        "-s * y * y",
    ),
    _rows("exp", "exact_exp(a)", "s * y"),
    _rows("log", "exact_log(a)", "s / a"),
    _rows("sqrt", "sqrt(a)", "s / (y + y)"),
    _rows("cos", "cos(a)", "-s * sin(a)"),
    _rows("floor", "floor(a)", NONE),
    # A random number, a coin that shows 1 with probability a, and the logarithm of the probability of what coins showed:
    # a before this one, whose probability was b and which showed c. Nobody asks for more than its slopes
    Instruction("uniform", "uniform(a)", (NONE,), (COUNTER,)),
    Instruction("coin", "where(uniform(b) < a, 1.0, 0.0)", (NONE, NONE), (ROW, COUNTER)),
    _rows(
        "tally",
        "a + still(log(where(c > 0.0, b, 1.0 - b)))",
        "s",
        "s / where(c > 0.0, b, b - 1.0)",
        NONE,
    ),
)
TABLE: dict[str, Instruction] = {instruction.name: instruction for instruction in _INSTRUCTIONS}


def relaxation(number: int) -> Instruction:
    """The instruction of a program's relaxation with that number: its curve at steepness b times a."""
    return Instruction(
        f"relaxation {number}",
        # Outside of its curve's own comparisons a formula may answer a number that is none by a number
        "where(a == a, curve, a)",
        ("s * slope * b", "s * slope * a"),
        (ROW, STEEPNESS),
        f"curve, slope = formula{number}(b * a)",
    )


def code_of(name: str) -> int:
    """The place of an instruction in the table."""
    return list(TABLE).index(name)


def with_relaxations(count: int) -> list[Instruction]:
    """All instructions of programs with so many relaxations, in the order of their codes."""
    return [*TABLE.values(), *(relaxation(k) for k in range(count))]
