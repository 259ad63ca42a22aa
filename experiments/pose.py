"""Camera pose: a teapot's silhouette, from GenDR's starts and from none.

Petersen et al., "GenDR: A Generalized Differentiable Renderer" (CVPR 2022), as its code states the experiment: 200
silhouettes of 64 x 64 pixels, seen from distances in [2.5, 4] with half the angle of view 20 degrees; starts are turned
away by 15 to 35, 35 to 55 or 55 to 75 degrees, at distances in [2, 10] with half angles in [10, 30]; distance, angle of
view and rotation are fitted together, and a fit is right within 5 degrees. There, 1,000 steps of Adam, the softness
falling from 1e-1 to 1e-7; here `fit_camera(start=..., learn_fov=True)` with its default 24 steps, alone and after a search
among the rotations within 90 degrees of the start (`search=PoseSearch()`). There the camera always looks at the
middle: so it does here with `move="distance"`, though it may roll, which there it cannot, and the error counts the roll.
Rows "may shift" fit all three coordinates of its place; a shift and a turn look nearly alike at this size.
The mesh is scaled to radius 0.8. The paper shows its rates as curves over the softness; none is copied here as a number.

"no start" searches all rotations for the same silhouettes, with the true angle of view and any shift.
`--starts` picks rows by their least angle, 180 being no start: parts may run side by side.

Run: python -m experiments.pose --data FOLDER [--poses 200] [--steps 24] [--starts 15 35 55 180]
"""

from __future__ import annotations

import itertools
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algonet.fit.alignment import Move, rotation_matrix
from algonet.render import Camera, Mesh, PoseSearch, box, fit_camera, render_hard, rotation_error
from experiments.harness import Row, arguments, record, save

SIZE, HALF_ANGLE = 64, 20.0
RANGES = ((15, 35), (35, 55), (55, 75))
MOVES: tuple[Move, ...] = ("distance", True)
SHIFTED: dict[Move, str] = {"distance": "", True: ", may shift"}


def teapot(folder: Path | None) -> Mesh:
    """teapot.obj (or .npz with vertices and faces) of the folder; without one, a lopsided box."""
    if folder is None:
        part = box((1.2, 0.7, 0.5), segments=2)
        pulled = part.vertices + torch.tensor([0.0, 0.5, 0.2]) * (part.vertices[:, :1] > 0.3)
        return part.replace(vertices=pulled).normalised(0.8)
    if (folder / "teapot.npz").exists():
        with np.load(folder / "teapot.npz") as file:
            return Mesh(torch.from_numpy(file["vertices"]), torch.from_numpy(file["faces"]).long()).normalised(0.8)
    if not (folder / "teapot.obj").exists():
        raise SystemExit(f"experiments: {folder} has no teapot.obj; get the Utah teapot as a triangle mesh.")
    return Mesh.load(folder / "teapot.obj").normalised(0.8)


def eyes(distance: Tensor, elevation: Tensor, azimuth: Tensor) -> Tensor:
    """Places (N, 3) on spheres, by angles in degrees."""
    up, round_ = torch.deg2rad(elevation), torch.deg2rad(azimuth)
    ray = torch.stack([up.cos() * round_.sin(), up.sin(), up.cos() * round_.cos()], -1)
    return distance[:, None] * ray


def truths(count: int, generator: torch.Generator) -> Camera:
    """The cameras to find; elevations that look straight down are left to `up`, which then leans."""
    distance = 2.5 + 1.5 * torch.rand(count, generator=generator)
    elevation, azimuth = 60 * torch.randn(2, count, generator=generator)
    place = eyes(distance, elevation, azimuth)
    up = eyes(torch.ones(count), elevation + 90, azimuth)
    return Camera.look_at(place, up=up, fov=2 * HALF_ANGLE)


def starts(true: Camera, away: tuple[int, int], generator: torch.Generator) -> Camera:
    """Each camera turned away about an axis across its view, at another distance, with another angle of view."""
    count = len(true.matrix)
    angle = away[0] + (away[1] - away[0]) * torch.rand(count, generator=generator)
    way = torch.nn.functional.normalize(torch.randn(count, 2, generator=generator), dim=-1)
    distance = 2 + 8 * torch.rand(count, generator=generator)
    half = torch.deg2rad(10 + 20 * torch.rand(count, generator=generator))
    view = torch.nn.functional.normalize(true.matrix[:, :3, :3], dim=-1) * torch.tensor([[1.0], [1.0], [-1.0]])
    axis = torch.nn.functional.pad(way, (0, 1)) * torch.tan(torch.deg2rad(angle) / 2)[:, None]
    axes = rotation_matrix(axis) @ view
    return Camera.look_at(distance[:, None] * axes[:, 2], up=axes[:, 1], fov=torch.rad2deg(2 * half))


def main() -> None:
    options = arguments(
        __doc__, data="a folder with teapot.obj", devices=True, poses=200, steps=24, seed=1, starts=[15, 35, 55, 180]
    )
    if options.quick:
        options.poses, options.steps = 2, 5
    mesh = teapot(None if options.quick else options.data).to(options.device)
    generator = torch.Generator().manual_seed(options.seed)
    true = truths(options.poses, generator)
    placed = true.to(mesh.vertices)
    silhouettes = [
        render_hard(mesh.vertices, mesh.faces, mesh.vertices, placed[i], size=(SIZE, SIZE)).silhouette
        for i in range(options.poses)
    ]
    images = torch.stack(silhouettes)[..., None]
    search = PoseSearch(rotations=8, steps=4, refine_steps=4) if options.quick else PoseSearch()

    def fit(start: Camera, move: Move, **given: Any) -> Camera:
        return fit_camera(mesh, images, start, steps=options.steps, learn_fov=True, move=move, **given).camera

    rows = []
    for away in (away for away in RANGES if away[0] in options.starts):
        start = starts(true, away, torch.Generator().manual_seed(options.seed + away[0])).to(mesh.vertices)
        before = rotation_error(start, placed)
        assert float(before.min()) > away[0] - 1
        assert float(before.max()) < away[1] + 1
        for move, given in itertools.product(MOVES, (None, search)):
            name = f"starts {away[0]} to {away[1]} degrees away" + (", searched around" if given else "")
            rows += measured(name + SHIFTED[move], placed, partial(fit, start, move, search=given))
            save(options.json, rows, options)
    if 180 in options.starts:
        rows += measured(
            "no start",
            placed,
            lambda: fit_camera(mesh, images, fov=2 * HALF_ANGLE, search=search if options.quick else None).camera,
        )
    record(options.json, rows, options)


def measured(name: str, true: Camera, fit) -> list[Row]:
    began = time.perf_counter()
    error = rotation_error(fit(), true)
    seconds = (time.perf_counter() - began) / len(error)
    right = 100 * float((error < 5).float().mean())
    print(f"{name}: {right:.1f} % within 5 degrees, {seconds:.3f} s each", flush=True)
    return [
        Row(name, right, "score", "within 5 degrees, %"),
        Row(name, float(error.median()), "difference", "median error, degrees"),
        Row(name, seconds, "s", "time each, all at once"),
    ]


if __name__ == "__main__":
    main()
