"""Meshes made by formula, closed and counter-clockwise seen from outside."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from algonet.core.checks import check_integer
from algonet.core.memory import check_memory

from .meshes import Mesh
from .vectors import split_edges


def icosphere(level: int = 3, radius: float = 1.0) -> Mesh:
    """A sphere of 20 * 4^level nearly equal faces, from an icosahedron.

    >>> icosphere(1).faces.shape
    torch.Size([80, 3])
    """
    level = check_integer("icosphere", "level", level, 0, 9)
    g = (1 + math.sqrt(5)) / 2
    vertices = torch.tensor(
        [[-1, g, 0], [1, g, 0], [-1, -g, 0], [1, -g, 0], [0, -1, g], [0, 1, g],
         [0, -1, -g], [0, 1, -g], [g, 0, -1], [g, 0, 1], [-g, 0, -1], [-g, 0, 1]], dtype=torch.float64
    )  # fmt: skip
    faces = torch.tensor(
        [[0, 11, 5], [0, 5, 1], [0, 1, 7], [0, 7, 10], [0, 10, 11], [1, 5, 9], [5, 11, 4], [11, 10, 2], [10, 7, 6],
         [7, 1, 8], [3, 9, 4], [3, 4, 2], [3, 2, 6], [3, 6, 8], [3, 8, 9], [4, 9, 5], [2, 4, 11], [6, 2, 10],
         [8, 6, 7], [9, 8, 1]]
    )  # fmt: skip
    for _ in range(level):
        vertices, faces = split_edges(vertices, faces)
        vertices = torch.nn.functional.normalize(vertices, dim=-1)
    vertices = torch.nn.functional.normalize(vertices, dim=-1) * radius
    return Mesh(vertices.to(torch.get_default_dtype()), faces)


def box(size: tuple[float, float, float] = (1.0, 1.0, 1.0), segments: int = 1) -> Mesh:
    """An axis-aligned box centred on the origin, each side cut into `segments` squares both ways."""
    segments = check_integer("box", "segments", segments, 1)
    _check_faces("box", 12 * segments**2)
    steps = torch.linspace(-0.5, 0.5, segments + 1)
    first, second = torch.meshgrid(steps, steps, indexing="ij")
    sheets, quads = [], []
    for axis in range(3):
        for side in (-0.5, 0.5):
            grid = [first.flatten(), second.flatten()] if side > 0 else [second.flatten(), first.flatten()]
            columns = [torch.full_like(grid[0], side)] * 3
            columns[(axis + 1) % 3], columns[(axis + 2) % 3] = grid
            quads.append(_grid_faces(segments + 1, segments + 1, False, False) + len(sheets) * (segments + 1) ** 2)
            sheets.append(torch.stack(columns, -1))
    vertices, faces = _merged(torch.cat(sheets), torch.cat(quads))
    return Mesh(vertices * torch.tensor(size), faces)


def torus(radius: float = 0.7, tube: float = 0.3, segments: tuple[int, int] = (48, 24)) -> Mesh:
    """A ring around the y axis: `radius` to the middle of the tube, `tube` the tube's own."""
    for n in segments:
        check_integer("torus", "segments", n, 3)
    _check_faces("torus", 2 * segments[0] * segments[1])
    u = torch.arange(segments[0]) * (2 * math.pi / segments[0])
    v = torch.arange(segments[1]) * (2 * math.pi / segments[1])
    u, v = torch.meshgrid(u, v, indexing="ij")
    ring = radius + tube * v.cos()
    vertices = torch.stack([ring * u.cos(), tube * v.sin(), ring * u.sin()], -1).reshape(-1, 3)
    return Mesh(vertices, _grid_faces(*segments, True, True).flip(-1))


def cylinder(radius: float = 0.5, height: float = 1.0, segments: int = 32) -> Mesh:
    """A closed cylinder around the y axis."""
    segments = check_integer("cylinder", "segments", segments, 3)
    _check_faces("cylinder", 4 * segments)
    angle = torch.arange(segments) * (2 * math.pi / segments)
    outline = torch.stack([radius * angle.cos(), radius * angle.sin()], -1)
    upright = extrusion(outline, height)
    x, y, z = upright.vertices.unbind(-1)
    return Mesh(torch.stack([x, z, -y], -1), upright.faces)


def extrusion(outline: Tensor, height: float = 1.0) -> Mesh:
    """A prism over a star-shaped polygon: `outline` (n, 2), counter-clockwise and seen whole from its mean, along z."""
    if outline.dim() != 2 or outline.shape[-1] != 2 or len(outline) < 3:
        raise ValueError(f"extrusion: `outline` must be (n, 2) with n at least 3, got {tuple(outline.shape)}.")
    n = len(outline)
    centre = outline.mean(0, keepdim=True)
    flat = torch.cat([outline, centre])
    low = torch.cat([flat, torch.full_like(flat[:, :1], -height / 2)], -1)
    high = torch.cat([flat, torch.full_like(flat[:, :1], height / 2)], -1)
    i = torch.arange(n)
    j = (i + 1) % n
    middle = torch.full_like(i, n)
    sides = [(i, j, j + n + 1), (i, j + n + 1, i + n + 1)]
    caps = [(middle, j, i), (middle + n + 1, i + n + 1, j + n + 1)]
    return Mesh(torch.cat([low, high]), torch.cat([torch.stack(t, -1) for t in (*sides, *caps)]))


def _grid_faces(rows: int, columns: int, wrap_rows: bool, wrap_columns: bool) -> Tensor:
    """Two triangles per cell of a grid of rows x columns vertices, optionally closed into a ring."""
    i, j = torch.meshgrid(
        torch.arange(rows if wrap_rows else rows - 1),
        torch.arange(columns if wrap_columns else columns - 1),
        indexing="ij",
    )
    a, b = i * columns + j, (i + 1) % rows * columns + j
    c, d = (i + 1) % rows * columns + (j + 1) % columns, i * columns + (j + 1) % columns
    return torch.cat([torch.stack([a, b, c], -1).reshape(-1, 3), torch.stack([a, c, d], -1).reshape(-1, 3)])


def _merged(vertices: Tensor, faces: Tensor) -> tuple[Tensor, Tensor]:
    """Vertices at the same place made one."""
    unique, index = (vertices * 1e6).round().unique(dim=0, return_inverse=True)
    first = torch.full((len(unique),), len(vertices)).scatter_reduce_(
        0, index, torch.arange(len(vertices)), reduce="amin", include_self=True
    )
    return vertices[first], index[faces]


def _check_faces(where: str, faces: int) -> None:
    """Raise if a mesh of so many faces does not fit: three 64-bit corners, the parts they are made of, and the vertices."""
    check_memory(where, f"a mesh of {faces} faces", 100 * faces)
