"""The rooms of the playground, in the order of the page."""

from __future__ import annotations

from typing import NamedTuple


class Room(NamedTuple):
    module: str
    title: str
    heading: str
    intro: str


ROOMS = {
    "while": Room(
        "while_programs",
        "Loops",
        "A program with loops, on real numbers",
        "Loops are left gradually, so the program has a value and a gradient between the integers. Change the program or the "
        "exit; drag the surface to turn it.",
    ),
    "sort": Room(
        "sorting",
        "Sorting",
        "Sort, and ask who should move",
        "Drag the bars. The network exchanges neighbours as far as they are out of order; arrows show how each number would "
        "have to move to raise the place you chose.",
    ),
    "fractals": Room(
        "fractals",
        "Fractals",
        "Bend a fractal by its maps",
        "Every parallelogram is one map: drag its corners or its middle. Or draw something and let gradient descent find maps "
        "for it.",
    ),
    "render": Room(
        "renderer",
        "Renderer",
        "A renderer that is smooth in every vertex",
        "Turn the mesh, soften the noise, upload your own, and let a ball take its shape from eight pictures.",
    ),
    "programs": Room(
        "smooth_programs",
        "Python",
        "Plain Python under @smooth",
        "The function as written, dashed, and smooth. Move the input and the steepness; the slope is exact.",
    ),
}
