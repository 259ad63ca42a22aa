"""Register machines: translated, they do what the machine does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algonet.relax import BumpExit, SmoothTent, Tent
from algonet.while_lang import DidNotHaltError, WhileProgram, WhileSyntaxError, parse, parse_goto, read_source

MULTIPLY = """
OUTER: IF x2 = 0 THEN GOTO DONE
       x3 := x1
INNER: IF x3 = 0 THEN GOTO NEXT
       x0 := x0 + 1
       x3 := x3 - 1
       GOTO INNER
NEXT:  x2 := x2 - 1
       GOTO OUTER
DONE:  HALT
"""


def _machine(lines: list[tuple], start: dict[int, int], budget: int) -> dict[int, int] | None:
    """A register machine from its definition; `lines` are (op, ...) with jumps to line numbers."""
    values, position = dict(start), 0
    for _ in range(budget):
        if position >= len(lines):
            return values
        op, *rest = lines[position]
        position += 1
        if op == "halt":
            return values
        if op == "add":
            values[rest[0]] += rest[1]
        elif op == "copy":
            values[rest[0]] = values[rest[1]]
        elif op == "goto" or (op == "zero") == (values[rest[1]] == 0):
            position = rest[0]
    return None


def _source(lines: list[tuple]) -> str:
    texts = {
        "halt": lambda: "HALT",
        "add": lambda x, n: f"x{x} := x{x} {'+' if n > 0 else '-'} {abs(n)}",
        "copy": lambda x, y: f"x{x} := x{y}",
        "goto": lambda to: f"GOTO L{to}",
        "zero": lambda to, x: f"IF x{x} = 0 THEN GOTO L{to}",
        "nonzero": lambda to, x: f"IF x{x} != 0 THEN GOTO L{to}",
    }
    return "\n".join(f"L{i}: {texts[op](*rest)}" for i, (op, *rest) in enumerate(lines))


@st.composite
def machines(draw):
    size = draw(st.integers(1, 8))
    places, registers = st.integers(0, size - 1), st.integers(0, 3)
    line = st.one_of(
        st.just(("halt",)),
        st.tuples(st.just("add"), registers, st.sampled_from([1, -1, 2])),
        st.tuples(st.just("copy"), st.just(0), st.integers(1, 3)),
        st.tuples(st.just("goto"), places),
        st.tuples(st.sampled_from(["zero", "nonzero"]), places, registers),
    )
    return [draw(line) for _ in range(size)]


@given(machines(), st.lists(st.integers(0, 3), min_size=4, max_size=4))
@settings(max_examples=150)
def test_translation_does_what_the_machine_does(lines, start):
    expected = _machine(lines, dict(enumerate(start)), 200)
    program = WhileProgram(_source(lines))
    inputs = {f"x{i}": v for i, v in enumerate(start) if f"x{i}" in ("x0", *program.inputs)}
    if expected is None:
        with pytest.raises(DidNotHaltError):
            program.crisp(max_steps=2000, **inputs)
    else:
        assert program.crisp(max_steps=20_000, **inputs) == expected[0]


def test_multiplication_machine():
    program = WhileProgram(MULTIPLY)
    assert [program.crisp(x1=a, x2=b) for a, b in ((0, 0), (3, 4), (5, 1))] == [0, 12, 5]


@pytest.mark.parametrize("exit", [Tent(), SmoothTent(2), BumpExit()], ids=lambda exit: exit.key)
def test_exact_exits_run_machines_on_integers(exit):
    a, b = torch.tensor([0.0, 3.0, 5.0]), torch.tensor([2.0, 4.0, 1.0])
    assert torch.equal(WhileProgram(MULTIPLY, exit, backend="reference")(x1=a, x2=b), a * b)


def test_the_counter_is_not_an_input():
    program = WhileProgram(MULTIPLY)
    assert program.inputs == ("x1", "x2", "x3")
    with pytest.raises(ValueError, match="unknown variable 'x4'"):
        program.crisp(x4=1)


def test_one_loop_over_the_counter():
    core = WhileProgram(MULTIPLY).core
    assert core.is_core
    outermost = [line for line in core.text.splitlines() if line.startswith("WHILE")]
    assert len(outermost) == 1
    assert parse(core.text) == core


def test_languages_are_told_apart():
    assert read_source("x0 := x1 // GOTO is only mentioned, L1: too\n").is_core
    assert not read_source("L1: x0 := x1").is_core
    assert WhileProgram("x0 := x0 + 1\nHALT\nx0 := x0 + 1").crisp() == 1


@pytest.mark.parametrize(
    ("source", "message", "line", "column"),
    [
        ("GOTO L1", "unknown label L1; the labels are none", 1, 6),
        ("L1: HALT\nIF x1 = 0 THEN GOTO L2", "unknown label L2; the labels are L1", 2, 21),
        ("L1: HALT L1: HALT", "the label L1 stands twice", 1, 10),
        ("IF x1 = 3 THEN GOTO L1 L1: HALT", "conditions compare with 0, got 3", 1, 9),
        ("L1: x1 := x1", "a copy needs two different variables", 1, 11),
        ("L1: WHILE", "got `WHILE`", 1, 5),
        ("HALT L1:", "the program ends", 1, 9),
    ],
)
def test_errors(source, message, line, column):
    with pytest.raises(WhileSyntaxError, match=message) as caught:
        parse_goto(source)
    assert (caught.value.line, caught.value.column) == (line, column)


def test_empty_goto_program():
    with pytest.raises(WhileSyntaxError, match="empty"):
        parse_goto("// nothing")
