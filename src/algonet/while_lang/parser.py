"""From source text to syntax tree: `parse` for WHILE-programs, with errors that point at the place; and the library.

The grammar is the paper's, plus sugar. Keywords are written in capitals as printed there, `//` starts a comment, and
line breaks mean nothing. LALR with the tree built as the parser reduces: no recursion, linear time.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from typing import Any

from algonet.core.cache import cached

from .syntax import (
    MAX_DEPTH,
    Assign,
    If,
    Loop,
    Program,
    Statement,
    While,
    WhileSyntaxError,
    depth_of,
    walk,
)

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
