"""Smooth WHILE-programs: any program of loops, increments and copies as a smooth function with gradients."""

from .code import Code, flatten, run_crisp
from .fitting import DiscreteFit
from .functional import WhileResult, run_while
from .goto import parse_goto, write_goto
from .modules import Programs, WhileNetwork, WhileProgram
from .parser import parse
from .source import LIBRARY, library_source, load_program, read_source
from .sugar import desugar
from .syntax import (
    Assign,
    Copy,
    Decrement,
    DidNotHaltError,
    If,
    Increment,
    Loop,
    NonHaltingWarning,
    Program,
    Statement,
    While,
    WhileSyntaxError,
)

__all__ = [
    "LIBRARY",
    "Assign",
    "Code",
    "Copy",
    "Decrement",
    "DidNotHaltError",
    "DiscreteFit",
    "If",
    "Increment",
    "Loop",
    "NonHaltingWarning",
    "Program",
    "Programs",
    "Statement",
    "While",
    "WhileNetwork",
    "WhileProgram",
    "WhileResult",
    "WhileSyntaxError",
    "desugar",
    "flatten",
    "library_source",
    "load_program",
    "parse",
    "parse_goto",
    "read_source",
    "run_crisp",
    "run_while",
    "write_goto",
]
