"""Where programs come from: source text in either language, and the library that ships with the package."""

from __future__ import annotations

from importlib import resources

from .goto import looks_like_goto, parse_goto
from .parser import parse
from .syntax import Program

#: The library, in the order in which a reader would learn from it.
LIBRARY = ("add", "subtract", "multiply", "divide", "power", "factorial", "max", "gcd", "primality")
#: Which variables those programs are given: x1 and x2, or x1 alone. Others are theirs to count with.
_OF_ONE_INPUT = ("factorial", "primality")


def read_source(source: Program | str) -> Program:
    """The program that `source` states: WHILE, or GOTO (told apart by a label, a GOTO or a HALT)."""
    if isinstance(source, Program):
        return source
    if not isinstance(source, str):
        raise TypeError(f"read_source: expected a program's source as a string, got {type(source).__name__}.")
    return parse_goto(source) if looks_like_goto(source) else parse(source)


def library_source(name: str) -> str:
    """The text of a library program; its first comment lines say what it computes from which variables."""
    if name not in LIBRARY:
        raise ValueError(f"library: unknown program {name!r}; choose one of {', '.join(LIBRARY)}.")
    return resources.files("algonet.while_lang").joinpath("programs", f"{name}.while").read_text(encoding="utf-8")


def library_inputs(name: str) -> tuple[str, ...]:
    """The variables that a library program is given, in order."""
    return ("x1",) if name in _OF_ONE_INPUT else ("x1", "x2")


def load_program(name: str) -> Program:
    """A program of the library: add, subtract, multiply, divide, power, factorial, max, gcd, primality.

    >>> load_program("multiply").variables
    (0, 1, 2, 3)
    """
    return read_source(library_source(name))
