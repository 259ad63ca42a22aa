"""Room: a gallery of plain Python functions, as written and smooth."""

from __future__ import annotations

import inspect
import math
import textwrap
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from nicegui import ui
from torch import Tensor

from algonet.relax import Logistic
from algonet.smooth_python import smooth
from algonet.smooth_python.algorithms import point_in_polygon

from .. import draw
from ..stage import Code, Latest, Problem, Size, canvas, choice, one_line, slider

WIDTH, HEIGHT, MARGIN = 560, 340, 40
STAR = [
    (0.5 + r * math.sin(k * math.pi / 5), 0.5 - r * math.cos(k * math.pi / 5)) for k, r in enumerate((0.45, 0.19) * 5)
]


@smooth
def fare(distance):
    price = 2.0
    if distance > 1.0:
        price += 1.5 * (distance - 1.0)
    if distance > 3.0:
        price += 2.0
    return price


@smooth(max_iterations=40)
def staircase(x):
    steps = 0.0
    while x > 1.0:
        x = x - 1.0
        steps += 1.0
    return steps


@smooth
def thermostat(outside):
    room, heat = 15.0, 0.0
    for _ in range(24):
        if room < 20.0:
            heat += 1.0
            room += 1.5
        room += 0.1 * (outside - room)
    return heat


@smooth
def bouncing_ball(height):
    v = 0.0
    for _ in range(60):
        v -= 0.05
        height += 0.05 * v
        if height < 0.0:
            height, v = -height, -0.8 * v
    return height


class Example(NamedTuple):
    function: Any
    low: float
    high: float
    start: float
    what: str


CURVES = {
    "fare": Example(fare, 0.0, 5.0, 2.4, "A taxi fare with a jump after three kilometres"),
    "staircase": Example(staircase, 0.2, 6.0, 3.2, "Rounding down by a loop that subtracts"),
    "thermostat": Example(thermostat, -10.0, 19.0, 14.0, "Hours of heating in a day, by the temperature outside"),
    "bouncing_ball": Example(bouncing_ball, 0.2, 2.0, 1.0, "Height after sixty steps of a ball that bounces"),
}
PICTURE = "point_in_polygon"


@dataclass
class Wish:
    name: str = "fare"
    x: float = 2.4
    steepness: float = 4.0
    paths: str = "Merge"
    size: int = 256


def _options(wish: Wish) -> dict[str, Any]:
    # The reference: compiling a program for a picture would take longer than drawing it
    options: dict[str, Any] = {"relax": Logistic(wish.steepness), "backend": "reference"}
    if wish.paths == "Particles":
        options["paths"] = PATHS["Particles"]()
    return options


def _paths() -> dict[str, Any]:
    """How decisions can be taken: merged into one state, and, where this version has them, by particles."""
    found: dict[str, Any] = {"Merge": None}
    module: Any = __import__("algonet.smooth_python", fromlist=["Particles"])
    if hasattr(module, "Particles"):
        found["Particles"] = lambda: module.Particles(256)
    return found


PATHS = _paths()


def compute(wish: Wish) -> dict[str, Any]:
    """What the room shows; a warning of the run (merged states far from any of the program's) is said below it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = _polygon(wish) if wish.name == PICTURE else _curve(wish)
    return {**found, "note": one_line(caught[0].message) if caught else ""}


def _curve(wish: Wish) -> dict[str, Any]:
    example = CURVES[wish.name]
    xs = torch.linspace(example.low, example.high, 161)
    with torch.no_grad():
        ys = example.function(xs, batched=True, **_options(wish)).tolist()
    crisp = [float(example.function.crisp(x)) for x in xs.tolist()]
    x = torch.tensor([wish.x], requires_grad=True)
    y = example.function(x, batched=True, **_options(wish))
    slope = float(torch.autograd.grad(y.sum(), x)[0]) if y.requires_grad else 0.0
    svg = _plot(example, xs.tolist(), ys, crisp, wish.x, float(y.detach()), slope)
    at = float(example.function.crisp(wish.x))
    return {
        "svg": svg,
        "picture": None,
        "read": f"f({wish.x:.2f}) = {float(y.detach()):.3f} · slope {slope:.3f} · as written {at:.3f}",
    }


def _plot(
    example: Example, xs: list[float], ys: list[float], crisp: list[float], x: float, y: float, slope: float
) -> str:
    finite = [v for v in (*ys, *crisp) if math.isfinite(v)]
    low, high = min(finite), max(finite)
    pad = max((high - low) * 0.12, 1e-3)
    low, high = low - pad, high + pad

    def place(a: float, b: float) -> tuple[float, float]:
        across = (a - example.low) / (example.high - example.low)
        return MARGIN + across * (WIDTH - MARGIN - 14), HEIGHT - 30 - (b - low) / (high - low) * (HEIGHT - 46)

    parts = []
    for b in _ticks(low, high):
        at = place(example.low, b)[1]
        parts.append(
            f'<line x1="{MARGIN}" x2="{WIDTH - 14}" y1="{at:.1f}" y2="{at:.1f}" stroke="currentColor" stroke-opacity=".12"/>'
        )
        parts.append(draw.label(MARGIN - 6, at + 4, f"{b:.3g}", anchor="end", size=12))
    parts += [draw.label(place(a, low)[0], HEIGHT - 10, f"{a:.3g}", size=12) for a in _ticks(example.low, example.high)]
    # Where the function jumps, the dashed line does: it is not joined across
    step = max((high - low) * 0.08, 1e-6)
    runs: list[list[tuple[float, float]]] = [[]]
    for i, (a, b) in enumerate(zip(xs, crisp, strict=True)):
        if i and abs(b - crisp[i - 1]) > step:
            runs.append([])
        runs[-1].append(place(a, b))
    parts += [draw.curve(run, "#8a94a3", 2, "6 5") for run in runs if len(run) > 1]
    parts.append(draw.curve([place(a, b) for a, b in zip(xs, ys, strict=True)], "#2a9d8f", 3.5))
    reach = (example.high - example.low) * 0.09
    ends = [place(x + t, y + slope * t) for t in (-reach, reach)]
    parts.append(draw.curve(ends, "#e4572e", 3))
    at = place(x, y)
    parts.append(f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="7" fill="#e4572e" stroke="white" stroke-width="2"/>')
    return "".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    return [float(v) for v in MaxNLocator(6).tick_values(low, high) if low <= v <= high]


def _polygon(wish: Wish) -> dict[str, Any]:
    axis = (torch.arange(wish.size) + 0.5) / wish.size
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    with torch.no_grad():
        inside: Tensor = point_in_polygon(
            x.reshape(-1), y.reshape(-1), STAR, batched=True, relax=Logistic(20 * wish.steepness), backend="reference"
        ).reshape(wish.size, wish.size)
    at = torch.tensor([wish.x], requires_grad=True)
    value = point_in_polygon(
        at, torch.full((1,), 0.5), STAR, batched=True, relax=Logistic(20 * wish.steepness), backend="reference"
    )
    slope = float(torch.autograd.grad(value.sum(), at)[0])
    mark = f'<circle cx="{wish.x * wish.size:.1f}" cy="{wish.size / 2}" r="5" fill="none" stroke="white" stroke-width="2"/>'
    read = f"P(inside) at ({wish.x:.2f}, 0.50) = {float(value.detach()):.3f} · slope {slope:.3f}"
    return {"svg": mark, "picture": draw.picture(draw.coloured(inside, "magma", 0.0, 1.0)), "read": read}


def code(wish: Wish) -> str:
    particles = ", paths=Particles(256)" if wish.paths == "Particles" else ""
    imports = (
        f"from algonet import Logistic, smooth\n{'from algonet.smooth_python import Particles' if particles else ''}\n"
    )
    if wish.name == PICTURE:
        corners = ", ".join(f"({a:.2f}, {b:.2f})" for a, b in STAR)
        return (
            "import torch\nfrom algonet import Logistic\nfrom algonet.smooth_python.algorithms import point_in_polygon\n\n"
            f"star = [{corners}]\nx = torch.tensor([{float(wish.x)}], requires_grad=True)\n"
            f"p = point_in_polygon(x, torch.tensor([0.5]), star, batched=True, relax=Logistic({20 * wish.steepness:.3g}))\n"
            "print(p, *torch.autograd.grad(p.sum(), x))"
        )
    source = textwrap.dedent(inspect.getsource(CURVES[wish.name].function.__wrapped__))
    return (
        f"import torch\n{imports}\n{source}\n"
        f"x = torch.tensor([{float(wish.x)}], requires_grad=True)\n"
        f"y = {wish.name}(x, batched=True, relax=Logistic({wish.steepness:.3g}){particles})\n"
        "print(y, *torch.autograd.grad(y.sum(), x))"
    )


def build() -> None:
    wish, size = Wish(), Size(320, 96)

    def drag(kind: str, x: float, y: float) -> None:
        if wish.name == PICTURE:
            again(x=x)
            return
        example = CURVES[wish.name]
        across = min(max((x * WIDTH - MARGIN) / (WIDTH - MARGIN - 14), 0.0), 1.0)
        moved.set_value(round(example.low + across * (example.high - example.low), 3))
        again(x=moved.value)

    def show(found: dict[str, Any]) -> None:
        flat, deep = (plot, picture) if found["picture"] is None else (picture, plot)
        flat.set_visibility(True)
        deep.set_visibility(False)
        flat.set_content(found["svg"])
        if found["picture"] is not None:
            picture.set_source(found["picture"])
        read.set_text(found["read"])
        note.set_text(found["note"])
        lines.show(code(wish))

    def again(**changes: Any) -> None:
        for name, value in changes.items():
            setattr(wish, name, value)
        latest.ask(Wish(**vars(wish)))

    def turn_to(name: str) -> None:
        low, high, start = (0.0, 1.0, 0.3) if name == PICTURE else CURVES[name][1:4]
        moved._props.update(min=low, max=high)
        moved.set_value(start)
        about.set_text("Is the point inside the star?" if name == PICTURE else CURVES[name].what)
        again(name=name, x=start)

    with ui.element("div").classes("desk"):
        with ui.element("div").classes("card"):
            about = ui.label(CURVES[wish.name].what).classes("small-heading")
            plot = canvas(drag, alt="The function, as written and smooth", size=(WIDTH, HEIGHT))
            picture = (
                canvas(drag, alt="The probability of being inside").classes("dark square").style("max-width: 26rem")
            )
            picture.set_visibility(False)
            read = ui.label().classes("read").mark("read")
            note = ui.label().classes("caption")
            problem = Problem()
            ui.label("Dashed: as written. Green: smooth. Red: value and slope at the input.").classes("caption")
        with ui.element("div").classes("card"):
            choice("program", [*CURVES, PICTURE], wish.name, turn_to)
            moved = slider("input", 0.0, 5.0, wish.x, lambda value: again(x=value))
            slider("steepness", 0.5, 30.0, wish.steepness, lambda value: again(steepness=value), step=0.1)
            if len(PATHS) > 1:
                ui.toggle(list(PATHS), value="Merge", on_change=lambda event: again(paths=event.value)).props(
                    "dense no-caps"
                )
        lines = Code()
    latest = Latest(compute, show, problem, size)
    again()
