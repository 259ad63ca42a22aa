"""Faces to samples and back: where samples lie, prepare faces, list them per tile, stream each tile; and what the templates
stand on: the edge integrals as straight-line source for a given df, which is what LLVM needs to see to vectorise the loop
around them, and the formulas that Triton's kernels have too."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from algonet.core.cache import cached
from algonet.core.codegen import generate as codegen
from algonet.core.threads import spread, workers

from ... import vectors
from ...lights import AMBIENT, DIRECTIONAL, HEADLIGHT, LIGHT, NOWHERE, ROUNDING, TOP, TURN
from ...vectors import (
    BACK,
    EDGE_GUARD,
    FADE,
    FAINT,
    FAR_PIXELS,
    FLAT,
    FLIP_AREA,
    GREY,
    LEAST_SPACING,
    MARGIN,
    MOST_SAMPLES,
    TAPS,
    THIN,
)

#: Pairs of face and tile whose gradients are kept at once; more are done in several rounds of items.
_ROUND = 1 << 20
TEMPLATES = ("faces", "forward", "backward", "pixels")


@cached
def kernels(precision: str, half: int) -> ModuleType:
    """The templates' functions for one precision and df / 2."""
    paths = [Path(__file__).with_name(f"{name}.py") for name in TEMPLATES]
    return codegen.load_template(f"render_{precision}_{half}", prelude(precision, half), *paths)


def kernels_for(dtype: torch.dtype, half: int = 4) -> ModuleType:
    return kernels("float64" if dtype == torch.float64 else "float32", half)


class Grid(NamedTuple):
    """Where an item's samples lie: `spacing` pixels apart, the first `margin` of them before the first pixel's centre.

    Where the noise is sharp they are the pixels. Where it is wide there are fewer, pixels are interpolated from them, and they
    are kept in the upper left corner of arrays of the picture's size.
    """

    spacing: float
    margin: int
    rows: int
    columns: int

    @staticmethod
    def of(spacing: float, height: int, width: int) -> Grid:
        """For samples about `spacing` pixels apart."""
        if LEAST_SPACING <= spacing < math.inf:
            spacing = min(spacing, 1e6)
            rows, columns = (math.ceil((n - 1) / spacing) + 1 + 2 * MARGIN for n in (height, width))
            if rows <= height and columns <= width and rows * columns <= MOST_SAMPLES * height * width:
                return Grid(spacing, MARGIN, rows, columns)
        return Grid(1.0, 0, height, width)

    def to_pixels(self, samples: np.ndarray, size: tuple[int, int], taps: int = TAPS) -> np.ndarray:
        """Samples (H, W, C), of which the upper left corner counts, as pixels (H, W, C)."""
        down, across = self._matrices(size, samples.dtype, taps)
        rows = np.tensordot(down, samples[: self.rows, : self.columns], 1)
        return np.einsum("xc,ycn->yxn", across, rows, optimize=True)

    def to_samples(self, pixels: np.ndarray) -> np.ndarray:
        """The transpose: gradients at pixels (H, W, C) to those at samples, in the upper left corner of as large an array."""
        down, across = self._matrices(pixels.shape[:2], pixels.dtype)
        out = np.zeros_like(pixels)
        rows = np.tensordot(down.T, pixels, 1)
        out[: self.rows, : self.columns] = np.einsum("xc,yxn->ycn", across, rows, optimize=True)
        return out

    def tells(self, samples: np.ndarray, size: tuple[int, int], error: float) -> bool:
        """Whether samples tell the pixels: with two taps fewer, totals (the first two channels) change by less than `error`,
        and means by less than that share of their range. What is hidden may end along edges finer than the noise."""
        found, fewer = (self.to_pixels(samples, size, taps) for taps in (TAPS, TAPS - 2))
        there = np.minimum(found[..., :2].sum(-1, keepdims=True), 1)
        spread = np.where(there > 0.01, found, np.nan)[..., 2:]
        if np.isnan(spread).all():
            return True
        spread = np.nanmax(spread, (0, 1)) - np.nanmin(spread, (0, 1))
        off = np.abs(found - fewer) * there
        return bool((off[..., :2] <= error).all() and (off[..., 2:] <= error * spread + 1e-12).all())

    def _matrices(self, size: Sequence[int], dtype: Any, taps: int = TAPS) -> tuple[np.ndarray, np.ndarray]:
        return (
            lagrange_matrix(size[0], self.rows, self.spacing, self.margin, taps).astype(dtype),
            lagrange_matrix(size[1], self.columns, self.spacing, self.margin, taps).astype(dtype),
        )


@cached
def lagrange_matrix(pixels: int, samples: int, spacing: float, margin: int, count: int = TAPS) -> np.ndarray:
    """(pixels, samples): what each sample counts in each pixel, by Lagrange's polynomial through `count` of them."""
    at = np.arange(pixels) / spacing + margin
    first = np.floor(at) - (count // 2 - 1)
    u = (at - first)[:, None]
    taps = np.arange(count)
    matrix = np.zeros((pixels, samples))
    for tap in taps:
        others = taps[taps != tap]
        weight = np.prod((u - others) / (tap - others), axis=1)
        # A pixel right on a sample has no use for the tap beyond the last one
        column = np.minimum(first.astype(np.int64) + tap, samples - 1)
        np.add.at(matrix, (np.arange(pixels), column), weight)
    return matrix


class Samples(NamedTuple):
    """Per sample: the coverage of front and back, the limit of what is shown, and means of the channels and, last, of depth: of
    all that is shown, and of what is just being hidden."""

    total: np.ndarray
    limit: np.ndarray
    mean: np.ndarray
    edge: np.ndarray


class Scene:
    """A call's arrays with one batch dimension, the grid of each item, and its faces as tiles want them.

    Of each item `sizes` are rows and columns of samples and their margin, and `soft` the scale in samples and the steepness;
    `broken` says which hold something that is not a number, `pairs` how many tiles each face touches.
    """

    def __init__(self, plan: Any, arrays: Sequence[np.ndarray], grids: Sequence[Grid]):
        """`plan`: a `RenderAttributesPlan`."""
        self.plan, self.module, self.numbers, self.grids = plan, plan.module, plan.numbers, grids
        self.points, self.attributes, self.softness, self.faces, self.attribute_faces, self.normals = arrays
        dtype, items, count = self.points.dtype, len(self.points), len(self.faces)
        self.spacings, self.sizes = np.empty(items, dtype), np.empty((items, 3), np.int64)
        for item, grid in enumerate(grids):
            self.spacings[item], self.sizes[item] = grid.spacing, (grid.rows, grid.columns, grid.margin)
        self.soft = np.stack([self.softness[:, 0] / self.spacings, self.softness[:, 1]], 1)
        self.reaches = (self.numbers[1] * math.sqrt(self.numbers[0]) * self.soft[:, 0]).astype(dtype)
        self.vertices = np.empty((items, self.points.shape[1], 6), dtype)
        #: Channels, normals among them as the last.
        self.channels = self.attributes.shape[-1] + self.normals.shape[-1]
        self.prepared = np.empty((items, count, self.module.PLANES + 3 * self.channels), dtype)
        self.pairs, self.tile_counts = np.zeros((items, count), np.int64), np.zeros((items, plan.tiles), np.int64)
        self.broken = np.zeros(items, np.bool_)
        in_threads(
            self.module.prepare_items, self.points, self.faces, self.attributes, self.attribute_faces, self.normals,
            self.softness, self.sizes, self.spacings, self.reaches, plan.settings.perspective, plan.settings.two_sided,
            plan.guard, self.vertices, self.prepared, self.pairs, self.tile_counts, self.broken,
        )  # fmt: skip

    def sample(self, samples: Samples) -> None:
        """Fill the samples."""

        def fill(items: slice, prepared: np.ndarray, lists: list[np.ndarray]) -> None:
            _, tile_starts, faces_of, _ = lists
            in_threads(
                self.module.forward_tiles, tile_starts, faces_of, prepared, self.soft[items], self.sizes[items], self.numbers,
                *[a[items] for a in samples],
            )  # fmt: skip

        self._by_rounds(fill)

    def pull(self, samples: Samples, grads: list[np.ndarray]) -> list[np.ndarray]:
        """Gradients by points, attributes, normals and softness, from those by the samples' totals and means."""
        results = [np.zeros_like(a) for a in (self.points, self.attributes, self.normals, self.softness)]
        width = self.module.SUMS + 3 * self.channels

        def collect(items: slice, prepared: np.ndarray, lists: list[np.ndarray]) -> None:
            starts, tile_starts, faces_of, pairs_of = lists
            records = np.empty((max(1, starts[-1]), width), prepared.dtype)
            in_threads(
                self.module.backward_tiles, tile_starts, faces_of, pairs_of, prepared, self.soft[items], self.sizes[items],
                self.numbers, *[a[items] for a in (*samples, *grads)], records,
            )  # fmt: skip
            in_threads(
                self.module.gather_items, starts, records, prepared, self.vertices[items], self.points[items], self.faces,
                self.attributes[items], self.attribute_faces, self.normals[items], self.softness[items],
                self.plan.settings.perspective, self.plan.guard, self.spacings[items], *[a[items] for a in results],
            )  # fmt: skip

        self._by_rounds(collect)
        return results

    def _by_rounds(self, work: Callable[[slice, np.ndarray, list[np.ndarray]], None]) -> None:
        """work(items, their faces, [where each face's pairs begin, where each tile's do, faces and numbers of these pairs]) of
        as many items at a time as keep the number of pairs bounded."""
        counts, first = self.pairs.sum(1).tolist(), 0
        while first < len(counts):
            total, last = counts[first], first + 1
            while last < len(counts) and total + counts[last] <= _ROUND:
                total, last = total + counts[last], last + 1
            items = slice(first, last)
            starts, tile_starts = offsets(self.pairs[items]), offsets(self.tile_counts[items])
            faces_of, pairs_of = np.empty(total, np.int64), np.empty(total, np.int64)
            in_threads(
                self.module.list_items, self.prepared[items], self.sizes[items], self.reaches[items], self.broken[items],
                starts, tile_starts.copy(), faces_of, pairs_of,
            )  # fmt: skip
            prepared = self.prepared[items].reshape(-1, self.prepared.shape[-1])
            work(items, prepared, [starts, tile_starts, faces_of, pairs_of])
            first = last


def offsets(counts: np.ndarray) -> np.ndarray:
    """Where each one's entries begin, and where the last ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def in_threads(work: Callable[..., None], *arguments: Any) -> None:
    """work(i, n, *arguments) for i below n, at once."""
    count = workers()
    if count == 1:
        work(0, 1, *arguments)
    else:
        spread(work, [(i, count, *arguments) for i in range(count)])


_ATAN = (
    1.0,
    -0.33333197,
    0.19996658,
    -0.14248517,
    0.10882252,
    -0.08222059,
    0.055126704,
    -0.028560145,
    0.009593663,
    -0.0015133966,
)

_IMPORTS = """import numpy as np
from numba import float32, int64

from algonet.core.codegen.jit import njit
from algonet.core.codegen.numba_math import maximum, minimum, where

sqrt = np.sqrt
OPTIONS = {"fastmath": {"contract"}, "error_model": "numpy", "nogil": True}
"""
#: What differs between the precisions.
_HEADERS = {
    "float32": """from algonet.core.codegen.numba_math import exp32 as exp, log32 as log

real = float32
EXACT, HIDDEN = 1e-5, 1e-9
""",
    "float64": """from math import exp, log

from numba import float64

real = float64
EXACT, HIDDEN = 1e-13, 1e-15
""",
}


def prelude(precision: str, half: int) -> str:
    """What the templates stand on: imports, constants, and for one precision and df `real`, `exp`, `log`, `angle`, `edge`."""
    numbers = {
        "FLIP_AREA": FLIP_AREA, "FAR": FAR_PIXELS, "FLAT": FLAT, "EDGE_GUARD": EDGE_GUARD, "GREY": GREY, "AMBIENT": AMBIENT,
        "DIRECTIONAL": DIRECTIONAL, "HEADLIGHT": HEADLIGHT, "LIGHT": LIGHT,
    }  # fmt: skip
    own = {
        "FADE2": FADE**2, "GUARD2": vectors.GUARD**2, "NOWHERE2": NOWHERE**2, "ROUNDING2": ROUNDING**2, "TURN2": TURN**2,
        "INVERSE_TOP": 1 / TOP, "FLATNESS": vectors.FLATNESS, "LEAST_SQUARE": vectors.LEAST_SQUARE, "SMALL2": vectors.SMALL**2,
        "BACK": BACK, "FAINT2": FAINT**2, "THIN2": THIN**2, "LOG2E": 1.0, "FARTHEST": 40.0,
    }  # fmt: skip
    constants = f"HALF = {half}\n" + "".join(f"{name} = {value!r}\n" for name, value in numbers.items())
    constants += "".join(f"{name} = np.{precision}({value!r})\n" for name, value in own.items())
    formulas = [translated(Path(__file__).parents[1] / "triton" / f"{name}.py") for name in ("shared", "formulas")]
    return "\n\n".join(
        [_IMPORTS + _HEADERS[precision] + constants, _FUNCTIONS, _angle(precision), _edge(half), *formulas]
    )


#: What Triton's kernels have instructions for. Depths in units of log 2 are their affair: here these units are natural. The
#: furthest is exp(-40), because numbers that are not normal take a processor a hundred times as long.
_FUNCTIONS = """quick_exp2 = exp


@njit(forceinline=True, **OPTIONS)
def reciprocal(x):
    return real(1.0) / x


@njit(forceinline=True, **OPTIONS)
def rsqrt(x):
    return real(1.0) / sqrt(x)
"""


def translated(path: Path) -> str:
    """Functions of numbers and tuples that are written for Triton, for Numba: bare literals would be float64 there."""
    text = path.read_text(encoding="utf-8").split(codegen.TEMPLATE)[1]
    text = text.replace("@triton.jit", "@njit(forceinline=True, **OPTIONS)").replace("tl.static_range", "range")
    text = re.sub(r"(?<![\w.])\d+(?:\.\d+(?:e-?\d+)?|e-?\d+)", r"real(\g<0>)", text.replace(": tl.constexpr", ""))
    return re.sub(r"\btl\.", "", text)


def _angle(precision: str) -> str:
    if precision == "float64":
        return "@njit(forceinline=True, **OPTIONS)\ndef angle(y, x):\n    return np.arctan2(y, x)\n"
    lines = [
        "@njit(forceinline=True, **OPTIONS)",
        "def angle(y, x):",
        '    """atan2(y, x) for y >= 0: a polynomial of the smaller over the larger, error below 2e-7."""',
        "    a = abs(x)",
        "    t = min(a, y) / max(max(a, y), real(1e-30))",
        "    z = t * t",
        f"    v = real({_ATAN[-1]})",
        *(f"    v = v * z + real({c})" for c in reversed(_ATAN[:-1])),
        "    v = v * t",
        "    v = real(1.5707963267948966) - v if y > a else v",
        "    return real(3.141592653589793) - v if x < real(0.0) else v",
    ]
    return "\n".join(lines) + "\n"


def _series(half: int, last: int) -> list[str]:
    """J_1 .. J_last in scaled form; `total` is the sum of the first `half`."""
    lines = [
        "    rho2 = d * d + sigma2",
        "    rho = np.sqrt(rho2)",
        "    inverse = real(1.0) / rho2",
        "    z0 = t0 * t0 + rho2",
        "    z1 = t1 * t1 + rho2",
        "    both = sigma2 / (z0 * z1)",
        "    s0 = both * z1",
        "    s1 = both * z0",
        "    ratio = sigma2 * inverse",
        "    j1 = angle(rho * (t1 - t0), rho2 + t0 * t1) * rho * inverse",
        "    total = j1",
        "    e0 = t0 * inverse",
        "    e1 = t1 * inverse",
    ]
    for k in range(1, last):
        lines += [
            "    e0 = e0 * s0",
            "    e1 = e1 * s1",
            f"    j{k + 1} = (e1 - e0) * real({1 / (2 * k)!r}) + real({(2 * k - 1) / (2 * k)!r}) * ratio * j{k}",
        ]
        if k == half - 1:
            lines.append("    before = total")
        if k < half:
            lines.append(f"    total = total + j{k + 1}")
    return lines


def _edge(half: int) -> str:
    lines = [
        "@njit(forceinline=True, **OPTIONS)",
        "def edge(t0, t1, d, sigma2):",
        '    """Coverage, moment along the outward normal; what the second moment has in every direction, and its part along',
        '    the edge; and the density times 1, t, t^2 and t^3 integrated along the edge."""',
        *_series(half, half + 1),
        "    p0 = s0",
        "    p1 = s1",
        "    q0 = p0",
        "    q1 = p1",
        *["    q0 = p0", "    q1 = p1", "    p0 = p0 * s0", "    p1 = p1 * s1"] * (half - 1),
        f"    k0 = real({half / math.pi!r}) * j{half + 1}",
        "    k1 = real(0.15915494309189535) * (p0 - p1)",
        f"    k2 = real({half / math.pi!r}) * (sigma2 * j{half} - rho2 * j{half + 1})",
    ]
    if half > 1:
        lines += [
            f"    part = sigma2 * real({0.5 / (half - 1) / (2 * math.pi)!r})",
            "    within, odd = part * d * before, part * (q0 - q1)",
            f"    k3 = real({2.0 * half!r}) * odd - rho2 * k1",
        ]
    else:
        # Noise of two degrees of freedom has no second moment
        lines.append("    within, odd, k3 = real(0.0), real(0.0), real(0.0)")
    lines.append(
        f"    return d * total * real(0.15915494309189535), sigma2 * j{half} * real(0.15915494309189535), within, odd, "
        "(k0, k1, k2, k3)"
    )
    return "\n".join(lines) + "\n"
