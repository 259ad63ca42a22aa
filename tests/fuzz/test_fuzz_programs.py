"""Programs of the WHILE- and the GOTO-language, from any text."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from algonet.while_lang import (
    LIBRARY,
    DidNotHaltError,
    Program,
    WhileProgram,
    desugar,
    flatten,
    library_source,
    parse,
    read_source,
    run_crisp,
)

from .mutations import damaged
from .reading import budget, read_or_explain

GOTO = "L1: IF x1 = 0 THEN GOTO L2\n x0 := x0 + 2\n x1 := x1 - 1\n GOTO L1\nL2: HALT\n"
SOURCES = [library_source(name).encode() for name in LIBRARY] + [GOTO.encode()]
WORDS = (
    b"WHILE", b"DO", b"END", b"IF", b"ELSE", b"LOOP", b"GOTO", b"HALT", b"L1:", b"L1", b"THEN", b":=", b"!=", b"=", b"+", b"-",
    b"x0", b"x1", b"x999999999", b"x01", b"0", b"1", b"10000", b"10001", b"999999999", b"1" * 500, b"//", b"\x00",
    b"\r", b"\x0c",
    "x\u0663".encode(), "\u2028".encode(), "\ufeff".encode(), "\U0001f600".encode(),
)  # fmt: skip
SOUP = st.lists(st.sampled_from(WORDS), max_size=40).map(b" ".join)
DAMAGED = damaged(SOURCES, WORDS)


def read(text: str):
    """The program, checked to print and to desugar, or None after an error that names line and column."""

    def whole() -> Program:
        program = read_source(text)
        assert program.fresh or parse(program.text) == program
        assert desugar(program).is_core
        return program

    return read_or_explain(whole, names="line ", lines=3)


@given(
    st.one_of(st.text(max_size=200), SOUP.map(bytes.decode), DAMAGED.map(lambda data: data.decode("utf-8", "replace")))
)
@example("WHILE x1 != 0 DO " * 3000 + "x0 := x0 + 1" + " END" * 3000)
@example("WHILE x1 != 0 DO " * 10_000)
@example("IF x1 = 0 DO " * 1500 + "x0 := x1" + " END" * 1500)
@example("x0 := 10000\n" * 20_000)
@example("".join(f"L{i}: IF x1 = 0 THEN GOTO L{(i * 7919) % 5000} x0 := x0 + 1\n" for i in range(5000)))
@example("x999999999 := x0 x0 := x999999998 + 1")
@example("x0 := x1" + " " * 1_000_000 + "?")
@example("// " + "x" * 1_000_000)
@budget(150)
def test_any_text_is_a_program_or_an_error_with_its_place(text):
    read(text)


@given(st.one_of(SOUP, DAMAGED))
@budget(60)
def test_what_parses_runs_within_its_bounds(data):
    program = read(data.decode("utf-8", "replace"))
    if program is None:
        return
    inputs = {f"x{number}": 2 for number in program.variables[:4]}
    with contextlib.suppress(DidNotHaltError):
        run_crisp(flatten(program), inputs, max_steps=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        smooth = WhileProgram(program, backend="reference", max_iterations=20)
        result = smooth.run(**{name: torch.tensor(float(value)) for name, value in inputs.items()})
    assert all(torch.isfinite(output) for output in result.outputs.values())


@pytest.mark.parametrize("source", [None, 3, b"x0 := x1", ["x0 := x1"]])
def test_anything_but_text_is_refused_by_type(source):
    with pytest.raises(TypeError, match="expected"):
        read_source(source)
