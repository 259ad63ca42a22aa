"""What the rasteriser's backends agree on: the call, its settings, and the constants of the formula."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from algonet.relax import BoundedSum, Probabilistic, TConorm

#: Twice the screen area (square pixels) over which a face turns from back to front, and below which interpolation
#: inside it gives way to its centroid.
FLIP_AREA = 1e-4
#: Coverage below which the mean position inside a face gives way to the face's centroid: for depth and attributes, where
#: rounding would throw the position out of the face; and for the distance on the screen, which may be rough but not wrong.
FAINT, FAINTEST = 1e-3, 1e-5
#: A face that noise reaches only from its full reach away loses exp(-LATERAL) of its weight in depth and colour.
LATERAL = 16.0
#: Guards the direction of an edge of zero length (square pixels).
EDGE_GUARD = 1e-12
#: Screen positions are kept within this many pixels, so that their fourth powers stay finite in float32.
FAR_PIXELS = 1e7
#: Points of the world beyond this are taken to lie there, so that products of finite numbers stay finite.
FAR_POINTS = 1e15


@dataclass(frozen=True, eq=False)
class RasterSettings:
    """All that is not a tensor. `df` is even; `epsilon` is what may be neglected; `deterministic` asks a kernel for the
    same bits on every run (the CPU kernel always gives them); without `perspective`, w is 1."""

    height: int
    width: int
    df: int = 8
    epsilon: float = 1e-4
    conorm: TConorm = field(default_factory=BoundedSum)
    two_sided: bool = True
    perspective: bool = True
    deterministic: bool = False

    @property
    def half_df(self) -> int:
        return self.df // 2

    @property
    def reach(self) -> float:
        """The distance, in units of sigma = sqrt(df) scale, beyond which all noise together weighs `epsilon`."""
        return math.sqrt(self.epsilon ** (-1 / self.half_df) - 1)

    def encode(self) -> str:
        """The settings as a string, which is how they travel through torch operators; for streamed conorms only."""
        flags = f"{int(self.two_sided)}{int(self.perspective)}{int(self.deterministic)}"
        return f"{self.height} {self.width} {self.df} {self.epsilon!r} {self.conorm.key} {flags}"


@functools.lru_cache(maxsize=256)
def decode(text: str) -> RasterSettings:
    """The settings that `encode` wrote."""
    height, width, df, epsilon, conorm, flags = text.split()
    name = BoundedSum.__name__
    chosen = BoundedSum(int(conorm.removeprefix(name))) if conorm.startswith(name) else Probabilistic()
    return RasterSettings(int(height), int(width), int(df), float(epsilon), chosen, *(flag == "1" for flag in flags))


def result_shapes(tensors: list[Tensor], settings: RasterSettings) -> list[Tensor]:
    """Empty tensors with the shapes of image, silhouette and depth."""
    points, attributes = tensors[:2]
    shape = (*points.shape[:-2], settings.height, settings.width)
    return [points.new_empty(*shape, attributes.shape[-1]), points.new_empty(shape), points.new_empty(shape)]


@dataclass(frozen=True, eq=False)
class RasterCall:
    """One call of the rasteriser; leading batch dimensions `*B` are the same in all floating tensors.

    - `points` (*B, V, 3): x w, y w and depth, with x and y in pixels (x to the right, y *down*, the centre of pixel
      [row, col] at (col + 0.5, row + 0.5)), depth growing away from the camera, and w the depth, or 1 without perspective.
      With a `matrix` they are points of the world, and matrix @ (point, 1) is the above.
    - `attributes` (*B, N, C), looked up by `attribute_faces` (F, 3): vertex attributes share `faces`, face attributes
      repeat the face's own index.
    - `background` (*B, C + 1): attributes and, last, depth where nothing is.
    - `softness` (*B, 3): the noise scale in pixels, the depth steepness, and the near distance: faces fade out between
      twice that depth and it.
    - `faces` (F, 3) and `attribute_faces` (F, 3): int32 or int64, shared by the batch.
    - `matrix` (*B, 3, 4) or none: the camera's, which CUDA kernels apply themselves.
    """

    points: Tensor
    attributes: Tensor
    background: Tensor
    softness: Tensor
    faces: Tensor
    attribute_faces: Tensor
    settings: RasterSettings
    matrix: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        tensors = [self.points, self.attributes, self.background, self.softness, self.faces, self.attribute_faces]
        return tensors if self.matrix is None else [*tensors, self.matrix]


class Raster(NamedTuple):
    """The rasteriser's result, all differentiable: `image` (*B, H, W, C) are the attributes over the background,
    `silhouette` (*B, H, W) in [0, 1], `depth` (*B, H, W) over the background's depth."""

    image: Tensor
    silhouette: Tensor
    depth: Tensor
