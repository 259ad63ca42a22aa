"""Textured faces cut into pieces that have one colour per corner: a texture without uv that could be mixed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from algonet.core.cache import TENSORS
from algonet.core.checks import broadcast_shapes

from .textures import TEXEL_SPREAD, sample_pyramid

if TYPE_CHECKING:
    from .meshes import Mesh

#: As many pieces as pixels, within these bounds: seen whole, a mesh then has pieces of about a pixel.
LEAST_PIECES, MOST_PIECES = 1 << 14, 1 << 18
#: Standard deviation, in edges of a piece, of what a corner's colour is the mean over: what lies between corners counts too.
PIECE_SPREAD = 0.3
#: Corners are looked up so far, in edges of a piece, inside their face: texels beyond it may belong to any other.
INSIDE = 0.35


class Pieces(NamedTuple):
    """`vertices` and `normals` (*B, P, 3) and `faces` (Q, 3) of the pieces; `table` (*B, P, 3 + C): colour and attributes."""

    vertices: Tensor
    normals: Tensor
    faces: Tensor
    table: Tensor


def cut_faces(mesh: Mesh, size: tuple[int, int], attributes: Tensor | None) -> Pieces:
    """The mesh with each face cut into k^2 pieces for a picture of `size`; k depends on shapes only.

    The surface stays what it was, and additive coverage shows the same silhouette. Linear in vertices, texture and attributes.
    """
    assert mesh.texture is not None
    assert mesh.uv is not None
    faces, texture = mesh.faces.long(), mesh.texture.to(mesh.vertices)
    k = _cuts(len(faces), size, int(texture.shape[-3]) * int(texture.shape[-2]))
    lattice, cells = _lattice(k, mesh.vertices), _cells(k, mesh.faces.device)
    corners = mesh.uv.to(mesh.vertices)[(faces if mesh.uv_faces is None else mesh.uv_faces.long())]
    places = (lattice + INSIDE / k) / (1 + 3 * INSIDE / k)
    uv = torch.einsum("ni,fic->fnc", places, corners)
    uv = uv.expand(*texture.shape[:-3], *uv.shape)
    level = _piece_levels(corners, k, texture)[:, None].expand(uv.shape[:-1])
    colors = sample_pyramid(texture, uv, level).flatten(-3, -2)
    normals = _along(mesh.vertex_normals(), faces, lattice)
    table = colors
    if attributes is not None and attributes.shape[-1]:
        more = _along(attributes.to(mesh.vertices), faces, lattice)
        batch = broadcast_shapes(colors.shape[:-2], more.shape[:-2])
        table = torch.cat([colors.expand(*batch, -1, -1), more.expand(*batch, -1, -1)], -1)
    first = torch.arange(len(faces), device=faces.device)[:, None, None] * lattice.shape[0]
    return Pieces(_along(mesh.vertices, faces, lattice), normals, (first + cells).flatten(0, 1), table)


def _cuts(faces: int, size: tuple[int, int], texels: int) -> int:
    """How many pieces an edge is cut into; pieces smaller than texels show nothing more."""
    wanted = min(max(size[0] * size[1], LEAST_PIECES), MOST_PIECES, 2 * texels)
    return max(1, math.isqrt(wanted // faces))


def _along(values: Tensor, faces: Tensor, lattice: Tensor) -> Tensor:
    """Values (*B, V, C) of vertices at the lattice of every face, (*B, F n, C)."""
    return torch.einsum("ni,...fic->...fnc", lattice, values[..., faces, :]).flatten(-3, -2)


def _piece_levels(corners: Tensor, k: int, texture: Tensor) -> Tensor:
    """The level (F,) of the texture's pyramid whose texels are as wide as the k^2 pieces of each face with uv (F, 3, 2)."""
    edges = (corners - corners.roll(1, 1)) * corners.new_tensor([texture.shape[-2], texture.shape[-3]])
    squares = edges.square().sum((-2, -1)) / (3 * k * k)
    return torch.log2(1 + (squares * (PIECE_SPREAD / TEXEL_SPREAD) ** 2).clamp_max(1e18)) / 2


def _lattice(k: int, like: Tensor) -> Tensor:
    """Shares (n, 3) of the corners at the points of a triangle whose edges are cut into k."""

    def make() -> Tensor:
        rows = [(i / k, j / k, (k - i - j) / k) for i in range(k + 1) for j in range(k + 1 - i)]
        return torch.tensor(rows, dtype=like.dtype, device=like.device)

    return TENSORS.get(("lattice", k, like.dtype, like.device), make)


def _cells(k: int, device: torch.device) -> Tensor:
    """The k^2 pieces (k^2, 3) of such a triangle, turning the way it does."""
    return TENSORS.get(("cells of a lattice", k, device), lambda: torch.tensor(_cell_rows(k), device=device))


def _cell_rows(k: int) -> list[tuple[int, int, int]]:
    number = {}
    for i in range(k + 1):
        for j in range(k + 1 - i):
            number[i, j] = len(number)
    cells = []
    for i in range(k):
        for j in range(k - i):
            cells.append((number[i + 1, j], number[i, j + 1], number[i, j]))
            if i + j < k - 1:
                cells.append((number[i + 1, j], number[i + 1, j + 1], number[i, j + 1]))
    return cells
