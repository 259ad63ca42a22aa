"""The syntax of WHILE-programs: the tree, printing that round-trips, `parse` with errors that point at the place; the library.

The grammar is the paper's, plus sugar. Keywords are written in capitals as printed there, `//` starts a comment, and
line breaks mean nothing. LALR with the tree built as the parser reduces: no recursion, linear time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from algonet.core.cache import cached

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


# -- from text to tree

#: The library, in the order in which a reader would learn from it.
LIBRARY = ("add", "subtract", "multiply", "divide", "power", "factorial", "max", "gcd", "primality")
#: The largest constant that may be written: it becomes as many increments.
MAX_CONSTANT = 10_000
#: The most increments that all constants of a program may become together.
MAX_INCREMENTS = 1_000_000

#: Terminals of WHILE-programs and of register-machine programs.
TERMINALS = r"""
VARIABLE: /x(0|[1-9][0-9]{0,8})(?![0-9A-Za-z_])/
NUMBER: /(0|[1-9][0-9]{0,8})(?![0-9A-Za-z_])/
SIGN: "+" | "-"
UNEQUAL: "!="
EQUAL: "="
COMMENT: /\/\/[^\n]*/
%import common.WS
%ignore WS
%ignore COMMENT
"""
GRAMMAR = r"""
start: body?
body: statement+
?statement: assignment | while_loop | counted | branch
?assignment: VARIABLE ":=" VARIABLE (SIGN NUMBER)?  -> assign
           | VARIABLE ":=" NUMBER                   -> constant
while_loop: "WHILE" VARIABLE UNEQUAL NUMBER "DO" body "END"
counted: "LOOP" VARIABLE "DO" body "END"
branch: "IF" VARIABLE (UNEQUAL | EQUAL) NUMBER "DO" body ("ELSE" body)? "END"
"""

#: What a terminal is called in an error.
_READABLE = {
    "VARIABLE": "a variable such as x1",
    "NUMBER": "a number",
    "SIGN": "`+` or `-`",
    "UNEQUAL": "`!=`",
    "EQUAL": "`=`",
    "$END": "the end of the program",
    "__ANON_0": "`:=`",
    "LABEL": "a label such as L1",
    "COLON": "`:`",
}


class _MistakeError(Exception):
    """A rule of the language that the grammar does not state, broken at a token."""

    def __init__(self, message: str, token: Any):
        self.message, self.token = message, token
        super().__init__(message)


def parse(source: str) -> Program:
    """The program that `source` states, or a `WhileSyntaxError` with line, column and a caret.

    >>> parse("WHILE x1 != 0 DO x0 := x0 + 1 x1 := x1 - 1 END").variables
    (0, 1)
    """
    body = parse_with(_parser, source)
    if not body:
        raise WhileSyntaxError("the program is empty; write at least one statement, such as x0 := x1", source, 1, 1)
    check_size(body, source, "the constants of the program; count in a loop instead")
    return Program(body, source)


def library_source(name: str) -> str:
    """The text of a library program; its first comment lines say what it computes from which variables."""
    if name not in LIBRARY:
        raise ValueError(f"library: unknown program {name!r}; choose one of {', '.join(LIBRARY)}.")
    return resources.files("algonet.while_lang").joinpath("programs", f"{name}.while").read_text(encoding="utf-8")


def load_program(name: str) -> Program:
    """A program of the library: add, subtract, multiply, divide, power, factorial, max, gcd, primality.

    >>> load_program("multiply").variables
    (0, 1, 2, 3)
    """
    return parse(library_source(name))


def check_size(body: tuple[Statement, ...], source: str, what: str) -> None:
    """Refuse a program that nests too deep, or of which `what` would become too many increments, where that goes beyond."""
    depth, increments = depth_of(body), 0
    if depth > MAX_DEPTH:
        raise WhileSyntaxError(f"blocks nest {depth} levels deep; at most {MAX_DEPTH} are supported", source, 1, 1)
    for event, statement in walk(body):
        if event == "leaf" and isinstance(statement, Assign):
            increments += abs(statement.offset)
            if increments > MAX_INCREMENTS:
                message = f"more than {MAX_INCREMENTS} increments would be needed for {what}"
                raise WhileSyntaxError(message, source, max(1, statement.line), 1)


def parse_with(make_parser: Any, source: str) -> Any:
    """Run a lark parser on `source`, turning its errors into `WhileSyntaxError`."""
    from lark import exceptions

    if not isinstance(source, str):
        raise TypeError(f"parse: expected the program's source as a string, got {type(source).__name__}.")
    try:
        return make_parser().parse(source)
    except exceptions.VisitError as error:
        if not isinstance(error.orig_exc, _MistakeError):
            raise
        mistake = error.orig_exc
    except _MistakeError as error:
        mistake = error
    except exceptions.UnexpectedToken as error:
        at_end, lines = error.token.type == "$END", source.rstrip().split("\n")
        line, column = (len(lines), len(lines[-1]) + 1) if at_end else (error.line, error.column)
        got = "the program ends" if at_end else f"got `{error.token}`"
        raise WhileSyntaxError(
            f"expected {_options(error.accepts or error.expected)}, {got}", source, line, column
        ) from None
    except exceptions.UnexpectedCharacters as error:
        found = source[error.pos_in_stream]
        # The word that starts there, or the code of a character that would not be seen in print
        shown = found.isprintable() and not found.isspace()
        word = f"`{source[error.pos_in_stream :][:20].split()[0]}`" if shown else f"the character U+{ord(found):04X}"
        got = f"got {word}"
        wanted = _options(error.allowed)
        raise WhileSyntaxError(f"expected {wanted}, {got}", source, error.line, error.column) from None
    raise WhileSyntaxError(mistake.message, source, mistake.token.line, mistake.token.column)


def _options(terminals: Any) -> str:
    names = sorted({_READABLE.get(name, f"`{name}`") for name in terminals or () if name not in ("WS", "COMMENT")})
    return " or ".join(names) if names else "something else"


def number_of(token: Any) -> int:
    """The number of a VARIABLE token."""
    return int(token[1:])


def constant_of(token: Any) -> int:
    """The value of a NUMBER token that becomes increments."""
    if int(token) > MAX_CONSTANT:
        raise _MistakeError(f"constants become that many increments; {token} is beyond {MAX_CONSTANT}", token)
    return int(token)


def zero_of(token: Any) -> None:
    """Refuse a comparison with anything but 0."""
    if str(token) != "0":
        raise _MistakeError(f"conditions compare with 0, got {token}; subtract {token} from the variable first", token)


def _assign(target: Any, source: Any, sign: Any = "", number: Any = "0") -> Statement:
    amount = constant_of(number)
    if sign and not amount:
        raise _MistakeError(f"`{sign} 0` changes nothing; write a number from 1 on, or a plain copy", number)
    if target == source and not amount:
        raise _MistakeError(f"a copy needs two different variables, got {target} on both sides", source)
    return Assign(number_of(target), number_of(source), -amount if sign == "-" else amount, line=target.line)


def _constant(target: Any, number: Any) -> Statement:
    return Assign(number_of(target), None, constant_of(number), line=target.line)


def lalr(grammar: str, **rules: Callable[..., Any]) -> Any:
    """A parser for a grammar: what each rule builds; assignments are those of both languages."""
    from lark import Lark, Transformer, v_args

    rules |= {"assign": _assign, "constant": _constant}
    build: Any = type("Build", (Transformer,), {name: staticmethod(rule) for name, rule in rules.items()})
    return Lark(grammar + TERMINALS, parser="lalr", transformer=v_args(inline=True)(build)(), maybe_placeholders=False)


def _loop(variable: Any, unequal: Any, zero: Any, body: tuple[Statement, ...]) -> Statement:
    zero_of(zero)
    return While(number_of(variable), body, line=variable.line)


def _branch(variable: Any, relation: Any, zero: Any, body: Any, otherwise: Any = ()) -> Statement:
    zero_of(zero)
    return If(number_of(variable), body, otherwise, relation == "=", line=variable.line)


@cached
def _parser() -> Any:
    return lalr(
        GRAMMAR,
        start=lambda body=(): body,
        body=lambda *statements: statements,
        while_loop=_loop,
        counted=lambda variable, body: Loop(number_of(variable), body, line=variable.line),
        branch=_branch,
    )
