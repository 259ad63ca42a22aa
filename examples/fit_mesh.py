"""Shape a sphere after pictures: the inverse of rendering.

A six-horned body (or a mesh file) is painted from all around; of these pictures alone, vertices and colours of a sphere are
learned. Written are the fitted mesh and a picture of both, side by side, from directions that the fit has not seen.

    python examples/fit_mesh.py [MESH] [--steps 250] [--size 64] [--views 16] [--level 3] [--folder out]
"""

from __future__ import annotations

import argparse
import io
import math
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from algonet.core.files import write_bytes
from algonet.render import Camera, Mesh, Remesh, fit_mesh, icosphere, render_hard


def horns() -> Mesh:
    """A ball drawn out along its axes, coloured by direction."""
    ball = icosphere(4)
    length = 0.4 + 0.6 * ball.vertices.pow(4).sum(-1, keepdim=True)
    return ball.replace(vertices=ball.vertices * length, vertex_colors=ball.vertices * 0.45 + 0.5)


def around(count: int, start: float = 0.0) -> Camera:
    """Cameras on a circle around the origin, by turns from above and from below."""
    angle = start + 2 * math.pi * torch.arange(count) / count
    height = torch.where(torch.arange(count) % 2 == 0, 0.5, -0.7)
    ray = torch.nn.functional.normalize(torch.stack([angle.sin(), height, angle.cos()], -1), dim=-1)
    return Camera.look_at(3.2 * ray, fov=40.0)


def painted(mesh: Mesh, cameras: Camera, size: int) -> Tensor:
    """Colour and alpha (N, size, size, 4), by the hard rasteriser."""
    colors = torch.full_like(mesh.vertices, 0.6) if mesh.vertex_colors is None else mesh.vertex_colors
    seen = render_hard(mesh.vertices, mesh.faces, colors, cameras, size=(size, size))
    return torch.cat([seen.image, seen.silhouette[..., None]], -1)


def side_by_side(target: Tensor, fit: Tensor) -> bytes:
    """A PNG with the target's pictures above those of the fit, on white."""
    rows = [torch.cat(list(p[..., :3] + (1 - p[..., 3:])), 1) for p in (target, fit)]
    pixels = (torch.cat(rows).clamp(0, 1) * 255).round().byte()
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, "PNG")
    return file.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mesh", nargs="?", type=Path, help="a mesh file instead of the horned body")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--views", type=int, default=16)
    parser.add_argument("--level", type=int, default=3, help="subdivisions of the sphere")
    parser.add_argument("--folder", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    target = (horns() if arguments.mesh is None else Mesh.load(arguments.mesh)).normalised()
    cameras, unseen = around(arguments.views), around(4, start=math.pi / arguments.views)
    pictures = painted(target, cameras, arguments.size)
    ball = icosphere(arguments.level, 0.7)
    fit = fit_mesh(pictures, cameras, ball, steps=arguments.steps, remesh=Remesh(), progress=True)

    truth, found = painted(target, unseen, 256), painted(fit.mesh, unseen, 256)
    both, either = (truth[..., 3] * found[..., 3]).sum(), torch.maximum(truth[..., 3], found[..., 3]).sum()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    fit.mesh.save(arguments.folder / "fit_mesh.obj")
    write_bytes(arguments.folder / "fit_mesh.png", side_by_side(truth, found))
    print(
        f"{fit.quality.faces} faces ({fit.quality.share:.2%} bad) after {len(fit.history)} steps: silhouettes overlap "
        f"by {both / either:.1%} "
        f"in views not seen; written to {arguments.folder}/fit_mesh.obj and .png"
    )


if __name__ == "__main__":
    main()
