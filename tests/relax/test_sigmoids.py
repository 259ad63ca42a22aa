"""What is particular to sigmoids: limits, reach, logarithms, and the formula that kernels inline."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algonet.relax import (
    SIGMOIDS,
    Gudermannian,
    GumbelMax,
    GumbelMin,
    Heaviside,
    Logistic,
    Optimal,
    Sigmoid,
    SmoothStep,
)
from algonet.sorting import soft_topk_mask
from helpers.tolerances import assert_close

ALL = [S() for S in SIGMOIDS] + [SmoothStep(k) for k in (0, 2, 5)]
SOFT = [s for s in ALL if not isinstance(s, Heaviside)]
SYMMETRIC = [s for s in SOFT if not isinstance(s, (GumbelMax, GumbelMin))]
_ids = {"ids": lambda s: s.key}
numbers = st.floats(-1e6, 1e6, allow_nan=False)


def _with(sigmoid, steepness):
    return type(sigmoid)(**({"k": sigmoid.k} if isinstance(sigmoid, SmoothStep) else {}), steepness=steepness)


@pytest.mark.parametrize("sigmoid", SOFT, **_ids)
@given(a=numbers, b=numbers)
def test_rises_from_0_to_1(sigmoid, a, b):
    low, high = sigmoid(torch.tensor([min(a, b), max(a, b)], dtype=torch.float64))
    assert 0 <= low <= high <= 1


@pytest.mark.parametrize("sigmoid", SYMMETRIC, **_ids)
@given(x=numbers)
def test_symmetric(sigmoid, x):
    x = torch.tensor(x, dtype=torch.float64)
    torch.testing.assert_close(sigmoid(x) + sigmoid(-x), torch.ones_like(x))


@pytest.mark.parametrize("sigmoid", SOFT, **_ids)
def test_hard_limit_is_the_heaviside_step(sigmoid):
    x = torch.tensor([-3.0, -0.1, 0.1, 3.0], dtype=torch.float64)
    torch.testing.assert_close(_with(sigmoid, 1e9)(x), Heaviside()(x), atol=1e-8, rtol=0)


@pytest.mark.parametrize("sigmoid", SOFT, **_ids)
@pytest.mark.parametrize("epsilon", [0.3, 1e-2, 1e-4, 1e-8])
@pytest.mark.parametrize("steepness", [0.5, 20.0])
def test_reach_is_where_epsilon_is_left(sigmoid, epsilon, steepness):
    steep = _with(sigmoid, steepness)
    reach = float(steep.reach(epsilon))
    inside, at = (torch.tensor([-r, r], dtype=torch.float64) for r in (reach * 0.98, reach * 1.000001))
    left = lambda x: torch.maximum(steep(x)[0], 1 - steep(x)[1])  # noqa: E731
    assert left(at) <= epsilon * (1 + 1e-6) + 1e-15
    assert left(inside) > epsilon * (1 - 1e-6)


@pytest.mark.parametrize("sigmoid", ALL, **_ids)
def test_log_is_the_logarithm(sigmoid):
    x = torch.linspace(-4, 4, 81, dtype=torch.float64) + 1e-3
    value = sigmoid(x)
    seen = value > 1e-12
    torch.testing.assert_close(sigmoid.log(x)[seen], value[seen].log(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["Logistic", "Gaussian", "Cauchy", "Gudermannian", "Laplace", "GumbelMin"])
def test_log_does_not_underflow(name):
    """Far left the value is 0 in float32 (or nearly), and its logarithm must go on falling."""
    sigmoid = next(s for s in ALL if s.key == name)
    x = torch.tensor([-200.0, -2000.0])
    near, far = sigmoid.log(x)
    assert torch.isfinite(far)
    assert far < near < -5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precisions_saturate_without_overflow(dtype):
    x = torch.tensor([-6e4, 6e4], dtype=dtype)
    for sigmoid in SOFT:
        assert_close(_with(sigmoid, 1e3)(x), torch.tensor([0.0, 1.0]))


def test_smooth_step_is_the_cubic_hermite_step():
    t = torch.linspace(0, 1, 11, dtype=torch.float64)
    torch.testing.assert_close(SmoothStep(1)(2 * t - 1), 3 * t**2 - 2 * t**3)
    torch.testing.assert_close(SmoothStep(0)(2 * t - 1), t)


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_smooth_step_has_k_continuous_derivatives(k):
    """Inside derivatives vanish towards the edge of the transition up to order k, and no further."""
    x = torch.tensor(-1.0 + 1e-4, dtype=torch.float64, requires_grad=True)
    y = SmoothStep(k)(x)
    for _ in range(k):
        (y,) = torch.autograd.grad(y, x, create_graph=True)
        assert y.abs() < 0.1
    (y,) = torch.autograd.grad(y, x)
    assert y.abs() > 0.3
    assert SmoothStep(k).smoothness == k


def test_optimal_errs_by_at_most_a_sixteenth():
    x = torch.linspace(-50, 50, 100001, dtype=torch.float64)
    error = x.clamp_min(0) - x * Optimal()(x)
    torch.testing.assert_close(error.abs().max(), torch.tensor(1 / 16, dtype=torch.float64))


def test_heaviside_is_the_papers():
    torch.testing.assert_close(Heaviside()(torch.tensor([-1e-9, 0.0, 1e-9])), torch.tensor([0.0, 1.0, 1.0]))


class OwnSigmoid(Sigmoid):
    """The Gudermannian by another formula, and nothing else said."""

    def _value(self, z):
        return 0.5 + torch.atan(torch.sinh(z.clamp(-300, 300))) / math.pi


def test_a_sigmoid_of_ones_own_needs_only_its_value():
    own, known = OwnSigmoid(2.0), Gudermannian(2.0)
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)
    # 1/2 + ... has 16 digits in all, and few of a small value
    torch.testing.assert_close(own.log(x), known.log(x), rtol=0, atol=1e-8)
    for epsilon in (0.3, 1e-3, 1e-9):
        assert float(own.reach(epsilon)) == pytest.approx(known.reach(epsilon), rel=1e-6)
    values = [soft_topk_mask(x.sin(), 5, relax=relax) for relax in (own, known)]
    torch.testing.assert_close(*values, rtol=0, atol=1e-9)


@pytest.mark.parametrize("sigmoid", SOFT, **_ids)
def test_steepness_can_be_learned(sigmoid):
    steepness = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    x = torch.tensor([-0.4, 0.1, 0.3], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda s: _with(sigmoid, s)(x), (steepness,))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Logistic(-1.0), r"Logistic: `steepness` must be positive and finite, got -1.0"),
        (lambda: Logistic(1e39), r"`steepness` must be positive and finite, got 1e\+39; float32 takes 1e-37 to 1e37"),
        (lambda: Logistic(math.nan), r"`steepness` must be positive"),
        (lambda: Logistic("10"), r"must be a positive number or a floating tensor, got '10'"),
        (lambda: Logistic(torch.tensor(3)), r"floating tensor or a number, got a tensor of torch.int64"),
        (lambda: SmoothStep(-1), r"SmoothStep: `k` must be an integer from 0 to 20, got -1"),
        (lambda: Logistic()(3.0), r"Logistic: expected a tensor, got float; wrap it"),
        (lambda: Logistic()(torch.tensor(3)), r"expected a floating tensor, got torch.int64; call .float\(\)"),
        (lambda: Logistic().reach(0.7), r"Logistic.reach: `epsilon` must lie in \(0, 0.5\), got 0.7"),
    ],
)
def test_errors_say_what_was_wanted(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
