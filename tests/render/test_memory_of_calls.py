"""What calls keep for the next one: cameras' matrices and a module's softness are made anew whenever they change."""

from __future__ import annotations

import copy
import pickle

import torch
from torch import Tensor, nn

from algonet.core.cache import caches
from algonet.relax import Anneal, StudentT
from algonet.render import Camera, FilteredCoverage, SmoothRenderer, icosphere

BALL = icosphere(0, 0.9)


def silhouette(renderer: SmoothRenderer, camera: Camera) -> Tensor:
    with torch.no_grad():
        return renderer(BALL, camera).silhouette


def fresh(scale: float, camera: Camera) -> Tensor:
    return silhouette(SmoothRenderer(16, FilteredCoverage(StudentT(scale=scale))), camera)


def test_changes_in_place_are_seen() -> None:
    renderer, camera = SmoothRenderer(16), Camera.look_at((0.0, 0.0, 3.0))
    silhouette(renderer, camera)
    other = Camera.look_at((0.0, 1.0, 2.0))
    camera.matrix.copy_(other.matrix)
    camera.position.copy_(other.position)
    assert torch.equal(silhouette(renderer, camera), fresh(1.0, other))
    renderer.scale.fill_(2.0)
    assert torch.equal(silhouette(renderer, camera), fresh(2.0, other))
    renderer.set_scale(0.7)
    assert torch.allclose(silhouette(renderer, camera), fresh(0.7, other), atol=1e-6)
    renderer.load_state_dict(SmoothRenderer(16, FilteredCoverage(StudentT(scale=1.5))).state_dict())
    assert torch.equal(silhouette(renderer, camera), fresh(1.5, other))
    renderer.depth_steepness.fill_(50.0)
    steep = SmoothRenderer(16, FilteredCoverage(StudentT(scale=1.5)), depth_steepness=50.0)
    with torch.no_grad():
        assert torch.equal(renderer(BALL, other).depth, steep(BALL, other).depth)


def test_one_camera_at_several_sizes_and_precisions() -> None:
    camera = Camera.look_at((0.0, 0.0, 3.0))
    renderers = [SmoothRenderer(16), SmoothRenderer((8, 24)), SmoothRenderer(16).double()]
    for _ in range(2):
        for renderer in renderers:
            mesh = BALL.to(renderer.scale.dtype)
            with torch.no_grad():
                out = renderer(mesh, camera)
            assert out.rgb.shape[:2] == renderer.size
            assert out.rgb.dtype == renderer.scale.dtype


def test_training_after_a_first_call_under_inference_mode() -> None:
    renderer, camera = SmoothRenderer(16), Camera.look_at((0.0, 0.0, 3.0))
    with torch.inference_mode():
        renderer(BALL, camera)
    vertices = BALL.vertices.clone().requires_grad_()
    out = renderer(BALL.replace(vertices=vertices), camera)
    (slope,) = torch.autograd.grad(out.rgb.square().sum(), vertices)
    assert torch.isfinite(slope).all()
    assert slope.abs().max() > 0


def test_a_learned_scale_is_never_taken_from_memory() -> None:
    scale = nn.Parameter(torch.tensor(1.0))
    renderer, camera = SmoothRenderer(16, FilteredCoverage(StudentT(scale=scale))), Camera.look_at((0.0, 0.0, 3.0))
    for _ in range(2):
        (slope,) = torch.autograd.grad(renderer(BALL, camera).silhouette.square().sum(), scale)
        assert slope.abs() > 0
    renderer.to(torch.float64)
    assert renderer._number() is None


def test_what_is_known_of_a_softness() -> None:
    renderer = SmoothRenderer(16)
    renderer.to(torch.float64)
    assert renderer._number() == 1.0
    Anneal(4.0, 2.0, 2, field="scale").attach(renderer)
    assert renderer._number() == 4.0
    renderer.scale.mul_(2.0)
    assert renderer._number() is None
    renderer.set_scale(3.0)
    for copied in (copy.deepcopy(renderer), pickle.loads(pickle.dumps(renderer))):
        assert copied._number() is None
        assert float(copied.scale) == 3.0


def test_cameras_that_move_leave_nothing_behind() -> None:
    """The default light is at the camera's place: a tensor of each call."""
    renderer = SmoothRenderer(16)

    def kept(calls: int) -> dict[str, int]:
        for i in range(calls):
            silhouette(renderer, Camera.look_at((0.0, 0.01 * i, 3.0)))
        return {cache.name: len(cache) for cache in caches()}

    first = kept(3)
    assert kept(20) == first
