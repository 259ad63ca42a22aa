"""Shapes and cameras from pictures: how close, how clean, how long.

Run: python -m benchmarks.fitting [--meshes FOLDER] [--part shapes|colours|poses] [--json FILE] [--quick]

Shapes: 32 views, evenly around, of 256 x 256 pixels (four samples each, by the hard rasteriser); `fit_mesh` with its default
settings from a ball of 1,280 faces. "normals" gives silhouettes and the surface's own normals, "colours" gives RGBA alone.
Overlap is the intersection over union of silhouettes in 16 views that the fit has not seen; normals are compared there too.
Chamfer is the mean distance between 10,000 points on either surface, over the same between two samplings of the truth (the
part of it that any view sees): 1 is as good as can be told. Bad faces are inverted or cut through others. Meshes are scaled to
radius 1. The default settings were chosen by sweeps over the same five meshes: these rows do not show how they carry over to
others.

Poses: random rotations, each found without a start among all (`fit_camera(mesh, image)`), at 128 x 128 pixels; right is within
5 degrees.

Without a GPU, or with --quick, fewer and smaller pictures. --meshes is a folder of mesh files (or of files that
--prepare FOLDER has written, pictures included, for machines without a mesh reader); without it, shapes made by formula.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from algonet.relax import BoundedSum, StudentT
from algonet.render import (
    Camera,
    FilteredCoverage,
    Mesh,
    Targets,
    fit_camera,
    fit_mesh,
    icosphere,
    render_attributes,
    render_hard,
    rotation_error,
)
from algonet.render.fitting.rotations import even_rotations, rotation_matrix
from benchmarks.harness import Row, record

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FOV, DISTANCE = 42.0, 3.0
POINTS = 10_000


class Pictures(NamedTuple):
    """Views of one mesh: `silhouettes` (N, H, W), `rgb` and `normals` (N, H, W, 3)."""

    silhouettes: Tensor
    rgb: Tensor
    normals: Tensor


class Scene(NamedTuple):
    name: str
    mesh: Mesh
    seen: Pictures
    unseen: Pictures


def around(count: int, start: float = 0.0) -> Camera:
    """Cameras evenly around the unit ball, on a Fibonacci spiral."""
    i = torch.arange(count) + 0.5
    y, angle = 1 - 2 * i / count, math.pi * (3 - math.sqrt(5)) * i + start
    ring = (1 - y * y).sqrt()
    ray = torch.stack([ring * angle.cos(), y, ring * angle.sin()], -1)
    return Camera.look_at((DISTANCE * ray).to(DEVICE), fov=FOV)


def photograph(mesh: Mesh, cameras: Camera, size: int) -> Pictures:
    """Antialiased pictures by the hard rasteriser: four samples a pixel. Normals are the faces' own."""
    own = torch.arange(len(mesh.faces), device=mesh.faces.device)[:, None].expand(-1, 3)
    parts: list[list[Tensor]] = []
    for i in range(len(cameras.matrix)):
        sized = {"size": (2 * size, 2 * size)}
        color = render_hard(mesh.vertices, mesh.faces, paint(mesh.vertices), cameras[i], **sized)
        normal = render_hard(mesh.vertices, mesh.faces, mesh.face_normals(), cameras[i], attribute_faces=own, **sized)
        layers = torch.cat([color.silhouette[..., None], color.image, normal.image], -1)
        small = torch.nn.functional.avg_pool2d(layers.movedim(-1, 0)[None], 2)[0].movedim(0, -1)
        alpha = small[..., :1]
        unit = torch.nn.functional.normalize(small[..., 4:], dim=-1) * (alpha > 0)
        parts.append([alpha[..., 0], (small[..., 1:4] / alpha.clamp_min(1e-6)).clamp(0, 1), unit])
    return Pictures(*(torch.stack(layer) for layer in zip(*parts, strict=True)))


def paint(places: Tensor) -> Tensor:
    """Colours by place: smooth, different everywhere."""
    return 0.5 + 0.4 * torch.sin(5 * places)


def procedural() -> dict[str, Mesh]:
    """A ball drawn out along its axes, and one with five arms."""
    ball = icosphere(5)
    x, y, z = ball.vertices.unbind(-1)
    horns = 0.5 + 0.5 * ball.vertices.pow(4).sum(-1)
    arms = 0.5 + 0.5 * ((1 + torch.cos(5 * torch.atan2(x, z))) / 2) ** 2 * (1 - y**2) ** 2
    shapes = {"horns": horns, "five arms": arms}
    return {name: ball.replace(vertices=ball.vertices * length[:, None]) for name, length in shapes.items()}


def scenes(folder: Path | None, views: tuple[int, int], size: int) -> list[Scene]:
    """What to fit, with its pictures."""
    if folder is None:
        found = {name: mesh.normalised().to(DEVICE) for name, mesh in procedural().items()}
    else:
        ready = sorted(folder.glob("*.npz"))
        if ready:
            return [load(path) for path in ready]
        paths = sorted(p for p in folder.iterdir() if p.suffix.lower() in (".obj", ".ply", ".stl", ".off", ".glb"))
        if not paths:
            raise SystemExit(f"{folder}: holds no mesh files")
        found = {path.stem: Mesh.load(path).normalised().to(DEVICE) for path in paths}
    cameras = around(views[0]), around(views[1], 1.0)
    return [Scene(name, mesh, *(photograph(mesh, c, size) for c in cameras)) for name, mesh in found.items()]


def save(scene: Scene, folder: Path) -> None:
    """A scene as one file of bytes, which `load` reads on a machine without a mesh reader."""
    arrays = {"vertices": scene.mesh.vertices.cpu().numpy(), "faces": scene.mesh.faces.int().cpu().numpy()}
    for kind in ("seen", "unseen"):
        silhouettes, rgb, normals = (p.cpu() for p in getattr(scene, kind))
        arrays[f"{kind}_silhouettes"] = (silhouettes * 255).round().byte().numpy()
        arrays[f"{kind}_rgb"] = (rgb * 255).round().byte().numpy()
        arrays[f"{kind}_normals"] = (normals * 127).round().to(torch.int8).numpy()
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / f"{scene.name}.npz", **arrays)  # pyright: ignore[reportArgumentType]


def load(path: Path) -> Scene:
    with np.load(path) as file:
        content = {name: torch.from_numpy(file[name]).to(DEVICE) for name in file.files}
    pictures = []
    for kind in ("seen", "unseen"):
        unit = torch.nn.functional.normalize(content[f"{kind}_normals"].float(), dim=-1)
        pictures.append(Pictures(content[f"{kind}_silhouettes"] / 255, content[f"{kind}_rgb"] / 255, unit))
    return Scene(path.stem, Mesh(content["vertices"], content["faces"].long()), *pictures)


def shape_rows(scene: Scene, kind: str, **options) -> list[Row]:
    """Fit one scene and measure the result."""
    cameras = around(len(scene.seen.silhouettes))
    if kind == "normals":
        targets = Targets(cameras, silhouettes=scene.seen.silhouettes, normals=scene.seen.normals)
    else:
        targets = Targets(cameras, rgb=torch.cat([scene.seen.rgb, scene.seen.silhouettes[..., None]], -1))
    _wait()
    started = time.perf_counter()
    fit = fit_mesh(targets, **options)
    _wait()
    seconds = time.perf_counter() - started
    overlap, degrees = compare(fit.mesh, scene)
    name = f"{scene.name}, {kind}"
    rows = [
        Row(name, overlap, "score", "overlap"),
        Row(name, chamfer(fit.mesh, scene), "difference", "Chamfer / floor"),
        Row(name, degrees, "difference", "normals, degrees"),
        Row(name, 100 * fit.quality.share, "difference", "bad faces, %"),
        Row(name, fit.quality.faces, "difference", "faces"),
        Row(name, seconds, "s", "time"),
    ]
    print(f"{name:24}" + "  ".join(f"{row.column} {row.value:.4g}" for row in rows), flush=True)
    return rows


def drawn(mesh: Mesh, cameras: Camera, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Silhouettes, unit normals and depths with noise of a quarter pixel: nearly hard, and quick on every device."""
    own = torch.arange(len(mesh.faces), device=mesh.faces.device)[:, None].expand(-1, 3)
    parts = []
    for i in range(0, len(cameras.matrix), 8):
        out = render_attributes(
            mesh.vertices, mesh.faces, mesh.face_normals(), cameras[slice(i, i + 8)], size=(size, size), attribute_faces=own,
            coverage=FilteredCoverage(StudentT(scale=0.25)), conorm=BoundedSum(32), depth_steepness=40.0,
        )  # fmt: skip
        unit = torch.nn.functional.normalize(out.image, dim=-1)
        parts.append((out.silhouette, unit, out.depth / out.silhouette.clamp_min(1e-3)))
    silhouettes, normals, depths = (torch.cat(layer) for layer in zip(*parts, strict=True))
    return silhouettes, normals, depths


def compare(mesh: Mesh, scene: Scene) -> tuple[float, float]:
    """Overlap of silhouettes, and mean angle between normals in degrees, in unseen views."""
    truth = scene.unseen
    silhouettes, normals, _ = drawn(mesh, around(len(truth.silhouettes), 1.0), truth.silhouettes.shape[1])
    one, two = truth.silhouettes > 0.5, silhouettes > 0.5
    overlap = ((one & two).sum((1, 2)) / (one | two).sum((1, 2))).mean()
    inside = (truth.silhouettes > 0.99) & (silhouettes > 0.95)
    angle = torch.acos((truth.normals * normals).sum(-1).clamp(-1, 1))[inside].mean()
    return float(overlap), math.degrees(float(angle))


def chamfer(mesh: Mesh, scene: Scene) -> float:
    """Mean distance between points on both surfaces, over that between two samplings of what is seen of the truth."""
    generator = torch.Generator().manual_seed(0)
    points = sampled(scene.mesh, 4 * POINTS, generator)
    points = points[visible(points, scene)]
    first, second = points[:POINTS], points[POINTS : 2 * POINTS]
    found = sampled(mesh, POINTS, generator)
    return float(
        (_nearest(found, first) + _nearest(first, found)) / (_nearest(second, first) + _nearest(first, second))
    )


def sampled(mesh: Mesh, count: int, generator: torch.Generator) -> Tensor:
    """Points (count, 3) spread evenly over the surface."""
    a, b, c = mesh.vertices[mesh.faces].unbind(1)
    area = torch.linalg.cross(b - a, c - a).norm(dim=-1).double().cpu()
    face = torch.multinomial(area / area.sum(), count, True, generator=generator).to(mesh.vertices.device)
    u, w = torch.rand(count, 2, generator=generator).to(mesh.vertices).split(1, -1)
    u = u.sqrt()
    return (1 - u) * a[face] + u * (1 - w) * b[face] + u * w * c[face]


def visible(points: Tensor, scene: Scene) -> Tensor:
    """Which points any of the views sees; what no picture shows cannot be found."""
    found = torch.zeros(len(points), dtype=torch.bool, device=points.device)
    for cameras, pictures in ((around(len(p.silhouettes), s), p) for p, s in ((scene.seen, 0.0), (scene.unseen, 1.0))):
        size = pictures.silhouettes.shape[1]
        depths = drawn(scene.mesh, cameras, size)[2]
        for i, depth in enumerate(depths):
            x, y, z = cameras[i].project(points, (size, size)).unbind(-1)
            found |= z < depth[y.long().clamp(0, size - 1), x.long().clamp(0, size - 1)] + 0.02
    return found


def _nearest(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([torch.cdist(part, b).amin(1) for part in a.split(2000)]).mean()


def pose_rows(scene: Scene, count: int, size: int) -> list[Row]:
    """Poses without a start, by colour and by silhouette alone."""
    generator = torch.Generator().manual_seed(7)
    turns = rotation_matrix(torch.randn(count, 3, generator=generator)) @ even_rotations(count)
    place = torch.tensor([[0.1, -0.05, DISTANCE]]).expand(count, 3)
    axes = turns.to(DEVICE)
    eye = (place.to(DEVICE)[:, None] @ axes)[:, 0]
    true = Camera.look_at(eye, eye - axes[:, 2], axes[:, 1], fov=FOV)
    mesh = scene.mesh.replace(vertex_colors=paint(scene.mesh.vertices))
    pictures = photograph(mesh, true, size)
    rgba = torch.cat([pictures.rgb, pictures.silhouettes[..., None]], -1)
    rows = []
    for kind, image in (("colour", rgba), ("silhouette", pictures.silhouettes)):
        _wait()
        started = time.perf_counter()
        fit = fit_camera(mesh, image, fov=FOV)
        _wait()
        seconds = (time.perf_counter() - started) / count
        error = rotation_error(fit.camera, true)
        name = f"{scene.name}, pose by {kind}"
        rows += [
            Row(name, float((error < 5).float().mean()), "score", "within 5 degrees"),
            Row(name, float(error.median()), "difference", "median, degrees"),
            Row(name, seconds, "s", "time each"),
        ]
        print(f"{name:32}" + "  ".join(f"{row.column} {row.value:.4g}" for row in rows[-3:]), flush=True)
    return rows


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meshes", type=Path, help="folder of meshes, or of prepared scenes (.npz)")
    parser.add_argument("--prepare", type=Path, help="only write the scenes, with their pictures, into this folder")
    parser.add_argument("--part", choices=("shapes", "colours", "poses"), help="only this table")
    parser.add_argument("--only", help="only the scenes whose names these are, separated by commas")
    parser.add_argument("--poses", type=int, default=40, help="rotations per mesh")
    parser.add_argument("--json", type=Path, help="write the rows to this file; - prints them as one line")
    parser.add_argument("--quick", action="store_true", help="fewer, smaller pictures")
    options = parser.parse_args()
    small = options.quick or (DEVICE == "cpu" and options.prepare is None)
    views, size, poses = ((12, 6), 48, 6) if small else ((32, 16), 256, options.poses)
    steps = {"steps": 60, "views": 4} if small else {}
    found = scenes(options.meshes, views, size)
    if options.only:
        found = [scene for name in options.only.split(",") for scene in found if scene.name == name]
    if options.prepare is not None:
        for scene in found:
            save(scene, options.prepare)
        return
    rows: list[Row] = []
    if DEVICE == "cuda" and options.part != "poses":
        # Kernels are compiled on first use, and kept on disk: not what a fit costs
        kind = "rgb" if options.part == "colours" else "normals"
        shape_rows(found[0], kind, steps=60)
    for part, kind in (("shapes", "normals"), ("colours", "colours")):
        if options.part in (None, part):
            rows += [row for scene in found for row in shape_rows(scene, kind, **steps)]
    if options.part in (None, "poses"):
        rows += [row for scene in found for row in pose_rows(scene, poses, 48 if small else 128)]
    record(options.json, rows)


if __name__ == "__main__":
    main()
