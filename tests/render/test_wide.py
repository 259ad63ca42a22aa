"""Wide noise is evaluated at few samples and interpolated: the picture, its gradients and what it costs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from algonet.core.identity import Signature, specs
from algonet.relax import StudentT
from algonet.render import Camera, FilteredCoverage, SmoothRenderer, icosphere, render_attributes
from algonet.render.kernels.numba import host
from algonet.render.kernels.numba.tiles import Grid, lagrange_matrix
from algonet.render.settings import RasterSettings
from algonet.render.vectors import LEAST_SPACING, SAMPLES_PER_SCALE


def picture(scale: float | Tensor, backend: str, size: tuple[int, int], df: int = 8, vertices: Tensor | None = None):
    """A ball that the picture's edge cuts. Depth is composed: what little covers a pixel by itself is within epsilon of
    nothing, where the depth of that little is not told (measured 0.02 where the silhouette is 3e-6)."""
    ball = icosphere(1, 0.9).to(torch.float64)
    vertices = ball.vertices if vertices is None else vertices
    camera = Camera.look_at(torch.tensor([0.3, 0.5, 2.3], dtype=torch.float64), (0.5, 0.0, 0.0))
    colors = (ball.vertices + 1) / 2
    coverage = FilteredCoverage(StudentT(df, scale=scale))
    return render_attributes(
        vertices, ball.faces, colors, camera, size=size, coverage=coverage, backend=backend, background_depth=0.0
    )


def is_wide(scale: float, size: tuple[int, int], df: int = 8) -> bool:
    return Grid.of(scale * RasterSettings(*size, FilteredCoverage(StudentT(df)).form()).spacing, *size).margin > 0


@pytest.mark.parametrize(
    ("scale", "df", "size"),
    [(4.0, 8, (64, 80)), (6.0, 8, (60, 41)), (12.0, 8, (48, 48)), (40.0, 8, (64, 50)), (9.0, 2, (48, 48)), (5.0, 64, (50, 64))],
)  # fmt: skip
def test_the_picture_is_that_of_full_resolution(scale: float, df: int, size: tuple[int, int]) -> None:
    assert is_wide(scale, size, df)
    ball = icosphere(1, 0.9).to(torch.float64)
    # A loss that sees shapes, not single pixels
    y, x = torch.meshgrid(torch.linspace(0, 5, size[0]), torch.linspace(0, 4, size[1]), indexing="ij")
    found = []
    for backend in ("numba", "reference"):
        vertices = ball.vertices.clone().requires_grad_()
        softness = torch.tensor(scale, dtype=torch.float64, requires_grad=True)
        out = picture(softness, backend, size, df, vertices)
        loss = sum(
            (o * (1.5 + torch.sin(x + y * i)).to(o).reshape(*size, *[1] * (o.dim() - 2))).sum()
            for i, o in enumerate(out)
        )
        assert isinstance(loss, Tensor)
        found.append((out, torch.autograd.grad(loss, [vertices, softness])))
    (out, slopes), (truth, expected) = found
    assert float((out.silhouette - truth.silhouette).detach().abs().max()) < 1e-4
    assert float((out.image - truth.image).detach().abs().max()) < 1e-4
    # Depths are about 2
    assert float((out.depth - truth.depth).detach().abs().max()) < 2e-4
    for actual, right in zip(slopes, expected, strict=True):
        assert float((actual - right).norm()) < 1e-3 * float(right.norm())


def test_nothing_jumps_where_samples_become_fewer() -> None:
    size = (200, 240)
    edge = LEAST_SPACING * SAMPLES_PER_SCALE
    assert is_wide(edge + 1e-6, size)
    assert not is_wide(edge - 1e-6, size)
    before, after = picture(edge - 1e-6, "numba", size), picture(edge + 1e-6, "numba", size)
    assert all(float((a - b).abs().max()) < 1e-4 for a, b in zip(before, after, strict=True))


def test_each_item_has_its_own_samples() -> None:
    ball = icosphere(1, 0.9)
    camera = Camera.look_at((0.0, 0.0, 2.7))
    arguments = (ball.vertices, ball.faces, ball.vertices, camera)
    scales = torch.tensor([0.7, 5.0, 20.0])
    three = (ball.vertices.expand(3, -1, -1), *arguments[1:])
    both = render_attributes(*three, size=(48, 40), coverage=FilteredCoverage(StudentT(scale=scales)))
    for i, scale in enumerate(scales.tolist()):
        one = render_attributes(*arguments, size=(48, 40), coverage=FilteredCoverage(StudentT(scale=scale)))
        assert all(torch.allclose(a[i], b, atol=1e-6) for a, b in zip(both, one, strict=True))


def test_cost_does_not_grow_with_the_scale() -> None:
    mesh = icosphere(4, 0.9)
    matrix = Camera.look_at((0.0, 0.0, 2.732)).pixel_matrix((256, 256))
    points = (mesh.vertices @ matrix[:, :3].T + matrix[:, 3])[None]
    pairs = {}
    for scale in (2.0, 20.0):
        tensors = [
            points,
            mesh.vertices[None],
            torch.zeros(1, 4),
            torch.tensor([[scale, 5.0, 0.1]]),
            mesh.faces,
            mesh.faces,
        ]
        settings = RasterSettings(256, 256)
        plan = host.RenderAttributesPlan(Signature(settings, specs(tensors), (False,) * 6))
        arrays = plan.arrays(tensors, (4, 5))
        pairs[scale] = int(plan.scene(arrays, plan.grids(arrays[3][:, 0])).pairs.sum())
    # Pairs of a face and a tile of 256 samples
    assert pairs[20.0] < 1.3 * pairs[2.0]


def test_interpolation_is_exact_for_polynomials_and_its_transpose_is_the_gradient() -> None:
    grid = Grid(1.7, 5, 30, 40)
    weights = lagrange_matrix(33, 30, 1.7, 5)
    places = (torch.arange(33, dtype=torch.float64) / 1.7 + 5).numpy()
    for power in range(10):
        samples = (torch.arange(30, dtype=torch.float64) / 10) ** power
        assert abs(weights @ samples.numpy() - (places / 10) ** power).max() < 1e-9 * 3**power
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(33, 50, 2, generator=generator, dtype=torch.float64).numpy()
    b = torch.zeros(33, 50, 2, dtype=torch.float64).numpy()
    b[:30, :40] = torch.rand(30, 40, 2, generator=generator, dtype=torch.float64).numpy()
    assert math.isclose((grid.to_pixels(b, (33, 50)) * a).sum(), (b * grid.to_samples(a)).sum(), rel_tol=1e-12)


def test_the_module_has_second_derivatives_with_default_arguments() -> None:
    vertices = icosphere(0, 0.9).vertices.clone().requires_grad_()
    out = SmoothRenderer((64, 64))(icosphere(0).replace(vertices=vertices), Camera.look_at((0.0, 0.0, 3.0)))
    (slope,) = torch.autograd.grad(out.rgb.square().mean() + out.depth.mean(), vertices, create_graph=True)
    (curve,) = torch.autograd.grad(slope.square().sum(), vertices)
    assert torch.isfinite(curve).all()
    assert curve.abs().max() > 0


# What inductor would rather have is not the test's business
@pytest.mark.filterwarnings("ignore:TensorFloat32")
def test_the_module_compiles_without_a_break() -> None:
    ball, camera = icosphere(0, 0.9), Camera.look_at((0.0, 0.0, 3.0))
    renderer = SmoothRenderer((12, 16))

    def loss(vertices: Tensor) -> Tensor:
        out = renderer(ball.replace(vertices=vertices), camera)
        return out.rgb.square().sum() + out.depth.sum()

    found = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend="aot_eager")):
        vertices = ball.vertices.clone().requires_grad_()
        value = function(vertices)
        found.append((value.detach(), *torch.autograd.grad(value, vertices)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)
