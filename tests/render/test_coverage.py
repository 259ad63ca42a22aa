"""The filtered coverage: a probability, additive, smooth, with the crisp triangle as its limit."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import pytest
import torch

from algonet.relax import SIGMOIDS, GaussianNoise, Heaviside, Logistic, StudentT
from algonet.render import Camera, EdgeProduct, EuclideanCoverage, FilteredCoverage, SmoothRenderer, icosphere
from algonet.render.coverage import Coverage, filtered_coverage, filtered_moments, integrated_coverage, twice_area
from algonet.render.reference import barycentrics, nearness_shift
from helpers.noises import draw

ONE = torch.tensor(1.0, dtype=torch.float64)
#: Counter-clockwise as seen, with y pointing down.
TRIANGLE = torch.tensor([[[1.0, 1.0], [2.0, 6.0], [7.0, 2.0]]], dtype=torch.float64)


@pytest.mark.parametrize("df", [2, 4, 8, 16])
def test_is_the_probability_of_landing_inside(df: int) -> None:
    noise = StudentT(df, scale=1.5)
    pixel = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    where = pixel + draw(noise, 400_000)
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


def _points_inside(pixel: torch.Tensor, df: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Centroids of 160,000 small triangles that make up the triangle, and the noise's mass in each, as seen from the pixel."""
    n = 400
    i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
    upwards, downwards = i + j < n, i + j < n - 1
    u, v = (torch.cat([k[upwards] + 1 / 3, k[downwards] + 2 / 3]).double() / n for k in (i, j))
    a, b, c = TRIANGLE[0]
    points = a + u[:, None] * (b - a) + v[:, None] * (c - a)
    square = (points - pixel).square().sum(-1)
    density = (1 + square / (df * scale**2)) ** (-df / 2 - 1) / (2 * math.pi * scale**2)
    return points, density * float(twice_area(TRIANGLE)) / 2 / n**2


@pytest.mark.parametrize("df", [4, 8, 16])
@pytest.mark.parametrize("pixel", [(3.0, 3.0), (1.0, 5.0), (7.5, 7.5)])
def test_second_moment_is_that_of_the_noise_inside(df: int, pixel: tuple[float, float]) -> None:
    q = torch.tensor([pixel], dtype=torch.float64)
    points, mass = _points_inside(q[0], df, 1.5)
    covered, moment, second = filtered_moments(TRIANGLE, q, 1.5 * ONE, df)
    away = points - q[0]
    assert second is not None
    assert torch.allclose(covered[0, 0], mass.sum(), atol=2e-5)
    assert torch.allclose(moment[0, 0], mass @ away, atol=2e-5)
    assert torch.allclose(second[0, 0], torch.einsum("n,ni,nj->ij", mass, away, away), atol=5e-5)


@pytest.mark.parametrize("most", [1.1, 1.5, 3.0, 30.0])
def test_attributes_are_averaged_over_the_face_in_space(most: float) -> None:
    """What is linear on the face in space is N/D in the picture, and its mean that at E[x/D] / E[1/D]; to first order where D
    varies little, and never outside the face."""
    nearness = torch.tensor([[1.0, most, 1.2]], dtype=torch.float64)
    area = twice_area(TRIANGLE)
    for pixel in ((3.0, 3.0), (1.0, 5.0), (2.0, 7.0)):
        q = torch.tensor([pixel], dtype=torch.float64)
        points, mass = _points_inside(q[0], 8, 1.0)
        _, position, spread = FilteredCoverage().seen(TRIANGLE, q, ONE)
        shares = barycentrics(TRIANGLE, area, position)
        moved = position - nearness_shift(TRIANGLE, area, nearness, shares, spread)
        depth = 1 / (barycentrics(TRIANGLE, area, points[None] - TRIANGLE.mean(1)) * nearness).sum(-1)[0]
        exact = (mass * depth) @ points / (mass @ depth) - TRIANGLE.mean(1)[0]
        off, before = (float((x[0, 0] - exact).norm()) for x in (moved, position))
        assert off < {1.1: 0.05, 1.5: 0.25, 3.0: 0.7}.get(most, 1.0) * before
        assert float(barycentrics(TRIANGLE, area, moved).min()) > 0


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
    _, from_centroid, _ = FilteredCoverage().seen(TRIANGLE, pixels, ONE)
    centroid = TRIANGLE.mean(1)
    position = centroid + from_centroid[0]
    a, b, c = TRIANGLE[0]
    for p, q in ((a, b), (b, c), (c, a)):
        assert ((q[1] - p[1]) * (position[:, 0] - p[0]) - (q[0] - p[0]) * (position[:, 1] - p[1]) > -1e-9).all()


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
    signed, from_centroid = coverage.seen(TRIANGLE, pixels, 2 * ONE)
    assert float(signed[0, 0]) > 0.5 > float(signed[0, 1]) >= 0
    # Inside the face the position is the pixel itself, up to the rounded corners of `EdgeProduct`
    assert torch.allclose(TRIANGLE.mean(1)[0] + from_centroid[0, 0], pixels[0], atol=0.05 if squared is None else 1e-6)
    assert torch.allclose(coverage.seen(TRIANGLE.flip(1), pixels, 2 * ONE)[0], -signed)


def test_euclidean_coverage_is_the_sigmoid_of_the_distance() -> None:
    square = torch.tensor([[[0.0, 0.0], [0.0, 9.0], [9.0, 0.0]]], dtype=torch.float64)
    pixels = torch.tensor([[-2.0, 3.0], [1.0, 3.0]], dtype=torch.float64)
    signed, _ = EuclideanCoverage(Logistic(1.0)).seen(square, pixels, ONE)
    assert torch.allclose(signed[0], torch.sigmoid(torch.tensor([-2.0, 1.0], dtype=torch.float64)))
    signed, _ = EuclideanCoverage(Logistic(1.0), squared=True).seen(square, pixels, ONE)
    assert torch.allclose(signed[0], torch.sigmoid(torch.tensor([-4.0, 1.0], dtype=torch.float64)))


@pytest.mark.parametrize("df", [2, 8])
def test_any_noise_is_integrated_along_the_edges(df: int) -> None:
    """By its tail alone; where there is a closed form, both agree."""
    pixels = torch.tensor([[3.0, 3.0], [1.0, 1.0], [1.5, 3.5], [20.0, -9.0]], dtype=torch.float64)
    faces = torch.cat([TRIANGLE, TRIANGLE * 50, TRIANGLE * 0.01])
    exact = filtered_coverage(faces, pixels, 0.7 * ONE, df)
    found = integrated_coverage(faces, pixels, StudentT(df, scale=0.7 * ONE))
    for a, b in zip(exact, found, strict=True):
        # What is guarded where a pixel lies on an edge is 1e-6 of the scale's square
        assert (a - b).abs().max() < 2e-6


def test_gaussian_noise_is_the_limit_of_many_degrees_of_freedom() -> None:
    pixels = torch.rand(100, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 9 - 1
    gauss, _ = integrated_coverage(TRIANGLE, pixels, GaussianNoise(scale=ONE))
    distances = [float((filtered_coverage(TRIANGLE, pixels, ONE, df)[0] - gauss).abs().max()) for df in (8, 16, 32, 64)]
    # Halved with each doubling of df; StudentT(64) is within 0.007 of Gaussian noise here
    assert distances[-1] < 8e-3
    assert all(0.4 < b / a < 0.6 for a, b in itertools.pairwise(distances))
    corners = TRIANGLE.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda c: integrated_coverage(c, pixels[:3], GaussianNoise(scale=ONE)), (corners,), atol=1e-6
    )


@dataclass(frozen=True, eq=False)
class Disc(Coverage):
    """A coverage of one's own: a sigmoid of the distance to the centroid."""

    sigmoid: Logistic = field(default_factory=Logistic)
    radius: float = 2.0
    relaxation = "sigmoid"

    def seen(self, corners, pixels, softness):
        away = pixels - corners.mean(1, keepdim=True)
        sign = twice_area(corners).sign()[:, None]
        signed = sign * self.with_softness(softness)(self.radius - (away.square().sum(-1) + 1e-6).sqrt())
        return signed, torch.zeros_like(away)


@pytest.mark.parametrize(
    "coverage",
    [
        Disc(Logistic(3.0)),
        EdgeProduct(Logistic(3.0)),
        EuclideanCoverage(Logistic(3.0)),
        FilteredCoverage(GaussianNoise(0.5)),
    ],
    ids=lambda c: type(c).__name__,
)
def test_every_coverage_renders_anneals_and_is_refused_by_kernels_with_the_reason(coverage: Coverage) -> None:
    mesh, camera = icosphere(0), Camera.look_at((0.0, 0.0, 3.0))
    renderer = SmoothRenderer((8, 9), coverage)
    name = str(coverage.relax.softness_field)
    assert set(renderer.state_dict()) == {name, "depth_steepness"}
    softness = torch.nn.Parameter(getattr(renderer, name).clone())
    out = torch.func.functional_call(renderer, {name: softness}, (mesh, camera))
    (slope,) = torch.autograd.grad(out.rgb.sum() + out.silhouette.square().sum(), softness)
    assert torch.isfinite(slope)
    assert slope != 0
    wanted = "GaussianNoise" if isinstance(coverage, FilteredCoverage) else type(coverage).__name__
    with pytest.raises(ValueError, match=wanted):
        SmoothRenderer((8, 9), coverage, backend="numba")(mesh, camera)


def test_two_coverages_of_one_class_are_two() -> None:
    mesh, camera = icosphere(0), Camera.look_at((0.0, 0.0, 3.0))
    pictures = [SmoothRenderer((8, 8), Disc(radius=r))(mesh, camera).silhouette for r in (1.0, 3.0)]
    assert not torch.allclose(*pictures)


def test_errors() -> None:
    with pytest.raises(ValueError, match="even df"):
        FilteredCoverage(StudentT(3))
    with pytest.raises(TypeError, match="must be a noise"):
        FilteredCoverage(Logistic())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="even df up to 64"):
        FilteredCoverage(StudentT(128))
    with pytest.raises(ValueError, match="pixels, ndc"):
        FilteredCoverage(units="metres")
