"""Fitting, its losses and the commands, on small scenes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from algonet.cli import render_commands
from algonet.render import Camera, Mesh, box, fit_camera, fit_mesh, icosphere, render_hard, rotation_error
from algonet.render.fitting import blur, rotation_matrix
from algonet.render.losses import image_l1, image_l2, silhouette_iou

EYES = torch.tensor([[0.0, 0.6, 2.6], [2.6, -0.5, 0.0], [0.0, 0.7, -2.6], [-2.6, 0.3, 0.2]])


def _wedge() -> Mesh:
    """A box with one corner pulled out and a colour gradient: no two views look the same."""
    mesh = box((1.2, 0.7, 0.5), segments=2)
    pulled = mesh.vertices + torch.tensor([0.0, 0.5, 0.2]) * (mesh.vertices[:, :1] > 0.3)
    return mesh.replace(vertices=pulled, vertex_colors=(mesh.vertices + 0.65) / 1.3)


def test_fit_mesh_shapes_a_sphere() -> None:
    cameras = Camera.look_at(EYES, fov=45.0)
    target = box((1.0, 0.6, 0.6))
    views = render_hard(target.vertices, target.faces, target.vertices, cameras, size=(32, 32))
    fit = fit_mesh(views.silhouette, cameras, icosphere(2, 0.6), steps=40, views=None)
    assert len(fit.history) == 40
    seen = render_hard(fit.mesh.vertices, fit.mesh.faces, fit.mesh.vertices, cameras, size=(32, 32))
    start = render_hard(icosphere(2, 0.6).vertices, fit.mesh.faces, fit.mesh.vertices, cameras, size=(32, 32))
    overlap, before = (1 - float(silhouette_iou(s.silhouette, views.silhouette)) for s in (seen, start))
    assert overlap > 0.85 > before
    assert fit.mesh.vertices.requires_grad is False


def test_fit_mesh_learns_colours() -> None:
    cameras = Camera.look_at(EYES[:2], fov=45.0)
    ball = icosphere(1, 0.7)
    views = render_hard(
        ball.vertices, ball.faces, torch.tensor([[0.9, 0.1, 0.1]]).expand(42, 3), cameras, size=(16, 16)
    )
    targets = torch.cat([views.image, views.silhouette[..., None]], -1)
    fit = fit_mesh(targets, cameras, ball, steps=40, scales=(1.0, 0.7), views=None)
    assert fit.mesh.vertex_colors is not None
    red, green, _ = fit.mesh.vertex_colors.mean(0)
    assert float(red) > 0.65 > 0.35 > float(green)


def test_fit_camera_turns_back() -> None:
    mesh = _wedge()
    true = Camera.look_at((0.5, 0.8, 2.6), fov=45.0)
    seen = render_hard(mesh.vertices, mesh.faces, mesh.vertex_colors, true, size=(32, 32))  # pyright: ignore[reportArgumentType]
    image = torch.cat([seen.image, seen.silhouette[..., None]], -1)
    start = Camera.look_at((2.0, 0.4, 1.9), fov=45.0)
    fit = fit_camera(mesh, image, start, steps=120)
    assert float(rotation_error(start, true)) > 30
    assert float(rotation_error(fit.camera, true)) < 8
    batch = fit_camera(mesh, seen.silhouette, Camera.look_at(EYES[:2], fov=45.0), steps=2, stages=2)
    assert batch.losses.shape == (2,)
    assert batch.camera.batch_shape == (2,)


def test_blur_is_what_the_renderer_tends_to() -> None:
    from algonet.relax import StudentT
    from algonet.render import FilteredCoverage, render_attributes

    mesh, camera = icosphere(3), Camera.look_at((0.0, 0.0, 3.0))
    arguments = (mesh.vertices, mesh.faces, mesh.vertices, camera)
    hard = render_hard(*arguments, size=(48, 48)).silhouette
    coverage = FilteredCoverage(StudentT(scale=2.0))
    soft = render_attributes(*arguments, size=(48, 48), coverage=coverage, two_sided=False).silhouette
    # The bounded sum rounds the step to 1 (by 0.08), and the hard outline is a staircase
    assert (blur(hard, 2.0) - soft).abs().max() < 0.12
    flat = torch.zeros(20, 20)
    flat[10, 10] = 1.0
    assert float(blur(flat, 1.0).sum()) == pytest.approx(1.0, abs=0.02)


def test_rotations_are_rotations() -> None:
    turns = torch.randn(6, 3, dtype=torch.float64)
    matrices = rotation_matrix(turns)
    assert torch.allclose(matrices @ matrices.mT, torch.eye(3, dtype=torch.float64).expand(6, 3, 3))
    assert torch.allclose(torch.linalg.det(matrices), torch.ones(6, dtype=torch.float64))


def test_picture_losses() -> None:
    a, b = torch.zeros(2, 4, 4), torch.zeros(2, 4, 4)
    a[:, :2], b[:, 1:3] = 1.0, 1.0
    # One row shared of three
    assert float(silhouette_iou(a, b)) == pytest.approx(2 / 3)
    assert float(image_l1(a, b)) == float(image_l2(a, b)) == 0.5
    with pytest.raises(ValueError, match=r"\(2, 4, 4\) and \(4, 4\)"):
        silhouette_iou(a, b[0])


def test_errors() -> None:
    cameras = Camera.look_at(EYES)
    with pytest.raises(ValueError, match="3 pictures, cameras of batch shape"):
        fit_mesh(torch.zeros(3, 8, 8), cameras)
    with pytest.raises(ValueError, match="RGBA"):
        fit_mesh(torch.zeros(4, 8, 8, 3), cameras)
    with pytest.raises(ValueError, match="RGBA"):
        fit_camera(icosphere(0), torch.zeros(8, 8, 3), cameras[0])


@pytest.fixture
def program() -> typer.Typer:
    app = typer.Typer()
    render_commands.register(app)
    return app


def test_render_command_writes_a_picture(program: typer.Typer, tmp_path: Path) -> None:
    from PIL import Image

    runner = CliRunner()
    for layer in ("rgb", "silhouette", "depth"):
        out = tmp_path / f"{layer}.png"
        result = runner.invoke(
            program, ["render", "box", "--out", str(out), "--size", "24", "--layer", layer, "--views", "2"]
        )
        assert result.exit_code == 0, result.output
        with Image.open(out) as picture:
            assert picture.size == (48, 24)
            assert len(picture.getcolors(10_000) or []) > 5
    assert sorted(p.name for p in tmp_path.iterdir()) == ["depth.png", "rgb.png", "silhouette.png"]
    result = runner.invoke(program, ["render", str(tmp_path / "none.obj")])
    assert result.exit_code == 1
    assert "no such file" in str(result.exception)


def test_fit_command_takes_meshes_and_pictures(program: typer.Typer, tmp_path: Path) -> None:
    runner = CliRunner()
    out = tmp_path / "fit.obj"
    arguments = ["--out", str(out), "--steps", "2", "--size", "16", "--level", "1"]
    result = runner.invoke(program, ["fit-mesh", "box", *arguments, "--views", "3"])
    assert result.exit_code == 0, result.output
    assert Mesh.load(out).faces.shape == (80, 3)
    pictures = tmp_path / "views"
    pictures.mkdir()
    with pytest.raises(ValueError, match="holds no pictures"):
        runner.invoke(program, ["fit-mesh", str(pictures), *arguments], catch_exceptions=False)
    runner.invoke(program, ["render", "box", "--out", str(pictures / "a.png"), "--size", "16"])
    result = runner.invoke(program, ["fit-mesh", str(pictures), *arguments])
    assert result.exit_code == 0, result.output
