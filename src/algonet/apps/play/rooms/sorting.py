"""Room: drag numbers; the network, the soft permutation and the gradient follow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from nicegui import ui

from algonet.apps import drawing
from algonet.relax import Cauchy, Gaussian, Logistic, Optimal
from algonet.sorting import OddEven, soft_sort

from ..stage import Code, Latest, Problem, canvas, choice, slider, svg

FAMILIES = {"Logistic": Logistic, "Cauchy": Cauchy, "Gaussian": Gaussian, "Optimal": Optimal}
START = (0.62, 0.21, 0.85, 0.43, 0.95, 0.12, 0.55, 0.34)
WIDTH, HEIGHT = 480, 230


@dataclass
class Wish:
    values: list[float] = field(default_factory=lambda: list(START))
    family: str = "Logistic"
    steepness: float = 20.0
    place: int = 7


def compute(wish: Wish) -> dict[str, Any]:
    """Sorted values, permutation, the states between the layers, and the gradient of the chosen place."""
    relax = FAMILIES[wish.family](wish.steepness)
    x = torch.tensor(wish.values, dtype=torch.float64, requires_grad=True)
    options: dict[str, Any] = {
        "relax": relax,
        "method": OddEven(),
        "backend": "reference",
    }  # eight numbers: not worth a kernel
    result = soft_sort(x, return_permutation=True, **options)
    assert result.permutation is not None
    slope = torch.autograd.grad(result.values[wish.place], x)[0]
    states = [
        x.detach(),
        *(soft_sort(x.detach(), steps=step, **options).values for step in range(1, len(wish.values) + 1)),
    ]
    swaps = []
    for step, state in enumerate(states[:-1]):
        pairs = range(step % 2, len(wish.values) - 1, 2)
        swaps.append({i: 1 - float(relax(state[i + 1] - state[i])) for i in pairs})
    return {
        "bars": bars(wish, slope.tolist()),
        "network": network([s.tolist() for s in states], swaps),
        "permutation": permutation(result.permutation.detach().tolist()),
        "sorted": result.values.detach().tolist(),
    }


def bars(wish: Wish, slope: list[float]) -> str:
    """Bars to drag, each with an arrow for its gradient."""
    step, parts = WIDTH / len(wish.values), []
    scale = 46 / max(1e-9, *(abs(s) for s in slope), 0.5)
    for i, (value, grad) in enumerate(zip(wish.values, slope, strict=True)):
        x, top = (i + 0.5) * step, HEIGHT - 22 - value * (HEIGHT - 84)
        parts.append(
            f'<rect x="{x - step * 0.32:.1f}" y="{top:.1f}" width="{step * 0.64:.1f}" height="{HEIGHT - 22 - top:.1f}" rx="5" '
            f'fill="{drawing.shade(value)}"/>'
        )
        parts.append(drawing.label(x, HEIGHT - 6, f"{value:.2f}"))
        if abs(grad) * scale > 1.5:
            tip, head = top - grad * scale, 5 if grad > 0 else -5
            colour = "#e4572e" if grad > 0 else "#3a86ff"
            parts.append(
                f'<line x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{tip:.1f}" stroke="{colour}" stroke-width="3"/>'
            )
            points = f"{x - 5:.1f},{tip + head:.1f} {x + 5:.1f},{tip + head:.1f} {x:.1f},{tip - head:.1f}"
            parts.append(f'<polygon points="{points}" fill="{colour}"/>')
    return "".join(parts)


def network(states: list[list[float]], swaps: list[dict[int, float]]) -> str:
    """Wires from left to right, coloured by their value; links show how much two neighbours exchange."""
    n, parts = len(states[0]), []
    column, row = WIDTH / (len(states) - 0.2), (HEIGHT - 20) / n
    for step, state in enumerate(states):
        for i, value in enumerate(state):
            x, y = column * step + 8, 16 + row * i
            parts.append(
                f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x + column:.1f}" y2="{y:.1f}" stroke="{drawing.shade(value)}" '
                f'stroke-width="{min(9.0, row * 0.36):.1f}" stroke-linecap="round"/>'
            )
        for i, share in (swaps[step] if step < len(swaps) else {}).items():
            x, y = column * (step + 1) + 8, 16 + row * i
            parts.append(
                f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x:.1f}" y2="{y + row:.1f}" stroke="#e4572e" stroke-width="5" '
                f'stroke-opacity="{share:.2f}" stroke-linecap="round"/>'
            )
    return "".join(parts)


def permutation(matrix: list[list[float]]) -> str:
    """Rows: places, columns: items; darker is a larger share."""
    n = len(matrix)
    side = (HEIGHT - 30) / n
    left = (WIDTH - side * n) / 2
    cells = [
        f'<rect x="{left + j * side:.1f}" y="{8 + i * side:.1f}" width="{side - 1.5:.1f}" height="{side - 1.5:.1f}" rx="2.5" '
        f'fill="{drawing.shade(share**0.7, "magma")}"/>'
        for i, row in enumerate(matrix)
        for j, share in enumerate(row)
    ]
    words = drawing.label(WIDTH / 2, HEIGHT - 6, "items, as they stand") + drawing.label(
        left - 10, HEIGHT / 2, "places", anchor="end"
    )
    return "".join(cells) + words


def code(wish: Wish) -> str:
    numbers = ", ".join(f"{v:.2f}" for v in wish.values)
    return (
        f"import torch\nfrom algonet import {wish.family}, OddEven, soft_sort\n\n"
        f"x = torch.tensor([{numbers}], requires_grad=True)\n"
        f"relax = {wish.family}({wish.steepness:.3g})\n"
        f"result = soft_sort(x, relax=relax, method=OddEven(), return_permutation=True)\n"
        f"result.values[{wish.place}].backward()\nprint(result.values.detach(), x.grad, sep='\\n')"
    )


def thumbnail() -> str:
    """The room's first picture, small."""
    return svg(compute(Wish())["bars"], WIDTH, HEIGHT)


def build() -> None:
    held: dict[str, int] = {}

    def drag(kind: str, x: float, y: float) -> None:
        values = list(latest.wish.values)
        if kind == "down":
            held["bar"] = min(int(x * len(values)), len(values) - 1)
        if kind != "up" and "bar" in held:
            value = (HEIGHT - 22 - y * HEIGHT) / (HEIGHT - 84)
            values[held["bar"]] = round(min(max(value, 0.0), 1.0), 2)
            latest.again(values=values)

    def show(found: dict[str, Any], wish: Wish) -> None:
        for element, name in ((numbers, "bars"), (wires, "network"), (shares, "permutation")):
            element.set_content(found[name])
        lines.show(code(wish))
        ordered.set_text("sorted: " + "  ".join(f"{v:.2f}" for v in found["sorted"]))

    def change_count(count: int) -> None:
        last = min(latest.wish.place, count - 1)
        held.clear()
        latest.again(values=[*latest.wish.values, *START, *START][:count], place=last)
        place.set_options([str(k + 1) for k in range(count)], value=str(last + 1))

    size = (WIDTH, HEIGHT)
    with ui.element("div").classes("desk"):
        with ui.element("div").classes("card"):
            numbers = canvas(drag, alt="Bars to drag", size=size)
            ordered = ui.label().classes("read").mark("read")
            problem = Problem(ordered)
            with ui.element("div").classes("pair"):
                with ui.column().classes("gap-1"):
                    ui.label("The network, from left to right; red where neighbours exchange").classes("caption")
                    wires = canvas(lambda *_: None, alt="The sorting network", size=size)
                with ui.column().classes("gap-1"):
                    ui.label("The soft permutation").classes("caption")
                    shares = canvas(lambda *_: None, alt="The soft permutation", size=size)
        with ui.element("div").classes("card"):
            slider("steepness", 1.0, 100.0, Wish.steepness, lambda value: latest.again(steepness=value), step=0.5)
            slider("numbers", 3, 12, len(START), lambda value: change_count(int(value)), step=1)
            with ui.element("div").classes("controls"):
                choice("family", list(FAMILIES), Wish.family, lambda value: latest.again(family=value))
                place = choice(
                    "raise place", [str(k + 1) for k in range(len(START))], str(len(START)),
                    lambda value: latest.again(place=int(value) - 1) if value else None,
                )  # fmt: skip
            ui.label("Arrows: the gradient of that place. Up, in red: a larger number would raise it.").classes(
                "caption"
            )
        lines = Code()
    latest = Latest(Wish(), compute, show, problem)
    latest.again()
