"""How good a reconstruction is: voxel intersection over union and Chamfer distance between meshes."""

from __future__ import annotations

import torch
from torch import Tensor

from algonet.render import Mesh

from .config import RunConfig
from .data import Shapes, surface_points
from .fractal_evaluate import fractal_rows
from .model import Trainable


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
    # Off the grid by irrational shares, so that no ray meets an edge or a vertex of a regular mesh
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


@torch.no_grad()
def evaluate_meshes(model: Trainable | None, data: Shapes, start: Mesh, resolution: int = 32) -> dict[str, float]:
    """Mean IoU and Chamfer distance of a model's reconstructions (of the template `start`, without one) on all of `data`."""
    scores, distances = [], []
    device = start.vertices.device if model is None else next(model.parameters()).device
    for index in range(len(data)):
        found = start
        if model is not None:
            found = start.to(device).replace(vertices=model.reconstruct(data[index]["a"][None].to(device))[0])
        true = data.mesh(index)
        scores.append(iou(occupancy(found, resolution).cpu(), occupancy(true.to(device), resolution).cpu()))
        distances.append(chamfer(found, true))
    return {"iou": sum(scores) / len(scores), "chamfer": sum(distances) / len(distances)}


def report(model: Trainable, config: RunConfig) -> list[str]:
    """One line each for where the model began and where it is, on the configuration's held-out items."""
    from .build import build_data, template

    data = build_data(config, "test")
    if isinstance(data, Shapes):
        start = template(config).to(next(model.parameters()).device)
        rows = {"template": evaluate_meshes(None, data, start), config.method: evaluate_meshes(model, data, start)}
    else:
        rows = fractal_rows(model, config, data)  # pyright: ignore[reportArgumentType]
    shown = [(name, "  ".join(f"{key} {value:.3f}" for key, value in row.items())) for name, row in rows.items()]
    return [f"{name:>12}: {text}  ({len(data)} held-out items)" for name, text in shown]
