"""which_method: figures that mean something, refusals that say why, and a table of both."""

import math

import pytest
import torch

from algonet.relax import Cauchy, Logistic
from algonet.sorting import Bitonic, NeuralSort, OddEven, Pairwise, Permutahedron, Transport, Unimodal, which_method
from algonet.sorting.choosing import MethodRow, _suggest
from algonet.sorting.methods import TASKS

QUICK = {"seconds": 0.0}


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def by_name(report):
    return {row.name: row for row in report.rows}


@pytest.mark.parametrize("task", TASKS)
def test_every_method_has_figures_or_a_reason(task):
    report = which_method(draw(3, 12), task, k=4 if task == "topk" else None, **QUICK)
    rows = by_name(report)
    methods = {"OddEven()", "Bitonic()", "Pairwise()", "Permutahedron()", "NeuralSort()", "Unimodal()", "Transport()"}
    assert methods <= set(rows)
    for name in methods:
        row = rows[name]
        answers = task in eval(name, globals()).answers
        assert answers == (not row.why)
        assert not answers or all(math.isfinite(v) for v in (row.error, row.vanished, row.milliseconds, row.mebibytes))
        assert answers or "does not answer it; SmoothedCDF()" in row.why
    assert ("soft_topk_mask (memberships)" in rows) == (task == "topk")
    text = str(report)
    assert all(name in text for name in rows)
    assert text.splitlines()[-1] == report.suggestion


def test_figures_follow_the_softness():
    x = draw(8, 16)
    soft, hard = (
        by_name(which_method(x, methods=[OddEven(), Bitonic()], relax=Logistic(s), **QUICK)) for s in (2.0, 1e5)
    )
    for name in ("OddEven()", "Bitonic()"):
        assert hard[name].error < 1e-4 < 0.05 < soft[name].error
        assert soft[name].vanished < 0.5 < hard[name].vanished
    assert by_name(which_method(x, "rank", relax=Logistic(1e6), **QUICK))["Pairwise()"].error < 1e-3
    matrices, network = (by_name(which_method(draw(1, 200), methods=[m], **QUICK)) for m in (NeuralSort(), Bitonic()))
    assert matrices["NeuralSort()"].mebibytes > 50 * network["Bitonic()"].mebibytes


def test_what_would_take_too_long_or_too_much_is_left_out_unless_named():
    x = draw(1, 30_000)
    rows = by_name(which_method(x, **QUICK))
    assert "would keep about" in rows["NeuralSort()"].why
    assert "would compute about" in rows["OddEven()"].why
    assert not rows["Bitonic()"].why
    few = which_method(draw(2, 8), methods=[Transport(3)], **QUICK)
    assert [row.name for row in few.rows] == ["Transport(iterations=3)"]


def test_another_sigmoid_and_backends_are_answered():
    rows = by_name(which_method(draw(2, 8), relax=Cauchy(5.0), **QUICK))
    assert "must be Logistic" in rows["Unimodal()"].why
    assert not rows["OddEven()"].why
    assert not by_name(which_method(draw(2, 8), backend="numba", **QUICK))["Permutahedron()"].why


def test_suggestions():
    good, dead = MethodRow("A", 0.1, 0.1, 2.0, 1.0), MethodRow("B", 0.01, 0.9, 1.0, 1.0)
    blurred = MethodRow("C", 0.6, 0.0, 0.5, 1.0)
    assert _suggest([blurred, dead, good]).startswith("A is the fastest")
    assert "mostly hard" in _suggest([dead])
    assert "C is the least so" in _suggest([blurred])
    assert "none" in _suggest([MethodRow("D", why="cannot")])


def test_picture():
    import matplotlib.pyplot as plt

    axis = which_method(draw(2, 8), methods=[Bitonic(), Unimodal(), Permutahedron()], **QUICK).plot()
    assert {text.get_text() for text in axis.texts} == {"Bitonic()", "Unimodal()", "Permutahedron()"}
    plt.close(axis.figure)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"task": "max"}, "unknown task 'max'; choose one of sort"),
        ({"task": "topk"}, "needs `k`"),
        ({"task": "topk", "k": 9}, "`k` must be an integer from 0 to 4, got 9"),
        ({"relax": None}, "`relax` must be a sigmoid"),
    ],
)
def test_errors(options, match):
    with pytest.raises((ValueError, TypeError), match=match):
        which_method(draw(2, 4), **options)
    assert Pairwise().work(100, Logistic()) == 10_000
