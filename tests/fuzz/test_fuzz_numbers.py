"""Random sorts, scenes, function systems and WHILE-programs are what the dense formulas and references say."""

from __future__ import annotations

import dataclasses

import pytest

from algonet.while_lang.kernels import numba as host
from algonet.while_lang.kernels.numba import source

from .hunt import Found, failure, sample, shrunk
from .scenes import Scenes
from .sorts import Sort, Sorts
from .systems import System, Systems
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


SORT = Sort(
    seed=5, function="soft_sort", method="OddEven()", sigmoid="Logistic", steepness=1.0, learned=False, backend="numba",
    rows=(), items=5, dim=-1, dtype="float64", values="nan", layout="contiguous", mask="", payload=(), descending=False,
    steps=None, hard=False, permutation=False, wanted=1,
)  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rows": (3,)},
        {"function": "soft_median", "payload": None, "items": 1, "backend": "reference"},
        {"method": "Permutahedron(strength=0.7)", "payload": None, "backend": "auto", "values": "equal", "items": 33,
         "rows": (2, 1, 2), "dim": -4},
        {"values": "infinities", "items": 1},
        {"values": "infinities", "items": 9, "payload": (2,)},
    ],
    ids=["payload beside a nan", "several rows", "a median of one row", "ties in a column", "one infinity", "infinities"],
)  # fmt: skip
def test_sorts_that_were_once_told_apart(changes):
    assert failure(Sorts(), dataclasses.replace(SORT, **changes)) is None


def test_colours_of_points_well_inside_a_pixel():
    """Their shares are 1 - 5e-11: what is left of that in float64 decides how far kernel and reference may differ."""
    system = System(
        seed=137615074353, batch=(), maps=3, chains=2, steps=1, burn_in=0, horizon=None, size=(1, 1), sigma=0.01,
        poisson=False, weighted=False, colours=1, spread=0.5, dtype="float64", strided=False, extent=(0.0, 1.0, 0.0, 1.0),
    )  # fmt: skip
    assert failure(Systems(), system) is None
    assert failure(Systems(), dataclasses.replace(system, sigma=0.1)) is None


def test_random_while_programs():
    sample(WhilePrograms(), 0, 40, lambda case: not case.compiled)
    # Few, short, and with weights that stay (those of `trainable` ones double the kernel): each is compiled twice
    sample(
        WhilePrograms(),
        0,
        2,
        lambda case: case.compiled and "WHILE" in (t := case.source) and t.count("\n") < 9 and not case.trainable,
    )


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


def test_a_wrong_kernel_is_caught_without_compiling_it(monkeypatch):
    """Loops that end too early, in the source that the generator writes."""
    target = WhilePrograms()
    case = next(c for c in map(target.draw, range(1000)) if not c.compiled and "WHILE x1" in c.source and c.items > 1)
    assert failure(target, case) is None
    monkeypatch.setattr(host, "source", lambda *given: source(*given).replace("> epsilon", "> 0.3"))
    found = failure(target, dataclasses.replace(case, max_iterations=case.max_iterations + 1))
    assert found is not None
    assert "deviates" in found.problem
