"""The renderer: its hard limit, light and colour, batches, state, and its answers to bad input."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from algonet.relax import Anneal, BoundedSum, Logistic, StudentT, hardened, softness_report
from algonet.render import (
    AmbientLight,
    BlinnPhong,
    Camera,
    DirectionalLight,
    EuclideanCoverage,
    FilteredCoverage,
    Mesh,
    PointLight,
    SmoothRenderer,
    box,
    icosphere,
    render_attributes,
    render_hard,
    sample_texture,
    torus,
)

CAMERA = Camera.look_at((0.6, 0.8, 2.4), fov=50.0)
SHARP = FilteredCoverage(StudentT(scale=0.01))


def _nearly_everywhere(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    """Equal but for the pixels whose centres lie next to an edge."""
    return bool(((a - b).abs() < tolerance).float().mean() > 0.97)


@pytest.mark.parametrize("camera", [CAMERA, Camera.orthographic((0.6, 0.8, 2.4))], ids=["perspective", "orthographic"])
@pytest.mark.parametrize("two_sided", [True, False])
def test_small_scale_and_large_steepness_give_the_hard_rasteriser(camera: Camera, two_sided: bool) -> None:
    mesh = torus(segments=(24, 12))
    arguments = (mesh.vertices, mesh.faces, mesh.vertices, camera)
    # k even of a bounded sum tends to min(1, S)
    smooth = render_attributes(
        *arguments, size=(32, 40), coverage=SHARP, depth_steepness=60.0, conorm=BoundedSum(64), two_sided=two_sided
    )
    hard = render_hard(*arguments, size=(32, 40), two_sided=two_sided)
    # One layer has coverage 1, which a bounded sum of 64 shows as 2^(-1/64) = 0.989
    assert _nearly_everywhere(smooth.silhouette, hard.silhouette, 0.02)
    assert _nearly_everywhere(smooth.depth, hard.depth, 0.05)
    assert _nearly_everywhere(smooth.image, hard.image, 0.02)
    assert 0.1 < float(hard.silhouette.mean()) < 0.9


def test_hard_attributes_have_gradients() -> None:
    mesh = icosphere(1)
    colors = torch.rand(len(mesh.vertices), 3, requires_grad=True)
    out = render_hard(mesh.vertices, mesh.faces, colors, CAMERA, size=(12, 12), background=0.5)
    out.image.sum().backward()
    # Each seen pixel hands a total of 1 per channel to the corners of its face
    assert float(colors.grad.sum()) == pytest.approx(3 * float(out.silhouette.sum()), rel=1e-5)  # pyright: ignore[reportOptionalMemberAccess]


def test_the_two_shadings_agree_for_fine_meshes() -> None:
    mesh = icosphere(4).replace(vertex_colors=icosphere(4).vertices * 0.5 + 0.5)
    lights = [AmbientLight((0.2, 0.2, 0.2)), PointLight((2.0, 2.0, 2.0))]
    pictures = [
        SmoothRenderer((24, 24), FilteredCoverage(StudentT(scale=0.4)), shading=shading)(mesh, CAMERA, lights).rgb
        for shading in ("pixel", "vertex")
    ]
    assert (pictures[0] - pictures[1]).abs().max() < 0.05
    assert pictures[0].max() > 0.4


def test_light_comes_from_where_it_is_said_to() -> None:
    renderer = SmoothRenderer((17, 17), FilteredCoverage(StudentT(scale=0.3)))
    camera = Camera.look_at((0.0, 0.0, 3.0))
    ball = icosphere(3)
    down = renderer(ball, camera, [DirectionalLight((0.0, -1.0, 0.0), (1.0, 1.0, 1.0))]).rgb[..., 0]
    assert down[5, 8] > 3 * down[11, 8]
    left = renderer(ball, camera, [PointLight((-5.0, 0.0, 0.0), (1.0, 1.0, 1.0))]).rgb[..., 0]
    assert left[8, 5] > 3 * left[8, 11]
    near, far = (
        renderer(ball, camera, [PointLight((0.0, 0.0, z), (1.0, 1.0, 1.0), radius=1.0)]).rgb[8, 8, 0]
        for z in (2.0, 4.0)
    )
    # 1 / (1 + d^2) at distances 1 and 3
    assert float(near / far) == pytest.approx(5.0, rel=0.15)


def test_gloss_adds_a_highlight() -> None:
    camera = Camera.look_at((0.0, 0.0, 3.0))
    lights = [DirectionalLight((0.0, 0.0, -1.0), (0.5, 0.5, 0.5))]
    matt, glossy = (
        SmoothRenderer((17, 17), FilteredCoverage(StudentT(scale=0.3)), surface=surface)(
            icosphere(3), camera, lights
        ).rgb
        for surface in (SmoothRenderer.__init__.__kwdefaults__["surface"], BlinnPhong(40.0, 0.6))
    )
    added = (glossy - matt)[..., 0]
    assert float(added[8, 8]) == pytest.approx(0.3, abs=0.05)
    assert float(added[8, 3]) < 0.03


def test_face_colours_and_textures() -> None:
    camera = Camera.orthographic((0.0, 0.0, 3.0), height=2.0)
    corners = torch.tensor([[-1.0, -1.0, 0.0], [1.0, -1.0, 0.0], [1.0, 1.0, 0.0], [-1.0, 1.0, 0.0]])
    sheet = Mesh(corners, torch.tensor([[0, 1, 2], [0, 2, 3]]))
    white = [AmbientLight((1.0, 1.0, 1.0))]
    renderer = SmoothRenderer((16, 16), FilteredCoverage(StudentT(scale=0.1)), BoundedSum(64))
    colors = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    for shading in ("pixel", "vertex"):
        renderer.shading = shading
        rgb = renderer(sheet.replace(face_colors=colors), camera, white).rgb
        # The first face is the lower right half
        assert torch.allclose(rgb[12, 12], colors[0], atol=0.02)
        assert torch.allclose(rgb[3, 3], colors[1], atol=0.02)
    texture = torch.zeros(2, 2, 3)
    texture[0, 1] = 1.0
    textured = sheet.replace(uv=(corners[:, :2] + 1) / 2, texture=texture)
    rgb = renderer(textured, camera, white).rgb
    assert float(rgb[2, 13, 0]) > 0.9
    assert float(rgb[13, 13, 0]) < 0.1
    assert float(rgb[2, 2, 0]) < 0.1


def test_texture_lookup_is_differentiable_in_both() -> None:
    texture = torch.rand(5, 4, 2, dtype=torch.float64, requires_grad=True)
    uv = (torch.rand(1, 3, 3, 2, dtype=torch.float64) * 0.8 + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(sample_texture, (texture, uv))


def test_batches_of_meshes_cameras_and_both() -> None:
    meshes = icosphere(1).replace(vertices=torch.stack([icosphere(1).vertices, 0.5 * icosphere(1).vertices]))
    cameras = Camera.look_at(torch.tensor([[0.0, 0.0, 3.0], [3.0, 1.0, 0.0]]))
    for shading in ("pixel", "vertex"):
        renderer = SmoothRenderer((10, 12), shading=shading)
        both = renderer(meshes, cameras)
        for i in range(2):
            one = renderer(meshes.replace(vertices=meshes.vertices[i]), cameras[i])
            assert torch.allclose(both.rgb[i], one.rgb, atol=1e-5)
            assert torch.allclose(both.depth[i], one.depth, atol=1e-5)
        assert renderer(meshes, cameras[0]).rgb.shape == (2, 10, 12, 3)
        assert renderer(icosphere(1), cameras).silhouette.shape == (2, 10, 12)


def test_extra_attributes_come_along() -> None:
    mesh = icosphere(2)
    for shading in ("pixel", "vertex"):
        out = SmoothRenderer((9, 9), shading=shading)(mesh, CAMERA, attributes=mesh.vertices)
        expected = render_attributes(mesh.vertices, mesh.faces, mesh.vertices, CAMERA, size=(9, 9)).image
        assert torch.allclose(out.attributes, expected, atol=1e-5)
    assert SmoothRenderer((9, 9))(mesh, CAMERA).attributes.shape == (9, 9, 0)


def test_gradients_reach_everything() -> None:
    scale = torch.nn.Parameter(torch.tensor(0.8))
    steepness = torch.nn.Parameter(torch.tensor(4.0))
    renderer = SmoothRenderer((9, 9), FilteredCoverage(StudentT(scale=scale)), depth_steepness=steepness)
    vertices = icosphere(1).vertices.clone().requires_grad_()
    colors = torch.rand_like(vertices).requires_grad_()
    eye, lamp = torch.tensor([0.4, 0.9, 2.5], requires_grad=True), torch.tensor([1.0, 2.0, 2.0], requires_grad=True)
    mesh = icosphere(1).replace(vertices=vertices, vertex_colors=colors)
    out = renderer(mesh, Camera.look_at(eye), [AmbientLight(), PointLight(lamp)])
    (out.rgb.square().sum() + out.depth.sum()).backward()
    for t in (vertices, colors, eye, lamp, scale, steepness):
        assert t.grad is not None
        assert torch.isfinite(t.grad).all()
        assert float(t.grad.abs().max()) > 1e-6


def test_hidden_faces_have_gradients() -> None:
    small = box((0.5, 0.5, 0.5))
    front = small.vertices + torch.tensor([0.0, 0.0, 1.0])
    hidden = (small.vertices * 0.5 - torch.tensor([0.0, 0.0, 0.5])).requires_grad_()
    faces = torch.cat([small.faces, small.faces + 8])
    colors = torch.cat([torch.ones(8, 3), torch.zeros(8, 3)])
    out = render_attributes(torch.cat([front, hidden]), faces, colors, Camera.look_at((0.0, 0.0, 4.0)), size=(20, 20))
    out.image.sum().backward()
    assert float(hidden.grad.abs().max()) > 1e-4  # pyright: ignore[reportOptionalMemberAccess]


def test_softness_is_state() -> None:
    renderer = SmoothRenderer((8, 8), FilteredCoverage(StudentT(scale=3.0)))
    assert set(renderer.state_dict()) == {"scale", "depth_steepness"}
    other = SmoothRenderer((8, 8))
    other.load_state_dict(renderer.state_dict())
    assert float(other.scale) == 3.0
    anneal = Anneal(4.0, 1.0, 2, field="scale").attach(renderer)
    anneal.step()
    assert float(renderer.scale) == pytest.approx(2.0)
    mesh = icosphere(1)
    soft, sharper = (r(mesh, CAMERA).silhouette for r in (other, renderer))
    assert not torch.allclose(soft, sharper)
    euclidean = SmoothRenderer((8, 8), EuclideanCoverage(Logistic(3.0)))
    assert set(euclidean.state_dict()) == {"steepness", "depth_steepness"}
    assert euclidean(mesh, CAMERA).silhouette.max() > 0.9


def test_the_depth_steepness_is_a_softness_like_the_scale() -> None:
    renderer = SmoothRenderer((8, 8))
    before = renderer(icosphere(1), CAMERA).depth
    Anneal(2.0, 80.0, 1, field="depth_steepness").attach(renderer).step()
    assert (float(renderer.depth_steepness), float(renderer.scale)) == (80.0, 1.0)
    assert (renderer(icosphere(1), CAMERA).depth - before).abs().max() > 1e-3
    other = SmoothRenderer((8, 8), depth_steepness=torch.nn.Parameter(torch.tensor(3.0)))
    assert [name for name, _ in other.named_parameters()] == ["depth_steepness"]
    other.load_state_dict(renderer.state_dict())
    assert float(other.depth_steepness.detach()) == 80.0
    other(icosphere(1), CAMERA).depth.sum().backward()
    assert other.depth_steepness.grad is not None
    assert other.depth_steepness.grad.abs() > 0
    with hardened(renderer):
        assert float(renderer.relaxation("depth").steepness) == 80e3  # pyright: ignore[reportAttributeAccessIssue]


def test_softness_report_takes_a_renderer() -> None:
    class Ball(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.renderer = SmoothRenderer((8, 8), FilteredCoverage(StudentT(scale=4.0)))

        def forward(self, vertices: torch.Tensor) -> torch.Tensor:
            return self.renderer(icosphere(1).replace(vertices=vertices), CAMERA).silhouette

    report = softness_report(Ball(), icosphere(1).vertices)
    assert "scale" in report.suggestion
    assert report.softness == {"renderer.scale": 4.0, "renderer.depth_steepness": 20.0}
    assert math.isfinite(report.gap)


@pytest.mark.parametrize("grey", [0.4, torch.tensor(0.4), torch.full((3,), 0.4), [0.4, 0.4, 0.4]])
def test_one_number_is_a_grey_light(grey: Any) -> None:
    mesh, renderer = icosphere(0), SmoothRenderer((8, 8))
    expected = renderer(mesh, CAMERA, [AmbientLight((0.4, 0.4, 0.4)), PointLight(color=(0.4, 0.4, 0.4))]).rgb
    torch.testing.assert_close(renderer(mesh, CAMERA, [AmbientLight(grey), PointLight(color=grey)]).rgb, expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: AmbientLight("white"),
            "AmbientLight: `color` must be three finite numbers .*or one number, got 'white'",
        ),
        (lambda: AmbientLight(torch.rand(3, 2)), r"`color` must be .*got torch.float32 \(3, 2\)"),
        (lambda: DirectionalLight((0.0, 1.0)), r"DirectionalLight: `direction` must be three finite numbers"),
        (lambda: DirectionalLight((0.0, math.nan, 0.0)), r"`direction` must be three finite numbers"),
        (lambda: DirectionalLight(1.0), r"`direction` must be three finite numbers .*got 1.0"),
        (lambda: PointLight((0.0, 1.0)), r"PointLight: `position` must be three finite numbers"),
        (lambda: PointLight(radius=0.0), r"PointLight: `radius` must be positive and finite, got 0.0"),
        (lambda: PointLight(radius=torch.ones(())), r"PointLight: `radius` is a number and has no gradient"),
    ],
)
def test_lights_say_what_they_want(make: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


def test_errors() -> None:
    mesh = icosphere(0)
    arguments = (mesh.vertices, mesh.faces, mesh.vertices, CAMERA)
    with pytest.raises(ValueError, match=r"`size` must be \(height, width\)"):
        render_attributes(*arguments, size=(0, 4))
    with pytest.raises(ValueError, match="12 vertices, 5 rows"):
        render_attributes(mesh.vertices, mesh.faces, torch.rand(5, 3), CAMERA, size=(4, 4))
    with pytest.raises(ValueError, match="0 to 11"):
        render_attributes(mesh.vertices, mesh.faces + 1, mesh.vertices, CAMERA, size=(4, 4))
    with pytest.raises(ValueError, match="must have the attributes' 3 channels"):
        render_attributes(*arguments, size=(4, 4), background=torch.zeros(4))
    with pytest.raises(ValueError, match="`epsilon`"):
        render_attributes(*arguments, size=(4, 4), epsilon=0.0)
    with pytest.raises(ValueError, match="reference only"):
        render_attributes(*arguments, size=(4, 4), coverage=EuclideanCoverage(), backend="numba")
    with pytest.raises(ValueError, match="unknown backend 'cuda'"):
        render_attributes(*arguments, size=(4, 4), backend="cuda")
    with pytest.raises(ValueError, match="must broadcast"):
        render_attributes(
            mesh.vertices, mesh.faces, torch.rand(3, 12, 3), Camera.look_at(torch.rand(2, 3)), size=(4, 4)
        )
    broken = mesh.vertices.clone()
    broken[3, 1] = torch.nan
    renderer, wrong = SmoothRenderer((4, 4)), mesh.replace(vertices=broken)
    with pytest.raises(ValueError, match="1 of 12 vertices are NaN or infinite, the first at index 3"):
        renderer(wrong, CAMERA)
    with pytest.raises(ValueError, match="pixel, vertex"):
        SmoothRenderer((4, 4), shading="gouraud")
    for background in (None, "red", (1.0, 0.0), torch.rand(4, 4, 3), torch.rand(2, 3)):
        with pytest.raises(TypeError, match=r"`background` must be a number or \(red, green, blue\), got"):
            SmoothRenderer((4, 4), background=background)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"`lights` must hold lights such as AmbientLight\(\), got 'sun'"):
        renderer(mesh, CAMERA, ["sun"])  # pyright: ignore[reportArgumentType]
    for name, colors in (("vertex_colors", torch.rand(12, 1)), ("face_colors", torch.rand(20, 4))):
        with pytest.raises(ValueError, match=f"`{name}` must have three channels"):
            renderer(mesh.replace(**{name: colors}), CAMERA)
    with pytest.raises(ValueError, match=r"`texture` must have three channels, got \(4, 4, 4\)"):
        renderer(mesh.replace(uv=torch.rand(12, 2), texture=torch.rand(4, 4, 4)), CAMERA)
    with pytest.raises(TypeError, match="FilteredCoverage"):
        render_attributes(*arguments, size=(4, 4), coverage="soft")  # pyright: ignore[reportArgumentType]
