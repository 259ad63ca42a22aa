"""The syntax tree of WHILE-programs: the paper's core, a layer of sugar, printing that round-trips; and what can go wrong."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

#: Deeper programs are refused, as Python refuses deeper indentation: what runs them is nested as they are.
MAX_DEPTH = 100


@dataclass(frozen=True, eq=False)
class Statement:
    """One statement; `line` is where it stands in the source. Variables are their numbers: x3 is 3."""

    line: int = field(default=0, kw_only=True)

    @property
    def text(self) -> str:
        """The statement as source; for a block, the line that opens it."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Assign(Statement):
    """`x1 := x2`, `x1 := x1 + 1`, `x1 := x1 - 1`; as sugar `x1 := x2 + 3`, and with `source=None` the constant `x1 := 5`."""

    target: int
    source: int | None
    offset: int = 0

    @property
    def is_core(self) -> bool:
        """Whether it is one of the first three, which the paper's grammar has."""
        return self.source is not None and abs(self.offset) == (self.source == self.target)

    @property
    def text(self) -> str:
        if self.source is None:
            return f"x{self.target} := {self.offset}"
        return f"x{self.target} := x{self.source}" + (
            f" {'+-'[self.offset < 0]} {abs(self.offset)}" if self.offset else ""
        )


@dataclass(frozen=True, eq=False)
class Block(Statement):
    """A statement with a body."""

    variable: int
    body: tuple[Statement, ...] = field(repr=False)


@dataclass(frozen=True, eq=False)
class While(Block):
    """`WHILE x1 != 0 DO ... END`."""

    @property
    def text(self) -> str:
        return f"WHILE x{self.variable} != 0 DO"


@dataclass(frozen=True, eq=False)
class Loop(Block):
    """Sugar: `LOOP x1 DO ... END` runs its body as often as x1 says when the loop is entered."""

    @property
    def text(self) -> str:
        return f"LOOP x{self.variable} DO"


@dataclass(frozen=True, eq=False)
class If(Block):
    """Sugar: `IF x1 != 0 DO ... ELSE ... END`, or `IF x1 = 0 DO ...`; the ELSE part may be missing (empty)."""

    otherwise: tuple[Statement, ...] = field(default=(), repr=False)
    equal: bool = False

    @property
    def text(self) -> str:
        return f"IF x{self.variable} {'=' if self.equal else '!='} 0 DO"

    @property
    def sides(self) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
        """What runs where the variable is not 0, and what where it is."""
        return (self.otherwise, self.body) if self.equal else (self.body, self.otherwise)


def branched(
    variable: int, unequal: tuple[Statement, ...], equal: tuple[Statement, ...], line: int = 0
) -> tuple[If, ...]:
    """A branch with what runs where the variable is not 0 and where it is; none if both are empty."""
    if unequal:
        return (If(variable, unequal, equal, line=line),)
    return (If(variable, equal, equal=True, line=line),) if equal else ()


def add_to(variable: int, by: int, line: int = 0) -> Assign:
    """`x1 := x1 + by`."""
    return Assign(variable, variable, by, line=line)


#: "leaf", "open", "else" or "close", and the statement.
Event = tuple[str, Statement]


def walk(body: Iterable[Statement]) -> Iterator[Event]:
    """The tree in source order: leaves, and for each block its opening, its ELSE if it has one, and its closing."""
    for statement in body:
        if not isinstance(statement, Block):
            yield "leaf", statement
            continue
        yield "open", statement
        yield from walk(statement.body)
        if isinstance(statement, If) and statement.otherwise:
            yield "else", statement
            yield from walk(statement.otherwise)
        yield "close", statement


def render(body: Iterable[Statement], indent: str = "    ") -> str:
    """Canonical source: one statement a line, four spaces a level."""
    lines: list[str] = []
    depth = 0
    for event, statement in walk(body):
        if event in ("else", "close"):
            depth -= 1
        lines.append(indent * depth + {"else": "ELSE", "close": "END"}.get(event, statement.text))
        if event in ("open", "else"):
            depth += 1
    return "\n".join(lines) + "\n"


def depth_of(body: Iterable[Statement]) -> int:
    """How many blocks lie inside each other at most; counted without recursion, since what is too deep is to be refused."""
    depth, level = 0, list(body)
    while level := [part for block in level if isinstance(block, Block) for part in _parts(block)]:
        depth += 1
    return depth


def _parts(block: Block) -> tuple[Statement, ...]:
    return (*block.body, *(block.otherwise if isinstance(block, If) else ()))


@dataclass(frozen=True, eq=False, repr=False)
class Program:
    """A parsed program. Equal programs print alike, whatever their layout, comments and line numbers were.

    `fresh` are variables that a translation added: they are not the user's to set or read. `by_counter` says that it is a
    machine whose jumps do not nest, run by a counter: right on integers only.
    """

    body: tuple[Statement, ...]
    source: str = ""
    fresh: tuple[int, ...] = ()
    by_counter: bool = False

    @functools.cached_property
    def text(self) -> str:
        """Canonical source; parsing it gives an equal program."""
        return render(self.body)

    @property
    def variables(self) -> tuple[int, ...]:
        """The numbers of the variables in the source, ascending; x0 is always among them."""
        return tuple(number for number in self.all_variables if number not in self.fresh)

    @functools.cached_property
    def all_variables(self) -> tuple[int, ...]:
        """The numbers of all variables, fresh ones included."""
        found = {0}
        for event, statement in walk(self.body):
            if event in ("leaf", "open"):
                names = (getattr(statement, field, None) for field in ("target", "source", "variable"))
                found.update(name for name in names if name is not None)
        return tuple(sorted(found))

    @functools.cached_property
    def is_core(self) -> bool:
        """Whether it is written in the paper's grammar, without sugar."""
        statements = [statement for _, statement in walk(self.body)]
        return all(s.is_core if isinstance(s, Assign) else isinstance(s, While) for s in statements)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        first, *rest = self.text.splitlines()
        return f"Program({first!r}{f' and {len(rest)} more lines' if rest else ''})"

    def __deepcopy__(self, memo: dict) -> Program:
        return self  # immutable, and copying a deep tree would recurse


#: How much of a long source line an error shows on either side of the caret.
_SHOWN = 50


class WhileSyntaxError(ValueError):
    """A program's text is wrong. `line` and `column` count from 1; the message ends in the line and a caret."""

    def __init__(self, message: str, source: str, line: int, column: int):
        self.line, self.column = line, column
        super().__init__(f"line {line}, column {column}: {message}{_excerpt(source, line, column)}")


class DidNotHaltError(RuntimeError):
    """The crisp interpreter used up its steps."""


class NonHaltingWarning(UserWarning):
    """A smooth loop reached `max_iterations` with probability left, or is likely to. Machines whose jumps do not nest warn
    with it, too."""


def _excerpt(source: str, line: int, column: int) -> str:
    lines = source.split("\n")
    if not 1 <= line <= len(lines):
        return ""
    # One column each, and none that would break the line: the caret must stand below its character
    text = "".join(c if c.isprintable() else " " for c in lines[line - 1])
    start = max(0, column - 1 - _SHOWN)
    shown = text[start : column - 1 + _SHOWN]
    if not shown.strip():
        return ""
    return f"\n    {shown}\n    {' ' * (column - 1 - start)}^"
