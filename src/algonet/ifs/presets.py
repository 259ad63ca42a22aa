"""Famous iterated function systems, in the textbook form (x, y) -> (a x + b y + e, c x + d y + f)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

Row = tuple[float, float, float, float, float, float]


@dataclass(frozen=True)
class Preset:
    """A system in textbook rows (a, b, c, d, e, f), the rectangle that holds it, and selection weights where areas
    would not do (a map that flattens everything needs its share of points too)."""

    rows: tuple[Row, ...]
    extent: tuple[float, float, float, float]
    weights: tuple[float, ...] | None = None

    def parameters(self, dtype: torch.dtype | None = None) -> Tensor:
        """(n, 6) in the residual form."""
        return residual_form(torch.tensor(self.rows, dtype=dtype or torch.get_default_dtype()))


def residual_form(rows: Tensor) -> Tensor:
    """Textbook rows (..., 6) = (a, b, c, d, e, f) as the paper's residual parameters (e, a - 1, b, f, c, d - 1).

    >>> residual_form(torch.tensor([[0.5, 0.0, 0.0, 0.5, 0.25, 0.5]]))
    tensor([[ 0.2500, -0.5000,  0.0000,  0.5000,  0.0000, -0.5000]])
    """
    if rows.ndim < 1 or rows.shape[-1] != 6:
        raise ValueError(f"residual_form: wanted rows (a, b, c, d, e, f), got a tensor {tuple(rows.shape)}.")
    a, b, c, d, e, f = rows.unbind(-1)
    return torch.stack([e, a - 1, b, f, c, d - 1], dim=-1)


def _polygon(corners: int, scale: float) -> tuple[Row, ...]:
    angles = [math.pi / 2 + 2 * math.pi * k / corners for k in range(corners)]
    return tuple((scale, 0.0, 0.0, scale, (1 - scale) * math.cos(t), (1 - scale) * math.sin(t)) for t in angles)


#: Of each system a line with its name, its extent, and its weights where areas would not do; then its rows.
_SYSTEMS = """
fern -5.05 5.55 -0.3 10.3 0.01 0.85 0.07 0.07
    0 0 0 0.16 0 0
    0.85 0.04 -0.04 0.85 0 1.6
    0.2 -0.26 0.23 0.22 0 1.6
    -0.15 0.28 0.26 0.24 0 0.44
sierpinski -0.05 1.05 -0.12 0.98
    1/2 0 0 1/2 0 0
    1/2 0 0 1/2 1/2 0
    1/2 0 0 1/2 1/4 0.4330127018922193
dragon -0.5 1.34 -0.75 1.09
    1/2 -1/2 1/2 1/2 0 0
    -1/2 -1/2 1/2 -1/2 1 0
tree -0.26 0.26 -0.03 0.49 0.05 0.4 0.4 0.15
    0 0 0 0.5 0 0
    0.42 -0.42 0.42 0.42 0 0.2
    0.42 0.42 -0.42 0.42 0 0.2
    0.1 0 0 0.1 0 0.2
maple -3.6 3.6 -3.5 3.7
    0.14 0.01 0 0.51 -0.08 -1.31
    0.43 0.52 -0.45 0.5 1.49 -0.75
    0.45 -0.49 0.47 0.47 -1.62 -0.74
    0.49 0 0 0.51 0.02 1.62
levy -0.6 1.6 -0.85 1.35
    1/2 -1/2 1/2 1/2 0 0
    1/2 1/2 -1/2 1/2 1/2 1/2
koch -0.05 1.05 -0.4 0.7
    1/3 0 0 1/3 0 0
    1/6 -0.28867513459481287 0.28867513459481287 1/6 1/3 0
    1/6 0.28867513459481287 -0.28867513459481287 1/6 1/2 0.28867513459481287
    1/3 0 0 1/3 2/3 0
carpet -0.05 1.05 -0.05 1.05
    1/3 0 0 1/3 0 0
    1/3 0 0 1/3 1/3 0
    1/3 0 0 1/3 2/3 0
    1/3 0 0 1/3 0 1/3
    1/3 0 0 1/3 2/3 1/3
    1/3 0 0 1/3 0 2/3
    1/3 0 0 1/3 1/3 2/3
    1/3 0 0 1/3 2/3 2/3
snowflake -1.1 1.1 -1.1 1.1
    1/3 0 0 1/3 0 0
pentagon -1.1 1.1 -1.1 1.1
spiral -8 8 -3 13 0.9 0.05 0.05
    0.787879 -0.424242 0.242424 0.859848 1.758647 1.408065
    -0.121212 0.257576 0.151515 0.05303 -6.721654 1.377236
    0.181818 -0.136364 0.090909 0.181818 6.086107 1.568035
"""
#: Rows that come first.
_CORNERS = {"snowflake": _polygon(6, 1 / 3), "pentagon": _polygon(5, 0.381966)}


def _read(system: str) -> tuple[str, Preset]:
    head, *lines = system.splitlines()
    name, *words = head.split()
    numbers, *rows = (tuple(float(Fraction(word)) for word in line) for line in (words, *map(str.split, lines)))
    listed: Any = (*_CORNERS.get(name, ()), *rows), numbers[:4], numbers[4:] or None
    return name, Preset(*listed)


PRESETS: dict[str, Preset] = dict(map(_read, re.split(r"\n(?=\w)", _SYSTEMS.strip("\n"))))


def preset(name: str) -> Preset:
    """The preset of that name; an unknown one lists those there are."""
    if name not in PRESETS:
        raise ValueError(f"preset: unknown system {name!r}; choose one of {', '.join(PRESETS)}.")
    return PRESETS[name]
