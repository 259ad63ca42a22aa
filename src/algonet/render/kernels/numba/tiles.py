"""Faces to samples and back: where samples lie, prepare faces, list them per tile, stream each tile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from algonet.core.cache import cached
from algonet.core.codegen import generate as codegen
from algonet.core.threads import spread, workers

from ...constants import LEAST_SPACING, MARGIN, MOST_SAMPLES, TAPS
from .edges import prelude

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

    @property
    def wide(self) -> bool:
        return self.margin > 0

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
        self.points, self.attributes, self.softness, self.faces, self.attribute_faces = arrays
        dtype, items, count = self.points.dtype, len(self.points), len(self.faces)
        self.spacings, self.sizes = np.empty(items, dtype), np.empty((items, 3), np.int64)
        for item, grid in enumerate(grids):
            self.spacings[item], self.sizes[item] = grid.spacing, (grid.rows, grid.columns, grid.margin)
        self.soft = np.stack([self.softness[:, 0] / self.spacings, self.softness[:, 1]], 1)
        self.reaches = (self.numbers[1] * math.sqrt(self.numbers[0]) * self.soft[:, 0]).astype(dtype)
        self.vertices = np.empty((items, self.points.shape[1], 6), dtype)
        self.prepared = np.empty((items, count, self.module.FACE), dtype)
        self.pairs, self.tile_counts = np.zeros((items, count), np.int64), np.zeros((items, plan.tiles), np.int64)
        self.broken = np.zeros(items, np.bool_)
        in_threads(
            self.module.prepare_items, self.points, self.faces, self.softness, self.sizes, self.spacings, self.reaches,
            plan.settings.perspective, plan.settings.two_sided, plan.guard, self.vertices, self.prepared, self.pairs,
            self.tile_counts, self.broken,
        )  # fmt: skip

    def sample(self, samples: Samples) -> None:
        """Fill the samples."""

        def fill(items: slice, prepared: np.ndarray, lists: list[np.ndarray]) -> None:
            _, tile_starts, faces_of, _ = lists
            in_threads(
                self.module.forward_tiles, tile_starts, faces_of, prepared, self.faces, self.attribute_faces,
                self.attributes[items], self.soft[items], self.sizes[items], self.numbers, *[a[items] for a in samples],
            )  # fmt: skip

        self._by_rounds(fill)

    def pull(self, samples: Samples, grads: list[np.ndarray]) -> list[np.ndarray]:
        """Gradients by points, attributes and softness, from those by the samples' totals and means."""
        results = [np.zeros_like(a) for a in (self.points, self.attributes, self.softness)]
        width = self.module.SUMS + 3 * self.attributes.shape[-1]

        def collect(items: slice, prepared: np.ndarray, lists: list[np.ndarray]) -> None:
            starts, tile_starts, faces_of, pairs_of = lists
            records = np.empty((max(1, starts[-1]), width), prepared.dtype)
            in_threads(
                self.module.backward_tiles, tile_starts, faces_of, pairs_of, prepared, self.faces, self.attribute_faces,
                self.attributes[items], self.soft[items], self.sizes[items], self.numbers,
                *[a[items] for a in (*samples, *grads)], records,
            )  # fmt: skip
            in_threads(
                self.module.gather_items, starts, records, prepared, self.vertices[items], self.points[items], self.faces,
                self.attribute_faces, self.softness[items], self.plan.settings.perspective, self.plan.guard,
                self.spacings[items], *[a[items] for a in results],
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
