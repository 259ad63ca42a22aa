"""What every operation owes its user, for the raster, the chaos game and the contraction."""

from __future__ import annotations

import pytest
import torch

from algonet.ifs import Poisson, chaos_game, contraction, smooth_raster
from algonet.relax import Probabilistic
from helpers.contract import CHECKS, Case

CHOICES = torch.tensor([[0, 1, 2, 0, 1], [2, 2, 1, 0, 0], [1, 0, 2, 1, 2]])


def clouds(batch, dtype, generator):
    points = torch.rand(batch, 7, 2, generator=generator, dtype=torch.float64) * 1.2 - 0.1
    return (points.to(dtype),)


def weighted_clouds(batch, dtype, generator):
    points = torch.rand(batch, 5, 2, generator=generator, dtype=torch.float64)
    weights = torch.rand(batch, 5, generator=generator, dtype=torch.float64)
    colours = torch.rand(batch, 5, 2, generator=generator, dtype=torch.float64)
    sigma = 0.8 + torch.rand(batch, generator=generator, dtype=torch.float64)
    return tuple(t.to(dtype) for t in (points, weights, colours, sigma))


def systems(batch, dtype, generator):
    parameters = 0.2 * torch.randn(batch, 3, 6, generator=generator, dtype=torch.float64)
    parameters[..., [1, 5]] -= 0.6
    start = torch.rand(batch, 3, 2, generator=generator, dtype=torch.float64)
    return parameters.to(dtype), start.to(dtype)


def raster(**options):
    # epsilon far below float64's tolerance, so that the kernels' windows equal the dense reference
    return lambda points, **backend: smooth_raster(points, (5, 6), epsilon=1e-15, **options, **backend)


def raster_with_all(points, weights, colours, sigma, **backend):
    return smooth_raster(
        points, (4, 5), weights=weights, colours=colours, sigma=sigma, aggregate=Poisson(), epsilon=1e-15, **backend
    )


def game(parameters, start, **backend):
    return chaos_game(parameters, CHOICES, start, burn_in=1, **backend)


FAR = [(torch.full((1, 3, 2), v),) for v in (0.0, 1e-30, 1e4, 1e30, -3e38)] + [(torch.ones(1, 2000, 2) * 0.5,)]
WILD = [
    (torch.full((1, 3, 6), v), torch.full((1, 3, 2), w)) for v, w in ((0.0, 0.0), (-1.0, 1.0), (1e4, 1e4), (1e37, 1e37))
]
CASES = [
    Case("raster_probabilistic", raster(sigma=0.9), clouds, kernels=("numba",), extremes=FAR),
    Case("raster_poisson", raster(sigma=0.9, aggregate=Poisson()), clouds, kernels=("numba",), extremes=FAR),
    Case("raster_tiny_sigma", raster(sigma=1e-5), clouds, kernels=("numba",), extremes=FAR, smoothness=0),
    Case("raster_huge_sigma", raster(sigma=1e20), clouds, kernels=("numba",), extremes=FAR, smoothness=0),
    Case("raster_weights_colours_sigma", raster_with_all, weighted_clouds, kernels=("numba",)),
    Case("raster_separable", raster(sigma=2.0, aggregate=Poisson(), method="separable"), clouds, extremes=FAR),
    Case("chaos_game", game, systems, kernels=("numba",), extremes=WILD),
    Case("contraction", contraction, lambda *a: systems(*a)[:1]),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(case, check):
    check(case)


def test_probabilistic_is_the_default():
    points = torch.rand(9, 2)
    expected = smooth_raster(points, (5, 6), aggregate=Probabilistic())
    assert torch.equal(smooth_raster(points, (5, 6)), expected)
    assert not torch.equal(smooth_raster(points, (5, 6), aggregate=Poisson()), expected)
