"""The picture is smooth in everything, and does not depend on how the surface is cut into faces."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from algonet.relax import BoundedSum, Logistic, StudentT
from algonet.render import (
    Camera,
    EdgeProduct,
    EuclideanCoverage,
    FilteredCoverage,
    Mesh,
    SmoothRenderer,
    icosphere,
    reference,
    render_attributes,
    torus,
)
from algonet.render.settings import RasterSettings

#: The default's bend of the silhouette is a hundredth of the sum wide: smooth, but too narrow for the steps taken here.
SETTINGS = RasterSettings(1, 1, conorm=BoundedSum(8), over_depth=True)


def _pixel(corners: Tensor, coverage=None) -> Tensor:
    """Attribute, silhouette and depth of the pixel at (0.5, 0.5) for faces (F, 3, 3) of x, y, depth."""
    points = torch.cat([corners[..., :2] * corners[..., 2:], corners[..., 2:]], -1).flatten(-3, -2)
    softness = torch.tensor([0.5, 3.0, 0.2], dtype=torch.float64)
    seen = reference.project(points, softness[2], SETTINGS).reshape(-1, 3, 5)
    looks = torch.arange(len(points), dtype=torch.float64).reshape(-1, 3, 1) / len(points)
    background = torch.tensor([0.3, 0.1], dtype=torch.float64)
    centre = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    settings = SETTINGS if coverage is None else dataclasses.replace(SETTINGS, coverage=coverage)
    means, silhouette, depth = reference.visible_at(seen, looks, softness, centre, settings)
    image = silhouette * means[0] + (1 - silhouette) * background[:-1]
    return torch.cat([image, silhouette, silhouette * depth + (1 - silhouette) * background[-1]])


BEHIND = torch.tensor([[-2.0, -1.0, 2.0], [-1.0, 3.0, 2.2], [3.0, 0.0, 2.1]], dtype=torch.float64)
FRONT = torch.tensor([[-0.6, -0.5, 1.0], [-0.5, 0.9, 1.1], [1.0, 0.3, 1.2]], dtype=torch.float64)


def _across_a_pixel(t: Tensor) -> Tensor:
    return torch.stack([FRONT + torch.stack([2 * t, 0.3 * t, 0 * t])])


def _across_a_triangle(t: Tensor) -> Tensor:
    return torch.stack([BEHIND, FRONT + torch.stack([2 * t, 0.3 * t, 0 * t])])


def _through_a_triangle(t: Tensor) -> Tensor:
    return torch.stack([BEHIND, FRONT + torch.stack([0 * t, 0 * t, 1.1 + t])])


def _through_a_flip(t: Tensor) -> Tensor:
    """One corner crosses the opposite edge, over a background triangle; the area changes sign at t = 0."""
    a, b = FRONT[0], FRONT[1]
    away = torch.tensor([1.0, 0.1, 0.0], dtype=torch.float64)
    # Slowly: the corner of |area| is rounded over 1e-4 square pixels
    return torch.stack([BEHIND, torch.stack([a, b, (a + b) / 2 + 1e-4 * t * away])])


def _through_the_camera_plane(t: Tensor) -> Tensor:
    return torch.stack([BEHIND, FRONT + torch.stack([0 * t, 0 * t, -0.8 + t])])


PATHS = [_across_a_pixel, _across_a_triangle, _through_a_triangle, _through_a_flip, _through_the_camera_plane]


def _curves(path, times: Tensor, coverage=None) -> Tensor:
    """Value, first and second derivative (3, outputs, times) along the path, by autograd."""
    times = times.clone().requires_grad_()
    values = torch.func.vmap(lambda t: _pixel(path(t), coverage), out_dims=1)(times)
    firsts = [torch.autograd.grad(v.sum(), times, create_graph=True)[0] for v in values]
    seconds = [torch.autograd.grad(f.sum(), times, retain_graph=True)[0] for f in firsts]
    return torch.stack([values, torch.stack(firsts), torch.stack(seconds)]).detach()


def _jumps(path, coverage=None, count: int = 401) -> tuple[Tensor, Tensor]:
    """For each curve: the largest step between neighbours, and the spread."""
    curves = _curves(path, torch.linspace(-1, 1, count, dtype=torch.float64), coverage)
    assert torch.isfinite(curves).all()
    return (curves[..., 1:] - curves[..., :-1]).abs().amax(-1), curves.amax(-1) - curves.amin(-1)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__.strip("_"))
def test_value_and_two_derivatives_are_continuous_along(path) -> None:
    steps, spread = _jumps(path, count=1001)
    halved, _ = _jumps(path, count=2001)
    # Steps of a continuous curve shrink with the distance between points; a jump keeps its size
    moving = spread > 1e-9
    assert moving.any()
    assert (halved[moving] < 0.75 * steps[moving]).all()


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.__name__.strip("_"))
def test_derivatives_along_paths_are_those_of_finite_differences(path) -> None:
    h = 1e-4
    times = torch.tensor([-0.63, 0.02, 0.41], dtype=torch.float64)
    here, before, after = (_curves(path, times + d) for d in (0.0, -h, h))
    assert torch.allclose(here[1:], (after - before)[:2] / (2 * h), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("path", PATHS[:3], ids=lambda path: path.__name__.strip("_"))
def test_the_product_of_edges_is_smooth_too(path) -> None:
    steps, spread = _jumps(path, EdgeProduct(Logistic(2.0)), count=1001)
    halved, _ = _jumps(path, EdgeProduct(Logistic(2.0)), count=2001)
    moving = spread > 1e-9
    assert moving.any()
    assert (halved[moving] < 0.75 * steps[moving]).all()


def test_euclidean_coverage_has_kinks_on_the_same_path() -> None:
    """The test above can fail: the first derivative of the Euclidean coverage jumps where the nearest edge changes."""
    coverage = EuclideanCoverage(Logistic(2.0))
    steps, _ = _jumps(_across_a_pixel, coverage, count=1001)
    halved, _ = _jumps(_across_a_pixel, coverage, count=2001)
    silhouette_slope = (1, 1)
    assert halved[silhouette_slope] > 0.75 * steps[silhouette_slope]


def _silhouette(mesh: Mesh, coverage, **options):
    camera = Camera.look_at(torch.tensor([0.3, 0.8, 2.5], dtype=torch.float64))
    colors = (mesh.vertices + 1) / 2
    return render_attributes(
        mesh.vertices, mesh.faces, colors, camera, size=(16, 20), coverage=coverage, backend="reference", **options
    )  # fmt: skip


def _sphere() -> Mesh:
    return icosphere(1).to(torch.float64)


@pytest.mark.parametrize("two_sided", [True, False])
def test_subdividing_leaves_the_silhouette_unchanged(two_sided: bool) -> None:
    coverage = FilteredCoverage(StudentT(scale=0.8))
    coarse = _silhouette(_sphere(), coverage, two_sided=two_sided)
    fine = _silhouette(_sphere().subdivided(), coverage, two_sided=two_sided)
    # How near a face is to its horizon is asked at the mean depth inside it: measured 1.2e-4
    assert (coarse.silhouette - fine.silhouette).abs().max() < 3e-4
    # Perspective inside a face is that of its mean position: measured below
    assert (coarse.image - fine.image).abs().max() < 6e-3
    assert ((coarse.depth - fine.depth) * fine.silhouette).abs().max() < 6e-3


def test_subdividing_faces_of_constant_depth_leaves_colours_unchanged() -> None:
    corners = torch.tensor([[-1.0, -0.8, 0.0], [1.1, -0.7, 0.0], [0.1, 0.9, 0.0]], dtype=torch.float64)
    behind = corners * torch.tensor([1.5, -1.2, 1.0]) - torch.tensor([0.2, 0.0, 0.5])
    mesh = Mesh(torch.cat([corners, behind]), torch.tensor([[0, 1, 2], [3, 4, 5]]))
    camera = Camera.orthographic(torch.tensor([0.0, 0.0, 3.0], dtype=torch.float64))
    coverage = FilteredCoverage(StudentT(scale=0.8))
    pictures = [
        render_attributes(
            m.vertices, m.faces, m.vertices, camera, size=(16, 20), coverage=coverage, depth_steepness=4.0, backend="reference"
        )
        for m in (mesh, mesh.subdivided())
    ]  # fmt: skip
    assert (pictures[0].silhouette - pictures[1].silhouette).abs().max() < 1e-8
    # What is left are the lateral term's tails: measured 2.5e-3 at the rim of the nearer face
    assert (pictures[0].image - pictures[1].image).abs().max() < 5e-3
    assert (pictures[0].image - pictures[1].image).abs().mean() < 3e-4


@pytest.mark.parametrize(
    "coverage", [EdgeProduct(Logistic(2.0)), EuclideanCoverage(Logistic(2.0))], ids=lambda c: type(c).__name__
)
def test_other_coverages_grow_fatter_with_finer_meshes(coverage) -> None:
    coarse = _silhouette(_sphere(), coverage).silhouette
    fine = _silhouette(_sphere().subdivided(), coverage).silhouette
    assert float((fine - coarse).max()) > 0.02


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_no_nan_or_infinity_over_random_and_degenerate_meshes(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    camera = Camera.look_at((0.0, 0.0, 3.0)).to(dtype)
    for trial in range(12):
        vertices = torch.randn(8, 3, generator=generator) * (0.1, 1.0, 30.0)[trial % 3]
        faces = torch.randint(0, 8, (10, 3), generator=generator)
        if trial % 2:
            vertices[:4] = vertices[0]
        vertices = vertices.to(dtype).requires_grad_()
        out = render_attributes(vertices, faces, vertices, camera, size=(7, 9))
        (slope,) = torch.autograd.grad(sum(t.float().sum() for t in out), vertices)
        assert all(torch.isfinite(t).all() for t in out)
        assert torch.isfinite(slope).all()


def test_forward_mode_nests_as_reverse_mode_does() -> None:
    """Second derivatives in every order of modes, and the third, against central differences."""
    corners = torch.tensor([[-0.8, -0.7, 0.0], [0.9, -0.6, 0.2], [0.1, 0.8, -0.3]], dtype=torch.float64)
    camera, faces = Camera.look_at((0.0, 0.0, 3.0)).to(torch.float64), torch.tensor([[0, 1, 2]])

    def f(size: Tensor) -> Tensor:
        out = render_attributes(corners * size, faces, corners, camera, size=(4, 5))
        return out.silhouette.square().sum() + out.image.square().sum()

    forward, reverse, one = torch.func.jacfwd, torch.func.jacrev, torch.tensor(1.0, dtype=torch.float64)
    h = 1e-3
    second, third = ((reverse(g)(one + h) - reverse(g)(one - h)) / (2 * h) for g in (f, reverse(f)))
    for outer in (forward, reverse):
        for inner in (forward, reverse):
            torch.testing.assert_close(outer(inner(f))(one), second, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(forward(forward(forward(f)))(one), third, rtol=1e-3, atol=1e-3)


def test_silhouettes_and_colours_do_not_leave_their_range_by_rounding() -> None:
    out = SmoothRenderer(64, background=(0.0, 0.0, 1.0))(torus(), Camera.look_at((1.2, 0.8, 2.2), fov=50.0))
    assert float(out.silhouette.max()) <= 1
    assert float(out.rgb.min()) >= 0
