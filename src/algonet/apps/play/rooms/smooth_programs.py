"""Room: an editor for plain Python functions, as written and smooth."""

from __future__ import annotations

import inspect
import math
import textwrap
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from nicegui import ui
from torch import Tensor

from algonet.apps import drawing
from algonet.relax import Logistic
from algonet.smooth_python import smooth
from algonet.smooth_python.algorithms import point_in_polygon

from ..sandbox import PARTICLES, Worker, arguments_of
from ..stage import Code, Latest, Problem, Size, canvas, choice, one_line, slider, svg

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


@smooth
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
    steepness: float = 4.0


CURVES = {
    "fare": Example(fare, 0.0, 5.0, 2.4, "A taxi fare with a jump after three kilometres"),
    "staircase": Example(staircase, 0.2, 6.0, 3.2, "Rounding down by a loop that subtracts"),
    "thermostat": Example(thermostat, -10.0, 19.0, 14.0, "Hours of heating in a day, by the temperature outside"),
    "bouncing_ball": Example(bouncing_ball, 0.2, 2.0, 1.0, "Height after sixty steps of a ball that bounces", 30.0),
}
PICTURE, OWN = "point_in_polygon", "your own"


@dataclass
class Wish:
    name: str = "fare"
    source: str = ""
    at: dict[str, float] = field(default_factory=lambda: {"distance": 2.4})
    along: str = "distance"
    low: float = 0.0
    high: float = 5.0
    steepness: float = 4.0
    size: int = 256


def source_of(name: str) -> str:
    """A bundled function as text, to start from."""
    return textwrap.dedent(inspect.getsource(CURVES[name].function.__wrapped__))


def compute(wish: Wish, worker: Worker) -> dict[str, Any]:
    """What the room shows; a warning of the run (merged states far from any of the program's) is said below it."""
    return _polygon(wish) if wish.name == PICTURE else _curve(wish, worker)


#: Whether visitors' own functions run: only where nobody but this machine's user reaches the page.
EDITABLE = [True]


def _curve(wish: Wish, worker: Worker) -> dict[str, Any]:
    if not EDITABLE[0] and wish.source not in map(source_of, CURVES):
        raise ValueError("functions of one's own run only where `algonet play` serves this machine alone.")
    names = ("source", "at", "along", "low", "high", "steepness")
    found = worker.ask({name: getattr(wish, name) for name in names})
    slope, at = found["slopes"][wish.along], wish.at[wish.along]
    written = "undefined" if found["written"] is None else f"{found['written']:.3f}"
    slopes = ", ".join(f"{found['slopes'][name]:.3f} by {name}" for name in wish.at)
    return {
        "svg": _plot(wish, found, at, found["value"], slope),
        "picture": None,
        "read": f"f = {found['value']:.3f} · slope {slopes} · as written {written}",
        "note": one_line(found["note"]) if found["note"] else "",
    }


def _plot(wish: Wish, found: dict[str, Any], x: float, y: float, slope: float) -> str:
    xs, ys, particles = found["xs"], found["smooth"], found["particles"] or []
    # Where the function as written has no value, its line has a gap
    crisp = [math.nan if v is None else v for v in found["crisp"]]
    finite = [v for v in (*ys, *crisp, *particles) if math.isfinite(v)] or [0.0]
    low, high = min(finite), max(finite)
    pad = max((high - low) * 0.12, 1e-3)
    low, high = low - pad, high + pad

    def place(a: float, b: float) -> tuple[float, float]:
        across = (a - wish.low) / (wish.high - wish.low)
        return MARGIN + across * (WIDTH - MARGIN - 14), HEIGHT - 30 - (b - low) / (high - low) * (HEIGHT - 46)

    parts = []
    for b in _ticks(low, high):
        at = place(wish.low, b)[1]
        parts.append(
            f'<line x1="{MARGIN}" x2="{WIDTH - 14}" y1="{at:.1f}" y2="{at:.1f}" stroke="currentColor" stroke-opacity=".12"/>'
        )
        parts.append(drawing.label(MARGIN - 6, at + 4, f"{b:.3g}", anchor="end", size=12))
    parts += [drawing.label(place(a, low)[0], HEIGHT - 10, f"{a:.3g}", size=12) for a in _ticks(wish.low, wish.high)]
    # Where the function jumps, the dashed line does: it is not joined across
    step = max((high - low) * 0.08, 1e-6)
    runs: list[list[tuple[float, float]]] = [[]]
    for i, (a, b) in enumerate(zip(xs, crisp, strict=True)):
        if i and not abs(b - crisp[i - 1]) <= step:
            runs.append([])
        if math.isfinite(b):
            runs[-1].append(place(a, b))
    parts += [drawing.curve(run, "#8a94a3", 2, "6 5") for run in runs if len(run) > 1]
    parts.append(drawing.curve([place(a, b) for a, b in zip(xs, ys, strict=True)], "#2a9d8f", 3.5))
    if particles:
        parts.append(drawing.curve([place(a, b) for a, b in zip(xs, particles, strict=True)], "#e9a23b", 2.5))
    reach = (wish.high - wish.low) * 0.09
    ends = [place(x + t, y + slope * t) for t in (-reach, reach)]
    parts.append(drawing.curve(ends, "#e4572e", 3))
    at = place(x, y)
    parts.append(f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="7" fill="#e4572e" stroke="white" stroke-width="2"/>')
    return "".join(parts)


def _ticks(low: float, high: float) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    return [float(v) for v in MaxNLocator(6).tick_values(low, high) if low <= v <= high]


def _polygon(wish: Wish) -> dict[str, Any]:
    def inside(x: Tensor, y: Tensor) -> Tensor:
        relax = Logistic(20 * wish.steepness)
        return point_in_polygon(x, y, STAR, batched=True, relax=relax, backend="reference")

    axis = (torch.arange(wish.size) + 0.5) / wish.size
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    at = torch.tensor([wish.at[wish.along]], requires_grad=True)
    value = inside(at, torch.full((1,), 0.5))
    slope = float(torch.autograd.grad(value.sum(), at)[0])
    place = at.item() * wish.size
    mark = f'<circle cx="{place:.1f}" cy="{wish.size / 2}" r="5" fill="none" stroke="white" stroke-width="2"/>'
    read = f"P(inside) at ({at.item():.2f}, 0.50) = {value.item():.3f} · slope {slope:.3f}"
    return {
        "svg": mark,
        "picture": drawing.picture(drawing.coloured(inside(x.flatten(), y.flatten()).view_as(x), "magma", 0.0, 1.0)),
        "read": read,
        "note": "",
    }


def code(wish: Wish) -> str:
    if wish.name == PICTURE:
        corners = ", ".join(f"({a:.2f}, {b:.2f})" for a, b in STAR)
        return (
            "import torch\nfrom algonet import Logistic\nfrom algonet.smooth_python.algorithms import point_in_polygon\n\n"
            f"star = [{corners}]\nx = torch.tensor([{float(wish.at[wish.along])}], requires_grad=True)\n"
            f"p = point_in_polygon(x, torch.tensor([0.5]), star, batched=True, relax=Logistic({20 * wish.steepness:.3g}))\n"
            "print(p, *torch.autograd.grad(p.sum(), x))"
        )
    source = wish.source.strip()
    decorated = source if source.startswith("@smooth") else f"@smooth\n{source}"
    called = decorated.partition("def ")[2].partition("(")[0]
    values = [[float(value)] for value in wish.at.values()]
    imports = "import math\n" if "math." in source else ""
    return (
        f"{imports}import torch\nfrom algonet import Logistic, smooth\n\n\n{decorated}\n\n\n"
        f"inputs = torch.tensor({values}, requires_grad=True)\n"
        f"y = {called}(*inputs, batched=True, relax=Logistic({wish.steepness:.3g}))\n"
        "print(y, *torch.autograd.grad(y.sum(), inputs, allow_unused=True))"
    )


#: Range of the slider of an argument that no example knows.
RANGE = (-5.0, 5.0)


def thumbnail() -> str:
    """The room's first picture, small."""
    worker = Worker()
    try:
        return svg(compute(Wish(source=source_of("fare")), worker)["svg"], WIDTH, HEIGHT)
    finally:
        worker.close()


def build() -> None:
    wish, worker = Wish(source=source_of("fare")), Worker()
    ui.context.client.on_disconnect(worker.close)

    def drag(kind: str, x: float, y: float) -> None:
        across = x if wish.name == PICTURE else min(max((x * WIDTH - MARGIN) / (WIDTH - MARGIN - 14), 0.0), 1.0)
        sliders[wish.along].set_value(round(wish.low + across * (wish.high - wish.low), 3))
        move(wish.along, sliders[wish.along].value)

    def show(found: dict[str, Any], wish: Wish) -> None:
        flat, deep = (plot, picture) if found["picture"] is None else (picture, plot)
        flat.set_visibility(True)
        deep.set_visibility(False)
        flat.set_content(found["svg"])
        legend.set_visibility(found["picture"] is None)
        if found["picture"] is not None:
            picture.set_source(found["picture"])
        read.set_text(found["read"])
        note.set_text(found["note"])
        lines.show(code(wish))

    def move(name: str, value: float) -> None:
        latest.again(along=name, at={**wish.at, name: float(value)})

    def edit(source: str) -> None:
        wish.source = source
        if wish.name in CURVES and source.strip() != source_of(wish.name).strip():
            programs.set_value(OWN)
        try:
            names = arguments_of(source)
        except ValueError as error:
            problem.say(one_line(error))
            return
        if names != list(wish.at):
            wish.at = {name: wish.at.get(name, 1.0) for name in names}
            wish.along, (wish.low, wish.high) = names[0], RANGE
            lay_out()
        latest.again()

    def lay_out() -> None:
        """A slider for each argument; the curve runs along the one that was moved last."""
        sliders.clear()
        arguments.clear()
        with arguments:
            for name, value in wish.at.items():
                sliders[name] = slider(name, wish.low, wish.high, value, lambda v, name=name: move(name, v))

    def turn_to(name: str) -> None:
        if name == OWN and wish.source:
            wish.name, about.text = OWN, "A function of your own"
            return
        name = "fare" if name == OWN else name
        known = name in CURVES
        wish.name, about.text = name, CURVES[name].what if known else "Is the point inside the star?"
        wish.low, wish.high, start = CURVES[name][1:4] if known else (0.0, 1.0, 0.3)
        wish.source = source_of(name) if known else ""
        wish.along = arguments_of(wish.source)[0] if known else "x"
        wish.at = {wish.along: start}
        wish.steepness = CURVES[name].steepness if known else 4.0
        steepness.set_value(wish.steepness)
        lay_out()
        editor.set_visibility(known)
        editor.set_value(wish.source)
        latest.again()

    sliders: dict[str, Any] = {}
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
            problem = Problem(read)
            legend = ui.label(
                "Dashed: as written. Green: smooth. Red: value and slope at the input. Yellow, where the mean of the states "
                f"misleads: the mean over {PARTICLES} particles, each of which takes its decisions."
            ).classes("caption")
        with ui.element("div").classes("card"):
            programs = choice("program", [*CURVES, PICTURE, OWN], wish.name, turn_to)
            editor = ui.codemirror(
                wish.source, language="Python", theme="githubLight", on_change=lambda event: edit(event.value)
            ).classes("editor")
            arguments = ui.column().classes("w-full gap-0")
            lay_out()
            steepness = slider("steepness", 0.5, 30.0, wish.steepness, lambda v: latest.again(steepness=v), step=0.1)
            ui.label("Write a function of your own: one to four arguments, numbers, if, while, for, lists.").classes(
                "caption"
            )
        lines = Code()
    latest = Latest(wish, lambda wish: compute(wish, worker), show, problem, Size(320, 96))
    latest.again()
