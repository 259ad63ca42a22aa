"""A program's network as a picture: units, loops and branches where they stand in the program."""

from __future__ import annotations

from typing import Any

from algonet.core.extras import require

from .reference import Branch, Recurrent, Sequence, Unit

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
    if isinstance(part, Unit):
        return _UNIT
    if isinstance(part, Sequence):
        sizes = [_size(child) for child in part]
        return max((w for w, _ in sizes), default=0.4), sum(h + _GAP for _, h in sizes)
    if isinstance(part, Recurrent):
        width, height = _size(part.body)
        return width + 6 * _GAP, height + 4 * _GAP
    (left, first), (right, second) = _size(part.then), _size(part.otherwise)
    return left + right + 3 * _GAP, max(first, second) + 4 * _GAP


def _place(axis: Any, part: Any, x: float, y: float) -> None:
    """Draw `part` with the middle of its top at (x, y)."""
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    width, height = _size(part)
    if isinstance(part, Sequence):
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
    if isinstance(part, Branch):
        left, right = _size(part.then)[0], _size(part.otherwise)[0]
        for child, middle in ((part.then, -(right + _GAP) / 2), (part.otherwise, (left + _GAP) / 2)):
            _place(axis, child, x + middle, y - 3 * _GAP)
        return
    _place(axis, part.body, x, y - 3 * _GAP)
    side = x + width / 2 - 2 * _GAP
    bow = 2 * _GAP / (height - 4 * _GAP)
    back = FancyArrowPatch((side, y - height + _GAP), (side, y - 3 * _GAP), connectionstyle=f"arc3,rad={bow}")
    back.set(arrowstyle="->", mutation_scale=10, edgecolor="0.3")
    axis.add_patch(back)
