"""Find a camera from far away: does annealing the noise's scale help?

Fifty random starts, each turned by up to 90 degrees about a random axis; a start succeeds if the found camera is within ten
degrees of the true one. The same with the scale held constant.

    python examples/render_camera.py --starts 50 --size 32 --steps 160
"""

from __future__ import annotations

import argparse

import torch

from algonet.fit import rotation_matrix
from algonet.render import Camera, Mesh, box, fit_camera, render_hard, rotation_error


def wedge() -> Mesh:
    """A box with one end pulled up and forward, and a colour gradient: no two views look the same."""
    mesh = box((1.2, 0.7, 0.5), segments=2)
    pulled = mesh.vertices + torch.tensor([0.0, 0.5, 0.2]) * (mesh.vertices[:, :1] > 0.3)
    return mesh.replace(vertices=pulled, vertex_colors=(mesh.vertices + 0.65) / 1.3)


def turned(camera: Camera, count: int, most: float, seed: int) -> Camera:
    """`count` copies of the camera, each turned about the origin by up to `most` degrees."""
    generator = torch.Generator().manual_seed(seed)
    axis = torch.nn.functional.normalize(torch.randn(count, 3, generator=generator), dim=-1)
    angle = torch.rand(count, 1, generator=generator) * most
    rotation = rotation_matrix(axis * torch.tan(torch.deg2rad(angle) / 2))
    rigid = torch.eye(4).repeat(count, 1, 1)
    rigid[:, :3, :3] = rotation
    return Camera(
        camera.matrix @ rigid, (rotation.mT @ camera.position[:, None])[..., 0], camera.perspective, camera.near
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    mesh = wedge()
    true = Camera.look_at((0.5, 0.8, 2.6), fov=45.0)
    size = (arguments.size, arguments.size)
    seen = render_hard(mesh.vertices, mesh.faces, mesh.vertex_colors, true, size=size)
    pictures = {"colour": torch.cat([seen.image, seen.silhouette[..., None]], -1), "silhouette": seen.silhouette}
    starts = turned(true, arguments.starts, 90.0, arguments.seed)
    before = rotation_error(starts, true)
    print(f"starts: {arguments.starts}, median {before.median():.0f} degrees away, at most {before.max():.0f}")
    for name, image in pictures.items():
        for title, scales in (("annealed", None), ("constant 0.7", (0.7, 0.7)), ("constant 2", (2.0, 2.0))):
            fit = fit_camera(mesh, image, starts, steps=arguments.steps, scales=scales)
            error = rotation_error(fit.camera, true)
            print(
                f"{name:10} {title:12}: {(error < 10).float().mean():4.0%} within 10 degrees, median {error.median():.1f}"
            )


if __name__ == "__main__":
    main()
