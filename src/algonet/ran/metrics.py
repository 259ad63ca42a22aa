"""How good a reconstruction is: intersection over union and Chamfer distance of meshes, edits between sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from algonet.render import Mesh

from .data.shapes import surface_points


def occupancy(mesh: Mesh, resolution: int = 32, extent: float = 1.0) -> Tensor:
    """Which centres of a grid over [-extent, extent]^3 lie inside a closed mesh: boolean (n, n, n) in x, y, z.

    By winding number: a ray along +z counts the faces it crosses, with the sign of their orientation, so that overlapping
    parts of a mesh make a union and back-to-front parts nothing. Cost n^2 F.

    >>> from algonet.render import icosphere
    >>> share = occupancy(icosphere(3)).float().mean()
    >>> round(float(share) * 8, 1)        # the ball's volume, 4/3 pi
    4.2
    """
    if mesh.vertices.dim() != 2:
        raise ValueError(f"occupancy: one mesh at a time, got vertices {tuple(mesh.vertices.shape)}.")
    corners = mesh.vertices.detach().double()[mesh.faces.long()]
    step = 2 * extent / resolution
    centres = -extent + step * (torch.arange(resolution, dtype=torch.float64, device=corners.device) + 0.5)
    # Moved off the grid a little, so that no ray meets an edge or a vertex of a regular mesh
    x = (centres + step * 1.37e-4)[:, None, None]
    y = (centres + step * 0.71e-4)[None, :, None]
    a, b, c = corners.unbind(1)

    def side(p: Tensor, q: Tensor) -> Tensor:
        return (q[:, 0] - p[:, 0]) * (y - p[:, 1]) - (q[:, 1] - p[:, 1]) * (x - p[:, 0])

    wa, wb, wc = side(b, c), side(c, a), side(a, b)
    hit = ((wa > 0) & (wb > 0) & (wc > 0)).to(torch.int8) - ((wa < 0) & (wb < 0) & (wc < 0)).to(torch.int8)
    ix, iy, face = hit.nonzero(as_tuple=True)
    u, v, w = wa[ix, iy, face], wb[ix, iy, face], wc[ix, iy, face]
    z = (u * a[face, 2] + v * b[face, 2] + w * c[face, 2]) / (u + v + w)
    # A face crossed at height z turns the winding number of every centre below it
    below = ((z + extent) / step + 0.5).floor().clamp(0, resolution).long()
    crossings = torch.zeros(resolution, resolution, resolution + 1, dtype=torch.float64, device=corners.device)
    crossings.index_put_((ix, iy, below), hit[ix, iy, face].double(), accumulate=True)
    winding = crossings.flip(-1).cumsum(-1).flip(-1)[..., 1:]
    return winding > 0.5


def iou(a: Tensor, b: Tensor) -> float:
    """Intersection over union of two occupancies; 1 if both are empty."""
    union = float((a | b).sum())
    return float((a & b).sum()) / union if union else 1.0


def chamfer(a: Mesh, b: Mesh, count: int = 2000, seed: int = 0) -> float:
    """Mean distance from points of each surface to the other's nearest, averaged both ways."""
    random = torch.Generator().manual_seed(seed)
    first = surface_points(Mesh(a.vertices.detach().cpu(), a.faces.cpu()), count, random)
    second = surface_points(Mesh(b.vertices.detach().cpu(), b.faces.cpu()), count, random)
    apart = torch.cdist(first, second)
    return float(apart.amin(0).mean() + apart.amin(1).mean()) / 2


def edit_distance(a: list[int], b: list[int]) -> int:
    """The fewest insertions, deletions and replacements that turn one sequence into the other (Levenshtein).

    >>> edit_distance([1, 2, 3], [2, 3, 4])
    2
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]
