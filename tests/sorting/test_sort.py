"""What soft_sort promises: its hard limit, its conventions, its agreement with diffsort, its masks."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algonet.relax import SIGMOIDS, Cauchy, Gaussian, Heaviside, Logistic, Optimal, Reciprocal
from algonet.sorting import (
    Bitonic,
    OddEven,
    Pairwise,
    Permutahedron,
    soft_argsort,
    soft_rank,
    soft_sort,
    soft_topk,
    soft_topk_mask,
)
from helpers.sigmoids import KERNEL_SIGMOIDS
from helpers.tolerances import assert_close

NETWORKS = [OddEven(), Bitonic()]
BACKENDS = ["reference", "numba"]
HARD = Logistic(1e7)


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("network", NETWORKS, ids=str)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 8, 13])
@pytest.mark.parametrize("descending", [False, True])
def test_hard_limit_is_torch_sort(backend, network, n, descending):
    x = draw(4, n)
    crisp = x.sort(-1, descending=descending)
    result = soft_sort(x, relax=HARD, method=network, descending=descending, payload=2 * x, backend=backend)
    assert_close(result.values, crisp.values)
    assert_close(result.payload, 2 * crisp.values)
    order = soft_argsort(x, relax=HARD, method=network, descending=descending, backend=backend)
    assert_close(order, crisp.indices.double())
    ranks = soft_rank(x, relax=HARD, method=network, descending=descending, backend=backend)
    assert_close(ranks, crisp.indices.argsort(-1).double())


@pytest.mark.parametrize("family", KERNEL_SIGMOIDS, ids=lambda f: f.__name__)
def test_every_sigmoid_sorts_the_same_on_kernels_and_reference(family):
    x, payload = draw(20, 9, dtype=torch.float32), draw(20, 9, 1, dtype=torch.float32)
    results = []
    for backend in BACKENDS:
        steepness = torch.tensor(2.0, requires_grad=True)
        leaf = x.clone().requires_grad_()
        result = soft_sort(leaf, relax=family(steepness=steepness), payload=payload, backend=backend)
        score = (result.values * payload[..., 0]).sum() + (result.payload**2).sum()
        slopes = torch.autograd.grad(score, [leaf, steepness], allow_unused=True)
        results.append([result.values, result.payload, *(s for s in slopes if s is not None)])
    for a, b in zip(*results, strict=True):
        scale = max(1.0, float(b.detach().abs().max()))
        assert_close(a / scale, b / scale, factor=5)  # measured: 3e-5 in a float32 gradient that sums 180 exchanges


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("distribution", "family"),
    [
        ("logistic", Logistic),
        ("cauchy", Cauchy),
        ("gaussian", Gaussian),
        ("reciprocal", Reciprocal),
        ("optimal", Optimal),
    ],
)
@pytest.mark.parametrize(("name", "network", "n"), [("odd_even", OddEven(), 7), ("bitonic", Bitonic(), 8)])
def test_agrees_with_diffsort(backend, distribution, family, name, network, n):
    diffsort = pytest.importorskip("diffsort")
    x = draw(5, n, dtype=torch.float32)
    peer = diffsort.DiffSortNet(name, n, steepness=6.0, distribution=distribution)
    values, columns = peer(x)
    result = soft_sort(x, relax=family(6.0), method=network, return_permutation=True, backend=backend)
    assert_close(result.values, values)
    assert_close(result.permutation, columns.mT)


@pytest.mark.parametrize("n", [2, 4, 5, 6, 12, 16, 20, 32])
def test_bitonic_agrees_with_diffsort_for_these_n(n):
    # Not for all: at n = 22, say, diffsort's bitonic network does not sort
    diffsort = pytest.importorskip("diffsort")
    x = draw(5, n, dtype=torch.float32)
    values, _ = diffsort.DiffSortNet("bitonic", n, steepness=10.0, distribution="logistic")(x)
    assert_close(soft_sort(x, method=Bitonic()).values, values)


def test_descending_is_the_paper():
    # One exchange as in the paper's figure: e = sigma((a1 - a0) s), a0' = (1 - e) a0 + e a1
    a, s = torch.tensor([1.0, 1.5]), 2.0
    e = torch.sigmoid((a[1] - a[0]) * s)
    expected = torch.stack([(1 - e) * a[0] + e * a[1], e * a[0] + (1 - e) * a[1]])
    assert_close(soft_sort(a, relax=Logistic(s), method=OddEven(), descending=True).values, expected)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-50, 50), min_size=1, max_size=7), st.sampled_from(NETWORKS), st.floats(0.1, 30))
def test_soft_permutation_is_doubly_stochastic(items, network, steepness):
    x = torch.tensor(items, dtype=torch.float64)
    result = soft_sort(x, relax=Logistic(steepness), method=network, return_permutation=True, backend="reference")
    P = result.permutation
    ones = torch.ones_like(x)
    assert_close(P.sum(0), ones)
    assert_close(P.sum(1), ones)
    assert (P >= 0).all()
    assert_close(P @ x, result.values)
    assert_close(result.values.sum(), x.sum(), factor=10)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_permutation_rank_and_argsort_follow_one_convention(backend, network):
    x, payload = draw(3, 7), draw(3, 7, 2, 2)
    result = soft_sort(x, method=network, payload=payload, return_permutation=True, backend=backend)
    P, index = result.permutation, torch.arange(7.0, dtype=x.dtype)
    assert_close(P @ x.unsqueeze(-1), result.values.unsqueeze(-1))
    assert_close(torch.einsum("bij,bjcd->bicd", P, payload), result.payload)
    assert_close(soft_argsort(x, method=network, backend=backend), P @ index)
    assert_close(soft_rank(x, method=network, backend=backend), P.mT @ index)
    top = soft_topk(x, 3, method=network, largest=False, return_permutation=True, backend=backend)
    assert_close(top.permutation, P[:, :3])
    assert_close(top.values, result.values[:, :3])
    assert_close(top.indices, (P @ index)[:, :3])


@pytest.mark.parametrize("dim", [0, 1, -1, -3])
def test_any_dimension(dim):
    x = draw(3, 4, 5)
    payload = draw(3, 4, 5, 2)
    result = soft_sort(x, dim=dim, payload=payload, return_permutation=True)
    moved = soft_sort(x.movedim(dim, -1), payload=payload.movedim(dim % 3, 2), return_permutation=True)
    assert_close(result.values, moved.values.movedim(-1, dim))
    assert_close(result.payload, moved.payload.movedim(2, dim % 3))
    assert_close(result.permutation, moved.permutation)
    assert_close(soft_topk(x, 2, dim=dim).values, soft_topk(x.movedim(dim, -1), 2).values.movedim(-1, dim))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("network", NETWORKS, ids=str)
@pytest.mark.parametrize("padding", [0, 1, 9])
def test_masked_rows_are_the_short_rows(backend, network, padding):
    lengths = [6, 0, 3, 1]
    width = 6 + padding
    x, payload = draw(4, width), draw(4, width, 2)
    order = torch.randperm(width, generator=torch.Generator().manual_seed(2))
    mask = torch.stack([order < m for m in lengths])
    x = torch.where(mask, x, torch.nan).requires_grad_()
    result = soft_sort(x, payload=payload, method=network, mask=mask, return_permutation=True, backend=backend)
    ranks = soft_rank(x, method=network, mask=mask, backend=backend)
    for row, m in enumerate(lengths):
        kept = mask[row]
        alone = soft_sort(x[row][kept], payload=payload[row][kept], method=network, backend=backend)
        assert_close(result.values[row, :m], alone.values)
        assert_close(result.payload[row, :m], alone.payload)
        assert_close(result.payload[row, m:], payload[row][~kept])
        assert result.values[row, m:].isnan().all()
        assert_close(
            result.permutation[row, :m][:, kept],
            soft_sort(x[row][kept], method=network, return_permutation=True).permutation,
        )
        assert_close(ranks[row][kept], soft_rank(x[row][kept], method=network))
    slope = torch.autograd.grad(result.values[mask.sort(-1, descending=True).values].square().sum(), x)[0]
    assert (slope[~mask] == 0).all()
    assert slope.isfinite().all()


@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_steps_sort_coarsely_and_alike_under_a_mask(network):
    x = draw(2, 8)
    assert_close(soft_sort(x, steps=0, method=network).values, x)
    errors = [
        (soft_sort(x, relax=HARD, steps=k, method=network).values - x.sort().values).abs().sum() for k in (0, 3, 6)
    ]
    assert errors[0] > errors[1] > errors[2]
    wide = torch.cat([x, draw(2, 3)], -1)
    mask = torch.arange(11) < 8
    masked = soft_sort(wide, steps=3, method=network, mask=mask).values[:, :8]
    assert_close(masked, soft_sort(x, steps=3, method=network).values)


def test_many_steps_approach_the_mean():
    x = draw(6)
    assert_close(soft_sort(x, steps=5000, method=OddEven(), relax=Logistic(1.0)).values, x.mean().expand(6), factor=1e4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("network", NETWORKS, ids=str)
@pytest.mark.parametrize("family", [Logistic, Cauchy, Reciprocal])
def test_infinite_items_take_part_crisply(backend, network, family):
    x = torch.tensor([[1.0, math.inf, 0.5, -math.inf, math.inf, 2.0, 0.0]], requires_grad=True)
    result = soft_sort(x, relax=family(3.0), method=network, payload=torch.ones(1, 7, 1), backend=backend)
    values = result.values
    assert values[0, 0] == -math.inf
    assert (values[0, 5:] == math.inf).all()
    assert values[0, 1:5].isfinite().all()
    assert_close(values[0, 1:5].sum(), torch.tensor(3.5))
    assert_close(result.payload, torch.ones(1, 7, 1))
    assert torch.autograd.grad(values[0, 1:5].square().sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", [*NETWORKS, Pairwise()], ids=str)
def test_infinite_items_that_tie_get_no_gradient(backend, method):
    inf = math.inf
    # Many rows run side by side in the kernels, one row alone
    for rows in (1, 20):
        x = (
            torch.tensor([1.0, inf, 0.5, -inf, inf, 2.0, -inf, inf], dtype=torch.float64)
            .repeat(rows, 1)
            .requires_grad_()
        )
        ranks = soft_rank(x, relax=Logistic(3.0), method=method, backend=backend)
        (slopes,) = torch.autograd.grad(ranks, x, draw(rows, 8))
        assert (slopes[x.isinf()] == 0).all()
        assert (slopes[x.isfinite()] != 0).all()
        if not isinstance(method, Pairwise):
            payload = draw(rows, 8, 2)
            result = soft_sort(x, relax=Logistic(3.0), method=method, payload=payload, backend=backend)
            (slopes,) = torch.autograd.grad(result[:2], x, [result.values.detach().sign() / 3, payload])
            assert (slopes[x.isinf()] == 0).all()
            assert (slopes[x.isfinite()] != 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("network", NETWORKS, ids=str)
def test_infinite_items_take_part_crisply_in_descending_order(backend, network):
    x = torch.tensor([1.0, math.inf, 0.5, -math.inf, 2.0, 3e38, -3e38])
    mask = torch.tensor([True, True, False, True, True, True, True])
    assert soft_topk(x, 2, method=network, backend=backend).values.tolist() == pytest.approx([math.inf, 3e38])
    last = soft_sort(x, descending=True, method=network, backend=backend)
    assert last.values[[0, 1, 5, 6]].tolist() == pytest.approx([math.inf, 3e38, -3e38, -math.inf])
    masked = soft_argsort(x, descending=True, mask=mask, method=network, backend=backend)
    assert masked.tolist() == pytest.approx([1, 5, 4, 0, 6, 3, 2], abs=1e-3)
    ranks = soft_rank(x, descending=True, method=network, backend=backend)
    assert ranks.tolist() == pytest.approx([3, 0, 4, 6, 2, 1, 5], abs=0.02)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_spoils_its_own_row_only(backend):
    x = draw(20, 6)
    x[3, 2] = math.nan
    for options in ({}, {"hard": True}):
        answers = [
            soft_sort(x, backend=backend, **options).values,
            soft_sort(x, method=Permutahedron(), **options).values,
            soft_rank(x, backend=backend, **options),
            soft_rank(x, method=Pairwise(), **options),
            soft_rank(x, method=Permutahedron(), **options),
            soft_rank(x, method=Permutahedron(entropic=True), **options),
            soft_argsort(x, backend=backend, **options),
            soft_topk(x, 6, backend=backend, **options).indices,
            soft_topk_mask(x, 2, backend=backend, **options),
        ]
        for found in answers:
            assert found[3].isnan().all()
            assert found.isnan().sum() == 6
    # A payload of NaN spoils no order
    assert torch.equal(soft_sort(x[:3], payload=x[:3].log(), hard=True).payload.isnan().sum(-1), (x[:3] < 0).sum(-1))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_single_item_has_a_gradient(backend):
    x, steepness = torch.ones(2, 1, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    for function in (soft_rank, soft_argsort, lambda x, **options: soft_sort(x, payload=x, **options).payload):
        grads = torch.autograd.grad(function(x, relax=Logistic(steepness), backend=backend).sum(), (x, steepness))
        assert torch.stack([g.sum() for g in grads]).isfinite().all()


def test_ties_share_their_places():
    result = soft_sort(torch.tensor([1.0, 1.0, 1.0]), return_permutation=True)
    assert_close(result.values, torch.ones(3))
    assert_close(result.permutation.sum(0), torch.ones(3))
    assert torch.equal(
        soft_sort(torch.tensor([2.0, 1.0, 1.0]), relax=Heaviside()).values, torch.tensor([1.0, 1.0, 2.0])
    )


def test_straight_through_is_crisp_with_the_soft_gradient():
    x, payload, weights = draw(3, 6).requires_grad_(), draw(3, 6, 2), draw(3, 6)
    hard = soft_sort(x, payload=payload, hard=True, return_permutation=True)
    soft = soft_sort(x, payload=payload, return_permutation=True)
    crisp = x.sort()
    assert torch.equal(hard.values, crisp.values)
    assert torch.equal(hard.payload, payload.gather(1, crisp.indices.unsqueeze(-1).expand(3, 6, 2)))
    assert torch.equal(hard.permutation.argmax(-1), crisp.indices)
    slopes = [torch.autograd.grad((r.values * weights).sum() + r.payload.sum(), x)[0] for r in (hard, soft)]
    assert_close(*slopes)
    assert torch.equal(soft_rank(x, hard=True), crisp.indices.argsort(-1).double())
    assert torch.equal(soft_argsort(x, hard=True), crisp.indices.double())
    top = soft_topk(x, 2, hard=True, return_permutation=True)
    assert torch.equal(top.values, x.topk(2).values)
    assert torch.equal(top.permutation.argmax(-1), x.topk(2).indices)


def test_straight_through_respects_the_mask():
    x = torch.tensor([3.0, 9.0, 1.0, 2.0])
    result = soft_sort(x, mask=torch.tensor([True, False, True, True]), hard=True)
    assert torch.equal(result.values, torch.tensor([1.0, 2.0, 3.0, 9.0]))


def test_trailing_shapes_of_payload():
    x = draw(2, 5)
    assert soft_sort(x, payload=x).payload.shape == (2, 5)
    assert soft_sort(x, payload=draw(2, 5, 3, 2)).payload.shape == (2, 5, 3, 2)
    assert soft_sort(x, payload=draw(2, 5, 0)).payload.shape == (2, 5, 0)
    assert soft_sort(x[:0], payload=draw(0, 5, 2)).payload.shape == (0, 5, 2)
    assert soft_sort(x, payload=draw(2, 5).half()).payload.dtype == torch.float16


def test_learned_metric_gets_a_gradient():
    # The paper's t' = t M: sort one thing by a learned score of it
    t, score = draw(1, 5, 2), draw(2).requires_grad_()
    result = soft_sort(t @ score, payload=t)
    assert torch.autograd.grad(result.payload[0, 0].sum(), score)[0].abs().sum() > 0


@pytest.mark.parametrize("rows", [1, 20, 70])
@pytest.mark.parametrize(("network", "n"), [(OddEven(), 70), (Bitonic(), 150)], ids=str)
def test_large_rows_on_the_kernels(network, n, rows):
    # Segments, checkpoints, one lane and many: every way through the kernel
    x = draw(rows, n).requires_grad_()
    weights = draw(rows, n)
    slopes = []
    for backend in BACKENDS:
        values = soft_sort(x, method=network, backend=backend).values
        slopes.append([values, torch.autograd.grad((values * weights).sum(), x)[0]])
    for a, b in zip(*slopes, strict=True):
        assert_close(a, b, factor=10)


def test_threads_share_the_rows():
    threads = torch.get_num_threads()
    x, payload = draw(300, 40, dtype=torch.float32).requires_grad_(), draw(300, 40, 1, dtype=torch.float32)
    found = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            steepness = torch.tensor(8.0, requires_grad=True)
            result = soft_sort(x, relax=Logistic(steepness), payload=payload, backend="numba")
            slopes = torch.autograd.grad(result.values.square().sum() + result.payload.sum(), [x, steepness])
            found.append([result.values, result.payload, *slopes])
    finally:
        torch.set_num_threads(threads)
    for one, three in zip(*found, strict=True):
        assert torch.equal(one, three)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_positions_of_half_precision_items_are_exact(dtype):
    x = torch.zeros(1, 3000, dtype=dtype)
    x[0, 777] = 5.0
    found = soft_topk(x, 1, hard=True, method=Bitonic())
    assert found.values.dtype == dtype
    assert found.indices.item() == 777
    ordered = torch.arange(3000.0).unsqueeze(0).bfloat16().to(dtype)  # many ties: hard keeps their order
    assert torch.equal(soft_argsort(ordered, hard=True, method=Bitonic()).long(), torch.arange(3000).unsqueeze(0))
    assert torch.equal(soft_rank(ordered, hard=True, method=Bitonic()).long(), torch.arange(3000).unsqueeze(0))


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_ranks_of_no_and_of_one_item_are_as_precise_as_those_of_several(n, dtype):
    steepness = torch.tensor(2.0, requires_grad=True)
    for items in (n, 2):
        ranks = soft_rank(torch.ones(3, items, dtype=dtype), relax=Logistic(steepness))
        assert ranks.dtype == torch.promote_types(dtype, torch.float32)
        assert ranks.requires_grad


def test_hard_leaves_absent_items_in_their_order():
    x = torch.tensor([9.0, 5.0, 8.0, 1.0, 7.0, 3.0])
    mask = torch.tensor([False, True, False, True, False, True])
    hard, soft = (soft_sort(x, mask=mask, hard=hard, relax=Logistic(100.0)) for hard in (True, False))
    assert hard.values.tolist() == [1.0, 3.0, 5.0, 9.0, 8.0, 7.0]
    assert torch.allclose(hard.values, soft.values)
    assert soft_argsort(x, mask=mask, hard=True).tolist() == [3, 5, 1, 0, 2, 4]
    assert soft_rank(x, mask=mask, hard=True).tolist() == [3, 2, 4, 0, 5, 1]
    assert soft_topk(x, 5, mask=mask, hard=True).values.tolist() == [5.0, 3.0, 1.0, 9.0, 8.0]
    spoiled = torch.where(mask, x, torch.nan)
    assert soft_argsort(spoiled, mask=mask, hard=True, descending=True).tolist() == [1, 5, 3, 0, 2, 4]


@pytest.mark.parametrize("backend", ["reference", "numba"])
def test_a_payload_keeps_its_precision(backend):
    x = torch.tensor([3.0, 1.0, 2.0])
    payload = torch.tensor([1.0 + 1e-12, 2.0 + 1e-12, 3.0 + 1e-12], dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        result = soft_sort(x, payload=payload, relax=Logistic(200.0), backend=backend)
        assert result.values.dtype == torch.float32
        assert result.payload.dtype == torch.float64
        assert (result.payload - payload[[1, 2, 0]]).abs().max() < 1e-15


@pytest.mark.parametrize("kind", [kind for kind in SIGMOIDS if kind is not Heaviside], ids=lambda kind: kind.__name__)
def test_at_a_tie_every_sigmoid_has_its_slope(kind):
    x = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    slopes = []
    for backend in BACKENDS if kind in KERNEL_SIGMOIDS else BACKENDS[:1]:
        score = soft_rank(x, relax=kind(), backend=backend) @ weights
        slopes.append(torch.autograd.grad(score, x)[0])
    step = 1e-6 * torch.eye(3, dtype=torch.float64)
    scores = [(soft_rank(x + sign * step, relax=kind(), backend="reference") @ weights).detach() for sign in (1, -1)]
    assert torch.allclose((scores[0] - scores[1]) / 2e-6, slopes[0], atol=1e-5)
    assert torch.allclose(slopes[0], slopes[-1], atol=1e-9)


def test_no_matrix_is_formed():
    """20,000 items, forward and backward: a matrix would take 1.6 GB."""
    code = (
        "import resource, torch; from algonet import Bitonic, soft_sort\n"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "def run(n):\n  x = torch.randn(1, n, requires_grad=True)\n"
        "  soft_sort(x, method=Bitonic(), payload=x.detach()).payload.square().sum().backward()\n"
        "run(8); before = used(); run(20_000); print(used() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 400
