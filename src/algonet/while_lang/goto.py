"""Register machines: programs of labels and jumps, translated to one WHILE-loop over a program counter.

    L1: IF x1 = 0 THEN GOTO L2
        x0 := x0 + 1
        x1 := x1 - 1
        GOTO L1
    L2: HALT

A statement is an assignment as in WHILE-programs, `GOTO L`, `IF x1 = 0 THEN GOTO L`, `IF x1 != 0 THEN GOTO L` or `HALT`,
and may carry a label. Labels start with a capital letter. Running past the end halts.

The statements between two jumps or labels are blocks 1, 2, ...; the counter c says which comes next, 0 that the machine has
halted. Each turn of the loop runs one block:

    c := 1
    WHILE c != 0 DO
        d := c
        d := d - 1   IF d = 0 DO <block 1>  c := c + ... END
        d := d - 1   IF d = 0 DO <block 2>  c := c + ... END
        ...
    END

d is negative after its block's turn, and so matches nothing further. With an exit that is exact on integers the smooth
translation computes what the machine does. `Sech` blurs the counter itself, and with it the control flow: the loops of a
WHILE-program are smooth in a far more meaningful way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from algonet.core.cache import cached

from .errors import WhileSyntaxError
from .parser import TERMINALS, build_constant, build_copy, build_shift, check_increments, number_of, parse_with, zero_of
from .syntax import Assign, Copy, Decrement, If, Increment, Program, Statement, While

GRAMMAR = r"""
start: instruction*
instruction: (LABEL ":")* action
?action: VARIABLE ":=" VARIABLE              -> copy
       | VARIABLE ":=" VARIABLE SIGN NUMBER  -> shift
       | VARIABLE ":=" NUMBER                -> constant
       | "GOTO" LABEL                        -> jump
       | "IF" VARIABLE (UNEQUAL | EQUAL) NUMBER "THEN" "GOTO" LABEL -> branch
       | HALT                                -> halt

HALT.2: "HALT"
LABEL: /(?!(GOTO|HALT|IF|THEN|WHILE|LOOP|DO|ELSE|END)\b)[A-Z][A-Za-z0-9_]*/
"""


@dataclass(frozen=True)
class Jump:
    """`GOTO label`; with a variable only if it is 0 (`equal`) or is not."""

    label: str
    line: int
    column: int
    variable: int | None = None
    equal: bool = True


@dataclass(frozen=True)
class Halt:
    line: int


@dataclass(frozen=True)
class _Block:
    """Statements without jumps, and how the block ends (`None`: it runs on into the next)."""

    statements: tuple[Statement, ...]
    end: Jump | Halt | None


def looks_like_goto(source: str) -> bool:
    """Whether a source is a register-machine program: it has a label, a GOTO or a HALT."""
    bare = re.sub(r"//[^\n]*", "", source)
    return re.search(r"\bGOTO\b|\bHALT\b|\b[A-Z]\w*\s*:(?!=)", bare) is not None


def parse_goto(source: str) -> Program:
    """The WHILE-program that does what the register-machine program `source` does.

    >>> from .code import flatten
    >>> from .crisp import run_crisp
    >>> doubling = parse_goto("L: IF x1 = 0 THEN GOTO E  x0 := x0 + 2  x1 := x1 - 1  GOTO L  E: HALT")
    >>> run_crisp(flatten(doubling), {"x1": 21})["x0"]
    42
    """
    instructions = parse_with(_parser, source)
    if not instructions:
        raise WhileSyntaxError("the program is empty; write at least one statement, such as x0 := x1", source, 1, 1)
    blocks, places = _blocks(instructions, source)
    for block in blocks:
        if isinstance(block.end, Jump) and block.end.label not in places:
            known = ", ".join(places) or "none"
            message = f"unknown label {block.end.label}; the labels are {known}"
            raise WhileSyntaxError(message, source, block.end.line, block.end.column)
    counter, turn = (_last_used(blocks) + i for i in (1, 2))
    body = _translated(blocks, places, counter, turn)
    check_increments(body, source, "the constants and jumps of the program")
    return Program(body, source, (counter, turn))


def _blocks(instructions: list[tuple[list[Any], Any]], source: str) -> tuple[list[_Block], dict[str, int]]:
    """The blocks in order, and the number (from 1) of the block that each label starts."""
    blocks: list[_Block] = []
    places: dict[str, int] = {}
    current: list[Statement] = []
    for labels, action in instructions:
        if labels and current:
            blocks.append(_Block(tuple(current), None))
            current = []
        for label in labels:
            if label in places:
                raise WhileSyntaxError(f"the label {label} stands twice", source, label.line, label.column)
            places[str(label)] = len(blocks) + 1
        if isinstance(action, Statement):
            current.append(action)
        else:
            blocks.append(_Block(tuple(current), action))
            current = []
    if current:
        blocks.append(_Block(tuple(current), None))
    return blocks, places


def _last_used(blocks: list[_Block]) -> int:
    """The largest number of a variable in the program."""
    used = [0]
    for block in blocks:
        for statement in block.statements:
            used += [n for f in ("target", "source") if (n := getattr(statement, f, None)) is not None]
        if isinstance(block.end, Jump) and block.end.variable is not None:
            used.append(block.end.variable)
    return max(used)


def _translated(blocks: list[_Block], places: dict[str, int], counter: int, turn: int) -> tuple[Statement, ...]:
    first = next((s.line for b in blocks for s in b.statements), 1)
    body: list[Statement] = [Copy(turn, counter, line=first)]
    for number, block in enumerate(blocks, start=1):
        line = block.statements[0].line if block.statements else getattr(block.end, "line", first)
        following = number + 1 if number < len(blocks) else 0
        inside = (*block.statements, *_transition(counter, number, following, block.end, places, line))
        body += [Decrement(turn, line=line), If(turn, inside, equal=True, line=line)]
    return (Assign(counter, None, 1, line=first), While(counter, tuple(body), line=first))


def _transition(
    counter: int, number: int, following: int, end: Jump | Halt | None, places: dict[str, int], line: int
) -> tuple[Statement, ...]:
    """Statements that move the counter from `number` to where the block leads."""
    if isinstance(end, Halt):
        return _moved(counter, number, 0, line)
    if isinstance(end, Jump) and end.variable is None:
        return _moved(counter, number, places[end.label], line)
    if isinstance(end, Jump):
        taken = _moved(counter, number, places[end.label], line)
        fallen = _moved(counter, number, following, line)
        if taken and fallen:
            return (If(end.variable or 0, taken, fallen, equal=end.equal, line=end.line),)
        if taken:
            return (If(end.variable or 0, taken, equal=end.equal, line=end.line),)
        return (If(end.variable or 0, fallen, equal=not end.equal, line=end.line),) if fallen else ()
    return _moved(counter, number, following, line)


def _moved(counter: int, source: int, target: int, line: int) -> tuple[Statement, ...]:
    """`counter` from block `source` to block `target`, in as few increments as can be."""
    if target == source:
        return ()
    if target == 0:
        return (Assign(counter, None, 0, line=line),)
    if target <= abs(target - source):
        return (Assign(counter, None, target, line=line),)
    return (_step(counter, target - source, line),)


def _step(counter: int, offset: int, line: int) -> Statement:
    if abs(offset) == 1:
        return (Increment if offset > 0 else Decrement)(counter, line=line)
    return Assign(counter, counter, offset, line=line)


@cached(most=1)
def _parser() -> Any:
    from lark import Lark, Transformer, v_args

    @v_args(inline=True)
    class Build(Transformer):
        def start(self, *instructions: Any) -> list[Any]:
            return list(instructions)

        def instruction(self, *parts: Any) -> tuple[list[Any], Any]:
            return list(parts[:-1]), parts[-1]

        copy = staticmethod(build_copy)
        shift = staticmethod(build_shift)
        constant = staticmethod(build_constant)

        def jump(self, label: Any) -> Jump:
            return Jump(str(label), label.line, label.column)

        def branch(self, variable: Any, relation: Any, zero: Any, label: Any) -> Jump:
            zero_of(zero)
            return Jump(str(label), label.line, label.column, number_of(variable), relation == "=")

        def halt(self, token: Any) -> Halt:
            return Halt(token.line)

    return Lark(GRAMMAR + TERMINALS, parser="lalr", transformer=Build(), maybe_placeholders=False)
