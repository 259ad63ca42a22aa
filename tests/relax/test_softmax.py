"""Weighted softmax: the paper's definition, exclusion, and the soft extrema on top."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algonet.relax import soft_argmax, soft_argmin, soft_max, soft_min, weighted_softmax, weighted_softmin

rows = st.lists(st.tuples(st.floats(-50, 50), st.floats(1e-6, 1)), min_size=1, max_size=6)


@given(rows=rows)
def test_is_the_papers_quotient(rows):
    x, w = torch.tensor(rows, dtype=torch.float64).T
    expected = x.exp() * w / (x.exp() * w).sum()
    torch.testing.assert_close(weighted_softmax(x, w), expected, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(weighted_softmin(x, w), weighted_softmax(-x, w))
    torch.testing.assert_close(weighted_softmax(x, w).sum(), torch.tensor(1.0, dtype=torch.float64))


def test_zero_weight_excludes_exactly_and_has_no_gradient():
    x = torch.tensor([1.0, 1e30, 2.0], requires_grad=True)
    w = torch.tensor([0.5, 0.0, 1.0], requires_grad=True)
    y = weighted_softmax(x, w)
    alone = weighted_softmax(x[[0, 2]], w[[0, 2]])
    torch.testing.assert_close(y[[0, 2]], alone)
    assert y[1] == 0
    for slope in torch.autograd.grad(y[0], (x, w)):
        assert slope[1] == 0
        assert torch.isfinite(slope).all()


def test_nan_under_a_zero_weight_is_excluded_too():
    y = weighted_softmax(torch.tensor([1.0, torch.nan]), torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(y, torch.tensor([1.0, 0.0]))


def test_all_zero_weights_are_equal_weights():
    x = torch.tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 0.0]])
    w = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 1.0]])
    torch.testing.assert_close(weighted_softmax(x, w)[0], torch.softmax(x[0], -1))


def test_nan_stays_in_its_row():
    x = torch.tensor([[1.0, torch.nan], [1.0, 2.0]])
    y = weighted_softmax(x, torch.ones(2, 2))
    assert y[0].isnan().all()
    torch.testing.assert_close(y[1], torch.softmax(x[1], -1))


def test_any_dimension_and_broadcast_weights():
    x = torch.randn(2, 3, 4)
    w = torch.rand(3, 1)
    expected = weighted_softmax(x.movedim(1, -1), w.expand(2, 3, 4).movedim(1, -1)).movedim(-1, 1)
    torch.testing.assert_close(weighted_softmax(x, w, dim=1), expected)


@pytest.mark.parametrize(
    ("soft", "hard"),
    [
        (soft_max, torch.amax),
        (soft_min, torch.amin),
        (soft_argmax, lambda x, dim: torch.argmax(x, dim).to(x)),
        (soft_argmin, lambda x, dim: torch.argmin(x, dim).to(x)),
    ],
)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_hard_limit(soft, hard, dim):
    x = torch.randn(5, 6, dtype=torch.float64)
    torch.testing.assert_close(soft(x, dim=dim, steepness=1e6), hard(x, dim))
    assert soft(x, dim=dim, keepdim=True).shape[dim] == 1


def test_steepness_is_learnable_and_softens():
    x = torch.randn(3, 5, dtype=torch.float64)
    steepness = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: soft_max(x, steepness=s), (steepness,))
    torch.testing.assert_close(soft_max(x, steepness=1e-9), x.mean(-1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: weighted_softmax(torch.ones(3), torch.ones(4)),
            r"weights` must broadcast to x: x is \(3,\), weights \(4,\)",
        ),
        (lambda: weighted_softmax(torch.ones(3), dim=1), r"`dim` 1 is out of range for x of shape \(3,\)"),
        (lambda: weighted_softmax([1.0]), r"weighted_softmax: expected a tensor, got list"),
        (lambda: soft_max(torch.ones(2, 0)), r"soft_max: x has no items along dim -1"),
        (lambda: soft_min(torch.ones(2, 0)), r"soft_min: x has no items along dim -1"),
        (lambda: soft_argmin(torch.tensor(1.0)), r"soft_argmin: `dim` -1 is out of range"),
        (lambda: soft_min(torch.ones(3), steepness="a"), r"soft_min: `steepness` must be a number .*, got 'a'"),
        (lambda: soft_max(torch.ones(3), steepness=-1), r"soft_max: `steepness` must be positive and finite"),
        (
            lambda: weighted_softmin(torch.ones(3), steepness=1e39),
            r"`steepness` must be positive and finite, got 1e\+39",
        ),
        (lambda: soft_max(torch.ones(2, 3), dim=(0, 1)), r"soft_max: `dim` must be one integer, got \(0, 1\)"),
        (lambda: soft_max(torch.ones(3).to_sparse()), r"expected a dense tensor, .*call .to_dense\(\) first"),
    ],
)
def test_errors_say_what_was_wanted(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_positions_are_counted_in_full_precision(dtype):
    """777 is not a bfloat16 and the mean of 4001 positions no float16."""
    x = torch.zeros(4001, dtype=dtype)
    assert abs(soft_argmax(x, steepness=2.0) - 2000) < 0.01
    x[777] = 9.0
    assert soft_argmax(x, steepness=100.0) == 777
    assert soft_argmin(-x, steepness=100.0) == 777


@pytest.mark.parametrize("function", [soft_min, soft_max, soft_argmin, soft_argmax, weighted_softmin])
def test_numbers_are_refused_by_name(function):
    with pytest.raises(TypeError, match=function.__name__):
        function([1.0, 2.0])


@pytest.mark.parametrize("absent", [1e10, -1e10, 3e38, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("function", [soft_max, soft_min, soft_argmax, soft_argmin])
def test_what_weight_0_excludes_does_not_matter(function, absent):
    x = torch.tensor([1.0, absent, 2.0], requires_grad=True)
    weights = torch.tensor([1.0, 0.0, 1.0], requires_grad=True)
    value = function(x, weights=weights, steepness=3.0)
    slopes = torch.autograd.grad(value, (x, weights))
    present, shares = torch.tensor([1.0, 2.0], requires_grad=True), torch.ones(2, requires_grad=True)
    expected = function(present, weights=shares, steepness=3.0)
    wanted = torch.autograd.grad(expected, (present, shares))
    if function in (soft_argmax, soft_argmin):
        # Positions 0 and 2 instead of 0 and 1
        expected, wanted = 2 * expected, [2 * slope for slope in wanted]
    torch.testing.assert_close(value, expected)
    for slope, other in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(slope[[0, 2]], other)
        assert slope[1] == 0


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_infinite_items_take_part_crisply(sign):
    x = (sign * torch.tensor([1.0, math.inf, 2.0])).requires_grad_()
    extremum, position = (soft_max, soft_argmax) if sign > 0 else (soft_min, soft_argmin)
    assert extremum(x) == sign * math.inf
    assert position(x) == 1
    (slope,) = torch.autograd.grad(position(x), x)
    assert slope.tolist() == [0, 0, 0]
    # The other extremum is that of the rest
    other = soft_min if sign > 0 else soft_max
    rest = torch.tensor([1.0, 2.0]) * sign
    torch.testing.assert_close(other(x), other(rest))
    assert soft_max(torch.full((3,), -math.inf)) == -math.inf
    assert soft_argmax(torch.tensor([math.inf, 0.0, math.inf])) == 1, "tied ones share"


@pytest.mark.parametrize("function", [soft_max, soft_argmax, soft_argmin])
def test_no_items_have_no_extremum(function):
    with pytest.raises(ValueError, match=rf"{function.__name__}: x has no items along dim -1 \(shape \(2, 0\)\)"):
        function(torch.zeros(2, 0))


@pytest.mark.parametrize("dim", [0, 1])
def test_a_steepness_may_vary_along_the_dimension(dim):
    x = torch.tensor([[1.0, 3.0, 2.0], [-4.0, 0.5, 2.0]], dtype=torch.float64, requires_grad=True)
    steepness = torch.tensor([[0.3, 1.0, 2.0], [1.0, 4.0, 0.5]], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([[1.0, 0.5, 2.0], [1.0, 0.0, 1.0]], dtype=torch.float64)
    function = lambda x, s: weighted_softmax(x, weights, dim=dim, steepness=s)  # noqa: E731
    plain = torch.softmax(steepness * x + weights.log(), dim)
    torch.testing.assert_close(function(x, steepness), plain)
    torch.testing.assert_close(soft_max(x, dim=dim, weights=weights, steepness=steepness), (plain * x).sum(dim))
    assert torch.autograd.gradcheck(function, (x, steepness))
    # One infinite item decides, and products that overflow stay in order
    assert weighted_softmax(torch.tensor([1.0, math.inf]), steepness=torch.tensor([9.0, 1.0])).tolist() == [0.0, 1.0]
    assert weighted_softmax(torch.tensor([1.0, 1e30]), steepness=torch.tensor([9.0, 1e20])).tolist() == [0.0, 1.0]
