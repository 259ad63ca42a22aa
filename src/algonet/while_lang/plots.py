"""Figures of a WHILE-program: the paper's surfaces, and the network that it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from algonet.core.extras import require
from algonet.relax import Exit, Tent

from .functional import run_while
from .reference import Parts, Recurrent, Unit
from .syntax import NonHaltingWarning, Program

#: What library programs of two inputs compute on reals, where that is plain.
EXACT: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "add": ("x1 + x2", lambda a, b: a + b),
    "subtract": ("x1 − x2", lambda a, b: a - b),
    "multiply": ("x1 · x2", lambda a, b: a * b),
    "power": ("x1 to the x2", lambda a, b: a.clamp_min(1e-6) ** b),
    "max": ("max(x1, x2)", torch.maximum),
}


def surface(function: Callable[[Tensor, Tensor], Tensor], low: float, high: float, size: int) -> tuple[Tensor, ...]:
    """(x1, x2, value, size of the gradient) on a grid."""
    axis = torch.linspace(low, high, size, dtype=torch.float64)
    x1, x2 = (t.clone().requires_grad_() for t in torch.meshgrid(axis, axis, indexing="ij"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonHaltingWarning)
        value = function(x1, x2) + 0 * (x1 + x2)  # which has a gradient, whatever the function
    slope = torch.hypot(*torch.autograd.grad(value.sum(), (x1, x2)))
    return x1.detach(), x2.detach(), value.detach(), slope


def draw(axis: Any, data: tuple[Tensor, ...], limits: tuple[float, float], heights: tuple[float, float]) -> Any:
    """One surface: height the value, colour the gradient; returns what a colour bar needs."""
    require("matplotlib")
    import matplotlib.pyplot as plt
    from matplotlib import cm
    from matplotlib.colors import LightSource, Normalize

    x1, x2, value, slope = (t.numpy() for t in data)
    scale = Normalize(*limits)
    colours = plt.get_cmap("viridis")(scale(slope))
    shaded = LightSource(azdeg=300, altdeg=55).shade_rgb(colours[..., :3], value, blend_mode="soft", vert_exag=0.25)
    axis.plot_surface(
        x1, x2, value, facecolors=shaded, rcount=200, ccount=200, linewidth=0, antialiased=False, shade=False
    )
    axis.set_zlim(*heights)
    axis.view_init(elev=26, azim=-128)
    axis.set_xlabel("x1", labelpad=-6)
    axis.set_ylabel("x2", labelpad=-6)
    axis.tick_params(labelsize=7, pad=-3)
    for side in (axis.xaxis, axis.yaxis, axis.zaxis):
        side.pane.set_facecolor((0.97, 0.97, 0.97, 1.0))
        side.pane.set_edgecolor("0.85")
    return cm.ScalarMappable(scale, "viridis")


def surfaces(
    program: Program, library: str | None, exit: Exit, span: tuple[float, float], size: int, max_iterations: int
) -> Any:
    """The exact function where it is known, the program with `exit` and the program with `Tent`, side by side."""
    require("matplotlib")
    import matplotlib.pyplot as plt

    def run(chosen: Exit) -> Callable[[Tensor, Tensor], Tensor]:
        # The reference: a picture is a few thousand elements, and compiling for it would take longer
        options: Any = {"exit": chosen, "max_iterations": max_iterations, "backend": "reference"}
        names = [name for name in ("x1", "x2") if int(name[1]) in program.variables]
        return lambda *x: run_while(program, {n: x[int(n[1]) - 1] for n in names}, **options).outputs["x0"]

    smoothness = "∞" if exit.smoothness == float("inf") else f"^{int(exit.smoothness)}"
    panels = [EXACT[library]] if library in EXACT else []
    panels += [(f"smooth program, {exit.key}: C{smoothness}", run(exit)), ("smooth program, Tent: C⁰", run(Tent()))]
    data = [surface(function, *span, size) for _, function in panels]
    values = torch.stack([d[2] for d in data])
    slopes = torch.stack([d[3] for d in data])
    heights = (float(values.min()), max(float(values.max()), float(values.min()) + 1e-6))
    limits = (0.0, max(float(slopes.flatten().quantile(0.98)), 1e-6))
    figure = plt.figure(figsize=(4.3 * len(panels), 4.2))
    mappable: Any = None
    for i, ((title, _), d) in enumerate(zip(panels, data, strict=True), start=1):
        axis = figure.add_subplot(1, len(panels), i, projection="3d")
        mappable = draw(axis, d, limits, heights)
        axis.set_title(title, fontsize=13, y=0.98)
    figure.subplots_adjust(left=0.01, right=0.91, wspace=0.02, bottom=0.03, top=0.95)
    bar = figure.add_axes((0.93, 0.22, 0.012, 0.55))
    figure.colorbar(mappable, cax=bar).set_label("size of the gradient", fontsize=12)
    return figure


#: The width and height of a unit, and the room between parts, in inches.
_UNIT, _GAP = (1.7, 0.34), 0.16


def draw_network(module: Any) -> Any:
    """The network from top to bottom: units are boxes, loops frames with an arrow back, parts of a branch side by side."""
    require("matplotlib")
    import matplotlib.pyplot as plt

    width, height = _size(module.body)
    figure = plt.figure(figsize=(width + 2 * _GAP, height + 0.8))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set_xlim(-width / 2 - _GAP, width / 2 + _GAP)
    axis.set_ylim(-height - 0.4, 0.4)
    axis.set_axis_off()
    _place(axis, module.body, 0.0, 0.0)
    for text, y in ((", ".join(module.inputs), 0.2), (", ".join(module.outputs), -height - 0.2)):
        axis.text(0, y, text, ha="center", va="center", family="monospace", weight="bold")
    return figure


def _size(part: Any) -> tuple[float, float]:
    sizes = [_size(child) for child in part.children()]
    widths, heights = [w for w, _ in sizes], [h for _, h in sizes]
    if isinstance(part, Unit):
        return _UNIT
    if isinstance(part, Parts):
        return max(widths, default=0.4), sum(heights) + len(sizes) * _GAP
    return sum(widths) + (len(sizes) + 4) * _GAP, max(heights) + 4 * _GAP


def _place(axis: Any, part: Any, x: float, y: float) -> None:
    """Draw `part` with the middle of its top at (x, y)."""
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    width, height = _size(part)
    if isinstance(part, Parts):
        for child in part:
            _place(axis, child, x, y - _GAP / 2)
            y -= _size(child)[1] + _GAP
        return
    colour = "#d7e8f7" if isinstance(part, Unit) else "#fff3d6" if isinstance(part, Recurrent) else "#e6f3df"
    frame = FancyBboxPatch((x - width / 2, y - height), width, height, boxstyle="round,pad=0,rounding_size=0.08")
    frame.set(facecolor=colour, edgecolor="0.45", alpha=0.75)
    axis.add_patch(frame)
    if isinstance(part, Unit):
        label = f"{part.text}\nw {part.weight.item():.3g}  b {part.bias.item():.3g}"  # pyright: ignore
        axis.text(x, y - height / 2, label, ha="center", va="center", family="monospace", fontsize=6.5)
        return
    head = f"while {part.text}" if isinstance(part, Recurrent) else f"if {part.text} | else"
    axis.text(x, y - 1.4 * _GAP, head, ha="center", va="center", family="monospace", fontsize=7.5)
    left = x - width / 2 + 2.5 * _GAP
    for child in part.children():
        room = _size(child)[0]
        _place(axis, child, left + room / 2, y - 3 * _GAP)
        left += room + _GAP
    if isinstance(part, Recurrent):
        side, bow = x + width / 2 - 2 * _GAP, 2 * _GAP / (height - 4 * _GAP)
        back = FancyArrowPatch((side, y - height + _GAP), (side, y - 3 * _GAP), connectionstyle=f"arc3,rad={bow}")
        back.set(arrowstyle="->", mutation_scale=10, edgecolor="0.3")
        axis.add_patch(back)
