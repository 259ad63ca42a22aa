"""Figures of a WHILE-program: the paper's surfaces, and the network that it is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from algonet.core.extras import require
from algonet.relax import Exit, Tent

from .modules import WhileProgram
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
        value = function(x1, x2)
    slopes = torch.autograd.grad(value.sum(), (x1, x2), allow_unused=True) if value.requires_grad else (None, None)
    squares = [torch.zeros_like(value) if s is None else s.square() for s in slopes]
    return x1.detach(), x2.detach(), value.detach(), (squares[0] + squares[1]).sqrt().detach()


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

    panels: list[tuple[str, Callable[[Tensor, Tensor], Tensor]]] = []
    if library in EXACT:
        name, function = EXACT[library]
        panels.append((name, function))
    smoothness = "C∞" if exit.smoothness == float("inf") else f"C^{int(exit.smoothness)}"
    for title, chosen in ((f"{exit.key}: {smoothness}", exit), ("Tent: C⁰", Tent())):
        panels.append((f"smooth program, {title}", _function(program, chosen, max_iterations)))
    data = [surface(function, *span, size) for _, function in panels]
    values = torch.stack([d[2] for d in data])
    slopes = torch.stack([d[3] for d in data])
    heights = (float(values.min()), max(float(values.max()), float(values.min()) + 1e-6))
    limits = (0.0, max(float(slopes.flatten().quantile(0.98)), 1e-6))
    figure = plt.figure(figsize=(4.3 * len(panels), 4.2))
    mappable = None
    for i, ((title, _), d) in enumerate(zip(panels, data, strict=True), start=1):
        axis = figure.add_subplot(1, len(panels), i, projection="3d")
        mappable = draw(axis, d, limits, heights)
        axis.set_title(title, fontsize=13, y=0.98)
    figure.subplots_adjust(left=0.01, right=0.91, wspace=0.02, bottom=0.03, top=0.95)
    bar = figure.add_axes((0.93, 0.22, 0.012, 0.55))
    figure.colorbar(mappable, cax=bar).set_label("size of the gradient", fontsize=12)
    return figure


def _function(program: Program, exit: Exit, max_iterations: int) -> Callable[[Tensor, Tensor], Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonHaltingWarning)
        # The reference: a picture is a few thousand elements, and compiling for it would take longer
        layer = WhileProgram(program, exit, max_iterations=max_iterations, backend="reference")
    known = {name: position for position, name in enumerate(("x1", "x2")) if name in layer.variables}
    return lambda *arguments: layer(**{name: arguments[position] for name, position in known.items()})
