"""The Triton kernels: their logic in the interpreter, and on a GPU where there is one."""

from __future__ import annotations

import pytest
import torch

from algonet.ifs import Poisson, chaos_game, smooth_raster
from algonet.relax import Probabilistic
from helpers.tolerances import assert_close


def check_kernels() -> None:
    """Options that the contract does not turn: reproducible sums, sigma per item, NaN, a horizon. In the interpreter it is
    called by `test_triton_contract`, which has one running."""
    g = torch.Generator().manual_seed(0)
    points = (torch.rand(2, 4, 2, generator=g, dtype=torch.float64) * 1.2 - 0.1).requires_grad_()
    weights = torch.rand(2, 4, generator=g, dtype=torch.float64, requires_grad=True)
    colours = torch.rand(2, 4, 2, generator=g, dtype=torch.float64, requires_grad=True)
    sigma = torch.tensor([0.7, 3.0], dtype=torch.float64, requires_grad=True)
    leaves = [points, weights, colours, sigma]
    for aggregate, deterministic in ((Probabilistic(), False), (Poisson(), True)):
        results = []
        for backend in ("reference", "triton"):
            o = smooth_raster(
                points,
                (3, 19),
                sigma=sigma,
                weights=weights,
                colours=colours,
                aggregate=aggregate,
                epsilon=1e-15,
                deterministic=deterministic,
                backend=backend,
            )
            results.append(
                [o, *torch.autograd.grad((o * torch.arange(o.numel()).reshape(o.shape).sin()).sum(), leaves)]
            )
        for a, b in zip(*results, strict=False):
            # integers in units of 2^-32 carry ten digits
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-7 if deterministic else 1e-10)
    broken = points.detach().clone()
    broken[0, 2, 1] = torch.nan
    picture = smooth_raster(broken, (3, 4), backend="triton")
    assert picture[0].isnan().all()
    assert picture[1].isfinite().all()

    a = (torch.randn(2, 3, 6, generator=g, dtype=torch.float64) * 0.3).requires_grad_()
    x = torch.rand(2, 5, 2, generator=g, dtype=torch.float64, requires_grad=True)
    choices = torch.randint(0, 3, (5, 7), generator=g)
    results = []
    for backend in ("reference", "triton"):
        o = chaos_game(a, choices, x, burn_in=2, horizon=3, backend=backend)
        results.append([o, *torch.autograd.grad(o.square().sum(), [a, x])])
    for p, q in zip(*results, strict=False):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.parametrize("aggregate", [Probabilistic(), Poisson()], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("deterministic", [False, True])
def test_gpu_raster_agrees_with_the_reference(aggregate, deterministic):
    points = (torch.rand(3, 300, 2, device="cuda") * 1.2 - 0.1).requires_grad_()
    weights = torch.rand(3, 300, device="cuda", requires_grad=True)
    sigma = torch.tensor([0.5, 1.0, 6.0], device="cuda", requires_grad=True)
    results = []
    # From the third call on, kernels are started directly
    for backend in ("reference", "triton", "triton", "triton"):
        picture = smooth_raster(
            points, (33, 40), sigma=sigma, weights=weights, aggregate=aggregate, epsilon=1e-9,
            deterministic=deterministic, backend=backend,
        )  # fmt: skip
        score = (picture * torch.linspace(-1, 1, 40, device="cuda")).sum()
        results.append([picture, *torch.autograd.grad(score, [points, weights, sigma])])
    for again in results[1:]:
        for triton, reference in zip(again, results[0], strict=True):
            assert_close(triton, reference, factor=10)


@pytest.mark.gpu
def test_gpu_sums_are_reproducible_on_request():
    points = torch.rand(200_000, 2, device="cuda")
    first, second = (smooth_raster(points, (64, 64), deterministic=True) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.gpu
def test_gpu_chaos_game_agrees_with_the_reference():
    parameters = (torch.randn(2, 5, 6, device="cuda") * 0.2 - 0.3).requires_grad_()
    choices = torch.randint(0, 5, (300, 20), device="cuda")
    results = []
    # From the third call on, kernels are started directly
    for backend in ("reference", "triton", "triton", "triton"):
        points = chaos_game(parameters, choices, burn_in=4, backend=backend)
        results.append([points, *torch.autograd.grad(points.square().mean(), [parameters])])
    for again in results[1:]:
        for triton, reference in zip(again, results[0], strict=True):
            assert_close(triton, reference, factor=10)
