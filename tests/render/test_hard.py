"""The hard rasteriser's two z-buffers agree."""

from __future__ import annotations

import pytest
import torch

from algonet.render import Camera, box, icosphere, render_hard
from algonet.render.functional import camera_points
from algonet.render.hard import _on_cpu
from algonet.render.kernels import z_buffer as torch_hard


@pytest.mark.parametrize("two_sided", [True, False])
@pytest.mark.parametrize("perspective", [True, False])
@pytest.mark.parametrize("at_once", [2**25, 3000])
def test_the_z_buffer_of_a_gpu_sees_what_the_compiled_one_sees(monkeypatch, perspective, two_sided, at_once):
    monkeypatch.setattr(torch_hard, "AT_ONCE", at_once)
    meshes = icosphere(2, 0.7), box((0.9, 0.5, 1.2), segments=3)
    vertices = torch.cat([mesh.vertices for mesh in meshes])
    faces = torch.cat([meshes[0].faces, meshes[1].faces + len(meshes[0].vertices)])
    eyes = torch.tensor([[0.3, 0.5, 2.5], [2.0, -0.4, 0.7]])
    make = Camera.look_at if perspective else Camera.orthographic
    points = camera_points(vertices, make(eyes), (20, 26))
    near = torch.full((2,), 0.1, dtype=torch.float64)
    arguments = (points.double(), faces, near, perspective, two_sided, (20, 26))
    for found, wanted in zip(torch_hard.z_buffer(*arguments), _on_cpu(*arguments), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    single = torch_hard.z_buffer(points.float(), faces, near.float(), perspective, two_sided, (20, 26))
    for found, wanted in zip(single, _on_cpu(*arguments), strict=True):
        same = (found.double() - wanted.double()).abs() < 1e-3
        # A pixel whose centre lies on an edge, within rounding, may see the other face
        assert float((same | (found == wanted)).double().mean()) > 0.99


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_pictures_made_on_the_gpu_are_those_of_the_cpu():
    ball, camera = icosphere(3, 0.7), Camera.look_at((0.4, 0.9, 2.3))
    seen = render_hard(ball.vertices, ball.faces, ball.vertices, camera, size=(64, 48))
    own = render_hard(ball.vertices.cuda(), ball.faces.cuda(), ball.vertices.cuda(), camera.to("cuda"), size=(64, 48))
    for found, wanted in zip(own, seen, strict=True):
        torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-4)
