"""What the rasteriser's backends agree on: the call, its settings, and the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from algonet.core.identity import interned
from algonet.relax import BoundedSum, TConorm

from .coverage import DEFAULT_COVERAGE, Coverage
from .lights import Shading
from .vectors import EPSILON, SAMPLES_PER_SCALE, SLOPES_EPSILON

#: Of overlapping faces: the sum of their coverages, bounded by 1. One full layer is 2^(-1/1024) = 0.9993.
DEFAULT_CONORM = BoundedSum(1024)


@dataclass(frozen=True)
class RasterSettings:
    """All that is not a tensor. `coverage` is without its softness, which is a tensor; `epsilon` is what may be neglected;
    `deterministic` asks a kernel for the same bits on every run (the CPU kernel always gives them); without `perspective`, w
    is 1. `over_depth`: depth is composed over the background's. `shading`: pictures are lit, and the first three attributes,
    if `colored`, are the albedo. `sharp`: the noise is known to be narrow, so that every pixel is its own sample, and
    kernels that cannot look need not be ready for both."""

    height: int
    width: int
    coverage: Coverage = field(default_factory=lambda: DEFAULT_COVERAGE.form())
    epsilon: float = EPSILON
    conorm: TConorm = field(default_factory=lambda: interned(DEFAULT_CONORM))
    two_sided: bool = True
    perspective: bool = True
    over_depth: bool = False
    deterministic: bool = False
    shading: Shading | None = None
    colored: bool = True
    sharp: bool = False

    @property
    def power(self) -> float:
        """k where the silhouette bounds the sum of coverages by that power, 0 for any other conorm."""
        return self.conorm.power or 0.0

    @property
    def df(self) -> int:
        """Degrees of freedom of the noise, for kernels, which take no other."""
        return int(self.coverage.df or 0)

    @property
    def half_df(self) -> int:
        return self.df // 2

    @property
    def reach(self) -> float:
        """The distance, in units of sigma = sqrt(df) scale, beyond which all noise together weighs `epsilon`."""
        return self._reach(self.epsilon)

    @property
    def near_reach(self) -> float:
        """The same for SLOPES_EPSILON `epsilon`: as far as gradients by points and attributes need to look.

        Between that and the full reach lie a quarter of the pixels, and little else: without them gradients by points are off
        by 1e-4 of their norm (3e-5 with), those by attributes by 1e-5. Those by the noise's scale would be by 4e-3 (1e-3).
        """
        return self._reach(max(self.epsilon, min(SLOPES_EPSILON * self.epsilon, 0.1)))

    def _reach(self, epsilon: float) -> float:
        return math.sqrt(epsilon ** (-1 / self.half_df) - 1)

    @property
    def spacing(self) -> float:
        """The distance between samples, in units of the noise's scale; 0 where every pixel is its own sample.

        The picture's spectrum falls like exp(-sqrt(df) scale frequency), but no faster than a Gaussian's; and it is sums over
        faces that are interpolated, which not every conorm is made of.
        """
        if self.sharp or self.power == 0:
            return 0.0
        return min(1.0, math.sqrt(self.df / 8)) / SAMPLES_PER_SCALE


@dataclass(frozen=True)
class NormalSettings:
    """Of normals of vertices: `deterministic` asks for the same bits on every run."""

    deterministic: bool = False


class Raster(NamedTuple):
    """The rasteriser's result, all differentiable: `image` (*B, H, W, C) are the attributes over the background,
    `silhouette` (*B, H, W) in [0, 1], `depth` (*B, H, W) that of the surface (0 where there is none), or over the
    background's if that was given."""

    image: Tensor
    silhouette: Tensor
    depth: Tensor


def empty_pictures(tensors: Sequence[Tensor], settings: RasterSettings) -> list[Tensor]:
    """Empty tensors with the shapes of the operation's outputs."""
    points, attributes = tensors[:2]
    shape = (*points.shape[:-2], settings.height, settings.width)
    plane = [points.new_empty(shape), points.new_empty(shape)]
    channels = attributes.shape[-1]
    if settings.shading is None:
        return [points.new_empty(*shape, channels), *plane]
    return [points.new_empty(*shape, 3), *plane, points.new_empty(*shape, channels - 3 * settings.colored)]
