"""The hard rasteriser against exact rational arithmetic, rays, and counting; its gradients; and its backends."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor

from algonet.core.backends import BACKENDS
from algonet.core.cache import VALUES
from algonet.render import Camera, box, icosphere, interpolate, rasterize, render_hard, torus
from algonet.render.functional import camera_points
from algonet.render.operation import VISIBLE
from algonet.render.visibility import VisibilitySettings
from helpers.interpreted import interpret

CPU = [backend for backend in BACKENDS if backend != "triton"]


def faces_seen(points: Tensor, faces: Tensor, size=(12, 15), backend="auto", near=0.1, **options) -> Tensor:
    """Of points (*B, V, 3): x w, y w and depth."""
    settings = VisibilitySettings(*size, **options)
    return VISIBLE([points, points.new_full(points.shape[:-2], near), faces], settings, backend)[0]


def scene(seed: int, count: int = 60, behind: bool = True) -> tuple[Tensor, Tensor]:
    """Triangles of every size with shared corners, many on pixels' centres or snapped to one place; some cross w = 0."""
    generator = torch.Generator().manual_seed(seed)
    screen = torch.randn(40, 2, generator=generator) * 8 + 7
    screen[:20] = (screen[:20] * 2).round() / 2
    depth = 1 + 3 * torch.rand(40, 1, generator=generator)
    if behind:
        depth[30:] = -depth[30:]
    faces = torch.randint(40, (count, 3), generator=generator)
    # Two faces in one place
    faces[-1] = faces[0]
    return torch.cat([screen * depth, depth], -1), faces


def exact_face(points: list[list[Fraction]], faces: list[list[int]], x: int, y: int) -> int:
    """The nearest face at a point (in units) by rational arithmetic; a point on an edge is moved right and, much less, down."""
    best, found = None, -1
    at = Fraction(x) + Fraction(1, 10**9), Fraction(y) + Fraction(1, 10**18)
    for number, face in enumerate(faces):
        corners = [points[v] for v in face]
        snapped = [tuple(math.floor(c / z * 256 + Fraction(1, 2)) for c in (cx, cy)) for cx, cy, z in corners]

        def area(a, b, c):
            return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])

        parts = [area(at, snapped[(i + 1) % 3], snapped[(i + 2) % 3]) for i in range(3)]
        whole = area(*snapped)
        if whole == 0 or any(part * whole < 0 for part in parts):
            continue
        parts = [area((x, y), snapped[(i + 1) % 3], snapped[(i + 2) % 3]) for i in range(3)]
        depth = whole / sum(part / corner[2] for part, corner in zip(parts, corners, strict=True))
        nearness = float(torch.tensor(float(depth), dtype=torch.float32))
        if nearness > 0.1 and (best is None or nearness < best):
            best, found = nearness, number
    return found


@pytest.mark.parametrize("backend", CPU)
def test_faces_are_those_of_exact_arithmetic(backend):
    for seed in range(3):
        points, faces = scene(seed, behind=False)
        exact, rows = [[Fraction(v) for v in row] for row in points.tolist()], faces.tolist()
        seen = faces_seen(points, faces, backend=backend)
        wanted = [[exact_face(exact, rows, 256 * c + 128, 256 * r + 128) for c in range(15)] for r in range(12)]
        assert seen.tolist() == wanted
        assert len(seen.unique()) > 8


@pytest.mark.parametrize("backend", CPU)
@pytest.mark.parametrize("perspective", [True, False])
def test_each_pixel_of_a_closed_surface_belongs_to_one_face(backend, perspective):
    """Of a convex body each pixel sees one front face and one back face or none, also where corners lie on pixels' centres."""
    ball, generator = icosphere(1), torch.Generator().manual_seed(1)
    make = Camera.look_at if perspective else Camera.orthographic
    for pose in range(6):
        eye = torch.nn.functional.normalize(torch.randn(3, generator=generator), dim=0) * 2.4
        points = camera_points(ball.vertices.double(), make(eye.double()), (16, 20))
        if pose % 2:
            w = points[:, 2:] if perspective else 1.0
            points[:, :2] = ((points[:, :2] / w - 0.5).round() + 0.5) * w
        counts = []
        for order in ([0, 1, 2], [0, 2, 1]):
            faces = ball.faces[:, order]
            seen = [
                faces_seen(points, face[None], (16, 20), backend, perspective=perspective, two_sided=False) >= 0
                for face in faces
            ]
            counts.append(torch.stack(seen).sum(0))
        if pose % 2 == 0:
            # Rounded corners make it a little less than convex
            assert set(counts[0].unique().tolist()) == {0, 1}
        assert torch.equal(*counts)
        assert torch.equal(
            counts[0] > 0, faces_seen(points, ball.faces, (16, 20), backend, perspective=perspective) >= 0
        )


@pytest.mark.parametrize("backend", CPU)
def test_cutting_a_sheet_changes_no_pixel(backend):
    """Faces of a sheet cut along whole pixels, halves and thirds have, together, the pixels of the sheet, each once."""
    for n, step in ((1, 12.0), (2, 6.0), (12, 1.0), (24, 0.5), (36, 1 / 3)):
        line = torch.arange(n + 1) * step + 1.5
        places = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1).reshape(-1, 2)
        points = torch.cat([places * 2.0, torch.full((len(places), 1), 2.0)], -1)
        first = (torch.arange(n)[:, None] * (n + 1) + torch.arange(n)).reshape(-1, 1)
        faces = torch.cat([first + torch.tensor([0, 1, n + 2]), first + torch.tensor([0, n + 2, n + 1])])
        seen = faces_seen(points, faces, (16, 16), backend)
        assert int((seen >= 0).sum()) == 144
        assert (seen[1:13, 1:13] >= 0).all()
        single = sum((faces_seen(points, face[None], (16, 16), backend) >= 0).long() for face in faces)
        assert torch.equal(single, (seen >= 0).long())


def hit_by_rays(corners: Tensor, rays: Tensor) -> tuple[Tensor, Tensor]:
    """Shares (F, P, 3) and depth (F, P) where rays (P, 3) through the eye meet the planes of faces (F, 3, 3)."""
    normal = torch.linalg.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    depth = (normal * corners[:, 0]).sum(-1)[:, None] / (normal @ rays.T)
    places = depth[..., None] * rays
    shares = [
        (torch.linalg.cross(corners[:, [i - 2]] - places, corners[:, [i - 1]] - places) * normal[:, None]).sum(-1)
        for i in range(3)
    ]
    return torch.stack(shares, -1) / normal.square().sum(-1)[:, None, None], depth


@pytest.mark.parametrize("backend", CPU)
def test_faces_that_cross_the_eye_are_clipped(backend):
    rows, columns = torch.meshgrid(torch.arange(12) + 0.5, torch.arange(15) + 0.5, indexing="ij")
    rays = torch.stack([columns, rows, torch.ones_like(rows)], -1).reshape(-1, 3).double()
    crossing = 0
    for seed in range(8):
        points, faces = scene(seed, 12)
        shares, depth = hit_by_rays(points.double()[faces], rays)
        sure = (shares.abs().amin(-1) > 1e-2).all(0)
        depth = torch.where((shares > 0).all(-1) & (depth > 0.3), depth, torch.inf)
        nearest, wanted = depth.min(0)
        wanted[nearest.isinf()] = -1
        second = depth.scatter(0, wanted.clamp_min(0)[None], torch.inf).amin(0)
        # Not where two faces in one place are seen, nor next to an edge
        sure &= (second - nearest).nan_to_num(1.0) > 1e-6
        seen = faces_seen(points, faces, backend=backend, near=0.3).reshape(-1)
        assert torch.equal(seen[sure], wanted[sure])
        behind = (points[faces][..., 2] < 0).any(-1)
        crossing += int(behind[seen[sure & (seen >= 0)]].sum())
    assert crossing > 50


def test_a_floor_under_the_eye_reaches_the_lower_edge():
    corners = torch.tensor([[-1e3, -1.0, 1e3], [1e3, -1.0, 1e3], [1e3, -1.0, -1e3], [-1e3, -1.0, -1e3]])
    camera = Camera.look_at((0.0, 0.0, 0.0), (0.0, 0.0, -1.0), fov=90.0)
    seen = rasterize(corners, torch.tensor([[0, 1, 2], [0, 2, 3]]), camera, size=(32, 24))
    assert (seen.faces[16:] >= 0).all()
    assert (seen.faces[:16] == -1).all()
    below = (torch.arange(16, 32) + 0.5 - 16) / 16
    torch.testing.assert_close(seen.depth[16:], (1 / below)[:, None].expand(-1, 24), rtol=1e-4, atol=0)
    near = rasterize(
        corners, torch.tensor([[0, 1, 2], [0, 2, 3]]), Camera(camera.matrix, camera.position, near=1.5), size=(32, 24)
    )
    assert torch.equal(near.faces >= 0, (seen.faces >= 0) & (seen.depth > 1.5))


@pytest.mark.parametrize("backend", CPU)
def test_the_first_of_equals_is_seen(backend):
    mesh, camera = box(), Camera.look_at((1.0, 2.0, 3.0))
    once = rasterize(mesh.vertices, mesh.faces, camera, size=(20, 20), backend=backend)
    twice = rasterize(mesh.vertices, torch.cat([mesh.faces, mesh.faces]), camera, size=(20, 20), backend=backend)
    assert torch.equal(once.faces, twice.faces)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("perspective", "two_sided"), [*product([True, False], repeat=2)])
def test_backends_see_the_same(dtype, perspective, two_sided):
    for seed in range(6):
        points, faces = scene(seed)
        batch = torch.stack([points, points + 0.3, points * 1e6, points * torch.tensor([1e9, 1.0, 1.0])]).to(dtype)
        batch[0, 5, 0], batch[1, 6, 1] = torch.nan, torch.inf
        found = [
            faces_seen(batch, own, (9, 21), backend, perspective=perspective, two_sided=two_sided)
            for backend, own in product(CPU, (faces, faces.int()))
        ]
        assert all(torch.equal(a, b) for a, b in pairwise(found))
        assert float((found[0] >= 0).float().mean()) > 0.2


def test_the_interpreter_sees_the_same():
    interpret("render.test_visibility:check_cuda_kernels")


def check_cuda_kernels() -> None:
    """They see what the reference sees: with places for all tiles, for some and for none."""
    from algonet.render.kernels.triton import visibility

    for seed, places in ((0, 1 << 16), (1, 5), (2, 0)):
        visibility.TILE, visibility.PLACES, visibility.PROGRAMS = 8, places, 3
        VALUES.clear()
        points, faces = scene(seed, 25)
        for dtype, perspective in ((torch.float32, True), (torch.float64, False)):
            batch = torch.stack([points, points * torch.tensor([1e9, 1.0, 1.0])]).to(dtype)
            found, wanted = (
                faces_seen(batch, faces, (9, 21), backend, perspective=perspective)
                for backend in ("triton", "reference")
            )
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("perspective", [True, False])
def test_interpolation_has_its_derivatives(perspective):
    mesh, generator = icosphere(0), torch.Generator().manual_seed(0)
    vertices = mesh.vertices.double() + 0.1 * torch.randn(mesh.vertices.shape, generator=generator)
    colors = torch.rand(2, 1, 12, 2, generator=generator, dtype=torch.float64)
    eyes = torch.tensor([[0.3, 0.5, 2.5], [2.0, -0.4, 0.7], [0.0, 1.0, 2.0]], dtype=torch.float64)
    cameras = (Camera.look_at if perspective else Camera.orthographic)(eyes)

    def picture(vertices: Tensor, colors: Tensor) -> tuple[Tensor, Tensor]:
        seen = rasterize(vertices, mesh.faces, cameras, size=(3, 4))
        return interpolate(colors, seen, mesh.faces), torch.where(seen.faces >= 0, seen.depth, 0.0)

    inputs = (vertices.requires_grad_(), colors.requires_grad_())
    assert picture(*inputs)[0].shape == (2, 3, 3, 4, 2)
    assert torch.autograd.gradcheck(picture, inputs)
    assert torch.autograd.gradgradcheck(picture, inputs)


def test_a_point_of_a_face_is_seen_where_it_is():
    """Interpolated vertices lie on the pixel's ray, at its depth; those of clipped faces, too."""
    mesh = torus(segments=(12, 8))
    for eye in ((0.6, 0.8, 2.4), (0.7, 0.05, 0.1)):
        camera = Camera.look_at(torch.tensor(eye, dtype=torch.float64), (0.0, 0.1, -0.3))
        seen = rasterize(mesh.vertices.double(), mesh.faces, camera, size=(24, 30))
        places = interpolate(mesh.vertices.double(), seen, mesh.faces)
        found = camera.project(places.reshape(-1, 3), (24, 30)).reshape(24, 30, 3)
        rows, columns = torch.meshgrid(torch.arange(24) + 0.5, torch.arange(30) + 0.5, indexing="ij")
        wanted = torch.stack([columns.double(), rows.double(), seen.depth], -1)
        off = (found - wanted)[seen.faces >= 0].abs().amax(-1)
        assert len(off) > 100
        # A face may be seen a 256th of a pixel outside of itself
        assert float(off.max()) < 1 / 128
        assert float((off < 1e-9).double().mean()) > 0.97


def test_nothing_is_not_a_number():
    points = torch.tensor(
        [[0.0, 0.0, -1.0], [0.0, 1e-30, -1.0], [1e-30, 0.0, -1.0], [torch.nan, 0.0, 0.0]], requires_grad=True
    )
    seen = rasterize(
        points, torch.tensor([[0, 1, 2], [0, 1, 3], [0, 0, 0]]), Camera.look_at((0.0, 0.0, 1.0)), size=(5, 5)
    )
    assert (seen.faces == -1).all()
    assert seen.depth.isinf().all()
    table = torch.tensor([[torch.inf], [torch.nan], [1.0], [2.0]])
    assert (interpolate(table, seen, torch.tensor([[0, 1, 2]] * 3)) == 0).all()
    # Slivers: shares stay shares, slopes finite
    generator = torch.Generator().manual_seed(3)
    thin = torch.randn(400, 3, generator=generator)
    thin[1::2] = thin[::2] + 1e-5 * torch.randn(200, 3, generator=generator)
    thin.requires_grad_()
    seen = rasterize(
        thin, torch.randint(400, (3000, 3), generator=generator), Camera.look_at((0.0, 0.0, 4.0)), size=(40, 40)
    )
    assert torch.allclose(seen.barycentrics.sum(-1), (seen.faces >= 0).float())
    assert float(seen.barycentrics.detach().min()) >= 0
    (slopes,) = torch.autograd.grad(seen.barycentrics.square().sum(), thin)
    assert slopes.isfinite().all()


def test_errors():
    mesh, camera = icosphere(0), Camera.look_at((0.0, 0.0, 3.0))
    seen = rasterize(mesh.vertices.expand(2, -1, -1), mesh.faces, camera, size=(4, 4))
    with pytest.raises(
        ValueError, match=r"interpolate: batches of attributes and fragments must broadcast: \(3,\) and \(2,\)"
    ):
        interpolate(torch.zeros(3, 12, 1), seen, mesh.faces)
    with pytest.raises(ValueError, match=r"interpolate: `faces` must index 5 vertices"):
        interpolate(torch.zeros(5, 1), seen, mesh.faces)
    with pytest.raises(ValueError, match="rasterize: the mesh is empty"):
        rasterize(torch.zeros(0, 3), mesh.faces, camera, size=(4, 4))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_sees_what_the_cpu_sees():
    for seed in range(6):
        points, faces = scene(seed)
        batch = torch.stack([points, points * 1e6])
        for perspective in (True, False):
            on = faces_seen(batch.cuda(), faces.cuda(), (300, 200), perspective=perspective)
            assert torch.equal(on.cpu(), faces_seen(batch, faces, (300, 200), perspective=perspective))
    ball, camera = icosphere(3, 0.7), Camera.look_at((0.4, 0.9, 2.3))
    seen = render_hard(ball.vertices, ball.faces, ball.vertices, camera, size=(64, 48))
    own = render_hard(ball.vertices.cuda(), ball.faces.cuda(), ball.vertices.cuda(), camera.to("cuda"), size=(64, 48))
    for found, wanted in zip(own, seen, strict=True):
        # Snapping is exact, the camera's product is not
        assert float(((found.cpu() - wanted).abs() < 1e-3).float().mean()) > 0.999
