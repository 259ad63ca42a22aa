"""What is seen is the nearest coverage that adds up to the silhouette: against hard pictures convolved with the noise, meshes
cut finer, objects of other sizes, and poses turned in small steps."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from algonet.relax import StudentT
from algonet.render import (
    Camera,
    FilteredCoverage,
    Mesh,
    SmoothRenderer,
    box,
    icosphere,
    render_attributes,
    render_hard,
)
from algonet.render import torus as make_torus

SIZE, FINE = 40, 8
#: Rolled, so that no edge of a scene is a row of samples.
CAMERA = Camera.look_at((0.0, 0.0, 4.0), up=(0.3, 1.0, 0.0), fov=45.0).to(torch.float64)


def _soft(mesh: Mesh, attributes: Tensor, scale: float = 1.0, steepness: float = 20.0, **options):
    return render_attributes(
        mesh.vertices, mesh.faces, attributes, CAMERA, size=(SIZE, SIZE), coverage=FilteredCoverage(StudentT(scale=scale)),
        depth_steepness=steepness, **options,
    )  # fmt: skip


def _truth(mesh: Mesh, attributes: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Attributes (times the silhouette), silhouette and mean depth: what a z-buffer of 8 x 8 samples a pixel sees, convolved
    with the noise's density. Nothing lies beyond the frame."""
    hard = render_hard(mesh.vertices, mesh.faces, attributes, CAMERA, size=(SIZE * FINE, SIZE * FINE))
    reach = int(10 * scale * FINE)
    t = torch.arange(-reach, reach + 1, dtype=torch.float64) / (scale * FINE)
    density = (1 + (t[:, None] ** 2 + t**2) / 8) ** -5
    shape = [SIZE * FINE + 2 * reach] * 2
    spectrum = torch.fft.rfft2(density / density.sum(), s=shape)

    def blurred(x: Tensor) -> Tensor:
        wide = torch.fft.irfft2(torch.fft.rfft2(x, s=shape) * spectrum, s=shape)[reach : reach + SIZE * FINE, reach:]
        return torch.nn.functional.avg_pool2d(wide[None, None, :, : SIZE * FINE], FINE)[0, 0]

    there = hard.silhouette
    opaque = blurred(there)
    image = torch.stack([blurred(c * there) for c in hard.image.unbind(-1)], -1)
    return image, opaque, blurred(torch.where(there > 0, hard.depth, 0.0)) / opaque.clamp_min(1e-9)


def _turned(mesh: Mesh, angle: float) -> Mesh:
    c, s = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]], dtype=torch.float64)
    return mesh.replace(vertices=mesh.vertices.double() @ turn.T)


def _sheet(half: float = 1.0) -> Mesh:
    corners = torch.tensor([[-1.0, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]], dtype=torch.float64) * half
    return Mesh(corners, torch.tensor([[0, 1, 2], [0, 2, 3]]))


def _ring() -> Mesh:
    """A torus that shows its hole."""
    mesh = make_torus(segments=(24, 12)).to(torch.float64)
    x, y, z = mesh.vertices.unbind(-1)
    return mesh.replace(vertices=torch.stack([x, -z, y], -1))


def _range(x: Tensor) -> float:
    return float(x.max() - x.min())


@pytest.mark.parametrize("steepness", [5.0, 20.0, 100.0])
@pytest.mark.parametrize("name", ["sheet", "ball", "ball, one side"])
def test_cutting_changes_neither_colour_nor_depth(name: str, steepness: float) -> None:
    mesh = _turned(_sheet(), math.pi / 4) if name == "sheet" else icosphere(1, 0.9).to(torch.float64)
    options = {"steepness": steepness, "two_sided": name != "ball, one side"}
    fine = mesh.subdivided().subdivided()
    coarse, cut = (_soft(m, m.vertices, **options) for m in (mesh, fine))
    inside = coarse.silhouette > 0.5
    assert float((coarse.image - cut.image).abs().max()) < 3e-3 * _range(mesh.vertices)
    assert float((coarse.depth - cut.depth)[inside].abs().max()) < 3e-3 * _range(mesh.vertices)
    assert float((coarse.silhouette - cut.silhouette).abs().max()) < 3e-4


@pytest.mark.parametrize("steepness", [5.0, 100.0])
def test_a_flat_sheet_is_the_average_over_the_noise(steepness: float) -> None:
    mesh = _turned(_sheet(), math.pi / 4).subdivided().subdivided()
    out, (image, opaque, depth) = _soft(mesh, mesh.vertices, steepness=steepness), _truth(mesh, mesh.vertices)
    inside = opaque > 0.98
    assert float((out.image - image)[inside].abs().max()) < 3e-3 * _range(mesh.vertices)
    assert float((out.depth - depth)[opaque > 0.5].abs().max()) < 3e-3 * _range(mesh.vertices)


@pytest.mark.parametrize(("scale", "most"), [(1.0, 0.05), (3.0, 0.15)])
@pytest.mark.parametrize("distance", [1.0, 2.0])
def test_what_is_in_front_does_not_swell(scale: float, most: float, distance: float) -> None:
    back = torch.tensor([[-30.0, -9, 0], [30, -9, 0], [30, 9, 0], [-30, 9, 0]], dtype=torch.float64)
    # Half of the plane, nearer; far beyond the frame
    front = torch.tensor(
        [[-30.0, -9, distance], [0, -9, distance], [0, 9, distance], [-30, 9, distance]], dtype=torch.float64
    )
    mesh = Mesh(torch.cat([back, front]), torch.tensor([[0, 1, 2], [0, 2, 3], [4, 5, 6], [4, 6, 7]]))
    which = torch.tensor([0.0] * 4 + [1.0] * 4, dtype=torch.float64)[:, None]
    camera = Camera.look_at((0.0, 0.0, 4.0), fov=45.0).to(torch.float64)
    out = render_attributes(
        mesh.vertices, mesh.faces, which, camera, size=(5, SIZE), coverage=FilteredCoverage(StudentT(scale=scale)),
        depth_steepness=20.0,
    )  # fmt: skip
    # Half of the row is in front
    assert abs(float(out.image[2, :, 0].sum()) - SIZE / 2) < most


@pytest.mark.parametrize("name", ["ball", "ring"])
def test_colours_tend_to_the_blurred_hard_picture(name: str) -> None:
    mesh = icosphere(2, 0.9).to(torch.float64) if name == "ball" else _turned(_ring(), 0.4)
    image, opaque, _ = _truth(mesh, mesh.vertices)
    errors = []
    for steepness in (5.0, 20.0, 80.0):
        out = _soft(mesh, mesh.vertices, steepness=steepness)
        errors.append(float((out.image - image).square().mean().sqrt()))
        assert float((out.silhouette - opaque).abs().max()) < 0.02
    assert errors[1] < 0.01
    assert errors[2] <= errors[1] * 1.02
    assert errors[1] < errors[0]


@pytest.mark.parametrize("two_sided", [True, False])
def test_one_layer_is_opaque_and_hides_what_lies_behind(two_sided: bool) -> None:
    front, back = icosphere(2, 0.9), icosphere(2, 0.5)
    mesh = Mesh(torch.cat([front.vertices, back.vertices]), torch.cat([front.faces, back.faces + len(front.vertices)]))
    inner = (torch.arange(len(mesh.vertices)) >= len(front.vertices)).double()[:, None]
    out = _soft(mesh.to(torch.float64), inner, two_sided=two_sided, steepness=50.0)
    middle = (slice(16, 24), slice(16, 24))
    # The noise's tail beyond the ball is 2e-4 of it
    assert float(out.silhouette[middle].min()) > 0.999 - 3e-4
    assert float(out.image[middle].max()) < 2e-3


def test_depth_is_the_surface_s() -> None:
    plane = _sheet(50.0)
    eye = Camera.look_at((0.0, 0.0, 11.0)).to(torch.float64)
    arguments = (plane.vertices, plane.faces, plane.vertices, eye)
    assert torch.allclose(render_attributes(*arguments, size=(8, 8)).depth, torch.tensor(11.0).double(), atol=1e-3)
    composed = render_attributes(*arguments, size=(8, 8), background_depth=3.0)
    expected = 11 * composed.silhouette + 3 * (1 - composed.silhouette)
    assert torch.allclose(composed.depth, expected, atol=1e-4)
    half = _sheet(1.0)
    out = render_attributes(half.vertices, half.faces, half.vertices, eye, size=(32, 32))
    seen = out.silhouette > 0.02
    assert float((out.depth[seen] - 11).abs().max()) < 1e-3
    assert float(
        SmoothRenderer(8)(plane.to(torch.float32), Camera.look_at((0.0, 0.0, 11.0))).depth[4, 4]
    ) == pytest.approx(11, abs=1e-3)


def _slope(mesh: Mesh, angle: float, weights: Tensor) -> Tensor:
    points = _turned(mesh, angle).vertices.requires_grad_()
    out = _soft(mesh.replace(vertices=points), mesh.vertices)
    return torch.autograd.grad((out.silhouette * weights).sum(), points)[0]


def test_a_face_turns_edge_on_smoothly() -> None:
    """The noise of one pixel turns rays by delta; the area's slope passes through 0 over that angle."""
    sheet, delta = _sheet(), 2 * math.tan(math.radians(22.5)) / SIZE
    edge_on = math.pi / 2

    def area(angle: float) -> float:
        turned = _turned(sheet, angle)
        points = turned.vertices.requires_grad_()
        total = _soft(turned.replace(vertices=points), sheet.vertices).silhouette.sum()
        (slope,) = torch.autograd.grad(total, points)
        way = torch.stack([points[:, 2], 0 * points[:, 1], -points[:, 0]], -1)
        return float((slope * way).sum().detach())

    largest = abs(area(edge_on + 3 * delta))
    for share in (1e-1, 1e-2, 1e-3):
        assert abs(area(edge_on + share * delta)) < 2 * share * largest
        assert abs(area(edge_on - share * delta)) < 2 * share * largest
    assert abs(area(edge_on)) < 1e-6 * largest


def test_gradients_change_in_proportion_to_the_step_of_a_turn() -> None:
    mesh, delta = icosphere(1, 0.9).to(torch.float64), 2 * math.tan(math.radians(22.5)) / SIZE
    weights = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def change(step: float) -> float:
        slopes = [_slope(mesh, 0.3 + k * step, weights) for k in range(9)]
        return max(float((b - a).norm() / a.norm()) for a, b in itertools.pairwise(slopes))

    coarse, fine = change(delta / 10), change(delta / 40)
    assert fine < coarse / 3


@pytest.mark.parametrize("scale", [0.5, 4.0])
@pytest.mark.parametrize("name", ["ball", "ring", "box"])
def test_the_truth_is_the_minimum(name: str, scale: float) -> None:
    """Of sizes around a mesh's own: against its hard picture blurred by the same noise, the loss is least within 0.5 %."""
    mesh = {"ball": icosphere(2, 0.9), "ring": _ring(), "box": box()}[name].to(torch.float64)
    mesh = _turned(mesh, 0.5)
    image, opaque, _ = _truth(mesh, mesh.vertices, scale)
    factors = torch.tensor([0.985, 0.995, 1.005, 1.015], dtype=torch.float64)
    losses = []
    for factor in factors:
        out = _soft(mesh.replace(vertices=mesh.vertices * factor), mesh.vertices, scale)
        losses.append(torch.stack([(out.silhouette - opaque).square().mean(), (out.image - image).square().mean()]))
    powers = torch.stack([factors**k for k in range(3)], -1)
    curves = torch.linalg.lstsq(powers, torch.stack(losses)).solution
    least = -curves[1] / (2 * curves[2])
    assert (curves[2] > 0).all()
    assert float((least - 1).abs().max()) < 5e-3
