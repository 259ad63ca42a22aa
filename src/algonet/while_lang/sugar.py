"""Desugaring: every statement beyond the paper's grammar, written in the paper's grammar.

    x1 := 5                      x1 := z, then five increments                (z: a variable that stays 0)
    x1 := x2 + 3                 x1 := x2, then three increments
    LOOP x1 DO P END             t := x1   WHILE t != 0 DO  P  t := t - 1  END
    IF x1 != 0 DO P END          t := x1   WHILE t != 0 DO  P  t := z  END
    IF x1 != 0 DO P ELSE Q END   t := x1   e := 1   WHILE t != 0 DO  P  e := z  t := z  END   WHILE e != 0 DO  Q  e := z  END

`IF x1 = 0` is the same with P and Q exchanged. t, e and z are fresh: numbered beyond every variable of the program.
"""

from __future__ import annotations

from collections.abc import Iterator

from .syntax import Assign, Block, Copy, Decrement, If, Increment, Loop, Program, Statement, While, walk


class _Builder:
    """Collects core statements into nested blocks, without recursion."""

    def __init__(self, fresh: int):
        self.fresh = fresh
        self.zero: int | None = None
        self.blocks: list[list[Statement]] = [[]]
        self.opened: list[tuple[int, int]] = []

    def new(self) -> int:
        self.fresh += 1
        return self.fresh - 1

    def add(self, *statements: Statement) -> None:
        self.blocks[-1].extend(statements)

    def constant(self, target: int, value: int, line: int) -> None:
        if self.zero is None:
            self.zero = self.new()
        self.add(Copy(target, self.zero, line=line), *_shifts(target, value, line))

    def open(self, variable: int, line: int) -> None:
        self.opened.append((variable, line))
        self.blocks.append([])

    def close(self) -> None:
        variable, line = self.opened.pop()
        body = tuple(self.blocks.pop())
        self.add(While(variable, body, line=line))


def desugar(program: Program) -> Program:
    """The same program in the paper's grammar alone; line numbers still point into the original source.

    >>> from .parser import parse
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
    builder = _Builder(first)
    counters: list[tuple[int, int | None]] = []
    for event, statement in walk(program.body, _else_last):
        if event == "leaf":
            _leaf(builder, statement)
        elif event == "open":
            counters.append(_open(builder, statement))
        elif event == "else":
            _middle(builder, statement, *counters[-1])
        else:
            _close(builder, statement, *counters.pop())
    return Program(tuple(builder.blocks[0]), fresh=(*program.fresh, *range(first, builder.fresh)))


def _else_last(statement: Statement) -> Statement:
    """`IF x = 0 DO P ELSE Q END` as `IF x != 0 DO Q ELSE P END`."""
    if isinstance(statement, If) and statement.equal and statement.otherwise:
        return If(statement.variable, statement.otherwise, statement.body, line=statement.line)
    return statement


def _leaf(builder: _Builder, statement: Statement) -> None:
    if not isinstance(statement, Assign):
        builder.add(statement)
        return
    target, line = statement.target, statement.line
    if statement.source is None:
        builder.constant(target, statement.offset, line)
        return
    if statement.source != target:
        builder.add(Copy(target, statement.source, line=line))
    builder.add(*_shifts(target, statement.offset, line))


def _open(builder: _Builder, block: Statement) -> tuple[int, int | None]:
    """Open the core loop for `block`; returns its counter and, where an ELSE part needs one, its flag."""
    assert isinstance(block, Block)
    line = block.line
    if isinstance(block, While):
        builder.open(block.variable, line)
        return block.variable, None
    counter = builder.new()
    builder.add(Copy(counter, block.variable, line=line))
    flag = None
    if isinstance(block, If) and (block.otherwise or block.equal):
        flag = builder.new()
        builder.constant(flag, 1, line)
    if isinstance(block, If) and block.equal and not block.otherwise:
        # Only the "is 0" side has statements: the loop that finds x != 0 just clears the flag
        builder.open(counter, line)
        builder.constant(flag, 0, line)  # pyright: ignore[reportArgumentType]
        builder.constant(counter, 0, line)
        builder.close()
        builder.open(flag, line)  # pyright: ignore[reportArgumentType]
    else:
        builder.open(counter, line)
    return counter, flag


def _middle(builder: _Builder, block: Statement, counter: int, flag: int | None) -> None:
    assert isinstance(block, If)
    assert flag is not None
    builder.constant(flag, 0, block.line)
    builder.constant(counter, 0, block.line)
    builder.close()
    builder.open(flag, block.line)


def _close(builder: _Builder, block: Statement, counter: int, flag: int | None) -> None:
    line = block.line
    if isinstance(block, Loop):
        builder.add(Decrement(counter, line=line))
    elif isinstance(block, If):
        builder.constant(counter if flag is None else flag, 0, line)
    builder.close()


def _shifts(target: int, amount: int, line: int) -> Iterator[Statement]:
    kind = Increment if amount > 0 else Decrement
    return (kind(target, line=line) for _ in range(abs(amount)))
