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


def _camera(pixels: int = SIZE) -> Camera:
    """So many pixels, as large as those of SIZE."""
    half = math.tan(math.radians(22.5)) * pixels / SIZE
    fov = 2 * math.degrees(math.atan(half))
    return Camera.look_at((0.0, 0.0, 4.0), up=(0.3, 1.0, 0.0), fov=fov).to(torch.float64)


CAMERA = _camera()


def _soft(mesh: Mesh, attributes: Tensor, scale: float = 1.0, steepness: float = 20.0, **options):
    return render_attributes(
        mesh.vertices, mesh.faces, attributes, CAMERA, size=(SIZE, SIZE), coverage=FilteredCoverage(StudentT(scale=scale)),
        depth_steepness=steepness, **options,
    )  # fmt: skip


def _truth(mesh: Mesh, attributes: Tensor, scale: float = 1.0, fine: int = FINE) -> tuple[Tensor, Tensor, Tensor]:
    """Attributes (times the silhouette), silhouette and mean depth: what a z-buffer of `fine` x `fine` samples a pixel sees,
    convolved with the noise's density. It sees as far beyond the frame as the noise reaches."""
    beyond = int(10 * scale) + 1
    reach, side = beyond * fine, (SIZE + 2 * beyond) * fine
    hard = render_hard(mesh.vertices, mesh.faces, attributes, _camera(SIZE + 2 * beyond), size=(side, side))
    t = torch.arange(-reach, reach + 1, dtype=torch.float64) / (scale * fine)
    density = (1 + (t[:, None] ** 2 + t**2) / 8) ** -5
    shape = [side + 2 * reach] * 2
    spectrum = torch.fft.rfft2(density / density.sum(), s=shape)
    inner = slice(2 * reach, 2 * reach + SIZE * fine)

    def blurred(x: Tensor) -> Tensor:
        wide = torch.fft.irfft2(torch.fft.rfft2(x, s=shape) * spectrum, s=shape)
        return torch.nn.functional.avg_pool2d(wide[None, None, inner, inner], fine)[0, 0]

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


def _windows() -> Mesh:
    """A closed plate with two windows."""
    cells = [(i, j) for i in range(3) for j in range(5) if i != 1 or j % 2 == 0]
    places: dict[tuple[int, int, int], int] = {}
    faces: list[list[int]] = []

    def quad(*corners: tuple[int, int, int]) -> None:
        a, b, c, d = (places.setdefault(corner, len(places)) for corner in corners)
        faces.extend([[a, b, c], [a, c, d]])

    for i, j in cells:
        low, high = ([(j + x, i + y, side) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))] for side in (0, 1))
        quad(*high)
        quad(*low[::-1])
        for corner, other in enumerate([(i - 1, j), (i, j + 1), (i + 1, j), (i, j - 1)]):
            after = (corner + 1) % 4
            if other not in cells:
                quad(low[corner], low[after], high[after], high[corner])
    x = torch.tensor(list(places), dtype=torch.float64)
    return Mesh((x - x.mean(0)) * torch.tensor([0.38, 0.47, 0.5]), torch.tensor(faces))


def _bumpy(level: int) -> Mesh:
    """A closed mesh whose hills hide parts of it."""
    mesh = icosphere(level).to(torch.float64)
    x, y, z = mesh.vertices.unbind(-1)
    radius = 0.8 + 0.1 * torch.sin(5 * x + 1) * torch.sin(4 * y) + 0.08 * torch.cos(6 * z) * torch.sin(3 * x + 2 * y)
    return mesh.replace(vertices=mesh.vertices * radius[:, None])


def _range(x: Tensor) -> float:
    return float(x.max() - x.min())


#: Sheets, and closed meshes of large faces.
CUT = {
    "sheet at 45 degrees": lambda: _turned(_sheet(), math.pi / 4),
    "sheet at 70 degrees": lambda: _turned(_sheet(), math.radians(70)),
    "ball": lambda: icosphere(1, 0.9).to(torch.float64),
    "box": lambda: box().to(torch.float64),
    "ring": _ring,
}
#: Where edges of a box lie before each other, where one of its faces is nearly edge-on, and from above.
EYES = ((1.0, 1.2, 2.2), (0.3, 0.9, 2.6), (0.4, 2.4, 1.2))


def _change_by_cutting(name: str, steepness: float, two_sided: bool) -> tuple[float, float, float]:
    """The largest change of colour, depth (over the mesh's size) and silhouette over the views."""
    mesh, worst = CUT[name](), torch.zeros(3)
    fine = mesh.subdivided() if name == "ring" else mesh.subdivided().subdivided()
    for eye in ((0.0, 0.0, 4.0),) if "sheet" in name else EYES:
        camera = Camera.look_at(torch.tensor(eye, dtype=torch.float64))
        coarse, cut = (
            render_attributes(
                m.vertices,
                m.faces,
                m.vertices,
                camera,
                size=(SIZE, SIZE),
                depth_steepness=steepness,
                two_sided=two_sided,
            )
            for m in (mesh, fine)
        )
        inside, size = coarse.silhouette > 0.5, _range(mesh.vertices)
        colour, depth = (
            (coarse.image - cut.image).abs().max() / size,
            (coarse.depth - cut.depth)[inside].abs().max() / size,
        )
        off = torch.stack([colour, depth, (coarse.silhouette - cut.silhouette).abs().max()])
        worst = torch.maximum(worst, off.float())
    return tuple(worst.tolist())


@pytest.mark.parametrize("steepness", [5.0, 20.0, 100.0])
@pytest.mark.parametrize("name", CUT)
def test_cutting_changes_neither_colour_nor_depth(name: str, steepness: float) -> None:
    """Sheets, and closed meshes seen from one side. Measured over 16 views: box 0.0015 and 0.0032, ring 0.0020 and 0.0010."""
    colour, depth, silhouette = _change_by_cutting(name, steepness, "sheet" in name)
    assert colour < 3e-3
    assert depth < 4e-3
    assert silhouette < 2e-3


@pytest.mark.parametrize("steepness", [5.0, 20.0, 100.0])
@pytest.mark.parametrize("name", ["ball", "box", "ring"])
def test_cutting_changes_more_where_both_sides_are_drawn(name: str, steepness: float) -> None:
    """A far tail of the front competes with the near parts of the back. Measured over 16 views: box 0.032 and 0.055."""
    colour, depth, _ = _change_by_cutting(name, steepness, True)
    assert colour < 4e-2
    assert depth < 7e-2


@pytest.mark.parametrize("steepness", [5.0, 100.0])
def test_a_flat_sheet_is_the_average_over_the_noise(steepness: float) -> None:
    mesh = _turned(_sheet(), math.pi / 4).subdivided().subdivided()
    out, (image, opaque, depth) = _soft(mesh, mesh.vertices, steepness=steepness), _truth(mesh, mesh.vertices)
    inside = opaque > 0.98
    assert float((out.image - image)[inside].abs().max()) < 3e-3 * _range(mesh.vertices)
    assert float((out.depth - depth)[opaque > 0.5].abs().max()) < 3e-3 * _range(mesh.vertices)


@pytest.mark.parametrize(("scale", "most"), [(1.0, 0.05), (3.0, 0.15)])
@pytest.mark.parametrize(("distance", "steepness"), [(0.25, 20.0), (1.0, 5.0), (2.0, 10.0)])
def test_what_is_in_front_does_not_swell(scale: float, most: float, distance: float, steepness: float) -> None:
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
        depth_steepness=steepness,
    )  # fmt: skip
    # Half of the row is in front, and hides all but exp(-steepness * distance) of what lies behind
    row, middle = out.image[2, :, 0], SIZE // 2
    assert float(row[0]) > 1 - 1.1 * math.exp(-steepness * distance) - 1e-3
    left, right = float(row[middle - 1]), float(row[middle])
    assert abs((left - 0.5) / (left - right) - 0.5) < most


#: What silhouettes are off by at most: outlines of hills before hills end in one pixel, and their coverages add up there.
@pytest.mark.parametrize(("name", "most"), [("ball", 0.02), ("ring", 0.02), ("bumpy", 0.3)])
def test_colours_tend_to_the_blurred_hard_picture(name: str, most: float) -> None:
    mesh = {"ball": icosphere(2, 0.9), "ring": _turned(_ring(), 0.4), "bumpy": _turned(_bumpy(3), 0.5)}[name]
    mesh = mesh.to(torch.float64)
    colors = (mesh.vertices + 1) / 2
    image, opaque, _ = _truth(mesh, colors)
    inside, errors, means = opaque > 0.5, [], []
    for steepness in (1.0, 20.0, 50.0, 100.0):
        out = _soft(mesh, colors, steepness=steepness)
        errors.append(float((out.image - image).square().mean().sqrt()))
        mean = out.image / out.silhouette[..., None] - image / opaque[..., None]
        means.append(float(mean[inside].square().mean().sqrt()))
        assert float((out.silhouette - opaque).abs().max()) < most
    # Measured: at most 0.0045, of means 0.0025
    assert max(errors[1:]) < 0.01
    assert max(means[1:]) < 0.01
    # From there on they stay: what is left is not the order in depth
    for found in (errors, means):
        assert found[3] <= found[1] * 1.1
        assert found[1] < found[0]


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


#: Closed meshes, two of them with holes, one that leaves the frame.
MESHES = {
    "ball": lambda: icosphere(2, 0.9),
    "ring": lambda: _turned(_ring(), 0.5),
    "windows": lambda: _turned(_windows(), 0.5),
    "box": lambda: _turned(box().to(torch.float64), 0.5),
    "leaving": lambda: icosphere(2, 1.2).replace(vertices=icosphere(2, 1.2).vertices + torch.tensor([1.0, 0.5, 0.0])),
}


@pytest.mark.parametrize("scale", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("name", MESHES)
def test_the_truth_is_the_minimum(name: str, scale: float) -> None:
    """Of sizes around a mesh's own: against its hard picture blurred by the same noise, the losses by silhouette, colour and
    depth over a background are least within 0.5 %."""
    mesh = MESHES[name]().to(torch.float64)
    image, opaque, depth = _truth(mesh, mesh.vertices, scale, FINE if scale <= 1 else FINE // 2)
    far, centre = 6.0, mesh.vertices.mean(0)
    depth = depth * opaque + far * (1 - opaque)
    factors = torch.tensor([0.985, 0.995, 1.005, 1.015], dtype=torch.float64)
    losses = []
    for factor in factors:
        other = mesh.replace(vertices=centre + (mesh.vertices - centre) * factor)
        out = _soft(other, mesh.vertices, scale, background_depth=far)
        off = (out.silhouette - opaque, out.image - image, out.depth - depth)
        losses.append(torch.stack([d.square().mean() for d in off]))
    powers = torch.stack([factors**k for k in range(3)], -1)
    curves = torch.linalg.lstsq(powers, torch.stack(losses)).solution
    least = -curves[1] / (2 * curves[2])
    # Measured: 4e-4 to 4e-3, most for the box at 4 pixels
    assert (curves[2] > 0).all()
    assert float((least - 1).abs().max()) < 5e-3
