"""`smoothness` is true: so many derivatives are continuous, and no more."""

from __future__ import annotations

import math

import pytest
import torch

from algonet import relax
from algonet.relax import BoundedSum, Bump, Hamacher, SmoothStep, SmoothTent

ONE = [S() for S in (*relax.SIGMOIDS, *relax.EXITS)]
ONE += [kind(k) for kind in (SmoothStep, SmoothTent) for k in (0, 2, 3)]
TWO = [C() for C in relax.CONORMS] + [BoundedSum(2), Hamacher(0.0), Hamacher(3.0), BoundedSum(math.inf)]


def _steps(function, low: float, high: float, order: int, count: int) -> float:
    """The largest step between neighbours of a derivative, over its spread."""
    # Half a step off, so that no point is one where pieces meet
    x = (torch.arange(count, dtype=torch.float64) + 0.5) * (high - low) / count + low
    y = function(x.requires_grad_())
    for _ in range(order):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True) if y.requires_grad else (torch.zeros_like(x),)
    y = y.detach()
    assert y.isfinite().all()
    return float((y[1:] - y[:-1]).abs().max() / (y.max() - y.min()).clamp_min(1e-3))


def _continuous(function, low: float, high: float, order: int) -> bool:
    # Steps of a continuous curve shrink with the distance between points; a jump keeps its size
    return _steps(function, low, high, order, 8000) < 0.75 * _steps(function, low, high, order, 4000) + 1e-6


@pytest.mark.parametrize("relaxation", [*ONE, *TWO], ids=lambda r: r.key)
def test_smoothness_is_as_stated(relaxation):
    joins = relaxation in TWO
    function = (lambda x: relaxation(x, torch.full_like(x, 0.6))) if joins else relaxation
    low, high = (0.05, 0.95) if joins else (-2.0, 2.0)
    last = relaxation.smoothness
    for order in range(int(min(last, 4)) + 1):
        assert _continuous(function, low, high, order), f"derivative {order} jumps"
    if last < math.inf:
        assert not _continuous(function, low, high, int(last) + 1), f"derivative {int(last) + 1} is continuous too"


@pytest.mark.parametrize("sigmoid", [Bump(4.0), SmoothStep(2, steepness=4.0)], ids=lambda s: s.key)
def test_bounded_families_are_crisp_outside(sigmoid):
    x = torch.tensor([-1e9, -0.3, -0.25, 0.25, 0.3, 1e9])
    assert torch.equal(sigmoid(x), (x > 0).float())
    assert 0 < sigmoid(torch.tensor(-0.2)) < 0.5
