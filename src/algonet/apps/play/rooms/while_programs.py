"""Room: a WHILE-program in an editor, its surface and gradient."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from nicegui import ui
from torch import Tensor

from algonet.apps import drawing
from algonet.apps.drawing import to_bytes
from algonet.relax import BumpExit, Exit, Sech, SmoothTent, StudentT, Tent
from algonet.render import AmbientLight, Camera, DirectionalLight, FilteredCoverage, Mesh, SmoothRenderer
from algonet.while_lang import (
    LIBRARY,
    Loop,
    NonHaltingWarning,
    Program,
    While,
    WhileProgram,
    library_source,
    read_source,
)

from ..stage import Code, Latest, Problem, Size, canvas, choice, image, slider, turning

#: Bounds on what a visitor's program may cost: its text, and how often bodies of loops run in all.
LARGEST, MOST_STATEMENTS = 4000, 80
#: ... on the grid, and at the chosen point, which costs less.
GRID_RUNS, POINT_RUNS = 10_000, 200_000
GRID, SPAN = 40, 6.0
#: Where the lowest value lies in the solid picture.
GROUND = -0.45
EXITS = ("Sech", "SmoothTent", "BumpExit", "Tent")


@dataclass
class Wish:
    source: str = library_source("multiply")
    exit: str = "SmoothTent"
    steepness: float = 2.0
    solid: bool = True
    azimuth: float = 0.65
    height: float = 0.6
    at: tuple[float, float] = (3.0, 4.0)
    size: int = 256


@dataclass
class Surface:
    """The program on a grid and what is read at a point, kept while only the view changes."""

    key: tuple = ()
    place: tuple = ()
    read: str = ""
    value: Tensor = field(default_factory=lambda: torch.zeros(GRID, GRID))
    slope: Tensor = field(default_factory=lambda: torch.zeros(GRID, GRID))
    here: float = 0.0
    note: str = ""


def exit_of(name: str, steepness: float) -> Exit:
    return {"Sech": Sech(steepness), "SmoothTent": SmoothTent(1), "BumpExit": BumpExit(), "Tent": Tent()}[name]


def bounded(source: str, runs: int) -> tuple[Program, int]:
    """The program, and how many rounds each loop may take so that all of them together stay within `runs`."""
    if len(source) > LARGEST:
        raise ValueError(f"Programs here have at most {LARGEST} characters, this one has {len(source)}.")
    program = read_source(source)
    depth, statements = _measure(program.body)
    if statements > MOST_STATEMENTS or depth > 4:
        raise ValueError(f"Programs here have at most {MOST_STATEMENTS} statements, and loops at most 4 deep.")
    return program, min(500, int(runs ** (1 / max(depth, 1))))


def _measure(body: tuple) -> tuple[int, int]:
    """(how deep loops are nested, how many statements there are)."""
    deepest, count, waiting = 0, 0, [(statement, 0) for statement in body]
    while waiting:
        statement, depth = waiting.pop()
        inner = depth + isinstance(statement, (Loop, While))
        deepest, count = max(deepest, inner), count + 1
        waiting += [(s, inner) for s in (*getattr(statement, "body", ()), *getattr(statement, "otherwise", ()))]
    return deepest, count


def evaluate(source: str, exit: str, steepness: float, x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor, Tensor, str]:
    """(value, its slopes by x1 and by x2, what to say of loops that were cut off)."""
    program, rounds = bounded(source, GRID_RUNS if x1.ndim else POINT_RUNS)
    # The reference: what is typed here changes with every key, and compiling takes longer than running
    module = WhileProgram(program, exit_of(exit, steepness), max_iterations=rounds, backend="reference")
    leaves = {name: t.clone().requires_grad_() for name, t in (("x1", x1), ("x2", x2)) if name in module.inputs}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NonHaltingWarning)
        value = module(**leaves)
    assert isinstance(value, Tensor)
    value = value.expand_as(x1) if value.shape != x1.shape else value
    slopes = torch.autograd.grad(value.sum(), list(leaves.values()), allow_unused=True) if value.requires_grad else []
    found = dict(zip(leaves, slopes, strict=False))
    by = [torch.zeros_like(x1) if found.get(name) is None else found[name] for name in ("x1", "x2")]
    where = "Somewhere on the surface" if x1.ndim else "At the chosen point"
    cut = f"{where} loops were cut off after {rounds} rounds." if caught else ""
    return value.detach(), by[0].detach(), by[1].detach(), cut


def paint(wish: Wish, surface: Surface) -> dict[str, Any]:
    """The picture and what is read at the chosen point."""
    key = (wish.source, wish.exit, wish.steepness)
    if surface.key != key:
        axis = torch.linspace(0, SPAN, GRID)
        x1, x2 = torch.meshgrid(axis, axis, indexing="ij")
        surface.value, a, b, surface.note = evaluate(*key, x1, x2)
        surface.slope, surface.key = (a.square() + b.square()).sqrt(), key
    if surface.place != (key, wish.at):
        x1, x2 = wish.at
        value, a, b, cut = evaluate(*key, torch.tensor(x1), torch.tensor(x2))
        surface.note = f"{surface.note} {cut}".strip()
        surface.read = f"x0({x1:.2f}, {x2:.2f}) = {float(value):.3f} · d/dx1 = {float(a):.3f} · d/dx2 = {float(b):.3f}"
        surface.here, surface.place = float(value), (key, wish.at)
    pixels = _solid(wish, surface) if wish.solid else _flat(surface, wish.size)
    return {
        "picture": drawing.picture(pixels),
        "read": surface.read,
        "note": surface.note,
        "marks": _axes(wish, surface) if wish.solid else _rings(wish.at, wish.size),
    }


def _flat(surface: Surface, size: int) -> np.ndarray:
    """Two maps side by side: the value, and the size of the gradient; x1 to the right, x2 upwards."""
    panels = [
        drawing.coloured(_enlarged(t.T.flip(0), size), name)
        for t, name in ((surface.value, "viridis"), (surface.slope, "magma"))
    ]
    gap = np.full((size, max(4, size // 40), 3), 20, np.uint8)
    return np.concatenate([panels[0], gap, panels[1]], 1)


def _enlarged(t: Tensor, size: int) -> Tensor:
    return torch.nn.functional.interpolate(t[None, None], (size, size), mode="bicubic", align_corners=True)[0, 0]


def _solid(wish: Wish, surface: Surface) -> np.ndarray:
    """The surface, drawn by our own renderer: height is the value, colour the size of the gradient."""
    value = surface.value.nan_to_num(0.0, 0.0, 0.0).clamp(-1e4, 1e4)
    height = _height(value, surface)
    axis = torch.linspace(-1, 1, GRID)
    x1, x2 = torch.meshgrid(axis, axis, indexing="ij")
    vertices = torch.stack([x1, height, -x2], -1).reshape(-1, 3)
    index = torch.arange(GRID * GRID).reshape(GRID, GRID)
    a, b, c, d = index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]
    faces = torch.cat([torch.stack([a, b, c], -1).reshape(-1, 3), torch.stack([a, c, d], -1).reshape(-1, 3)])
    colors = (
        torch.from_numpy(drawing.coloured(surface.slope.clamp(max=float(surface.slope.quantile(0.99))))).float() / 255
    )
    mesh = Mesh(vertices, faces, vertex_colors=colors.reshape(-1, 3))
    renderer = SmoothRenderer(
        wish.size, FilteredCoverage(StudentT(df=8, scale=0.6)), shading="vertex", background=(0.059, 0.078, 0.125)
    )
    lights = (AmbientLight((0.55, 0.55, 0.55)), DirectionalLight((-0.4, -1.0, -0.5), (0.6, 0.6, 0.6)))
    with torch.no_grad():
        return to_bytes(renderer(mesh, _camera(wish), lights).rgb)


def _range(surface: Surface) -> tuple[float, float]:
    value = surface.value.nan_to_num(0.0, 0.0, 0.0).clamp(-1e4, 1e4)
    return float(value.min()), float(value.max())


def _height(value: Any, surface: Surface) -> Any:
    low, high = _range(surface)
    return (value - low) / max(high - low, 1e-6) * 1.1 + GROUND


def _camera(wish: Wish) -> Camera:
    # So far that no corner leaves the picture, however it is turned
    tilt, far = min(max(wish.height, 0.05), 1.4), 4.7
    across = far * math.cos(tilt)
    eye = (across * math.sin(wish.azimuth), far * math.sin(tilt), across * math.cos(wish.azimuth))
    return Camera.look_at(eye, fov=42.0)


def code(wish: Wish) -> str:
    made = next(
        (f'WhileProgram.library("{n}", ' for n in LIBRARY if library_source(n).strip() == wish.source.strip()), None
    )
    made = made or f'WhileProgram("""\n{wish.source.strip()}\n""", '
    exit = {"Sech": f"Sech({wish.steepness:.3g})", "SmoothTent": "SmoothTent(1)"}.get(wish.exit, f"{wish.exit}()")
    names = [name for name in ("x1", "x2") if name in wish.source]
    inputs = ", ".join(f"{name}=x[{int(name[1]) - 1}]" for name in names)
    return (
        f"import torch\nfrom algonet import {wish.exit}, WhileProgram\n\n"
        f"program = {made}{exit})\n"
        f"x = torch.tensor([{float(wish.at[0])}, {float(wish.at[1])}], requires_grad=True)\n"
        f"y = program({inputs})\nprint(y, *torch.autograd.grad(y, x))"
    )


def thumbnail() -> str:
    """The room's first picture, small."""
    return image(paint(Wish(size=240), Surface())["picture"])


def build() -> None:
    surface, size = Surface(), Size(560)
    turn = turning(lambda: latest, 0.05)

    def drag(kind: str, x: float, y: float) -> None:
        wish = latest.wish
        if not wish.solid:
            width = 2 + 1 / 40
            place = x * width if x * width <= 1 else x * width - 1 - 1 / 40
            latest.again(at=(round(min(max(place, 0.0), 1.0) * SPAN, 2), round((1 - y) * SPAN, 2)))
        else:
            turn(kind, x, y)

    def show(found: dict[str, Any], wish: Wish) -> None:
        view.set_source(found["picture"])
        read.set_text(found["read"])
        note.set_text(found["note"])
        view.set_content(found["marks"])
        view.classes(add="square" if wish.solid else "", remove="" if wish.solid else "square")
        lines.show(code(wish))

    def leave_by(name: str) -> None:
        steepness.set_visibility(name == "Sech")
        latest.again(exit=name)

    with ui.element("div").classes("desk"):
        with ui.element("div").classes("card"):
            view = canvas(drag, alt="The program's surface").classes("dark square")
            read = ui.label().classes("read").mark("read")
            note = ui.label().classes("caption")
            problem = Problem(read)
        with ui.element("div").classes("card"):
            choice("program", list(LIBRARY), "multiply", lambda name: editor.set_value(library_source(name)))
            editor = ui.codemirror(Wish.source, on_change=lambda event: latest.again(source=event.value)).classes(
                "editor"
            )
            with ui.element("div").classes("controls"):
                ui.switch("solid", value=True, on_change=lambda event: latest.again(solid=event.value)).props("dense")
                choice("exit", list(EXITS), Wish.exit, leave_by)
            with ui.element("div").classes("w-full") as steepness:
                slider("steepness", 0.5, 4.0, 2.0, lambda value: latest.again(steepness=value))
            steepness.set_visibility(False)
            slider("x1", 0.0, SPAN, 3.0, lambda value: latest.again(at=(value, latest.wish.at[1])))
            slider("x2", 0.0, SPAN, 4.0, lambda value: latest.again(at=(latest.wish.at[0], value)))
            ui.label(
                "Solid: height is the value, colour the size of the gradient. Flat: value on the left, gradient on the right. "
                "SmoothTent and BumpExit are exact on the integers, and flat there; Tent is exact and has a slope. Sech, the "
                "paper's, is smooth everywhere and not exact: 3 x 4 is 10.3 with it."
            ).classes("caption")
        lines = Code()
    latest = Latest(Wish(), lambda wish: paint(wish, surface), show, problem, size)
    latest.again()


def _rings(at: tuple[float, float], size: int) -> str:
    """A ring at the chosen point of both maps."""
    x, y = at[0] / SPAN * size, (1 - at[1] / SPAN) * size
    return _ring(x, y, size) + _ring(x + size + max(4, size // 40), y, size)


def _ring(x: float, y: float, size: int) -> str:
    width, radius = size / 150, size / 45
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="none" stroke="white" stroke-width="{width:.1f}"/>'


def _axes(wish: Wish, surface: Surface) -> str:
    """The ground's two near edges with x1 and x2, the value at an upright on the left, and the chosen point."""
    size, camera, (low, high) = wish.size, _camera(wish), _range(surface)

    def seen(*point: float) -> tuple[float, float]:
        x, y, _ = camera.project(torch.tensor([point]), (size, size))[0].tolist()
        return x, y

    x, z = math.copysign(1, math.sin(wish.azimuth)), math.copysign(1, math.cos(wish.azimuth))
    left = min((-x, z), (x, -z), key=lambda corner: seen(corner[0], GROUND, corner[1]))
    upright = [seen(left[0], y, left[1]) for y in (GROUND, GROUND + 1.1)]
    parts = [drawing.curve(upright, "currentColor", 1)]
    parts += [drawing.curve([seen(-1, GROUND, z), seen(1, GROUND, z)], "currentColor", 1)]
    parts += [drawing.curve([seen(x, GROUND, -1), seen(x, GROUND, 1)], "currentColor", 1)]
    words = {f"{low:.3g}": (upright[0], "end"), f"{high:.3g}": (upright[1], "end")}
    for share, value in ((-0.8, 0.0), (0.8, SPAN)):
        words[f"x1 = {value:g}"] = (seen(share, GROUND, 1.14 * z), "middle")
        words[f"x2 = {value:g}"] = (seen(1.14 * x, GROUND, -share), "middle")
    for text, (place, anchor) in words.items():
        aside = -size / 90 if anchor == "end" else 0
        parts.append(drawing.label(place[0] + aside, place[1] + size / 70, text, size=size // 36, anchor=anchor))
    here = min(max(surface.here, low), high)
    at = [2 * v / SPAN - 1 for v in wish.at]
    return "".join(parts) + _ring(*seen(at[0], _height(here, surface), -at[1]), size)
