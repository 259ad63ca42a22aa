"""Textures as the renderer shows them: C-infinity, at the level that pixels and noise ask for, right across seams."""

from __future__ import annotations

import pytest
import torch
import trimesh

from algonet.relax import BoundedSum, Logistic, StudentT
from algonet.render import (
    AmbientLight,
    Camera,
    EuclideanCoverage,
    FilteredCoverage,
    Mesh,
    SmoothRenderer,
    Targets,
    fit_texture,
    icosphere,
    sample_pyramid,
    sample_texture,
)
from algonet.render.textures import cut_faces
from fit.fitting_scenes import around, seen

WHITE = (AmbientLight((1.0, 1.0, 1.0)),)
SHEET = torch.tensor([[-1.0, -1.0, 0.0], [1.0, -1.0, 0.0], [1.0, 1.0, 0.0], [-1.0, 1.0, 0.0]])
FACES = torch.tensor([[0, 1, 2], [0, 2, 3]])


def sheet(texture: torch.Tensor) -> Mesh:
    return Mesh(SHEET.to(texture), FACES, uv=(SHEET[:, :2].to(texture) + 1) / 2, texture=texture)


def checkerboard(n: int) -> torch.Tensor:
    i = torch.arange(n)
    return ((i[:, None] + i) % 2).float()[..., None].expand(n, n, 3).contiguous()


def test_lookup_is_smooth_in_texture_uv_and_level() -> None:
    texture = torch.rand(5, 4, 2, dtype=torch.float64, requires_grad=True)
    uv = (torch.rand(1, 6, 2, dtype=torch.float64) * 1.4 - 0.2).requires_grad_()
    level = (torch.rand(1, 6, dtype=torch.float64) * 2.5).requires_grad_()
    assert torch.autograd.gradcheck(sample_pyramid, (texture, uv, level))
    assert torch.autograd.gradgradcheck(sample_pyramid, (texture, uv, level))


def test_two_derivatives_are_continuous_across_texels_and_levels() -> None:
    """Along a straight path through uv and levels, second differences change by little; bilinear slopes jump."""
    texture = torch.rand(8, 8, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    t = torch.linspace(0, 1, 4001, dtype=torch.float64)
    uv = torch.stack([0.1 + 0.7 * t, 0.2 + 0.5 * t], -1)[None]

    def jumps(values: torch.Tensor) -> float:
        slope = values[0, :, 0].diff() * 4000
        return float(slope.diff().abs().max() / slope.abs().max())

    assert jumps(sample_pyramid(texture, uv, (0.5 + 1.8 * t)[None])) < 0.05
    assert jumps(sample_texture(texture, uv)) > 0.2


def test_lookup_keeps_constants_gradients_and_means() -> None:
    uv = torch.rand(1, 50, 2) * 0.5 + 0.25
    flat = torch.full((7, 9, 3), 0.3)
    assert torch.allclose(sample_pyramid(flat, uv, torch.full((1, 50), 1.3)), torch.full((1, 50, 3), 0.3))
    ramp = ((torch.arange(16) + 0.5) / 16)[None, :, None].expand(16, 16, 1)
    found = sample_pyramid(ramp, uv, torch.zeros(1, 50))[..., 0]
    # A hundredth of a texel
    assert (found - uv[..., 0]).abs().max() < 0.01 / 16 * 1.5
    noise = torch.rand(16, 16, 1)
    last = sample_pyramid(noise, uv, torch.full((1, 50), 99.0))
    assert torch.allclose(last, noise.mean().expand_as(last), atol=1e-6)
    beyond = torch.tensor([[[1e30, 0.5], [-1e30, 0.5]]])
    assert torch.isfinite(sample_pyramid(noise, beyond, torch.zeros(1, 2))).all()


def test_each_item_of_a_batch_has_its_own_texture() -> None:
    textures, uv, level = torch.rand(2, 6, 6, 3), torch.rand(2, 3, 4, 2), torch.rand(2, 3, 4) * 3
    both = sample_pyramid(textures, uv, level)
    for i in range(2):
        assert torch.allclose(both[i], sample_pyramid(textures[i], uv[i], level[i]), atol=1e-6)
    assert torch.allclose(torch.vmap(sample_pyramid)(textures, uv, level), both, atol=1e-6)
    with pytest.raises(ValueError, match="sample_pyramid: `texture` must be"):
        sample_pyramid(textures, uv[0], level[0])


def spread_under_shifts(draw) -> float:
    """The variance of the mean colour when the camera moves by fractions of a pixel (a quarter of a unit)."""
    places = [(0.005 * i, 0.003 * i) for i in range(8)]
    return float(
        torch.stack([draw(Camera.orthographic((x, y, 3.0), (x, y, 0.0), height=8.0)) for x, y in places]).var()
    )


def test_a_fine_checkerboard_far_away_does_not_alias() -> None:
    """Eight squares to a pixel, in step with the pixels: looked up as it is, the whole board flickers."""
    board, renderer = sheet(checkerboard(64)), SmoothRenderer(32, FilteredCoverage(StudentT(scale=0.3)), BoundedSum(32))

    def smooth(camera: Camera) -> torch.Tensor:
        return renderer(board, camera, WHITE).rgb[14:18, 14:18].mean()

    def bilinear(camera: Camera) -> torch.Tensor:
        assert board.texture is not None
        out = renderer(board.replace(texture=None), camera, WHITE, board.uv)
        uv = out.attributes / out.silhouette[..., None].clamp_min(1e-5)
        return sample_texture(board.texture, uv)[14:18, 14:18].mean()

    assert spread_under_shifts(bilinear) > 1e-3
    # Measured: 0.02 and below 1e-9
    assert spread_under_shifts(smooth) < 1e-4 * spread_under_shifts(bilinear)
    rgb = renderer(board, Camera.orthographic((0.0, 0.0, 3.0), height=8.0), WHITE).rgb[14:18, 14:18]
    assert (rgb - 0.5).abs().max() < 0.03


def test_near_textures_are_sharp_and_noise_blurs_them() -> None:
    """As far as it blurs faces of one colour each: the same board cut into pieces is the truth."""
    board = sheet(torch.rand(24, 24, 3, generator=torch.Generator().manual_seed(0)))
    camera, inner = Camera.orthographic((0.0, 0.0, 3.0), height=2.0), slice(12, 36)
    sharp = SmoothRenderer(48, FilteredCoverage(StudentT(scale=0.1)), BoundedSum(32))(board, camera, WHITE).rgb
    assert board.texture is not None
    # Two pixels to a texel, and the lookup itself smooths by half a texel; one grey for all would be 0.25 away
    assert float((sharp[::2, ::2] - board.texture).abs().mean()) < 0.16
    for scale in (2.0, 4.0):
        renderer = SmoothRenderer(48, FilteredCoverage(StudentT(scale=scale)), BoundedSum(32))
        levels, pieces = (renderer(board.replace(seamless=s), camera, WHITE).rgb[inner, inner] for s in (True, False))
        assert (levels - pieces).square().mean() < 0.1 * (sharp[inner, inner] - pieces).square().mean(), scale


@pytest.mark.parametrize("backend", ["numba", "reference"])
def test_gradients_through_levels_are_those_of_finite_differences(backend: str) -> None:
    texture = torch.rand(8, 8, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    board = sheet(texture)
    eye = torch.tensor([0.4, 0.3, 3.0], dtype=torch.float64)
    weights = torch.rand(9, 10, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def picture(vertices: torch.Tensor, texture: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        renderer = SmoothRenderer((9, 10), FilteredCoverage(StudentT(scale=scale)), epsilon=1e-12, backend=backend)
        mesh = board.replace(vertices=vertices, texture=texture)
        options = torch.func.functional_call(renderer.double(), {"scale": scale}, (mesh, Camera.look_at(eye)))
        return (options.rgb * weights).sum()

    inputs = (board.vertices.clone(), texture, torch.tensor(0.8, dtype=torch.float64))
    slopes = torch.func.grad(picture, argnums=(0, 1, 2))(*inputs)
    for k, (place, slope) in enumerate(zip(inputs, slopes, strict=True)):
        way = torch.randn(place.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(k))
        step = 1e-5
        above, below = (picture(*(p + s * step * way if i == k else p for i, p in enumerate(inputs))) for s in (1, -1))
        expected = (above - below) / (2 * step)
        assert (slope * way).sum() == pytest.approx(float(expected), rel=1e-5), k


@pytest.fixture(scope="module")
def painted() -> Mesh:
    """A coarse ball in an atlas of faces, with stripes finer than its faces."""
    cameras = around(12)
    fine = icosphere(5, 0.8)
    fine = fine.replace(vertex_colors=0.5 + 0.45 * torch.sin(12 * fine.vertices))
    silhouettes, colors, _, _ = seen(fine, cameras, 96)
    return fit_texture(
        icosphere(2, 0.8), Targets(cameras, rgb=torch.cat([colors, silhouettes[..., None]], -1)), size=400
    )


def test_an_atlas_looks_right(painted: Mesh) -> None:
    """Neighbouring faces lie far apart in the atlas: colours are mixed where they meet, uv are not."""
    assert painted.seamless is False
    camera = around(5, start=0.6)[2]
    truth = icosphere(5, 0.8)
    silhouette, colors, _, _ = seen(
        truth.replace(vertex_colors=0.5 + 0.45 * torch.sin(12 * truth.vertices)), camera, 96
    )
    inner = torch.nn.functional.avg_pool2d(silhouette[None], 9, 1, 4)[0] > 0.99
    renderer = SmoothRenderer(96, FilteredCoverage(StudentT(scale=0.4)), BoundedSum(32), two_sided=False)
    error = float((renderer(painted, camera, WHITE).rgb - colors).abs()[inner].mean())
    mixed = float((renderer(painted.replace(seamless=True), camera, WHITE).rgb - colors).abs()[inner].mean())
    assert error < 0.04
    assert mixed > 3 * error


@pytest.mark.parametrize("name", ["ball.obj", "ball.glb"])
def test_other_programs_see_the_same_colours(painted: Mesh, tmp_path, name: str) -> None:
    painted.save(tmp_path / name)
    loaded = trimesh.load(tmp_path / name, force="mesh", process=False)
    assert painted.uv is not None
    assert painted.uv_faces is not None
    assert painted.texture is not None
    shares = torch.tensor([[0.6, 0.3, 0.1], [1 / 3, 1 / 3, 1 / 3]])
    theirs = torch.tensor(loaded.visual.uv).float()[torch.tensor(loaded.faces).long()]
    image = getattr(loaded.visual.material, "image", None) or loaded.visual.material.baseColorTexture
    picture = torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8)
    picture = picture.reshape(image.height, image.width, 3) / 255
    ours = painted.uv[painted.uv_faces]
    for row in shares:
        there = sample_texture(picture, torch.einsum("i,fic->fc", row, theirs)[None])
        here = sample_texture(painted.texture.clamp(0, 1), torch.einsum("i,fic->fc", row, ours)[None])
        assert (there - here).abs().max() < 0.02
    back = Mesh.load(tmp_path / name)
    assert len(back.vertices) == len(painted.vertices)
    camera = around(1)[0]
    renderer = SmoothRenderer(32)
    assert (renderer(back, camera).rgb - renderer(painted, camera).rgb).abs().max() < 0.02


def test_fine_stripes_of_an_atlas_are_grey_far_away() -> None:
    """Eight stripes to a pixel, on faces that lie apart in the atlas: looked up as they are, they flicker."""
    stripes = (torch.arange(256) % 2).float()[None, :, None].expand(256, 256, 3)
    vertices = torch.tensor([[-1.0, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]])
    uv = torch.tensor([[0.0, 0], [0.48, 0], [0.48, 1], [0.52, 0], [1, 1], [0.52, 1]])
    faces, uv_faces = torch.tensor([[0, 1, 2], [0, 2, 3]]), torch.tensor([[0, 1, 2], [3, 4, 5]])
    mesh = Mesh(vertices, faces, uv=uv, uv_faces=uv_faces, texture=stripes)
    assert mesh.seamless is False
    renderer = SmoothRenderer(16, FilteredCoverage(StudentT(scale=0.3)))
    for turn in (0.0, 0.013, 0.05):
        out = renderer(mesh, Camera.look_at((turn, 0.0, 2.2)), WHITE)
        inner = out.rgb[5:11, 5:11]
        assert (inner - 0.5).abs().max() < 0.03


def test_uv_of_an_atlas_have_smooth_gradients() -> None:
    """Moved by small steps, the slope of the picture changes in proportion: bilinear lookups jump between texels."""
    texture = torch.rand(8, 8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    faces = torch.tensor([[0, 1, 2]])
    vertices = torch.tensor([[-1.0, -1, 0], [1, -1, 0], [0, 1, 0]], dtype=torch.float64)
    base = torch.tensor([[0.1, 0.1], [0.6, 0.15], [0.3, 0.7]], dtype=torch.float64)
    slopes = []
    for step in range(161):
        uv = (base + 0.002 * step * torch.tensor([1.0, 0.0])).requires_grad_()
        mesh = Mesh(vertices, faces, uv=uv, uv_faces=faces, texture=texture, seamless=False)
        table = cut_faces(mesh, (8, 8), None).table
        slopes.append(torch.autograd.grad(table[:4].sum(), uv)[0].sum(0))
    change = torch.stack(slopes).diff(dim=0).norm(dim=-1)
    assert change.max() < 0.25 * torch.stack(slopes).norm(dim=-1).max()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_uv_that_are_no_places_are_refused(value: float) -> None:
    mesh = sheet(torch.rand(4, 4, 3))
    with pytest.raises(ValueError, match="`uv` must be numbers of at most 1e\\+06"):
        mesh.replace(uv=torch.full_like(mesh.uv, value))


def test_pieces_are_the_same_surface(painted: Mesh) -> None:
    pieces = cut_faces(painted, (16, 16), painted.vertices)
    assert len(pieces.faces) == len(painted.faces) * 49
    assert torch.allclose(pieces.table[:, 3:], pieces.vertices, atol=1e-6)
    whole = Mesh(pieces.vertices, pieces.faces)
    assert torch.allclose(
        whole.face_normals().reshape(len(painted.faces), -1, 3),
        painted.face_normals()[:, None].expand(-1, 49, 3),
        atol=1e-3,
    )
    camera, renderer = around(1)[0], SmoothRenderer(16)
    plain = painted.replace(texture=None, uv=None, uv_faces=None, vertex_colors=None)
    one, two = renderer(painted, camera, WHITE), renderer(plain, camera, WHITE)
    assert (one.silhouette - two.silhouette).abs().max() < 1e-4
    assert (one.depth - two.depth).abs().max() < 2e-2


def test_pieces_have_gradients(painted: Mesh) -> None:
    texture = torch.nn.Parameter(painted.texture)  # pyright: ignore[reportArgumentType]
    vertices = torch.nn.Parameter(painted.vertices)
    out = SmoothRenderer(16)(painted.replace(vertices=vertices, texture=texture), around(1)[0], WHITE, vertices)
    out.rgb.square().sum().backward()
    assert texture.grad is not None
    assert vertices.grad is not None
    assert out.attributes.shape == (16, 16, 3)
    assert (texture.grad != 0).any()
    assert torch.isfinite(vertices.grad).all()
    assert vertices.grad.abs().max() > 0


def test_seams_are_found() -> None:
    board = sheet(torch.rand(4, 4, 3))
    assert board.seamless
    shared, uv = FACES.clone(), board.uv
    assert uv is not None
    assert board.replace(uv_faces=shared).seamless
    assert board.replace(uv=torch.cat([uv, uv]), uv_faces=torch.stack([FACES[0], FACES[1] + 4])).seamless is False
    assert board.replace(uv_faces=shared, vertices=board.vertices * 2).seamless
    assert Mesh(SHEET, FACES).seamless is None


@pytest.mark.parametrize("pieces", [False, True])
def test_textured_meshes_compile_without_a_break(pieces: bool) -> None:
    board, renderer = sheet(torch.rand(4, 4, 3)), SmoothRenderer(8)
    board = board.replace(seamless=not pieces)
    camera = Camera.look_at((0.3, 0.2, 3.0))

    def run(vertices: torch.Tensor) -> torch.Tensor:
        return renderer(board.replace(vertices=vertices), camera).rgb

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(board.vertices), run(board.vertices), atol=1e-5)


def test_any_coverage_shows_textures() -> None:
    board, camera = sheet(checkerboard(2)), Camera.orthographic((0.0, 0.0, 3.0), height=2.0)
    for squared in (False, True):
        rgb = SmoothRenderer(16, EuclideanCoverage(Logistic(4.0), squared=squared))(board, camera, WHITE).rgb
        assert float((rgb[4, 4] - rgb[4, 11]).abs().mean()) > 0.5
