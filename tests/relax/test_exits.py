"""What is particular to exits: exactness on integers, the bound the paper's proof needs, smoothness at zero."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algonet.relax import EXITS, BumpExit, Sech, SmoothTent, Tent

ALL = [E() for E in EXITS] + [SmoothTent(k) for k in (0, 2, 5)]
_ids = {"ids": lambda e: e.key}


@pytest.mark.parametrize("phi", ALL, **_ids)
@given(x=st.floats(-1e6, 1e6))
def test_even_and_between_0_and_1(phi, x):
    x = torch.tensor(x, dtype=torch.float64)
    assert 0 <= phi(x) <= 1
    assert phi(x) == phi(-x)


@pytest.mark.parametrize("phi", ALL, **_ids)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_exact_on_integers_if_it_says_so(phi, dtype):
    n = torch.arange(-5, 6).to(dtype)
    exact = torch.equal(phi(n), (n != 0).to(dtype))
    assert exact == phi.exact_on_integers


def test_sech_is_the_papers_formula():
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    s = 2.0
    paper = (torch.exp(s * x) - 1) ** 2 / (torch.exp(2 * s * x) + 1)
    torch.testing.assert_close(Sech(s)(x), paper)


def test_sech_stays_below_the_identity_up_to_steepness_2_6():
    """The paper's proof that loops halt needs phi(x) <= |x|."""
    x = torch.linspace(1e-4, 3, 30000, dtype=torch.float64)
    assert (Sech(2.6)(x) <= x).all()
    assert not (Sech(2.62)(x) <= x).all()


def test_sech_is_flat_far_out_and_keeps_digits_near_zero():
    x = torch.tensor([1e4, 1e-4], requires_grad=True)
    y = Sech(2.0)(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert slope[0] == 0
    torch.testing.assert_close(y[1], torch.tensor(2e-8), rtol=1e-3, atol=0)


def test_sech_curves_at_zero():
    """phi''(0) = steepness^2: lost by forms that go through |x|."""
    x = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(Sech(3.0)(x), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope, x)
    torch.testing.assert_close(curvature, torch.tensor(9.0, dtype=torch.float64))


def test_tent_is_the_first_smooth_tent():
    x = torch.linspace(-2, 2, 41, dtype=torch.float64)
    torch.testing.assert_close(SmoothTent(0)(x), Tent()(x))


def test_bump_exit_is_the_quotient_of_bumps():
    t = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    g, h = torch.exp(-1 / t), torch.exp(-1 / (1 - t))
    torch.testing.assert_close(BumpExit()(t), g / (g + h))


def test_errors_say_what_was_wanted():
    with pytest.raises(ValueError, match=r"SmoothTent: `k` must be an integer from 0 to 20, got 1.5"):
        SmoothTent(1.5)
    with pytest.raises(ValueError, match=r"Sech: `steepness` must be positive"):
        Sech(0.0)


def test_the_proof_that_loops_halt_holds_up_to_2_6():
    # It needs phi(x) <= |x|: the largest steepness is 1 / max (1 - sech u)/u = 2.609
    x = torch.linspace(1e-3, 3.0, 30_000, dtype=torch.float64)
    assert (Sech(2.609)(x) <= x).all()
    assert not (Sech(2.61)(x) <= x).all()
