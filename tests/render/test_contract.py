"""What every operation owes its user, for the rasteriser."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from algonet.relax import BoundedSum, StudentT
from algonet.render import Camera, FilteredCoverage, render_attributes
from helpers.contract import CHECKS, Case

FACES = torch.tensor([[0, 1, 2], [3, 2, 1]])
CAMERA = Camera.look_at((0.0, 0.0, 3.0))


def _inputs(batch: int, dtype: torch.dtype, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Two crossing triangles that share an edge, seen in perspective, with one attribute."""
    corners = torch.tensor(
        [[-1.0, -0.8, 0.2], [0.9, -0.7, 0.0], [-0.1, 1.0, -0.3], [1.1, 0.9, 0.5]], dtype=torch.float64
    )
    noise = torch.randn(batch, 4, 3, generator=generator, dtype=torch.float64)
    attributes = torch.rand(batch, 4, 1, generator=generator, dtype=torch.float64)
    softness = 0.7 + 0.2 * torch.rand(batch, 2, generator=generator, dtype=torch.float64)
    return (corners + 0.1 * noise).to(dtype), attributes.to(dtype), softness.to(dtype)


def _case(name: str, **options) -> Case:
    def function(vertices: Tensor, attributes: Tensor, softness: Tensor, backend: str = "auto"):
        coverage = FilteredCoverage(StudentT(8, scale=softness[..., 0]))
        return render_attributes(
            vertices, FACES, attributes, CAMERA, size=(1, 3), coverage=coverage, depth_steepness=softness[..., 1],
            # Nothing is left out, so kernels and the reference agree to rounding
            epsilon=1e-12, backend=backend, **options,
        )  # fmt: skip

    extremes = [
        (torch.randn(2, 4, 3) * size, torch.rand(2, 4, 1), torch.full((2, 2), soft))
        for size in (0.0, 1e-20, 1e3, 1e20)
        for soft in (1e-3, 1.0, 1e3)
    ]
    return Case(name, function, _inputs, kernels=("numba",), extremes=extremes)


CASES = [_case("render"), _case("render bounded by 8 one-sided", conorm=BoundedSum(8), two_sided=False)]
#: What differs between the cases; the rest of the contract does not depend on it.
OPTIONS = ("check_parity", "check_second_derivative", "check_extremes", "check_compile")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(case: Case, check) -> None:
    if case is not CASES[0] and check.__name__ not in OPTIONS:
        pytest.skip("the same for all options")
    check(case)
