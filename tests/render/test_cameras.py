"""Cameras: where points appear, in the documented conventions."""

from __future__ import annotations

import math

import pytest
import torch

from algonet.render import Camera, render_hard

SIZE = (40, 60)


def test_look_at_puts_the_target_in_the_middle_and_up_on_top() -> None:
    camera = Camera.look_at((1.0, 2.0, 3.0), (0.5, 0.0, 0.0), fov=50.0)
    points = torch.tensor([[0.5, 0.0, 0.0], [0.5, 0.3, 0.0]])
    middle, above = camera.project(points, SIZE)
    assert torch.allclose(middle[:2], torch.tensor([30.0, 20.0]), atol=1e-4)
    assert float(middle[2]) == pytest.approx(math.dist((1, 2, 3), (0.5, 0, 0)), abs=1e-5)
    # Row 0 is the top of the image
    assert float(above[1]) < float(middle[1])
    assert float(above[0]) == pytest.approx(30.0, abs=1e-4)


def test_right_is_right_and_fov_is_the_full_vertical_angle() -> None:
    camera = Camera.look_at((0.0, 0.0, 2.0), fov=60.0)
    edge = 2 * math.tan(math.radians(30))
    top, right = camera.project(torch.tensor([[0.0, edge, 0.0], [edge, 0.0, 0.0]]), SIZE)
    assert torch.allclose(top[:2], torch.tensor([30.0, 0.0]), atol=1e-4)
    assert torch.allclose(right[:2], torch.tensor([50.0, 20.0]), atol=1e-4)


def test_orthographic_has_no_perspective() -> None:
    camera = Camera.orthographic((0.0, 0.0, 5.0), height=4.0)
    near, far = camera.project(torch.tensor([[1.0, 1.0, 2.0], [1.0, 1.0, -2.0]]), SIZE)
    assert torch.allclose(near[:2], far[:2])
    assert torch.allclose(near, torch.tensor([40.0, 10.0, 3.0]))


def test_opencv_camera_projects_as_opencv_does() -> None:
    generator = torch.Generator().manual_seed(0)
    rotation, _ = torch.linalg.qr(torch.randn(3, 3, generator=generator))
    rotation = rotation * torch.linalg.det(rotation).sign()
    translation = torch.tensor([0.1, -0.2, 4.0])
    intrinsics = torch.tensor([[70.0, 0.0, 28.0], [0.0, 65.0, 17.0], [0.0, 0.0, 1.0]])
    points = torch.randn(5, 3, generator=generator) * 0.5
    seen = points @ rotation.T + translation
    pixels = seen @ intrinsics.T
    # OpenCV puts pixel centres at whole numbers, half a pixel from where they are here
    expected = torch.cat([pixels[:, :2] / pixels[:, 2:] + 0.5, seen[:, 2:]], -1)
    camera = Camera.from_opencv(intrinsics, rotation, translation, size=SIZE)
    assert torch.allclose(camera.project(points, SIZE), expected, atol=1e-4)
    assert torch.allclose(camera.position, -rotation.T @ translation, atol=1e-6)


def test_batches_index_and_broadcast() -> None:
    eyes = torch.tensor([[0.0, 0.0, 3.0], [3.0, 0.0, 0.0], [0.0, 1.0, 3.0]])
    cameras = Camera.look_at(eyes, fov=torch.tensor([40.0, 50.0, 60.0]))
    assert cameras.batch_shape == (3,)
    points = torch.rand(4, 3)
    alone = Camera.look_at(eyes[1], fov=50.0)
    assert torch.allclose(cameras.project(points, SIZE)[1], alone.project(points, SIZE))
    assert torch.allclose(cameras[1].matrix, alone.matrix)
    with pytest.raises(IndexError, match="single camera"):
        alone[0]


def test_pixel_centres() -> None:
    """A triangle around the centre of pixel [1, 2] and no other covers exactly that pixel."""
    camera = Camera.orthographic((0.0, 0.0, 3.0), height=4.0)
    # 4 rows over 4 units: pixel [1, 2] of a 4 x 4 image is centred at x = 0.5, y = 0.5
    vertices = torch.tensor([[0.3, 0.3, 0.0], [0.8, 0.4, 0.0], [0.5, 0.9, 0.0]])
    out = render_hard(vertices, torch.tensor([[0, 1, 2]]), vertices, camera, size=(4, 4))
    assert out.silhouette.nonzero().tolist() == [[1, 2]]


def test_differentiable_in_the_eye() -> None:
    eye = torch.tensor([0.5, 0.3, 3.0], dtype=torch.float64, requires_grad=True)
    points = torch.rand(3, 3, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda e: Camera.look_at(e).project(points, SIZE), (eye,))


def test_errors() -> None:
    with pytest.raises(ValueError, match="singular"):
        Camera.look_at((0.0, 2.0, 0.0))
    with pytest.raises(ValueError, match="singular"):
        Camera.look_at((0.0, 0.0, 0.0))
    with pytest.raises(TypeError, match=r"Camera.look_at: places are three numbers .*got eye 'front'"):
        Camera.look_at("front")
    for fov, got in (
        (180.0, "180"),
        (float("nan"), "nan"),
        (0.8, "0.8; .* 45.84 degrees"),
        (torch.tensor([60, 0.8]), "0.8; "),
    ):
        with pytest.raises(ValueError, match=f"Camera.look_at: `fov` is .* in degrees, .*got {got}"):
            Camera.look_at((0.0, 0.0, 1.0), fov=fov)
    with pytest.raises(ValueError, match="focal length"):
        Camera.from_opencv(torch.zeros(3, 3), torch.eye(3), torch.zeros(3), size=SIZE)
    mirror = torch.diag(torch.tensor([1.0, 1.0, -1.0]))
    for turn in (torch.zeros(3, 3), 2 * torch.eye(3), mirror, torch.tensor([[1.0, 0, 0], [0.1, 1, 0], [0, 0, 1]])):
        with pytest.raises(ValueError, match="`rotation` must be a rotation matrix"):
            Camera.from_opencv(torch.eye(3), turn, torch.zeros(3), size=SIZE)
    with pytest.raises(ValueError, match="`near`"):
        Camera.look_at((0.0, 0.0, 1.0), near=0.0)
