"""Cameras moved, without turning, to where a mesh's silhouette has the middle and size that a picture's has; and turned to
where its outline may look much the same. Rotations: by a quaternion that learns, spread evenly, and compared."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from algonet.core.cache import constant
from algonet.render import Camera, Mesh, SmoothRenderer
from algonet.render.vectors import face_areas

from .mesh import UNLIT
from .simplify import Sides
from .targets import border

#: Whether a camera is shifted while it turns: not at all, in all three directions, or nearer and farther only.
Move = bool | Literal["distance"]
#: By so many degrees a camera is turned each way about its axes: outlines have valleys of minima some ten degrees apart.
VARIED_BY = (10.0, 25.0)


def see_whole(sides: Sides, fov: float, count: int) -> Camera:
    """`count` equal cameras that look at the mesh along -z, from where all of it is in the picture."""
    away = sides.middle.new_tensor([0.0, 0.0, 1.3]) * sides.radius / math.sin(math.radians(fov) / 2)
    return Camera.look_at((sides.middle + away).expand(count, 3), sides.middle, fov=fov)


@torch.no_grad()
def match_silhouettes(
    sides: Sides, pictures: Tensor, camera: Camera, move: Move = True, cut_off: bool = False
) -> Camera:
    """Cameras (B,) shifted until the mesh's silhouette has the middle (unless by distance alone) and size that the picture's
    has.

    From far off, this is what gradients would spend most steps on. Pictures that are empty, or, unless told otherwise,
    `cut_off` by the frame, tell neither: their cameras stay, as do those that may not move, or see the mesh at one size from
    everywhere.
    """
    if not (move and camera.perspective):
        return camera
    silhouettes = pictures[..., -1]
    usable = silhouettes.sum((-2, -1)) > 4
    if not cut_off:
        usable &= border(silhouettes).amax(1) < 0.5
    centre, size = sides.middle, (int(pictures.shape[1]), int(pictures.shape[2]))
    axes, wanted = camera.axes, silhouette_moments(silhouettes, size)
    up, ahead = camera.matrix[:, 1, :3], camera.matrix[:, 2, :3]
    focal = (up - (up * ahead).sum(-1, keepdim=True) * ahead).norm(dim=-1, keepdim=True)
    renderer = SmoothRenderer(size, shading="vertex", two_sided=False).to(centre.device)
    for _ in range(3):
        seen = silhouette_moments(sides.seen(renderer, camera, UNLIT)[1], size)
        place = (axes @ (camera.position - centre)[..., None])[..., 0]
        grown = (seen[:, 2:] / wanted[:, 2:]).clamp(0.3, 3.0)
        depth = torch.maximum(place[:, 2:] * grown, 1.05 * sides.radius)
        # The camera moves against the way the picture is to move
        across = place[:, :2] / place[:, 2:] - (wanted[:, :2] - seen[:, :2]) / focal
        way = torch.cat([across * depth if move is True else place[:, :2], depth], -1) - place
        # A camera that sees nothing of the mesh learns nothing from it
        way = way.where((usable & (seen[:, 2] * size[0] > 1) & (place[:, 2] > 0))[:, None], 0.0)
        camera = moved(camera, torch.eye(3).to(axes).expand_as(axes), -(way[:, None] @ axes)[:, 0])
    return camera


def turn_around(camera: Camera, turns: Tensor, centre: Tensor) -> Camera:
    """Each camera (B,) carried about `centre` by each of the `turns` (R, 3, 3), or its own (B, R, 3, 3): (B * R,), the first
    camera's R first."""
    count = len(camera.matrix)
    rows = torch.arange(count, device=turns.device).repeat_interleave(turns.shape[-3])
    rotation = turns.expand(count, -1, -1, -1).flatten(0, 1)
    return moved(camera[rows], rotation, centre - (rotation @ centre[..., None])[..., 0])


def silhouette_moments(silhouettes: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, 3): the middle in NDC (x right, y up) and the root of the area of each silhouette."""
    height, width = size
    y = (1 - (2 * torch.arange(height) + 1) / height).to(silhouettes)
    x = ((2 * torch.arange(width) + 1 - width) / height).to(silhouettes)
    total = silhouettes.sum((-2, -1)).clamp_min(1e-3)
    middle_x = (silhouettes.sum(-2) * x).sum(-1) / total
    middle_y = (silhouettes.sum(-1) * y).sum(-1) / total
    return torch.stack([middle_x, middle_y, total.sqrt() / height], -1)


def variations(cameras: Camera, mesh: Mesh, around: float) -> Tensor:
    """Turns (B, R, 3, 3) of the world to cameras (B,) from which the outline of the mesh may look much the same.

    By `VARIED_BY` degrees about the camera's axes; and to the twin that each of the mesh's principal planes would make were it
    a plane of symmetry: from far away, depth reversed is seen alike, and mirrored in that plane it is the same mesh. Twins
    may be anywhere; only those turns are made that a search of all rotations, or `around` degrees of a start, allows.
    """
    axes = cameras.axes[:, None]
    half = [math.tan(math.radians(angle) / 2) for angle in VARIED_BY if angle < around]
    small = torch.cat([torch.zeros(0, 3), *(way * angle * torch.eye(3) for angle in half for way in (1, -1))])
    turns = axes.mT @ rotation_matrix(small).to(axes) @ axes
    if around < 180:
        return turns
    normals = principal_axes(mesh)
    mirrors = torch.eye(3).to(axes) - 2 * normals[:, :, None] * normals[:, None, :]
    reverse = torch.diag(torch.tensor([1.0, 1.0, -1.0])).to(axes)
    return torch.cat([turns, axes.mT @ reverse @ axes @ mirrors], 1)


def principal_axes(mesh: Mesh) -> Tensor:
    """The principal axes (3, 3) of the surface, as rows."""
    vertices = mesh.vertices.detach()
    area, middle = face_areas(vertices, mesh.faces)[0].norm(dim=-1), vertices[mesh.faces.long()].mean(1)
    middle = middle - (area @ middle) / area.sum().clamp_min(1e-20)
    return torch.linalg.eigh((middle.mT * area) @ middle)[1].mT


def rotation_matrix(turn: Tensor) -> Tensor:
    """Rotations (*B, 3, 3) from (*B, 3): the quaternion (1, turn), normalised. Smooth, and the identity at 0.

    >>> rotation_matrix(torch.zeros(3))
    tensor([[1., 0., 0.],
            [0., 1., 0.],
            [0., 0., 1.]])
    """
    return _from_quaternion(torch.cat([torch.ones_like(turn[..., :1]), turn], -1))


def _from_quaternion(q: Tensor) -> Tensor:
    """Rotations from quaternions (*B, 4), the real part w first, of any length: I + 2 (w K + K^2) / |q|^2, K u = v x u."""
    real, vector = q[..., None].split([1, 3], -2)
    eye = torch.eye(3, dtype=q.dtype, device=q.device).expand(*q.shape[:-1], 3, 3)
    cross = torch.linalg.cross(eye, vector.mT)
    return eye + 2 * (real * cross + cross @ cross) / q.square().sum(-1)[..., None, None]


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
    return rotation_angle((a.axes.double() * b.axes.double()).sum((-2, -1)))


def rotation_angle(trace: Tensor) -> Tensor:
    """By how many degrees rotations turn that have these traces."""
    return torch.rad2deg(torch.acos(((trace - 1) / 2).clamp(-1, 1)))
