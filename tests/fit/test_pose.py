"""Cameras from pictures: from a start, without one, several at once, with their angle of view."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from algonet.fit.alignment import even_rotations, rotation_matrix, turn_around, variations
from algonet.fit.least_squares import LEAST_FACES
from algonet.fit.mesh import UNLIT
from algonet.fit.simplify import Sides, simplified, vertex_colors_of
from algonet.fit.targets import blur
from algonet.relax import StudentT
from algonet.render import (
    Camera,
    FilteredCoverage,
    Mesh,
    PoseSearch,
    SmoothRenderer,
    box,
    fit_camera,
    icosphere,
    rotation_error,
)
from fit.fitting_scenes import around, horned_ball, seen, wedge

QUICK = PoseSearch(rotations=32, steps=8, refine_steps=8, keep=4, size=24)


def _picture(mesh: Mesh, camera: Camera, size: int = 40) -> torch.Tensor:
    silhouette, colors, _, _ = seen(mesh, camera, size)
    return torch.cat([colors, silhouette[..., None]], -1)


def test_fit_camera_turns_back() -> None:
    mesh, true = wedge(), Camera.look_at((0.5, 0.8, 2.6), fov=45.0)
    start = Camera.look_at((2.0, 0.4, 1.9), fov=45.0)
    fit = fit_camera(mesh, _picture(mesh, true, 32), start, steps=16)
    assert float(rotation_error(start, true)) > 30
    assert float(rotation_error(fit.camera, true)) < 8
    assert fit.minima == []
    batch = fit_camera(mesh, _picture(mesh, true, 32)[..., 3], around(2), steps=2)
    assert batch.losses.shape == (2,)
    assert batch.camera.batch_shape == (2,)


def test_starts_step_to_where_the_size_is_right() -> None:
    """Half the distance, off the middle, with another lens: the silhouette's middle and area match before any gradient."""
    from algonet.fit.alignment import match_silhouettes, silhouette_moments

    mesh, true = wedge(), Camera.look_at(torch.tensor([[0.5, 0.8, 2.6]]), fov=45.0)
    picture = _picture(mesh, true, 48)
    start = Camera.look_at(torch.tensor([[0.5, 0.6, 6.0]]), torch.tensor([0.4, 0.2, 0.0]), fov=35.0)
    found = match_silhouettes(Sides(mesh, False), picture, start)
    assert float(rotation_error(found, start)) < 0.05
    seen_now, wanted = (silhouette_moments(seen(mesh, c, 48)[0], (48, 48)) for c in (found, true))
    assert torch.allclose(seen_now, wanted, atol=0.04)
    # Nothing can be told from an empty picture, or one that is cut off
    for other in (torch.zeros_like(picture), torch.ones_like(picture)):
        assert torch.equal(match_silhouettes(Sides(mesh, False), other, start).position, start.position)


def test_open_meshes_are_seen_from_both_sides() -> None:
    """Through the opening one sees the inside; the outline is that of the blurred picture, not a fatter one."""
    whole = horned_ball(2)
    cut = whole.replace(faces=whole.faces[whole.vertices[whole.faces].mean(1)[:, 2] < 0.3])
    assert whole.is_closed()
    assert not cut.is_closed()
    camera = Camera.look_at((0.3, 0.2, 2.8), fov=45.0)
    target = blur(seen(cut, camera, 32)[0], StudentT(scale=1.5))

    def error(silhouette: torch.Tensor) -> float:
        return float((silhouette.detach() - target).square().mean())

    renderer = SmoothRenderer(32, FilteredCoverage(StudentT(scale=1.5)))
    both, outside = (error(Sides(cut, open).seen(renderer, camera, UNLIT)[1]) for open in (True, False))
    assert both < 0.25 * outside
    # From the truth a short fit stays there; with the outside alone it is pulled away
    options = {"steps": 4, "scales": (1.5, 0.7)}
    here, away = (fit_camera(cut, seen(cut, camera, 32)[0], camera, two_sided=t, **options) for t in (None, False))
    assert here.history[-1]["loss"] < 0.5 * away.history[-1]["loss"]


def test_pose_without_a_start() -> None:
    """Two pictures at once, of cameras that lie nowhere near each other, off the middle and at other distances."""
    mesh = wedge()
    eyes = torch.tensor([[-1.5, 1.9, -1.0], [0.4, -2.5, 1.2]])
    true = Camera.look_at(eyes, torch.tensor([0.15, 0.0, 0.1]), torch.tensor([0.3, 1.0, -0.8]), fov=45.0)
    fit = fit_camera(mesh, _picture(mesh, true), fov=45.0, search=QUICK)
    assert bool((rotation_error(fit.camera, true) < 4).all())
    assert bool(((fit.camera.position - true.position).norm(dim=-1) < 0.25).all())
    assert len(fit.minima) == 2
    for minima, best in zip(fit.minima, fit.losses, strict=True):
        assert float(minima.losses[0]) == float(best)
        assert bool((minima.losses.diff() >= 0).all())


def test_a_picture_drawn_and_fitted_with_defaults_gives_its_pose() -> None:
    """Cameras and pictures are taken to have one angle of view; taken as 40 degrees, this picture's pose is 6 degrees off."""
    mesh, true = wedge(), Camera.look_at((0.5, 0.7, 1.5))
    fit = fit_camera(mesh, seen(mesh, true, 64)[0])
    assert float(rotation_error(fit.camera, true)) < 2


def test_search_around_a_start() -> None:
    """From 70 degrees away the descent alone ends elsewhere; a search around the start finds the pose, and says what else."""
    mesh, true = wedge(), Camera.look_at((0.5, 0.8, 2.6), fov=45.0)
    picture = _picture(mesh, true, 32)[..., 3]
    turn = torch.tensor([0.55, -0.35, 0.25])
    centre = (mesh.vertices.amin(0) + mesh.vertices.amax(0)) / 2
    start = turn_around(_one(true), rotation_matrix(turn)[None], centre)[0]
    assert 60 < float(rotation_error(start, true)) < 80
    lost = fit_camera(mesh, picture, start, steps=8)
    found = fit_camera(mesh, picture, start, steps=8, search=QUICK)
    assert float(rotation_error(lost.camera, true)) > 20
    assert float(rotation_error(found.camera, true)) < 8
    assert float(found.losses) < 0.2 * float(lost.losses)
    assert lost.minima == []
    assert len(found.minima[0].losses) > 1
    # No rotation is that near: the start alone is searched from
    alone = fit_camera(mesh, picture, start, steps=8, search=replace(QUICK, around=5.0))
    assert len(alone.minima[0].losses) == 1


def test_variations_hold_the_twin_that_looks_the_same_from_afar() -> None:
    """A shape with one plane of symmetry, askew: seen from far off, one of the mirrored cameras shows its outline again."""
    ball = icosphere(3)
    x, y, z = ball.vertices.unbind(-1)
    pear = torch.stack([0.9 * x + 0.5 * y * y, 0.3 * y * (1.5 + x), 0.5 * z * (1.2 + y)], -1)
    turn = rotation_matrix(torch.tensor([0.3, -0.2, 0.4]))
    mesh = ball.replace(vertices=pear @ turn.mT)
    camera = _one(Camera.look_at((20.0, 15.0, 33.0), fov=3.5))
    turns = variations(camera, mesh, 180.0)
    assert torch.allclose(turns @ turns.mT, torch.eye(3).expand_as(turns), atol=1e-5)
    assert bool((torch.linalg.det(turns) > 0.99).all())
    twins = turn_around(camera, turns[:, -3:], (mesh.vertices.amin(0) + mesh.vertices.amax(0)) / 2)
    here, there = seen(mesh, camera, 96)[0][0], seen(mesh, twins, 96)[0]
    overlaps = [_overlap_centred(here, twin) for twin in there]
    assert max(overlaps) > 0.95
    assert float(rotation_error(twins[int(torch.tensor(overlaps).argmax())], camera[0])) > 30
    # Near a start, only turns that stay there
    assert variations(camera, mesh, 90.0).shape[1] == len(turns[0]) - 3
    assert variations(camera, mesh, 5.0).shape[1] == 0


def _overlap_centred(a: torch.Tensor, b: torch.Tensor) -> float:
    """Intersection over union of silhouettes, the second moved to where the first is."""
    middle, other = ((image > 0.5).nonzero().float().mean(0) for image in (a, b))
    one, two = a > 0.5, b.roll((middle - other).round().int().tolist(), (0, 1)) > 0.5
    return float((one & two).sum() / (one | two).sum())


def test_distance_alone_keeps_the_mesh_in_the_middle() -> None:
    """With `move="distance"` the camera turns about the mesh's middle and moves along its view, whatever the picture says."""
    mesh, true = wedge(), Camera.look_at((0.5, 0.8, 2.6), fov=45.0)
    centre = (mesh.vertices.amin(0) + mesh.vertices.amax(0)) / 2
    picture = _picture(mesh, Camera.look_at((0.5, 0.8, 2.6), centre, fov=45.0), 32)[..., 3]
    start = Camera.look_at((2.0, 1.5, 3.9), centre, fov=45.0)
    free, along = (fit_camera(mesh, picture, start, steps=8, move=move).camera for move in (True, "distance"))
    across = [(camera.axes @ (camera.position - centre))[:2].norm() for camera in (free, along)]
    assert float(across[1]) < 1e-4 < 1e-3 < float(across[0])
    assert float(rotation_error(along, true)) < 8
    assert 2.2 < float((along.position - centre).norm()) < 3.4
    searched = fit_camera(mesh, picture, fov=45.0, move="distance", search=QUICK).camera
    assert float((searched.axes @ (searched.position - centre))[:2].norm()) < 1e-4
    assert float(rotation_error(searched, true)) < 8
    with pytest.raises(ValueError, match="`move` must be True, False or 'distance', got 'near'"):
        fit_camera(mesh, picture, move="near")  # pyright: ignore[reportArgumentType]


def test_the_search_refines_fine_meshes_simplified(monkeypatch) -> None:
    """More faces than small pictures show: only a simplified mesh is rendered in the search, the mesh itself after it."""
    ball, true = horned_ball(3), Camera.look_at((0.5, 0.8, 2.6), fov=45.0)
    counts: list[int] = []
    seen_by = Sides.seen
    monkeypatch.setattr(Sides, "seen", lambda s, *rest: counts.append(len(s.front.faces)) or seen_by(s, *rest))
    search = replace(QUICK, around=0.0, faces=300, refine_faces=700)
    found = fit_camera(ball, _picture(ball, true, 24), true, steps=2, search=search)
    assert float(rotation_error(found.camera, true)) < 5
    used = sorted(set(counts))
    assert len(used) == 3
    assert used[0] <= 300 < used[1] <= 700 < used[2] == len(ball.faces)


def test_shrunken_pictures_show_fewer_faces(monkeypatch) -> None:
    """Wide noise is fitted in small pictures, which show no more faces than they have pixels; the last ones show all."""
    ball, true = horned_ball(4), Camera.look_at((0.5, 0.8, 2.6), fov=45.0)
    shown: list[tuple[int, int]] = []
    seen_by = Sides.seen

    def noted(sides: Sides, renderer: SmoothRenderer, *rest):
        shown.append((renderer.size[0], len(sides.front.faces)))
        return seen_by(sides, renderer, *rest)

    monkeypatch.setattr(Sides, "seen", noted)
    # A descent alone keeps more than this ball has
    monkeypatch.setattr("algonet.fit.pose.DESCENT_FACES", LEAST_FACES)
    fit = fit_camera(ball, _picture(ball, true, 32), true, steps=3, scales=(8.0, 0.7))
    assert float(rotation_error(fit.camera, true)) < 2
    descent = shown[-6:]
    # Each stage begins with the derivatives; the last step of a stage looks at the loss alone
    assert [size for size, _ in descent] == [8, 8, 16, 16, 32, 32]
    assert all(100 < faces <= LEAST_FACES for size, faces in descent if size < 32)
    assert all(faces == len(ball.faces) for size, faces in descent if size == 32)


def test_turning_a_camera_around_is_turning_the_mesh() -> None:
    mesh, cameras = wedge(), around(2)
    centre, turns = torch.tensor([0.2, -0.1, 0.3]), rotation_matrix(torch.randn(3, 3))
    seen_from = turn_around(cameras, turns, centre)
    for i in range(6):
        camera, turn = i // 3, turns[i % 3]
        moved = (mesh.vertices - centre) @ turn.mT + centre
        wanted = cameras[camera].project(moved, (16, 16))
        assert torch.allclose(seen_from[i].project(mesh.vertices, (16, 16)), wanted, atol=1e-3)
        eye = (seen_from[i].position - centre) @ turn.mT + centre
        assert torch.allclose(eye, cameras[camera].position, atol=1e-5)


def _one(camera: Camera) -> Camera:
    return Camera(camera.matrix[None], camera.position[None])


def test_symmetric_objects_show_several_minima() -> None:
    """A brick looks the same from four sides: half turns about its axes."""
    brick = box((1.4, 0.9, 0.5), segments=2)
    true = Camera.look_at((1.0, 1.2, 2.2), fov=45.0)
    fit = fit_camera(brick, seen(brick, true, 40)[0], fov=45.0, search=QUICK)
    same = fit.minima[0].losses < 2 * fit.minima[0].losses[0] + 1e-4
    assert 2 <= int(same.sum()) <= 4
    good = fit.minima[0].cameras[same]
    axes = torch.eye(4)[:3, :3]
    turns = torch.stack([torch.diag(2 * a - 1) for a in axes] + [torch.eye(3)])
    for i in range(len(good.matrix)):
        turned = [_turned(true, t) for t in turns]
        assert min(float(rotation_error(good[i], t)) for t in turned) < 5


def _turned(camera: Camera, turn: torch.Tensor) -> Camera:
    rigid = torch.eye(4)
    rigid[:3, :3] = turn
    return Camera(camera.matrix @ rigid, turn.T @ camera.position)


def test_angle_of_view_is_learned() -> None:
    mesh = wedge()
    true = Camera.look_at((0.5, 0.9, 1.8), fov=60.0)
    start = Camera.look_at((0.8, 1.2, 2.5), fov=44.0)
    fit = fit_camera(mesh, _picture(mesh, true, 48), start, learn_fov=True, scales=(3, 0.7))
    focal = float(fit.camera.matrix[1, :3].norm())
    found = math.degrees(2 * math.atan(1 / focal))
    assert abs(found - 60) < 6
    assert float((fit.camera.position - true.position).norm()) < 0.25
    kept = fit_camera(mesh, _picture(mesh, true, 48), start, steps=3)
    assert float(kept.camera.matrix[1, :3].norm()) == pytest.approx(float(start.matrix[1, :3].norm()), rel=1e-5)


def test_rotations_are_rotations() -> None:
    matrices = torch.cat([rotation_matrix(torch.randn(6, 3, dtype=torch.float64)), even_rotations(50).double()])
    assert torch.allclose(matrices @ matrices.mT, torch.eye(3, dtype=torch.float64).expand(56, 3, 3), atol=1e-6)
    assert torch.allclose(torch.linalg.det(matrices), torch.ones(56, dtype=torch.float64), atol=1e-6)


def test_even_rotations_leave_no_hole() -> None:
    spread = even_rotations(400)
    others = rotation_matrix(torch.randn(200, 3, generator=torch.Generator().manual_seed(0)))
    cosine = (torch.einsum("aij,bij->ab", others, spread) - 1) / 2
    nearest = torch.rad2deg(torch.acos(cosine.clamp(-1, 1))).amin(1)
    # 400 balls of 26 degrees around them would fill all rotations without a gap, were they to fit perfectly
    assert float(nearest.max()) < 40


def test_simplified_meshes_look_alike() -> None:
    ball = icosphere(4)
    ball = ball.replace(face_colors=ball.face_normals() * 0.5 + 0.5)
    small = simplified(ball, 600)
    assert len(small.faces) <= 600
    assert small.vertex_colors is not None
    cameras = around(3)
    one, two = seen(ball, cameras, 32)[0], seen(small, cameras, 32)[0]
    assert float((one - two).abs().mean()) < 0.03
    # Means of vertices would shrink the ball, by 6 % of its area
    coarse = seen(simplified(ball, 300), cameras, 32)[0]
    assert 0.97 < float(coarse.sum() / one.sum()) < 1.03
    assert vertex_colors_of(icosphere(1)) is None
    assert len(simplified(icosphere(1), 600).faces) == 80


def test_errors() -> None:
    cameras = around(4)
    with pytest.raises(ValueError, match="RGBA"):
        fit_camera(icosphere(0), torch.zeros(8, 8, 3), cameras[0])
    with pytest.raises(TypeError, match="floating tensor"):
        fit_camera(icosphere(0), torch.zeros(8, 8, dtype=torch.uint8), cameras[0])
    with pytest.raises(ValueError, match="3 pictures, starts of batch shape"):
        fit_camera(icosphere(0), torch.zeros(3, 8, 8, 1), cameras)
    for shape in ((3, 8, 8), (4, 8, 8), (2, 3, 8, 8)):
        with pytest.raises(ValueError, match=r"channels come last: image.movedim\(-3, -1\)"):
            fit_camera(icosphere(0), torch.rand(shape))
    with pytest.raises(ValueError, match="holds values that are not finite"):
        fit_camera(icosphere(0), torch.full((8, 8), float("nan")))
    with pytest.raises(ValueError, match="shows nothing"):
        fit_camera(icosphere(0), torch.zeros(8, 8))
    with pytest.raises(ValueError, match="leave `move` on"):
        fit_camera(icosphere(0), torch.zeros(8, 8), move=False)
    with pytest.raises(ValueError, match=r"fit_camera: `fov` is .* in degrees"):
        fit_camera(icosphere(0), torch.zeros(8, 8), fov=0.8)
    with pytest.raises(ValueError, match="`keep` must be an integer from 1 on"):
        PoseSearch(keep=0)
    with pytest.raises(ValueError, match=r"in \[0, 180\], got 200"):
        PoseSearch(around=200.0)
