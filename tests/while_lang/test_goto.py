"""Register machines: translated, they do what the machine does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algonet.relax import BumpExit, Sech, SmoothTent, Tent
from algonet.while_lang import (
    DidNotHaltError,
    NonHaltingWarning,
    WhileProgram,
    WhileSyntaxError,
    flatten,
    load_program,
    parse,
    parse_goto,
    read_source,
    run_while,
    write_goto,
)

from .test_language import PROGRAMS

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


DOUBLE = "START: IF x1 = 0 THEN GOTO DONE x0 := x0 + 2 x1 := x1 - 1 GOTO START DONE: HALT"
ABOUT = "x0 := x0 + 1 x1 := x1 - 1 "
IF = "IF x1 != 0 DO x0 := 5 ELSE x0 := x2 END x0 := x0 + 1"


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


@given(PROGRAMS)
def test_a_machine_is_its_while_twin(program):
    machine = parse_goto(write_goto(program))
    assert not machine.by_counter
    assert flatten(machine).text == flatten(program).text


@pytest.mark.parametrize("exit", [Sech(), Tent(), BumpExit()], ids=lambda exit: exit.key)
def test_machines_agree_with_their_twins_on_the_reals(exit):
    a, b = torch.tensor([2.5, 1.3, 1.0]), torch.tensor([1.0, 2.6, 3.5])
    inputs = {"x1": a, "x2": b}
    for machine, twin in (
        (DOUBLE, "LOOP x1 DO x0 := x0 + 2 END"),
        (MULTIPLY, load_program("multiply")),
        # tested at its end
        ("L: x0 := x0 + 1 x1 := x1 - 1 IF x1 != 0 THEN GOTO L", ABOUT + "WHILE x1 != 0 DO " + ABOUT + "END"),
        ("IF x1 != 0 THEN GOTO E x0 := x2 GOTO F E: x0 := 5 F: x0 := x0 + 1", IF),
    ):
        given = {name: inputs[name] for name in ("x1", "x2") if name in WhileProgram(machine).variables}
        found, expected = (
            run_while(p, given, exit=exit, max_iterations=40, backend="reference").outputs["x0"]
            for p in (machine, twin)
        )
        assert torch.equal(found, expected), (machine, found, expected)
    assert WhileProgram(DOUBLE, Tent(), backend="reference")(a).tolist()[0] == 5.0


def test_a_loop_that_goes_on_at_zero_is_smooth():
    machine = WhileProgram("L: x0 := x0 + 1 IF x1 = 0 THEN GOTO L", Tent(), backend="reference")
    assert not machine.program.by_counter
    assert machine.crisp(x1=1) == 1
    # 1 turn, then half of the probability goes on, and half of that half
    assert machine(torch.tensor(0.5)).item() == pytest.approx(2.0, abs=1e-5)


def test_jumps_that_do_not_nest_run_by_a_counter_and_say_so():
    lesser = (
        "L: IF x1 = 0 THEN GOTO A IF x2 = 0 THEN GOTO B x1 := x1 - 1 x2 := x2 - 1 GOTO L A: x0 := 1 HALT B: x0 := 2"
    )
    program = WhileProgram(lesser, Tent(), backend="reference")
    assert program.program.by_counter
    core = program.core
    assert core.is_core
    assert len([line for line in core.text.splitlines() if line.startswith("WHILE")]) == 1
    assert parse(core.text) == core
    assert [program.crisp(x1=a, x2=b) for a, b in ((2, 5), (5, 2))] == [1, 2]
    with pytest.warns(NonHaltingWarning, match="right on integers"):
        assert program(torch.tensor([2.0, 5.0]), torch.tensor([5.0, 2.0])).tolist() == [1.0, 2.0]


def test_languages_are_told_apart():
    assert read_source("x0 := x1 // GOTO is only mentioned, L1: too\n").is_core
    assert read_source("L1: x0 := x1").text == "x0 := x1\n"
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
