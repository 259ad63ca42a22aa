"""Cameras moved, without turning, to where a mesh's silhouette has the middle and size that a picture's has."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from algonet.render import Camera, SmoothRenderer

from .mesh import UNLIT
from .sides import Sides

#: Whether a camera is shifted while it turns: not at all, in all three directions, or nearer and farther only.
Move = bool | Literal["distance"]


def align_rotations(sides: Sides, pictures: Tensor, rotations: Tensor, fov: float, move: Move = True) -> Camera:
    """For each picture and rotation (P * R cameras) one whose silhouette has the picture's middle (unless the camera moves
    by distance alone and looks at the mesh's) and size."""
    count, mesh = len(pictures) * len(rotations), sides.front
    size = (int(pictures.shape[1]), int(pictures.shape[2]))
    centre = (mesh.vertices.amin(-2) + mesh.vertices.amax(-2)) / 2
    radius = float((mesh.vertices - centre).norm(dim=-1).max())
    focal = 1 / math.tan(math.radians(fov) / 2)
    axes = rotations.repeat(len(pictures), 1, 1)
    place = axes.new_zeros(count, 3)
    place[:, 2] = 1.3 * radius * math.hypot(1, focal)
    wanted = silhouette_moments(pictures[..., -1], size).repeat_interleave(len(rotations), 0)
    renderer = SmoothRenderer(size, shading="vertex", two_sided=False).to(mesh.vertices.device)
    camera = _camera(axes, place, centre, focal)
    with torch.no_grad():
        for _ in range(3):
            seen = silhouette_moments(sides.seen(renderer, camera, UNLIT)[1], size)
            grown = (seen[:, 2:] / wanted[:, 2:].clamp_min(1e-6)).clamp(0.3, 3.0)
            depth = (place[:, 2:] * grown).clamp_min(1.05 * radius)
            # The camera moves against the way the picture is to move
            across = place[:, :2] / place[:, 2:] - (wanted[:, :2] - seen[:, :2]) / focal
            place = torch.cat([across * depth if move is True else place[:, :2], depth], -1)
            camera = _camera(axes, place, centre, focal)
    return camera


def match_silhouettes(sides: Sides, pictures: Tensor, camera: Camera, move: Move = True) -> Camera:
    """Cameras (B,) shifted until the mesh's silhouette has the middle (unless by distance alone) and size that the picture's
    has.

    From far off, this is what gradients would spend most steps on. Pictures that are empty, or cut off by the frame, tell
    neither: their cameras stay.
    """
    silhouettes, mesh = pictures[..., -1], sides.front
    size = (int(silhouettes.shape[1]), int(silhouettes.shape[2]))
    edge = torch.cat([silhouettes[:, 0], silhouettes[:, -1], silhouettes[:, :, 0], silhouettes[:, :, -1]], 1)
    usable = (silhouettes.sum((-2, -1)) > 4) & (edge.amax(1) < 0.5)
    centre = (mesh.vertices.amin(-2) + mesh.vertices.amax(-2)).detach() / 2
    radius = (mesh.vertices.detach() - centre).norm(dim=-1).max()
    axes, wanted = camera.axes, silhouette_moments(silhouettes, size)
    depth_row = camera.matrix[:, 2, :3]
    up = camera.matrix[:, 1, :3]
    focal = (up - (up * depth_row).sum(-1, keepdim=True) * depth_row).norm(dim=-1, keepdim=True)
    renderer = SmoothRenderer(size, shading="vertex", two_sided=False).to(mesh.vertices.device)
    with torch.no_grad():
        for _ in range(3):
            seen = silhouette_moments(sides.seen(renderer, camera, UNLIT)[1], size)
            place = (axes @ (camera.position - centre)[..., None])[..., 0]
            grown = (seen[:, 2:] / wanted[:, 2:]).clamp(0.3, 3.0)
            depth = torch.maximum(place[:, 2:] * grown, 1.05 * radius)
            across = place[:, :2] / place[:, 2:] - (wanted[:, :2] - seen[:, :2]) / focal
            way = torch.cat([across * depth if move is True else place[:, :2], depth], -1) - place
            # A camera that sees nothing of the mesh learns nothing from it
            fine = (usable & (seen[:, 2] * size[0] > 1) & (place[:, 2] > 0))[:, None]
            camera = _shifted(camera, torch.where(fine, (way[:, None] @ axes)[:, 0], 0.0))
    return camera


def turn_around(camera: Camera, turns: Tensor, centre: Tensor) -> Camera:
    """Each camera (B,) carried about `centre` by each of the `turns` (R, 3, 3), or its own (B, R, 3, 3): (B * R,), the first
    camera's R first."""
    count = len(camera.matrix)
    rows = torch.arange(count, device=turns.device).repeat_interleave(turns.shape[-3])
    rotation = turns.expand(count, -1, -1, -1).flatten(0, 1)
    offset = centre - (rotation @ centre[..., None])[..., 0]
    rigid = torch.eye(4).to(turns).repeat(len(rows), 1, 1)
    rigid[:, :3] = torch.cat([rotation, offset[..., None]], -1)
    eye = (rotation.mT @ (camera.position[rows] - offset)[..., None])[..., 0]
    return Camera(camera.matrix[rows] @ rigid, eye, camera.perspective, camera.near)


def _shifted(camera: Camera, way: Tensor) -> Camera:
    """Cameras moved by `way` (B, 3) in the world, looking as before."""
    column = camera.matrix[:, :, 3] - (camera.matrix[:, :, :3] @ way[..., None])[..., 0]
    matrix = torch.cat([camera.matrix[:, :, :3], column[..., None]], -1)
    return Camera(matrix, camera.position + way, camera.perspective, camera.near)


def _camera(axes: Tensor, place: Tensor, centre: Tensor, focal: float) -> Camera:
    """Cameras with these axes (B, 3, 3) at `place` (B, 3), given along them, from the centre."""
    eye = centre + (place[:, None] @ axes)[:, 0]
    view = torch.cat([axes, -(axes @ eye[..., None])], -1)
    last = view.new_tensor([0.0, 0.0, 0.0, 1.0]).expand(len(view), 4)
    return Camera(torch.stack([focal * view[:, 0], focal * view[:, 1], -view[:, 2], last], 1), eye)


def silhouette_moments(silhouettes: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, 3): the middle in NDC (x right, y up) and the root of the area of each silhouette."""
    height, width = size
    y = (1 - (2 * torch.arange(height) + 1) / height).to(silhouettes)
    x = ((2 * torch.arange(width) + 1 - width) / height).to(silhouettes)
    total = silhouettes.sum((-2, -1)).clamp_min(1e-3)
    middle_x = (silhouettes.sum(-2) * x).sum(-1) / total
    middle_y = (silhouettes.sum(-1) * y).sum(-1) / total
    return torch.stack([middle_x, middle_y, total.sqrt() / height], -1)
