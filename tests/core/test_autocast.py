"""Under autocast, whatever needs places, phases or solved systems computes as without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from algonet.ifs import Poisson, smooth_raster
from algonet.render import (
    Camera,
    Mesh,
    SmoothRenderer,
    Targets,
    box,
    camera_to_world,
    fit_camera,
    fit_mesh,
    fit_texture,
    icosphere,
    render_attributes,
    render_hard,
    smooth_over_mesh,
)
from algonet.speech import SmoothSynthesizer

EYE = torch.tensor([1.237, 0.871, 2.519])
BALL = icosphere(1)
TURN = torch.linalg.qr(torch.tensor([[0.3, 0.5, -0.2], [0.1, -0.7, 0.4], [0.9, 0.2, 0.6]]))[0]


def _points(camera: Camera) -> Tensor:
    return camera.project(BALL.vertices, size=(256, 256))


def _opencv() -> Tensor:
    lens = torch.tensor([[260.0, 0.0, 127.5], [0.0, 260.0, 127.5], [0.0, 0.0, 1.0]])
    turn = TURN * torch.linalg.det(TURN)
    return _points(Camera.from_opencv(lens, turn, torch.tensor([0.123, 0.456, 3.21]), size=(256, 256)))


def _views() -> Targets:
    cameras = Camera.look_at(torch.stack([EYE, -EYE]))
    colors = torch.rand(2, 16, 16, 4, generator=torch.Generator().manual_seed(0))
    return Targets(cameras, rgb=colors)


def _textured() -> Mesh:
    texture = torch.rand(8, 8, 3, generator=torch.Generator().manual_seed(0))
    return BALL.replace(uv=BALL.vertices[:, :2] / 2 + 0.5, texture=texture)


def _pose() -> Tensor:
    part = box((1.2, 0.7, 0.5))
    picture = render_hard(part.vertices, part.faces, part.vertices, Camera.look_at(EYE), size=(16, 16)).silhouette
    return fit_camera(part, picture.float(), Camera.look_at(EYE + 0.1), steps=2).camera.position


def _spoken(part: int) -> Tensor:
    synthesizer = SmoothSynthesizer(sample_rate=16_000)
    return synthesizer(*synthesizer.score("a i", rate=8.0))[part]


def _envelope() -> Tensor:
    synthesizer = SmoothSynthesizer(sample_rate=16_000)
    return synthesizer.envelope(*synthesizer.score("a i"), frames=20)


def _cloud() -> Tensor:
    points = torch.rand(200, 2, generator=torch.Generator().manual_seed(0))
    return smooth_raster(points, (16, 16), sigma=1.0, extent=(0, 1, 0, 1), aggregate=Poisson(), method="separable")


CALLS: dict[str, Callable[[], Tensor]] = {
    "Camera.look_at": lambda: _points(Camera.look_at(EYE)),
    "Camera.orthographic": lambda: _points(Camera.orthographic(EYE)),
    "Camera.from_opencv": _opencv,
    "camera_to_world": lambda: camera_to_world(BALL.vertices[None, None], Camera.look_at(EYE[None])),
    "render_hard": lambda: render_hard(BALL.vertices, BALL.faces, BALL.vertices, Camera.look_at(EYE), size=(16, 16)).image,
    "render_attributes": lambda: (
        render_attributes(BALL.vertices, BALL.faces, BALL.vertices, Camera.look_at(EYE), size=(16, 16)).image
    ),
    "SmoothRenderer, texture": lambda: SmoothRenderer(16)(_textured(), Camera.look_at(EYE)).rgb,
    "SmoothRenderer, atlas": lambda: SmoothRenderer(16)(fit_texture(BALL, _views(), size=64), Camera.look_at(EYE)).rgb,
    "fit_texture": lambda: fit_texture(BALL, _views(), size=64).texture,
    "fit_mesh": lambda: fit_mesh(_views(), template=BALL, steps=2).mesh.vertices,
    "fit_mesh, a ball": lambda: fit_mesh(_views(), steps=1).mesh.vertices,
    "fit_camera": _pose,
    "smooth_over_mesh": lambda: smooth_over_mesh(BALL.vertices, BALL.faces, stiffness=5.0),
    "synthesize": lambda: _spoken(0),
    "mel_spectrogram": lambda: _spoken(1),
    "mel_envelope": _envelope,
    "smooth_raster": _cloud,
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_autocast_changes_nothing(call: Callable[[], Tensor]) -> None:
    plain = call().detach()
    with torch.autocast("cpu", torch.bfloat16):
        found = call().detach()
        assert torch.is_autocast_enabled("cpu")
    assert found.dtype == plain.dtype
    assert torch.equal(found, plain)
