"""Room: bend a fractal by its maps, or draw something and let gradient descent find maps for it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from nicegui import ui
from torch import Tensor

from algonet.apps import drawing
from algonet.ifs import IFS, PRESETS

from ..stage import Code, Fit, Latest, Problem, Size, canvas, choice, image, slider

Point = tuple[float, float]
POINTS = 12_000
#: The frame of a drawing.
UNIT = (0.0, 1.0, 0.0, 1.0)
#: A fit ends after so many steps or seconds.
STEPS, SECONDS, SIDE = 160, 90.0, 96
#: A drawing is at most so many points long.
LONGEST = 4000
COLOURS = ("#ff6b6b", "#ffd166", "#06d6a0", "#4cc9f0", "#b388ff", "#ff9f1c", "#f15bb5", "#a0e426")


@dataclass
class Wish:
    maps: Tensor
    extent: tuple[float, float, float, float]
    sigma: float = 1.0
    size: int = 256
    #: Strokes of the drawing, in the unit square; drawn faintly behind.
    strokes: list[list[Point]] = field(default_factory=list)
    #: An empty sheet to draw on: the maps are not shown.
    drawing: bool = False


def preset(name: str) -> tuple[Tensor, tuple[float, float, float, float]]:
    known = IFS.preset(name, points=256)
    x0, x1, y0, y1 = known.extent
    half = max(x1 - x0, y1 - y0) / 2 * 1.04
    x, y = (x0 + x1) / 2, (y0 + y1) / 2
    return known.parameters_.detach().clone(), (x - half, x + half, y - half, y + half)


def paint(wish: Wish) -> dict[str, Any]:
    """The picture, light on dark."""
    with torch.no_grad():
        system = IFS(wish.maps, extent=wish.extent, bound=0.97, points=POINTS, exposure=exposure(wish.strokes))
        # Sigma is in pixels of a picture 256 wide, so that it looks the same while the size adapts
        image = system(wish.size, sigma=max(wish.sigma * wish.size / 256, 0.3))
    glow = torch.zeros_like(image) if wish.drawing else image.clamp(0, 1) ** 0.8
    if wish.strokes:
        glow = torch.maximum(glow, (0.9 if wish.drawing else 0.32) * target(wish.strokes, wish.size))
    return {"picture": drawing.picture(drawing.coloured(glow, "magma", 0.0, 1.05)), "size": wish.size}


def target(strokes: list[list[Point]], side: int) -> Tensor:
    """A drawing as a picture (side, side): strokes as thick lines, closed ones filled."""
    import numpy as np
    from PIL import Image, ImageDraw

    sheet = Image.new("L", (4 * side, 4 * side))
    pen = ImageDraw.Draw(sheet)
    for stroke in strokes:
        line = [(x * 4 * side, y * 4 * side) for x, y in stroke]
        if len(line) > 3 and math.dist(stroke[0], stroke[-1]) < 0.12:
            pen.polygon(line, fill=255)
        pen.line(line if len(line) > 1 else line * 2, fill=255, width=max(1, side // 5), joint="curve")
    return torch.from_numpy(np.asarray(sheet.resize((side, side), Image.Resampling.BOX)).astype("float32") / 255)


def exposure(strokes: list[list[Point]]) -> float:
    """As much light as makes what is drawn bright; 1, the default, without a drawing."""
    return 2.0 * float(target(strokes, SIDE).mean()) if strokes else 1.0


def corners(maps: Tensor, extent: tuple[float, float, float, float]) -> list[list[Point]]:
    """Where each map takes three corners of the frame, in the unit square of the picture (y downwards)."""
    x0, x1, y0, y1 = extent
    frame = torch.tensor([[x0, y0], [x1, y0], [x0, y1]])
    found = []
    for a in maps:
        x = frame[:, 0] + a[0] + a[1] * frame[:, 0] + a[2] * frame[:, 1]
        y = frame[:, 1] + a[3] + a[4] * frame[:, 0] + a[5] * frame[:, 1]
        found.append([(float((p - x0) / (x1 - x0)), float((y1 - q) / (y1 - y0))) for p, q in zip(x, y, strict=True)])
    return found


def map_through(points: list[Point], extent: tuple[float, float, float, float]) -> Tensor:
    """The map that takes three corners of the frame to these points: the inverse of `corners`."""
    x0, x1, y0, y1 = extent
    placed = [(x0 + p * (x1 - x0), y1 - q * (y1 - y0)) for p, q in points]
    (ox, oy), (rx, ry), (ux, uy) = placed
    a, b = (rx - ox) / (x1 - x0), (ux - ox) / (y1 - y0)
    c, d = (ry - oy) / (x1 - x0), (uy - oy) / (y1 - y0)
    return torch.tensor([ox - a * x0 - b * y0, a - 1, b, oy - c * x0 - d * y0, c, d - 1])


def first_maps(goal: Tensor, count: int) -> Tensor:
    """Maps of the frame (0, 1, 0, 1) to small squares spread evenly over a picture: where a fit begins."""
    rows, columns = torch.nonzero(goal > 0.5, as_tuple=True)
    side = goal.shape[-1]
    places = torch.stack([columns + 0.5, side - 0.5 - rows], -1).float() / side
    if not len(places):
        raise ValueError("Draw something first: press and move over the picture.")
    chosen = [places[(places - places.mean(0)).norm(dim=-1).argmax()]]
    for _ in range(count - 1):  # always the place farthest from those chosen
        chosen.append(places[torch.stack([(places - c).norm(dim=-1) for c in chosen]).amin(0).argmax()])
    scale = min(0.75, math.sqrt(float((goal > 0.5).float().mean()) / count) + 0.3)
    middle = places.mean(0)
    maps = torch.zeros(count, 6)
    maps[:, [0, 3]] = torch.stack(chosen) - scale * middle
    maps[:, [1, 5]] = scale - 1
    return maps


def fitting(strokes: list[list[Point]], count: int) -> Iterator[tuple[int, Tensor, float]]:
    """Gradient descent on the maps, from blurred to sharp: each step's number, its maps and the picture's similarity."""
    goal = target(strokes, SIDE)
    system = IFS(first_maps(goal, count), extent=UNIT, bound=0.95, points=4096, exposure=exposure(strokes))
    optimizer = torch.optim.Adam([system.parameters_], lr=0.02)
    begin = time.monotonic()
    for step in range(STEPS):
        share = step / STEPS
        sigma = 7.0 * (1.0 / 7.0) ** share
        if step % 10 == 0:
            system.redraw(step)
        optimizer.param_groups[0]["lr"] = 0.02 * (1 - 0.8 * share)
        image = system(SIDE, sigma=sigma)
        blurred = _blurred(goal, sigma)
        loss = (image - blurred).square().mean() / blurred.square().mean().clamp_min(1e-4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        overlap = torch.minimum(image, blurred).sum() / torch.maximum(image, blurred).sum().clamp_min(1e-6)
        yield step + 1, system.maps.detach().clone(), float(overlap.detach())
        if time.monotonic() - begin > SECONDS:
            return


def _blurred(image: Tensor, sigma: float) -> Tensor:
    reach = math.ceil(3 * sigma)
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / sigma).square())
    kernel = (kernel / kernel.sum())[None, None]
    wide = torch.nn.functional.conv2d(image[None, None], kernel[..., None, :], padding=(0, reach))
    return torch.nn.functional.conv2d(wide, kernel[..., None], padding=(reach, 0))[0, 0]


def code(name: str | None, wish: Wish) -> str:
    if wish.drawing:
        return "# Draw something, and fit it: its maps appear here."
    if name is not None:
        made = f'IFS.preset("{name}")'
    else:
        rows = ",\n    ".join("[" + ", ".join(f"{float(v):.3f}" for v in row) + "]" for row in wish.maps)
        extent = ", ".join(f"{v:.3g}" for v in wish.extent)
        made = f"IFS(torch.tensor([\n    {rows},\n]), extent=({extent}), bound=0.97, exposure={exposure(wish.strokes):.2g})"
    head = "import torch\n" if name is None else ""
    return (
        f"import matplotlib.pyplot as plt\n{head}from algonet import IFS\n\nsystem = {made}\n"
        f"image = system(256, sigma={wish.sigma:.3g})\nimage.sum().backward()      # by every number of every map\n"
        'plt.imsave("fractal.png", image.detach().clamp(0, 1) ** 0.8, cmap="magma", vmin=0, vmax=1.05)\n'
        "print(image.shape, system.parameters_.grad.shape)"
    )


def _handles(maps: Tensor, extent: tuple[float, float, float, float], size: int) -> str:
    parts = []
    for i, (o, r, u) in enumerate(corners(maps, extent)):
        colour = COLOURS[i % len(COLOURS)]
        far = (r[0] + u[0] - o[0], r[1] + u[1] - o[1])
        outline = " ".join(f"{x * size:.1f},{y * size:.1f}" for x, y in (o, r, far, u))
        look = f'stroke="{colour}" stroke-width="{size / 190:.2f}"'
        parts.append(f'<polygon points="{outline}" fill="{colour}" fill-opacity=".10" {look}/>')
        parts += [
            f'<circle cx="{x * size:.1f}" cy="{y * size:.1f}" r="{size / 55:.1f}" fill="{colour}"/>'
            for x, y in (o, r, u)
        ]
    return "".join(parts)


def thumbnail() -> str:
    """The room's first picture, small."""
    return image(paint(Wish(*preset("fern"), size=240))["picture"])


def build() -> None:
    state: dict[str, Any] = {"preset": "fern", "held": None}

    def show(found: dict[str, Any], wish: Wish) -> None:
        view.set_source(found["picture"])
        view.set_content(_handles(wish.maps, wish.extent, found["size"]) if handles.value and not wish.drawing else "")
        lines.show(code(state["preset"], wish))

    def grab(x: float, y: float) -> tuple[int, int] | None:
        """Which map, and which of its corners (3: its middle), is near."""
        best, found = 0.05, None
        for i, (o, r, u) in enumerate(corners(latest.wish.maps, latest.wish.extent)):
            middle = ((r[0] + u[0]) / 2, (r[1] + u[1]) / 2)
            for k, p in enumerate((o, r, u, middle)):
                distance = math.dist(p, (x, y)) + (0.01 if k == 3 else 0)
                if distance < best:
                    best, found = distance, (i, k)
        return found

    def drag(kind: str, x: float, y: float) -> None:
        wish: Wish = latest.wish
        if wish.drawing:
            strokes = [*wish.strokes, []] if kind == "down" else wish.strokes
            if strokes and kind != "up" and sum(map(len, strokes)) < LONGEST:
                strokes = [*strokes[:-1], [*strokes[-1], (x, y)]]
            latest.again(strokes=strokes)
        elif kind == "down":
            state["held"], state["last"] = grab(x, y), (x, y)
        elif state["held"] is not None:
            i, k = state["held"]
            points = corners(wish.maps, wish.extent)[i]
            if k == 3:
                dx, dy = x - state["last"][0], y - state["last"][1]
                points = [(p + dx, q + dy) for p, q in points]
            else:
                points[k] = (x, y)
            maps = wish.maps.clone()
            maps[i] = map_through(points, wish.extent)
            state["last"], state["preset"] = (x, y), None
            latest.again(maps=maps)

    def load(name: str) -> None:
        fit.stop()
        state["preset"] = name
        found, frame = preset(name)
        latest.again(maps=found, extent=frame, strokes=[], drawing=False)
        draw_mode.set_value(False)

    def set_drawing(on: bool) -> None:
        if on:
            fit.stop()
            latest.again(extent=UNIT, strokes=[], drawing=True)
        elif latest.wish.drawing:
            load(systems.value)

    def begin() -> Iterator[tuple[int, Tensor, float]]:
        if not latest.wish.strokes:
            raise ValueError("Draw something first: switch `draw on the picture` on, press and move.")
        steps = fitting(latest.wish.strokes, int(count.value or 2))
        state["preset"], latest.wish.drawing, latest.wish.extent = None, False, UNIT
        draw_mode.set_value(False)
        return steps

    def progress(step: int, maps: Tensor, overlap: float) -> None:
        latest.again(maps=maps)
        told.set_text(f"step {step} of {STEPS}, overlap {overlap:.2f}")

    with ui.element("div").classes("desk"):
        with ui.element("div").classes("card"):
            view = canvas(drag, alt="The fractal and its maps").classes("dark square")
            told = ui.label().classes("read").mark("read")
            problem = Problem(told)
        with ui.element("div").classes("card"):
            systems = choice("system", sorted(PRESETS), "fern", load)
            slider("softness", 0.4, 8.0, 1.0, lambda value: latest.again(sigma=value), step=0.1)
            handles = ui.switch("show the maps", value=True, on_change=lambda: latest.again()).props("dense")
            draw_mode = ui.switch("draw on the picture", on_change=lambda event: set_drawing(bool(event.value)))
            draw_mode.props("dense")
            with ui.element("div").classes("controls"):
                count = ui.number("maps", value=5, min=2, max=8, step=1).props("dense outlined").style("width: 5rem")
                fit = Fit("fit the drawing", begin, progress, problem)
            ui.label(
                "Closed shapes are filled. The fit moves the maps by the gradient of the picture, from blurred to sharp."
            ).classes("caption")
        lines = Code()
    latest = Latest(Wish(*preset("fern")), paint, show, problem, Size(380))
    latest.again()
