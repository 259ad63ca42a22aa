"""Small scenes for the tests of fitting: shapes by formula, seen from all around."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algonet.render import Camera, Mesh, Targets, box, icosphere, render_hard


def horned_ball(level: int = 4) -> Mesh:
    """A ball drawn out along its axes, coloured by place: convex nowhere, closed, no two views alike in colour."""
    ball = icosphere(level)
    length = 0.48 + 0.3 * ball.vertices.pow(4).sum(-1, keepdim=True)
    vertices = ball.vertices * length
    return ball.replace(vertices=vertices, vertex_colors=0.5 + 0.45 * torch.sin(3 * vertices))


def wedge() -> Mesh:
    """A box with one corner pulled out and a colour gradient: no two views look the same."""
    mesh = box((1.2, 0.7, 0.5), segments=2)
    pulled = mesh.vertices + torch.tensor([0.0, 0.5, 0.2]) * (mesh.vertices[:, :1] > 0.3)
    return mesh.replace(vertices=pulled, vertex_colors=(mesh.vertices + 0.65) / 1.3)


def around(count: int, start: float = 0.0, distance: float = 2.8) -> Camera:
    """Cameras evenly around the origin, on a Fibonacci spiral."""
    i = torch.arange(count) + 0.5
    y, angle = 1 - 2 * i / count, math.pi * (3 - math.sqrt(5)) * i + start
    ring = (1 - y * y).sqrt()
    return Camera.look_at(distance * torch.stack([ring * angle.cos(), y, ring * angle.sin()], -1), fov=45.0)


def seen(mesh: Mesh, cameras: Camera, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Silhouettes, colours, unit normals and depths by the hard rasteriser."""
    colors = torch.full_like(mesh.vertices, 0.5) if mesh.vertex_colors is None else mesh.vertex_colors
    table = torch.cat([colors, mesh.vertex_normals()], -1)
    out = render_hard(mesh.vertices, mesh.faces, table, cameras, size=(size, size))
    normals = torch.nn.functional.normalize(out.image[..., 3:], dim=-1)
    return out.silhouette, out.image[..., :3], normals, out.depth


def targets_of(mesh: Mesh, cameras: Camera, size: int, *kinds: str) -> Targets:
    """Pictures of these kinds: silhouettes, rgb (with alpha), normals, depth."""
    silhouettes, colors, normals, depth = seen(mesh, cameras, size)
    rgba = torch.cat([colors, silhouettes[..., None]], -1)
    every = {"silhouettes": silhouettes, "rgb": rgba, "normals": normals, "depth": depth}
    return Targets(cameras, **{kind: every[kind] for kind in kinds})


def overlap(a: Mesh, b: Mesh, cameras: Camera, size: int = 64) -> float:
    """Intersection over union of the silhouettes, mean over the cameras."""
    one, two = seen(a, cameras, size)[0] > 0.5, seen(b, cameras, size)[0] > 0.5
    return float(((one & two).sum((1, 2)) / (one | two).sum((1, 2))).mean())


def normal_error(a: Mesh, b: Mesh, cameras: Camera, size: int = 64) -> float:
    """Mean angle in degrees between the normals, where both meshes are seen."""
    (one, _, first, _), (two, _, second, _) = seen(a, cameras, size), seen(b, cameras, size)
    both = (one > 0.5) & (two > 0.5)
    return float(torch.rad2deg(torch.acos((first * second).sum(-1).clamp(-1, 1)))[both].mean())
