"""Desugaring: every statement beyond the paper's grammar, written in the paper's grammar.

    x1 := 5                      x1 := z, then five increments                (z: a variable that stays 0)
    x1 := x2 + 3                 x1 := x2, then three increments
    LOOP x1 DO P END             t := x1   WHILE t != 0 DO  P  t := t - 1  END
    IF x1 != 0 DO P END          t := x1   WHILE t != 0 DO  P  t := z  END
    IF x1 != 0 DO P ELSE Q END   t := x1   e := 1   WHILE t != 0 DO  P  e := z  t := z  END   WHILE e != 0 DO  Q  e := z  END

`IF x1 = 0` is the same with P and Q exchanged. t, e and z are fresh: numbered beyond every variable of the program.

A branch written as loops computes the same on integers only: between them its loops run more than once. Smooth runs
therefore keep branches (`branches=True`), and mix what the two parts give.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .syntax import Assign, Copy, Decrement, If, Increment, Loop, Program, Statement, While


def desugar(program: Program, *, branches: bool = False) -> Program:
    """The same program in the paper's grammar alone; line numbers still point into the original source.

    `branches` keeps each IF, with its parts desugared.

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
    desugaring = _Desugaring(first, branches)
    body = desugaring.block(program.body)
    return Program(body, fresh=(*program.fresh, *range(first, desugaring.fresh)))


class _Desugaring:
    def __init__(self, fresh: int, branches: bool):
        self.fresh, self.branches = fresh, branches
        self.zero: int | None = None

    def new(self) -> int:
        self.fresh += 1
        return self.fresh - 1

    def block(self, body: Iterable[Statement]) -> tuple[Statement, ...]:
        return tuple(core for statement in body for core in self.statement(statement))

    def statement(self, statement: Statement) -> Iterator[Statement]:
        line = statement.line
        match statement:
            case Assign():
                yield from self.assigned(statement.target, statement.source, statement.offset, line)
            case While():
                yield While(statement.variable, self.block(statement.body), line=line)
            case Loop():
                counter = self.new()
                yield Copy(counter, statement.variable, line=line)
                yield While(counter, (*self.block(statement.body), Decrement(counter, line=line)), line=line)
            case If() if self.branches:
                parts = self.block(statement.body), self.block(statement.otherwise)
                yield If(statement.variable, *parts, statement.equal, line=line)
            case If():
                yield from self.branch(statement, line)
            case _:
                yield statement

    def assigned(self, target: int, source: int | None, offset: int, line: int) -> Iterator[Statement]:
        if source is None:
            source = self.zero = self.new() if self.zero is None else self.zero
        if source != target:
            yield Copy(target, source, line=line)
        step = Increment if offset > 0 else Decrement
        yield from (step(target, line=line) for _ in range(abs(offset)))

    def branch(self, statement: If, line: int) -> Iterator[Statement]:
        unequal, equal = statement.sides
        counter = self.new()
        yield Copy(counter, statement.variable, line=line)
        flag = self.new() if equal else None
        if flag is not None:
            yield from self.assigned(flag, None, 1, line)
        inside = list(self.block(unequal))
        for cleared in (flag, counter):
            if cleared is not None:
                inside += self.assigned(cleared, None, 0, line)
        yield While(counter, tuple(inside), line=line)
        if flag is not None:
            yield While(flag, (*self.block(equal), *self.assigned(flag, None, 0, line)), line=line)
