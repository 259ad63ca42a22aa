"""Grammar, tree, printing, sugar and errors."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algonet.while_lang import (
    LIBRARY,
    Assign,
    If,
    Loop,
    Program,
    While,
    WhileProgram,
    WhileSyntaxError,
    desugar,
    flatten,
    library_source,
    load_program,
    parse,
    run_crisp,
)
from algonet.while_lang.code import decode
from algonet.while_lang.syntax import add_to

MULTIPLY = """
WHILE x2 != 0 DO       // the paper's program
    x3 := x1
    WHILE x3 != 0 DO x0 := x0 + 1 x3 := x3 - 1 END
    x2 := x2 - 1
END
"""

_VARIABLES = st.integers(0, 6)
_LEAVES = st.one_of(
    st.tuples(_VARIABLES, _VARIABLES).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: Assign(*pair)),
    st.builds(lambda target, value: Assign(target, None, value), _VARIABLES, st.integers(0, 4)),
    st.builds(Assign, _VARIABLES, _VARIABLES, st.sampled_from([-3, -2, -1, 1, 2, 3])),
    st.builds(add_to, _VARIABLES, st.sampled_from([-1, 1])),
)


def _blocks(children):
    bodies = st.lists(children, min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.builds(While, _VARIABLES, bodies),
        st.builds(Loop, _VARIABLES, bodies),
        st.builds(If, _VARIABLES, bodies, st.one_of(st.just(()), bodies), st.booleans()),
    )


PROGRAMS = st.lists(st.recursive(_LEAVES, _blocks, max_leaves=8), min_size=1, max_size=4).map(
    lambda body: Program(tuple(body))
)


def _interpret(body, values, budget):
    """The meaning of the sugared language, straight from its definition."""
    for s in body:
        budget[0] -= 1
        if budget[0] < 0:
            raise TimeoutError
        match s:
            case Assign():
                values[s.target] = (0 if s.source is None else values.get(s.source, 0)) + s.offset
            case If():
                chosen = (values.get(s.variable, 0) == 0) == s.equal
                _interpret(s.body if chosen else s.otherwise, values, budget)
            case Loop():
                count = values.get(s.variable, 0)
                if count < 0:
                    raise TimeoutError
                for _ in range(count):
                    _interpret(s.body, values, budget)
            case While():
                while values.get(s.variable, 0) != 0:
                    _interpret(s.body, values, budget)


@given(PROGRAMS)
def test_printing_round_trips(program):
    assert parse(program.text) == program
    assert parse(program.text).text == program.text


@given(PROGRAMS, st.lists(st.integers(0, 4), min_size=7, max_size=7))
@settings(max_examples=150)
def test_desugaring_keeps_the_meaning(program, start):
    values = dict(enumerate(start))
    try:
        _interpret(program.body, values, [300])
    except TimeoutError:
        return
    inputs = {f"x{i}": start[i] for i in program.variables}
    core = desugar(program)
    assert core.is_core
    # every sugared statement costs a bounded number of core steps
    final = run_crisp(flatten(program), inputs, max_steps=100_000)
    assert {i: final[f"x{i}"] for i in program.variables} == {i: values[i] for i in program.variables}
    whole = run_crisp(flatten(core), inputs, max_steps=100_000)
    assert all(whole[f"x{i}"] == values[i] for i in program.variables)


@given(PROGRAMS)
def test_core_prints_and_parses(program):
    core = desugar(program)
    assert parse(core.text) == core
    assert desugar(core) == core


@given(PROGRAMS)
def test_code_text_round_trips(program):
    for merge in (True, False):
        code = flatten(program, merge=merge)
        assert (decode(code.text).ops, decode(code.text).names) == (code.ops, code.names)
        assert len(code.lines) == len(code.ops)


def test_lines_are_those_of_the_source():
    program = parse(MULTIPLY)
    outer = program.body[0]
    assert isinstance(outer, While)
    assert [s.line for s in (outer, *outer.body)] == [2, 3, 4, 5]


def test_equality_ignores_layout_and_comments():
    assert parse(MULTIPLY) == parse(parse(MULTIPLY).text) == load_program("multiply")
    assert hash(parse(MULTIPLY)) == hash(load_program("multiply"))
    assert parse("x0 := x1") != parse("x0 := x2")


@pytest.mark.parametrize(
    ("source", "message", "line", "column"),
    [
        ("", "the program is empty", 1, 1),
        ("  // nothing here\n", "the program is empty", 1, 1),
        ("x1 := x1", "a copy needs two different variables, got x1 on both sides", 1, 7),
        ("x0 := x1\n  x1 = x2", "expected `:=`, got `=`", 2, 6),
        ("WHILE x1 != 0 DO\n  x1 := x1 - 1", "expected `END`, the program ends", 2, 15),
        ("WHILE x1 != 1 DO x1 := x1 - 1 END", "conditions compare with 0, got 1", 1, 13),
        ("WHILE x1 != 0 DO END", "got `END`", 1, 18),
        ("x0 := 10001", "beyond 10000", 1, 7),
        ("x0 := x0 + 0", "changes nothing", 1, 12),
        ("x0 := y", "expected a number or a variable such as x1, got `y`", 1, 7),
        ("x0 := x01", "got `x01`", 1, 7),
        ("while x1 != 0 DO x1 := x1 - 1 END", "got `while`", 1, 1),
        ("END", "got `END`", 1, 1),
        ("x0 := x1 ; x2 := x3", "got `;`", 1, 10),
        ("x0 := x1 €", "got `€`", 1, 10),
    ],
)
def test_errors_point_at_the_place(source, message, line, column):
    with pytest.raises(WhileSyntaxError, match=message) as caught:
        parse(source)
    assert (caught.value.line, caught.value.column) == (line, column)
    shown = str(caught.value).splitlines()
    if len(shown) == 3:
        assert len(shown[2]) - 4 == column, "the caret stands under the column"
        assert shown[1].strip() == source.splitlines()[line - 1].strip()


def test_error_shows_a_window_of_a_long_line():
    source = "x0 := x0 + 1 " * 5_000 + "!" + " x0 := x0 + 1" * 1000
    with pytest.raises(WhileSyntaxError, match="got `!`") as caught:
        parse(source)
    assert len(str(caught.value)) < 500
    text, caret = str(caught.value).splitlines()[1:]
    assert text[caret.index("^")] == "!"


def test_a_hundred_levels():
    source = "WHILE x1 != 0 DO\n" * 100 + "x1 := x1 - 1\nx0 := x0 + 1\n" + "END\n" * 100
    program = parse(source)
    assert parse(program.text) == program
    assert pickle.loads(pickle.dumps(program)) == program
    assert copy.deepcopy(program) is program
    assert "more lines" in repr(program)
    layer = WhileProgram(program)
    assert layer.crisp(x1=3) == 3
    assert layer.core == program
    sugared = parse("IF x1 != 0 DO\n" * 100 + "x0 := 5\n" + "END\n" * 100)
    assert WhileProgram(sugared).crisp(x1=1) == 5


def test_beyond_the_depth_limit_is_an_error():
    with pytest.raises(WhileSyntaxError, match="2001 levels deep; at most 100"):
        parse("LOOP x1 DO " * 2001 + "x0 := x1" + " END" * 2001)


def test_a_megabyte():
    source = "x1 := x1 + 1\n" * 80_000
    assert len(source) > 1_000_000
    assert WhileProgram(source, outputs=("x1",)).crisp() == 80_000


def test_source_must_be_text():
    with pytest.raises(TypeError, match="expected a program's source as a string, got int"):
        WhileProgram(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="as a string, got bytes"):
        parse(b"x0 := x1")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", LIBRARY)
def test_library_says_what_it_computes(name):
    assert library_source(name).startswith("// x0 := ")
    assert load_program(name).source == library_source(name)


def test_unknown_library_program():
    with pytest.raises(ValueError, match="unknown program 'sqrt'; choose one of add, subtract, multiply"):
        load_program("sqrt")
