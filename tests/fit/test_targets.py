"""Targets: what may be given, how it is read, and what is said when it is wrong."""

from __future__ import annotations

import pytest
import torch

from algonet.fit.targets import Level, blur
from algonet.relax import BoundedSum, StudentT
from algonet.render import (
    AmbientLight,
    Camera,
    FilteredCoverage,
    SmoothRenderer,
    Targets,
    camera_to_world,
    fit_mesh,
    icosphere,
    render_attributes,
    render_hard,
)
from fit.fitting_scenes import around, horned_ball, seen, targets_of


def test_any_subset_and_their_layers() -> None:
    cameras = around(3)
    for kinds in (("silhouettes",), ("rgb",), ("normals",), ("depth",), ("rgb", "normals", "depth")):
        targets = targets_of(horned_ball(2), cameras, 16, *kinds)
        assert len(targets) == 3
        assert targets.size == (16, 16)
        layers = targets.layers()
        assert set(layers) == {*kinds, "silhouettes"}
        assert torch.equal(layers["silhouettes"][..., 0], seen(horned_ball(2), cameras, 16)[0])
    plain = Targets(cameras, rgb=torch.rand(3, 8, 8, 3), background=(1.0, 1.0, 1.0))
    assert set(plain.layers()) == {"rgb"}
    assert plain.alpha is None
    assert len(plain[1]) == 1
    assert len(plain[torch.tensor([0, 2])]) == 2
    assert plain.to(torch.float64).cameras.matrix.dtype == torch.float64


def test_levels_show_what_the_renderer_shows() -> None:
    """The loss is smallest at the truth at every scale, because the targets are blurred as the rendering is."""
    mesh, cameras = horned_ball(3), around(2)
    targets = targets_of(mesh, cameras, 64, "rgb", "normals")
    for scale in (4.0, 1.5):
        level = Level(targets, scale)
        coverage = FilteredCoverage(StudentT(scale=level.scale))
        renderer = SmoothRenderer(level.size, coverage, BoundedSum(32), shading="vertex", two_sided=False)
        with torch.no_grad():
            out = renderer(mesh, cameras, (AmbientLight((1.0, 1.0, 1.0)),), mesh.vertex_normals())
        assert (out.silhouette - level.layers["silhouettes"][..., 0]).abs().mean() < 0.01
        assert (out.rgb - level.layers["rgb"]).abs().mean() < 0.02
        assert (out.attributes - level.layers["normals"]).abs().mean() < 0.02
    assert Level(targets, 4.0).size == (16, 16)
    assert Level(targets, 1.5).size == (64, 64)


def test_masks_spread_with_the_noise() -> None:
    masks = torch.ones(1, 32, 32)
    masks[:, :, :10] = 0
    level = Level(Targets(around(1), silhouettes=torch.zeros(1, 32, 32), masks=masks), 1.5)
    assert level.mask is not None
    assert float(level.mask[..., :10, 0].max()) == 0
    assert float(level.mask[0, 16, 10, 0]) == 0
    assert float(level.mask[0, 16, 24, 0]) == 1


def test_masks_may_be_true_and_false() -> None:
    cameras, masks = around(4), torch.arange(4 * 64).reshape(4, 8, 8) % 3 > 0
    found = Targets(cameras, silhouettes=torch.zeros(4, 8, 8), masks=masks).masks
    assert found is not None
    assert torch.equal(found, masks.float())


def test_normals_from_camera_axes() -> None:
    cameras = around(4)
    world = seen(horned_ball(2), cameras, 16)[2]
    own = torch.einsum("nhwj,nij->nhwi", world, cameras.axes)
    assert torch.allclose(camera_to_world(own, cameras), world, atol=1e-6)
    # The nearest point of a ball looks at the viewer
    middle = torch.zeros(4, 1, 1, 3)
    middle[..., 2] = 1
    towards = torch.nn.functional.normalize(cameras.position, dim=-1)
    assert torch.allclose(camera_to_world(middle, cameras)[:, 0, 0], towards, atol=1e-5)


def test_blur_is_what_the_renderer_tends_to() -> None:
    mesh, camera = icosphere(3), Camera.look_at((0.0, 0.0, 3.0))
    arguments = (mesh.vertices, mesh.faces, mesh.vertices, camera)
    hard = render_hard(*arguments, size=(48, 48)).silhouette
    coverage = FilteredCoverage(StudentT(scale=2.0))
    soft = render_attributes(*arguments, size=(48, 48), coverage=coverage, two_sided=False).silhouette
    # The bounded sum rounds the step to 1 (by 0.08), and the hard outline is a staircase
    assert (blur(hard, StudentT(scale=2.0)) - soft).abs().max() < 0.12
    flat = torch.zeros(20, 20)
    flat[10, 10] = 1.0
    assert float(blur(flat, StudentT()).sum()) == pytest.approx(1.0, abs=0.02)


def test_errors() -> None:
    cameras = around(4)
    with pytest.raises(ValueError, match="give at least one of"):
        Targets(cameras, masks=torch.ones(4, 8, 8))
    with pytest.raises(ValueError, match="3 pictures, cameras of batch shape"):
        Targets(cameras, silhouettes=torch.zeros(3, 8, 8))
    with pytest.raises(ValueError, match=r"share \(N, H, W\), got silhouettes \(4, 8, 8\), depth \(4, 8, 9\)"):
        Targets(cameras, silhouettes=torch.zeros(4, 8, 8), depth=torch.zeros(4, 8, 9))
    with pytest.raises(ValueError, match="RGBA pictures go into `rgb`"):
        Targets(cameras, silhouettes=torch.zeros(4, 8, 8, 4))
    with pytest.raises(TypeError, match=r"floating tensor.*uint8; divide bytes by 255"):
        Targets(cameras, rgb=torch.zeros(4, 8, 8, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"from 0 to 200\. Divide bytes by 255"):
        Targets(cameras, rgb=torch.tensor([0.0, 200.0]).repeat(4, 8, 8, 2))
    with pytest.raises(ValueError, match="not finite"):
        Targets(cameras, depth=torch.full((4, 8, 8), float("nan")))
    with pytest.raises(ValueError, match="holds the silhouettes already"):
        Targets(cameras, rgb=torch.zeros(4, 8, 8, 4), silhouettes=torch.zeros(4, 8, 8))
    with pytest.raises(ValueError, match="RGBA"):
        Targets.of(torch.zeros(4, 8, 8, 3), cameras)
    with pytest.raises(ValueError, match=r"\(N, H, W, 3\)"):
        camera_to_world(torch.zeros(4, 8, 8), cameras)


def test_what_leaves_the_frame_is_unknown_near_there() -> None:
    """Beyond the frame is nothing where nothing is at its border; else nobody knows, within the noise's reach."""
    silhouettes = torch.zeros(1, 32, 32)
    silhouettes[0, 10:20, 20:] = 1
    level = Level(Targets(around(1), silhouettes=silhouettes), 1.0)
    assert level.mask is not None
    assert float(level.mask[0, 10:20, -1].max()) == 0
    assert float(level.mask[0, :, :20].min()) == float(level.mask[0, 28:].min()) == 1
    silhouettes[..., -1] = 0
    assert Level(Targets(around(1), silhouettes=silhouettes), 1.0).mask is None


def test_masks_narrower_than_the_noise_are_refused_or_the_noise_is_less() -> None:
    """Nothing would count, every loss would be 0."""
    silhouettes, masks = seen(icosphere(2, 0.6), around(3), 32)[0], torch.zeros(3, 32, 32)
    masks[:, ::4] = 1
    with pytest.raises(ValueError, match="`masks` are narrower than the noise"):
        fit_mesh(Targets(around(3), silhouettes=silhouettes, masks=masks), steps=1)
    masks[:, 10:22] = 1
    fit = fit_mesh(Targets(around(3), silhouettes=silhouettes, masks=masks), template=icosphere(2, 0.5), steps=2)
    assert "the masks are narrow" in fit.notes[0]
    assert 0.5 < fit.history[0]["scale"] < 4
    assert fit.history[0]["pictures"] > 0
