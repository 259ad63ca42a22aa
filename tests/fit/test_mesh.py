"""Meshes from pictures, small: what is reached, what is learned, and that a fit can be stopped and gone on with."""

from __future__ import annotations

import pytest
import torch

from algonet.render import (
    AmbientLight,
    Camera,
    DirectionalLight,
    LargeSteps,
    Mesh,
    MeshFitter,
    MeshWeights,
    Remesh,
    SmoothRenderer,
    Targets,
    fit_camera,
    fit_mesh,
    fit_texture,
    icosphere,
    mesh_quality,
    render_hard,
)
from fit.fitting_scenes import around, horned_ball, normal_error, overlap, targets_of

#: Cameras that no fit below has seen.
UNSEEN = around(6, start=1.0)


def test_silhouettes_and_normals_give_the_shape() -> None:
    """The setting of the benchmark in small: a tenth of the steps, at 40 x 40 pixels."""
    target = horned_ball()
    targets = targets_of(target, around(10), 40, "silhouettes", "normals")
    fit = fit_mesh(targets, template=icosphere(2, 0.5), remesh=Remesh(), steps=60, views=4, scales=(2.5, 0.7))
    assert overlap(fit.mesh, target, UNSEEN) > 0.9
    # The ball it begins with is 24 degrees off
    assert normal_error(fit.mesh, target, UNSEEN) < 15
    assert fit.quality.share == 0
    assert fit.quality == mesh_quality(fit.mesh)
    # Faces came where the noise's scale asks for them
    assert fit.history[0]["faces"] == 320
    assert fit.history[-1]["faces"] == len(fit.mesh.faces) > 640
    assert len(fit.history) == 60
    assert fit.mesh.vertices.requires_grad is False


def test_colours_give_shape_and_colours() -> None:
    target = horned_ball()
    targets = targets_of(target, around(10), 40, "rgb")
    fit = fit_mesh(targets, template=icosphere(2, 0.5), remesh=Remesh(), steps=60, views=4, scales=(2.5, 0.7))
    assert overlap(fit.mesh, target, UNSEEN) > 0.9
    assert fit.quality.share < 0.001
    assert fit.mesh.vertex_colors is not None
    wanted = 0.5 + 0.45 * torch.sin(3 * fit.mesh.vertices)
    assert float((fit.mesh.vertex_colors - wanted).abs().mean()) < 0.06


def test_more_faces_are_not_worse() -> None:
    """Large steps on a finer template: penalties crumpled it."""
    target = horned_ball(3)
    targets = targets_of(target, around(8), 32, "silhouettes")
    found = []
    for level in (2, 3):
        fit = fit_mesh(targets, template=icosphere(level, 0.5), steps=40, views=4, scales=(2.0, 0.7))
        assert len(fit.mesh.faces) == 20 * 4**level
        found.append(overlap(fit.mesh, target, UNSEEN))
    assert found[1] > found[0] - 0.005
    assert found[1] > 0.9


def test_depth_pulls_hollows_in() -> None:
    """A bowl's inside is in no silhouette: depth shows it."""
    ball = icosphere(2, 0.8)
    dent = ball.vertices.clone()
    dent[:, 2] = torch.where(dent[:, 2] > 0, -0.3 * dent[:, 2], dent[:, 2])
    eyes = torch.tensor([[0.0, 0.3, 3.0], [0.4, 0.0, 3.0], [-0.4, 0.1, 2.9]])
    cameras, bowl = Camera.look_at(eyes, fov=40.0), ball.replace(vertices=dent)
    middle = ball.vertices[:, :2].norm(dim=-1) < 0.3
    front = middle & (ball.vertices[:, 2] > 0)
    heights = []
    for kinds in (("silhouettes",), ("silhouettes", "depth")):
        targets = targets_of(bowl, cameras, 24, *kinds)
        fit = fit_mesh(targets, template=ball, steps=30, views=None, scales=(1.5, 0.7))
        heights.append(float(fit.mesh.vertices[front, 2].mean()))
    assert heights[1] < heights[0] - 0.3


def test_masked_pixels_do_not_count() -> None:
    ball, cameras = icosphere(2, 0.6), around(4)
    out = render_hard(ball.vertices, ball.faces, ball.vertices, cameras, size=(32, 32))
    wrong, masks = out.silhouette.clone(), torch.ones(4, 32, 32)
    wrong[:, :, 20:] = 0
    masks[:, :, 20:] = 0
    size = []
    for mask in (None, masks):
        targets = Targets(cameras, silhouettes=wrong, masks=mask)
        fit = fit_mesh(targets, template=ball, steps=15, views=None, scales=(0.7, 0.7))
        size.append(float((fit.mesh.vertices - ball.vertices).norm(dim=-1).max()))
    assert size[1] < 0.3 * size[0]


def test_rgb_over_a_known_background_needs_no_alpha() -> None:
    ball, cameras = icosphere(2, 0.6), around(4)
    red = torch.tensor([0.8, 0.1, 0.1])
    out = render_hard(ball.vertices, ball.faces, red.expand(162, 3), cameras, size=(32, 32), background=1.0)
    targets = Targets(cameras, rgb=out.image, background=(1.0, 1.0, 1.0))
    fit = fit_mesh(targets, template=icosphere(2, 0.45), steps=50, views=None, scales=(1.0, 0.7))
    assert float(fit.mesh.vertices.norm(dim=-1).mean()) == pytest.approx(0.6, abs=0.03)
    assert fit.mesh.vertex_colors is not None
    assert torch.allclose(fit.mesh.vertex_colors.mean(0), red, atol=0.12)


def test_lights_are_learned_on_request() -> None:
    ball, cameras = icosphere(1, 0.7), around(3)
    true = DirectionalLight((0.0, -1.0, 0.0), (0.8, 0.8, 0.8))
    renderer = SmoothRenderer((16, 16), shading="vertex", two_sided=False)
    grey = ball.replace(vertex_colors=torch.full((42, 3), 0.5))
    with torch.no_grad():
        out = renderer(grey, cameras, (AmbientLight(), true))
    rgba = torch.cat([(out.rgb / out.silhouette[..., None].clamp_min(0.05)).clamp(0, 1), out.silhouette[..., None]], -1)
    direction = torch.tensor([-1.0, -0.3, 0.0], requires_grad=True)
    lights = (AmbientLight(), DirectionalLight(direction, (0.8, 0.8, 0.8)))
    steady = LargeSteps(learning_rate=1e-6)
    fit = fit_mesh(
        Targets(cameras, rgb=rgba),
        template=grey,
        lights=lights,
        steps=100,
        views=None,
        scales=(0.7, 0.7),
        optimizer=steady,
    )
    found = fit.lights[1]
    assert isinstance(found, DirectionalLight)
    assert isinstance(found.direction, torch.Tensor)
    towards = torch.nn.functional.normalize(found.direction, dim=0)
    # It began at -0.29; colours are learned too and take their share
    assert float(towards[1]) < -0.6
    assert not found.direction.requires_grad
    # What the caller gave is as it was
    assert direction.tolist() == pytest.approx([-1.0, -0.3, 0.0])


def test_weights_and_regularisers_count() -> None:
    cameras = around(4)
    targets = targets_of(horned_ball(2), cameras, 24, "silhouettes", "normals")
    shapes = [
        fit_mesh(targets, template=icosphere(2, 0.5), steps=10, views=None, weights=weights).mesh.vertices
        for weights in (MeshWeights(), MeshWeights(normals=0.0), MeshWeights(laplacian=50.0), MeshWeights(flatten=5.0))
    ]
    for other in shapes[1:]:
        assert float((shapes[0] - other).abs().max()) > 1e-3


def test_a_stopped_fit_goes_on_as_if_it_had_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("algonet.fit.mesh.REMESH_EVERY", 4)
    targets = targets_of(horned_ball(2), around(6), 24, "rgb")

    def fitter() -> MeshFitter:
        return MeshFitter(targets, icosphere(1, 0.5), steps=24, views=3, remesh=Remesh())

    one, two = fitter(), fitter()
    while not one.done:
        one.step()
    for _ in range(11):
        two.step()
    copy = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in two.state_dict().items()}
    three = fitter()
    three.load_state_dict(copy)
    while not three.done:
        three.step()
    assert torch.equal(one.mesh().vertices, three.mesh().vertices)
    assert torch.equal(one.mesh().faces, three.mesh().faces)
    assert one.result().history == three.result().history


def test_the_ball_without_a_template_lies_where_cameras_look() -> None:
    shift = torch.tensor([5.0, -2.0, 1.0])
    cameras = around(4)
    moved = Camera.look_at(cameras.position + shift, shift, fov=45.0)
    fit = fit_mesh(torch.ones(4, 16, 16), moved, steps=1)
    assert torch.allclose(fit.mesh.vertices.mean(0), shift, atol=0.2)
    assert "began with a ball" in repr(fit)


def test_cameras_that_look_away_and_pictures_of_nothing_are_refused() -> None:
    eyes = torch.tensor([[0.0, 0.0, 3.0], [3.0, 0.0, 0.0], [0.0, 1.0, -3.0]])
    # Noise as wide as the picture turns rays far enough to see the outside of what a camera is in: 0.009 at 6 pixels of 8
    shapes = torch.ones(3, 32, 32)
    for away in (Camera.look_at(eyes, 2 * eyes), Camera.look_at(0 * eyes[:1], -eyes[:1])):
        with pytest.raises(ValueError, match="look away"):
            fit_mesh(Targets(away, silhouettes=shapes[: len(away.position)]), steps=1)
    with pytest.raises(ValueError, match="show nothing"):
        fit_mesh(Targets(Camera.look_at(eyes), silhouettes=0 * shapes), steps=1)
    with pytest.raises(ValueError, match="nothing counts"):
        fit_mesh(Targets(Camera.look_at(eyes), silhouettes=shapes, masks=0 * shapes), steps=1)
    shown = Targets(Camera.look_at(eyes), silhouettes=shapes)
    far = icosphere(1).replace(vertices=icosphere(1).vertices + 100)
    for template in (far, icosphere(1, 20.0)):
        with pytest.raises(ValueError, match="no camera sees the template"):
            fit_mesh(shown, template=template, steps=1, views=2)
    assert fit_mesh(shown, template=icosphere(1, 20.0), steps=1, two_sided=True).history
    with pytest.raises(ValueError, match=r"without `background_depth`"):
        Targets(Camera.look_at(eyes), depth=shapes - 2)


def test_a_file_name_is_no_mesh() -> None:
    views = Targets(Camera.look_at(torch.tensor([[0.0, 0.0, 3.0]])), rgb=torch.ones(1, 8, 8, 4))
    for call in (
        lambda mesh: fit_texture(mesh, views),
        lambda mesh: fit_camera(mesh, torch.ones(8, 8)),
        mesh_quality,
    ):
        with pytest.raises(TypeError, match=r"must be a Mesh, got str; Mesh.load\('spot.obj'\) reads a file"):
            call("spot.obj")


def test_errors() -> None:
    cameras = around(4)
    with pytest.raises(ValueError, match="3 pictures, cameras of batch shape"):
        fit_mesh(torch.zeros(3, 8, 8), cameras)
    with pytest.raises(ValueError, match="RGBA"):
        fit_mesh(torch.zeros(4, 8, 8, 3), cameras)
    with pytest.raises(ValueError, match="need `cameras`"):
        fit_mesh(torch.zeros(4, 8, 8))
    with pytest.raises(ValueError, match="leave `cameras` out"):
        fit_mesh(Targets(cameras, silhouettes=torch.zeros(4, 8, 8)), cameras)
    with pytest.raises(TypeError, match=r"got Camera; call it as .* fit_mesh\(pictures, cameras\)"):
        fit_mesh(cameras, torch.zeros(4, 8, 8))
    with pytest.raises(ValueError, match="A template is given as template=mesh"):
        fit_mesh(Targets(cameras, silhouettes=torch.zeros(4, 8, 8)), icosphere(0))
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\], got values from 0 to 255"):
        Targets(cameras, silhouettes=torch.linspace(0, 255, 4)[:, None, None].expand(4, 8, 8))
    with pytest.raises(ValueError, match="a folder, not a file"):
        Mesh.load(".")
    with pytest.raises(ValueError, match="`steps` must be an integer from 1 on"):
        fit_mesh(torch.zeros(4, 8, 8), cameras, steps=0)
    with pytest.raises(ValueError, match="`scales` must fall"):
        fit_mesh(torch.zeros(4, 8, 8), cameras, scales=(1.0, 2.0))
    assert isinstance(fit_mesh(torch.ones(4, 8, 8), cameras, icosphere(0), steps=1).mesh, Mesh)
