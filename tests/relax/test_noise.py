"""Noise: its tail and density describe one distribution."""

from __future__ import annotations

import math

import pytest
import torch

from algonet.relax import GaussianNoise, StudentT

ALL = [GaussianNoise(1.0), GaussianNoise(0.3), StudentT(2, scale=1.0), StudentT(8, scale=2.0), StudentT(30)]


@pytest.mark.parametrize("noise", ALL, ids=lambda n: f"{n.key}-{n.scale}")
def test_reach_inverts_tail(noise):
    for epsilon in (0.5, 1e-2, 1e-6):
        r = torch.tensor(float(noise.reach(epsilon)), dtype=torch.float64)
        torch.testing.assert_close(noise.tail(r), torch.tensor(epsilon, dtype=torch.float64))


@pytest.mark.parametrize("noise", ALL, ids=lambda n: f"{n.key}-{n.scale}")
def test_density_is_minus_the_tails_slope_per_circumference(noise):
    r = torch.linspace(0.1, 3, 20, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(noise.tail(r).sum(), r)
    torch.testing.assert_close(noise.density(r.detach()), -slope / (2 * math.pi * r.detach()))


def test_many_degrees_of_freedom_are_gaussian():
    r = torch.linspace(0, 4, 30, dtype=torch.float64)
    torch.testing.assert_close(StudentT(1e6).tail(r), GaussianNoise().tail(r), atol=1e-5, rtol=0)


def test_errors_say_what_was_wanted():
    with pytest.raises(
        ValueError, match=r"StudentT: `df` must be a positive finite number, got inf; use GaussianNoise"
    ):
        StudentT(math.inf)
    with pytest.raises(ValueError, match=r"GaussianNoise: `scale` must be positive"):
        GaussianNoise(0.0)
