"""The filtered coverage: a probability, additive, smooth, with the crisp triangle as its limit."""

from __future__ import annotations

import math

import pytest
import torch

from algonet.relax import SIGMOIDS, GaussianNoise, Heaviside, Logistic, StudentT
from algonet.render import EdgeProduct, EuclideanCoverage, FilteredCoverage
from algonet.render.reference import Filtered, filtered_coverage, twice_area

ONE = torch.tensor(1.0, dtype=torch.float64)
#: Counter-clockwise as seen, with y pointing down.
TRIANGLE = torch.tensor([[[1.0, 1.0], [2.0, 6.0], [7.0, 2.0]]], dtype=torch.float64)


@pytest.mark.parametrize("df", [2, 4, 8, 16])
def test_is_the_probability_of_landing_inside(df: int) -> None:
    noise = StudentT(df, scale=1.5)
    pixel = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    where = pixel + noise.sample(400_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a, b, c = TRIANGLE[0]
    crosses = [
        (q[1] - p[1]) * (where[:, 0] - p[0]) - (q[0] - p[0]) * (where[:, 1] - p[1]) for p, q in ((a, b), (b, c), (c, a))
    ]
    inside = (torch.stack(crosses) > 0).all(0)
    covered, moment = filtered_coverage(TRIANGLE, pixel, 1.5 * ONE, df)
    # Four standard errors of 400,000 draws
    assert abs(float(covered) - float(inside.double().mean())) < 4 * 0.5 / math.sqrt(400_000)
    drawn = ((where - pixel) * inside[:, None]).mean(0)
    assert torch.allclose(moment[0, 0], drawn, atol=0.02)


def test_parts_add_up_and_orientation_flips_the_sign() -> None:
    pixels = torch.rand(50, 2, dtype=torch.float64) * 8
    a, b, c = TRIANGLE[0]
    middle = 0.2 * a + 0.5 * b + 0.3 * c
    parts = torch.stack([torch.stack(t) for t in ((a, b, middle), (b, c, middle), (c, a, middle))])
    whole, moment = filtered_coverage(TRIANGLE, pixels, ONE, 8)
    split, moments = filtered_coverage(parts, pixels, ONE, 8)
    assert (whole[0] - split.sum(0)).abs().max() < 1e-14
    assert (moment[0] - moments.sum(0)).abs().max() < 1e-14
    flipped, _ = filtered_coverage(TRIANGLE.flip(1), pixels, ONE, 8)
    assert (whole + flipped).abs().max() < 1e-14
    assert (whole > 0).all()
    assert float(twice_area(TRIANGLE)) > 0


def test_a_tiling_of_the_plane_covers_everything_once() -> None:
    n, step = 24, 5.0
    i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    corner = torch.stack([i, j], -1).reshape(-1, 2).double() * step - n * step / 2
    right, down = torch.tensor([step, 0.0]), torch.tensor([0.0, step])
    lower = torch.stack([corner, corner + down, corner + right], 1)
    upper = torch.stack([corner + right, corner + down, corner + right + down], 1)
    covered, moment = filtered_coverage(
        torch.cat([lower, upper]), torch.rand(9, 2, dtype=torch.float64) * 10 - 5, ONE, 8
    )
    # The noise's tail beyond 55 scales is 1e-10
    assert (covered.sum(0) - 1).abs().max() < 1e-9
    assert moment.sum(0).abs().max() < 1e-7


def test_small_scale_is_inside_or_outside() -> None:
    pixels = torch.tensor([[3.0, 3.0], [6.0, 6.0], [1.2, 0.5]], dtype=torch.float64)
    covered, _ = filtered_coverage(TRIANGLE, pixels, 1e-4 * ONE, 8)
    assert torch.allclose(covered[0], torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), atol=1e-12)


def test_the_mean_position_lies_in_the_triangle() -> None:
    pixels = torch.rand(200, 2, dtype=torch.float64) * 12 - 2
    _, from_centroid, from_pixel = Filtered().seen(TRIANGLE, pixels, ONE, 8)
    centroid = TRIANGLE.mean(1)
    position = centroid + from_centroid[0]
    a, b, c = TRIANGLE[0]
    for p, q in ((a, b), (b, c), (c, a)):
        assert ((q[1] - p[1]) * (position[:, 0] - p[0]) - (q[0] - p[0]) * (position[:, 1] - p[1]) > -1e-9).all()
    covered, _ = filtered_coverage(TRIANGLE, pixels, ONE, 8)
    sure = covered[0] > 0.1
    assert torch.allclose((position - pixels)[sure], from_pixel[0][sure], atol=1e-3)


def test_float32_is_clean() -> None:
    triangles = torch.randn(200, 3, 2, dtype=torch.float64) * 20 + 32
    pixels = torch.rand(64, 2, dtype=torch.float64) * 64
    exact, _ = filtered_coverage(triangles, pixels, ONE, 8)
    single, _ = filtered_coverage(triangles.float(), pixels.float(), ONE.float(), 8)
    assert (single - exact).abs().max() < 2e-6


def test_degenerate_edges_have_finite_derivatives() -> None:
    corners = torch.tensor(
        [[[1.0, 1.0], [1.0, 1.0], [3.0, 2.0]], [[2.0, 2.0]] * 3], dtype=torch.float64, requires_grad=True
    )
    covered, moment = filtered_coverage(corners, torch.tensor([[1.0, 1.0], [2.5, 0.0]], dtype=torch.float64), ONE, 8)
    (slope,) = torch.autograd.grad(covered.sum() + moment.sum(), corners, create_graph=True)
    (second,) = torch.autograd.grad(slope.square().sum(), corners)
    assert torch.isfinite(covered).all()
    assert torch.isfinite(slope).all()
    assert torch.isfinite(second).all()


@pytest.mark.parametrize("family", [f for f in SIGMOIDS if f is not Heaviside], ids=lambda f: f.__name__)
@pytest.mark.parametrize("squared", [None, False, True])
def test_other_coverages_take_every_sigmoid(family, squared: bool | None) -> None:
    coverage = (
        EdgeProduct(family(steepness=2.0))
        if squared is None
        else EuclideanCoverage(family(steepness=2.0), squared=squared)
    )
    pixels = torch.tensor([[3.0, 3.0], [20.0, 20.0]], dtype=torch.float64)
    signed, from_centroid, _ = coverage.seen(TRIANGLE, pixels, ONE, 8)
    assert float(signed[0, 0]) > 0.5 > float(signed[0, 1]) >= 0
    # Inside the face the position is the pixel itself
    assert torch.allclose(TRIANGLE.mean(1)[0] + from_centroid[0, 0], pixels[0])
    assert torch.allclose(coverage.seen(TRIANGLE.flip(1), pixels, ONE, 8)[0], -signed)


def test_euclidean_coverage_is_the_sigmoid_of_the_distance() -> None:
    square = torch.tensor([[[0.0, 0.0], [0.0, 9.0], [9.0, 0.0]]], dtype=torch.float64)
    pixels = torch.tensor([[-2.0, 3.0], [1.0, 3.0]], dtype=torch.float64)
    signed, _, _ = EuclideanCoverage(Logistic(1.0)).seen(square, pixels, ONE, 8)
    assert torch.allclose(signed[0], torch.sigmoid(torch.tensor([-2.0, 1.0], dtype=torch.float64)))
    signed, _, _ = EuclideanCoverage(Logistic(1.0), squared=True).seen(square, pixels, ONE, 8)
    assert torch.allclose(signed[0], torch.sigmoid(torch.tensor([-4.0, 1.0], dtype=torch.float64)))


def test_errors() -> None:
    with pytest.raises(ValueError, match="even df"):
        FilteredCoverage(StudentT(3))
    with pytest.raises(ValueError, match="even df"):
        FilteredCoverage(GaussianNoise())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="df up to 64"):
        FilteredCoverage(StudentT(128))
    with pytest.raises(ValueError, match="pixels, ndc"):
        FilteredCoverage(units="metres")
