"""Where a soft picture is sampled, and how pixels are interpolated from the samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from algonet.core.cache import cached

from ...constants import LEAST_SPACING, MARGIN, MOST_SAMPLES, TAPS
from ...settings import RasterSettings


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
    def of(scale: float, settings: RasterSettings) -> Grid:
        height, width = settings.height, settings.width
        spacing = scale * settings.spacing
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
