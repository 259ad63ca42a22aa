"""Rotations: by a quaternion that learns, spread evenly, and compared; and what they do to cameras."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algonet.core.cache import constant
from algonet.render import Camera


def rotation_matrix(turn: Tensor) -> Tensor:
    """Rotations (*B, 3, 3) from (*B, 3): the quaternion (1, turn), normalised. Smooth, and the identity at 0.

    >>> rotation_matrix(torch.zeros(3))
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]])
    """
    return _from_quaternion(torch.cat([torch.ones_like(turn[..., :1]), turn], -1))


def _from_quaternion(q: Tensor) -> Tensor:
    """Rotations from quaternions (*B, 4), the real part first, of any length."""
    w, x, y, z = q.unbind(-1)
    n = 2 / q.square().sum(-1)
    rows = [
        1 - n * (y * y + z * z), n * (x * y - w * z), n * (x * z + w * y),
        n * (x * y + w * z), 1 - n * (x * x + z * z), n * (y * z - w * x),
        n * (x * z - w * y), n * (y * z + w * x), 1 - n * (x * x + y * y),
    ]  # fmt: skip
    return torch.stack(rows, -1).reshape(*q.shape[:-1], 3, 3)


def even_rotations(count: int) -> Tensor:
    """`count` rotations (count, 3, 3) spread evenly over all: super-Fibonacci spirals (Alexa, CVPR 2022).

    >>> torch.linalg.det(even_rotations(3))
    tensor([1.0000, 1.0000, 1.0000])
    """
    s = torch.arange(count, dtype=torch.float64) + 0.5
    t, angle = s / count, 2 * math.pi * s
    # The spiral's two frequencies: sqrt(2), and the root of x^4 = x + 4 near 1.53
    first, second = angle / math.sqrt(2), angle / 1.533751168755204288
    a, b = t.sqrt(), (1 - t).sqrt()
    quaternions = torch.stack([a * first.sin(), a * first.cos(), b * second.sin(), b * second.cos()], -1)
    return _from_quaternion(quaternions).to(torch.get_default_dtype())


def moved(camera: Camera, rotation: Tensor, offset: Tensor) -> Camera:
    """What sees the world (B,) as the camera sees it once each point x is at `rotation` (B, 3, 3) x + `offset` (B, 3)."""
    top = torch.cat([rotation, offset[..., None]], -1)
    last = constant((0.0, 0.0, 0.0, 1.0), top.dtype, top.device).expand(len(top), 1, 4)
    eye = (rotation.mT @ (camera.position - offset)[..., None])[..., 0]
    return Camera(camera.matrix @ torch.cat([top, last], -2), eye, camera.perspective, camera.near)


def rotation_error(a: Camera, b: Camera) -> Tensor:
    """The angle, in degrees, between the directions of view and roll of two cameras (or batches)."""
    cosine = ((a.axes.double() @ b.axes.double().mT).diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2
    return torch.rad2deg(torch.acos(cosine.clamp(-1, 1)))
