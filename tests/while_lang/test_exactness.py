"""On integers the smooth program with an exact exit is the discrete program, and that is what Python computes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algonet.relax import BumpExit, Sech, SmoothTent, Tent
from algonet.while_lang import LIBRARY, DidNotHaltError, WhileProgram, load_program

#: Program -> (what it computes, largest inputs that keep the test quick).
MEANINGS: dict[str, tuple[Callable[..., int], tuple[int, ...]]] = {
    "add": (lambda a, b: a + b, (20, 20)),
    "subtract": (lambda a, b: a - b, (20, 20)),
    "multiply": (lambda a, b: a * b, (9, 9)),
    "divide": (lambda a, b: a // b if b else 0, (15, 6)),
    "power": (lambda a, b: a**b, (3, 3)),
    "factorial": (lambda a: math.factorial(a), (4,)),
    "max": (max, (12, 12)),
    "gcd": (math.gcd, (9, 9)),
    "primality": (lambda a: int(a > 1 and all(a % d for d in range(2, a))), (7,)),
}
EXACT = [Tent(), *(SmoothTent(k) for k in range(6)), BumpExit()]


def test_every_library_program_has_a_meaning():
    assert set(MEANINGS) == set(LIBRARY)


@pytest.mark.parametrize("name", LIBRARY)
@given(data=st.data())
@settings(max_examples=40)
def test_crisp_is_python(name, data):
    meaning, limits = MEANINGS[name]
    arguments = [data.draw(st.integers(0, limit)) for limit in limits]
    program = WhileProgram(load_program(name))
    named = {f"x{i}": a for i, a in enumerate(arguments, start=1)}
    assert program.crisp(**named) == meaning(*arguments)


def test_divide_also_leaves_the_remainder():
    program = WhileProgram.library("divide", outputs=("x0", "x3"))
    assert [program.crisp(x1=a, x2=b) for a, b in ((17, 5), (4, 2), (3, 0), (0, 3))] == [(3, 2), (2, 0), (0, 0), (0, 0)]


@pytest.mark.parametrize("exit", EXACT, ids=lambda exit: exit.key)
@pytest.mark.parametrize("name", LIBRARY)
@given(data=st.data())
@settings(max_examples=3)
def test_smooth_is_crisp_on_integers(name, exit, data):
    _, limits = MEANINGS[name]
    columns = [data.draw(st.lists(st.integers(0, limit), min_size=3, max_size=3)) for limit in limits]
    program = WhileProgram(load_program(name), exit, backend="reference")
    inputs = {f"x{i}": torch.tensor(column, dtype=torch.float32) for i, column in enumerate(columns, start=1)}
    expected = [program.crisp(**{f"x{i}": v for i, v in enumerate(row, start=1)}) for row in zip(*columns, strict=True)]
    assert program(**inputs).tolist() == expected


@pytest.mark.parametrize("name", ["divide", "gcd"])
def test_compiled_is_crisp_on_integers(name):
    _, limits = MEANINGS[name]
    program = WhileProgram(load_program(name), BumpExit(), backend="numba")
    rows = torch.cartesian_prod(*(torch.arange(limit + 1) for limit in limits))
    expected = [program.crisp(x1=a, x2=b) for a, b in rows.tolist()]
    assert program(*rows.float().unbind(1)).tolist() == expected


def test_the_default_exit_is_off_by_what_the_docs_say():
    x, y = torch.cartesian_prod(torch.arange(1.0, 7.0), torch.arange(1.0, 7.0)).unbind(1)
    wanted = {"add": x + y, "subtract": x - y, "max": torch.maximum(x, y), "multiply": x * y}
    wrong = {k: (WhileProgram.library(k, exit=Sech(2.0))(x1=x, x2=y) - w).abs() for k, w in wanted.items()}
    assert max(float(wrong["add"].max()), float(wrong["subtract"].max())) < 0.19
    assert float(wrong["max"].max()) < 0.9
    relative = wrong["multiply"] / wanted["multiply"]
    assert (round(float(relative.mean()), 2), float(relative.max()) < 0.5) == (0.19, True)


def test_decrement_goes_below_zero_in_both():
    program = WhileProgram("x0 := x0 - 1", Tent())
    assert program.crisp() == -1
    assert program(x0=torch.tensor(0.0)).item() == -1


def test_crisp_is_bounded():
    program = WhileProgram("x1 := 1\nWHILE x1 != 0 DO\n  x1 := x1 + 1\nEND")
    with pytest.raises(DidNotHaltError, match="no halt within 1000 steps; the loop at line 2"):
        program.crisp(max_steps=1000)
    down = WhileProgram("WHILE x1 != 0 DO x1 := x1 - 1 END")
    assert down.crisp(x1=3) == 0
    with pytest.raises(DidNotHaltError):
        down.crisp(x1=-3, max_steps=1000)


def test_crisp_refuses_what_is_not_an_integer():
    with pytest.raises(TypeError, match=r"`x1` must be an integer, got 2\.5"):
        WhileProgram.library("multiply").crisp(x1=2.5, x2=1)
    with pytest.raises(ValueError, match="unknown variable 'y'"):
        WhileProgram.library("multiply").crisp(y=1)


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", ["add", "multiply", "divide", "max"])
def test_a_corner_has_the_slope_towards_zero(name, backend):
    """Of the program's own values: f(x - h) and f(x) for one input, at 0 f(h) and f(0), in double precision."""
    program = WhileProgram.library(name, Tent(), backend=backend, epsilon=1e-9)
    for row in ((3.0, 4.0), (5.0, 3.0), (0.0, 2.0), (1.0, 1.0)):
        x = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in row]
        value = program(*x)
        assert value.item() == program.crisp(x1=int(row[0]), x2=int(row[1]))
        slopes = torch.autograd.grad(value, x)
        for i, slope in enumerate(slopes):
            step = -1e-5 if row[i] > 0 else 1e-5
            moved = program(*(t.detach() + step * (i == j) for j, t in enumerate(x)))
            assert slope.item() == pytest.approx((moved - value).item() / step, abs=1e-3)


def test_networks_and_trainable_programs_have_the_same_corners():
    x = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (5.0, 3.0)]
    plain = WhileProgram.library("divide", Tent())
    trainable = WhileProgram.library("divide", Tent(), trainable=True).double()
    slopes = [torch.autograd.grad(p(*x), x) for p in (plain, trainable, trainable.to_network())]
    for other in slopes[1:]:
        torch.testing.assert_close(other, slopes[0])
