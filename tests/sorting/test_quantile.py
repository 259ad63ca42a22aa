"""Quantiles, medians and losses."""

import itertools
import math

import pytest
import torch

from algonet.relax import Logistic, weighted_softmax, weighted_softmin
from algonet.sorting import (
    Bitonic,
    OddEven,
    SoftMedian,
    expected_swaps,
    permutation_cross_entropy,
    soft_median,
    soft_quantile,
    soft_sort,
)
from helpers.tolerances import assert_close

HARD = Logistic(1e7)


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("network", [OddEven(), Bitonic()], ids=str)
@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_hard_limit_is_torch_quantile(network, n, backend):
    x, levels = draw(3, n), [0.0, 0.3, 0.5, 1.0]
    found = soft_quantile(x, levels, relax=HARD, method=network, backend=backend)
    assert_close(found, torch.quantile(x, torch.tensor(levels, dtype=x.dtype), dim=-1).T)
    assert_close(soft_median(x, relax=HARD, method=network, backend=backend), torch.quantile(x, 0.5, dim=-1))


def test_median_is_the_middle_of_the_soft_sort():
    odd, even = draw(4, 7), draw(4, 6)
    assert_close(soft_median(odd), soft_sort(odd).values[:, 3])
    assert_close(soft_median(even), soft_sort(even).values[:, 2:4].mean(-1))


def test_shapes():
    x = draw(3, 4, 5)
    assert soft_median(x).shape == (3, 4)
    assert soft_median(x, dim=1).shape == (3, 5)
    assert soft_median(x, dim=0, keepdim=True).shape == (1, 4, 5)
    assert soft_median(x, dim=1, keepdim=True, method="fast").shape == (3, 1, 5)
    assert soft_quantile(x, [0.1, 0.9], dim=1).shape == (3, 2, 5)
    assert soft_quantile(x, torch.tensor([0.1, 0.9])).shape == (3, 4, 2)
    assert soft_quantile(x, torch.tensor(0.5)).shape == torch.quantile(x, torch.tensor(0.5).to(x), dim=-1).shape
    with pytest.raises(TypeError, match=r"`q` must be a number in .0, 1. or a sequence of them"):
        soft_quantile(x, torch.tensor([[0.1, 0.9]]))
    assert_close(soft_median(x, dim=1), soft_median(x.movedim(1, -1)))


def test_masked_quantiles_are_those_of_the_items_present():
    x = torch.where(torch.tensor([True, False, True, True, False]), draw(2, 5), math.nan)
    x[1, 0] = math.nan
    mask = ~x.isnan()
    for network in (OddEven(), Bitonic()):
        found = soft_quantile(x, 0.4, mask=mask, method=network)
        for row in range(2):
            assert_close(found[row], soft_quantile(x[row][mask[row]], 0.4, method=network))
    assert soft_median(x, mask=torch.zeros(2, 5, dtype=torch.bool)).isnan().all()
    fast = soft_median(x, mask=mask, method="fast")
    assert_close(fast[0], soft_median(x[0][mask[0]], method="fast"))


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_paper_median_is_the_papers_recursion(degree):
    x, s = draw(4, 6), 5.0
    w = torch.full_like(x, 1 / 6)
    for _ in range(degree):
        inner = weighted_softmin(x, w, steepness=s) + weighted_softmax(x, w, steepness=s)
        w = weighted_softmin(inner, w, steepness=s)
    assert_close(soft_median(x, method="paper", degree=degree, relax=Logistic(s)), (w * x).sum(-1))


def test_paper_median_drops_the_extremes():
    x = torch.tensor([-40.0, 1.0, 2.0, 6.0, 50.0])
    assert_close(soft_median(x, method="paper", relax=Logistic(100.0)), torch.tensor(3.0))


def test_median_resists_an_outlier():
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 1e6])
    assert abs(soft_median(x, relax=Logistic(20.0)) - 3) < 1e-3


def test_median_computes_fewer_exchanges_than_the_sort(monkeypatch):
    counted = []
    from algonet.sorting import reference

    original = reference.Exchange.__init__

    def counting(self, x, pairs, alpha, crisp):
        counted.append(len(pairs[0]))
        original(self, x, pairs, alpha, crisp)

    monkeypatch.setattr(reference.Exchange, "__init__", counting)
    soft_median(draw(9), method=OddEven(), backend="reference")
    median = sum(counted)
    counted.clear()
    soft_sort(draw(9), method=OddEven(), backend="reference")
    assert (median, sum(counted)) == (30, 36)


def test_cross_entropy():
    P = soft_sort(draw(3, 5), return_permutation=True).permutation.requires_grad_()
    target = torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(i)) for i in range(3)])
    expected = -torch.stack([P[b, i, target[b, i]].log() for b in range(3) for i in range(5)]).mean()
    assert_close(permutation_cross_entropy(P, target), expected)
    assert_close(permutation_cross_entropy(P, torch.nn.functional.one_hot(target, 5).to(P)), expected)
    assert permutation_cross_entropy(torch.eye(4), torch.arange(4)) == 0


def test_cross_entropy_of_an_impossible_order_is_finite_and_has_a_gradient():
    P = torch.eye(3).requires_grad_()
    loss = permutation_cross_entropy(P, torch.tensor([1, 0, 2]))
    slope = torch.autograd.grad(loss, P)[0]
    assert loss.isfinite()
    assert slope.isfinite().all()
    assert slope[0, 1] < 0


def test_expected_swaps_are_inversions_in_the_limit():
    x = draw(20, 6)
    inversions = torch.stack([(x[:, i] > x[:, j]) for i in range(6) for j in range(i + 1, 6)]).sum(0)
    assert_close(expected_swaps(x, relax=HARD), inversions.double())
    assert_close(expected_swaps(x, relax=HARD, descending=True), 15 - inversions.double())
    mask = torch.arange(6) < 4
    assert_close(expected_swaps(x, mask=mask), expected_swaps(x[:, :4]))
    assert expected_swaps(x.T, dim=0).shape == (20,)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_swaps_are_counted_in_full_precision(dtype):
    """Of 400 items there are more pairs than the largest float16."""
    x = torch.arange(400.0).flip(0).to(dtype)
    assert expected_swaps(x, relax=HARD) > 65504


def test_median_module_hardens():
    from algonet.relax import softness_report

    report = softness_report(SoftMedian(Logistic(5.0)), draw(64, 9).float())
    assert 0 < report.gap < 1


@pytest.mark.parametrize("backend", ["reference", "numba"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("items", [[1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 2.0, 2.0, 2.0, 3.0]])
def test_at_a_tie_the_gradient_is_the_derivative(items, masked, backend):
    """Both places beside the median hold the same value, made of the items in different shares."""
    options = {"relax": Logistic(30.0), "backend": backend}
    options |= {"mask": torch.ones(6, dtype=torch.bool)} if masked else {}
    x = torch.tensor(items, dtype=torch.float64, requires_grad=True)
    for function in (soft_median, lambda x, **o: soft_quantile(x, [0.3, 0.5], **o)):
        assert torch.autograd.gradcheck(lambda x, f=function: f(x, **options), x)


def test_infinite_quantiles_between_equal_infinities():
    x = torch.tensor([math.inf, math.inf, 1.0, -math.inf])
    assert soft_quantile(x, [0.0, 0.5, 0.9, 1.0], relax=HARD).tolist() == [-math.inf, math.inf, math.inf, math.inf]


def test_the_median_of_an_absent_row_is_nan_by_both_methods():
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], requires_grad=True)
    mask = torch.tensor([[False, False, False], [True, True, True]])
    for options in ({"method": "exact"}, {"method": "fast"}, {"method": "fast", "degree": 0}):
        found = soft_median(x, mask=mask, **options)
        assert found.isnan().tolist() == [True, False], options
        assert torch.autograd.grad(found[1], x)[0].isfinite().all()


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("kind", ["normal", "skewed", "heavy", "outliers"])
@pytest.mark.parametrize("n", [5, 10, 31])
def test_fast_median_improves_with_the_degree_at_any_scale(kind, n, scale):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, n, generator=generator)
    x = {
        "normal": lambda: x,
        "skewed": lambda: x.exp(),
        "heavy": lambda: x / torch.randn(300, n, generator=generator),
        "outliers": lambda: torch.cat([x[:, :-1], x[:, -1:] + 100], -1),
    }[kind]()
    # The middle items: one, or two with an even n, between which any is right
    low, high = x.sort(-1).values[:, [(n - 1) // 2, n // 2]].unbind(-1)
    spread = x.quantile(0.75, -1) - x.quantile(0.25, -1)
    values = [soft_median(scale * x, method="fast", degree=degree) / scale for degree in (0, 1, 2, 4, 8, 16)]
    errors = [(torch.maximum(low - value, value - high).clamp_min(0) / spread).mean().item() for value in values]
    # measured, normal, n = 31: 0.083 0.061 0.047 0.027 0.010 0.007
    assert all(later < earlier + 5e-3 for earlier, later in itertools.pairwise(errors)), errors
    assert errors[-1] < 0.3 * errors[1]


def test_fast_median_of_equal_items_is_their_mean_with_even_gradient():
    x = torch.full((4,), 3.0, requires_grad=True)
    value = soft_median(x, method="fast", degree=3)
    (slope,) = torch.autograd.grad(value, x)
    assert value.item() == pytest.approx(3.0)
    assert_close(slope, torch.full((4,), 0.25))
