"""T-conorms: the axioms, the printed binary formulas, and what joins the families."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algonet.relax import (
    CONORMS,
    AczelAlsina,
    BoundedSum,
    Dombi,
    Einstein,
    Frank,
    Hamacher,
    Maximum,
    Probabilistic,
    SchweizerSklar,
    Yager,
)

ALL = [C() for C in CONORMS if C is not BoundedSum] + [Hamacher(0), Yager(1.0), Frank(0.3), SchweizerSklar(-2.5)]
_ids = {"ids": lambda c: c.key}
probabilities = st.floats(0, 1)


def _t(*values):
    return tuple(torch.tensor(v, dtype=torch.float64) for v in values)


@pytest.mark.parametrize("conorm", ALL, **_ids)
@given(a=probabilities, b=probabilities, c=probabilities)
def test_axioms(conorm, a, b, c):
    a, b, c = _t(a, b, c)
    close = {"rtol": 1e-7, "atol": 1e-7}
    torch.testing.assert_close(conorm(a, b), conorm(b, a))
    torch.testing.assert_close(conorm(a, conorm(b, c)), conorm(conorm(a, b), c), **close)
    torch.testing.assert_close(conorm(a, torch.zeros_like(a)), a, **close)
    torch.testing.assert_close(conorm(a, torch.ones_like(a)), torch.ones_like(a), **close)
    assert torch.maximum(a, b) - 1e-7 <= conorm(a, b) <= 1 + 1e-12
    if b <= c:
        assert conorm(a, b) <= conorm(a, c) + 1e-7


@pytest.mark.parametrize("conorm", [*ALL, BoundedSum(), BoundedSum(math.inf)], **_ids)
@given(p=st.lists(probabilities, min_size=1, max_size=6))
def test_reduce_is_repeated_joining(conorm, p):
    p = torch.tensor(p, dtype=torch.float64)
    whole = conorm.reduce(p)
    assert 0 <= whole <= 1
    if isinstance(conorm, BoundedSum):
        total = p.sum()
        expected = total.clamp_max(1) if conorm.k == math.inf else total / (1 + total**8) ** (1 / 8)
    else:
        expected = p[0]
        for q in p[1:]:
            expected = conorm(expected, q)
    torch.testing.assert_close(whole, expected, rtol=1e-6, atol=1e-7)


def test_families_meet():
    a, b = _t(0.3, 0.6)
    torch.testing.assert_close(Hamacher(1.0)(a, b), Probabilistic()(a, b))
    torch.testing.assert_close(Hamacher(2.0)(a, b), Einstein()(a, b))
    torch.testing.assert_close(AczelAlsina(1.0)(a, b), Probabilistic()(a, b))
    torch.testing.assert_close(Dombi(1.0)(a, b), Hamacher(0)(a, b))
    torch.testing.assert_close(SchweizerSklar(-1.0)(a, b), Hamacher(0)(a, b))
    torch.testing.assert_close(Yager(200.0)(a, b), Maximum()(a, b))


def test_many_small_probabilities_are_not_lost_in_float32():
    p = torch.full((100_000,), 1e-9)
    torch.testing.assert_close(Probabilistic().reduce(p), torch.tensor(1e-4), rtol=1e-3, atol=0)


def test_certain_event_keeps_the_right_gradient():
    p = torch.tensor([1.0, 0.25], requires_grad=True)
    (slope,) = torch.autograd.grad(Probabilistic().reduce(p), p)
    torch.testing.assert_close(slope, torch.tensor([0.75, 0.0]), atol=1e-6, rtol=1e-6)


def test_none_along_the_dimension_is_0():
    for conorm in ALL:
        assert torch.equal(conorm.reduce(torch.zeros(2, 0)), torch.zeros(2))


@pytest.mark.parametrize(
    "conorm", [SchweizerSklar(-100.0), SchweizerSklar(-1e4), Frank(1e-20), Hamacher(1e8)], ids=repr
)
def test_nothing_is_neutral_at_extreme_parameters(conorm):
    for dtype in (torch.float32, torch.float64):
        a = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0], dtype=dtype, requires_grad=True)
        found = conorm(a, torch.zeros_like(a))
        torch.testing.assert_close(found, a)
        (slope,) = torch.autograd.grad(found.sum(), a)
        assert slope.isfinite().all()


def test_bounded_sum_of_huge_totals_is_1():
    torch.testing.assert_close(BoundedSum(8).bound(torch.tensor([1e20, 3e38])), torch.ones(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BoundedSum(3), r"BoundedSum: `k` must be an even integer from 2 on, or math.inf, got 3"),
        (lambda: Yager(0.5), r"Yager: `p` must be a number from 1 to 1e\+30, got 0.5"),
        (lambda: Frank(1), r"Frank: p = 1 is the limit `Probabilistic\(\)`"),
        (
            lambda: Frank(1e-40),
            r"Frank: `p` must be a number from 1e-30 .* \(the limit at 0 is `Maximum\(\)`\), got 1e-40",
        ),
        (lambda: SchweizerSklar(1.0), r"SchweizerSklar: `p` must be a number from -1e\+30 to -1e-30"),
        (lambda: Hamacher(1e39), r"Hamacher: `p` must be a number from 1e-30 to 1e\+30, or 0, got 1e\+39"),
        (lambda: Probabilistic()(0.5, 0.5), r"Probabilistic: expected a tensor, got float"),
    ],
)
def test_errors_say_what_was_wanted(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
