"""Textures from pictures, and the files they are saved to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from algonet.fit.texture import face_atlas
from algonet.render import Camera, Mesh, Targets, fit_texture, icosphere, render_hard, sample_texture
from fit.fitting_scenes import around, seen


def _painted_ball() -> Mesh:
    ball = icosphere(4, 0.8)
    return ball.replace(vertex_colors=0.5 + 0.45 * torch.sin(6 * ball.vertices))


def _drawn(mesh: Mesh, camera: Camera, size: int) -> torch.Tensor:
    """The textured mesh, each pixel with the uv of the one face it sees."""
    assert mesh.uv is not None
    assert mesh.texture is not None
    rows = mesh.faces if mesh.uv_faces is None else mesh.uv_faces
    out = render_hard(mesh.vertices, mesh.faces, mesh.uv, camera, size=(size, size), attribute_faces=rows)
    return sample_texture(mesh.texture, out.image)


@pytest.fixture(scope="module")
def painted() -> Mesh:
    """A coarse ball with the colours of a fine one: they must come from the pictures, not from vertices."""
    cameras = around(12)
    silhouettes, colors, _, _ = seen(_painted_ball(), cameras, 96)
    targets = Targets(cameras, rgb=torch.cat([colors, silhouettes[..., None]], -1))
    return fit_texture(icosphere(3, 0.8), targets, size=300)


def test_texture_shows_the_pictures(painted: Mesh) -> None:
    camera = around(5, start=0.6)[2]
    silhouette, colors, _, _ = seen(_painted_ball(), camera, 96)
    inner = torch.nn.functional.avg_pool2d(silhouette[None], 5, 1, 2)[0] > 0.99
    assert float((_drawn(painted, camera, 96) - colors).abs()[inner].mean()) < 0.02


@pytest.mark.parametrize("name", ["ball.obj", "ball.glb"])
def test_saved_textures_come_back(painted: Mesh, tmp_path: Path, name: str) -> None:
    painted.save(tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == (
        ["ball.glb"] if name.endswith("glb") else ["ball.mtl", "ball.obj", "ball.png"]
    )
    back = Mesh.load(tmp_path / name)
    camera = around(5)[1]
    assert float((_drawn(back, camera, 64) - _drawn(painted, camera, 64)).abs().mean()) < 0.01


def test_saving_over_a_texture_replaces_it(painted: Mesh, tmp_path: Path) -> None:
    assert painted.texture is not None
    painted.save(tmp_path / "a.obj")
    painted.replace(texture=torch.zeros_like(painted.texture)).save(tmp_path / "a.obj")
    texture = Mesh.load(tmp_path / "a.obj").texture
    assert texture is not None
    assert float(texture.max()) == 0
    painted.save(tmp_path / "a.ply")
    assert Mesh.load(tmp_path / "a.ply").texture is None


def test_what_no_view_sees_keeps_its_colours() -> None:
    ball = icosphere(2, 0.8)
    cameras = Camera.look_at(torch.tensor([[0.0, 0.0, 3.0]]))
    rgb = torch.tensor([0.0, 1.0, 0.0]).expand(1, 32, 32, 3)
    blue = ball.replace(vertex_colors=torch.tensor([0.0, 0.0, 1.0]).expand(162, 3))
    texture = fit_texture(blue, Targets(cameras, rgb=rgb), size=128)
    front, back = (_drawn(texture, Camera.look_at((0.0, 0.0, z)), 16)[8, 8] for z in (3.0, -3.0))
    assert torch.allclose(front, torch.tensor([0.0, 1.0, 0.0]), atol=0.02)
    assert torch.allclose(back, torch.tensor([0.0, 0.0, 1.0]), atol=0.02)


@pytest.mark.parametrize(("faces", "size"), [(1, 8), (2, 16), (7, 40), (80, 97)])
def test_atlas_texels_belong_to_their_faces(faces: int, size: int) -> None:
    """A bilinear lookup anywhere in a face meets only texels of that face."""
    atlas = face_atlas(faces, size, torch.zeros(1))
    owner = torch.full((size * size,), -1.0)
    owner[atlas.texel] = atlas.face.float()
    shares = torch.rand(50, 3, generator=torch.Generator().manual_seed(0))
    shares = torch.cat([shares / shares.sum(1, keepdim=True), torch.eye(3)])
    uv = torch.einsum("si,fix->fsx", shares, atlas.uv[atlas.uv_faces])
    found = sample_texture(owner.reshape(size, size, 1), uv)[..., 0]
    assert torch.allclose(found, torch.arange(faces)[:, None].float().expand_as(found), atol=1e-4)


def test_errors() -> None:
    cameras = around(2)
    with pytest.raises(ValueError, match="must have `rgb`"):
        fit_texture(icosphere(1), Targets(cameras, silhouettes=torch.zeros(2, 8, 8)))
    with pytest.raises(ValueError, match="80 faces need a texture of at least 42 x 42 texels, got 32"):
        fit_texture(icosphere(1), Targets(cameras, rgb=torch.zeros(2, 8, 8, 3)), size=32)
