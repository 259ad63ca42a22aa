"""Smooth WHILE-programs: any program of loops, increments and copies as a smooth function with gradients."""

from .code import Code, desugar, flatten, run_crisp
from .functional import WhileResult, run_while
from .goto import parse_goto, read_source, write_goto
from .modules import DiscreteFit, Programs, WhileNetwork, WhileProgram
from .syntax import (
    LIBRARY,
    Assign,
    DidNotHaltError,
    If,
    Loop,
    NonHaltingWarning,
    Program,
    Statement,
    While,
    WhileSyntaxError,
    library_source,
    load_program,
    parse,
)

__all__ = [
    "LIBRARY",
    "Assign",
    "Code",
    "DidNotHaltError",
    "DiscreteFit",
    "If",
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
