"""Memberships by threshold: they sum to k, whatever the sigmoid, the scale, the ties and the infinities."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algonet.relax import SIGMOIDS, Cauchy, Heaviside, Laplace, Logistic, hardened
from algonet.sorting import SoftTopKMask, soft_topk_mask
from helpers.contract import CHECKS, Case, normal
from helpers.sigmoids import KERNEL_SIGMOIDS

BACKENDS = ["reference", "numba"]
EVERYWHERE = [*BACKENDS, pytest.param("triton", marks=pytest.mark.gpu)]


def draw(*shape, dtype=torch.float64, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def masked(x, backend="auto"):
    mask = torch.tensor([True, False, True, True, True, True])
    return soft_topk_mask(x, 2.5, relax=Cauchy(2.0), mask=mask, largest=False, backend=backend)


def all_learned(x, k, steepness, backend="auto"):
    relax = Logistic(1 + steepness.mean() ** 2)
    return soft_topk_mask(x, 1 + torch.sigmoid(k[:, 0].mean()), relax=relax, backend=backend)


FAR = torch.tensor([[3e38, -3e38, 0.0, 1.0, -3e38], [0.0, 0.0, 0.0, 0.0, 0.0], [1e-40, -1e30, 1e30, 1e-40, 5.0]])
CASES = [
    Case("threshold", lambda x, backend="auto": soft_topk_mask(x, 2, relax=Logistic(2.0), backend=backend), normal(5),
         kernels=("numba",), extremes=[(FAR,)]),
    Case("masked", masked, normal(6), kernels=("numba",)),
    # k and the steepness are one number for all rows: under vmap they would differ between items, and none is NaN's own
    Case("learned", all_learned, normal(5, count=3), kernels=("numba",), vmap=False, batched=(True, False, False)),
]  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(case, check):
    check(case)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", SIGMOIDS, ids=lambda kind: kind.__name__)
def test_memberships_sum_to_k_at_any_scale(kind, backend):
    if backend == "numba" and kind not in KERNEL_SIGMOIDS:
        pytest.skip("a kernel like another sigmoid's")
    x = draw(2, 60)
    x[1, :20] = x[1, 0]  # ties
    # Rows have nothing to do with each other: one search for all scales
    x = torch.cat([x * scale for scale in (1.0, 1e-6, 1e6, 1e29)]).float()
    for rows, steepness in ((x, 10.0), (x[:2], 1e6)):
        for k in (1, 7, 59, 0.25, 30.5):
            p = soft_topk_mask(rows, k, relax=kind(steepness=steepness), backend=backend)
            assert (p.double().sum(-1) - k).abs().max() <= 1e-5 * k, (steepness, k)
            assert p.min() >= 0
            assert p.max() <= 1


def test_a_million_items():
    x = draw(1, 2**20, dtype=torch.float32)
    for relax in (Logistic(10.0), Cauchy(10.0), Laplace(1.0)):
        for k in (32, 100_000, 2**20 - 5):
            p = soft_topk_mask(x, k, relax=relax)
            assert abs(p.double().sum() - k) <= 1e-5 * k


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("largest", [True, False])
def test_hard_limit_is_topk(backend, largest):
    x = draw(4, 11)
    crisp = torch.zeros_like(x).scatter(-1, x.topk(3, largest=largest).indices, 1.0)
    for relax in (Logistic(1e9), Heaviside()):
        assert torch.allclose(soft_topk_mask(x, 3, relax=relax, largest=largest, backend=backend), crisp, atol=1e-6)
    hard = soft_topk_mask(x, 3, hard=True, largest=largest, backend=backend)
    assert torch.equal(hard, crisp)


def test_hard_has_the_soft_gradient():
    x = draw(3, 8).requires_grad_()
    weights = draw(3, 8, seed=2)
    slopes = [torch.autograd.grad((soft_topk_mask(x, 3, hard=hard) * weights).sum(), x)[0] for hard in (True, False)]
    assert torch.equal(*slopes)
    assert slopes[0].abs().sum() > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_infinite_items_take_part_crisply(backend):
    inf = math.inf
    x = torch.tensor([[inf, 1.0, 2.0, -inf], [inf, inf, 2.0, 0.0], [-inf, -inf, 1.0, 2.0]], requires_grad=True)
    p = soft_topk_mask(x, torch.tensor([2.0, 1.0, 3.0]), backend=backend)
    assert torch.allclose(p.sum(-1), torch.tensor([2.0, 1.0, 3.0]), atol=1e-5)
    assert p[0, 0] == 1
    assert p[0, 3] == 0
    assert p[1].tolist() == [0.5, 0.5, 0.0, 0.0]
    assert p[2].tolist() == [0.5, 0.5, 1.0, 1.0]
    (p * torch.arange(12.0).reshape(3, 4)).sum().backward()
    assert x.grad.isfinite().all()
    assert (x.grad[x.isinf()] == 0).all()


def slopes_of(x, k, relax, backend, dtype):
    """Gradients by x and k of memberships, each weighed by its place."""
    device = "cuda" if backend == "triton" else "cpu"
    x = x.to(device, dtype).requires_grad_()
    k = torch.tensor(k, dtype=torch.float64, device=device, requires_grad=True)
    p = soft_topk_mask(x, k, relax=relax, backend=backend)
    by_x, by_k = torch.autograd.grad(p, (x, k), torch.arange(float(len(x)), dtype=dtype, device=device))
    return by_x.cpu(), by_k.cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("kind", [Logistic, Cauchy])
def test_derivatives_of_tied_items_at_a_large_scale(kind, backend, dtype):
    """Of the five items 1, 3, 4, 5, 6 that tie each is in by q = (k - 1) / 5, the rest is far away."""
    x = 1e6 * draw(9)
    x[[1, 3, 4, 5, 6]], x[2], x[[0, 7, 8]] = x[1].clone(), 4e6, -1e6 * torch.arange(4.0, 7.0).double()
    for k in (2.5, 4.0, 5.999):
        relax = kind(1e4)
        by_x, by_k = slopes_of(x, k, relax, backend, dtype)
        q = (k - 1) / 5
        rise = q * (1 - q) if kind is Logistic else math.sin(math.pi * q) ** 2 / math.pi
        places = torch.tensor([1.0, 3.0, 4.0, 5.0, 6.0], dtype=dtype)
        assert by_k.item() == pytest.approx(places.mean().item(), rel=1e-4)
        wanted = torch.zeros(9, dtype=dtype)
        wanted[[1, 3, 4, 5, 6]] = 1e4 * rise * (places - places.mean())
        assert torch.allclose(by_x, wanted, rtol=1e-3, atol=1e-4 * wanted.abs().max().item())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", EVERYWHERE)
@pytest.mark.parametrize("kind", [Logistic, Laplace])
def test_the_derivative_by_k_in_a_gap_between_items(kind, backend, dtype):
    """Whole k: the threshold lies between the items 3, 4, 5 (equal) and 2, and tails of 1e-17 share the derivative."""
    # On a GPU, long rows are searched by kernels of their own
    for far in (1, 40_000) if backend == "triton" else (1,):
        x = torch.cat([torch.tensor([9.0, 8.0, 5.0, 1.0, 1.0, 1.0]), torch.full((far,), -4.0)])
        for steepness in (20.0, 40.0):  # tails of 1e-17 and 1e-35
            by_x, by_k = slopes_of(x, 3.0, kind(steepness), backend, dtype)
            assert by_k.item() == pytest.approx((2 + (3 + 4 + 5) / 3) / 2, rel=1e-3)
            assert by_x.abs().max() < 1e-12
        # Beyond the precision nothing is left of them
        assert slopes_of(x, 3.0, kind(1e4), backend, dtype)[1] == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_absent_items(backend):
    x = draw(3, 6)
    mask = torch.tensor([[True] * 6, [True, False, True, False, True, False], [False] * 6])
    spoiled = torch.where(mask, x, math.nan)
    p = soft_topk_mask(spoiled, 4, mask=mask, backend=backend)
    assert torch.allclose(p.sum(-1), torch.tensor([4.0, 3.0, 0.0], dtype=x.dtype))
    assert torch.equal(p[1], mask[1].to(x.dtype))
    alone = soft_topk_mask(x[1, ::2], 2, backend=backend)
    assert torch.allclose(soft_topk_mask(spoiled[1], 2, mask=mask[1], backend=backend)[::2], alone)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_k_and_of_another_dimension(backend):
    x = draw(4, 5).requires_grad_()
    k = torch.tensor([1.0, 2.5, 0.5, 3.0, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, k: soft_topk_mask(x, k, dim=0, relax=Logistic(2.0), backend=backend), (x, k)
    )
    slope = torch.autograd.grad(soft_topk_mask(x, k, dim=0, backend=backend).sum(), k)[0]
    assert torch.allclose(slope, torch.ones_like(slope))  # the sum is k


def test_the_gradient_keeps_the_sum():
    x = draw(5, 30).requires_grad_()
    slope = torch.autograd.grad((soft_topk_mask(x, 4) * draw(5, 30, seed=3)).sum(), x)[0]
    assert slope.sum(-1).abs().max() < 1e-12  # a shift of all items changes nothing


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=12), st.data())
def test_order_is_kept_and_sums_are_k(items, data):
    k = data.draw(st.integers(1, len(items) - 1))
    x = torch.tensor(items, dtype=torch.float32)
    p = soft_topk_mask(x, k, relax=Logistic(data.draw(st.sampled_from([1e-6, 0.1, 5.0, 1e4]))))
    assert abs(p.double().sum() - k) <= 1e-5 * k
    order = x.argsort()
    assert (p[order].diff() >= -1e-6).all()


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: soft_topk_mask([1.0], 1), TypeError, "expected a tensor"),
        (lambda: soft_topk_mask(torch.zeros(3), 4), ValueError, "`k` must lie between 0 and the 3 items"),
        (lambda: soft_topk_mask(torch.zeros(3), "2"), TypeError, "`k` must be a number or a tensor"),
        (lambda: soft_topk_mask(torch.zeros(2, 3), torch.ones(3)), ValueError, r"one for each row, \(2,\)"),
        (lambda: soft_topk_mask(torch.zeros(3), 1, steepness=5.0), TypeError, r"Say relax=Logistic\(5\)"),
        (lambda: soft_topk_mask(torch.zeros(3).to_sparse(), 1), TypeError, r"expected a dense tensor"),
        (lambda: soft_topk_mask(torch.zeros(3), 1, relax="soft"), TypeError, "`relax` must be a sigmoid"),
        (lambda: soft_topk_mask(torch.zeros(3), 1, mask=torch.ones(4, dtype=torch.bool)), ValueError, "`mask` must"),
        (lambda: soft_topk_mask(torch.zeros(3), 1, backend="triton"), ValueError, "cannot take this call"),
    ],
)
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call()


def test_the_layer():
    layer = SoftTopKMask(2, Logistic(torch.nn.Parameter(torch.tensor(5.0))))
    x = draw(3, 6, dtype=torch.float32)
    assert torch.equal(layer(x), soft_topk_mask(x, 2, relax=Logistic(5.0)))
    assert torch.equal(layer(x, k=3), soft_topk_mask(x, 3, relax=Logistic(5.0)))
    layer(x)[:, 0].sum().backward()
    assert layer.steepness.grad.abs() > 0
    assert "k=2" in repr(layer)
    with hardened(layer):
        assert torch.equal(layer(x), (x >= x.topk(2).values[:, -1:]).float())


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_after_a_first_call_under_inference_mode(backend):
    with torch.inference_mode():
        soft_topk_mask(torch.randn(2, 61), 3, backend=backend)
    x = torch.randn(2, 61, requires_grad=True)
    soft_topk_mask(x, 3, backend=backend).square().sum().backward()
    assert x.grad.abs().sum() > 0


def test_sums_of_the_search_run_in_vector_registers():
    """With a condition in place of a factor they did not, and memberships of long rows took twice the time."""
    import numpy as np
    from numba import njit

    from algonet.sorting.kernels.numba.rows import kernels

    module = kernels("threshold", Logistic(10.0), torch.float32)
    fresh = njit(**module.SUMS)(module.measure.py_func)
    x = np.array([2.0, -1.0, 0.5], np.float32)
    lack, above, member, _ = fresh(x, 0.0, np.float32(1.0))
    p = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose([lack, above, member], [2 - p[0] - p[2], 2, p[1]], rtol=1e-5)
    assert " x float>" in next(iter(fresh.inspect_llvm().values())), "LLVM did not vectorise the loop"
