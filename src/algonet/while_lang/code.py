"""From the syntax tree to flat code, which interpreters run and the compiler reads; and the discrete interpreter.

Desugaring writes every statement beyond the paper's grammar in the paper's grammar:

    x1 := 5                      x1 := z, then five increments                (z: a variable that stays 0)
    x1 := x2 + 3                 x1 := x2, then three increments
    LOOP x1 DO P END             t := x1   WHILE t != 0 DO  P  t := t - 1  END
    IF x1 != 0 DO P END          t := x1   WHILE t != 0 DO  P  t := z  END
    IF x1 != 0 DO P ELSE Q END   t := x1   e := 1   WHILE t != 0 DO  P  e := z  t := z  END   WHILE e != 0 DO  Q  e := z  END

`IF x1 = 0` is the same with P and Q exchanged. t, e and z are fresh: numbered beyond every variable of the program.

A branch written as loops computes the same on integers only: between them its loops run more than once. Smooth runs
therefore keep branches, and mix what the two parts give.

Flat code is one operation after the other, loops by jumps. Variables become slots 0, 1, 2, ... Neighbouring increments of one
variable are one operation, unless each has parameters.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from algonet.core.cache import cached

from .syntax import Assign, DidNotHaltError, If, Loop, Program, Statement, While, add_to


def desugar(program: Program, *, branches: bool = False) -> Program:
    """The same program in the paper's grammar alone; line numbers still point into the original source.

    `branches` keeps each IF, with its parts desugared.

    >>> from .syntax import parse
    >>> print(desugar(parse("LOOP x1 DO x0 := x0 + 2 END")).text, end="")
    x2 := x1
    WHILE x2 != 0 DO
        x0 := x0 + 1
        x0 := x0 + 1
        x2 := x2 - 1
    END
    """
    if program.is_core:
        return program
    first = max(program.all_variables) + 1
    fresh = count(first)
    zero: list[int] = []

    def block(body: Iterable[Statement]) -> tuple[Statement, ...]:
        return tuple(core for statement in body for core in desugared(statement))

    def desugared(statement: Statement) -> Iterator[Statement]:
        line = statement.line
        match statement:
            case Assign(target=target, source=source, offset=offset):
                if source is None:
                    zero[:] = zero or [next(fresh)]
                    source = zero[0]
                if source != target:
                    yield Assign(target, source, line=line)
                yield from (add_to(target, 1 if offset > 0 else -1, line) for _ in range(abs(offset)))
            case While(variable=variable, body=body):
                yield While(variable, block(body), line=line)
            case Loop(variable=variable, body=body):
                counter = next(fresh)
                turn = *body, add_to(counter, -1, line)
                yield from block((Assign(counter, variable, line=line), While(counter, turn, line=line)))
            case If(variable=variable) if branches:
                parts = block(statement.body), block(statement.otherwise)
                yield If(variable, *parts, statement.equal, line=line)
            case If(variable=variable, sides=(unequal, equal)):
                counter, flags = next(fresh), [next(fresh)] if equal else []
                cleared = [Assign(x, None, 0, line=line) for x in (*flags, counter)]
                yield from block(
                    (
                        Assign(counter, variable, line=line),
                        *(Assign(flag, None, 1, line=line) for flag in flags),
                        While(counter, (*unequal, *cleared), line=line),
                        *(While(flag, (*equal, cleared[0]), line=line) for flag in flags),
                    )
                )

    body = block(program.body)
    return Program(body, fresh=(*program.fresh, *range(first, next(fresh))))


#: How an operation changes the depth of loops and branches.
STEPS = {"while": 1, "if": 1, "end": -1, "fi": -1}


class Op(NamedTuple):
    """One operation.

    "copy": slot `target` takes slot `argument`. "add": slot `target` grows by the number `argument`. "while": tests slot
    `target`; `argument` is the index of its "end". "end": `argument` is the index of its "while". "if": tests slot
    `target`; up to its "else", at index `argument`, stands what runs where it is not 0. "else": `argument` is the index of
    its "fi"; in between stands what runs where it is 0.
    """

    kind: str
    target: int
    argument: int


@dataclass(frozen=True)
class Code:
    """A core program, flat. `names[slot]` is the variable's name; `text` encodes everything and decodes to an equal code.

    `lines[i]` is the source line of operation i; it is not part of the text.
    """

    ops: tuple[Op, ...]
    names: tuple[str, ...]
    lines: tuple[int, ...] = ()

    #: Variable -> its slot.
    slots: dict[str, int] = field(init=False, repr=False, compare=False)
    #: The indices of the "while" operations, in order: loop k is the k-th.
    loops: tuple[int, ...] = field(init=False, repr=False, compare=False)
    #: Index of a "while" operation -> its number among the loops.
    loop_numbers: dict[int, int] = field(init=False, repr=False, compare=False)
    #: Index of an assignment -> its number among the assignments: which weight and bias it has when trainable.
    assignments: dict[int, int] = field(init=False, repr=False, compare=False)
    #: How many loops and branches lie inside each other at most.
    depth: int = field(init=False, repr=False, compare=False)
    #: Everything but the lines; `decode` reads it.
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        # At once, and not as cached properties: before Python 3.12 those take a lock, which torch.compile cannot trace
        loops = tuple(i for i, op in enumerate(self.ops) if op.kind == "while")
        listed = [i for i, op in enumerate(self.ops) if op.kind in ("copy", "add")]
        depth = most = 0
        for op in self.ops:
            depth += STEPS.get(op.kind, 0)
            most = max(most, depth)
        derived = {
            "slots": {name: slot for slot, name in enumerate(self.names)},
            "loops": loops,
            "loop_numbers": {index: number for number, index in enumerate(loops)},
            "assignments": {index: number for number, index in enumerate(listed)},
            "depth": most,
            "text": f"{' '.join(self.names)}:{' '.join(map(_encode, self.ops))}",
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def written(self, index: int) -> list[int]:
        """The slots that the branch at `index` may change, in order."""
        end = self.ops[self.ops[index].argument].argument
        return sorted({op.target for op in self.ops[index:end] if op.kind in ("copy", "add")})


#: How `Code.text` writes an operation.
_LETTERS = {"copy": "c", "add": "a", "while": "w", "end": "e", "if": "i", "else": "l", "fi": "f"}


def _encode(op: Op) -> str:
    return f"{_LETTERS[op.kind]}{op.target}" + (f",{op.argument}" if op.kind in ("copy", "add") else "")


def flatten(program: Program, *, merge: bool = True) -> Code:
    """Desugar all but branches, and flatten. `merge=False` keeps every increment by itself, as trainable programs need."""
    core = desugar(program, branches=True)
    numbers = core.all_variables
    slots = {number: slot for slot, number in enumerate(numbers)}
    ops: list[tuple[str, int, int]] = []
    lines: list[int] = []

    def emit(kind: str, variable: int, argument: int, line: int) -> None:
        last = ops[-1] if ops else None
        if merge and kind == "add" and last is not None and last[:2] == ("add", slots[variable]):
            ops[-1] = ("add", last[1], last[2] + argument)
        else:
            ops.append((kind, slots[variable], argument))
            lines.append(line)

    def block(body: tuple[Statement, ...]) -> None:
        for statement in body:
            line = statement.line
            match statement:
                case Assign(target=target, source=int(source)) if source != target:
                    emit("copy", target, slots[source], line)
                case Assign(target=target):
                    emit("add", target, statement.offset, line)
                case While():
                    emit("while", statement.variable, 0, line)
                    block(statement.body)
                    emit("end", statement.variable, 0, line)
                case If():
                    for kind, side in zip(("if", "else"), statement.sides, strict=True):
                        emit(kind, statement.variable, 0, line)
                        block(side)
                    emit("fi", statement.variable, 0, line)

    block(core.body)
    return Code(_linked(ops), tuple(f"x{number}" for number in numbers), tuple(lines))


def _linked(listed: list[tuple[str, int, int]]) -> tuple[Op, ...]:
    """The operations, with the indices of those that belong together."""
    ops = [Op(*op) for op in listed]
    opened: list[int] = []
    for index, op in enumerate(ops):
        if op.kind in ("end", "else", "fi"):
            start = opened.pop()
            ops[start] = ops[start]._replace(argument=index)
            ops[index] = op._replace(argument=start)
        if op.kind in ("while", "if", "else"):
            opened.append(index)
    return tuple(ops)


@cached
def decode(text: str) -> Code:
    """The code whose `text` this is (without source lines)."""
    names, _, body = text.partition(":")
    kinds = {letter: kind for kind, letter in _LETTERS.items()}
    words = ((kinds[word[0]], *map(int, word[1:].split(",")), 0) for word in body.split())
    return Code(_linked([(kind, target, argument) for kind, target, argument, *_ in words]), tuple(names.split()))


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
