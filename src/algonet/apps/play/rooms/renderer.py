"""Room: turn a mesh, soften it, upload one, and let a ball take its shape."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from nicegui import ui
from torch import Tensor

from algonet.apps import drawing
from algonet.apps.drawing import to_bytes
from algonet.relax import StudentT
from algonet.render import (
    AmbientLight,
    Camera,
    DirectionalLight,
    FilteredCoverage,
    Mesh,
    MeshFitter,
    SmoothRenderer,
    Targets,
    box,
    cylinder,
    extrusion,
    icosphere,
    render_hard,
    torus,
)  # fmt: skip

from ..stage import Code, Fit, Latest, Problem, Size, canvas, choice, image, off_loop, one_line, slider, turning

#: Uploads: bytes of the file, faces of the mesh.
LARGEST, MOST_FACES = 2_000_000, 30_000
KINDS = (".obj", ".ply", ".off", ".stl")
#: A fit: pictures of this side from so many views, in rounds of so many steps, each shown; no longer than so many seconds.
SIDE, VIEWS, ROUNDS, STEPS, SECONDS = 64, 8, 24, 12, 120.0
BACKGROUND = (0.059, 0.078, 0.125)


def _star() -> Mesh:
    angle = torch.arange(10) * (math.pi / 5)
    radius = torch.tensor([1.0, 0.45]).repeat(5)
    return extrusion(torch.stack([radius * angle.sin(), radius * angle.cos()], -1), 0.5)


MESHES = {
    "torus": torus,
    "star": _star,
    "ball": lambda: icosphere(3),
    "box": lambda: box(segments=6),
    "cylinder": cylinder,
}
CALLS = {
    "torus": "torus()",
    "star": "extrusion(torch.stack([radius * angle.sin(), radius * angle.cos()], -1), 0.5)",
    "ball": "icosphere(3)",
    "box": "box(segments=6)",
    "cylinder": "cylinder()",
}
OUTLINE = "angle, radius = torch.arange(10) * (torch.pi / 5), torch.tensor([1.0, 0.45]).repeat(5)\n"
WAVES = "0.25 + 0.65 * (0.5 + 0.5 * torch.cos(2.6 * mesh.vertices + torch.tensor([0.2, 2.0, 4.2])))"
#: What of the renderer's output a layer shows, and its colours.
PICTURES = {
    "colour": ("out.rgb.clamp(0, 1)", ""),
    "silhouette": ("out.silhouette", ', cmap="magma", vmin=0, vmax=1'),
    "depth": ("((1 - (out.depth - 1.9) / 2).clamp(0, 1) * out.silhouette)", ', cmap="viridis", vmin=0, vmax=1'),
}
#: The side of a picture that is not moved, in pixels; the noise is measured in them.
FULL = 640


@dataclass
class Wish:
    mesh: Mesh
    scale: float = 1.0
    layer: str = "colour"
    azimuth: float = 0.6
    height: float = 0.45
    size: int = 256
    #: The mesh of a fit, shown beside.
    fitted: Mesh | None = None


def painted(mesh: Mesh) -> Mesh:
    """Within the unit ball, with colours by place where it has none of its own."""
    mesh = mesh.normalised()
    if mesh.vertex_colors is None and mesh.face_colors is None and mesh.texture is None:
        wave = 0.5 + 0.5 * torch.cos(2.6 * mesh.vertices + torch.tensor([0.2, 2.0, 4.2]))
        return mesh.replace(vertex_colors=0.25 + 0.65 * wave)
    return mesh


def load(name: str, data: bytes) -> Mesh:
    """A mesh from an uploaded file, which is read alone in a folder of its own: it can refer to no other."""
    ending = Path(name).suffix.lower()
    if ending not in KINDS:
        raise ValueError(f"{Path(name).name}: meshes are read as {', '.join(KINDS)}.")
    if len(data) > LARGEST:
        raise ValueError(f"{Path(name).name}: at most {LARGEST // 1_000_000} MB, this file has {len(data) / 1e6:.1f}.")
    with tempfile.TemporaryDirectory(prefix="algonet-play-") as folder:
        path = Path(folder) / f"mesh{ending}"
        path.write_bytes(data)
        try:
            mesh = Mesh.load(path)
        except (ValueError, OSError) as error:
            raise ValueError(str(error).replace(str(path), Path(name).name)) from None
    if len(mesh.faces) > MOST_FACES:
        raise ValueError(f"{Path(name).name}: at most {MOST_FACES} faces, this mesh has {len(mesh.faces)}.")
    return painted(Mesh(mesh.vertices.detach(), mesh.faces, vertex_colors=mesh.vertex_colors))


def camera(azimuth: float, height: float) -> Camera:
    across = math.cos(height)
    return Camera.look_at(
        (2.9 * math.sin(azimuth) * across, 2.9 * math.sin(height), 2.9 * math.cos(azimuth) * across), fov=45.0
    )


def paint(wish: Wish) -> dict[str, Any]:
    images = {"picture": _render(wish, wish.mesh)}
    if wish.fitted is not None:
        images["fitted"] = _render(wish, wish.fitted)
    return images


def _render(wish: Wish, mesh: Mesh) -> str:
    scale = wish.scale * wish.size / FULL  # the same look at every size
    renderer = SmoothRenderer(
        wish.size, FilteredCoverage(StudentT(df=8, scale=max(scale, 0.2))), shading="vertex", background=BACKGROUND
    )
    lights = (AmbientLight((0.45, 0.45, 0.45)), DirectionalLight((-0.5, -0.9, -0.8), (0.75, 0.75, 0.75)))
    with torch.no_grad():
        out = renderer(mesh, camera(wish.azimuth, wish.height), lights)
    if wish.layer == "silhouette":
        return drawing.picture(drawing.coloured(out.silhouette, "magma", 0.0, 1.0))
    if wish.layer == "depth":
        near = (1.0 - (out.depth - 1.9) / 2.0).clamp(0, 1) * out.silhouette
        return drawing.picture(drawing.coloured(near, "viridis", 0.0, 1.0))
    return drawing.picture(to_bytes(out.rgb))


def around() -> Camera:
    angle = torch.arange(VIEWS) * (2 * math.pi / VIEWS)
    tilt = torch.tensor([0.5, -0.5]).repeat(VIEWS // 2)
    eye = 2.9 * torch.stack([angle.sin() * tilt.cos(), tilt.sin(), angle.cos() * tilt.cos()], -1)
    return Camera.look_at(eye, fov=45.0)


def targets(mesh: Mesh) -> Tensor:
    """The mesh from all around, crisp: colours with alpha (N, H, W, 4)."""
    colors = mesh.vertex_colors if mesh.vertex_colors is not None else torch.full_like(mesh.vertices, 0.7)
    rendered = render_hard(mesh.vertices, mesh.faces, colors, around(), size=(SIDE, SIDE))
    return torch.cat([rendered.image, rendered.silhouette[..., None]], -1)


def fitting(mesh: Mesh) -> Iterator[tuple[int, Mesh, float]]:
    """A ball becomes the mesh, from pictures alone: after each round the steps taken, the present mesh and its loss."""
    fitter = MeshFitter(
        Targets(around(), rgb=targets(mesh)), icosphere(3, 0.7), steps=ROUNDS * STEPS, views=4, scales=(3.0, 0.7)
    )
    begin = time.monotonic()
    for done in range(1, ROUNDS + 1):
        for _ in range(STEPS):
            fitter.step()
        found = fitter.result()
        yield done * STEPS, found.mesh, found.history[-1]["pictures"]
        if time.monotonic() - begin > SECONDS:
            return


def code(name: str, wish: Wish) -> str:
    """The lines that draw what is seen, or, while a ball takes the mesh's shape, those that fit it."""
    made = CALLS.get(name, f"Mesh.load({name!r})")
    kind, fits = made.partition("(")[0].partition(".")[0], wish.fitted is not None
    head = "import torch\n" if fits else "import matplotlib.pyplot as plt\nimport torch\n"
    mesh = (
        f"{OUTLINE if name == 'star' else ''}mesh = {made}.normalised()\n"
        f"if mesh.vertex_colors is None:\n    mesh = mesh.replace(vertex_colors={WAVES})\n"
    )
    if fits:
        names = dict.fromkeys(("Camera", "Targets", "fit_mesh", "icosphere", "render_hard", kind))
        return (
            f"{head}from algonet.render import {', '.join(names)}\n\n{mesh}"
            f"angle = torch.arange({VIEWS}) * (2 * torch.pi / {VIEWS})\n"
            f"tilt = torch.tensor([0.5, -0.5]).repeat({VIEWS // 2})\n"
            "eyes = 2.9 * torch.stack([angle.sin() * tilt.cos(), tilt.sin(), angle.cos() * tilt.cos()], -1)\n"
            "cameras = Camera.look_at(eyes, fov=45.0)\n"
            f"seen = render_hard(mesh.vertices, mesh.faces, mesh.vertex_colors, cameras, size=({SIDE}, {SIDE}))\n"
            "targets = Targets(cameras, rgb=torch.cat([seen.image, seen.silhouette[..., None]], -1))\n"
            f"fit = fit_mesh(targets, template=icosphere(3, 0.7), steps={ROUNDS * STEPS}, views=4, scales=(3.0, 0.7))\n"
            'fit.mesh.save("fitted.obj")\nprint(fit)'
        )
    eye = ", ".join(f"{float(v):.2f}" for v in camera(wish.azimuth, wish.height).position)
    pixels, colours = PICTURES[wish.layer]
    return (
        f"{head}from algonet import Camera, FilteredCoverage, SmoothRenderer, StudentT\n"
        f"from algonet.render import AmbientLight, DirectionalLight, {kind}\n\n{mesh}"
        f"coverage = FilteredCoverage(StudentT(df=8, scale={wish.scale:.3g}))\n"
        f'renderer = SmoothRenderer({FULL}, coverage, shading="vertex", background={BACKGROUND})\n'
        "lights = AmbientLight((0.45, 0.45, 0.45)), DirectionalLight((-0.5, -0.9, -0.8), (0.75, 0.75, 0.75))\n"
        f"out = renderer(mesh, Camera.look_at(({eye}), fov=45.0), lights)\n"
        f'plt.imsave("mesh.png", {pixels}.detach().numpy(){colours})\n'
        "print(out.rgb.shape, float(out.silhouette.mean()))"
    )


def thumbnail() -> str:
    """The room's first picture, small."""
    return image(paint(Wish(painted(torus()), size=240))["picture"])


def build() -> None:
    state, drag = {"name": "torus"}, turning(lambda: latest, -1.4)

    def show(found: dict[str, Any], wish: Wish) -> None:
        view.set_source(found["picture"])
        beside.set_visibility("fitted" in found)
        if "fitted" in found:
            second.set_source(found["fitted"])
        lines.show(code(state["name"], wish))

    def take(name: str, mesh: Mesh | None = None) -> None:
        mesh = painted(MESHES[name]()) if mesh is None else mesh
        fit.stop()
        state["name"] = name
        told.set_text(f"{name}: {len(mesh.vertices)} vertices, {len(mesh.faces)} faces")
        latest.again(mesh=mesh, fitted=None)

    async def receive(event: Any) -> None:
        name = Path(event.file.name).name
        try:
            mesh = await off_loop(load, name, await event.file.read())
        except Exception as error:
            problem.say(one_line(error))
        else:
            take(name, mesh)
            meshes.set_options([*MESHES, name], value=name)
        upload.reset()

    def begin() -> Iterator[tuple[int, Mesh, float]]:
        latest.again(fitted=icosphere(3, 0.7))
        told.set_text("looking at it from eight sides")
        return fitting(latest.wish.mesh)

    def progress(step: int, mesh: Mesh, loss: float) -> None:
        latest.again(fitted=mesh)
        told.set_text(f"step {step} of {ROUNDS * STEPS}, loss of the pictures {loss:.3f}")

    with ui.element("div").classes("desk"):
        with ui.element("div").classes("card"):
            with ui.element("div").classes("pair") as both:
                both.style("grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr))")
                with ui.column().classes("gap-1"):
                    view = canvas(drag, alt="The mesh").classes("dark square")
                with ui.column().classes("gap-1") as beside:
                    second = canvas(drag, alt="The ball that takes its shape").classes("dark square")
            beside.set_visibility(False)
            told = ui.label().classes("read").mark("read")
            problem = Problem(told)
        with ui.element("div").classes("card"):
            with ui.element("div").classes("controls"):
                meshes = choice("mesh", list(MESHES), "torus", lambda name: take(name) if name in MESHES else None)
                choice("layer", list(PICTURES), "colour", lambda value: latest.again(layer=value))
            slider(
                "softness",
                -0.3,
                1.6,
                0.0,
                lambda value: latest.again(scale=10**value),
                shown=lambda v: f"{10**v:.2g} px",
            )
            upload = (
                ui.upload(
                    label="upload OBJ, PLY, OFF or STL", auto_upload=True, max_file_size=LARGEST, on_upload=receive
                )
                .props(f'accept="{",".join(KINDS)}" flat bordered')
                .classes("w-full")
            )
            upload.on(
                "rejected", lambda: problem.say(f"Meshes are {', '.join(KINDS)} of at most {LARGEST // 1_000_000} MB.")
            )
            fit = Fit("fit a ball to it", begin, progress, problem)
        lines = Code()
    latest = Latest(Wish(painted(torus())), paint, show, problem, Size(FULL))
    take("torus")
