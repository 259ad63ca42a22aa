"""Methods: each answers its questions, says which others do, and keeps the promises of its text."""

import itertools

import pytest
import scipy.stats
import torch

from algonet.relax import (
    SIGMOIDS,
    Bump,
    Cauchy,
    Gaussian,
    GumbelMax,
    Heaviside,
    Laplace,
    Logistic,
    SoftnessWarning,
    soft_argmin,
    soft_max,
)  # fmt: skip
from algonet.sorting import (
    Bitonic,
    NeuralSort,
    OddEven,
    Pairwise,
    Permutahedron,
    SmoothedCDF,
    SoftMedian,
    SoftRank,
    Transport,
    Unimodal,
    soft_argsort,
    soft_median,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
)
from algonet.sorting.counts import LaplaceSettings
from algonet.sorting.methods import TASKS, suggestions
from algonet.sorting.operation import LAPLACE
from algonet.sorting.pairwise import pair_counts
from helpers.contract import CHECKS, Case, normal
from helpers.sigmoids import KERNEL_SIGMOIDS

HARD = {"relax": Logistic(1e7)}
SORTING = [SmoothedCDF(), OddEven(), Bitonic(), Permutahedron(1e-6), NeuralSort(), Unimodal(), Transport(5)]
RANKING = [SmoothedCDF(), OddEven(), Bitonic(), Pairwise(), Permutahedron(1e-6), Transport(5)]
PERMUTING = [SmoothedCDF(), OddEven(), Bitonic(), NeuralSort(), Unimodal(), Transport(5)]


def draw(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SOFT = Logistic(1.5)
CASES = [
    Case("pairwise", lambda x, backend="auto": soft_rank(x, relax=SOFT, method=Pairwise(), backend=backend).to(x),
         normal(5), kernels=("numba",)),
    Case("pairwise, one-sided",
         lambda x, backend="auto": soft_rank(x, relax=GumbelMax(1.5), method=Pairwise(), backend=backend).to(x),
         normal(5), kernels=("numba",)),
    Case("pairwise Laplace",
         lambda x, backend="auto": LAPLACE([x, torch.ones_like(x), x.new_tensor(1.5)], LaplaceSettings(), backend)[0],
         normal(5), kernels=("numba",)),
    Case("permutahedron sort", lambda x: soft_sort(x, method=Permutahedron(1.3)).values, normal(5)),
    Case("permutahedron rank", lambda x: soft_rank(x, method=Permutahedron(0.6, entropic=True)).to(x), normal(5)),
    Case("neural sort", lambda x: soft_sort(x, relax=SOFT, method=NeuralSort()).values, normal(5)),
    Case("unimodal", lambda x: soft_sort(x, relax=SOFT, method=Unimodal(), payload=x).payload, normal(5)),
    Case("transport", lambda x: soft_rank(x, relax=SOFT, method=Transport(4)).to(x), normal(5)),
]  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(case, check):
    check(case)


@pytest.mark.parametrize("method", SORTING, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_hard_limit_of_sorting(method, descending):
    x = draw(3, 9)
    assert torch.allclose(
        soft_sort(x, method=method, descending=descending, **HARD).values, x.sort(-1, descending=descending).values
    )
    assert torch.allclose(soft_median(x, method=method, **HARD), x.median(-1).values)
    levels = torch.tensor([0.1, 0.8], dtype=x.dtype)
    assert torch.allclose(soft_quantile(x, levels, method=method, **HARD), x.quantile(levels, -1).T)


@pytest.mark.parametrize("method", RANKING, ids=str)
@pytest.mark.parametrize("descending", [False, True])
def test_hard_limit_of_ranks(method, descending):
    x = draw(3, 9)
    ranks = x.argsort(-1, descending=descending).argsort(-1).to(x.dtype)
    assert torch.allclose(soft_rank(x, method=method, descending=descending, **HARD), ranks)


@pytest.mark.parametrize("method", PERMUTING, ids=str)
def test_hard_limit_of_indices(method):
    x = draw(3, 9)
    assert torch.allclose(soft_argsort(x, method=method, **HARD), x.argsort(-1).to(x.dtype))
    crisp = x.topk(4)
    soft = soft_topk(x, 4, method=method, return_permutation=True, **HARD)
    assert torch.allclose(soft.values, crisp.values)
    assert torch.allclose(soft.indices, crisp.indices.to(x.dtype))
    assert torch.allclose((soft.permutation @ x.unsqueeze(-1)).squeeze(-1), soft.values)


QUESTIONS = {
    "sort": lambda x, **o: soft_sort(x, **o).values,
    "argsort": soft_argsort,
    "rank": soft_rank,
    "topk": lambda x, **o: soft_topk(x, 3, **o).values,
    "quantile": lambda x, **o: soft_quantile(x, 0.3, **o),
}
SOFTLY = [
    OddEven(),
    Bitonic(),
    Pairwise(),
    Permutahedron(0.7),
    Permutahedron(0.7, entropic=True),
    NeuralSort(),
    Unimodal(),
]


@pytest.mark.parametrize("method", [*SOFTLY, Transport(200)], ids=str)
@pytest.mark.parametrize("task", QUESTIONS)
def test_every_method_answers_with_a_mask_or_says_which_does(task, method):
    """Absent items, NaN among them, change nothing and get no gradient."""
    x = draw(3, 7)
    assert set(QUESTIONS) == set(TASKS)
    mask = torch.tensor(
        [[True] * 7, [True, False, True, True, False, True, True], [False, True, True, False, True, False, True]]
    )
    if task not in method.answers:
        able = "|".join(f"{type(m).__name__}" for m in suggestions(task))
        with pytest.raises(ValueError, match=rf"does not answer it; .*({able})\(\).* do\."):
            QUESTIONS[task](x, method=method, relax=SOFT)
        return
    spoiled = torch.where(mask, x, torch.nan).requires_grad_()
    found = QUESTIONS[task](spoiled, method=method, relax=SOFT, mask=mask)
    for row, here, given in zip(x, mask, found, strict=True):
        alone = QUESTIONS[task](row[here], method=method, relax=SOFT)
        if task == "argsort":  # of the items that are there, by their own numbers
            P = soft_sort(row[here], method=method, relax=SOFT, return_permutation=True).permutation
            alone = P @ here.nonzero().squeeze(-1).to(P)
        given = given[here] if task == "rank" else given if task == "quantile" else given[: len(alone)]
        assert torch.allclose(given, alone, atol=1e-9)
    used = (
        mask if task == "rank" else torch.ones_like(found, dtype=torch.bool) if task == "quantile" else found.isfinite()
    )
    slope = torch.autograd.grad(torch.where(used, found, 0.0).square().sum(), spoiled)[0]
    assert (slope[~mask] == 0).all()
    assert slope.isfinite().all()
    assert slope[mask].abs().max() > 0


def test_absent_items_rank_last_in_their_order():
    x, mask = torch.tensor([3.0, 1.0, 9.0, 2.0, 8.0]), torch.tensor([True, True, False, True, False])
    for method in RANKING:
        assert soft_rank(x, method=method, mask=mask, **HARD).round().tolist() == [2, 0, 3, 1, 4], method


@pytest.mark.parametrize(
    ("call", "n", "message"),
    [
        (lambda x: soft_sort(x, method=OddEven()), 1200, r"1,200 layers.*Bitonic\(\) has 66"),
        (lambda x: soft_rank(x, method=OddEven()), 1200, r"1,200 layers.*Bitonic\(\) has 66"),
        (lambda x: soft_median(x, method=OddEven()), 1200, r"1,200 layers.*Bitonic\(\) has 66"),
        (lambda x: soft_topk(x, 2, method=OddEven()), 1200, r"1,200 layers.*soft_topk_mask"),
        (lambda x: soft_median(x, method=OddEven()), 128, r"the median of 128 items is no nearer than their mean"),
        (SoftMedian(method=OddEven()), 128, r"soft_quantile: the default is too soft here"),
        (lambda x: soft_topk(x, 2, method=OddEven()), 64, r"`indices` of 64 items are means.*hard=True"),
        (lambda x: soft_rank(x, method=Permutahedron()), 16, r"ranks of 16 items so close.*Permutahedron\(strength=0.06\)"),
        (soft_max, 128, r"soft_max: .* too soft for 128 items.* steepness=10.0"),
        (soft_argmin, 128, r"soft_argmin: "),
    ],
)  # fmt: skip
def test_defaults_say_where_they_are_of_little_use(call, n, message):
    x = torch.randn(1, n, generator=torch.Generator().manual_seed(0))
    with pytest.warns(SoftnessWarning, match=message) as caught:
        call(x)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    if n < 1000:
        call(x[:, : n // 2])
        call(20 * x)


def test_other_softness_is_the_callers_own():
    x = torch.randn(1, 1200)
    soft_sort(x, method=Bitonic()), soft_sort(x, method=OddEven(), steps=4)
    x = x[:, :200]
    soft_median(x, relax=Logistic(9.0)), soft_topk(x, 2, hard=True), soft_max(x, steepness=2.0)
    soft_rank(x, method=Permutahedron(0.005))


@pytest.mark.parametrize("method", PERMUTING, ids=str)
def test_rows_of_permutations_sum_to_one_and_masks_change_nothing_else(method):
    x = draw(2, 7)
    P = soft_sort(x, method=method, relax=SOFT, return_permutation=True).permutation
    assert torch.allclose(P.sum(-1), torch.ones(2, 7, dtype=x.dtype))
    mask = torch.tensor([True, True, False, True, False, True, True])
    spoiled = torch.where(mask, x, torch.nan)
    alone = soft_sort(x[:, mask], method=method, relax=SOFT).values
    found = soft_sort(spoiled, method=method, relax=SOFT, mask=mask).values
    assert torch.allclose(found[:, :5], alone)
    x.requires_grad_()
    soft_sort(torch.where(mask, x, 3.0), method=method, relax=SOFT, mask=mask).values[:, :5].square().sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("backend", ["reference", "numba"])
@pytest.mark.parametrize("kind", [k for k in SIGMOIDS if k is not Heaviside], ids=lambda kind: kind.__name__)
def test_pairwise_ranks_are_their_formula(kind, backend):
    if backend == "numba" and kind not in KERNEL_SIGMOIDS:
        pytest.skip("a kernel like another sigmoid's")
    x = draw(2, 33)
    relax = kind(steepness=3.0)
    counts = relax(x.unsqueeze(-1) - x.unsqueeze(-2)).sum(-1) - relax(torch.zeros(1, dtype=x.dtype))
    assert torch.allclose(soft_rank(x, method=Pairwise(), relax=relax, backend=backend), counts)
    if relax.smoothness >= 0 and kind.__name__ not in ("GumbelMax", "GumbelMin"):
        assert torch.allclose(counts.sum(-1), torch.tensor(33 * 16.0, dtype=x.dtype))


def test_equal_items_rank_equally():
    x = torch.tensor([3.0, 1.0, 3.0, 2.0, 3.0], dtype=torch.float64)
    expected = torch.as_tensor(scipy.stats.rankdata(x) - 1)
    for relax in (Logistic(1e6), Laplace(1e6), Cauchy(1e12)):
        assert torch.allclose(soft_rank(x, method=Pairwise(), relax=relax), expected, atol=1e-9)


def test_laplace_ranks_by_sorting_are_those_of_all_pairs():
    inf = float("inf")
    x = torch.cat([draw(4, 50), 1e3 * draw(4, 20, seed=2)], -1)
    x[0, :3], x[1, 4], x[2, 5], x[2, 6] = 0.5, inf, -inf, -inf
    mask = torch.rand(4, 70, generator=torch.Generator().manual_seed(0)) < 0.8
    assert Pairwise.scans(Laplace(5.0), x)  # or both ways below would be one
    for options in ({}, {"mask": mask}, {"descending": True}):
        for steepness in (0.01, 5.0, 1e5):
            ways = [
                soft_rank(x, method=Pairwise(), relax=Laplace(steepness), backend=backend, **options)
                for backend in ("auto", "reference")
            ]
            assert torch.allclose(*ways, atol=1e-9), (options.keys(), steepness)
    big = torch.randn(1, 100_000)
    ranks = soft_rank(big, method=Pairwise(), relax=Laplace(100.0))
    assert abs(ranks.double().sum() - 100_000 * 99_999 / 2) < 1e-6 * 5e9


def test_weighted_laplace_counts_are_those_of_all_pairs():
    x, s = draw(3, 40).requires_grad_(), torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(3, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 0.4
    weights = weights.clamp_min(0.0)
    x.data[0, :4], x.data[1, 3], x.data[1, 4], x.data[2, 5] = 0.5, torch.inf, torch.inf, -torch.inf
    pairs = pair_counts(x, weights, Laplace(), s, "reference")
    draws = torch.randn(3, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    expected = torch.autograd.grad(pairs, (x, s), draws, retain_graph=True)
    others = {
        "scan": LAPLACE([x, weights, s], LaplaceSettings(), "reference")[0],
        "scan, kernel": LAPLACE([x, weights, s], LaplaceSettings(), "numba")[0],
        "pairs, kernel": pair_counts(x, weights, Laplace(), s, "numba"),
    }
    for name, found in others.items():
        assert torch.allclose(found, pairs), name
        for a, b in zip(torch.autograd.grad(found, (x, s), draws), expected, strict=True):
            assert torch.allclose(a, b), name


def test_laplace_counts_have_second_derivatives_where_a_gradient_is_zero():
    x = draw(2, 7).requires_grad_()
    settings, ones, s = LaplaceSettings(), torch.ones_like(x), x.new_tensor(1.5)
    assert torch.autograd.gradgradcheck(lambda x: LAPLACE([x, ones, s], settings, "numba")[0][:, :1], x)


def test_pairwise_ranks_of_infinite_and_absent_items():
    inf = float("inf")
    x = torch.tensor([inf, 1.0, -inf, inf, float("nan")])
    mask = torch.tensor([True, True, True, True, False])
    for backend in ("reference", "numba"):
        assert soft_rank(x, method=Pairwise(), mask=mask, backend=backend).tolist() == [2.5, 1.0, 0.0, 2.5, 4.0]
    for way in ("reference", "numba"):
        whole, part = (
            LAPLACE([t, torch.ones_like(t), torch.tensor(5.0)], LaplaceSettings(), way)[0] for t in (x, x[:4])
        )
        assert whole.isnan().all()
        assert part.tolist() == [2.5, 1.0, 0.0, 2.5]


def test_the_gradient_of_ties_goes_by_position():
    """The largest place belongs to the first of equal items; beyond 16 of them `torch.sort` alone would shuffle."""
    x, upstream = torch.ones(40, 3, dtype=torch.float64, requires_grad=True), draw(40, 3)
    (found,) = torch.autograd.grad(soft_sort(x, dim=0, method=Permutahedron(0.7)).values, x, upstream)
    assert torch.equal(found, upstream.flip(0))


@pytest.mark.parametrize("strength", [0.3, 2.0, 50.0])
def test_permutahedron_projections_are_the_nearest_points(strength):
    """A point y of the permutahedron of w is nearest to z if no vertex v has (z - y) (v - y) > 0."""
    x, places = draw(5), torch.arange(5.0, dtype=torch.float64)
    found = soft_rank(x, method=Permutahedron(strength)), soft_sort(x, method=Permutahedron(strength)).values
    for y, z, w in ((found[0], x / strength, places), (found[1], places / strength, x)):
        vertices = torch.tensor(list(itertools.permutations(w.tolist())), dtype=torch.float64)
        assert ((vertices - y) @ (z - y)).max() < 1e-9
        # Inside: the largest j of y never exceed the largest j of w
        assert (y.sort(descending=True).values.cumsum(0) <= w.sort(descending=True).values.cumsum(0) + 1e-9).all()


def test_permutahedron_keeps_sums_and_its_second_derivatives():
    x = draw(3, 8).requires_grad_()
    assert torch.allclose(soft_sort(x, method=Permutahedron(3.0)).values.sum(-1), x.sum(-1))
    assert torch.allclose(soft_rank(x, method=Permutahedron(3.0)).sum(-1), torch.full((3,), 28.0, dtype=x.dtype))
    for entropic in (False, True):
        method = Permutahedron(1.3, entropic=entropic)
        for function in (lambda x, m=method: soft_rank(x, method=m), lambda x, m=method: soft_sort(x, method=m).values):
            assert torch.autograd.gradgradcheck(function, x)
    strength = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda s: soft_rank(x.detach(), method=Permutahedron(s)), strength)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda x: soft_sort(x, method=Pairwise()),
            r"soft_sort: Pairwise\(\) does not answer it; SmoothedCDF\(\), Bitonic\(\), OddEven",
        ),
        (lambda x: soft_rank(x, method=NeuralSort()), r"NeuralSort\(\) does not answer it; .*Pairwise\(\)"),
        (lambda x: soft_argsort(x, method=Permutahedron()), r"does not answer it; .*Unimodal\(\)"),
        (lambda x: soft_sort(x, method=Permutahedron(), payload=x), "sorts neither payloads nor permutations"),
        (lambda x: soft_sort(x, method=Unimodal(), relax=Cauchy(2.0)), "made of softmaxes"),
        (lambda x: soft_sort(x, method=Unimodal(), backend="numba"), "has no kernels"),
        (lambda x: soft_sort(x, method=Unimodal(), steps=2), "only sorting networks have `steps`"),
        (lambda x: Permutahedron(-1.0), "`strength` must be positive"),
        (lambda x: Transport(0), "`iterations` must be an integer from 1 on"),
        (lambda x: SoftRank(method=Unimodal()), "SoftRank: .* does not answer"),
    ],
)
def test_what_a_method_cannot_do_it_says(call, match):
    with pytest.raises(ValueError, match=match):
        call(draw(2, 4))


def test_two_items_are_exchanged_alike():
    """For two items the network, the transport and the pairs are one formula."""
    x = draw(5, 2)
    expected = soft_rank(x, relax=Logistic(3.0), method=OddEven())
    for method in (Bitonic(), Pairwise(), Transport(40)):
        assert torch.allclose(soft_rank(x, relax=Logistic(3.0), method=method), expected, atol=1e-9)
    assert not torch.allclose(soft_rank(x, relax=Gaussian(3.0), method=Pairwise()), expected)


@pytest.mark.parametrize("method", [OddEven(), Bitonic(), Pairwise()], ids=str)
def test_compact_sigmoids_rank_items_far_apart_exactly(method):
    x = 0.2 * torch.randperm(9, generator=torch.Generator().manual_seed(0)).double()
    assert torch.equal(soft_rank(x, method=method, relax=Bump(5.1)), x.argsort().argsort().double())
    assert not torch.equal(soft_rank(x, method=method, relax=Bump(4.0)), x.argsort().argsort().double())
