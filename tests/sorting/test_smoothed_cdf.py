"""SmoothedCDF against the definition, written out: thresholds by bisection, one exchange of memberships for each place."""

import itertools
import math

import pytest
import torch

from algonet.core.identity import interned
from algonet.relax import SIGMOIDS, Bump, Cauchy, Gaussian, GumbelMin, Heaviside, Laplace, Logistic, SmoothStep
from algonet.sorting import (
    Pairwise,
    SmoothedCDF,
    soft_argsort,
    soft_median,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
    soft_topk_mask,
)
from algonet.sorting.counts import CountSettings, nodes_per_unit
from algonet.sorting.operation import COUNTS, QUANTILES

BACKENDS = ["reference", "numba"]
SMOOTH = [Logistic, Gaussian, Cauchy, GumbelMin, Laplace]


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def written_out(x, relax):
    """P (n, n) of one row: place p from the bottom lies between the thresholds that leave n - p and n - p - 1 above."""
    n = len(x)
    members = [torch.ones_like(x)]
    for k in range(n - 1, 0, -1):
        low, high = float(x.min()) - 1e9, float(x.max()) + 1e9
        for _ in range(200):
            b = (low + high) / 2
            low, high = (b, high) if float(relax(x - b).sum()) > k else (low, b)
        members.append(relax(x - (low + high) / 2))
    members.append(torch.zeros_like(x))
    return torch.stack([above - below for above, below in itertools.pairwise(members)])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", SMOOTH)
@pytest.mark.parametrize("n", [1, 2, 7, 90])
def test_all_answers_follow_from_the_definition(family, n, backend):
    x, relax = draw(n), family(6.0)
    P, place = written_out(x, relax), torch.arange(n, dtype=torch.float64)
    options = {"relax": relax, "backend": backend}
    found = soft_sort(x, payload=x.sin(), return_permutation=True, **options)
    close = {"rtol": 0, "atol": 1e-8}
    torch.testing.assert_close(found.permutation, P, **close)
    torch.testing.assert_close(found.values, P @ x, **close)
    torch.testing.assert_close(found.payload, P @ x.sin(), **close)
    torch.testing.assert_close(soft_argsort(x, **options), P @ place, **close)
    torch.testing.assert_close(soft_rank(x, **options), P.T @ place, rtol=0, atol=1e-7)
    torch.testing.assert_close(soft_rank(x, descending=True, **options), P.flip(0).T @ place, rtol=0, atol=1e-7)
    torch.testing.assert_close(soft_topk(x, n, **options).values, (P @ x).flip(0), **close)
    torch.testing.assert_close(soft_median(x, **options), ((P @ x)[(n - 1) // 2] + (P @ x)[n // 2]) / 2, **close)


@pytest.mark.parametrize("family", [Logistic, GumbelMin])
@pytest.mark.parametrize("n", [12, 300])
def test_the_last_rows_are_the_top_k_memberships(family, n):
    x, relax = draw(2, n), family(5.0)
    P = soft_sort(x, relax=relax, return_permutation=True).permutation
    for k in (1, 3, n // 2):
        torch.testing.assert_close(P[:, -k:].sum(-2), soft_topk_mask(x, k, relax=relax), rtol=0, atol=1e-8)
    torch.testing.assert_close(P.sum(-1), torch.ones_like(x), rtol=0, atol=1e-8)
    torch.testing.assert_close(P.sum(-2), torch.ones_like(x), rtol=0, atol=1e-8)


@pytest.mark.parametrize("n", [10, 100, 1000, 3000])
def test_the_blur_does_not_grow_with_n(n):
    x = draw(8, n).float()
    values = soft_sort(x).values
    assert (values - x.sort().values).abs().mean() < 0.03
    assert (values.diff() > -1e-6).all()
    assert (values.sum(-1) - x.sum(-1)).abs().max() < 1e-5 * n
    assert (soft_rank(x) - x.argsort().argsort()).abs().mean() < 0.035 * n
    assert (soft_median(x) - x.quantile(0.5, -1)).abs().mean() < 0.05


@pytest.mark.parametrize("precise", [True, False])
@pytest.mark.parametrize("family", SMOOTH)
def test_grids_give_what_all_pairs_give(family, precise):
    sigmoid = interned(family())
    settings = CountSettings(sigmoid, precise)
    x, y, w = 10 * draw(2, 300), 12 * draw(2, 250, seed=1), draw(2, 300, 3, seed=2)
    dense = sigmoid(y.unsqueeze(-1) - x.unsqueeze(-2)) @ w
    found = COUNTS([y, x, w], settings, "numba")[0]
    torch.testing.assert_close(found, dense, rtol=0, atol=1e-9 if precise else 1e-5)
    k = torch.arange(1, 300, dtype=torch.float64).expand(2, -1)
    roots = QUANTILES([x, torch.ones_like(x), k], settings, "numba")[0]
    back = sigmoid(roots.unsqueeze(-1) - x.unsqueeze(-2)).sum(-1)
    torch.testing.assert_close(back, k, rtol=0, atol=1e-9 if precise else 1e-4)


def test_sigmoids_with_kinks_have_no_grid():
    kinked = {family for family in SIGMOIDS if not nodes_per_unit(interned(family()), False)}
    assert {Laplace, SmoothStep, Heaviside} <= kinked
    assert not kinked & {Logistic, Gaussian, Cauchy, GumbelMin, Bump}


@pytest.mark.parametrize("n", [5, 200])
@pytest.mark.parametrize("family", [Logistic, Cauchy])
def test_derivatives(n, family):
    x = draw(n).requires_grad_()
    steepness = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    direction = draw(n, seed=3)
    readers = [
        lambda x, s: (soft_sort(x, relax=family(s)).values * direction).sum(),
        lambda x, s: (soft_rank(x, relax=family(s)) * direction).sum(),
    ]
    for reader in readers:
        assert torch.autograd.gradcheck(reader, (x, steepness), atol=1e-5, fast_mode=n > 9)
        assert torch.autograd.gradgradcheck(reader, (x, steepness), atol=1e-4, fast_mode=True)


def test_many_items_at_any_scale():
    x = torch.cat([draw(20000), torch.tensor([1e9, -1e12, 3e5])]).float().requires_grad_()
    values = soft_sort(x).values
    near = (values - x.sort().values).abs() <= 0.2 + 1e-5 * values.abs()
    assert near.all()
    assert torch.autograd.grad(values.square().clamp_max(10).sum(), x)[0].isfinite().all()
    hard = soft_sort(x, relax=Logistic(1e8)).values
    torch.testing.assert_close(hard, x.sort().values, rtol=1e-5, atol=1e-5)


def test_infinite_and_absent_items():
    inf = math.inf
    x = torch.tensor([1.0, inf, 2.0, -inf, inf, 9.0], requires_grad=True)
    mask = torch.tensor([True, True, True, True, True, False])
    found = soft_sort(x, mask=mask, payload=torch.arange(6.0))
    assert found.values.tolist()[0] == -inf
    assert found.values.tolist()[3:] == [inf, inf, 9.0]
    assert found.payload.tolist()[0] == 3
    assert found.payload.tolist()[3:] == [1, 4, 5]
    assert soft_rank(x, mask=mask).round(decimals=1).tolist() == [1, 3.5, 2, 0, 3.5, 5]
    assert soft_rank(x, mask=mask, descending=True).round(decimals=1).tolist() == [3, 0.5, 2, 4, 0.5, 5]
    slope = torch.autograd.grad(found.values[1:3].sum(), x)[0]
    assert slope.tolist()[1] == 0
    assert slope.isfinite().all()
    assert soft_sort(torch.tensor([[1.0, math.nan], [2.0, 1.0]])).values.isnan().tolist() == [
        [True, True],
        [False, False],
    ]


def test_quantiles_read_only_their_places():
    x = draw(3, 1001)
    whole = soft_sort(x).values
    levels = [0.0, 0.25, 0.5, 1.0]
    found = soft_quantile(x, levels)
    torch.testing.assert_close(found, whole[:, [0, 250, 500, 1000]], rtol=0, atol=1e-8)
    assert soft_sort(x, method=SmoothedCDF(), relax=Heaviside()).values.equal(x.sort().values)


@pytest.mark.parametrize("by", ["deviation", "gap"])
def test_relative_steepness_has_no_unit(by):
    x = torch.stack([draw(40), 7 * draw(40, seed=1) + 5])
    mask = torch.rand(2, 40, generator=torch.Generator().manual_seed(2)) < 0.8
    relax = Logistic(10.0).relative(by)
    for present in (None, mask):
        options = {"relax": relax, "mask": present}

        def answers(x, options=options):
            return [
                soft_sort(x, **options).values,
                soft_rank(x, **options),
                soft_rank(x, method=Pairwise(), **options),
                soft_topk_mask(x, 5, **options),
            ]

        values, *shares = answers(x)
        for scale, shift in ((1000.0, 0.0), (1e-6, 0.0), (3.0, -20.0)):
            again, *others = answers(scale * x + shift)
            torch.testing.assert_close([(again - shift) / scale, *others], [values, *shares], rtol=0, atol=1e-7)
    # Not the same as one steepness for both rows
    assert (soft_rank(x, relax=relax) - soft_rank(x, relax=Logistic(10.0))).abs().max() > 1e-3
