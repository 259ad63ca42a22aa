"""The gallery's renderer: softness, what tessellation does, derivatives along a path, and fits of meshes and cameras."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from algonet.apps.drawing import gif_bytes, no_ticks, png, to_bytes
from algonet.apps.gallery import Figure

TITLE = "The smooth renderer"
INTRO = (
    "Perturb each pixel's position by a little noise and ask how likely it lands in each triangle: that probability has a "
    "closed form, is infinitely often differentiable, and adds up, so the picture hardly changes with how a surface is cut "
    "into triangles. Gradients come from everywhere: from silhouettes, from hidden faces, from far away."
)


def figures(quick: bool) -> Iterator[Figure]:
    """All figures of the section; `quick` draws smaller pictures and fits more briefly."""
    yield _softness(quick)
    yield _film_strip(quick)
    yield _turning(quick)
    yield _far_camera(quick)
    yield _tessellation(quick)
    yield _textures(quick)


def _still_life() -> Any:
    """A ring, a ball, a cylinder and a box on a chequered board, as one mesh."""
    from algonet.render import box, cylinder, icosphere, torus

    return _together(
        _board(),
        _placed(torus(0.42, 0.15, (48, 24)), (-0.45, 0.16, 0.4), (0.95, 0.5, 0.2)),
        _placed(icosphere(4, 0.36), (0.45, 0.37, 0.45), (0.25, 0.55, 0.95)),
        _placed(cylinder(0.24, 0.9, 48), (-0.55, 0.46, -0.55), (0.85, 0.3, 0.4)),
        _placed(box((0.55, 0.55, 0.55), segments=4), (0.45, 0.29, -0.5), (0.4, 0.75, 0.45), turn=0.5),
    )


def _board(cells: int = 8, side: float = 2.2, thickness: float = 0.12) -> Any:
    """A chequered board whose fields share no corners, so that their colours do not run into each other."""
    from algonet.render import Mesh

    across = torch.linspace(-side / 2, side / 2, cells + 1).tolist()
    quads, colors = [], []
    for i in range(cells):
        for j in range(cells):
            (x0, x1), (z0, z1) = across[i : i + 2], across[j : j + 2]
            quads.append([(x0, 0.0, z1), (x1, 0.0, z1), (x1, 0.0, z0), (x0, 0.0, z0)])
            colors.append((0.93, 0.9, 0.84) if (i + j) % 2 else (0.38, 0.45, 0.53))
    rim = [(-1, 1), (1, 1), (1, -1), (-1, -1), (-1, 1)]
    for (x0, z0), (x1, z1) in itertools.pairwise(rim):
        corners = [(x0, -1, z0), (x1, -1, z1), (x1, 0, z1), (x0, 0, z0)]
        quads.append([(x * side / 2, y * thickness, z * side / 2) for x, y, z in corners])
        colors.append((0.55, 0.4, 0.3))
    first = 4 * torch.arange(len(quads))[:, None]
    faces = torch.cat([first + torch.tensor([0, 1, 2]), first + torch.tensor([0, 2, 3])])
    return Mesh(torch.tensor(quads).flatten(0, 1), faces, vertex_colors=torch.tensor(colors).repeat_interleave(4, 0))


def _placed(mesh: Any, place: tuple[float, ...], color: tuple[float, ...], turn: float = 0.0) -> Any:
    """A mesh turned about the vertical axis, moved, and painted in one colour."""
    cos, sin = math.cos(turn), math.sin(turn)
    turned = mesh.vertices @ torch.tensor([[cos, 0.0, -sin], [0.0, 1.0, 0.0], [sin, 0.0, cos]])
    painted = torch.tensor(color).expand(len(mesh.vertices), 3)
    return mesh.replace(vertices=turned + torch.tensor(place), vertex_colors=painted)


def _together(*parts: Any) -> Any:
    """Several meshes as one."""
    from algonet.render import Mesh

    counts = torch.tensor([0, *(len(part.vertices) for part in parts)]).cumsum(0)
    faces = torch.cat([part.faces + first for part, first in zip(parts, counts[:-1], strict=True)])
    colors = torch.cat([part.vertex_colors for part in parts])
    return Mesh(torch.cat([part.vertices for part in parts]), faces, vertex_colors=colors)


def _photographed(mesh: Any, cameras: Any, size: int) -> Tensor:
    """RGBA pictures (..., size, size, 4) by the hard rasteriser."""
    from algonet.render import render_hard

    rendered = render_hard(mesh.vertices, mesh.faces, mesh.vertex_colors, cameras, size=(size, size))
    return torch.cat([rendered.image, rendered.silhouette[..., None]], -1)


def _show(axis: Any, picture: Tensor, **options: Any) -> None:
    axis.imshow(picture.detach().numpy(), **options)


def _lamps() -> list:
    from algonet.render import AmbientLight, PointLight

    return [AmbientLight((0.35, 0.35, 0.4)), PointLight((2.0, 3.0, 2.5), (0.7, 0.68, 0.62))]


def _softness(quick: bool) -> Figure:
    import matplotlib.pyplot as plt

    from algonet.relax import BoundedSum, StudentT
    from algonet.render import BlinnPhong, Camera, FilteredCoverage, SmoothRenderer

    size = 96 if quick else 240
    scales = (0.4, 1.0, 2.5, 6.0)
    camera = Camera.look_at((1.3, 2.3, 3.0), (0.0, 0.1, 0.0), fov=44.0)
    mesh = _still_life()
    figure, axes = plt.subplots(3, len(scales), figsize=(2.5 * len(scales), 7.6))
    for column, scale in enumerate(scales):
        coverage = FilteredCoverage(StudentT(scale=scale * size / 160))
        renderer = SmoothRenderer(
            (size, size), coverage, BoundedSum(32), surface=BlinnPhong(), background=1.0, two_sided=False
        )
        with torch.no_grad():
            out = renderer(mesh, camera, _lamps())
        _show(axes[0, column], out.rgb.clamp(0, 1))
        _show(axes[1, column], 1 - out.silhouette, cmap="gray", vmin=0, vmax=1)
        _show(axes[2, column], torch.where(out.silhouette > 0.02, out.depth, torch.nan), cmap="magma_r")
        axes[0, column].set_title(f"scale = {scale:g} px", fontsize=11)
    for axis in axes.flat:
        axis.set_axis_off()
    figure.tight_layout(pad=0.3)
    caption = "Colour, silhouette and depth as the noise widens; leftwards they tend to the hard rasteriser."
    return Figure("From sharp to soft", png(figure), caption)


def _tessellation(quick: bool) -> Figure:
    import matplotlib.pyplot as plt

    from algonet.relax import Logistic, Probabilistic, StudentT
    from algonet.render import Camera, EdgeProduct, EuclideanCoverage, FilteredCoverage, icosphere, render_attributes

    size = 28 if quick else 40
    ball = icosphere(0)
    cuts = [ball, ball.subdivided(), ball.subdivided().subdivided()]
    camera = Camera.look_at((0.4, 0.6, 2.6))
    kinds = (
        ("filtered (algonet)", FilteredCoverage(StudentT(scale=0.8)), None),
        ("product of edges", EdgeProduct(Logistic(1.5)), Probabilistic()),
        ("Euclidean distance", EuclideanCoverage(Logistic(1.5)), Probabilistic()),
    )
    figure, axes = plt.subplots(len(kinds), 4, figsize=(9.2, 6.9))
    for row, (title, coverage, conorm) in enumerate(kinds):
        pictures = []
        for mesh in cuts:
            with torch.no_grad():
                out = render_attributes(
                    mesh.vertices, mesh.faces, mesh.vertices, camera, size=(size, size), coverage=coverage, conorm=conorm,
                    two_sided=False,
                )  # fmt: skip
            pictures.append(out.silhouette)
        for column, (mesh, picture) in enumerate(zip(cuts, pictures, strict=True)):
            _show(axes[row, column], 1 - picture, cmap="gray", vmin=0, vmax=1)
            axes[row, column].set_title(f"{len(mesh.faces)} faces", fontsize=9)
        change = (pictures[2] - pictures[0]).abs()
        _show(axes[row, 3], change, cmap="inferno", vmin=0, vmax=0.5)
        axes[row, 3].set_title(f"change: {float(change.max()):.1g}", fontsize=9)
        axes[row, 0].set_ylabel(title, fontsize=10)
    for axis in axes.flat:
        no_ticks(axis)
    figure.tight_layout(pad=0.4)
    caption = (
        "The same icosahedron, its faces cut finer and finer. The filtered coverage does not notice; the others, which most "
        "soft renderers use, grow fatter with every cut."
    )
    return Figure("Independent of the tessellation", png(figure), caption)


def _textures(quick: bool) -> Figure:
    """A floor looked up as it is and in the pyramid; an atlas with uv mixed and with colours mixed."""
    import matplotlib.pyplot as plt

    from algonet.relax import BoundedSum, StudentT
    from algonet.render import AmbientLight, Camera, FilteredCoverage, Mesh, SmoothRenderer, sample_texture

    size = 48 if quick else 144
    white = (AmbientLight((1.0, 1.0, 1.0)),)
    coverage = FilteredCoverage(StudentT(scale=0.4))
    show = SmoothRenderer(size, coverage, BoundedSum(32), background=1.0, two_sided=False)
    # The floor is a dozen times as deep as what the default depth steepness is made for
    wide = SmoothRenderer(size, coverage, BoundedSum(32), depth_steepness=0.3, background=1.0, two_sided=False)
    corners = torch.tensor([[-6.0, 0.0, 3.0], [6.0, 0.0, 3.0], [6.0, 0.0, -21.0], [-6.0, 0.0, -21.0]])
    i = torch.arange(96)
    board = ((i[:, None] // 2 + i // 2) % 2).float()[..., None] * torch.tensor([0.8, 0.75, 0.7]) + 0.1
    uv = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    floor = Mesh(corners, torch.tensor([[0, 1, 2], [0, 2, 3]]), uv=uv, texture=board)
    camera = Camera.look_at((0.0, 1.3, 4.0), (0.0, 0.4, 0.0), fov=50.0)
    painted, side = _painted_ball(quick), Camera.look_at((0.6, 0.8, 2.2), fov=45.0)
    with torch.no_grad():
        flat = wide(floor.replace(texture=None), camera, white, uv)
        places = flat.attributes / flat.silhouette[..., None].clamp_min(1e-4)
        opaque = flat.silhouette[..., None]
        panels = {
            "the texture as it is": sample_texture(board, places) * opaque + 1 - opaque,
            "at the level that pixels see": wide(floor, camera, white).rgb,
            "an atlas, uv mixed": show(painted.replace(seamless=True), side, white).rgb,
            "colours mixed": show(painted, side, white).rgb,
        }
    figure, axes = plt.subplots(1, 4, figsize=(11, 3))
    for axis, (title, picture) in zip(axes, panels.items(), strict=True):
        _show(axis, picture.clamp(0, 1))
        axis.set_title(title, fontsize=11)
        axis.set_axis_off()
    figure.tight_layout(pad=0.3)
    caption = (
        "Far away, a pixel covers many squares: the pyramid's level follows the footprint of pixel and noise. In an atlas "
        "neighbouring faces lie far apart: the renderer cuts faces into pieces and mixes colours, not places in the texture."
    )
    return Figure("Textures", png(figure), caption)


def _painted_ball(quick: bool) -> Any:
    """A coarse ball with an atlas of its faces, painted from pictures of a fine one."""
    from algonet.render import Camera, Targets, fit_texture, icosphere

    fine = icosphere(4 if quick else 5, 0.8)
    colors = 0.5 + 0.4 * torch.sin(14 * fine.vertices) * torch.tensor([1.0, 0.6, -1.0])
    rays = icosphere(0).vertices
    cameras = Camera.look_at(2.8 * rays, up=(0.1, 1.0, 0.2), fov=40.0)
    pictures = _photographed(fine.replace(vertex_colors=colors), cameras, 64 if quick else 160)
    return fit_texture(icosphere(2, 0.8), Targets(cameras, rgb=pictures), size=320)


def _turning(quick: bool) -> Figure:
    """An animation: the still life turns while its softness breathes."""
    from algonet.render import BlinnPhong, Camera, SmoothRenderer

    size, frames = (72, 10) if quick else (200, 24)
    mesh = _still_life()
    renderer = SmoothRenderer((size, size), surface=BlinnPhong(), background=1.0, two_sided=False)
    pictures = []
    for i in range(frames):
        angle = 2 * math.pi * i / frames
        camera = Camera.look_at((3.3 * math.sin(angle), 2.2, 3.3 * math.cos(angle)), (0.0, 0.1, 0.0), fov=44.0)
        renderer.scale.fill_(size / 160 * (0.4 + 2.2 * (0.5 - 0.5 * math.cos(angle)) ** 2))  # pyright: ignore[reportCallIssue]
        with torch.no_grad():
            rgb = renderer(mesh, camera, _lamps()).rgb
        pictures.append(to_bytes(rgb))
    return Figure(
        "Turning, and breathing",
        gif_bytes(pictures, 90),
        "One renderer whose scale swells and shrinks as the camera turns.",
    )


def _film_strip(quick: bool) -> Figure:
    import matplotlib.pyplot as plt

    from algonet.render import Camera, MeshFitter, Remesh, SmoothRenderer, Targets, icosphere

    size, views = 48, 8
    target = icosphere(4)
    x, y, z = target.vertices.unbind(-1)
    # A ball with five arms
    arms = 0.5 + 0.55 * ((1 + torch.cos(5 * torch.atan2(x, z))) / 2) ** 2 * (1 - y**2) ** 2
    target = target.replace(vertices=target.vertices * arms[:, None])
    angle = torch.arange(views) * (2 * math.pi / views)
    tilt = torch.tensor([1.1, 0.4, -1.1, -0.4]).repeat(views // 4)
    ray = torch.stack([angle.sin() * tilt.cos(), tilt.sin(), angle.cos() * tilt.cos()], -1)
    cameras = Camera.look_at(2.9 * ray, fov=42.0)
    colors = (target.vertices * 0.6 + 0.5).clamp(0, 1)
    targets = _photographed(target.replace(vertex_colors=colors), cameras, size)
    show = SmoothRenderer((96, 96), background=1.0, two_sided=False)
    looks = (0, 8, 20) if quick else (0, 10, 40, 120)
    template = icosphere(2 if quick else 3, 0.5)
    fitter = MeshFitter(
        Targets(cameras, rgb=targets), template, steps=looks[-1], views=4, scales=(3.0, 0.6), remesh=Remesh()
    )
    strip = []
    for step in looks:
        while fitter.taken < step:
            fitter.step()
        with torch.no_grad():
            strip.append(show(fitter.mesh(), cameras[0], _lamps()).rgb.clamp(0, 1))
    with torch.no_grad():
        strip.append(show(target.replace(vertex_colors=colors), cameras[0], _lamps()).rgb.clamp(0, 1))
    figure, axes = plt.subplots(1, len(strip), figsize=(2.4 * len(strip), 2.6))
    for axis, picture, step in zip(axes, strip, looks, strict=False):
        _show(axis, picture)
        axis.set_title(f"step {step}", fontsize=14)
    _show(axes[-1], strip[-1])
    axes[-1].set_title("what the pictures show", fontsize=14)
    for axis in axes:
        axis.set_axis_off()
    figure.tight_layout(pad=0.3)
    caption = "A ball takes the shape and colours of eight pictures while the noise narrows from three pixels to 0.6."
    return Figure("From pictures to a mesh", png(figure), caption)


def _chair() -> Any:
    """Six boxes, each of its own colour, and no symmetry but left and right."""
    from algonet.render import box

    legs = [(x, -0.5, z) for x in (-0.36, 0.36) for z in (-0.36, 0.36)]
    colors = ((0.85, 0.35, 0.3), (0.95, 0.65, 0.25), (0.55, 0.4, 0.75), (0.3, 0.65, 0.6))
    return _together(
        _placed(box((0.9, 0.16, 0.9), segments=2), (0.0, 0.0, 0.0), (0.3, 0.55, 0.85)),
        _placed(box((0.9, 0.9, 0.16), segments=2), (0.0, 0.53, -0.37), (0.95, 0.85, 0.45)),
        *(_placed(box((0.16, 0.84, 0.16)), leg, color) for leg, color in zip(legs, colors, strict=True)),
    )


def _far_camera(quick: bool) -> Figure:
    import matplotlib.pyplot as plt

    from algonet.render import Camera, SmoothRenderer, fit_camera, rotation_error

    mesh = _chair()
    true = Camera.look_at((1.3, 1.4, 2.6), fov=45.0)
    image = _photographed(mesh, true, 32)
    start = Camera.look_at((-2.6, 1.2, -0.8), fov=45.0)
    narrow = fit_camera(mesh, image, start, scales=(0.7, 0.7))
    annealed = fit_camera(mesh, image, start)
    size = 96 if quick else 240
    show = SmoothRenderer((size, size), background=1.0, two_sided=False, depth_steepness=9.0)
    panels = [
        ("the picture to match", true),
        ("a start from behind", start),
        ("narrow noise all along", narrow.camera),
        ("first wide, then narrow", annealed.camera),
    ]
    figure, axes = plt.subplots(1, len(panels), figsize=(2.6 * len(panels), 3.0))
    for axis, (title, camera) in zip(axes, panels, strict=True):
        with torch.no_grad():
            _show(axis, show(mesh, camera, _lamps()).rgb.clamp(0, 1))
        away = float(rotation_error(camera, true))
        axis.set_title(title if camera is true else f"{title}:\n{away:.0f}° off", fontsize=10)
        axis.set_axis_off()
    figure.tight_layout(pad=0.3)
    caption = (
        "Finding where a picture was taken from. Wide noise lets distant pictures overlap and pull, narrow noise makes the "
        "result exact. From some starts neither arrives; asked without one, fit_camera searches among all rotations."
    )
    return Figure("A camera from far away", png(figure), caption)
