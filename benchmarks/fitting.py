"""Shapes and cameras from pictures: how close, how clean, how long.

Run: python -m benchmarks.fitting [--meshes FOLDER] [--part normals|colours|silhouettes|poses] [--json FILE] [--quick]

Shapes: 32 views, evenly around, of 256 x 256 pixels (four samples each, by the hard rasteriser); `fit_mesh` with its
default settings. The figures are of fits that began with a ball of 1,280 faces; since 0.3 `fit_mesh` begins with the visual
hull. "normals" gives silhouettes and the surface's own normals, "colours" gives RGBA alone, "silhouettes" nothing else:
hollows that no outline shows cannot be found then. Overlap is the intersection over union of silhouettes in 16 views that
the fit has not seen; normals are compared there too. Truth and fit are photographed alike, so that the truth itself would
score 1 and 0 degrees. Chamfer is the mean distance between 10,000 points on either surface, over the same between two
samplings of the truth (the part of it that any view sees): 1 is as good as can be told. Bad faces are inverted or cut
through others. Meshes are scaled to radius 1. The default settings were chosen by sweeps over the five meshes: their rows
do not show how the settings carry over to others; "horns" and "five arms", made by formula, took no part in that.

Poses: random rotations, each found without a start among all (`fit_camera(mesh, image)`), at 128 x 128 pixels; right is
within 5 degrees of the truth, or, by silhouette, of a turn of it under which the shape is the same (24 of the horns, 10 of
the arms). "time each" shares one call with all pictures, "time alone" is a call with one.

Without a GPU, or with --quick, fewer and smaller pictures. --meshes is a folder of mesh files, fitted besides the two shapes
made by formula.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from algonet.fit.alignment import even_rotations, rotation_matrix
from algonet.relax import BoundedSum, StudentT
from algonet.render import (
    Camera,
    FilteredCoverage,
    Mesh,
    PoseSearch,
    Targets,
    fit_camera,
    fit_mesh,
    icosphere,
    render_attributes,
    render_hard,
    rotation_error,
)
from benchmarks.harness import Row, record, save

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FOV, DISTANCE = 42.0, 3.0
POINTS = 10_000
#: What shapes are fitted to.
KINDS = ("normals", "colours", "silhouettes")
T = TypeVar("T")


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
    """Antialiased pictures by the hard rasteriser: four samples a pixel. Normals are the faces' own.

    On the CPU, where it takes as long as the faces are large; a GPU's looks at every face in every pixel.
    """
    mesh, fine = mesh.to("cpu"), (2 * size, 2 * size)
    normals = mesh.face_normals()[:, None].expand(-1, 3, -1)
    corners = torch.cat([paint(mesh.vertices)[mesh.faces], normals], -1).flatten(0, 1)
    rows = torch.arange(len(corners)).reshape(-1, 3)
    parts: list[list[Tensor]] = []
    for i in range(len(cameras.matrix)):
        seen = render_hard(mesh.vertices, mesh.faces, corners, cameras[i].to("cpu"), size=fine, attribute_faces=rows)
        layers = torch.cat([seen.silhouette[..., None], seen.image], -1)
        small = torch.nn.functional.avg_pool2d(layers.movedim(-1, 0)[None], 2)[0].movedim(0, -1)
        alpha = small[..., :1]
        unit = torch.nn.functional.normalize(small[..., 4:], dim=-1) * (alpha > 0)
        parts.append([alpha[..., 0], (small[..., 1:4] / alpha.clamp_min(1e-6)).clamp(0, 1), unit])
    return Pictures(*(torch.stack(layer).to(DEVICE) for layer in zip(*parts, strict=True)))


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


def symmetries(name: str) -> Tensor:
    """Turns (S, 3, 3) after which the shape is the same."""
    if name == "horns":
        signed = [[s * float(i == p) for i in range(3)] for p in range(3) for s in (1, -1)]
        turns = torch.tensor(list(itertools.permutations(signed, 3)))
        turns = turns[(turns @ turns.mT - torch.eye(3)).abs().amax((1, 2)) < 1e-6]
        return turns[torch.linalg.det(turns) > 0]
    if name == "five arms":
        angle = 2 * math.pi / 5 * torch.arange(5)
        zero, one = torch.zeros(5), torch.ones(5)
        around_y = [angle.cos(), zero, angle.sin(), zero, one, zero, -angle.sin(), zero, angle.cos()]
        fifths = torch.stack(around_y, -1).reshape(5, 3, 3)
        return torch.cat([fifths, fifths @ torch.diag(torch.tensor([-1.0, -1.0, 1.0]))])
    return torch.eye(3)[None]


def meshes(folder: Path | None) -> dict[str, Mesh]:
    """The shapes by formula, after those of the folder's files."""
    found = {}
    if folder is not None:
        paths = sorted(p for p in folder.glob("*") if p.suffix.lower() in (".obj", ".ply", ".stl", ".off", ".glb"))
        if not paths:
            raise SystemExit(f"{folder}: holds no mesh files (.obj, .ply, .stl, .off or .glb)")
        found = {path.stem: Mesh.load(path) for path in paths}
    return {name: mesh.normalised().to(DEVICE) for name, mesh in (found | procedural()).items()}


def scenes(found: dict[str, Mesh], views: tuple[int, int], size: int) -> list[Scene]:
    """What to fit, with its pictures."""
    cameras = around(views[0]), around(views[1], 1.0)
    return [Scene(name, mesh, *(photograph(mesh, c, size) for c in cameras)) for name, mesh in found.items()]


def shape_rows(scene: Scene, kind: str, **options) -> list[Row]:
    """Fit one scene and measure the result."""
    cameras = around(len(scene.seen.silhouettes))
    silhouettes, rgb, normals = scene.seen
    given = {
        "normals": {"silhouettes": silhouettes, "normals": normals},
        "colours": {"rgb": torch.cat([rgb, silhouettes[..., None]], -1)},
        "silhouettes": {"silhouettes": silhouettes},
    }
    targets = Targets(cameras, **given[kind])
    seconds, fit = _timed(lambda: fit_mesh(targets, **options))
    if len(fit.history) < options.get("steps", signature(fit_mesh).parameters["steps"].default):
        # `fit_mesh` answers an interrupt with what it has, which is no measurement
        raise KeyboardInterrupt
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
            coverage=FilteredCoverage(StudentT(scale=0.25)), conorm=BoundedSum(32), depth_steepness=20.0,
        )  # fmt: skip
        unit = torch.nn.functional.normalize(out.image, dim=-1)
        parts.append((out.silhouette, unit, out.depth))
    silhouettes, normals, depths = (torch.cat(layer) for layer in zip(*parts, strict=True))
    return silhouettes, normals, depths


def compare(mesh: Mesh, scene: Scene) -> tuple[float, float]:
    """Overlap of silhouettes, and mean angle between normals in degrees, in unseen views photographed alike."""
    truth = scene.unseen
    found = photograph(mesh, around(len(truth.silhouettes), 1.0), truth.silhouettes.shape[1])
    one, two = truth.silhouettes > 0.5, found.silhouettes > 0.5
    overlap = ((one & two).sum((1, 2)) / (one | two).sum((1, 2))).mean()
    inside = (truth.silhouettes > 0.99) & (found.silhouettes > 0.99)
    angle = torch.acos((truth.normals * found.normals).sum(-1).clamp(-1, 1))[inside].mean()
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


def pose_rows(name: str, mesh: Mesh, count: int, size: int, seed: int, search: PoseSearch | None) -> list[Row]:
    """Poses without a start, by colour and by silhouette alone."""
    true = random_cameras(count, seed)
    mesh = mesh.replace(vertex_colors=paint(mesh.vertices))
    pictures = photograph(mesh, true, size)
    rgba = torch.cat([pictures.rgb, pictures.silhouettes[..., None]], -1)
    rows = []
    for kind, image in (("colour", rgba), ("silhouette", rgba[..., 3:])):
        # The first call compiles kernels, which are kept on disk: not what a search costs
        fit_camera(mesh, image[0], fov=FOV, search=search)
        alone, _ = _timed(lambda image=image: fit_camera(mesh, image[0], fov=FOV, search=search))
        seconds, fit = _timed(lambda image=image: fit_camera(mesh, image, fov=FOV, search=search))
        same = symmetries(name) if kind == "silhouette" else torch.eye(3)[None]
        error = torch.stack([rotation_error(fit.camera, turned(true, turn.to(DEVICE))) for turn in same]).amin(0)
        workload = f"{name}, pose by {kind}"
        rows += [
            Row(workload, float((error < 5).float().mean()), "score", "within 5 degrees"),
            Row(workload, float(error.median()), "difference", "median, degrees"),
            Row(workload, seconds / count, "s", "time each"),
            Row(workload, alone, "s", "time alone"),
        ]
        print(f"{workload:32}" + "  ".join(f"{row.column} {row.value:.4g}" for row in rows[-4:]), flush=True)
        missed = [f"{i}: {float(error[i]):.0f}" for i in (error >= 5).nonzero()[:, 0].tolist()]
        print(*(["  missed, by degrees:", ", ".join(missed)] if missed else []), flush=True)
    return rows


def random_cameras(count: int, seed: int) -> Camera:
    """Cameras of all directions of view and rolls, which look a little past the middle."""
    generator = torch.Generator().manual_seed(seed)
    axes = (rotation_matrix(torch.randn(count, 3, generator=generator)) @ even_rotations(count)).to(DEVICE)
    place = torch.tensor([[0.1, -0.05, DISTANCE]]).expand(count, 3).to(DEVICE)
    eye = (place[:, None] @ axes)[:, 0]
    return Camera.look_at(eye, eye - axes[:, 2], axes[:, 1], fov=FOV)


def turned(cameras: Camera, turn: Tensor) -> Camera:
    """The cameras that see a mesh turned by `turn` (3, 3) as these see it."""
    rigid = torch.eye(4, device=turn.device)
    rigid[:3, :3] = turn.mT
    return Camera(cameras.matrix @ rigid, cameras.position @ turn.mT)


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    """Seconds, and what came out."""
    _wait()
    started = time.perf_counter()
    result = call()
    _wait()
    return time.perf_counter() - started, result


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meshes", type=Path, help="folder of mesh files")
    parser.add_argument("--part", choices=(*KINDS, "poses"), help="only this table")
    parser.add_argument("--only", help="only the shapes whose names these are, separated by commas")
    parser.add_argument("--poses", type=int, help="rotations per mesh (40)")
    parser.add_argument("--seed", type=int, default=7, help="of the rotations")
    parser.add_argument("--json", type=Path, help="write the rows to this file; - prints them as one line")
    parser.add_argument("--quick", action="store_true", help="fewer, smaller pictures")
    options = parser.parse_args()
    small = options.quick or DEVICE == "cpu"
    views, size = ((12, 6), 48) if small else ((32, 16), 256)
    steps = {"steps": 60, "views": 4} if small else {}
    found = meshes(options.meshes)
    if options.only:
        found = {name: found[name] for name in options.only.split(",")}
    rows: list[Row] = []
    if options.part != "poses":
        kinds = [kind for kind in KINDS if options.part in (None, kind)]
        for i, (name, mesh) in enumerate(found.items()):
            (scene,) = scenes({name: mesh}, views, size)
            for kind in kinds if DEVICE == "cuda" and i == 0 else []:
                # Kernels are compiled on first use, and kept on disk: not what a fit costs
                shape_rows(scene, kind, steps=60)
            for kind in kinds:
                rows += shape_rows(scene, kind, **steps)
                save(options.json, rows)
    if options.part in (None, "poses"):
        poses, size = (options.poses or 2, 48) if small else (options.poses or 40, 128)
        search = PoseSearch(rotations=32, steps=6, size=24, faces=500, keep=4, refine_steps=6) if small else None
        for name, mesh in found.items():
            rows += pose_rows(name, mesh, poses, size, options.seed, search)
            save(options.json, rows)
    record(options.json, rows)


if __name__ == "__main__":
    main()
