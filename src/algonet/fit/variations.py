"""Cameras from which a mesh's outline may look much as from a given one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algonet.render import Camera, Mesh

from .rotations import rotation_matrix

#: By so many degrees a camera is turned each way about its axes: outlines have valleys of minima some ten degrees apart.
VARIED_BY = (10.0, 25.0)


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
    corners = mesh.vertices.detach()[mesh.faces.long()]
    area = torch.linalg.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]).norm(dim=-1)
    middle = corners.mean(1)
    middle = middle - (area @ middle) / area.sum().clamp_min(1e-20)
    return torch.linalg.eigh((middle.mT * area) @ middle)[1].mT
