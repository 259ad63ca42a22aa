"""Random sorts, scenes, function systems and WHILE-programs are what the dense formulas and references say."""

from __future__ import annotations

import dataclasses

import pytest

from .hunt import Found, failure, sample, shrunk
from .scenes import Scenes
from .sorts import Sorts
from .systems import Systems
from .while_programs import WhilePrograms


@pytest.mark.parametrize("part", range(4))
def test_random_sorts(part):
    # Of few sigmoids: each has kernels of its own to compile
    sample(Sorts(), part, 40, lambda case: case.sigmoid in ("Logistic", "Cauchy"))


@pytest.mark.parametrize("part", range(4))
def test_random_scenes(part):
    sample(Scenes(), part, 8, lambda case: case.df == 8 and case.size != (24, 31))


def test_random_function_systems():
    sample(Systems(), 0, 40)


def test_random_while_programs():
    # Few: each program is compiled
    sample(WhilePrograms(), 0, 3)


class _Lying(Sorts):
    """A target that fails wherever descending rows are long enough: what shrinking should find."""

    def compare(self, case, way):
        return "wrong" if case.descending and case.items >= 5 else None


def test_a_failing_case_shrinks_to_what_fails():
    target = _Lying()
    case = next(case for case in map(target.draw, range(1000)) if failure(target, case))
    small, found = shrunk(target, case, Found(target.ways[0], "wrong"))
    assert (small.items, small.descending, small.rows, small.mask, small.payload) == (5, True, (), "", None)
    assert found.problem == "wrong"
    assert "torch.tensor(" in target.snippet(small, found.way)


def test_a_wrong_formula_is_caught(monkeypatch):
    """The comparison itself, on a sort whose decisions are a little too soft."""
    target = Sorts()
    case = next(c for c in map(target.draw, range(1000)) if c.function == "soft_sort" and c.items > 3 and not c.hard)
    case = dataclasses.replace(
        case, values="normal", dtype="float64", mask="", steepness=2.0, sigmoid="Logistic", learned=False
    )
    case = dataclasses.replace(case, method="OddEven()", steps=None, rows=(2,), dim=-1)
    assert failure(target, case) is None
    options = type(case).options
    monkeypatch.setattr(type(case), "options", lambda self: {**options(self), "steps": "2"})
    found = failure(target, case)
    assert found is not None
    assert "deviates" in found.problem
