"""Register machines: programs of labels and jumps, read as the WHILE-program that they are.

    L1: IF x1 = 0 THEN GOTO L2
        x0 := x0 + 1
        x1 := x1 - 1
        GOTO L1
    L2: HALT

A statement is an assignment as in WHILE-programs, `GOTO L`, `IF x1 = 0 THEN GOTO L`, `IF x1 != 0 THEN GOTO L` or `HALT`,
and may carry a label. Labels start with a capital letter. Running past the end halts.

The statements between two jumps or labels are blocks. Blocks that follow each other, branches that meet again and loops with
one way out are found and become one block, until one is left: the machine above is WHILE x1 != 0 DO ... END, and runs as that,
on the reals too. `write_goto` is the way back.

Where jumps do not nest (a loop with two ways out), the machine is one loop over a counter c, which says which block comes next
and is 0 when it has halted:

    c := 1
    WHILE c != 0 DO
        d := c
        d := d - 1   IF d = 0 DO <block 1>  c := ... END
        d := d - 1   IF d = 0 DO <block 2>  c := ... END
        ...
    END

d is negative after its block's turn, and so matches nothing further. This is right on integers with an exit that is exact
there; elsewhere the counter lies between two blocks, and a smooth run warns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from algonet.core.cache import cached

from .code import desugar
from .syntax import (
    MAX_DEPTH,
    Assign,
    If,
    Program,
    Statement,
    While,
    WhileSyntaxError,
    add_to,
    branched,
    check_size,
    depth_of,
    lalr,
    number_of,
    parse,
    parse_with,
    zero_of,
)

GRAMMAR = r"""
start: instruction*
instruction: (LABEL ":")* action
?action: VARIABLE ":=" VARIABLE (SIGN NUMBER)?  -> assign
       | VARIABLE ":=" NUMBER                   -> constant
       | "GOTO" LABEL                           -> jump
       | "IF" VARIABLE (UNEQUAL | EQUAL) NUMBER "THEN" "GOTO" LABEL -> branch
       | HALT                                -> halt

HALT.2: "HALT"
LABEL: /(?!(GOTO|HALT|IF|THEN|WHILE|LOOP|DO|ELSE|END)\b)[A-Z][A-Za-z0-9_]*/
"""


@dataclass(frozen=True)
class Jump:
    """`GOTO label`, or HALT without a label; with a variable only if it is 0 (`equal`) or is not."""

    label: Any
    line: int
    variable: int | None = None
    equal: bool = True


@dataclass
class _Block:
    """Statements, and where they lead: to block `unequal` where `variable` is not 0, to `equal` where it is.

    Without a variable both are the same. Block 0 is the end.
    """

    statements: tuple[Statement, ...]
    variable: int | None
    unequal: int
    equal: int
    line: int


def read_source(source: Program | str) -> Program:
    """The program that `source` states: WHILE, or GOTO (told apart by a label, a GOTO or a HALT)."""
    if isinstance(source, Program):
        return source
    if not isinstance(source, str):
        raise TypeError(f"read_source: expected a program's source as a string, got {type(source).__name__}.")
    bare = re.sub(r"//[^\n]*", "", source)
    return (parse_goto if re.search(r"\bGOTO\b|\bHALT\b|\b[A-Z]\w*\s*:(?!=)", bare) else parse)(source)


def parse_goto(source: str) -> Program:
    """The WHILE-program that does what the register-machine program `source` does.

    >>> from .code import flatten, run_crisp
    >>> doubling = parse_goto("L: IF x1 = 0 THEN GOTO E  x0 := x0 + 2  x1 := x1 - 1  GOTO L  E: HALT")
    >>> run_crisp(flatten(doubling), {"x1": 21})["x0"]
    42
    """
    instructions = parse_with(_parser, source)
    if not instructions:
        raise WhileSyntaxError("the program is empty; write at least one statement, such as x0 := x1", source, 1, 1)
    blocks = _blocks(instructions, source)
    statements = tuple(statement for block in blocks.values() for statement in block.statements)
    used = *Program(statements).all_variables, *(block.variable or 0 for block in blocks.values())
    fresh = count(1 + max(used))
    first = next(fresh)
    body = _nested({number: replace(block) for number, block in blocks.items()}, fresh)
    by_counter = body is None or depth_of(body) > MAX_DEPTH
    if body is None or by_counter:
        body = _counted(blocks, first, first + 1)
    check_size(body, source, "the constants and jumps of the program")
    program = Program(body, source)
    return replace(program, fresh=tuple(n for n in program.all_variables if n > first - 1), by_counter=by_counter)


def write_goto(program: Program) -> str:
    """A register machine that does what the program does, as source: loops and branches are jumps.

    >>> from .syntax import parse
    >>> print(write_goto(parse("WHILE x1 != 0 DO x0 := x0 + 1 x1 := x1 - 1 END")))
    L1: IF x1 = 0 THEN GOTO L2
        x0 := x0 + 1
        x1 := x1 - 1
        GOTO L1
    L2: HALT
    """
    written: list[str] = []
    labels: list[str] = []
    names = (f"L{n}" for n in count(1))

    def write(text: str) -> None:
        written.append(f"{' '.join(f'{label}:' for label in labels):3} {text}")
        labels.clear()

    def block(body: tuple[Statement, ...]) -> None:
        for statement in body:
            if isinstance(statement, While):
                start, end = next(names), next(names)
                labels.append(start)
                write(f"IF x{statement.variable} = 0 THEN GOTO {end}")
                block(statement.body)
                write(f"GOTO {start}")
                labels.append(end)
            elif isinstance(statement, If):
                (unequal, equal), other, end = statement.sides, next(names), next(names)
                write(f"IF x{statement.variable} = 0 THEN GOTO {other}")
                block(unequal)
                write(f"GOTO {end}")
                labels.append(other)
                block(equal)
                labels.append(end)
            else:
                write(statement.text)

    block(desugar(program, branches=True).body)
    write("HALT")
    return "\n".join(written)


def _blocks(instructions: list[tuple[list[Any], Any]], source: str) -> dict[int, _Block]:
    """The blocks by number, in order from 1."""
    parts: list[tuple[list[Statement], Jump | None]] = []
    places: dict[str, int] = {}
    opened = False
    for labels, action in instructions:
        if labels or not opened:
            parts.append(([], None))
        for label in labels:
            if label in places:
                raise WhileSyntaxError(f"the label {label} stands twice", source, label.line, label.column)
            places[str(label)] = len(parts)
        opened = isinstance(action, Statement)
        if opened:
            parts[-1][0].append(action)
        else:
            parts[-1] = (parts[-1][0], action)
    blocks: dict[int, _Block] = {}
    for number, (statements, end) in enumerate(parts, start=1):
        following = number + 1 if number < len(parts) else 0
        line = statements[0].line if statements else getattr(end, "line", 1)
        variable, unequal, equal = None, following, following
        if end is not None:
            if end.label is not None and end.label not in places:
                message = f"unknown label {end.label}; the labels are {', '.join(places) or 'none'}"
                raise WhileSyntaxError(message, source, end.line, end.label.column)
            variable, there = end.variable, 0 if end.label is None else places[end.label]
            unequal = following if variable is not None and end.equal else there
            equal = following if variable is not None and not end.equal else there
        blocks[number] = _Block(tuple(statements), variable, unequal, equal, line)
    return blocks


def _nested(blocks: dict[int, _Block], fresh: Iterator[int]) -> tuple[Statement, ...] | None:
    """The machine's statements with loops and branches in the place of its jumps, or `None` where jumps do not nest."""
    most = 1000 + 10 * sum(1 + len(block.statements) for block in blocks.values())
    for block in blocks.values():
        block.unequal, block.equal = _past_empty(blocks, block.unequal), _past_empty(blocks, block.equal)
    _drop_unreached(blocks)
    entries = _entries(blocks)
    for _ in range(2 * MAX_DEPTH):
        before = len(blocks)
        for number in list(blocks):
            while number in blocks and _absorb(blocks, number, entries, fresh):
                entries = _entries(blocks)
                # A loop that is tested in its middle repeats the part before the test
                if len(blocks[number].statements) > most:
                    return None
        if len(blocks) == 1 and blocks[1].unequal == blocks[1].equal == 0:
            return blocks[1].statements or (Assign(next(fresh), 0, line=blocks[1].line),)
        if len(blocks) == before:
            return None
    return None


def _past_empty(blocks: dict[int, _Block], number: int) -> int:
    """Where a jump to a block leads that may do nothing but jump on."""
    seen = set()
    while number and number not in seen and not blocks[number].statements and blocks[number].variable is None:
        seen.add(number)
        number = blocks[number].equal
    return number


def _drop_unreached(blocks: dict[int, _Block]) -> None:
    found, waiting = {0}, [1]
    while waiting:
        number = waiting.pop()
        if number not in found:
            found.add(number)
            waiting += [blocks[number].unequal, blocks[number].equal]
    for number in set(blocks) - found:
        del blocks[number]


def _absorb(blocks: dict[int, _Block], number: int, entries: Counter[int], fresh: Iterator[int]) -> bool:
    """Make what follows block `number` part of it, if nothing else leads there; whether there was such a thing."""
    block = blocks[number]
    line = block.line

    def inner(target: int) -> _Block | None:
        """The block `target` if it is entered from here alone, and leads to one place."""
        found = blocks.get(target)
        return found if found is not None and entries[target] == 1 and found.unequal == found.equal else None

    def become(statements: tuple[Statement, ...], end: int, *parts: int) -> bool:
        for part in parts:
            del blocks[part]
        blocks[number] = _Block((*block.statements, *statements), None, end, end, line)
        return True

    if block.unequal == block.equal:
        target = block.equal
        if target == number:
            # It runs forever
            flag = next(fresh)
            return become((Assign(flag, None, 1, line=line), While(flag, block.statements, line=line)), 0)
        if target in blocks and entries[target] == 1:
            following = blocks.pop(target)
            blocks[number] = replace(following, statements=(*block.statements, *following.statements), line=line)
            return True
        block.variable = None
        return False
    then, other, variable = inner(block.unequal), inner(block.equal), block.variable or 0
    for side, part, end in ((block.unequal, then, block.equal), (block.equal, other, block.unequal)):
        # A loop: this side comes back here
        if side == number or (part is not None and part.equal == number):
            body = part.statements if part is not None and side != number else ()
            loop = _loop(block, variable, body, side == block.equal, fresh)
            return become(loop, end, *(() if side == number else (side,)))
    for first, second in ((then, other), (then, None), (None, other)):
        ends = first.equal if first else block.unequal, second.equal if second else block.equal
        if (first or second) and ends[0] == ends[1]:
            branch = branched(variable, first.statements if first else (), second.statements if second else (), line)
            gone = zip((first, second), (block.unequal, block.equal), strict=True)
            return become(branch, ends[0], *(side for part, side in gone if part))
    return False


def _entries(blocks: dict[int, _Block]) -> Counter[int]:
    """How many ways lead into each block; the machine enters the first."""
    found = Counter(target for block in blocks.values() for target in {block.unequal, block.equal})
    found[1] += 1
    return found


def _loop(
    block: _Block, variable: int, body: tuple[Statement, ...], while_zero: bool, fresh: Iterator[int]
) -> tuple[Statement, ...]:
    """The loop that tests after the statements of `block` and goes on with `body`."""
    inside, line = (*body, *block.statements), block.line
    if not while_zero:
        return (While(variable, inside or (Assign(next(fresh), variable, line=line),), line=line),)
    flag = next(fresh)
    set_flag = (Assign(flag, None, 0, line=line), If(variable, (add_to(flag, 1, line),), equal=True, line=line))
    return (*set_flag, While(flag, (*inside, *set_flag), line=line))


def _counted(blocks: dict[int, _Block], counter: int, turn: int) -> tuple[Statement, ...]:
    """One loop over a counter that says which block comes next."""
    line = blocks[1].line
    body: list[Statement] = [Assign(turn, counter, line=line)]
    for number, block in blocks.items():
        unequal, equal = (_moved(counter, number, target, block.line) for target in (block.unequal, block.equal))
        moves = unequal if block.variable is None else branched(block.variable, unequal, equal, block.line)
        inside = (*block.statements, *moves)
        body.append(add_to(turn, -1, block.line))
        if inside:
            body.append(If(turn, inside, equal=True, line=block.line))
    return (Assign(counter, None, 1, line=line), While(counter, tuple(body), line=line))


def _moved(counter: int, source: int, target: int, line: int) -> tuple[Statement, ...]:
    """`counter` from block `source` to block `target`, in as few increments as can be."""
    if target == source:
        return ()
    near = target > abs(target - source)
    return (Assign(counter, counter if near else None, target - source if near else target, line=line),)


def _jump(variable: Any, relation: Any, zero: Any, label: Any) -> Jump:
    zero_of(zero)
    return Jump(label, label.line, number_of(variable), relation == "=")


@cached
def _parser() -> Any:
    return lalr(
        GRAMMAR,
        start=lambda *instructions: [*instructions],
        instruction=lambda *parts: ([*parts[:-1]], parts[-1]),
        jump=lambda label: Jump(label, label.line),
        branch=_jump,
        halt=lambda token: Jump(None, token.line),
    )
